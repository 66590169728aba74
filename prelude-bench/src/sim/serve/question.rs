//! Reads a request's body: the prompt as made-up tokens, and the length of the output.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::{random::mix, sim::VOCABULARY};

/// Bytes of a text that count as one token.
const TOKEN_BYTES: usize = 4;
/// The length of an output that a client does not bound.
const DEFAULT_OUTPUT_TOKENS: u32 = 16;
/// Upper bound of the length of an output.
const MAX_OUTPUT_TOKENS: u64 = 65_536;

/// The fields with a prompt's texts, in the order in which servers lay them out, so that bodies
/// whose prompts begin alike have tokens that begin alike.
const FIELDS: [&str; 17] = [
    "instructions",
    "instruction",
    "template",
    "state",
    "query",
    "queries",
    "prompt",
    "messages",
    "input",
    "inputs",
    "text_1",
    "text_2",
    "documents",
    "texts",
    "items",
    "questions",
    "labels",
];

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A completion.
    Completion,
    /// A chat's message.
    Chat,
    /// The answer of one pass over a prompt.
    OnePass,
}

impl Form {
    /// Returns the form of a path's answers, if the path is an endpoint.
    pub(super) fn of(path: &str) -> Option<Self> {
        let path = path.strip_prefix("/v1").unwrap_or(path);
        Some(match path {
            "/completions" => Self::Completion,
            "/chat/completions" => Self::Chat,
            "/systemone" | "/decide" | "/decisions" | "/rerank" | "/score" | "/classify"
            | "/embeddings" | "/pooling" | "/moderations" => Self::OnePass,
            _ => return None,
        })
    }
}

/// A request as an engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Question {
    /// Token ids of the prompt, from 1 to [`VOCABULARY`].
    pub(super) tokens: Vec<u32>,
    /// Tokens of the output.
    pub(super) output_tokens: u32,
    /// True if the output is to come piece by piece.
    pub(super) streams: bool,
}

impl Question {
    /// Reads a body.
    ///
    /// # Errors
    /// If it is no JSON object, has no prompt, or asks for too many tokens; says which.
    pub(super) fn read(form: Form, body: &[u8]) -> Result<Self> {
        let body: Value = serde_json::from_slice(body).context("the body is no JSON")?;
        ensure!(body.is_object(), "the body is no JSON object");
        let mut prompt = PromptWriter::default();
        if let Some(salt) = body["cache_salt"].as_str() {
            prompt.text(salt);
            prompt.end_text();
        }
        for field in FIELDS {
            prompt.value(&body[field]);
        }
        prompt.end_text();
        ensure!(
            !prompt.tokens.is_empty(),
            "the body has no prompt: none of the fields {} has a text",
            FIELDS.join(", ")
        );
        let output_tokens = match form {
            Form::OnePass => 1,
            Form::Completion | Form::Chat => output_tokens(&body)?,
        };
        Ok(Self {
            tokens: prompt.tokens,
            output_tokens,
            streams: form != Form::OnePass && body["stream"].as_bool() == Some(true),
        })
    }
}

fn output_tokens(body: &Value) -> Result<u32> {
    let fields = ["max_completion_tokens", "max_tokens"];
    let asked = { fields.into_iter() }.find(|field| !body[field].is_null());
    let Some(field) = asked else {
        return Ok(DEFAULT_OUTPUT_TOKENS);
    };
    match body[field].as_u64() {
        Some(tokens @ 1..=MAX_OUTPUT_TOKENS) => Ok(tokens as u32),
        _ => bail!("`{field}` must be from 1 to {MAX_OUTPUT_TOKENS}"),
    }
}

/// Makes tokens of texts.
#[derive(Debug, Default)]
struct PromptWriter {
    tokens: Vec<u32>,
    /// The bytes that are no whole token yet.
    rest: Vec<u8>,
}

impl PromptWriter {
    /// Writes all texts and token ids within a value.
    fn value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter().for_each(|item| self.value(item)),
            Value::Object(fields) => fields.values().for_each(|field| self.value(field)),
            Value::Number(number) => {
                if let Some(id) = number.as_u64() {
                    self.end_text();
                    self.token(id);
                }
            }
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn text(&mut self, text: &str) {
        self.rest.extend_from_slice(text.as_bytes());
        let rest = std::mem::take(&mut self.rest);
        let pieces = rest.chunks_exact(TOKEN_BYTES);
        self.rest = pieces.remainder().to_vec();
        pieces.for_each(|piece| self.piece(piece));
    }

    /// Makes a token of the bytes that are left.
    fn end_text(&mut self) {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() {
            self.piece(&rest);
        }
    }

    fn piece(&mut self, piece: &[u8]) {
        let number = piece
            .iter()
            .fold(1, |sum, &byte| sum << 8 | u64::from(byte));
        self.token(mix(number));
    }

    fn token(&mut self, number: u64) {
        self.tokens
            .push(1 + (number % u64::from(VOCABULARY - 1)) as u32);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(path: &str, body: &Value) -> Result<Question> {
        let form = Form::of(path).expect("an endpoint");
        Question::read(form, body.to_string().as_bytes())
    }

    #[test]
    fn bodies_whose_prompts_begin_alike_share_their_tokens() {
        let ask = |state: &str, question: &str| {
            let body = json!({"questions": [{"q": question}], "state": state});
            read("/v1/systemone", &body).unwrap()
        };
        let (one, other) = (
            ask(&"state ".repeat(40), "a?"),
            ask(&"state ".repeat(40), "b?"),
        );
        assert_eq!(one.tokens.len(), 61);
        assert_eq!(one.tokens[..60], other.tokens[..60]);
        assert_ne!(one.tokens[60], other.tokens[60]);
        assert_ne!(ask("x", "a?").tokens[0], one.tokens[0]);
        assert_eq!((one.output_tokens, one.streams), (1, false));
        let valid = |id: &u32| (1..VOCABULARY).contains(id);
        assert!(one.tokens.iter().all(valid));
    }

    #[test]
    fn completions_say_how_long_they_are() {
        let body = json!({"prompt": [5, 6, 40_000], "max_tokens": 3, "stream": true});
        let found = read("/v1/completions", &body).unwrap();
        assert_eq!(found.tokens, [6, 7, 1 + 40_000 % 31_999]);
        assert_eq!((found.output_tokens, found.streams), (3, true));
        let chat = json!({"messages": [{"role": "user", "content": "hello"}]});
        let found = read("/v1/chat/completions", &chat).unwrap();
        assert_eq!(found.output_tokens, DEFAULT_OUTPUT_TOKENS);
        let salted = json!({"prompt": [5], "cache_salt": "x"});
        assert_ne!(read("/completions", &salted).unwrap().tokens[0], 6);
    }

    #[test]
    fn bad_bodies_say_what_is_wrong() {
        let check = |body: &str, expected: &str| {
            let error = Question::read(Form::Completion, body.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check("{", "no JSON");
        check("[]", "no JSON object");
        check("{}", "no prompt");
        check(r#"{"prompt": "x", "max_tokens": 0}"#, "must be from 1 to");
        check(r#"{"prompt": "x", "max_tokens": "9"}"#, "must be from 1 to");
        assert_eq!(Form::of("/v1/nonsense"), None);
    }
}
