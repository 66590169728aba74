//! The probabilities of a few answers behind many prompts: what guards are asked for, and the labels of
//! classes.

use std::{fmt::Display, iter};

use prelude_text::label_trie::{LabelTrie, RowScores, rows_behind};

use super::{
    escaping::Escaping,
    labels::label_trie,
    place::{check_length, place},
    prepared::{Computed, Expected, Prepared, prepare, trie_scores},
    submit::Ask,
};
use crate::{
    admission::{Cost, Growth, Printed},
    error::ApiError,
};

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
    /// Returns for each prompt what `read` makes of the scores of the answers.
    ///
    /// # Errors
    /// 400 for whatever is wrong with the request, 429, 503, 500.
    pub(crate) async fn behind<I, T>(
        &self,
        ask: &Ask<'_>,
        rendered: impl FnOnce() -> Result<I, ApiError>,
        read: impl Fn(&LabelTrie, &[RowScores]) -> T,
    ) -> Result<Computed<T>, ApiError>
    where
        I: Iterator<Item = Result<String, ApiError>>,
    {
        let (escaping, model, room) = (&self.escaping, ask.model, self.escaping.room);
        let answer_bytes = self
            .answers
            .iter()
            .map(|answer| answer.as_ref().len())
            .sum();
        let rows = rows_behind(self.answers.len(), answer_bytes);
        let expected = Expected {
            prompts: self.prompts,
            rows: rows.saturating_mul(self.prompts as u64),
            bytes: self.bytes,
        };
        let prepared = prepare(ask, expected, || {
            let mut first = None;
            let rendered = rendered()?.map(|prompt| {
                let prompt = prompt?;
                first.get_or_insert_with(|| prompt.clone());
                Ok(prompt)
            });
            let texts = (self.field, self.texts);
            let encoded = escaping.encode_all(texts, rendered)?;
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
