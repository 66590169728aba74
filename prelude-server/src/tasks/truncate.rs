//! `truncate_prompt_tokens` and what it spares.

use std::{borrow::Cow, ops::Range};

use prelude_core::TokenId;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    error::ApiError,
    served_model::ServedModel,
    wire::{CountOrAll, Int},
};

/// The cut of a prompt that is too long. Without these fields the prompt is refused.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Truncation")]
pub(crate) struct TruncationFields {
    /// Tokens to keep; -1 is what the context holds.
    truncate_prompt_tokens: Option<CountOrAll>,
    /// The side that is cut.
    truncation_side: Option<Side>,
}

/// The switch by which hosted services cut texts to the context. Without it the model's setting
/// `auto_truncate` decides.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "TruncationSwitch")]
pub(crate) struct SwitchFields {
    /// True cuts texts that are too long, false refuses them.
    pub(crate) truncate: Option<bool>,
    /// Another name of `truncate` (Voyage's).
    pub(crate) truncation: Option<bool>,
}

impl SwitchFields {
    /// Returns true or false if the request says either.
    ///
    /// # Errors
    /// 400 naming the field if the two names contradict each other.
    fn get(self) -> Result<Option<bool>, ApiError> {
        match (self.truncate, self.truncation) {
            (Some(one), Some(other)) if one != other => {
                let must = "not contradict `truncate`, which means the same";
                Err(ApiError::invalid_value("truncation", must))
            }
            (one, other) => Ok(one.or(other)),
        }
    }
}

/// The end of a prompt that is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Side {
    /// The beginning of the prompt is cut off.
    Left,
    /// The end of the prompt is cut off.
    Right,
}

/// The cut of a prompt that is too long, in TEI's dialect. Without `truncate` the model's setting
/// `auto_truncate` decides.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[schemars(rename = "TeiTruncation")]
#[serde(deny_unknown_fields)]
pub(crate) struct CutFields {
    /// True cuts texts that are too long, false refuses them.
    pub(crate) truncate: Option<bool>,
    /// The side that is cut, the right one by default (TEI's dialect).
    pub(crate) truncation_direction: Option<Direction>,
}

/// TEI's names of the side that is cut.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "TeiDirection")]
pub(crate) enum Direction {
    #[serde(alias = "Left")]
    Left,
    #[serde(alias = "Right")]
    Right,
}

impl CutFields {
    /// Returns how prompts are cut, if they are: to the model's context.
    pub(crate) fn truncation(self, model: &ServedModel) -> Option<Truncation> {
        let side = match self.truncation_direction {
            None | Some(Direction::Right) => Side::Right,
            Some(Direction::Left) => Side::Left,
        };
        let is_cut = self.truncate.unwrap_or(model.auto_truncate);
        is_cut.then(|| Truncation::to_context(model, side))
    }
}

/// The number of tokens of a long prompt that are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truncation {
    keep: usize,
    side: Side,
}

impl Truncation {
    /// Keeps as many tokens as the model's context has.
    pub(crate) const fn to_context(model: &ServedModel, side: Side) -> Self {
        Self {
            keep: model.max_model_len as usize,
            side,
        }
    }

    /// Returns how texts that are read for a decision or a vector are cut, if they are: as the request
    /// says, or else to the context if its dialect (`cuts`) or the model's setting says so. `side` is
    /// cut unless the request names one.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn of_texts(
        fields: TruncationFields,
        switch: Option<SwitchFields>,
        model: &ServedModel,
        (side, cuts): (Side, bool),
    ) -> Result<Option<Self>, ApiError> {
        let switch = switch.map(SwitchFields::get).transpose()?.flatten();
        match (Self::new(fields, model, 0, side)?, switch) {
            (Some(_), Some(false)) => {
                let must = "be left out where `truncate` is false";
                Err(ApiError::invalid_value("truncate_prompt_tokens", must))
            }
            (Some(given), _) => Ok(Some(given)),
            (None, switch) => {
                let side = fields.truncation_side.unwrap_or(side);
                let is_cut = switch.unwrap_or(cuts || model.auto_truncate);
                Ok(is_cut.then(|| Self::to_context(model, side)))
            }
        }
    }

    /// Returns how prompts are cut, if they are. -1 keeps what the context leaves beside `output`
    /// tokens; `side` is cut unless the request names one.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn new(
        fields: TruncationFields,
        model: &ServedModel,
        output: u32,
        side: Side,
    ) -> Result<Option<Self>, ApiError> {
        let limit = model.max_model_len;
        let name = "truncate_prompt_tokens";
        let keep = match fields.truncate_prompt_tokens.map(Int::get) {
            None => return Ok(None),
            Some(-1) => limit.saturating_sub(output).max(1),
            Some(0) => return Err(ApiError::invalid_value(name, "be -1 or at least 1")),
            Some(keep) => match u32::try_from(keep) {
                Ok(keep) if keep <= limit => keep,
                _ => {
                    return Err(ApiError::invalid_value(
                        name,
                        format!("be from -1 to {limit}"),
                    ));
                }
            },
        };
        Ok(Some(Self {
            keep: keep as usize,
            side: fields.truncation_side.unwrap_or(side),
        }))
    }

    /// Returns this truncation with a limit of at most `limit` tokens.
    pub(crate) fn within(self, limit: usize) -> Self {
        Self {
            keep: self.keep.min(limit),
            ..self
        }
    }

    /// Returns true if so many tokens have to be cut.
    pub(crate) fn cuts(&self, tokens: usize) -> bool {
        tokens > self.keep
    }

    /// Returns the rules by which a tokenizer cuts a pair of texts to so many tokens and `more`.
    pub(crate) fn of_pair(&self, more: usize) -> fasttoken::Truncation {
        fasttoken::Truncation::new(self.keep.saturating_add(more)).side(match self.side {
            Side::Left => fasttoken::Side::Left,
            Side::Right => fasttoken::Side::Right,
        })
    }

    /// Cuts ids that the caller gave, if they are too many.
    pub(crate) fn apply(&self, ids: &mut Vec<TokenId>) {
        let over = ids.len().saturating_sub(self.keep);
        match self.side {
            Side::Left => drop(ids.drain(..over)),
            Side::Right => ids.truncate(self.keep),
        }
    }

    /// Cuts ids of texts, if they are too many; those in `spared` stay: they are no text's.
    ///
    /// # Errors
    /// 400 naming `field` if nothing of the texts would be left.
    pub(crate) fn apply_between(
        &self,
        field: &str,
        ids: &mut Vec<TokenId>,
        spared: [Range<usize>; 2],
    ) -> Result<(), ApiError> {
        let over = ids.len().saturating_sub(self.keep);
        if over == 0 {
            return Ok(());
        }
        let around = spared.iter().map(ExactSizeIterator::len).sum();
        if self.keep <= around {
            return Err(nothing_left(field, around));
        }
        let texts = ids.len() - around;
        let mut place = 0..;
        let mut of_texts = 0..;
        ids.retain(|_| {
            let place = place.next().expect("an open range has no end");
            if spared.iter().any(|range| range.contains(&place)) {
                return true;
            }
            let of_texts = of_texts.next().expect("an open range has no end");
            match self.side {
                Side::Left => of_texts >= over,
                Side::Right => of_texts < texts - over,
            }
        });
        Ok(())
    }

    /// Cuts `text` until the prompt around it is short enough; `measure` counts the tokens of the
    /// prompt around a text. Only the text is cut: special tokens, templates and instructions
    /// around it stay.
    ///
    /// # Errors
    /// 400 naming `field` if nothing of the text would be left; whatever `measure` fails with.
    pub(crate) fn fit<'t>(
        &self,
        model: &ServedModel,
        field: &str,
        text: &'t str,
        measure: impl Fn(&str) -> Result<usize, ApiError>,
    ) -> Result<Cow<'t, str>, ApiError> {
        // What cannot fit need not be read to its end to learn that it does not.
        let may_fit = model.tokenizer.least_tokens(text.len()) <= self.keep;
        if may_fit && measure(text)? <= self.keep {
            return Ok(Cow::Borrowed(text));
        }
        let around = measure("")?;
        let mut room = self.keep.saturating_sub(around);
        let ids = ids_to_cut(model, text, room, self.side);
        while room > 0 {
            let cut = cut_ids(model, text, &ids, room, self.side);
            let len = measure(&cut)?;
            if len <= self.keep {
                return Ok(cut);
            }
            // Tokens at the seams may come out otherwise than apart.
            room = room.saturating_sub(len - self.keep);
        }
        Err(nothing_left(field, around))
    }
}

/// Returns the error for a cut that leaves nothing of the texts in `field`.
pub(super) fn nothing_left(field: &str, around: usize) -> ApiError {
    let must =
        format!("be more than {around}: so many tokens are put around `{field}` and are never cut");
    ApiError::invalid_value("truncate_prompt_tokens", must)
}

/// Returns at most `keep` tokens of `text`, as text. Part of a character at the cut is dropped.
pub(crate) fn cut_text<'t>(
    model: &ServedModel,
    text: &'t str,
    keep: usize,
    side: Side,
) -> Cow<'t, str> {
    cut_ids(
        model,
        text,
        &ids_to_cut(model, text, keep, side),
        keep,
        side,
    )
}

/// Returns as many of the text's ids as [`cut_ids`] has to see. A long text whose end is cut off is
/// not read to its end.
fn ids_to_cut(model: &ServedModel, text: &str, keep: usize, side: Side) -> Vec<TokenId> {
    match side {
        Side::Left => model.tokenizer.encode(text, false),
        // One token more tells whether there are more.
        Side::Right => model.tokenizer.encode_prefix(text, keep.saturating_add(1)),
    }
}

fn cut_ids<'t>(
    model: &ServedModel,
    text: &'t str,
    ids: &[TokenId],
    mut keep: usize,
    side: Side,
) -> Cow<'t, str> {
    let tokenizer = &model.tokenizer;
    if ids.len() <= keep {
        return Cow::Borrowed(text);
    }
    loop {
        let kept = match side {
            Side::Left => &ids[ids.len() - keep..],
            Side::Right => &ids[..keep],
        };
        let cut = tokenizer.decode(kept, false);
        let cut = match side {
            Side::Left => cut.trim_start_matches(char::REPLACEMENT_CHARACTER),
            Side::Right => cut.trim_end_matches(char::REPLACEMENT_CHARACTER),
        };
        // What was one token of a longer word may be two of the shorter.
        if keep == 0 || tokenizer.count(cut, false) <= keep {
            return Cow::Owned(cut.to_owned());
        }
        keep -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::demos;

    #[test]
    fn texts_are_cut_at_tokens() {
        let model = demos().model(None).unwrap();
        let text = "Where is my card? I ordered it two weeks ago. 👍👍👍";
        let count = |text: &str| model.tokenizer.count(text, false);
        for keep in 0..=count(text) {
            for side in [Side::Left, Side::Right] {
                let cut = cut_text(model, text, keep, side);
                assert!(count(&cut) <= keep, "{keep} {cut:?}");
                let belongs = match side {
                    Side::Left => text.ends_with(&*cut),
                    Side::Right => text.starts_with(&*cut),
                };
                assert!(belongs, "{keep} {side:?} {cut:?}");
            }
        }
        assert_eq!(cut_text(model, text, count(text), Side::Left), text);
    }

    #[test]
    fn ids_that_are_no_text_stay() {
        let check = |keep, side, expected: &[TokenId]| {
            // A token before the first text and one behind it, then the second text.
            let mut ids = vec![100, 1, 2, 101, 3, 4];
            let truncation = Truncation { keep, side };
            let cut = truncation.apply_between("items", &mut ids, [0..1, 3..4]);
            match expected {
                [] => assert_eq!(cut.unwrap_err().param(), Some("truncate_prompt_tokens")),
                _ => assert_eq!(ids, expected, "{keep} {side:?}"),
            }
        };
        check(6, Side::Left, &[100, 1, 2, 101, 3, 4]);
        check(5, Side::Left, &[100, 2, 101, 3, 4]);
        check(3, Side::Left, &[100, 101, 4]);
        check(2, Side::Left, &[]);
        check(5, Side::Right, &[100, 1, 2, 101, 3]);
        check(3, Side::Right, &[100, 1, 101]);
        check(1, Side::Right, &[]);
    }

    #[test]
    fn text_around_a_cut_text_is_spared() {
        let model = demos().model(None).unwrap();
        let text = "word ".repeat(50);
        let around = |text: &str| Ok(model.tokenizer.count(&format!("<a>{text}<b>"), false));
        let truncation = Truncation {
            keep: 20,
            side: Side::Right,
        };
        let cut = truncation.fit(model, "input", &text, around).unwrap();
        assert!(!cut.is_empty() && text.starts_with(&*cut));
        assert!((15..=20).contains(&around(&cut).unwrap()));
        let tiny = Truncation {
            keep: 3,
            side: Side::Right,
        };
        let refused = tiny.fit(model, "input", &text, around).unwrap_err();
        assert_eq!(refused.param(), Some("truncate_prompt_tokens"));
        assert_eq!(tiny.fit(model, "input", "", |_| Ok(3)).unwrap(), "");
    }
}
