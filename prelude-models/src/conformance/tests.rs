//! The suite, tested: a device in f64 passes, and each of many plausible mistakes does not.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::naive::device::{Fault, NaiveLoader, NaiveOps, Rows};

struct Device {
    ops: NaiveOps,
    block_size: u32,
}

impl ConformanceDevice for Device {
    type Ops = NaiveOps;
    type Loader = NaiveLoader;

    fn loader(&mut self) -> NaiveLoader {
        NaiveLoader {
            forgets_norm_offset: self.ops.has(Fault::ForgetsNormOffset),
            ..NaiveLoader::default()
        }
    }

    fn step(&mut self, batch: ForwardBatch, body: &mut Body<'_, NaiveOps>) -> StepOutput {
        self.ops
            .step(&batch, self.block_size, |ops, plan| body(ops, plan))
    }

    fn write(_: &mut NaiveOps, tensor: &mut Rows, values: &[f32]) {
        NaiveOps::write(tensor, values);
    }

    fn read(_: &mut NaiveOps, tensor: &Rows) -> Vec<f32> {
        NaiveOps::read(tensor)
    }
}

fn open(fault: Option<Fault>) -> impl Fn(&Spec) -> Device {
    move |spec| Device {
        ops: NaiveOps::new(spec.chunk_tokens, fault),
        block_size: spec.capacity.block_size,
    }
}

const DEMANDS: [Demands; 2] = [
    Demands {
        precision: Precision::F32,
        batch_invariant: true,
    },
    Demands {
        precision: Precision::Bf16,
        batch_invariant: false,
    },
];

type Suite = fn(Demands, Option<Fault>);

const SUITES: [(&str, Suite, &[Fault]); 7] = [
    (
        "elementwise",
        |demands, fault| elementwise(demands, open(fault)),
        &[
            Fault::EpsilonOutsideRoot,
            Fault::NormReadsFirstRows,
            Fault::SwapsGateAndUp,
            Fault::GathersInTokenOrder,
        ],
    ),
    (
        "products",
        |demands, fault| products(demands, open(fault)),
        &[Fault::ForgetsBias, Fault::AddsToFirstRows],
    ),
    (
        "attention",
        |demands, fault| attention(demands, open(fault)),
        &[
            Fault::KvHeadByRemainder,
            Fault::RotatesBeforeNorm,
            Fault::RotatesNeighbours,
            Fault::NormsWithoutWeights,
            Fault::ForgetsRopeScaling,
            Fault::KeepsBesideItsSlot,
            Fault::SeesItsSiblings,
            Fault::LayersShareBlocks,
        ],
    ),
    (
        "encoders",
        |demands, fault| encoders(demands, open(fault)),
        &[
            Fault::SeesNoLaterToken,
            Fault::ForgetsTypes,
            Fault::ForgetsNormBias,
            Fault::GeluByTanh,
            Fault::SeesBeyondItsWindow,
            Fault::BiasLooksTheOtherWay,
            Fault::GateIsUp,
            Fault::MeanOfAllSegments,
            Fault::ForgetsDense,
        ],
    ),
    (
        "gemma",
        |demands, fault| gemma(demands, open(fault)),
        &[
            Fault::ForgetsEmbedScale,
            Fault::ForgetsNormOffset,
            Fault::NormReplacesResidual,
            Fault::SeesBeyondItsWindow,
            Fault::WindowIsOneWider,
            Fault::ForgetsScoreCap,
            Fault::ForgetsLogitCap,
        ],
    ),
    (
        "experts",
        |demands, fault| experts(demands, open(fault)),
        &[Fault::KeepsShares, Fault::FirstExperts],
    ),
    (
        "heads",
        |demands, fault| heads(demands, open(fault)),
        &[
            Fault::TiesTakeTheLargestId,
            Fault::RankCountsTies,
            Fault::BiasOnlyIfMasked,
            Fault::IgnoresConstraint,
            Fault::IgnoresChoice,
            Fault::LogSumExpOfLabels,
            Fault::FirstPositionOfState,
            Fault::NormalisesBeforeCutting,
            Fault::MeanOfLastChunk,
            Fault::TokensCountFromZero,
            Fault::ScalesTokensBeforeCutting,
            Fault::ClassesOfFirstToken,
            Fault::ScoresWithoutCheckingNumbers,
            Fault::MixesParts,
        ],
    ),
];

fn check(name: &str) {
    let (_, suite, faults) = SUITES
        .into_iter()
        .find(|(suite, ..)| *suite == name)
        .expect("a suite");
    for demands in DEMANDS {
        suite(demands, None);
        for &fault in faults {
            let outcome = catch_unwind(AssertUnwindSafe(|| suite(demands, Some(fault))));
            assert!(outcome.is_err(), "{name} does not notice {fault:?}");
        }
    }
}

#[test]
fn elementwise_notices_mistakes() {
    check("elementwise");
}

#[test]
fn products_notice_mistakes() {
    check("products");
}

#[test]
fn attention_notices_mistakes() {
    check("attention");
}

#[test]
fn encoders_notice_mistakes() {
    check("encoders");
}

#[test]
fn gemma_notices_mistakes() {
    check("gemma");
}

#[test]
fn experts_notice_mistakes() {
    check("experts");
}

#[test]
fn heads_notice_mistakes() {
    check("heads");
}

/// A device that rounds nothing is off by more than is allowed.
#[test]
fn experts_in_fp8_notice_what_is_not_rounded() {
    for demands in DEMANDS {
        let outcome = catch_unwind(AssertUnwindSafe(|| experts_in_fp8(demands, open(None))));
        let panic = outcome.unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.starts_with("experts in fp8, Rows"), "{text}");
    }
}
