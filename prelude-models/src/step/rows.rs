//! The results that a step computes: their checks, their outputs, and how they are returned.

use std::ops::Range;

use prelude_core::{Normalise, OutputHead, RowOutput, StepId, StepOutput, TokenHead, TokenId};

use super::StepLayout;
use crate::ModelConfig;

/// A result to compute.
#[derive(Debug)]
pub struct StepRow {
    /// The kind of result.
    pub head: OutputHead,
    /// The reason why this row fails: nothing is computed for it.
    pub refused: Option<&'static str>,
    /// Position of the first hidden state that the row reads.
    pub first_position: u32,
    outputs: Range<usize>,
}

impl StepRow {
    pub(super) const fn new(head: OutputHead, first_position: u32, outputs: Range<usize>) -> Self {
        Self {
            head,
            refused: None,
            first_position,
            outputs,
        }
    }
}

/// The lengths of vectors before they are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorSizes {
    /// The size of an embedding.
    pub pooled: usize,
    /// The size of a token's hidden state.
    pub token: usize,
}

impl VectorSizes {
    /// Returns the sizes of a model's vectors.
    #[must_use]
    pub fn of(model: &ModelConfig) -> Self {
        Self {
            pooled: model.embedding_size(),
            token: model.hidden_size,
        }
    }
}

impl StepLayout {
    /// Returns the output indices of a row, in order of position.
    #[must_use]
    pub fn outputs_of(&self, row: &StepRow) -> &[u32] {
        &self.row_outputs[row.outputs.clone()]
    }

    /// Refuses rows whose ids or sizes the model lacks, which batch validation does not know. Such
    /// a row fails alone, since the step's other rows may belong to other requests.
    pub fn refuse_invalid_rows(&mut self, vocab_size: u32, sizes: VectorSizes) {
        for row in &mut self.rows {
            row.refused = check_row(&row.head, vocab_size, sizes).err();
        }
    }

    /// Refuses rows that want the classes of each token, of a model that reads classes from the mean of
    /// a text.
    pub fn refuse_token_classes(&mut self) {
        for row in &mut self.rows {
            if matches!(row.head, OutputHead::Tokens(TokenHead::Classify)) {
                row.refused = Some("the model has classes of whole texts, none of single tokens");
            }
        }
    }

    /// Divides `results`, one for each row in order, among the parts of the batch.
    pub fn step_output(
        &self,
        step: StepId,
        results: impl IntoIterator<Item = RowOutput>,
    ) -> StepOutput {
        let mut results = results.into_iter();
        let [oneshot, prefill, decode] = self
            .row_counts
            .map(|rows| results.by_ref().take(rows).collect());
        StepOutput {
            step,
            oneshot,
            prefill,
            decode,
        }
    }
}

fn check_row(head: &OutputHead, vocab: u32, sizes: VectorSizes) -> Result<(), &'static str> {
    let known = |ids: &[TokenId], error| match ids.iter().all(|&id| id < vocab) {
        true => Ok(()),
        false => Err(error),
    };
    match head {
        OutputHead::Sample(sample) => {
            if sample.sampling.first_invalid(vocab).is_some() {
                return Err("a sampling parameter is out of range");
            }
            if let Some(history) = &sample.history {
                let error = "a past token is outside the vocabulary";
                known(&history.prompt, error)?;
                known(&history.output, error)?;
            }
            Ok(())
        }
        OutputHead::LabelScores { labels, normalise } => {
            let (Normalise::OverLabels | Normalise::OverVocab) = normalise;
            known(labels, "a label is outside the vocabulary")
        }
        OutputHead::Logprobs { targets, .. } => {
            known(targets, "a target is outside the vocabulary")
        }
        OutputHead::Embed { dimensions, .. } => check_dimensions(*dimensions, sizes.pooled),
        OutputHead::Tokens(TokenHead::Embed { dimensions, .. }) => {
            check_dimensions(*dimensions, sizes.token)
        }
        OutputHead::Classify | OutputHead::Tokens(TokenHead::Classify) | OutputHead::States(_) => {
            Ok(())
        }
    }
}

fn check_dimensions(dimensions: Option<u32>, size: usize) -> Result<(), &'static str> {
    match dimensions {
        Some(0) => Err("an embedding of 0 dimensions"),
        Some(d) if d as usize > size => Err("more dimensions than the model's vectors have"),
        _ => Ok(()),
    }
}
