//! The heads of encoders.

use super::Norm;
use crate::{Activation, DenseModule, Ops};

/// A classification head: `score · norm(f(dense · h))`, of which a family has all or some.
#[derive(Debug)]
pub(super) struct Classes<W> {
    pub(super) dense: Option<Dense<W>>,
    pub(super) score: W,
}

/// The part of a classification head before the last product.
#[derive(Debug)]
pub(super) struct Dense<W> {
    pub(super) hidden: usize,
    pub(super) weight: W,
    pub(super) activation: Activation,
    /// A norm and what is added to its variance.
    pub(super) norm: Option<(Norm<W>, f32)>,
}

/// The heads that stand on an encoder's hidden states: classes, or the products behind the pooling of
/// an embedder.
#[derive(Debug)]
pub(super) struct Heads<W> {
    pub(super) classes: Option<Classes<W>>,
    /// Products behind the pooling of an embedder.
    pub(super) pooled: Vec<DenseModule<W>>,
}

/// Runs the heads of a step on the hidden states of its output positions. Classes are read from
/// `means` if there are any: the mean of its text for each output position.
pub(super) fn run<O: Ops>(
    ops: &mut O,
    inputs: &O::Inputs<'_>,
    heads: &Heads<O::Weight>,
    picked: O::Tensor,
    means: Option<O::Tensor>,
) -> Result<(), O::Error> {
    let outputs = ops.num_outputs(inputs);
    if outputs == 0 {
        return Ok(());
    }
    ops.pooling_heads(inputs, &picked, &heads.pooled)?;
    let Some(classes) = &heads.classes else {
        return Ok(());
    };
    let states = means.unwrap_or(picked);
    let Some(dense) = &classes.dense else {
        return ops.class_heads(inputs, &states, &classes.score);
    };
    let mut inner = ops.alloc(outputs, dense.hidden)?;
    ops.linear(&states, outputs, &dense.weight, &mut inner)?;
    ops.activate(&mut inner, outputs, dense.activation)?;
    if let Some((norm, eps)) = &dense.norm {
        ops.layer_norm(&mut inner, outputs, &norm.weight, &norm.bias, *eps)?;
    }
    ops.class_heads(inputs, &inner, &classes.score)
}
