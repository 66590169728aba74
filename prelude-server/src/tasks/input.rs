//! Texts and token ids as endpoints take them, and their way to ids.

use std::{borrow::Cow, fmt};

use prelude_core::{RowOutput, TokenId};
use prelude_text::shared_prefix::SharedPrompts;
use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json, value::RawValue};

use super::{
    conversation::{Conversation, ConversationFields},
    pair::encode_pair,
    place::{Place, check_bytes, check_ids, check_length, place},
    prepared::{Computed, Expected, Outputs, Prepared, prepare},
    submit::Ask,
    truncate::{Side, SwitchFields, Truncation, TruncationFields},
};
use crate::{
    admission::Growth,
    endpoint::Call,
    error::ApiError,
    served_model::ServedModel,
    wire::{NO_TEXT, OneOrMany, Text, described, request, wrong_type, wrong_value},
};

const KINDS: &str =
    "a string, a list of strings, a list of token ids or a list of lists of token ids";

/// A prompt or an input as it came. `Debug` prints its length.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Prompt<'a> {
    /// Text, to be encoded.
    Text(Cow<'a, str>),
    /// Two texts that are read together, of a classifier's inputs alone.
    Pair(Cow<'a, str>, Cow<'a, str>),
    /// Ids, used as given.
    Ids(Vec<TokenId>),
}

impl fmt::Debug for Prompt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Pair(a, b) => write!(f, "Pair({} and {} bytes)", a.len(), b.len()),
            Self::Ids(ids) => write!(f, "Ids({})", ids.len()),
        }
    }
}

/// Prompts as clients write them: text, texts, token ids, or lists of token ids; at least one.
#[derive(Clone, Debug)]
pub(crate) struct Prompts<'a>(pub(crate) Vec<Prompt<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Prompts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&'de RawValue>::deserialize(deserializer)?;
        parse_prompts(raw.get()).map(Self)
    }
}

described!(Prompts<'_>, "Prompts", |_| json_schema!({
    "description": "Text, texts, token ids, or lists of token ids.",
    "anyOf": prompt_kinds(),
}));

fn prompt_kinds() -> [Value; 4] {
    let id = || json!({ "type": "integer", "format": "uint32", "minimum": 0 });
    [
        json!({ "type": "string" }),
        json!({ "type": "array", "minItems": 1, "items": { "type": "string" } }),
        json!({ "type": "array", "minItems": 1, "items": id() }),
        json!({ "type": "array", "minItems": 1, "items": { "type": "array", "items": id() } }),
    ]
}

/// Inputs as clients write them: prompts, or texts and pairs of texts as transformers' pipelines take
/// them; at least one.
#[derive(Clone, Debug)]
pub(crate) struct Sequences<'a>(pub(crate) Vec<Prompt<'a>>);

/// A text, or a pair of texts, as an object.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "TextPair")]
#[serde(deny_unknown_fields)]
struct Sequence<'a> {
    #[serde(borrow)]
    text: Text<'a>,
    /// The second text, which a classifier reads together with the first.
    text_pair: Option<Text<'a>>,
}

impl<'a> From<Sequence<'a>> for Prompt<'a> {
    fn from(Sequence { text, text_pair }: Sequence<'a>) -> Self {
        match text_pair {
            Some(pair) => Self::Pair(text.0, pair.0),
            None => Self::Text(text.0),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Sequences<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const PAIRS: &str = "objects with a string `text` and perhaps a string `text_pair` alone";
        let raw = <&'de RawValue>::deserialize(deserializer)?.get();
        let wrong = |_| wrong_type(PAIRS);
        if raw.starts_with('{') {
            let one: Sequence<'a> = serde_json::from_str(raw).map_err(wrong)?;
            return Ok(Self(vec![one.into()]));
        }
        if raw.starts_with('[') && raw[1..].trim_start().starts_with('{') {
            let all: Vec<Sequence<'a>> = serde_json::from_str(raw).map_err(wrong)?;
            return Ok(Self(all.into_iter().map(Into::into).collect()));
        }
        parse_prompts(raw).map(Self)
    }
}

described!(Sequences<'_>, "Sequences", |generator| {
    let one = generator.subschema_for::<Sequence<'_>>();
    let many = json!({ "type": "array", "minItems": 1, "items": one });
    let kinds = prompt_kinds().into_iter().chain([one.to_value(), many]);
    json_schema!({
        "description": "Text, texts, token ids, or lists of token ids; of a classifier also pairs.",
        "anyOf": kinds.collect::<Vec<_>>(),
    })
});

/// Parses a JSON value as prompts.
///
/// # Errors
/// A value of another type, or an empty list.
fn parse_prompts<E: serde::de::Error>(raw: &str) -> Result<Vec<Prompt<'_>>, E> {
    let ids = |raw: &str| {
        serde_json::from_str::<Vec<TokenId>>(raw)
            .map_err(|_| wrong_type("a list of token ids: integers of at least 0"))
    };
    // The text is JSON already, so its first bytes tell what it is.
    let first = raw.as_bytes()[0];
    let second = raw[1..].trim_start().bytes().next();
    match (first, second) {
        (b'"', _) => {
            let text: Text<'_> = serde_json::from_str(raw).map_err(|_| wrong_value(NO_TEXT))?;
            Ok(vec![Prompt::Text(text.0)])
        }
        (b'[', Some(b']')) => Err(wrong_value("not be an empty list")),
        (b'[', Some(b'"')) => {
            let texts: Result<Vec<Text<'_>>, _> = serde_json::from_str(raw);
            let texts = texts.map_err(|e| match e.is_data() {
                true => wrong_type("a list of strings alone"),
                false => wrong_value(NO_TEXT),
            })?;
            Ok(texts.into_iter().map(|t| Prompt::Text(t.0)).collect())
        }
        (b'[', Some(b'[')) => {
            let lists: Vec<&RawValue> = serde_json::from_str(raw).map_err(|_| wrong_type(KINDS))?;
            let prompt = |list: &RawValue| Ok(Prompt::Ids(ids(list.get())?));
            lists.into_iter().map(prompt).collect()
        }
        (b'[', Some(b'-' | b'0'..=b'9')) => Ok(vec![Prompt::Ids(ids(raw)?)]),
        _ => Err(wrong_type(KINDS)),
    }
}

/// Texts to read.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct InputFields<'a> {
    #[serde(borrow)]
    input: Option<Sequences<'a>>,
    /// A second text for each of `input`, which a classifier reads together with the first.
    text_pair: Option<OneOrMany<Text<'a>>>,
    /// True by default for texts; a rendered conversation has its own special tokens.
    add_special_tokens: Option<bool>,
    /// Embeddings: true scales vectors to length 1. Classes: true gives probabilities, false logits.
    pub(crate) use_activation: Option<bool>,
}

request! {
    /// Texts to read, or a conversation in place of them, and how those that are too long are cut.
    struct InputsFields<'a> {
        input: InputFields<'a>,
        conversation: ConversationFields,
        truncation: TruncationFields,
        switch: SwitchFields,
    }
}

/// The way in which texts become ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoding {
    /// The field errors name.
    pub(crate) field: &'static str,
    /// True if texts get the tokenizer's special tokens.
    pub(crate) add_special_tokens: bool,
    /// The cut of prompts that are too long.
    pub(crate) truncation: Option<Truncation>,
}

/// Prompts to read, as a dialect found them in a request.
pub(crate) enum Given<'a> {
    /// `input`, or `messages` as a template renders them.
    Fields(Box<InputsFields<'a>>),
    /// Prompts of the field of this name, and the cut of those that are too long.
    Prompts(Vec<Prompt<'a>>, &'static str, Option<Truncation>),
}

/// Texts of one turn each, and what the request says of them.
pub(crate) struct Texts<'a> {
    pub(crate) texts: Vec<Cow<'a, str>>,
    /// The request's `escape_special_tokens`.
    pub(crate) escapes: Option<bool>,
    /// The cut of texts that are too long.
    pub(crate) truncation: Option<Truncation>,
}

impl<'a> Given<'a> {
    /// Computes an output behind each prompt. `before` says what is put before every text: a text is
    /// put behind it when its turn comes, and the first prompt that is too long ends the work, so a
    /// long beginning and many short texts cost no more than one of them.
    ///
    /// # Errors
    /// 400 naming the field; 400 `context_length_exceeded`; 400 `invalid_value` for ids where
    /// something is put before texts; the refusals and failures of [`prepare`] and
    /// [`Prepared::compute`].
    pub(crate) async fn compute<T>(
        self,
        ask: &Ask<'_>,
        before: impl FnOnce(&Inputs<'_>) -> Result<String, ApiError>,
        outputs: Outputs,
        read: impl Fn(RowOutput) -> Option<T>,
    ) -> Result<Computed<T>, ApiError> {
        let inputs = self.read(ask)?;
        if inputs.escapes == Some(true) {
            // The texts are encoded as they are.
            return Err(ApiError::special_tokens_not_kept_apart());
        }
        let before = before(&inputs)?;
        let prepared = prepare(ask, inputs.expected(&before), || {
            let field = inputs.encoding.field;
            let prompts = inputs.encode(ask, &before)?;
            let numbers = outputs.unit.count(&prompts) as u64 * u64::from(outputs.width);
            let numbers = Growth::Numbers(numbers, outputs.printed);
            ask.call.reservation.grow(numbers)?;
            Prepared::with_head(ask.model, field, prompts, &outputs.head)
        });
        prepared.await?.compute(ask, read).await
    }

    /// Returns the inputs as texts of one turn each.
    ///
    /// # Errors
    /// 400 naming what cannot be put into a turn.
    pub(crate) fn texts(self, ask: &Ask<'_>) -> Result<Texts<'a>, ApiError> {
        let Inputs {
            source,
            encoding,
            escapes,
        } = self.read(ask)?;
        let prompts = match source {
            Source::Messages(_) => return Err(ApiError::unsupported_parameter("messages")),
            Source::Input(_) if !encoding.add_special_tokens => {
                return Err(ApiError::unsupported_parameter("add_special_tokens"));
            }
            Source::Input(prompts) => prompts,
        };
        let text = |prompt| match prompt {
            Prompt::Text(text) => Ok(text),
            Prompt::Ids(_) | Prompt::Pair(..) => {
                let must_be = "a string or a list of strings, to be put into the chat template";
                Err(ApiError::invalid_type("input", must_be))
            }
        };
        Ok(Texts {
            texts: prompts.into_iter().map(text).collect::<Result<_, _>>()?,
            escapes,
            truncation: encoding.truncation,
        })
    }

    /// Takes `input` or `messages`.
    fn read(self, ask: &Ask<'_>) -> Result<Inputs<'a>, ApiError> {
        let model = ask.model;
        let fields = match self {
            Self::Fields(fields) => *fields,
            Self::Prompts(prompts, field, truncation) => {
                return Ok(Inputs {
                    source: Source::Input(prompts),
                    encoding: Encoding {
                        field,
                        add_special_tokens: true,
                        truncation,
                    },
                    escapes: None,
                });
            }
        };
        let how = (Side::Right, false);
        let truncation = Truncation::of_texts(fields.truncation, Some(fields.switch), model, how)?;
        let chat = fields.conversation;
        let escapes = chat.escape_special_tokens;
        let (source, field, escapes) = match (fields.input.input, chat.messages.is_some()) {
            (Some(_), true) => {
                let must = "not be combined with `input`";
                return Err(ApiError::invalid_value("messages", must));
            }
            (None, true) if fields.input.text_pair.is_some() => {
                let must = "be left out beside `messages`: it goes with `input`";
                return Err(ApiError::invalid_value("text_pair", must));
            }
            (None, false) => return Err(ApiError::missing_field("input")),
            (Some(prompts), false) => {
                let prompts = paired(prompts.0, fields.input.text_pair)?;
                (Source::Input(prompts), "input", escapes)
            }
            (None, true) => {
                let chat = Conversation::new(&ask.call.app.config, model, chat, false)?;
                // The conversation obeys `escape_special_tokens`.
                (Source::Messages(Box::new(chat)), "messages", None)
            }
        };
        let special = fields.input.add_special_tokens;
        Ok(Inputs {
            encoding: Encoding {
                field,
                // A rendered template has its own.
                add_special_tokens: special.unwrap_or(field == "input"),
                truncation,
            },
            source,
            escapes,
        })
    }
}

/// Prompts to read, and the way in which those of them that are texts become ids.
pub(crate) struct Inputs<'a> {
    source: Source<'a>,
    pub(crate) encoding: Encoding,
    /// The request's `escape_special_tokens`.
    escapes: Option<bool>,
}

enum Source<'a> {
    Input(Vec<Prompt<'a>>),
    Messages(Box<Conversation>),
}

impl Inputs<'_> {
    /// Refuses pairs, which only a classification head reads.
    ///
    /// # Errors
    /// 400 `invalid_type`.
    pub(crate) fn check_no_pairs(&self) -> Result<(), ApiError> {
        let is_pair = |prompt: &Prompt<'_>| matches!(prompt, Prompt::Pair(..));
        match &self.source {
            Source::Input(prompts) if prompts.iter().any(is_pair) => {
                Err(ApiError::invalid_type(self.encoding.field, KINDS))
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the inputs are texts, before which others can be put: neither ids nor a
    /// conversation.
    pub(crate) fn are_texts(&self) -> bool {
        let is_text = |prompt: &Prompt<'_>| matches!(prompt, Prompt::Text(_));
        matches!(&self.source, Source::Input(prompts) if prompts.iter().all(is_text))
    }

    /// Returns the size of the request, with `before` put before each text.
    fn expected(&self, before: &str) -> Expected {
        let (prompts, bytes) = match &self.source {
            Source::Input(prompts) => (prompts.len(), bytes(prompts, before)),
            Source::Messages(chat) => (1, chat.bytes()),
        };
        Expected {
            prompts,
            rows: 0,
            bytes,
        }
    }

    /// Encodes the inputs within the room of the call, with `before` put before every text.
    fn encode(self, ask: &Ask<'_>, before: &str) -> Result<SharedPrompts, ApiError> {
        let (call, model, encoding) = (ask.call, ask.model, self.encoding);
        let (special, truncation) = (encoding.add_special_tokens, encoding.truncation);
        let prompts = match self.source {
            Source::Input(prompts) => prompts,
            Source::Messages(chat) => {
                let rendered = chat.encode(model, special, truncation, true)?;
                call.note_cut(rendered.is_cut);
                vec![Prompt::Ids(rendered.ids)]
            }
        };
        let is_ids = |prompt: &Prompt<'_>| matches!(prompt, Prompt::Ids(_));
        if !before.is_empty() && prompts.iter().any(is_ids) {
            let must = "be text where an instruction or prompt is to precede it";
            return Err(ApiError::invalid_value(encoding.field, must));
        }
        let fits = |place: Place, len, is_cut| {
            call.note_cut(is_cut);
            check_length(place, len, 0, model)?;
            call.reservation.grow(Growth::Tokens(len))
        };
        let prompts = encode_each(model, prompts, encoding, before, fits)?;
        Ok(SharedPrompts::after(Vec::new(), prompts))
    }
}

/// Puts second texts to the texts of `input`.
fn paired<'a>(
    input: Vec<Prompt<'a>>,
    second: Option<OneOrMany<Text<'a>>>,
) -> Result<Vec<Prompt<'a>>, ApiError> {
    let Some(second) = second.map(OneOrMany::into_vec) else {
        return Ok(input);
    };
    if input.len() != second.len() {
        let (n, m) = (second.len(), input.len());
        let must = format!("have as many texts as `input` ({m}); it has {n}");
        return Err(ApiError::invalid_value("text_pair", must));
    }
    let pair = |(first, second): (Prompt<'a>, Text<'a>)| match first {
        Prompt::Text(first) => Ok(Prompt::Pair(first, second.0)),
        Prompt::Pair(..) | Prompt::Ids(_) => {
            let must = "be left out where `input` has pairs or token ids";
            Err(ApiError::invalid_value("text_pair", must))
        }
    };
    input.into_iter().zip(second).map(pair).collect()
}

/// Encodes texts and checks ids, in order, on the encode pool. No result is empty. Lengths are the
/// caller's to check.
///
/// # Errors
/// 400 for an id outside the vocabulary or a prompt without tokens, 429 if the encode pool is
/// full.
pub(crate) async fn encode(
    call: &Call,
    model: &ServedModel,
    prompts: Vec<Prompt<'_>>,
    encoding: Encoding,
) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let bytes = bytes(&prompts, "");
    let work = || encode_each(model, prompts, encoding, "", |_, _, _| Ok(()));
    call.encode(bytes, work).await?
}

/// Cuts prompts as `encoding` asks, and encodes none: for answers that show prompts as they were
/// cut.
///
/// # Errors
/// 400 naming the field, 429 if the encode pool is full.
pub(crate) async fn cut<'a>(
    call: &Call,
    model: &ServedModel,
    prompts: Vec<Prompt<'a>>,
    encoding: Encoding,
) -> Result<Vec<Prompt<'a>>, ApiError> {
    if encoding.truncation.is_none() {
        return Ok(prompts);
    }
    let cut = |prompt| {
        let (prompt, is_cut) = cut_one(model, prompt, encoding, "")?;
        call.note_cut(is_cut);
        Ok(prompt)
    };
    let bytes = bytes(&prompts, "");
    let work = || prompts.into_iter().map(cut).collect();
    call.app.encoder.run(bytes, work).await?
}

/// Encodes prompts with `before` put before every text, and checks their ids. `check` sees each
/// prompt's place, its length and whether it was cut before the next prompt is read.
fn encode_each(
    model: &ServedModel,
    prompts: Vec<Prompt<'_>>,
    encoding: Encoding,
    before: &str,
    check: impl Fn(Place, usize, bool) -> Result<(), ApiError>,
) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let count = prompts.len();
    let place = |index| place(encoding.field, index, count);
    if encoding.truncation.is_none() {
        for (index, prompt) in prompts.iter().enumerate() {
            if let Prompt::Text(text) = prompt {
                check_bytes(place(index), text.len() + before.len(), model)?;
            }
        }
    }
    let encode_one = |(index, prompt)| {
        let (prompt, mut is_cut) = cut_one(model, prompt, encoding, before)?;
        let ids = match prompt {
            Prompt::Ids(ids) => {
                check_ids(place(index), &ids, model)?;
                ids
            }
            Prompt::Pair(first, second) => {
                let place = place(index);
                if !encoding.add_special_tokens {
                    let must = "not be false where pairs are read: the tokens between their texts \
                        are special";
                    return Err(ApiError::invalid_value("add_special_tokens", must));
                }
                let pair = encode_pair(model, place, (&first, &second), encoding.truncation)?;
                is_cut = pair.is_cut;
                pair.ids
            }
            Prompt::Text(mut text) => {
                if !before.is_empty() {
                    text.to_mut().insert_str(0, before);
                }
                let mut ids = Vec::with_capacity(text.len() / 4 + 4);
                let special = encoding.add_special_tokens;
                model.tokenizer.encode_into(&text, special, &mut ids);
                check_ids(place(index), &ids, model)?;
                ids
            }
        };
        check(place(index), ids.len(), is_cut)?;
        Ok(ids)
    };
    prompts.into_iter().enumerate().map(encode_one).collect()
}

/// Returns about how much text there is to encode.
fn bytes(prompts: &[Prompt<'_>], before: &str) -> usize {
    let bytes = prompts.iter().map(|prompt| match prompt {
        Prompt::Text(text) => text.len().saturating_add(before.len()),
        Prompt::Pair(first, second) => first.len().saturating_add(second.len()),
        Prompt::Ids(_) => 0,
    });
    bytes.fold(0, usize::saturating_add)
}

/// Cuts ids, or so much of a text that it fits with `before` and special tokens around it. True if
/// something was cut off.
fn cut_one<'a>(
    model: &ServedModel,
    prompt: Prompt<'a>,
    encoding: Encoding,
    before: &str,
) -> Result<(Prompt<'a>, bool), ApiError> {
    let Some(truncation) = &encoding.truncation else {
        return Ok((prompt, false));
    };
    let text = match prompt {
        Prompt::Ids(mut ids) => {
            let is_cut = truncation.cuts(ids.len());
            truncation.apply(&mut ids);
            return Ok((Prompt::Ids(ids), is_cut));
        }
        // The tokenizer cuts both texts of a pair.
        Prompt::Pair(..) => return Ok((prompt, false)),
        Prompt::Text(text) => text,
    };
    let special = encoding.add_special_tokens;
    let measure = |text: &str| match before {
        "" => Ok(model.tokenizer.count(text, special)),
        before => Ok(model.tokenizer.count(&format!("{before}{text}"), special)),
    };
    let cut = match truncation.fit(model, encoding.field, &text, measure)? {
        Cow::Borrowed(_) => None,
        Cow::Owned(cut) => Some(cut),
    };
    let is_cut = cut.is_some();
    Ok((Prompt::Text(cut.map_or(text, Cow::Owned)), is_cut))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Unknown, from_raw};

    fn check(raw: &str, expected: Result<Vec<Prompt<'_>>, &str>) {
        let found: Result<Prompts<'_>, _> = from_raw(raw, "prompt", &mut Unknown::default());
        let found = found.map(|prompts| prompts.0);
        match expected {
            Ok(prompts) => assert_eq!(found.unwrap(), prompts, "{raw}"),
            Err(part) => {
                let error = found.unwrap_err();
                assert!(error.message().contains(part), "{raw}: {error}");
                assert_eq!((error.status(), error.param()), (400, Some("prompt")));
            }
        }
    }

    #[test]
    fn takes_four_shapes() {
        let text = |t: &'static str| Prompt::Text(t.into());
        check(r#""a\n""#, Ok(vec![text("a\n")]));
        check(r#"[ "a", "" ]"#, Ok(vec![text("a"), text("")]));
        check("[1, 2]", Ok(vec![Prompt::Ids(vec![1, 2])]));
        let lists = vec![Prompt::Ids(vec![1]), Prompt::Ids(vec![])];
        check("[ [1],[]]", Ok(lists));
    }

    #[test]
    fn refuses_other_shapes() {
        check("[]", Err("empty list"));
        check("[ ]", Err("empty list"));
        check("3", Err("a string, a list"));
        check("{}", Err("a string, a list"));
        check("true", Err("a string, a list"));
        check("[true]", Err("a string, a list"));
        check(r#"["a",1]"#, Err("list of strings alone"));
        check(r#"[1,"a"]"#, Err("token ids"));
        check("[-1]", Err("token ids"));
        check("[1.5]", Err("token ids"));
        check("[4294967296]", Err("token ids"));
        check("[[1],2]", Err("token ids"));
        check(r#""\ud800""#, Err("surrogate pair"));
        check(r#"["a","\udc00 b"]"#, Err("surrogate pair"));
    }
}
