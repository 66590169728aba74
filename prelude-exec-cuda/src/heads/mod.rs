//! Results that are computed from hidden states.
//!
//! | file | |
//! | --- | --- |
//! | `pooling` | embeddings and class logits, of whole prompts or of each token |
//! | `dense` | products behind a pooling |
//! | `labels` | logits of labels, with or without the sum over the vocabulary |
//! | `logits` | full rows of logits: sampling and log-probabilities |
//! | `results` | where kernels leave what the host reads |
//!
//! Everything is laid out before the step starts: lists of what to read are part of its metadata,
//! and each row has a place for its result. A row whose result has no room fails alone.

mod dense;
mod labels;
mod logits;
mod masks;
mod pooling;
mod results;
mod room;

use half::bf16;
use prelude_core::{Normalise, OutputHead, RowOutput, TokenHead};
use prelude_models::{
    ModelConfig,
    step::{StepLayout, StepRow},
};

pub(crate) use self::dense::DenseProduct;
use self::{
    dense::DenseRoom,
    labels::Labels,
    logits::Logits,
    pooling::{Classes, Pooled, Scope},
    results::Results,
};
use crate::{
    CudaConfig, Error,
    kernels::{gemm::Products, launch::Launcher},
    memory::{metadata::Metadata, pinned::Pinned, space::Space, view::View},
};

/// The failure of a row for which the model has no head.
const NO_HEAD: &str = "the model has no head for this row";
/// The failure of a row whose numbers are infinite or not numbers.
const NOT_FINITE: &str = "the model's numbers for this row are not finite";
/// The failure of a row for which the step's results have no room.
const NO_ROOM: &str = "the step's results exceed `results_bytes`";

/// The failure of a row for whose lists the step's metadata has no room.
const NO_LIST_ROOM: &str = "the step's lists of labels, positions, past, biased, allowed and masked tokens exceed \
     `metadata_bytes`";

/// The heads of a step and where they leave what they find.
#[derive(Debug)]
pub(crate) struct Heads {
    results: Results,
    pooled: Pooled,
    /// Room for products behind a pooling, if the model has some.
    dense: Option<DenseRoom>,
    token_vectors: Pooled,
    classes: Classes,
    token_classes: Classes,
    labels: Labels,
    logits: Logits,
    /// The kinds of heads that the model has run in this step.
    ran: HeadsRun,
}

/// The results of one step and where each lies: kept apart from [`Heads`] while another step is
/// laid out.
#[derive(Debug)]
pub(crate) struct StepResults {
    results: Pinned,
    pooled: Pooled,
    token_vectors: Pooled,
    classes: Classes,
    token_classes: Classes,
    labels: labels::ResultParts,
    logits: logits::ResultParts,
    ran: HeadsRun,
}

#[derive(Clone, Copy, Debug, Default)]
struct HeadsRun {
    vocabulary: bool,
    pooling: bool,
    classes: bool,
}

impl Heads {
    pub(crate) fn new(
        space: &Space,
        model: &ModelConfig,
        config: &CudaConfig,
        result_tokens: usize,
    ) -> Result<Self, Error> {
        let bytes = usize::try_from(config.results_bytes)
            .map_err(|_| Error::config("results_bytes", "too large"))?;
        // Whatever else a step answers, its tokens have room for a result each.
        let hidden = model.hidden_size;
        let width = hidden.max(model.labels.len());
        let dense = DenseRoom::new(space, model)?;
        let projected = dense.as_ref().map(|_| model.embedding_size());
        let token_words = result_tokens * width.next_multiple_of(results::ALIGN);
        Ok(Self {
            results: Results::new(space, bytes, token_words)?,
            pooled: Pooled::new(hidden, projected, Scope::Rows),
            dense,
            token_vectors: Pooled::new(hidden, None, Scope::Tokens),
            classes: Classes::new(model.labels.len(), Scope::Rows),
            token_classes: Classes::new(model.labels.len(), Scope::Tokens),
            labels: Labels::new(space, model.vocab_size)?,
            logits: Logits::new(space, model, config)?,
            ran: HeadsRun::default(),
        })
    }

    /// Returns the bytes on the device.
    pub(crate) fn bytes(&self) -> usize {
        let dense = self.dense.as_ref().map_or(0, DenseRoom::bytes);
        self.results.bytes() + self.labels.bytes() + self.logits.bytes() + dense
    }

    /// Allocates room for the results of another step.
    pub(crate) fn spare(&self, space: &Space) -> Result<StepResults, Error> {
        Ok(StepResults {
            results: self.results.spare(space)?,
            pooled: self.pooled.spare(),
            token_vectors: self.token_vectors.spare(),
            classes: self.classes.spare(),
            token_classes: self.token_classes.spare(),
            labels: labels::ResultParts::default(),
            logits: logits::ResultParts::default(),
            ran: HeadsRun::default(),
        })
    }

    /// Puts what the latest step left into `left`, and what was there in its place.
    pub(crate) fn exchange(&mut self, left: &mut StepResults) {
        self.results.exchange(&mut left.results);
        std::mem::swap(&mut self.pooled, &mut left.pooled);
        std::mem::swap(&mut self.token_vectors, &mut left.token_vectors);
        std::mem::swap(&mut self.classes, &mut left.classes);
        std::mem::swap(&mut self.token_classes, &mut left.token_classes);
        self.labels.exchange(&mut left.labels);
        self.logits.exchange(&mut left.logits);
        std::mem::swap(&mut self.ran, &mut left.ran);
    }

    /// Returns the place on the device of the token of row `i` that the latest step draws, as an
    /// index into [`Heads::drawn`]. None for a row that draws none.
    pub(crate) fn drawn_at(&self, i: usize) -> Option<usize> {
        self.logits.drawn_at(i)
    }

    /// Returns all results of the latest step on the device, sampled tokens among them. They stay
    /// until the next step's heads run.
    pub(crate) fn drawn(&self) -> View<i32> {
        self.results.all()
    }

    /// Lays out all rows of a step.
    pub(crate) fn begin(
        &mut self,
        layout: &mut StepLayout,
        metadata: &mut Metadata,
    ) -> Result<(), Error> {
        self.ran = HeadsRun::default();
        self.results.clear();
        let results = &mut self.results;
        let seen = logits::seen(layout);
        let masks = masks::masks(layout, self.logits.vocab());
        let group_rows = self.logits.group_rows();
        room::refuse(layout, &seen, &masks, metadata.room(), group_rows);
        self.pooled.begin(layout, results, metadata)?;
        self.classes.begin(layout, results, metadata)?;
        self.labels.begin(layout, results, metadata)?;
        self.logits.begin(layout, seen, &masks, results, metadata)?;
        // Results of each token come last, with room of their own.
        let results = &mut self.results;
        self.token_vectors.begin(layout, results, metadata)?;
        self.token_classes.begin(layout, results, metadata)
    }

    /// Launches sampling, label scores and log-probabilities. `hidden`: `[P, H]`; `head`: `[V, H]`,
    /// with the bound of its logits, or 0.
    pub(crate) fn vocabulary(
        &mut self,
        launcher: &mut Launcher,
        products: &mut Products,
        metadata: &Metadata,
        hidden: View<bf16>,
        head: (View<bf16>, f32),
    ) -> Result<(), Error> {
        self.ran.vocabulary = true;
        self.labels
            .launch(launcher, metadata, &self.results, hidden, head)?;
        let results = &self.results;
        self.logits
            .launch(launcher, products, metadata, results, hidden, head)
    }

    /// Launches embeddings, those of rows by way of `dense`. `hidden`: `[P, H]`.
    pub(crate) fn pooling(
        &mut self,
        launcher: &mut Launcher,
        products: &mut Products,
        metadata: &Metadata,
        hidden: View<bf16>,
        dense: &[DenseProduct],
    ) -> Result<(), Error> {
        self.ran.pooling = true;
        let results = &self.results;
        match &self.dense {
            Some(room) => {
                let dense = (room, dense);
                self.pooled
                    .launch_dense(launcher, products, metadata, results, hidden, dense)?;
            }
            None if dense.is_empty() => self.pooled.launch(launcher, metadata, results, hidden)?,
            None => return Err(Error::Step("products behind a pooling without room".into())),
        }
        self.token_vectors
            .launch(launcher, metadata, results, hidden)
    }

    /// Class logits. `hidden`: `[P, H]`; `score`: `[labels, H]`, with its bias.
    pub(crate) fn classes(
        &mut self,
        launcher: &mut Launcher,
        metadata: &Metadata,
        hidden: View<bf16>,
        score: (View<bf16>, Option<View<bf16>>),
    ) -> Result<(), Error> {
        self.ran.classes = true;
        for rows in [&self.classes, &self.token_classes] {
            rows.launch(launcher, metadata, &self.results, hidden, score)?;
        }
        Ok(())
    }

    /// Queues the copy of the results to the host.
    pub(crate) fn send(&mut self) -> Result<(), Error> {
        self.results.send()
    }

    /// Returns every row's result; the copy to the host must have ended.
    pub(crate) fn take(&mut self, layout: &StepLayout) -> Vec<RowOutput> {
        let mut outputs = Vec::with_capacity(layout.rows.len());
        for (i, row) in layout.rows.iter().enumerate() {
            let output = match (row.refused, &row.head) {
                (Some(why @ (NO_ROOM | NO_LIST_ROOM)), _) => RowOutput::NoRoom(why),
                (Some(why), _) => RowOutput::Failed(why),
                (None, OutputHead::Embed { .. }) if self.ran.pooling => {
                    self.pooled.read(i, &self.results)
                }
                (None, OutputHead::Classify) if self.ran.classes => {
                    self.classes.read(i, &self.results)
                }
                (None, OutputHead::Tokens(TokenHead::Embed { .. })) if self.ran.pooling => {
                    let rows = self.token_vectors.read_all(i, &self.results);
                    tokens(row.first_position, rows)
                }
                (None, OutputHead::Tokens(TokenHead::Classify)) if self.ran.classes => {
                    let rows = self.token_classes.read_all(i, &self.results);
                    tokens(row.first_position, rows)
                }
                (None, OutputHead::LabelScores { .. }) if self.ran.vocabulary => {
                    self.labels.read(i, &self.results)
                }
                (None, OutputHead::Sample(_) | OutputHead::Logprobs { .. })
                    if self.ran.vocabulary =>
                {
                    self.logits.read(row, i, &self.results)
                }
                _ => RowOutput::Failed(NO_HEAD),
            };
            outputs.push(output);
        }
        outputs
    }
}

/// Returns the rows of one kind that may be answered, with their indices among the step's rows.
fn rows(
    layout: &StepLayout,
    wanted: fn(&OutputHead) -> bool,
) -> impl Iterator<Item = (usize, &StepRow)> {
    let rows = layout.rows.iter().enumerate();
    rows.filter(move |(_, row)| row.refused.is_none() && wanted(&row.head))
}

/// Makes an output of one row per token, if there are any and they are finite.
fn tokens(first_position: u32, rows: Option<Vec<Vec<f32>>>) -> RowOutput {
    match rows {
        None => RowOutput::NoRoom(NO_ROOM),
        Some(rows) if rows.iter().flatten().all(|x| x.is_finite()) => RowOutput::Tokens {
            first_position,
            rows,
        },
        Some(_) => RowOutput::Failed(NOT_FINITE),
    }
}

/// Makes an output of finite numbers.
fn finite(numbers: impl Iterator<Item = f32>, make: fn(Vec<f32>) -> RowOutput) -> RowOutput {
    let numbers: Vec<f32> = numbers.collect();
    if numbers.iter().all(|x| x.is_finite()) {
        make(numbers)
    } else {
        RowOutput::Failed(NOT_FINITE)
    }
}

/// Returns a count or an index as the metadata has it.
fn word(n: usize) -> u32 {
    u32::try_from(n).expect("configuration bounds what a step counts")
}

/// Returns true if a head wants label scores normalised as given.
fn wants_labels(head: &OutputHead, over_vocab: bool) -> bool {
    match head {
        OutputHead::LabelScores { normalise, .. } => match normalise {
            Normalise::OverVocab => over_vocab,
            Normalise::OverLabels => !over_vocab,
        },
        _ => false,
    }
}
