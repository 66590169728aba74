//! The one way of requests that generate nothing: classification, scores, rankings, embeddings and
//! decisions.
//!
//! ```text
//! request ── prepare ──▶ Prepared { tree, rows, tokens } ── admit, submit, collect ──▶ Computed ── respond
//!            (text work, within its room)
//! ```
//!
//! A dialect says how large its request may be ([`Expected`]), prepares prompts and the outputs at
//! their ends, and makes a response of what was computed. Room in the queue, the pool of encoding
//! threads, the engine and its errors are dealt with in [`prepare`] and [`Prepared::compute`] alone.

use std::iter;

use prelude_core::{Head, Normalise, PromptTree, RowOutput, RowSpec, TokenId, TreeError};
use prelude_engine::{CollectedRow, Usage};
use prelude_text::{
    label_trie::{LabelTrie, RowScores},
    shared_prefix::SharedPrompts,
};

use super::{
    place::{check_length, place},
    submit::{Ask, UsageBody, collect, submit},
};
use crate::{
    admission::{Cost, Printed},
    error::ApiError,
    served_model::ServedModel,
};

/// The size of a request as far as it is known before its texts are tokenised.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    /// The number of prompts. Each has a row at least.
    pub(crate) prompts: usize,
    /// The number of rows that the prompts may come to, if they may have several each.
    pub(crate) rows: u64,
    /// About how many bytes of text there are to encode.
    pub(crate) bytes: usize,
}

/// The parts of a text that have a vector, or classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A result for each text as a whole.
    Texts,
    /// A result for each token of each text.
    Tokens,
}

impl Unit {
    /// Returns the number of vectors that these prompts have.
    pub(crate) fn count(self, prompts: &SharedPrompts) -> usize {
        match self {
            Self::Texts => prompts.len(),
            Self::Tokens => prompts.lens().sum(),
        }
    }
}

/// The outputs that are computed behind prompts, and the numbers that an answer prints of them.
pub(crate) struct Outputs {
    pub(crate) head: Head,
    pub(crate) unit: Unit,
    /// The numbers of one vector, or the classes.
    pub(crate) width: u32,
    pub(crate) printed: Printed,
}

/// An output that is computed at the end of a prompt.
#[derive(Clone, Copy, Debug)]
enum Output<'t> {
    /// A row that one head computes.
    Head(&'t Head),
    /// The rows of a trie of labels behind the prompt.
    Labels(&'t LabelTrie),
}

/// Prompts of one request, each stored once where they begin alike, and the rows that read them.
#[derive(Debug)]
pub(crate) struct Prepared {
    tree: PromptTree,
    rows: Vec<RowSpec>,
    prompt_tokens: u64,
}

impl Prepared {
    /// Computes `head` at the end of each prompt. Errors name the prompt's text in the list `field`, or
    /// the field if there is one prompt alone.
    ///
    /// # Errors
    /// 400 for a prompt that is empty or does not fit the model's context.
    pub(crate) fn with_head(
        model: &ServedModel,
        field: &'static str,
        prompts: SharedPrompts,
        head: &Head,
    ) -> Result<Self, ApiError> {
        let texts = (field, prompts.len());
        Self::new(model, texts, prompts, iter::repeat(Output::Head(head)))
    }

    /// Scores the labels of a trie behind each prompt, one trie for each. Errors name one of the
    /// `texts` of a field that prompts are made of, or the field if it has one.
    ///
    /// # Errors
    /// 400 for a prompt that is empty or does not fit the model's context with its labels.
    pub(crate) fn with_labels<'t>(
        model: &ServedModel,
        texts: (&'static str, usize),
        prompts: SharedPrompts,
        tries: impl IntoIterator<Item = &'t LabelTrie>,
    ) -> Result<Self, ApiError> {
        let tries = tries.into_iter().map(Output::Labels);
        Self::new(model, texts, prompts, tries)
    }

    /// Reads hidden states of prompts: of each its tokens and the positions of the states. Errors name
    /// `field`.
    ///
    /// # Errors
    /// 400 for a prompt that is empty or does not fit the model's context.
    pub(crate) fn with_states(
        model: &ServedModel,
        field: &'static str,
        prompts: Vec<(Vec<TokenId>, Vec<u32>)>,
    ) -> Result<Self, ApiError> {
        for (tokens, _) in &prompts {
            check_length(field, tokens.len(), 0, model)?;
        }
        let tokens: Vec<&[TokenId]> = prompts.iter().map(|(tokens, _)| &**tokens).collect();
        let tree = PromptTree::from_prompts(&tokens);
        let (tree, ends) = tree.map_err(|error| of_tree(field, &error))?;
        let prompt_tokens = tokens.iter().map(|tokens| tokens.len() as u64).sum();
        let rows = ends
            .into_iter()
            .zip(&prompts)
            .map(|(node, (_, positions))| {
                let positions = positions.as_slice().into();
                let head = Head::States { positions };
                RowSpec { node, head }
            });
        Ok(Self {
            rows: rows.collect(),
            tree,
            prompt_tokens,
        })
    }

    fn new<'t>(
        model: &ServedModel,
        (field, texts): (&'static str, usize),
        prompts: SharedPrompts,
        outputs: impl IntoIterator<Item = Output<'t>>,
    ) -> Result<Self, ApiError> {
        let lens: Vec<usize> = prompts.lens().collect();
        let of_tree = |error| of_tree(field, &error);
        let (mut tree, ends) = prompts.into_tree().map_err(of_tree)?;
        let mut rows = Vec::with_capacity(ends.len());
        let ends = ends.into_iter().zip(&lens).zip(outputs);
        for (index, ((node, &len), output)) in ends.enumerate() {
            let place = place(field, index, texts);
            match output {
                Output::Head(head) => {
                    check_length(place, len, 0, model)?;
                    let head = head.clone();
                    rows.push(RowSpec { node, head });
                }
                Output::Labels(trie) => {
                    check_length(place, len, trie.depth() as u64, model)?;
                    trie.graft(&mut tree, node, Normalise::OverVocab, &mut rows)
                        .map_err(of_tree)?;
                }
            }
        }
        Ok(Self {
            tree,
            rows,
            prompt_tokens: lens.into_iter().map(|len| len as u64).sum(),
        })
    }

    /// Returns the nodes of the prompts' tree: the parent, and the number of tokens. A parent comes
    /// before its children.
    pub(crate) fn nodes(&self) -> impl ExactSizeIterator<Item = (Option<u32>, u64)> {
        let nodes = self.tree.nodes().iter();
        nodes.map(|node| (node.parent.map(|p| p.0), node.tokens.len() as u64))
    }

    /// Returns the node of each row, in the order of the rows.
    pub(crate) fn row_nodes(&self) -> impl Iterator<Item = u32> {
        self.rows.iter().map(|row| row.node.0)
    }

    /// Tells the client of the distinct tokens of all prompts and labels, rather than of the sum of
    /// the prompts' lengths.
    pub(crate) fn counting_distinct_tokens(mut self) -> Self {
        self.prompt_tokens = self.tree.distinct_tokens() as u64;
        self
    }

    /// Computes the request, and reads its outputs.
    ///
    /// # Errors
    /// 400 and 429 if there is no room for the request; what the engine refuses or fails with; 500 if
    /// an output is not what `read` expects.
    pub(crate) async fn compute<T>(
        self,
        ask: &Ask<'_>,
        read: impl Fn(RowOutput) -> Option<T>,
    ) -> Result<Computed<T>, ApiError> {
        let call = ask.call;
        let answer = submit(ask, self.tree, self.rows, self.prompt_tokens).await?;
        let collected = collect(call, answer).await?;
        let read_row = |row| match row {
            CollectedRow::Output(output) => read(output),
            CollectedRow::Generated(_) => None,
        };
        let read_all = || collected.rows.into_iter().map(read_row).collect();
        let outputs: Option<Vec<T>> = call.write(0, read_all).await;
        Ok(Computed {
            // Another kind of output than was asked for is a bug.
            outputs: outputs.ok_or_else(|| ApiError::internal(&call.request_id))?,
            tokens: self.prompt_tokens,
            cost: collected.usage,
        })
    }
}

/// The outputs of a request, and what they cost.
#[derive(Debug)]
pub(crate) struct Computed<T> {
    /// The outputs, one for each row, in order.
    pub(crate) outputs: Vec<T>,
    /// The number of prompt tokens that the client is told.
    pub(crate) tokens: u64,
    pub(crate) cost: Usage,
}

impl<T> Computed<T> {
    /// Returns the token counts as OpenAI's clients read them.
    pub(crate) fn usage(&self) -> UsageBody {
        UsageBody::new(self.tokens, 0, Some(&self.cost))
    }
}

/// Admits a request that generates nothing, and prepares it.
///
/// # Errors
/// 400 and 429 if there is no room for what is `expected`; the refusals of `work`.
pub(crate) async fn prepare<T>(
    ask: &Ask<'_>,
    expected: Expected,
    work: impl FnOnce() -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let call = ask.call;
    let limits = &call.app.config.limits;
    let cost = Cost::of_prompts(expected.prompts as u64, expected.rows, limits);
    call.reservation.admit(cost)?;
    call.encode(expected.bytes, work).await?
}

/// Reads the vector or the logits of a text, or of each of its tokens.
pub(crate) fn vectors(output: RowOutput) -> Option<Vec<Vec<f32>>> {
    match output {
        RowOutput::Classes(logits) => Some(vec![logits]),
        RowOutput::Embedding(vector) => Some(vec![vector]),
        RowOutput::Tokens { rows, .. } => Some(rows),
        _ => None,
    }
}

/// Reads the scores of a row of a label trie.
pub(crate) fn trie_scores(output: RowOutput) -> Option<RowScores> {
    match output {
        RowOutput::LabelScores(scores) => Some(RowScores::Followers(scores)),
        RowOutput::Logprobs { entries, .. } => {
            let log = entries.iter().map(|entry| f64::from(entry.logprob));
            Some(RowScores::Run(log.collect()))
        }
        _ => None,
    }
}

/// Returns the error for a prompt that no tree can hold.
fn of_tree(field: &'static str, error: &TreeError) -> ApiError {
    let must = match error {
        TreeError::EmptyNode { .. } => "not be empty: it has no tokens",
        _ => "have fewer than 2^32 tokens",
    };
    ApiError::invalid_value(field, must)
}
