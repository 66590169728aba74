//! Constraints on what a generation may say: from a request's fields to masks over tokens.
//!
//! A choice runs on a trie of the options' own tokenisations ([`choice`]). Regular expressions,
//! schemas and grammars run on the crate `llguidance` ([`grammar`], feature `llguidance`): compiled
//! once on a bounded number of threads, kept in a bounded cache, and walked by one parser for each
//! continuation, on threads of their own while the model runs.

mod after_reasoning;
#[cfg(feature = "llguidance")]
mod blame;
#[cfg(feature = "llguidance")]
mod bounds;
#[cfg(feature = "llguidance")]
mod cache;
mod choice;
#[cfg(feature = "llguidance")]
mod flights;
#[cfg(feature = "llguidance")]
mod grammar;
#[cfg(not(feature = "llguidance"))]
#[path = "no_grammar.rs"]
mod grammar;
#[cfg(feature = "llguidance")]
mod lark;
#[cfg(feature = "llguidance")]
mod mask_threads;
#[cfg(feature = "llguidance")]
mod names;
#[cfg(feature = "llguidance")]
mod numbers;
#[cfg(feature = "llguidance")]
mod place;
#[cfg(feature = "llguidance")]
mod source;
mod spec;
#[cfg(feature = "llguidance")]
mod vocabulary;

use std::sync::Arc;

use prelude_core::{Constraint, SamplingParams};
use prelude_text::tokenizer::Tokenizer;

use after_reasoning::AfterReasoning;

use crate::{config::Limits, encode::EncodePool, error::ApiError, metrics::EdgeMetrics};

pub(crate) use after_reasoning::Reasoning;
pub(crate) use grammar::Grammars;
pub(crate) use spec::{Ask, Calls, ConstraintFields, Language, Reading, Whitespace};

/// A constraint, ready to be handed to the engine.
#[derive(Clone, Debug)]
pub(crate) struct Constrained {
    /// The constraint.
    pub(crate) constraint: Arc<dyn Constraint>,
    /// Most tokens that a text in the language takes, if there is a bound.
    pub(crate) budget: Option<u32>,
}

/// The parts of the server and of a model that constraints are made with.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "llguidance"),
    expect(dead_code, reason = "only the compiling of grammars counts and logs")
)]
pub(crate) struct ConstraintContext<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) encoder: &'a EncodePool,
    pub(crate) metrics: &'a EdgeMetrics,
    /// The request's id, for logs.
    pub(crate) request_id: &'a str,
    pub(crate) tokenizer: &'a Arc<Tokenizer>,
    pub(crate) vocab_size: u32,
    /// Ids that end a text.
    pub(crate) eos_token_ids: &'a [u32],
    /// The model's compiled grammars.
    pub(crate) grammars: &'a Grammars,
}

/// The parts of a request that constrain its answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    /// The language that answers belong to.
    pub(crate) ask: Option<&'a Ask>,
    /// Reasoning that may come before a text in that language.
    pub(crate) reasoning: Option<Reasoning>,
    /// True if end tokens end nothing.
    pub(crate) ignore_eos: bool,
}

/// Makes the constraint that a request asks for, if it asks for any.
///
/// # Errors
/// 400 `grammar_error` or `grammar_too_complex` naming the field, 400 `invalid_value` if nothing
/// may come first, 429 if too many grammars are being compiled.
pub(crate) async fn build(
    context: ConstraintContext<'_>,
    wanted: Wanted<'_>,
    sampling: &SamplingParams,
) -> Result<Option<Constrained>, ApiError> {
    let Some(ask) = wanted.ask else {
        return Ok(None);
    };
    let language = of_language(context, ask, sampling, wanted.ignore_eos).await?;
    let made = match wanted.reasoning {
        None => language,
        Some(reasoning) => Constrained {
            constraint: Arc::new(AfterReasoning::new(
                reasoning,
                language.constraint,
                context.eos_token_ids,
                context.vocab_size,
            )),
            budget: None,
        },
    };
    check_first(ask.param, &*made.constraint, sampling)?;
    Ok(Some(made))
}

/// Returns the constraint for a language.
///
/// # Errors
/// The same as of [`build`].
async fn of_language(
    context: ConstraintContext<'_>,
    ask: &Ask,
    sampling: &SamplingParams,
    ignore_eos: bool,
) -> Result<Constrained, ApiError> {
    let ends: Arc<[u32]> = match ignore_eos {
        true => Arc::from([]),
        false => {
            let ends = context.eos_token_ids.iter().copied();
            ends.filter(|&id| id < context.vocab_size).collect()
        }
    };
    Ok(match &ask.language {
        Language::Choice(options) => {
            let bytes = options.iter().map(String::len).sum();
            check_bytes(bytes, context.limits, ask.param)?;
            let make = || choice::Choice::new(options, context, ends, sampling.min_tokens);
            let choice = context.encoder.run(bytes, make).await?;
            let choice = choice.map_err(|must| ApiError::invalid_value(ask.param, must))?;
            Constrained {
                budget: Some(choice.longest()),
                constraint: Arc::new(choice),
            }
        }
        language => Constrained {
            constraint: context
                .grammars
                .constraint(context, language, ask.text_param(), ends)
                .await?,
            budget: None,
        },
    })
}

/// Refuses a language whose text is longer than the configuration allows.
fn check_bytes(bytes: usize, limits: &Limits, param: &'static str) -> Result<(), ApiError> {
    let max = limits.grammar_bytes;
    if bytes > max {
        let message = format!("`{param}` has {bytes} bytes, the limit is {max}");
        return Err(ApiError::grammar_too_complex(message, param));
    }
    Ok(())
}

/// Refuses a constraint that lets nothing come first.
fn check_first(
    param: &'static str,
    constraint: &dyn Constraint,
    sampling: &SamplingParams,
) -> Result<(), ApiError> {
    let first = constraint.start().next();
    let is_open = |id: &u32| {
        let listed = sampling.allowed_token_ids.as_ref();
        let stops = sampling.min_tokens > 0 && sampling.stop_token_ids.binary_search(id).is_ok();
        listed.is_none_or(|ids| ids.binary_search(id).is_ok()) && !stops
    };
    match first.wait() {
        Some(set) if set.ids().any(|id| is_open(&id)) => Ok(()),
        _ => {
            let must = "let some token come first, together with `allowed_token_ids` and \
                        `min_tokens`";
            Err(ApiError::invalid_value(param, must))
        }
    }
}
