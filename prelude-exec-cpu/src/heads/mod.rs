//! What is read off hidden states.
//!
//! | file | |
//! | --- | --- |
//! | `vocabulary` | which rows need which logits, in chunks of bounded memory |
//! | `logprobs` | log-probabilities, ranks and likeliest tokens of one row of logits |
//! | `sample` | one row of logits to tokens: the normative definition |
//! | `philox` | the generator behind draws |
//! | `pooling` | embeddings and class logits |

mod logprobs;
mod philox;
mod pooling;
mod sample;
mod vocabulary;

pub(crate) use vocabulary::{VocabularyHeads, logits_rows, worker_bytes};

/// What a row gets whose numbers are infinite or not numbers.
pub(crate) const NOT_FINITE: &str = "the model's numbers for this row are not finite";
