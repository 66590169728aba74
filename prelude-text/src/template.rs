//! Chat templates: messages to prompt text, as the model's own template says.
//!
//! Published templates are written for Jinja2 under Python. This module renders them with minijinja
//! and Python's conventions: block trimming, Python string methods, `None`/`True` and float spellings,
//! `raise_exception`, `strftime_now` (UTC), and a `tojson` that writes what `json.dumps` with
//! `ensure_ascii=False` writes. The work a template may do is bounded by fuel.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
};

use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};
use thiserror::Error as ThisError;

mod content;
mod python;

/// The number of instructions that a rendering may execute. All renderings of a template that comes
/// with a request may together execute about as many, since the request decides how many renderings
/// there are. A long chat (10,000 messages through a template of a hundred instructions) needs a
/// tenth of them; executing all of them takes well under a second.
const FUEL: u64 = 10_000_000;

pub(crate) const NAME: &str = "template";

/// A compiled chat template together with the special tokens it may print.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    /// The bounds of a template that came with a request.
    bounds: Option<Bounds>,
    /// True if the template reads contents of messages as lists of parts alone.
    reads_parts: bool,
}

/// The bounds of a template that came with a request.
#[derive(Debug)]
struct Bounds {
    /// Upper bound of the bytes of one rendering.
    bytes: usize,
    /// The number of instructions that all renderings have executed.
    spent: AtomicU64,
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
    /// The template printed too much.
    #[error("the chat template prints more than {0} bytes")]
    TooLong(usize),
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
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.set_formatter(python::format_as_python);
        env.add_filter("tojson", python::tojson);
        env.add_filter("string", |value: &Value| python::python_str(value));
        env.add_function("raise_exception", raise_exception);
        env.add_function("strftime_now", strftime_now);
        for (name, token) in special_tokens {
            env.add_global(name.to_owned(), Value::from(token));
        }
        add_template(&mut env, source)?;
        Ok(Self {
            env,
            source: source.to_owned(),
            bounds: None,
            reads_parts: false,
        }
        .with_content_form())
    }

    /// Compiles a template of one request for the same model. The template may print at most
    /// `max_bytes` in one rendering, and its renderings share one limit of instructions.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn replaced(&self, source: &str, max_bytes: usize) -> Result<Self, TemplateError> {
        let mut env = self.env.clone();
        add_template(&mut env, source)?;
        Ok(Self {
            env,
            source: source.to_owned(),
            bounds: Some(Bounds {
                bytes: max_bytes,
                spent: AtomicU64::new(0),
            }),
            reads_parts: false,
        }
        .with_content_form())
    }

    fn with_content_form(mut self) -> Self {
        self.reads_parts = self.needs_parts();
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
        let messages = match self.reads_parts {
            true => Value::from_serialize(content::with_parts(inputs.messages)),
            false => Value::from_serialize(inputs.messages),
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
        let Some(bounds) = &self.bounds else {
            return template.render(context).map_err(|e| classify(&e));
        };
        // The last rendering may begin with little left and execute as much as any other.
        if bounds.spent.load(Ordering::Relaxed) >= FUEL {
            return Err(TemplateError::TooCostly);
        }
        let mut out = Bounded {
            text: Vec::new(),
            room: bounds.bytes,
            is_full: false,
        };
        match template.render_captured_to(context, &mut out) {
            Ok(rendered) => {
                let fuel = rendered.state().fuel_levels();
                let (spent, _) = fuel.expect("fuel was set in `new`");
                bounds.spent.fetch_add(spent, Ordering::Relaxed);
                drop(rendered);
                Ok(String::from_utf8(out.text).expect("templates print text"))
            }
            Err(_) if out.is_full => Err(TemplateError::TooLong(bounds.bytes)),
            Err(error) => Err(classify(&error)),
        }
    }
}

/// Creates an environment with the block trimming of published templates, without HTML escapes, in
/// which a rendering may execute `fuel` instructions.
pub(crate) fn environment(fuel: u64) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_fuel(Some(fuel));
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env
}

/// Compiles `source` as the template [`NAME`] of `env`.
pub(crate) fn add_template(
    env: &mut Environment<'static>,
    source: &str,
) -> Result<(), TemplateError> {
    env.add_template_owned(NAME, source.to_owned())
        .map_err(|e| TemplateError::Syntax {
            line: e.line().unwrap_or(0),
            what: e
                .detail()
                .map_or_else(|| e.kind().to_string(), str::to_owned),
        })
}

/// A writer of text of at most as many bytes as there is room for.
struct Bounded {
    text: Vec<u8>,
    room: usize,
    /// True if a write did not fit.
    is_full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.room {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.room -= bytes.len();
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
        what: error.kind().to_string(),
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, "raised").with_source(Raised(message)))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    jiff::fmt::strtime::format(format, &now)
        .map_err(|_| Error::new(ErrorKind::InvalidOperation, "unknown strftime directive"))
}

/// Returns the template variables for prompts whose first token is the answer.
pub fn no_thinking() -> Map<String, Json> {
    Map::from_iter([("enable_thinking".to_owned(), Json::Bool(false))])
}

#[cfg(test)]
mod tests;
