//! Mixtures of experts.

use super::{
    ConformanceDevice, Demands, SMALL_SHAPE, SUM, Spec, idle, spec,
    values::{Stored, Values, assert_within, wide},
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
            let case = Case {
                count,
                routing: Routing {
                    per_token,
                    normalise,
                },
            };
            case.check(demands, rows, &open);
        }
    }
}

const HIDDEN: usize = 72;
const INNER: usize = 40;
/// Rows of the sum before the first that is added to.
const BEFORE: usize = 2;

struct Case {
    count: usize,
    routing: Routing,
}

impl Case {
    /// Runs the experts on `rows` of `x`, and returns the sum that they were added to.
    fn run<D: ConformanceDevice>(
        &self,
        weights: &Weights,
        (x, h): (&[f32], &[f32]),
        open: &impl Fn(&Spec) -> D,
    ) -> Vec<f32> {
        let (rows, tall) = (x.len() / HIDDEN, h.len() / HIDDEN);
        let room = self.count + 3 * HIDDEN + 3 * INNER;
        let elements = (tall + rows) * HIDDEN + rows * room;
        let mut spec = spec(HIDDEN, SMALL_SHAPE, rows, elements);
        spec.model.experts = Some(ExpertsConfig {
            count: self.count,
            intermediate_size: INNER,
            routing: self.routing,
            layers: vec![true; spec.model.num_hidden_layers],
        });
        let mut device = open(&spec);
        let mut loader = device.loader();
        let stored = |values: &[f32], outputs: usize| {
            Stored::new(values, &[outputs, values.len() / outputs])
        };
        let router = stored(&weights.router, self.count);
        let router = loader.head("router", &[router.view()], &[]);
        let router = router.expect("a matrix loads");
        let mut stack = |matrices: Vec<&[f32]>, outputs: usize| {
            let count = matrices.len();
            let matrices = matrices.into_iter().enumerate();
            let loaded = matrices.map(|(e, values)| {
                let matrix = stored(values, outputs);
                let loaded = loader.linear_of_stack("expert", (e, count), &[matrix.view()]);
                loaded.expect("a matrix loads")
            });
            loaded.collect::<Vec<_>>()
        };
        let experts = &weights.experts;
        let gate_up = stack(experts.iter().map(|of| &of.0[..]).collect(), 2 * INNER);
        let down = stack(experts.iter().map(|of| &of.1[..]).collect(), HIDDEN);
        let experts = gate_up.into_iter().zip(down);
        let experts: Vec<_> = experts
            .map(|(gate_up, down)| Expert { gate_up, down })
            .collect();
        let mut got = Vec::new();
        device.step(idle(), &mut |ops, _| {
            let mut alloc = |rows, width| ops.alloc(rows, width).expect("room");
            let mut input = alloc(rows, HIDDEN);
            let mut target = alloc(tall, HIDDEN);
            let mut room = ExpertRoom {
                logits: alloc(rows, self.count),
                gathered: alloc(rows, HIDDEN),
                gate_up: alloc(rows, 2 * INNER),
                inner: alloc(rows, INNER),
                out: alloc(rows, HIDDEN),
                sum: alloc(rows, HIDDEN),
            };
            D::write(ops, &mut input, x);
            D::write(ops, &mut target, h);
            let at = BEFORE..BEFORE + rows;
            let routing = self.routing;
            ops.experts_add(
                &input,
                at,
                &router,
                &experts,
                routing,
                &mut room,
                &mut target,
            )
            .expect("experts_add runs");
            got = D::read(ops, &target);
        });
        got
    }

    fn check<D: ConformanceDevice>(
        &self,
        demands: Demands,
        rows: usize,
        open: &impl Fn(&Spec) -> D,
    ) {
        let precision = demands.precision;
        let mut values = Values::new(precision, 90);
        let weights = Weights::new(&mut values, self.count);
        let x = values.many(rows * HIDDEN, -1.0, 1.0);
        let tall = BEFORE + rows + 1;
        let h = values.many(tall * HIDDEN, -2.0, 2.0);
        let got = self.run(&weights, (&x, &h), open);
        for row in 0..tall {
            let before = wide(&h[row * HIDDEN..][..HIDDEN]);
            let mut sum = vec![0.0; HIDDEN];
            let input = row.checked_sub(BEFORE).filter(|&i| i < rows);
            let input = input.map(|i| wide(&x[i * HIDDEN..][..HIDDEN]));
            if let Some(x) = &input {
                let logits = naive::linear(x, &wide(&weights.router), &[]);
                for (e, share) in naive::route(&logits, self.routing) {
                    let (gate_up, down) = &weights.experts[e];
                    let inner = naive::silu_mul(&naive::linear(x, &wide(gate_up), &[]));
                    let out = naive::linear(&inner, &wide(down), &[]);
                    sum.iter_mut()
                        .zip(out)
                        .for_each(|(sum, y)| *sum += share * y);
                }
            }
            // Gates, their products and results are stored; the largest inner number is about 3.
            let inner = if input.is_some() { 3.0 } else { 0.0 };
            let bound = 2.0 * inner * (16.0 * SUM + precision.stored(4.0));
            let expected = before.iter().zip(&sum).map(|(h, y)| {
                let stored = if input.is_some() {
                    precision.stored(1.0)
                } else {
                    0.0
                };
                (h + y, bound + (SUM + stored) * (h + y).abs())
            });
            assert_within(
                || {
                    format!(
                        "experts {:?} of {}, row {row} of {rows}",
                        self.routing, self.count
                    )
                },
                &got[row * HIDDEN..][..HIDDEN],
                expected.collect::<Vec<_>>().into_iter(),
            );
        }
        if demands.batch_invariant {
            for i in [0, rows / 2, rows - 1] {
                let x = &x[i * HIDDEN..][..HIDDEN];
                let h = &h[i * HIDDEN..][..(BEFORE + 1) * HIDDEN];
                let alone = self.run(&weights, (x, h), open);
                let at = BEFORE * HIDDEN;
                assert_eq!(
                    alone[at..at + HIDDEN],
                    got[at + i * HIDDEN..][..HIDDEN],
                    "row {i} of {rows} has other bits alone"
                );
            }
        }
    }
}

struct Weights {
    router: Vec<f32>,
    /// Gate and up, and down.
    experts: Vec<(Vec<f32>, Vec<f32>)>,
}

impl Weights {
    fn new(values: &mut Values, count: usize) -> Self {
        Self {
            router: values.many(count * HIDDEN, -0.5, 0.5),
            experts: (0..count)
                .map(|_| {
                    let gate_up = values.many(2 * INNER * HIDDEN, -0.3, 0.3);
                    (gate_up, values.many(HIDDEN * INNER, -0.3, 0.3))
                })
                .collect(),
        }
    }
}
