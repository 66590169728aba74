//! Mixtures of experts.

use super::{
    ConformanceDevice, Demands, SMALL_SHAPE, SUM, Spec, idle, spec,
    values::{Stored, Values, assert_rows, filled, run, wide},
};
use crate::{Expert, ExpertRoom, ExpertsConfig, Ops, Routing, WeightLoader, naive};

/// Checks `experts_add`: one expert for each token, some, and all; shares as they are and divided
/// by their sum; and, if demanded, the same bits for a row in any company.
///
/// # Panics
/// If the device is wrong.
pub fn experts<D: ConformanceDevice>(demands: Demands, open: impl Fn(&Spec) -> D) {
    for rows in [1, 3, 17, 65] {
        for (count, per_token, normalise) in
            [(1, 1, false), (5, 1, true), (8, 2, false), (6, 6, true)]
        {
            let routing = Routing {
                per_token,
                normalise,
            };
            check(demands, rows, (count, routing), &open);
        }
    }
}

const HIDDEN: usize = 72;
const INNER: usize = 40;
/// Rows of the sum before the first that is added to.
const BEFORE: usize = 2;

/// A mixture of experts whose matrices `load` makes: of gate and up, or of down, given the place in
/// the stack.
pub(super) struct Mixture<'a, F> {
    pub(super) hidden: usize,
    pub(super) inner: usize,
    pub(super) count: usize,
    pub(super) routing: Routing,
    pub(super) router: &'a [f32],
    /// Rows of the sum before the first that is added to.
    pub(super) before: usize,
    pub(super) load: F,
}

/// A matrix of an expert.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    GateUp,
    Down,
}

impl<F> Mixture<'_, F> {
    /// Returns `h` with the experts' work on `x` added to the rows from `before` on.
    pub(super) fn run<D: ConformanceDevice>(
        &self,
        (x, h): (&[f32], &[f32]),
        open: &impl Fn(&Spec) -> D,
    ) -> Vec<f32>
    where
        F: Fn(&mut D::Loader, Part, (usize, usize)) -> <D::Loader as WeightLoader>::Weight,
    {
        let (hidden, inner, count) = (self.hidden, self.inner, self.count);
        let (rows, tall) = (x.len() / hidden, h.len() / hidden);
        let elements = (tall + rows) * hidden + rows * (count + 3 * hidden + 3 * inner);
        let mut spec = spec(hidden, SMALL_SHAPE, rows, elements);
        spec.model.experts = Some(ExpertsConfig {
            count,
            intermediate_size: inner,
            routing: self.routing,
            layers: vec![true; spec.model.num_hidden_layers],
        });
        let mut device = open(&spec);
        let mut loader = device.loader();
        let router = Stored::new(self.router, &[count, hidden]);
        let router = loader.head("router", &[router.view()], &[]);
        let router = router.expect("a matrix loads");
        let mut stack = |part| -> Vec<_> {
            let load = |e| (self.load)(&mut loader, part, (e, count));
            (0..count).map(load).collect()
        };
        let experts = stack(Part::GateUp).into_iter().zip(stack(Part::Down));
        let experts: Vec<_> = experts
            .map(|(gate_up, down)| Expert { gate_up, down })
            .collect();
        let rooms = [filled(x, hidden), filled(h, hidden)];
        let [_, got] = run(&mut device, idle(), rooms, |ops, _, [input, target]| {
            let mut room = ExpertRoom {
                logits: ops.alloc(rows, count)?,
                gathered: ops.alloc(rows, hidden)?,
                gate_up: ops.alloc(rows, 2 * inner)?,
                inner: ops.alloc(rows, inner)?,
                out: ops.alloc(rows, hidden)?,
                sum: ops.alloc(rows, hidden)?,
            };
            let (at, routing) = (self.before..self.before + rows, self.routing);
            ops.experts_add(input, at, &router, &experts, routing, &mut room, target)
        });
        got
    }

    /// Checks that a row has the bits of `got` alone as well.
    pub(super) fn check_alone<D: ConformanceDevice>(
        &self,
        (x, h): (&[f32], &[f32]),
        got: &[f32],
        open: &impl Fn(&Spec) -> D,
    ) where
        F: Fn(&mut D::Loader, Part, (usize, usize)) -> <D::Loader as WeightLoader>::Weight,
    {
        let (width, before) = (self.hidden, self.before);
        let rows = x.len() / width;
        for i in [0, rows / 2, rows - 1] {
            let (x, h) = (&x[i * width..][..width], &h[i * width..]);
            let alone = self.run((x, &h[..(before + 1) * width]), open);
            assert_eq!(
                alone[before * width..],
                got[(before + i) * width..][..width],
                "row {i} of {rows} has other bits alone"
            );
        }
    }
}

fn check<D: ConformanceDevice>(
    demands: Demands,
    rows: usize,
    (count, routing): (usize, Routing),
    open: &impl Fn(&Spec) -> D,
) {
    let precision = demands.precision;
    let mut values = Values::new(precision, 90);
    let router = values.many(count * HIDDEN, -0.5, 0.5);
    // Gate and up, and down.
    let experts = (0..count).map(|_| {
        let gate_up = values.many(2 * INNER * HIDDEN, -0.3, 0.3);
        (gate_up, values.many(HIDDEN * INNER, -0.3, 0.3))
    });
    let experts: Vec<_> = experts.collect();
    let x = values.many(rows * HIDDEN, -1.0, 1.0);
    let tall = BEFORE + rows + 1;
    let h = values.many(tall * HIDDEN, -2.0, 2.0);
    let mixture = Mixture {
        hidden: HIDDEN,
        inner: INNER,
        count,
        routing,
        router: &router,
        before: BEFORE,
        load: |loader: &mut D::Loader, part, place: (usize, usize)| {
            let (gate_up, down) = &experts[place.0];
            let matrix = match part {
                Part::GateUp => Stored::new(gate_up, &[2 * INNER, HIDDEN]),
                Part::Down => Stored::new(down, &[HIDDEN, INNER]),
            };
            let loaded = loader.linear_of_stack("expert", place, &[matrix.view()]);
            loaded.expect("a matrix loads")
        },
    };
    let got = mixture.run((&x, &h), open);
    let what = || format!("experts {routing:?} of {count}, of {rows}");
    assert_rows(what, &got, HIDDEN, |row| {
        let mut sum = vec![0.0; HIDDEN];
        let input = row.checked_sub(BEFORE).filter(|&i| i < rows);
        let input = input.map(|i| wide(&x[i * HIDDEN..][..HIDDEN]));
        if let Some(x) = &input {
            let logits = naive::linear(x, &wide(&router), &[]);
            for (e, share) in naive::route(&logits, routing) {
                let (gate_up, down) = &experts[e];
                let inner = naive::silu_mul(&naive::linear(x, &wide(gate_up), &[]));
                let out = naive::linear(&inner, &wide(down), &[]);
                sum.iter_mut()
                    .zip(out)
                    .for_each(|(sum, y)| *sum += share * y);
            }
        }
        // Gates, their products and results are stored; the largest inner number is about 3.
        let (inner, stored) = match input {
            Some(_) => (3.0, precision.stored(1.0)),
            None => (0.0, 0.0),
        };
        let bound = 2.0 * inner * (16.0 * SUM + precision.stored(4.0));
        let before = wide(&h[row * HIDDEN..][..HIDDEN]);
        let sums = before.iter().zip(&sum).map(|(h, y)| h + y);
        sums.map(|y| (y, bound + (SUM + stored) * y.abs()))
            .collect()
    });
    if demands.batch_invariant {
        mixture.check_alone((&x, &h), &got, open);
    }
}
