//! Prompts of the server's own: texts of people, told apart from the special tokens around them, as
//! [`Conversation`](super::conversation::Conversation) does it for messages; a text in the user's turn
//! of the chat template; the trie of what may be answered, and how likely each answer is.

use std::{borrow::Cow, collections::HashSet, fmt::Display, iter};

use prelude_core::TokenId;
use prelude_text::{
    label_trie::{LabelTrie, MAX_PLACES, RowScores, rows_behind},
    shared_prefix::SharedPrompts,
    template::{ChatInputs, no_thinking},
    tokenizer::Escaper,
};
use serde_json::{Value, json};

use super::{
    place::{Place, check_bytes, check_length, place},
    prepared::{Computed, Expected, Prepared, prepare, trie_scores},
    submit::Ask,
};
use crate::{
    admission::{Cost, Growth, Printed, Reservation},
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

/// The place of the text in a request's template, which may name it once and use nothing else of
/// the template language: a template is a program.
pub(crate) const TEXT: &str = "{{ text }}";

/// Returns what stands before and behind the text in a template: `{{ text }}` once and no other tag.
///
/// # Errors
/// 400 naming `template`.
pub(crate) fn split_template(template: &str) -> Result<(&str, &str), ApiError> {
    let split = template.split_once(TEXT);
    let is_plain = |part: &str| !["{{", "{%", "{#"].iter().any(|tag| part.contains(tag));
    match split {
        Some((before, after)) if is_plain(before) && is_plain(after) => Ok((before, after)),
        _ => {
            let must = format!("hold {TEXT:?} once and no other tag");
            Err(ApiError::invalid_value("template", must))
        }
    }
}

/// Returns a prompt of one user turn, up to where the answer begins, with thinking off.
pub(crate) fn user_turn(model: &ServedModel, content: &str) -> Result<String, ApiError> {
    prompt(model, &[json!({"role": "user", "content": content})])
}

/// Returns a prompt up to where the answer begins, with thinking off.
pub(crate) fn prompt(model: &ServedModel, messages: &[Value]) -> Result<String, ApiError> {
    let template = model.form.template.as_ref();
    let template = template.expect("a model that serves this task has a template");
    let inputs = ChatInputs {
        messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        kwargs: &no_thinking(),
    };
    let rendered = template.render(&inputs);
    let mut prompt = rendered.map_err(|e| ApiError::template(e.to_string()))?;
    if prompt.ends_with(LLAMA_HEADER_END) {
        prompt.push_str("\n\n");
    }
    Ok(prompt)
}

/// The end of a turn's header in Llama's format. Every text begins two lines below it; the templates
/// of Llama Guard leave these line breaks to the model.
const LLAMA_HEADER_END: &str = "<|end_header_id|>";

/// Returns the trie of labels as they are tokenised behind `prompt`, each with the end of the turn;
/// without it if the labels are `open`, so that an answer may go on behind them.
///
/// # Errors
/// 400 naming `labels` or one of them.
pub(crate) fn label_trie<L: Display>(
    escaping: &Escaping<'_>,
    prompt: String,
    labels: &[L],
    open: bool,
) -> Result<LabelTrie, ApiError> {
    let model = escaping.model;
    let end = match open {
        true => None,
        false => Some(
            model
                .words()
                .and_then(|words| words.end_of_turn)
                .ok_or_else(|| {
                    let message = "this model has no end token, so no label ever ends";
                    ApiError::new(400, "unsupported_parameter", message).with_param("labels")
                })?,
        ),
    };
    let with_label = labels.iter().map(|label| format!("{prompt}{label}"));
    let texts = [prompt.clone()].into_iter().chain(with_label);
    let encoded = escaping.encode_all(("labels", 1), texts.map(Ok))?;
    let mut prompts = encoded.into_prompts();
    let prompt = prompts.next().expect("the prompt was put first");
    let mut sequences: Vec<Vec<TokenId>> = Vec::with_capacity(labels.len());
    let mut seen = HashSet::with_capacity(labels.len());
    for (index, whole) in prompts.enumerate() {
        let Some(label) = whole
            .strip_prefix(prompt.as_slice())
            .filter(|l| !l.is_empty())
        else {
            let must = "not melt into the prompt: its first token would begin before the answer";
            return Err(ApiError::invalid_value(format!("/labels/{index}"), must));
        };
        // Refused before a trie of that depth is built.
        check_length("labels", prompt.len() + label.len(), 0, model)?;
        let sequence: Vec<TokenId> = label.iter().copied().chain(end).collect();
        if !seen.insert(sequence.clone()) {
            let must = "not read like another label to the model";
            return Err(ApiError::invalid_value(format!("/labels/{index}"), must));
        }
        sequences.push(sequence);
    }
    LabelTrie::new(&sequences).ok_or_else(|| {
        let must = format!("have at most {MAX_PLACES} tokens, common beginnings counted once");
        ApiError::invalid_value("labels", must)
    })
}

/// Answers and the texts that they are about.
pub(crate) struct Answers<'a, 'm, L> {
    pub(crate) escaping: Escaping<'m>,
    /// The field in which people's texts came, for errors.
    pub(crate) field: &'static str,
    /// The texts of the field, if each has one prompt; else 1.
    pub(crate) texts: usize,
    /// The answers as they stand behind a prompt.
    pub(crate) answers: &'a [L],
    /// True if an answer may go on behind these words.
    pub(crate) open: bool,
    /// Number of prompts, at least one.
    pub(crate) prompts: usize,
    /// About how many bytes of people's texts all prompts hold together.
    pub(crate) bytes: usize,
    /// True if the client is told of the distinct tokens of all prompts, rather than of the sum of the
    /// prompts' lengths.
    pub(crate) distinct: bool,
}

impl<L: AsRef<str> + Display> Answers<'_, '_, L> {
    /// Returns for each prompt what `read` makes of the scores of the answers. The prompts are made as
    /// they are encoded.
    ///
    /// # Errors
    /// 400 for whatever is wrong with the request, 429, 503, 500.
    pub(crate) async fn behind<T>(
        &self,
        ask: &Ask<'_>,
        prompts: impl Iterator<Item = Result<String, ApiError>>,
        read: impl Fn(&LabelTrie, &[RowScores]) -> T,
    ) -> Result<Computed<T>, ApiError> {
        let (escaping, model, room) = (&self.escaping, ask.model, self.escaping.room);
        let bytes = self.answers.iter().map(|answer| answer.as_ref().len());
        let rows = rows_behind(self.answers.len(), bytes.sum());
        let expected = Expected {
            prompts: self.prompts,
            rows: rows.saturating_mul(self.prompts as u64),
            bytes: self.bytes,
        };
        let prepared = prepare(ask, expected, || {
            let mut first = None;
            let prompts = prompts.map(|prompt| {
                let prompt = prompt?;
                first.get_or_insert_with(|| prompt.clone());
                Ok(prompt)
            });
            let texts = (self.field, self.texts);
            let encoded = escaping.encode_all(texts, prompts)?;
            for (index, len) in encoded.lens().enumerate() {
                check_length(place(self.field, index, self.texts), len, 0, model)?;
            }
            let first = first.expect("a request has at least one text to ask about");
            let trie = label_trie(escaping, first, self.answers, self.open)?;
            room.admit(Cost::of_rows((self.prompts * trie.num_rows()) as u64))?;
            let numbers = (self.prompts * self.answers.len()) as u64;
            room.grow(Growth::Numbers(numbers, Printed::Decimal))?;
            let tries = iter::repeat(&trie);
            let prepared = Prepared::with_labels(model, texts, encoded, tries)?;
            let prepared = match self.distinct {
                true => prepared.counting_distinct_tokens(),
                false => prepared,
            };
            Ok((prepared, trie))
        });
        let (prepared, trie) = prepared.await?;
        let computed = prepared.compute(ask, trie_scores).await?;
        let scores = computed.outputs.chunks(trie.num_rows());
        Ok(Computed {
            outputs: scores.map(|scores| read(&trie, scores)).collect(),
            tokens: computed.tokens,
            cost: computed.cost,
        })
    }
}

/// Returns probabilities in proportion to the exponentials of `log`.
pub(crate) fn normalised(log: &[f64]) -> Vec<f64> {
    let max = log.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = log.iter().map(|l| (l - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_hold_the_text_and_nothing_else() {
        let check = |template: &str, expected: Option<(&str, &str)>| {
            assert_eq!(split_template(template).ok(), expected, "{template}");
        };
        check("{{ text }}", Some(("", "")));
        check("a {{ text }}\nWhich topic?", Some(("a ", "\nWhich topic?")));
        check("no text", None);
        check("{{ text }}{{ text }}", None);
        check("{{ text|upper }}", None);
        check("{% set x = 1 %}{{ text }}", None);
        check("{# c #}{{ text }}", None);
    }

    #[test]
    fn label_probabilities_do_not_underflow() {
        let p = normalised(&[-2000.0, -2001.0]);
        assert!((p[0] - 0.731).abs() < 1e-3 && (p.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
