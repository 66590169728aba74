//! Server-sent events of a completion, read as they arrive.

use serde::Deserialize;

/// Longest line of a stream that is read, in bytes.
const MAX_LINE: usize = 1 << 20;

/// A reader of one stream, fed with the pieces of its body.
#[derive(Debug, Default)]
pub(super) struct Reader {
    line: Vec<u8>,
    /// Events that held generated text or a token.
    pub(super) texts: u32,
    /// Generated tokens, as the server counts them at the end.
    pub(super) completion_tokens: Option<u32>,
    /// Prompt tokens that the server says came from its cache.
    pub(super) cached_tokens: Option<u32>,
    /// True if the stream ended as streams should.
    pub(super) is_done: bool,
    /// The message of an error event.
    pub(super) error: Option<String>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<Fault>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
}

#[derive(Deserialize)]
struct Usage {
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct Fault {
    #[serde(default)]
    message: String,
}

impl Reader {
    /// Reads a piece of the body; returns true if it held generated text.
    pub(super) fn feed(&mut self, piece: &[u8]) -> bool {
        let before = self.texts;
        for &byte in piece {
            if byte != b'\n' {
                // A line that is too long is no event of ours: its end is dropped.
                if self.line.len() < MAX_LINE {
                    self.line.push(byte);
                }
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if let Some(data) = line.strip_prefix(b"data:") {
                self.event(data.trim_ascii());
            }
        }
        self.texts > before
    }

    fn event(&mut self, data: &[u8]) {
        if data == b"[DONE]" {
            self.is_done = true;
            return;
        }
        let event: Event = match serde_json::from_slice(data) {
            Ok(event) => event,
            Err(error) => {
                self.error = Some(format!("an event is not JSON: {error}"));
                return;
            }
        };
        // A token may be a part of a character and so have no text: an event with a choice counts
        // unless it only brings the usage.
        if event.choices.iter().any(|choice| !choice.text.is_empty()) {
            self.texts += 1;
        }
        if let Some(usage) = event.usage {
            self.completion_tokens = usage.completion_tokens.or(self.completion_tokens);
            let cached = usage.prompt_tokens_details.and_then(|d| d.cached_tokens);
            self.cached_tokens = cached.or(self.cached_tokens);
        }
        if let Some(fault) = event.error {
            self.error = Some(fault.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: a comment\n\n\
        data: {\"choices\":[{\"text\":\"b\"}],\"usage\":null}\r\n\r\n\
        data: {\"choices\":[],\"usage\":{\"completion_tokens\":3,\
        \"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\ndata: [DONE]\n\n";

    #[test]
    fn events_are_read_however_they_are_cut() {
        for size in 1..STREAM.len() {
            let mut reader = Reader::default();
            let pieces = STREAM.as_bytes().chunks(size);
            let texts = pieces.filter(|piece| reader.feed(piece)).count();
            assert!(texts <= 2);
            let seen = (reader.texts, reader.completion_tokens, reader.cached_tokens);
            assert_eq!(seen, (2, Some(3), Some(16)), "{size}");
            assert!(reader.is_done && reader.error.is_none());
        }
    }

    #[test]
    fn errors_are_kept() {
        let mut reader = Reader::default();
        assert!(!reader.feed(b"data: {\"error\":{\"message\":\"no room\"}}\n"));
        assert_eq!(reader.error.as_deref(), Some("no room"));
        let mut reader = Reader::default();
        assert!(!reader.feed(b"data: {\n"));
        assert!(reader.error.unwrap().contains("not JSON"));
        assert!(!reader.is_done);
    }
}
