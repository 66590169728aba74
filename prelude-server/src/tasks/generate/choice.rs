//! A continuation as it grows: tokens in, certain text and finish reason out.

use std::{borrow::Cow, sync::Arc};

use prelude_core::{SampledToken, TokenId};
use prelude_engine::FinishReason;
use prelude_text::{output::OutputParser, tokenizer::Stream};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use super::{Params, stop::Stopper};
use crate::{error::ApiError, served_model::ServedModel};

/// A continuation of a prompt.
pub(crate) struct Choice {
    decoder: Stream,
    stopper: Stopper,
    /// Certain text that has not been sent, unless it is taken apart.
    pub(crate) text: String,
    /// The parser of the text, if the text is taken apart.
    pub(crate) pieces: Option<OutputParser>,
    /// Tokens that have not been sent, if log-probabilities are wanted.
    pub(crate) tokens: Vec<TokenRecord>,
    /// Ids that have not been sent, if they are wanted.
    pub(crate) ids: Vec<TokenId>,
    /// Tokens generated, an end token included.
    pub(crate) generated: u64,
    /// The end of the text, once it has come.
    pub(crate) finish: Option<Finish>,
    /// Code points decoded so far: where in the text the next token begins.
    decoded_chars: usize,
    scratch: String,
}

/// A generated token and where its text begins.
#[derive(Clone, Debug)]
pub(crate) struct TokenRecord {
    /// The token and its log-probabilities.
    pub(crate) token: SampledToken,
    /// Code points of generated text before the token. A token that continues a character begins
    /// where the character does.
    pub(crate) offset: usize,
}

/// The end of a continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finish {
    /// `finish_reason`.
    pub(crate) reason: &'static str,
    /// `stop_reason`.
    pub(crate) stop: Option<StopReason>,
}

/// The caller's stop string or token that ended a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// A stop string: its index, and the strings.
    Text(usize, Arc<[String]>),
    /// A stop id.
    Id(TokenId),
}

impl JsonSchema for StopReason {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "StopReason".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"] })
    }
}

impl Serialize for StopReason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(index, stops) => serializer.serialize_str(&stops[*index]),
            Self::Id(id) => serializer.serialize_u32(*id),
        }
    }
}

impl Choice {
    pub(crate) fn new(params: &Params, model: &ServedModel) -> Self {
        Self {
            decoder: model.tokenizer.stream(params.skip_special_tokens),
            stopper: Stopper::new(Arc::clone(&params.stops), params.include_stop),
            text: String::new(),
            pieces: params.parts.map(OutputParser::new),
            tokens: Vec::new(),
            ids: Vec::new(),
            generated: 0,
            finish: None,
            decoded_chars: 0,
            scratch: String::new(),
        }
    }

    /// Returns a continuation of no tokens.
    pub(crate) fn empty(params: &Params, model: &ServedModel) -> Self {
        let mut choice = Self::new(params, model);
        choice.finish = Some(Finish {
            reason: "length",
            stop: None,
        });
        choice
    }

    /// Adds a token. What comes after the end is dropped: the engine may be a step ahead of a
    /// stop string.
    pub(crate) fn push(&mut self, token: SampledToken, model: &ServedModel, params: &Params) {
        if self.finish.is_some() {
            return;
        }
        self.generated += 1;
        let id = token.token;
        if params.return_token_ids {
            self.ids.push(id);
        }
        if token.logprob.is_some() {
            self.tokens.push(TokenRecord {
                token,
                offset: self.decoded_chars,
            });
        }
        if params.is_stop(id) && !params.include_stop {
            return;
        }
        self.scratch.clear();
        self.decoder.push(&model.tokenizer, id, &mut self.scratch);
        // Text of the tokens that must come is not searched for the end.
        let searched = self.generated > u64::from(params.sampling.min_tokens);
        self.take_scratch(params, searched);
        self.take_apart();
    }

    /// Returns true if there is something to send.
    pub(crate) fn speaks(&self) -> bool {
        let taken_apart = self.pieces.as_ref().is_some_and(|p| !p.out.is_empty());
        !self.text.is_empty() || taken_apart || self.finish.is_some()
    }

    /// Forgets what has been sent.
    pub(crate) fn sent(&mut self) {
        self.text.clear();
        self.tokens.clear();
        self.ids.clear();
        if let Some(pieces) = &mut self.pieces {
            pieces.out.clear();
        }
    }

    /// Takes apart what has become certain.
    fn take_apart(&mut self) {
        if let Some(pieces) = &mut self.pieces {
            pieces.push(&self.text);
            self.text.clear();
            if let Some(finish) = &self.finish {
                pieces.finish(finish.reason == "length");
            }
        }
    }

    /// Ends the continuation as the engine says, unless a stop string has ended it before.
    ///
    /// # Errors
    /// 400 if no token was allowed: what there is may be half of what was asked for.
    pub(crate) fn finish(
        &mut self,
        reason: FinishReason,
        model: &ServedModel,
        params: &Params,
    ) -> Result<(), ApiError> {
        if self.finish.is_some() {
            return Ok(());
        }
        self.scratch.clear();
        self.decoder.finish(&model.tokenizer, &mut self.scratch);
        self.take_scratch(params, true);
        if self.finish.is_some() {
            self.take_apart();
            return Ok(());
        }
        self.stopper.flush(&mut self.text);
        self.finish = Some(match reason {
            FinishReason::Length => Finish {
                reason: "length",
                stop: None,
            },
            FinishReason::Complete => Finish {
                reason: "stop",
                stop: None,
            },
            FinishReason::NoToken => return Err(ApiError::dead_end(self.generated)),
            FinishReason::Stop { token } => {
                let ends = !params.ignore_eos && model.generates().eos_token_ids.contains(&token);
                Finish {
                    reason: "stop",
                    stop: (!ends).then_some(StopReason::Id(token)),
                }
            }
        });
        self.take_apart();
        Ok(())
    }

    fn take_scratch(&mut self, params: &Params, searched: bool) {
        if self.scratch.is_empty() {
            return;
        }
        self.decoded_chars += self.scratch.chars().count();
        if !searched {
            self.stopper.pass(&self.scratch, &mut self.text);
        } else if let Some(index) = self.stopper.push(&self.scratch, &mut self.text) {
            self.finish = Some(Finish {
                reason: "stop",
                stop: Some(StopReason::Text(index, Arc::clone(&params.stops))),
            });
        }
    }
}
