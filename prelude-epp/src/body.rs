//! The prefix keys of requests: what a body's prompts begin with.
//!
//! A key is a sequence of bytes in the order in which a server lays out the prompt, so that
//! requests whose prompts share a beginning have keys that share one. It has none of the words that
//! a server's template adds, since these are the same for all requests of an endpoint.
//!
//! | endpoint | key |
//! | --- | --- |
//! | `systemone` | instructions, state, questions |
//! | `decisions` | input, questions |
//! | `rerank` | instruction, query, documents |
//! | `score` | query, items; or instruction, queries, documents |
//! | `classify`, `embeddings`, `pooling`, `moderations` | template up to its text, inputs or messages |
//! | `completions` | prompts |
//! | `chat/completions` | system message, tools, messages |
//! | others, and what is no JSON | the whole body |
//!
//! Texts are hashed where they lie in the body, piece by piece between their escapes: nothing is
//! copied.

mod fields;
mod layout;
mod text;

use std::{borrow::Cow, hash::Hasher as _};

use prelude_router::ByteHasher;
use serde_json::value::RawValue;

use self::{fields::Fields, layout::Layout};

/// A receiver of a key's bytes.
pub trait KeySink {
    /// Takes the next bytes.
    fn push(&mut self, bytes: &[u8]);
}

impl KeySink for ByteHasher {
    fn push(&mut self, bytes: &[u8]) {
        Self::push(self, bytes);
    }
}

impl KeySink for Vec<u8> {
    fn push(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A request's body, read as far as a pick needs.
#[derive(Debug)]
pub struct Body<'a> {
    bytes: &'a [u8],
    /// The fields of the body; `None` if it is no JSON object.
    fields: Option<Box<Fields<'a>>>,
    layout: Layout,
}

impl<'a> Body<'a> {
    /// Reads the body of a request to `path`. A body that is no JSON object is no error: its bytes
    /// are the key.
    #[must_use]
    pub fn new(path: &str, bytes: &'a [u8]) -> Self {
        let layout = Layout::of(path);
        // A list would be taken for the fields in their order.
        let is_object = bytes.trim_ascii_start().starts_with(b"{");
        let fields = match layout {
            Layout::Bytes => None,
            _ if !is_object => None,
            _ => serde_json::from_slice(bytes).ok(),
        };
        Self {
            bytes,
            fields,
            layout,
        }
    }

    /// Returns the name of the model; adapters have names of their own.
    #[must_use]
    pub fn model(&self) -> Option<Cow<'a, str>> {
        text::decoded(self.fields.as_ref()?.model?)
    }

    /// Returns the salt that separates the caches of requests.
    #[must_use]
    pub fn cache_salt(&self) -> Option<Cow<'a, str>> {
        text::decoded(self.fields.as_ref()?.cache_salt?)
    }

    /// Returns a number that stands for the field `user`.
    #[must_use]
    pub fn user(&self) -> Option<u64> {
        Some(user_number(self.fields.as_ref()?.user?.get()))
    }

    /// Returns the greatest number of tokens that the answer may have, if it is known: 1 for what
    /// one pass over the prompt answers.
    #[must_use]
    pub fn max_output_tokens(&self) -> Option<u32> {
        let fields = self.fields.as_ref()?;
        let number = |raw: Option<&RawValue>| raw?.get().parse().ok();
        match self.layout {
            Layout::Bytes => None,
            Layout::Completions => Some(number(fields.max_tokens).unwrap_or(16)),
            Layout::Chat => number(fields.max_completion_tokens.or(fields.max_tokens)),
            _ => Some(1),
        }
    }

    /// Writes the key.
    pub fn write_key(&self, sink: &mut impl KeySink) {
        match &self.fields {
            Some(fields) => self.layout.write(fields, sink),
            None => sink.push(self.bytes),
        }
    }
}

/// Returns a number that stands for a user's name: the same in every process of this version.
#[must_use]
pub fn user_number(name: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(name.as_bytes());
    hasher.finish()
}

#[cfg(test)]
mod tests;
