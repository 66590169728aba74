//! Operations that look at one row at a time.

use prelude_core::{ForwardBatch, OneShotBatch, OutputHead, OutputRow, SegmentIdx};

use super::{
    ConformanceDevice, Demands, EPS, Precision, ROWS, SMALL_SHAPE, SUM, Spec, VOCAB, WIDTHS,
    batches::root,
    idle, one_segment, spec,
    values::{self, Values, assert_rows, empty, filled, relative, run, vector, wide},
};
use crate::{Ops, naive};

/// Checks `rms_norm`, `silu_mul`, `embed` and `gather_rows`.
///
/// # Panics
/// If the device is wrong.
pub fn elementwise<D: ConformanceDevice>(demands: Demands, open: impl Fn(&Spec) -> D) {
    for width in WIDTHS {
        for rows in ROWS {
            rms_norm(demands.precision, rows, width, &open);
            silu_mul(demands.precision, rows, width, &open);
            embed_and_gather(demands.precision, rows, width, &open);
        }
    }
}

fn rms_norm<D: ConformanceDevice>(
    precision: Precision,
    rows: usize,
    width: usize,
    open: &impl Fn(&Spec) -> D,
) {
    // The rows lie inside a taller tensor: the input is indexed by token, the output by chunk row.
    const BEFORE: usize = 2;
    const AFTER: usize = 1;
    let mut values = Values::new(precision, 1);
    let tall = BEFORE + rows + AFTER;
    let mut h = values.many(tall * width, -3.0, 3.0);
    values.scale_rows(&mut h[BEFORE * width..][..rows * width], width);
    let weight = values.many(width, 0.25, 4.0);
    let mut device = open(&spec(width, SMALL_SHAPE, 1, (tall + rows) * width));
    let w = vector(&mut device.loader(), &weight);
    let rooms = [filled(&h, width), empty(rows, width)];
    let [_, got] = run(&mut device, idle(), rooms, |ops, _, [input, output]| {
        ops.rms_norm(input, BEFORE..BEFORE + rows, &w, EPS, output)
    });
    // The quotient and the product are stored in the activation type.
    let bound = SUM + precision.stored(2.0);
    let what = || format!("rms_norm [{rows}, {width}]");
    assert_rows(what, &got, width, |row| {
        let x = wide(&h[(BEFORE + row) * width..][..width]);
        let expected = naive::rms_norm(&x, &wide(&weight), f64::from(EPS));
        relative(expected, bound)
    });
}

fn silu_mul<D: ConformanceDevice>(
    precision: Precision,
    rows: usize,
    width: usize,
    open: &impl Fn(&Spec) -> D,
) {
    let mut values = Values::new(precision, 2);
    let mut gate_up = values.many(rows * 2 * width, -6.0, 6.0);
    // Where the exponential over- and underflows, the product must not.
    const GATES: [f32; 9] = [0.0, 20.0, -20.0, 88.0, -88.0, 120.0, -120.0, 1e4, -1e4];
    values.put_first(&mut gate_up, &GATES);
    let mut device = open(&spec(width, SMALL_SHAPE, 1, rows * 3 * width));
    let rooms = [filled(&gate_up, 2 * width), empty(rows, width)];
    let [_, got] = run(&mut device, idle(), rooms, |ops, _, [input, output]| {
        ops.silu_mul(input, rows, output)
    });
    // silu and the product are stored. Tiny results may be flushed: exp(-88) is near f32's end.
    let bound = SUM + precision.stored(2.0);
    const FLUSHED: f64 = 1e-34;
    let what = || format!("silu_mul [{rows}, {width}]");
    assert_rows(what, &got, width, |row| {
        let expected = naive::silu_mul(&wide(&gate_up[row * 2 * width..][..2 * width]));
        let within = |y: f64| (y, bound * y.abs() + FLUSHED);
        expected.into_iter().map(within).collect()
    });
}

/// Returns a batch of one segment of `rows` tokens and a second root of one token, so that
/// positions and tokens differ. Its output positions are read in another order than they come in.
fn two_roots(rows: usize) -> OneShotBatch {
    let ids = (0..rows).map(|i| match i {
        0 => VOCAB - 1,
        1 => 0,
        i => i * 37 % VOCAB,
    });
    let mut batch = one_segment(&ids.map(|id| id as u32).collect::<Vec<_>>());
    batch.tokens.push(7);
    let end = u32::try_from(rows).expect("cases are small");
    batch.segments.push(root(end..end + 1));
    let read = |segment, position| OutputRow {
        segment: SegmentIdx(segment),
        positions: position..position + 1,
        head: OutputHead::Classify,
    };
    batch.rows = vec![read(1, 0), read(0, end - 1)];
    if rows > 1 {
        // A repeated position is read once.
        batch.rows.extend([read(0, 0), read(1, 0)]);
    }
    batch
}

/// Checks `embed` and `gather_rows`, which only copy, so that their results are exact.
fn embed_and_gather<D: ConformanceDevice>(
    precision: Precision,
    rows: usize,
    width: usize,
    open: &impl Fn(&Spec) -> D,
) {
    let mut values = Values::new(precision, 3);
    let table = values.many(VOCAB * width, -2.0, 2.0);
    let batch = two_roots(rows);
    let tokens: &[usize] = if rows > 1 {
        &[rows, rows - 1, 0]
    } else {
        &[rows, 0]
    };
    let mut device = open(&spec(
        width,
        SMALL_SHAPE,
        rows + 1,
        2 * (rows + 1 + tokens.len()) * width,
    ));
    let w = values::table(&mut device.loader(), &table, width);
    let (mut h, mut y) = (Vec::new(), Vec::new());
    device.step(ForwardBatch::OneShot(batch.clone()), &mut |ops, inputs| {
        assert_eq!(ops.num_tokens(inputs), rows + 1, "num_tokens");
        assert_eq!(ops.num_outputs(inputs), tokens.len(), "num_outputs");
        let mut hidden = ops.alloc(rows + 1, width).expect("room");
        ops.embed(inputs, &w, 1.0, &mut hidden).expect("embed runs");
        h = D::read(ops, &hidden);
        let mut output = ops.alloc(tokens.len(), width).expect("room");
        ops.gather_rows(inputs, &hidden, 0..rows + 1, &mut output)
            .expect("gather_rows runs");
        y = D::read(ops, &output);
        // The same from two chunks: each fills its own rows and leaves the others.
        let mut output = ops.alloc(tokens.len(), width).expect("room");
        for chunk in [0..rows, rows..rows + 1] {
            let mut x = ops.alloc(chunk.len(), width).expect("room");
            D::write(ops, &mut x, &h[chunk.start * width..chunk.end * width]);
            let wanted = tokens.iter().any(|t| chunk.contains(t));
            assert_eq!(ops.has_outputs(inputs, chunk.clone()), wanted, "{chunk:?}");
            ops.gather_rows(inputs, &x, chunk, &mut output)
                .expect("gather_rows runs");
        }
        assert_eq!(D::read(ops, &output), y, "gather_rows by chunks");
    });
    let row_of = |token: usize| &table[batch.tokens[token] as usize * width..][..width];
    for token in 0..=rows {
        assert_eq!(
            &h[token * width..][..width],
            row_of(token),
            "embed [{rows}, {width}] token {token}"
        );
    }
    for (i, &token) in tokens.iter().enumerate() {
        assert_eq!(
            &y[i * width..][..width],
            row_of(token),
            "gather_rows [{rows}, {width}] output {i}"
        );
    }
}
