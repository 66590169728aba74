//! Chat templates: messages to prompt text, as the model's own template says.
//!
//! Published templates are written for Jinja2 under Python, as transformers sets it up. This module
//! renders them with minijinja, and puts in what that lacks: Python's methods and spellings of values,
//! `generation` blocks, `%`, `raise_exception`, `strftime_now` (UTC), `json.dumps`. A corpus of
//! templates is compared with Jinja2 byte for byte.
//!
//! Templates come with checkpoints, and are trusted as much. The instructions of a rendering are
//! bounded by fuel, and so is a text that one function makes; what the operators `~` and `+` make of
//! texts again and again is not.

use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};
use thiserror::Error as ThisError;

pub(crate) use self::python::push_float;
use self::{content::Forms, python::Explained};

mod content;
mod jinja;
mod methods;
mod percent;
mod python;
mod rewrite;

/// The number of instructions that a rendering may execute. A long chat (10,000 messages through a template of a hundred instructions) needs a
/// tenth of them; executing all of them takes well under a second.
const FUEL: u64 = 10_000_000;

pub(crate) const NAME: &str = "template";

/// A compiled chat template together with the special tokens it may print.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    /// The forms in which the template reads contents of messages.
    forms: Forms,
}

/// The input of a chat template.
#[derive(Clone, Copy, Debug)]
pub struct ChatInputs<'a> {
    /// The messages, as JSON objects.
    pub messages: &'a [Json],
    /// The functions that the model may call; the template sees `none` if there are none.
    pub tools: Option<&'a [Json]>,
    /// The documents for retrieval templates; the template sees `none` if there are none.
    pub documents: Option<&'a [Json]>,
    /// True if the prompt ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`, which cannot replace the other fields.
    pub kwargs: &'a Map<String, Json>,
}

/// The reason why a template gave no prompt.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is not a template.
    #[error("the chat template does not parse: line {line}: {what}")]
    Syntax {
        /// Line of the source, from 1.
        line: usize,
        /// The problem in this line.
        what: String,
    },
    /// The template itself refused the messages.
    #[error("the chat template refused the messages: {0}")]
    Raised(String),
    /// The template could not cope with the messages.
    #[error("the chat template failed on these messages: line {line}: {what}")]
    Failed {
        /// Line of the source, from 1.
        line: usize,
        /// The problem in this line.
        what: String,
    },
    /// The template ran out of fuel.
    #[error("the chat template did not finish within its limit of {FUEL} instructions")]
    TooCostly,
}

/// The message of `raise_exception`, which is found in the error's chain of causes.
#[derive(Debug, ThisError)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Compiles `source`. `special_tokens` (`bos_token`, `eos_token`, ..) become variables.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new<'a>(
        source: &str,
        special_tokens: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, TemplateError> {
        let mut env = environment(FUEL);
        for (name, token) in special_tokens {
            env.add_global(name.to_owned(), Value::from(token));
        }
        add_template(&mut env, source)?;
        Ok(Self {
            env,
            source: source.to_owned(),
            forms: Forms::default(),
        }
        .with_forms())
    }

    fn with_forms(mut self) -> Self {
        self.forms = self.probed();
        self
    }

    /// Returns the template's source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a prompt. Special tokens in it are text until it is encoded. Contents that are strings
    /// are shown to the template as lists of one part where it reads nothing else.
    ///
    /// # Errors
    /// [`TemplateError`], never [`TemplateError::Syntax`]. Its message names the template's line,
    /// and nothing of the messages except what the template itself raised.
    pub fn render(&self, inputs: &ChatInputs<'_>) -> Result<String, TemplateError> {
        // The reference passes `None` for absent tools and documents, and templates ask both
        // `if tools` and `if tools is not none`.
        let or_none = |list: Option<&[Json]>| match list {
            Some(list) => Value::from_serialize(list),
            None => Value::from(()),
        };
        let messages = match self.forms.texts {
            true => Value::from_serialize(inputs.messages),
            false => Value::from_serialize(content::with_parts(inputs.messages)),
        };
        let fixed = [
            ("messages", messages),
            ("tools", or_none(inputs.tools)),
            ("documents", or_none(inputs.documents)),
            (
                "add_generation_prompt",
                Value::from(inputs.add_generation_prompt),
            ),
        ];
        let kwargs = inputs
            .kwargs
            .iter()
            .filter(|(name, _)| fixed.iter().all(|(taken, _)| taken != name))
            .map(|(name, value)| (name.as_str(), Value::from_serialize(value)));
        let context: Value = kwargs.chain(fixed.iter().cloned()).collect();
        let template = self
            .env
            .get_template(NAME)
            .expect("`new` added the template under this name");
        template.render(context).map_err(|e| classify(&e))
    }
}

/// Creates an environment with the block trimming of published templates and what they expect of
/// transformers' Jinja2, without HTML escapes, in which a rendering may execute `fuel` instructions.
pub(crate) fn environment(fuel: u64) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_fuel(Some(fuel));
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    jinja::extend(&mut env);
    env
}

/// Compiles `source` as the template [`NAME`] of `env`.
pub(crate) fn add_template(
    env: &mut Environment<'static>,
    source: &str,
) -> Result<(), TemplateError> {
    env.add_template_owned(NAME, rewrite::rewritten(source).into_owned())
        .map_err(|e| TemplateError::Syntax {
            line: e.line().unwrap_or(0),
            what: e
                .detail()
                .map_or_else(|| e.kind().to_string(), str::to_owned),
        })
}

pub(crate) fn classify(error: &Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(at) = cause {
        if let Some(Raised(message)) = at.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        cause = at.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::TooCostly;
    }
    TemplateError::Failed {
        line: error.line().unwrap_or(0),
        what: explained(error),
    }
}

/// Says what went wrong, in words that hold nothing of the messages: the engine's own where they
/// name methods, filters and types of values alone.
fn explained(error: &Error) -> String {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(at) = cause {
        if let Some(Explained(what)) = at.downcast_ref() {
            return what.clone();
        }
        cause = at.source();
    }
    use ErrorKind::{
        InvalidOperation, MissingArgument, TooManyArguments, UnknownFilter, UnknownFunction,
        UnknownMethod, UnknownTest,
    };
    match (error.kind(), error.detail()) {
        (InvalidOperation, Some(what)) if what.starts_with("tried to use ") => what.to_owned(),
        (UnknownMethod, Some(what)) => what.to_owned(),
        (UnknownFilter | UnknownTest | UnknownFunction, Some(what)) => {
            format!("{}: {what}", error.kind())
        }
        (MissingArgument | TooManyArguments, Some(what)) => format!("{}: {what}", error.kind()),
        (kind, _) => kind.to_string(),
    }
}

/// Returns the template variables for prompts whose first token is the answer.
pub fn no_thinking() -> Map<String, Json> {
    Map::from_iter([("enable_thinking".to_owned(), Json::Bool(false))])
}

#[cfg(test)]
mod tests;
