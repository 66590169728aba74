//! Operations that encoders alone use: tables added up, layer norms, activations, means, and attention
//! that sees whole segments.

use std::ops::Range;

use prelude_core::{
    Attention, ForwardBatch, OneShotBatch, OutputHead, OutputRow, Pooling, RowOutput, SegmentIdx,
    TokenHead, TokenId,
};

use super::{
    ConformanceDevice, Demands, EPS, Precision, ROWS, SMALL_SHAPE, SUM, VOCAB, WIDTHS, attention,
    batches::root,
    idle, spec,
    values::{self, Stored, Values, assert_rows, assert_within, empty, filled, run, vector, wide},
};
use crate::{Activation, DenseConfig, DenseModule, EmbedTables, Ops, WeightLoader, naive};

/// Checks `embed_sum`, `layer_norm`, `activate`, `activate_mul`, `segment_means`, and `attention` over
/// whole segments, by distance too.
///
/// # Panics
/// If the device is wrong.
pub fn encoders<D: ConformanceDevice>(demands: Demands, open: impl Fn(&super::Spec) -> D) {
    for width in WIDTHS {
        for rows in ROWS {
            layer_norm(demands.precision, rows, width, &open);
            activate(demands.precision, rows, width, &open);
            activate_mul(demands.precision, rows, width, &open);
        }
        embed_sum(demands.precision, width, &open);
        segment_means(demands.precision, width, &open);
        dense_modules(demands.precision, width, &open);
    }
    attention::whole(demands, &open);
}

fn layer_norm<D: ConformanceDevice>(
    precision: Precision,
    rows: usize,
    width: usize,
    open: &impl Fn(&super::Spec) -> D,
) {
    let mut values = Values::new(precision, 71);
    let mut h = values.many(rows * width, -3.0, 3.0);
    values.scale_rows(&mut h, width);
    let (weight, bias) = (values.many(width, 0.25, 4.0), values.many(width, -1.0, 1.0));
    let mut device = open(&spec(width, SMALL_SHAPE, 1, 3 * rows * width));
    let mut loader = device.loader();
    let [w, b] = [&weight, &bias].map(|values| vector(&mut loader, values));
    let rooms = [filled(&h, width), empty(rows, width), filled(&h, width)];
    let [input, of, got] = run(&mut device, idle(), rooms, |ops, _, [x, of, h]| {
        ops.layer_norm_of(x, rows, &w, &b, EPS, of)?;
        ops.layer_norm(h, rows, &w, &b, EPS)
    });
    assert_eq!(input, h, "layer_norm_of changes its input");
    assert_eq!(of, got, "layer_norm_of is layer_norm");
    let what = || format!("layer_norm [{rows}, {width}]");
    assert_rows(what, &got, width, |row| {
        let x = wide(&h[row * width..][..width]);
        let expected = naive::layer_norm(&x, &wide(&weight), &wide(&bias), f64::from(EPS));
        // The mean is off by its own rounding, which counts as much as the row is narrow.
        let largest = x.iter().fold(0.0, |max: f64, v| max.max(v.abs()));
        let mean = x.iter().sum::<f64>() / width as f64;
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
        let of_mean = SUM * largest / (variance + f64::from(EPS)).sqrt();
        let within = |((y, w), b): ((f64, &f32), &f32)| {
            let terms = y.abs() + 2.0 * f64::from(b.abs());
            let stored = (SUM + precision.stored(3.0)) * terms;
            (y, stored + 4.0 * of_mean * f64::from(w.abs()))
        };
        let expected = expected.into_iter().zip(&weight).zip(&bias);
        expected.map(within).collect()
    });
}

fn activate<D: ConformanceDevice>(
    precision: Precision,
    rows: usize,
    width: usize,
    open: &impl Fn(&super::Spec) -> D,
) {
    const SPECIAL: [f32; 9] = [0.0, 20.0, -20.0, 88.0, -88.0, 1e4, -1e4, 0.5, -0.5];
    let mut values = Values::new(precision, 72);
    let mut x = values.many(rows * width, -6.0, 6.0);
    values.put_first(&mut x, &SPECIAL);
    for f in [
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Relu,
        Activation::Tanh,
    ] {
        let mut device = open(&spec(width, SMALL_SHAPE, 1, rows * width));
        let rooms = [filled(&x, width)];
        let [got] = run(&mut device, idle(), rooms, |ops, _, [x]| {
            ops.activate(x, rows, f)
        });
        // The normal distribution and tanh are exact to some units of 1; they are factors of x.
        let bounds = x.iter().map(|&x| {
            let y = naive::activate(f64::from(x), f);
            let factor = f64::from(x.abs()).max(1.0);
            (y, SUM * factor + precision.stored(1.0) * y.abs())
        });
        let what = || format!("activate {f:?} [{rows}, {width}]");
        assert_within(what, &got, bounds);
    }
}

fn activate_mul<D: ConformanceDevice>(
    precision: Precision,
    rows: usize,
    width: usize,
    open: &impl Fn(&super::Spec) -> D,
) {
    let mut values = Values::new(precision, 75);
    let x = values.many(rows * 2 * width, -4.0, 4.0);
    for f in [Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
        let mut device = open(&spec(width, SMALL_SHAPE, 1, 3 * rows * width));
        let rooms = [filled(&x, 2 * width), empty(rows, width)];
        let [_, got] = run(&mut device, idle(), rooms, |ops, _, [gate_up, a]| {
            ops.activate_mul(gate_up, rows, f, a)
        });
        let what = || format!("activate_mul {f:?} [{rows}, {width}]");
        assert_rows(what, &got, width, |row| {
            let row = wide(&x[row * 2 * width..][..2 * width]);
            let (gate, up) = row.split_at(width);
            let within = |(&g, &u): (&f64, &f64)| {
                let y = naive::activate(g, f) * u;
                let of_gate = SUM * g.abs().max(1.0) * u.abs();
                (y, of_gate + precision.stored(2.0) * y.abs())
            };
            gate.iter().zip(up).map(within).collect()
        });
    }
}

/// Checks two products behind a pooling, the first with a bias and tanh, and a cut behind them.
fn dense_modules<D: ConformanceDevice>(
    precision: Precision,
    width: usize,
    open: &impl Fn(&super::Spec) -> D,
) {
    const INNER: usize = 48;
    const OUTER: usize = 24;
    const CUT: u32 = 7;
    let mut values = Values::new(precision, 76);
    let h = values.many(3 * width, -1.0, 1.0);
    let first = values.many(INNER * width, -0.2, 0.2);
    let bias = values.many(INNER, -0.5, 0.5);
    let second = values.many(OUTER * INNER, -0.4, 0.4);
    let mut spec = spec(width, SMALL_SHAPE, 3, 3 * width);
    let module = |inputs, outputs, activation: Option<Activation>| DenseConfig {
        folder: String::new(),
        inputs,
        outputs,
        bias: activation.is_some(),
        activation,
    };
    spec.model.dense = vec![
        module(width, INNER, Some(Activation::Tanh)),
        module(INNER, OUTER, None),
    ];
    let mut device = open(&spec);
    let mut loader = device.loader();
    let mut matrix = |values: &[f32], rows, columns, bias: Option<&[f32]>| {
        let stored = Stored::new(values, &[rows, columns]);
        let bias = bias.map(|bias| Stored::new(bias, &[bias.len()]));
        let bias: Vec<_> = bias.iter().map(Stored::view).collect();
        let loaded = loader.linear("dense", &[stored.view()], &bias);
        loaded.expect("a matrix loads")
    };
    let dense = [
        DenseModule {
            weight: matrix(&first, INNER, width, Some(&bias)),
            activation: Some(Activation::Tanh),
        },
        DenseModule {
            weight: matrix(&second, OUTER, INNER, None),
            activation: None,
        },
    ];
    let embed = |dimensions| OutputHead::Embed {
        pooling: Pooling::Mean,
        normalise: false,
        dimensions,
    };
    let tokens = OutputHead::Tokens(TokenHead::Embed {
        normalise: false,
        dimensions: None,
    });
    let row = |head| OutputRow {
        segment: SegmentIdx(0),
        positions: 0..3,
        head,
    };
    let mut batch = super::one_segment(&[1, 2, 3]);
    batch.rows = vec![row(embed(None)), row(embed(Some(CUT))), row(tokens)];
    let output = device.step(ForwardBatch::OneShot(batch), &mut |ops, inputs| {
        let mut hidden = ops.alloc(3, width).expect("room");
        D::write(ops, &mut hidden, &h);
        ops.pooling_heads(inputs, &hidden, &dense)
            .expect("pooling_heads runs");
    });
    let wide_h = wide(&h);
    let mean = |i: usize| (0..3).map(|t| wide_h[t * width + i]).sum::<f64>() / 3.0;
    let mean: Vec<f64> = (0..width).map(mean).collect();
    let inner = naive::linear(&mean, &wide(&first), &wide(&bias));
    let inner: Vec<f64> = inner.into_iter().map(f64::tanh).collect();
    let outer = naive::linear(&inner, &wide(&second), &[]);
    // The mean and the inner vector may be rounded where they enter a product.
    let bound = 0.4 * INNER as f64 * (16.0 * SUM + precision.stored(3.0));
    let [
        RowOutput::Embedding(whole),
        RowOutput::Embedding(cut),
        RowOutput::Tokens { rows, .. },
    ] = &output.oneshot[..]
    else {
        panic!(
            "two vectors and one of each token, not {:?}",
            output.oneshot
        );
    };
    for (got, len) in [(whole, OUTER), (cut, CUT as usize)] {
        assert_within(
            || format!("dense modules [{width}], {len} numbers"),
            got,
            outer[..len].iter().map(|&y| (y, bound)),
        );
    }
    assert_eq!(
        rows.concat(),
        h,
        "tokens' vectors go through no dense module"
    );
}

/// Checks means of segments: the first output lies in the last prompt, and one prompt has none.
fn segment_means<D: ConformanceDevice>(
    precision: Precision,
    width: usize,
    open: &impl Fn(&super::Spec) -> D,
) {
    const LENS: [usize; 4] = [3, 700, 1, 40];
    const READ: [(u32, Range<u32>); 4] = [(3, 5..6), (0, 0..3), (1, 600..602), (3, 0..1)];
    let (mut batch, tokens) = prompts(&LENS);
    batch
        .rows
        .extend(READ.map(|(segment, positions)| OutputRow {
            segment: SegmentIdx(segment),
            positions,
            head: OutputHead::Tokens(TokenHead::Classify),
        }));
    let count = tokens.len();
    let mut values = Values::new(precision, 76);
    let x = values.many(count * width, -2.0, 2.0);
    let mut spec = spec(width, SMALL_SHAPE, count, (count + 8) * width);
    spec.capacity.attention = Attention::Full;
    spec.capacity.vocab_size = 2 * VOCAB as u32;
    spec.chunk_tokens = 705;
    let mut device = open(&spec);
    let mut got = Vec::new();
    device.step(ForwardBatch::OneShot(batch), &mut |ops, inputs| {
        let outputs = ops.num_outputs(inputs);
        assert_eq!(outputs, 7);
        let mut means = ops.alloc(outputs, width).expect("room");
        let mut chunk = ops.alloc(705, width).expect("room");
        let mut start = 0;
        while start < count {
            let rows = start..ops.whole_segments(inputs, start);
            let mut states = x[rows.start * width..rows.end * width].to_vec();
            states.resize(705 * width, f32::NAN);
            D::write(ops, &mut chunk, &states);
            ops.segment_means(inputs, &chunk, rows.clone(), &mut means)
                .expect("segment_means runs");
            start = rows.end;
        }
        got = D::read(ops, &means);
    });
    let segments = READ
        .iter()
        .flat_map(|(s, at)| at.clone().map(|_| *s as usize));
    for (output, segment) in segments.enumerate() {
        let first: usize = LENS[..segment].iter().sum();
        let states = &x[first * width..(first + LENS[segment]) * width];
        let bounds = (0..width).map(|j| {
            let column = states.iter().skip(j).step_by(width).map(|&v| f64::from(v));
            let n = LENS[segment] as f64;
            let size: f64 = column.clone().map(f64::abs).sum();
            let mean = column.sum::<f64>() / n;
            (mean, SUM * size / n + precision.stored(1.0) * mean.abs())
        });
        assert_within(
            || format!("segment_means [{width}] output {output} in segment {segment}"),
            &got[output * width..][..width],
            bounds,
        );
    }
}

/// Returns prompts of these lengths, whose words after the middle are of the second type, and each
/// token with its position.
fn prompts(lens: &[usize]) -> (OneShotBatch, Vec<(TokenId, usize)>) {
    let mut batch = OneShotBatch::EMPTY;
    let mut tokens = Vec::new();
    for &len in lens {
        let start = batch.tokens.len();
        for position in 0..len {
            let kind = if 2 * position > len { VOCAB } else { 0 };
            let id = (kind + (start * 7 + position * 13) % VOCAB) as TokenId;
            tokens.push((id, position));
            batch.tokens.push(id);
        }
        batch
            .segments
            .push(root(start as u32..batch.tokens.len() as u32));
    }
    (batch, tokens)
}

fn embed_sum<D: ConformanceDevice>(
    precision: Precision,
    width: usize,
    open: &impl Fn(&super::Spec) -> D,
) {
    const LENS: [usize; 2] = [5, 9];
    let mut values = Values::new(precision, 73);
    let mut table = |rows: usize| values.many(rows * width, -2.0, 2.0);
    let (words, positions, types) = (table(VOCAB), table(16), table(2));
    let (batch, tokens) = prompts(&LENS);
    let mut spec = spec(width, SMALL_SHAPE, tokens.len(), tokens.len() * width);
    spec.capacity.attention = Attention::Full;
    spec.capacity.vocab_size = 2 * VOCAB as u32;
    let mut device = open(&spec);
    let mut loader = device.loader();
    let [w, p, t] =
        [&words, &positions, &types].map(|rows| values::table(&mut loader, rows, width));
    let (mut got, mut added) = (Vec::new(), Vec::new());
    let mut chunks = Vec::new();
    device.step(ForwardBatch::OneShot(batch), &mut |ops, inputs| {
        let mut h = ops.alloc(tokens.len(), width).expect("room");
        let mut start = 0;
        while start < tokens.len() {
            // Whole segments, however many a chunk holds.
            let rows = start..ops.whole_segments(inputs, start);
            let tables = EmbedTables {
                words: Some(&w),
                num_words: VOCAB as u32,
                num_types: 2,
                positions: Some(&p),
                types: Some(&t),
            };
            ops.embed_sum(inputs, rows.clone(), tables, &mut h)
                .expect("embed_sum runs");
            got.extend_from_slice(&D::read(ops, &h)[..rows.len() * width]);
            let more = EmbedTables {
                words: None,
                num_words: VOCAB as u32,
                num_types: 2,
                positions: None,
                types: Some(&t),
            };
            ops.embed_sum(inputs, rows.clone(), more, &mut h)
                .expect("embed_sum runs");
            added.extend_from_slice(&D::read(ops, &h)[..rows.len() * width]);
            start = rows.end;
            chunks.push(rows.end);
        }
    });
    assert!(chunks.iter().all(|end| [5, 14].contains(end)), "{chunks:?}");
    let row = |table: &[f32], i: usize| wide(&table[i * width..][..width]);
    for (i, &(id, position)) in tokens.iter().enumerate() {
        let (word, kind) = (id as usize % VOCAB, id as usize / VOCAB);
        let parts = [
            row(&words, word),
            row(&types, kind),
            row(&positions, position),
        ];
        let sums = (0..width).map(|j| {
            let (sum, size) = parts
                .iter()
                .fold((0.0, 0.0), |(s, m), part| (s + part[j], m + part[j].abs()));
            (sum, (SUM + precision.stored(3.0)) * size)
        });
        assert_within(
            || format!("embed_sum [{width}] token {i}"),
            &got[i * width..][..width],
            sums,
        );
        let kind = row(&types, kind);
        let before = wide(&got[i * width..][..width]);
        let sums = before.iter().zip(&kind).map(|(h, more)| {
            let size = h.abs() + more.abs();
            (h + more, (SUM + precision.stored(1.0)) * size)
        });
        assert_within(
            || format!("embed_sum onto [{width}] token {i}"),
            &added[i * width..][..width],
            sums,
        );
    }
}
