//! Requests to the engine.

use std::{fmt, ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Constraint, NodeIdx, PromptTree, RequestId, SamplingParams, Timestamp, TokenId};

/// The class of resources that a request may consume, decided once, at admission, from its shape
/// alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExecutionClass {
    /// One forward pass and a fixed-size answer: no sequence that outlives the step, no block
    /// table, no reservation of future tokens.
    OneShot,
    /// Open-ended generation: paged KV, a block table, continuous batching.
    Decode,
}

impl ExecutionClass {
    /// Returns `"oneshot"` or `"decode"`, as in headers and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OneShot => "oneshot",
            Self::Decode => "decode",
        }
    }

    /// Returns the class of a request with these rows: [`Self::Decode`] if one of them is.
    #[must_use]
    pub fn of(rows: &[RowSpec]) -> Self {
        let classes = rows.iter().map(|row| row.head.class());
        classes.max().unwrap_or(Self::OneShot)
    }
}

/// A request: some prompts and what to read off them. Admitted, answered and cancelled whole.
///
/// `Debug` prints lengths, never what a caller wrote: neither tokens nor the salt.
#[derive(Clone)]
pub struct Request {
    /// The id that names the request in every event about it.
    pub id: RequestId,
    /// The prompts.
    pub tree: PromptTree,
    /// The answers wanted, at least one. Events refer to them by index.
    pub rows: Vec<RowSpec>,
    /// The time at which the request arrived.
    pub arrival: Timestamp,
    /// The priority: lower runs first.
    pub priority: i64,
    /// The time at which the first token (Decode) or the whole answer (OneShot) is due.
    pub deadline: Option<Timestamp>,
    /// The treatment of the request if it has not started by its deadline.
    pub on_deadline: OnDeadline,
    /// Requests with different salts share no cached block and no prefix inside a step.
    pub cache_salt: Option<Arc<str>>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("id", &self.id)
            .field("tree", &self.tree)
            .field("rows", &self.rows.len())
            .field("class", &self.class())
            .field("arrival", &self.arrival)
            .field("priority", &self.priority)
            .field("deadline", &self.deadline)
            .field("on_deadline", &self.on_deadline)
            .field("has_salt", &self.cache_salt.is_some())
            .finish()
    }
}

/// The treatment of a request whose deadline passes before any of it has started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDeadline {
    /// The request ends: a late answer is of no use.
    #[default]
    Drop,
    /// The request goes on; the deadline only orders waiting requests.
    Finish,
}

/// One output that a request asks for: a node of the prompt tree and what to compute there.
#[derive(Clone, Debug)]
pub struct RowSpec {
    /// The prompt ends with this node.
    pub node: NodeIdx,
    /// The output to compute.
    pub head: Head,
}

/// An output that is computed from the hidden states of one prompt.
#[derive(Clone, Debug)]
pub enum Head {
    /// Continue the prompt.
    Generate(Generate),
    /// Logits of given tokens at the last position.
    LabelScores {
        /// The tokens, in the order of the answer; repeats allowed.
        labels: Arc<[TokenId]>,
        /// True if the log-sum-exp over the vocabulary is wanted too.
        normalise: Normalise,
    },
    /// Log-probabilities of the prompt's own tokens.
    PromptLogprobs {
        /// Token positions to score, `1 <= start < end <= prompt length`: the token at position p
        /// is scored given the tokens before it, and position 0 has none.
        positions: Range<u32>,
        /// The number of likeliest tokens to report beside each.
        top: u32,
    },
    /// A vector.
    Embed {
        /// The rule that combines hidden states.
        pooling: Pooling,
        /// True to scale the vector to length 1.
        normalise: bool,
        /// Keep this many leading components, before normalising.
        dimensions: Option<u32>,
    },
    /// Logits of the classification head at the last position.
    Classify,
    /// Something of every token of the prompt.
    Tokens(TokenHead),
    /// The hidden states at some positions, behind the last norm: what a decision model's head reads.
    States {
        /// The positions, in ascending order: at least one, each once, within the prompt.
        positions: Arc<[u32]>,
    },
}

/// An output that is computed from the hidden state of each of several tokens, alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenHead {
    /// The token's vector.
    Embed {
        /// True to scale each vector to length 1.
        normalise: bool,
        /// Keep this many leading components, before normalising.
        dimensions: Option<u32>,
    },
    /// The classification head's logits.
    Classify,
}

impl TokenHead {
    /// The token's hidden state as it is.
    pub const STATE: Self = Self::Embed {
        normalise: false,
        dimensions: None,
    };
}

/// Open-ended or one-token generation.
#[derive(Clone, Debug)]
pub struct Generate {
    /// Most tokens to generate, at least 1.
    pub max_tokens: u32,
    /// Independent continuations, at least 1.
    pub n: u32,
    /// The rules by which a token is chosen.
    pub sampling: Arc<SamplingParams>,
    /// The number of likeliest tokens to report beside each token, if log-probabilities are
    /// wanted at all.
    pub top_logprobs: Option<u32>,
    /// The language that every continuation has to belong to, if there is one.
    pub constraint: Option<Arc<dyn Constraint>>,
}

/// The set over which the caller normalises label scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Normalise {
    /// Probabilities over the labels: nothing but the logits of labels is computed.
    OverLabels,
    /// Probabilities over the vocabulary: the log-sum-exp of all logits is computed as well.
    OverVocab,
}

/// The rule that combines the hidden states of an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The hidden state of the first token, which models call CLS.
    #[serde(rename = "cls")]
    First,
    /// The hidden state of the last token.
    Last,
    /// The mean over all tokens.
    Mean,
}

/// The defect of a malformed request: the caller's fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidRequest {
    /// The request has no rows or an empty prompt.
    #[error("the request has no {0}")]
    Empty(&'static str),
    /// A row names a node that the tree lacks.
    #[error("row {row} names prompt node {node}, but the tree has {nodes}")]
    NoSuchNode {
        /// Index of the row.
        row: usize,
        /// The node that the row named.
        node: u32,
        /// Nodes in the tree.
        nodes: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token id {id} is not in the vocabulary of {vocab_size} ids")]
    TokenOutOfRange {
        /// The id.
        id: TokenId,
        /// Size of the vocabulary (rows of the embedding matrix).
        vocab_size: u32,
    },
    /// The prompt and its output budget do not fit the model.
    #[error("prompt of {prompt} tokens and output of {output} exceed the context of {context}")]
    TooLong {
        /// Prompt tokens.
        prompt: u32,
        /// Output tokens asked for.
        output: u32,
        /// The model's limit.
        context: u32,
    },
    /// A parameter out of range.
    #[error("row {row}: {field} must be {must_be}")]
    Parameter {
        /// Index of the row.
        row: usize,
        /// The parameter.
        field: &'static str,
        /// The allowed values.
        must_be: &'static str,
    },
}

impl Request {
    /// Returns a request with priority 0, no deadline and no salt.
    #[must_use]
    pub fn new(id: RequestId, tree: PromptTree, rows: Vec<RowSpec>, arrival: Timestamp) -> Self {
        Self {
            id,
            tree,
            rows,
            arrival,
            priority: 0,
            deadline: None,
            on_deadline: OnDeadline::Drop,
            cache_salt: None,
        }
    }

    /// Returns the class, which follows from the rows alone.
    #[must_use]
    pub fn class(&self) -> ExecutionClass {
        ExecutionClass::of(&self.rows)
    }

    /// Returns the prompt tokens as callers count them: each row's whole prompt, shared or not.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.rows
            .iter()
            .map(|r| u64::from(self.tree.prompt_len(r.node)))
            .sum()
    }

    /// Checks the request against a model of `vocab_size` ids and `max_context_len` positions.
    ///
    /// # Errors
    /// The first defect found, as [`InvalidRequest`].
    pub fn validate(&self, vocab_size: u32, max_context_len: u32) -> Result<(), InvalidRequest> {
        if self.rows.is_empty() {
            return Err(InvalidRequest::Empty("rows"));
        }
        if self.tree.is_empty() {
            return Err(InvalidRequest::Empty("prompt tokens"));
        }
        let nodes = self.tree.nodes();
        for node in nodes {
            // Counting takes many ids at a time; a search for the first bad one does not.
            let mut bad = 0;
            for &id in &node.tokens {
                bad += u32::from(id >= vocab_size);
            }
            if bad > 0
                && let Some(&id) = node.tokens.iter().find(|&&id| id >= vocab_size)
            {
                return Err(InvalidRequest::TokenOutOfRange { id, vocab_size });
            }
        }
        for (row, spec) in self.rows.iter().enumerate() {
            if spec.node.index() >= nodes.len() {
                return Err(InvalidRequest::NoSuchNode {
                    row,
                    node: spec.node.0,
                    nodes: nodes.len(),
                });
            }
            let prompt = self.tree.prompt_len(spec.node);
            spec.head
                .validate(row, prompt, vocab_size, max_context_len)?;
        }
        Ok(())
    }
}

impl Head {
    /// Returns the class of a row with this head: `Decode` if it may generate two tokens or more.
    #[must_use]
    pub const fn class(&self) -> ExecutionClass {
        match self {
            Self::Generate(generate) if generate.max_tokens > 1 => ExecutionClass::Decode,
            _ => ExecutionClass::OneShot,
        }
    }

    fn validate(
        &self,
        row: usize,
        prompt: u32,
        vocab_size: u32,
        context: u32,
    ) -> Result<(), InvalidRequest> {
        let parameter = |field, must_be| {
            Err(InvalidRequest::Parameter {
                row,
                field,
                must_be,
            })
        };
        let output = match self {
            Self::Generate(g) => g.max_tokens,
            _ => 0,
        };
        if prompt > context || output > context - prompt {
            return Err(InvalidRequest::TooLong {
                prompt,
                output,
                context,
            });
        }
        match self {
            Self::Generate(g) => {
                if g.max_tokens == 0 || g.n == 0 {
                    return parameter("max_tokens and n", "at least 1");
                }
                if let Some((field, must_be)) = g.sampling.first_invalid(vocab_size) {
                    return parameter(field, must_be);
                }
            }
            Self::LabelScores { labels, .. } => {
                if labels.is_empty() {
                    return parameter("labels", "a non-empty list");
                }
                if let Some(&id) = labels.iter().find(|&&id| id >= vocab_size) {
                    return Err(InvalidRequest::TokenOutOfRange { id, vocab_size });
                }
            }
            Self::PromptLogprobs { positions, .. } => {
                if positions.start == 0 || positions.is_empty() || positions.end > prompt {
                    return parameter("positions", "a non-empty range within 1..=prompt length");
                }
            }
            Self::Embed {
                dimensions: Some(0),
                ..
            }
            | Self::Tokens(TokenHead::Embed {
                dimensions: Some(0),
                ..
            }) => {
                return parameter("dimensions", "at least 1");
            }
            Self::States { positions } => {
                let ascend = positions.is_sorted_by(|a, b| a < b);
                if !ascend || positions.last().is_none_or(|&last| last >= prompt) {
                    return parameter("positions", "a non-empty ascending list within the prompt");
                }
            }
            Self::Embed { .. } | Self::Classify | Self::Tokens(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generate(max_tokens: u32) -> Head {
        let sampling = Arc::new(SamplingParams::default());
        Head::Generate(Generate {
            max_tokens,
            n: 1,
            sampling,
            top_logprobs: None,
            constraint: None,
        })
    }

    fn request(tokens: Vec<TokenId>, heads: Vec<Head>) -> Request {
        let rows = heads
            .into_iter()
            .map(|head| RowSpec {
                node: NodeIdx(0),
                head,
            })
            .collect();
        Request::new(
            RequestId(0),
            PromptTree::single(tokens),
            rows,
            Timestamp::ZERO,
        )
    }

    #[test]
    fn class_follows_the_output_budget() {
        let class = |heads| request(vec![1], heads).class();
        assert_eq!(class(vec![]), ExecutionClass::OneShot);
        assert_eq!(class(vec![generate(1)]), ExecutionClass::OneShot);
        assert_eq!(class(vec![Head::Classify]), ExecutionClass::OneShot);
        assert_eq!(
            class(vec![Head::Classify, generate(2)]),
            ExecutionClass::Decode
        );
    }

    /// Prompts and salts belong into no log, and `Debug` is how things get there.
    #[test]
    fn debug_prints_lengths() {
        let mut request = request(vec![4_711, 4_712], vec![Head::Classify]);
        request.cache_salt = Some(Arc::from("tenant"));
        let shown = format!("{request:?}");
        for secret in ["471", "tenant"] {
            assert!(!shown.contains(secret), "{shown}");
        }
        assert!(
            shown.contains("tokens: 2") && shown.contains("has_salt: true"),
            "{shown}"
        );
    }

    #[test]
    fn validation_names_the_defect() {
        let check = |tokens: Vec<u32>, heads, expected: &str| {
            let error = request(tokens, heads).validate(10, 4).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        check(
            vec![],
            vec![Head::Classify],
            "the request has no prompt tokens",
        );
        check(vec![1], vec![], "the request has no rows");
        check(
            vec![1, 10],
            vec![Head::Classify],
            "token id 10 is not in the vocabulary of 10 ids",
        );
        check(
            vec![1, 2, 3],
            vec![generate(2)],
            "prompt of 3 tokens and output of 2 exceed the context of 4",
        );
        check(
            vec![1, 2],
            vec![Head::PromptLogprobs {
                positions: 0..2,
                top: 0,
            }],
            "row 0: positions must be a non-empty range within 1..=prompt length",
        );
        let labels = Head::LabelScores {
            labels: Arc::from([]),
            normalise: Normalise::OverVocab,
        };
        check(
            vec![1],
            vec![labels],
            "row 0: labels must be a non-empty list",
        );
        assert_eq!(
            request(vec![1, 2, 3], vec![generate(1)]).validate(10, 4),
            Ok(())
        );
    }
}
