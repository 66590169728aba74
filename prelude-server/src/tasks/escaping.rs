//! Texts of people in prompts of the server's own, told apart from the special tokens around them:
//! what [`Conversation`](super::conversation::Conversation) does for messages, for the texts of
//! decisions, labels and rankings.

use std::borrow::Cow;

use prelude_core::TokenId;
use prelude_text::{shared_prefix::SharedPrompts, tokenizer::Escaper};
use serde_json::Value;

use super::{
    place::{Place, check_bytes, check_length, place},
    submit::Ask,
};
use crate::{
    admission::{Growth, Reservation},
    error::ApiError,
    served_model::ServedModel,
};

/// The field.
const FIELD: &str = "escape_special_tokens";

/// Marks texts before they are put into a prompt, and encodes the prompt.
#[derive(Clone, Copy)]
pub(crate) struct Escaping<'m> {
    pub(crate) model: &'m ServedModel,
    /// The room that prompts are encoded within.
    pub(crate) room: &'m Reservation,
    /// `None`: special tokens in texts are taken for what they spell.
    escapes: Option<(&'m Escaper, char)>,
}

impl<'m> Escaping<'m> {
    /// Escapes if the request says so, or else if the server does. `texts` returns all texts that
    /// prompts are made of, as one.
    ///
    /// # Errors
    /// 400 `unsupported_parameter` if the model's tokenizer cannot keep texts apart.
    pub(crate) fn new(
        ask: &Ask<'m>,
        asked: Option<bool>,
        texts: impl FnOnce() -> String,
    ) -> Result<Self, ApiError> {
        let (call, model) = (ask.call, ask.model);
        let escapes = match asked.unwrap_or(call.app.config.escape_special_tokens) {
            false => None,
            true => {
                let escaper = model.form.escaper.as_ref().ok_or_else(cannot_escape)?;
                let mark = Escaper::mark(&[&texts()]).ok_or_else(cannot_escape)?;
                Some((escaper, mark))
            }
        };
        Ok(Self {
            model,
            room: &call.reservation,
            escapes,
        })
    }

    /// Returns an escaping that leaves texts as they are: special tokens in them are taken for what
    /// they spell, wherever they come from.
    #[cfg(test)]
    pub(crate) const fn none(model: &'m ServedModel, room: &'m Reservation) -> Self {
        Self {
            model,
            room,
            escapes: None,
        }
    }

    /// Returns a text of people's, to be put into a prompt.
    pub(crate) fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        match self
            .escapes
            .and_then(|(escaper, mark)| escaper.marked(text, mark))
        {
            Some(marked) => Cow::Owned(marked),
            None => Cow::Borrowed(text),
        }
    }

    /// Marks every text of people's in a message.
    pub(crate) fn mark(&self, message: &mut Value) {
        if let Some((escaper, mark)) = self.escapes {
            escaper.mark_all(message, mark);
        }
    }

    /// Appends the ids of a prompt, or of a part that [cuts](prelude_text::shared_prefix) allow.
    fn encode_into(&self, prompt: &str, out: &mut Vec<TokenId>) {
        let tokenizer = &self.model.tokenizer;
        match self.escapes {
            Some((escaper, mark)) => escaper.encode_into(tokenizer, prompt, mark, false, out),
            None => tokenizer.encode_into(prompt, false, out),
        }
    }

    /// Appends the ids of a prompt that must fit the context. A prompt that is so long that it cannot
    /// fit is not read.
    ///
    /// # Errors
    /// 400 `context_length_exceeded` naming `place`.
    fn encode_within(
        &self,
        place: Place,
        prompt: &str,
        out: &mut Vec<TokenId>,
    ) -> Result<(), ApiError> {
        let marks = self.escapes.map_or(0, |(_, mark)| {
            prompt.matches(mark).count() * mark.len_utf8()
        });
        check_bytes(place, prompt.len() - marks, self.model)?;
        self.encode_into(prompt, out);
        check_length(place, out.len(), 0, self.model)
    }

    /// Encodes prompts that must fit the context, within the room. A common beginning is encoded
    /// once where it can be cut off, and a prompt that is too long ends the work.
    ///
    /// # Errors
    /// 400 `context_length_exceeded` naming one of the `texts` of a field that prompts are made of, or
    /// the field if it has one; 400 `larger_than_queue`; whatever `prompts` fail with.
    pub(crate) fn encode_all(
        &self,
        (field, texts): (&'static str, usize),
        prompts: impl IntoIterator<Item = Result<String, ApiError>>,
    ) -> Result<SharedPrompts, ApiError> {
        SharedPrompts::encode(prompts, self.model.form.cuts, |index, text, out| {
            self.encode_within(place(field, index, texts), text, out)?;
            self.room.grow(Growth::Tokens(out.len()))
        })
    }

    /// Returns the ids of a part of a prompt that is tokenised by itself, however long it is: some formats
    /// cut it.
    pub(crate) fn encode_part(&self, part: &str) -> Vec<TokenId> {
        let mut ids = Vec::new();
        self.encode_into(part, &mut ids);
        ids
    }

    /// Returns the number of ids that a prompt has.
    pub(crate) fn count(&self, prompt: &str) -> usize {
        if self.escapes.is_none() {
            return self.model.tokenizer.count(prompt, false);
        }
        let mut ids = Vec::new();
        self.encode_into(prompt, &mut ids);
        ids.len()
    }
}

/// Returns the error for a tokenizer by which special tokens cannot be escaped.
pub(crate) fn cannot_escape() -> ApiError {
    let message = "special tokens cannot be escaped here: this model's tokenizer does not keep \
        them apart from the text beside them";
    ApiError::new(400, "unsupported_parameter", message).with_param(FIELD)
}
