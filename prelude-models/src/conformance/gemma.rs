//! Operations that Gemma alone uses: scaled embeddings, norms whose weights are stored less 1, norms
//! behind the halves of a layer, attention within windows, bounded scores and logits.

use prelude_core::ForwardBatch;

use super::{
    ConformanceDevice, Demands, EPS, Precision, ROWS, SMALL_SHAPE, SUM, Spec, VOCAB, WIDTHS,
    attention, heads, idle, one_segment, spec,
    values::{self, Stored, Values, assert_rows, empty, filled, relative, run, wide},
};
use crate::{Ops, WeightLoader, naive};

/// Checks `embed` with a scale, `norm` with an offset, `rms_norm_add`, `attention_by_distance` over
/// causal contexts, soft caps of attention and of logits.
///
/// # Panics
/// If the device is wrong.
pub fn gemma<D: ConformanceDevice>(demands: Demands, open: impl Fn(&Spec) -> D) {
    for width in WIDTHS {
        scaled_embeddings(demands.precision, width, &open);
        for rows in ROWS {
            norms_with_offset(demands.precision, rows, width, &open);
            norms_added(demands.precision, rows, width, &open);
        }
    }
    attention::near(demands, &open);
    heads::capped(demands, &open);
}

fn scaled_embeddings<D: ConformanceDevice>(
    precision: Precision,
    width: usize,
    open: &impl Fn(&Spec) -> D,
) {
    // As the root of a width of 640: no number of bf16.
    const SCALE: f32 = 25.298_222;
    let ids = [3, 0, 330, 7];
    let mut values = Values::new(precision, 80);
    let table = values.many(VOCAB * width, -2.0, 2.0);
    let mut device = open(&spec(width, SMALL_SHAPE, ids.len(), ids.len() * width));
    let w = values::table(&mut device.loader(), &table, width);
    let step = ForwardBatch::OneShot(one_segment(&ids));
    let rooms = [empty(ids.len(), width)];
    let [got] = run(&mut device, step, rooms, |ops, inputs, [h]| {
        ops.embed(inputs, &w, SCALE, h)
    });
    let bound = SUM + precision.stored(1.0);
    let what = || format!("embed, scaled [{width}]");
    assert_rows(what, &got, width, |row| {
        let row = wide(&table[ids[row] as usize * width..][..width]);
        let scaled = row.into_iter().map(|x| x * f64::from(SCALE));
        relative(scaled.collect(), bound)
    });
}

/// Returns a norm's weight as Gemma stores it, some of it near 0, where a sum rounded to bf16 would
/// show; and the sum in f64.
fn stored_weight(values: &mut Values, width: usize) -> (Vec<f32>, Vec<f64>) {
    let weight = values.many(width, -0.3, 0.3);
    let sum = wide(&weight).into_iter().map(|w| 1.0 + w).collect();
    (weight, sum)
}

fn load_norm<D: ConformanceDevice>(
    device: &mut D,
    weight: &[f32],
) -> <D::Loader as WeightLoader>::Weight {
    let stored = Stored::new(weight, &[weight.len()]);
    let norm = device.loader().norm("norm", &stored.view(), 1.0);
    norm.expect("a norm loads")
}

fn norms_with_offset<D: ConformanceDevice>(
    precision: Precision,
    rows: usize,
    width: usize,
    open: &impl Fn(&Spec) -> D,
) {
    let mut values = Values::new(precision, 81);
    let h = values.many(rows * width, -3.0, 3.0);
    let (weight, sum) = stored_weight(&mut values, width);
    let mut device = open(&spec(width, SMALL_SHAPE, 1, 2 * rows * width));
    let w = load_norm(&mut device, &weight);
    let rooms = [filled(&h, width), empty(rows, width)];
    let [_, got] = run(&mut device, idle(), rooms, |ops, _, [input, output]| {
        ops.rms_norm(input, 0..rows, &w, EPS, output)
    });
    // Nothing but the product is stored.
    let bound = SUM + precision.stored(1.0);
    let what = || format!("rms_norm with an offset [{rows}, {width}]");
    assert_rows(what, &got, width, |row| {
        let x = wide(&h[row * width..][..width]);
        relative(naive::rms_norm(&x, &sum, f64::from(EPS)), bound)
    });
}

/// Checks norms that are added to rows inside a taller tensor: the sum is indexed by token, the input
/// by chunk row.
fn norms_added<D: ConformanceDevice>(
    precision: Precision,
    rows: usize,
    width: usize,
    open: &impl Fn(&Spec) -> D,
) {
    const BEFORE: usize = 2;
    let mut values = Values::new(precision, 82);
    let tall = BEFORE + rows + 1;
    let h = values.many(tall * width, -3.0, 3.0);
    let x = values.many(rows * width, -3.0, 3.0);
    let (weight, sum) = stored_weight(&mut values, width);
    let mut device = open(&spec(width, SMALL_SHAPE, 1, (tall + rows) * width));
    let w = load_norm(&mut device, &weight);
    let rooms = [filled(&x, width), filled(&h, width)];
    let [_, got] = run(&mut device, idle(), rooms, |ops, _, [input, target]| {
        ops.rms_norm_add(input, BEFORE..BEFORE + rows, &w, EPS, target)
    });
    let what = || format!("rms_norm_add [{rows}, {width}]");
    assert_rows(what, &got, width, |row| {
        let before = wide(&h[row * width..][..width]);
        let added = match row.checked_sub(BEFORE).filter(|&i| i < rows) {
            Some(i) => naive::rms_norm(&wide(&x[i * width..][..width]), &sum, f64::from(EPS)),
            None => vec![0.0; width],
        };
        let within = |(h, y): (&f64, &f64)| {
            // A row that is not added to keeps its bits.
            let stored = if *y == 0.0 {
                0.0
            } else {
                precision.stored(1.0)
            };
            (h + y, SUM * (h.abs() + y.abs()) + stored * (h + y).abs())
        };
        before.iter().zip(&added).map(within).collect()
    });
}
