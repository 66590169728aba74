//! Operations that encoders alone use: tables added up, layer norms, activations, means, and attention
//! that sees whole segments.

use std::ops::Range;

use prelude_core::{
    Attention, BlockSpan, ForwardBatch, OneShotBatch, OutputHead, OutputRow, Pooling, Residency,
    RowOutput, Segment, SegmentIdx, TokenHead, TokenId,
};

use super::{
    BLOCK_SIZE, ConformanceDevice, Demands, EPS, Precision, ROWS, SMALL_SHAPE, SUM, VOCAB, WIDTHS,
    idle, spec,
    values::{Stored, Values, assert_within, wide},
};
use crate::{
    Activation, AttnShape, DenseConfig, DenseModule, Distances, EmbedTables, Ops, WeightLoader,
    naive::{self, layout::lay_out},
};

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
    for (heads, head_dim) in [(3, 40), (2, 16), (1, 64), (2, 128)] {
        attention(demands.precision, (heads, head_dim), Near::All, &open);
        attention(demands.precision, (heads, head_dim), Near::Window(0), &open);
        attention(demands.precision, (heads, head_dim), Near::Window(5), &open);
        attention(
            demands.precision,
            (heads, head_dim),
            Near::Window(64),
            &open,
        );
        attention(demands.precision, (heads, head_dim), Near::Bias(9), &open);
    }
}

fn layer_norm<D: ConformanceDevice>(
    precision: Precision,
    rows: usize,
    width: usize,
    open: &impl Fn(&super::Spec) -> D,
) {
    let mut values = Values::new(precision, 71);
    let mut h = values.many(rows * width, -3.0, 3.0);
    for (row, scale) in [(0, 1e-3), (1, 1e3), (2, 0.0)] {
        if row < rows {
            for v in &mut h[row * width..][..width] {
                *v = values.exact(*v * scale);
            }
        }
    }
    let (weight, bias) = (values.many(width, 0.25, 4.0), values.many(width, -1.0, 1.0));
    let mut device = open(&spec(width, SMALL_SHAPE, 1, 2 * rows * width));
    let mut loader = device.loader();
    let [w, b] = [&weight, &bias].map(|values| {
        let stored = Stored::new(values, &[width]);
        loader
            .vector("norm", &stored.view())
            .expect("a vector loads")
    });
    let mut got = Vec::new();
    device.step(idle(), &mut |ops, _| {
        let mut tensor = ops.alloc(rows, width).expect("room");
        D::write(ops, &mut tensor, &h);
        let mut of = ops.alloc(rows, width).expect("room");
        ops.layer_norm_of(&tensor, rows, &w, &b, EPS, &mut of)
            .expect("layer_norm_of runs");
        assert_eq!(D::read(ops, &tensor), h, "layer_norm_of changes its input");
        ops.layer_norm(&mut tensor, rows, &w, &b, EPS)
            .expect("layer_norm runs");
        got = D::read(ops, &tensor);
        assert_eq!(D::read(ops, &of), got, "layer_norm_of is layer_norm");
    });
    for row in 0..rows {
        let x = wide(&h[row * width..][..width]);
        let expected = naive::layer_norm(&x, &wide(&weight), &wide(&bias), f64::from(EPS));
        // The mean is off by its own rounding, which counts as much as the row is narrow.
        let largest = x.iter().fold(0.0, |max: f64, v| max.max(v.abs()));
        let mean = x.iter().sum::<f64>() / width as f64;
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / width as f64;
        let of_mean = SUM * largest / (variance + f64::from(EPS)).sqrt();
        let bounds = expected.iter().zip(&weight).zip(&bias).map(|((y, w), b)| {
            let terms = y.abs() + 2.0 * f64::from(b.abs());
            let stored = (SUM + precision.stored(3.0)) * terms;
            (*y, stored + 4.0 * of_mean * f64::from(w.abs()))
        });
        assert_within(
            || format!("layer_norm [{rows}, {width}] row {row}"),
            &got[row * width..][..width],
            bounds.collect::<Vec<_>>().into_iter(),
        );
    }
}

fn activate<D: ConformanceDevice>(
    precision: Precision,
    rows: usize,
    width: usize,
    open: &impl Fn(&super::Spec) -> D,
) {
    let mut values = Values::new(precision, 72);
    let mut x = values.many(rows * width, -6.0, 6.0);
    for (i, special) in [0.0, 20.0, -20.0, 88.0, -88.0, 1e4, -1e4, 0.5, -0.5]
        .into_iter()
        .enumerate()
    {
        x[i % (rows * width)] = values.exact(special);
    }
    for f in [
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Relu,
        Activation::Tanh,
    ] {
        let mut device = open(&spec(width, SMALL_SHAPE, 1, rows * width));
        let mut got = Vec::new();
        device.step(idle(), &mut |ops, _| {
            let mut tensor = ops.alloc(rows, width).expect("room");
            D::write(ops, &mut tensor, &x);
            ops.activate(&mut tensor, rows, f).expect("activate runs");
            got = D::read(ops, &tensor);
        });
        // The normal distribution and tanh are exact to some units of 1; they are factors of x.
        let bounds = x.iter().map(|&x| {
            let y = naive::activate(f64::from(x), f);
            let factor = f64::from(x.abs()).max(1.0);
            (y, SUM * factor + precision.stored(1.0) * y.abs())
        });
        assert_within(
            || format!("activate {f:?} [{rows}, {width}]"),
            &got,
            bounds.collect::<Vec<_>>().into_iter(),
        );
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
        let mut got = Vec::new();
        device.step(idle(), &mut |ops, _| {
            let mut gate_up = ops.alloc(rows, 2 * width).expect("room");
            let mut a = ops.alloc(rows, width).expect("room");
            D::write(ops, &mut gate_up, &x);
            ops.activate_mul(&gate_up, rows, f, &mut a)
                .expect("activate_mul runs");
            got = D::read(ops, &a);
        });
        let mut bounds = Vec::new();
        for row in x.chunks_exact(2 * width) {
            let (gate, up) = row.split_at(width);
            for (&g, &u) in gate.iter().zip(up) {
                let (g, u) = (f64::from(g), f64::from(u));
                let y = naive::activate(g, f) * u;
                let of_gate = SUM * g.abs().max(1.0) * u.abs();
                bounds.push((y, of_gate + precision.stored(2.0) * y.abs()));
            }
        }
        assert_within(
            || format!("activate_mul {f:?} [{rows}, {width}]"),
            &got,
            bounds.into_iter(),
        );
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
            bounds.collect::<Vec<_>>().into_iter(),
        );
    }
}

/// The keys that are near enough to a query, and what their distance adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Near {
    All,
    Window(u32),
    /// Numbers for distances up to this one.
    Bias(usize),
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
        batch.segments.push(Segment {
            tokens: start as u32..batch.tokens.len() as u32,
            parent: None,
            context_len: 0,
            cached: BlockSpan::EMPTY,
            residency: Residency::Transient,
        });
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
    let mut load = |values: &[f32]| {
        let stored = Stored::new(values, &[values.len() / width, width]);
        loader
            .embedding("table", &stored.view(), false)
            .expect("a table loads")
    };
    let [w, p, t] = [&words, &positions, &types].map(|values| load(values));
    let mut got = Vec::new();
    let mut chunks = Vec::new();
    device.step(ForwardBatch::OneShot(batch), &mut |ops, inputs| {
        let mut h = ops.alloc(tokens.len(), width).expect("room");
        let mut start = 0;
        while start < tokens.len() {
            // Whole segments, however many a chunk holds.
            let rows = start..ops.whole_segments(inputs, start);
            let tables = EmbedTables {
                words: &w,
                num_words: VOCAB as u32,
                positions: Some(&p),
                types: Some(&t),
            };
            ops.embed_sum(inputs, rows.clone(), tables, &mut h)
                .expect("embed_sum runs");
            got.extend_from_slice(&D::read(ops, &h)[..rows.len() * width]);
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
            sums.collect::<Vec<_>>().into_iter(),
        );
    }
}

/// Checks prompts around the edges of tiles: each query sees its own prompt, or what is near in it, and
/// nothing else.
fn attention<D: ConformanceDevice>(
    precision: Precision,
    (heads, head_dim): (usize, usize),
    near: Near,
    open: &impl Fn(&super::Spec) -> D,
) {
    let case = AttentionCase::new(precision, (heads, head_dim), near);
    let got = case.run(open);
    let width = case.shape.out_width();
    for segment in &case.segments {
        for (head, token) in (0..heads).flat_map(|head| segment.clone().map(move |t| (head, t))) {
            // Weights are off by the rounding of scores; values are at most 2.
            let bound = 2.0 * (64.0 * SUM + precision.stored(4.0));
            let expected = case.expected(segment, head, token);
            assert_within(
                || format!("attention over prompts, {near:?}, token {token} of {segment:?}"),
                &got[token * width + head * head_dim..][..head_dim],
                expected.into_iter().map(|y| (y, bound)),
            );
        }
    }
}

/// Prompts, their queries, keys and values, and what distances add to scores.
struct AttentionCase {
    shape: AttnShape,
    near: Near,
    batch: OneShotBatch,
    /// The tokens of each prompt.
    segments: Vec<Range<usize>>,
    qkv: Vec<f32>,
    bias: Vec<f32>,
}

impl AttentionCase {
    /// Tokens of the longest prompt: some chunks hold several prompts, and this one has one alone.
    const CHUNK: usize = 130;

    fn new(precision: Precision, (heads, head_dim): (usize, usize), near: Near) -> Self {
        let shape = AttnShape {
            heads,
            kv_heads: heads,
            head_dim,
            scale: (head_dim as f32).powf(-0.5),
            soft_cap: None,
            attention: Attention::Full,
        };
        let (batch, tokens) = prompts(&[1, 2, 63, 64, 65, 17, Self::CHUNK]);
        let laid_out = lay_out(&ForwardBatch::OneShot(batch.clone()), BLOCK_SIZE);
        let mut segments: Vec<_> = laid_out.into_iter().map(|token| token.segment).collect();
        segments.dedup();
        let mut values = Values::new(precision, 74);
        Self {
            shape,
            near,
            batch,
            segments,
            qkv: values.many(tokens.len() * shape.qkv_width(), -2.0, 2.0),
            bias: match near {
                Near::Bias(reach) => values.many(heads * (2 * reach + 1), -2.0, 2.0),
                _ => Vec::new(),
            },
        }
    }

    fn window(&self) -> Option<u32> {
        match self.near {
            Near::Window(window) => Some(window),
            _ => None,
        }
    }

    /// Returns what a device computes for all tokens.
    fn run<D: ConformanceDevice>(&self, open: &impl Fn(&super::Spec) -> D) -> Vec<f32> {
        let (width, out_width) = (self.shape.qkv_width(), self.shape.out_width());
        let count = self.batch.tokens.len();
        let mut spec = spec(out_width, self.shape, count, count * (width + out_width));
        spec.capacity.attention = Attention::Full;
        spec.capacity.vocab_size = 2 * VOCAB as u32;
        spec.chunk_tokens = Self::CHUNK;
        let mut device = open(&spec);
        let stored = Stored::new(&self.bias, &[self.bias.len()]);
        let bias = device.loader().vector("bias", &stored.view());
        let bias = bias.expect("a vector loads");
        let distances = Distances {
            window: self.window(),
            bias: (!self.bias.is_empty()).then_some(&bias),
        };
        let mut got = Vec::new();
        let step = ForwardBatch::OneShot(self.batch.clone());
        device.step(step, &mut |ops, inputs| {
            let mut qkv = ops.alloc(Self::CHUNK, width).expect("room");
            let mut out = ops.alloc(Self::CHUNK, out_width).expect("room");
            let mut start = 0;
            while start < count {
                let rows = start..ops.whole_segments(inputs, start);
                assert!(rows.len() <= Self::CHUNK, "{rows:?}");
                let mut chunk = self.qkv[rows.start * width..rows.end * width].to_vec();
                chunk.resize(Self::CHUNK * width, f32::NAN);
                D::write(ops, &mut qkv, &chunk);
                let (shape, at) = (self.shape, rows.clone());
                ops.qk_norm_rope_store(inputs, 0, at.clone(), shape, None, None, &mut qkv)
                    .expect("keys are placed");
                match self.near {
                    Near::All => ops.attention(inputs, 0, at, shape, &qkv, &mut out),
                    _ => ops.attention_by_distance(inputs, 0, at, shape, distances, &qkv, &mut out),
                }
                .expect("attention runs");
                got.extend_from_slice(&D::read(ops, &out)[..rows.len() * out_width]);
                start = rows.end;
            }
        });
        got
    }

    /// Returns the query, key or value of a token for a head: `which` is 0, 1 or 2.
    fn part(&self, token: usize, which: usize, head: usize) -> Vec<f64> {
        let (width, dim) = (self.shape.qkv_width(), self.shape.head_dim);
        let at = token * width + which * self.shape.out_width() + head * dim;
        wide(&self.qkv[at..][..dim])
    }

    /// Returns what a head gives a token of a segment.
    fn expected(&self, segment: &Range<usize>, head: usize, token: usize) -> Vec<f64> {
        let window = self.window().map_or(usize::MAX, |window| window as usize);
        let seen = segment.clone();
        let seen: Vec<usize> = seen.filter(|key| key.abs_diff(token) <= window).collect();
        let q = self.part(token, 0, head);
        let bias = wide(&self.bias);
        let score = |&key: &usize| {
            let product = naive::dot(&q, &self.part(key, 1, head)) * f64::from(self.shape.scale);
            match bias.is_empty() {
                true => product,
                false => product + naive::distance_bias(&bias, self.shape.heads, head, token, key),
            }
        };
        let scores: Vec<f64> = seen.iter().map(score).collect();
        let values: Vec<_> = seen.iter().map(|&key| self.part(key, 2, head)).collect();
        let values: Vec<&[f64]> = values.iter().map(Vec::as_slice).collect();
        naive::average(&scores, &values)
    }
}
