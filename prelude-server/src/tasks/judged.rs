//! What a guard judges: texts, each as a user's turn, or the last turn of a conversation.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::{messages, prompts::Escaping};
use crate::error::ApiError;

/// Texts, or a conversation whose last turn is judged.
#[derive(Debug)]
pub(crate) enum Judged<'a> {
    Texts(Vec<Cow<'a, str>>),
    Conversation(Vec<Value>),
}

impl Judged<'_> {
    /// Takes the messages of a conversation, which came in `field`.
    ///
    /// # Errors
    /// 400 naming the message and what is wrong with it.
    pub(crate) fn conversation(mut turns: Vec<Value>, field: &str) -> Result<Self, ApiError> {
        messages::check_all(&mut turns, field, false)?;
        let last = turns.len() - 1;
        let of_last = |name: &str| turns[last].get(name).and_then(Value::as_str);
        if !matches!(of_last("role"), Some("user" | "assistant")) {
            let must = "be `user` or `assistant` in the last message, which is judged";
            return Err(ApiError::invalid_value(
                format!("/{field}/{last}/role"),
                must,
            ));
        }
        if of_last("content").is_none_or(|text| text.trim().is_empty()) {
            let must = "hold a text in the last message, which is judged";
            let path = format!("/{field}/{last}/content");
            return Err(ApiError::invalid_value(path, must));
        }
        Ok(Self::Conversation(turns))
    }

    /// Returns the number of prompts, at least one.
    pub(crate) const fn prompts(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Conversation(_) => 1,
        }
    }

    /// Returns about how many bytes all texts have.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.iter().map(|text| text.len()).sum(),
            Self::Conversation(turns) => turns.iter().map(messages::text_bytes).sum(),
        }
    }

    /// Returns all texts as one.
    pub(crate) fn all(&self) -> String {
        match self {
            Self::Texts(texts) => texts.concat(),
            Self::Conversation(turns) => Value::from(turns.clone()).to_string(),
        }
    }

    /// Returns the messages of each prompt, whose texts are kept apart from the template.
    pub(crate) fn turns<'t>(
        &'t self,
        escaping: Escaping<'t>,
    ) -> impl Iterator<Item = Vec<Value>> + 't {
        let texts = match self {
            Self::Texts(texts) => &texts[..],
            Self::Conversation(_) => &[],
        };
        let one = move |text: &Cow<'_, str>| {
            vec![json!({"role": "user", "content": escaping.text(text)})]
        };
        let conversation = match self {
            Self::Texts(_) => None,
            Self::Conversation(turns) => Some(turns),
        };
        let conversation = conversation.into_iter().map(move |turns| {
            let mut turns = turns.clone();
            turns.iter_mut().for_each(|turn| escaping.mark(turn));
            turns
        });
        texts.iter().map(one).chain(conversation)
    }

    /// Returns the prompt that was rendered of `turns`, if it holds the last turn of a conversation: a
    /// template that is made for one text passes over others.
    ///
    /// # Errors
    /// 400 `template_error`.
    pub(crate) fn printed(&self, prompt: String, turns: &[Value]) -> Result<String, ApiError> {
        let last = turns.last().and_then(|turn| turn.get("content"));
        let last = last.and_then(Value::as_str).map_or("", str::trim);
        match self {
            Self::Conversation(_) if !prompt.contains(last) => {
                let what = "the chat template does not print the last message, which is judged";
                Err(ApiError::template(what).with_param("input"))
            }
            _ => Ok(prompt),
        }
    }
}
