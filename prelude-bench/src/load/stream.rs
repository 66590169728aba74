//! Server-sent events of a completion or a chat, read as they arrive.

use std::time::Instant;

use serde::Deserialize;

/// Longest line of a stream that is read, in bytes.
const MAX_LINE: usize = 1 << 20;
/// Most texts of a stream whose times are kept: more than any model's context has tokens.
const MAX_TEXTS: usize = 1 << 22;
/// Longest beginning of a refusal's body that is kept, in bytes.
const MAX_REFUSAL: usize = 1_200;

/// A reader of one answer, fed with the pieces of its body. It keeps the times and counts of a
/// stream's events, and the beginning of a refusal; it is not fed with other bodies.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    line: Vec<u8>,
    /// The events that held generated text.
    pub(crate) texts: Vec<Text>,
    /// Generated tokens, as the server counts them at the end.
    completion_tokens: Option<u32>,
    /// Prompt tokens that the server says came from its cache.
    pub(crate) cached_tokens: Option<u32>,
    /// True if the stream ended as streams should.
    pub(super) is_done: bool,
    /// The message of an error event.
    pub(super) error: Option<String>,
    refusal: Vec<u8>,
}

/// An event with generated text, of one token or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Text {
    /// The time of its arrival.
    pub(crate) at: Instant,
    /// The text's length.
    pub(crate) bytes: usize,
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
    /// The text of a completion.
    text: Option<String>,
    /// The message of a chat.
    delta: Option<Delta>,
    /// The tokens of the event, if the client asked for them. A token that is no text of its own has
    /// only these.
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

impl Choice {
    /// Returns the bytes of generated text, or the tokens where they have no text.
    fn bytes(&self) -> usize {
        let content = self.delta.as_ref().and_then(|delta| delta.content.as_ref());
        let text = self.text.as_ref().or(content).map_or(0, String::len);
        text.max(self.token_ids.as_ref().map_or(0, Vec::len))
    }
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
    /// Returns the number of generated tokens, as the server counts them; else of events with text.
    pub(crate) fn tokens(&self) -> u32 {
        let texts = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.completion_tokens.unwrap_or(texts)
    }

    /// Returns the first characters of a refusal's body.
    pub(crate) fn refusal(&self) -> String {
        let text = String::from_utf8_lossy(&self.refusal);
        text.chars().take(300).collect()
    }

    /// Reads a piece of a refusal's body.
    pub(super) fn feed_refusal(&mut self, piece: &[u8]) {
        let room = MAX_REFUSAL - self.refusal.len();
        self.refusal.extend(piece.iter().take(room));
    }

    /// Reads a piece of a stream that came at `now`.
    pub(super) fn feed(&mut self, piece: &[u8], now: Instant) {
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
                self.event(data.trim_ascii(), now);
            }
        }
    }

    fn event(&mut self, data: &[u8], now: Instant) {
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
        // A token may be a part of a character and so have no text.
        let bytes = event.choices.iter().map(Choice::bytes).sum();
        if bytes > 0 && self.texts.len() < MAX_TEXTS {
            self.texts.push(Text { at: now, bytes });
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
    use std::time::Duration;

    use super::*;

    const COMPLETION: &str = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n: a comment\n\n\
        data: {\"choices\":[{\"text\":\"b\"}],\"usage\":null}\r\n\r\n\
        data: {\"choices\":[],\"usage\":{\"completion_tokens\":3,\
        \"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\ndata: [DONE]\n\n";
    const CHAT: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":null}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"b\"},\"finish_reason\":\"stop\"}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"completion_tokens\":3,\
        \"prompt_tokens_details\":{\"cached_tokens\":16}}}\n\ndata: [DONE]\n\n";

    #[test]
    fn events_are_read_however_they_are_cut() {
        let start = Instant::now();
        for stream in [COMPLETION, CHAT] {
            for size in 1..=stream.len() {
                let mut reader = Reader::default();
                for (i, piece) in (0..).zip(stream.as_bytes().chunks(size)) {
                    reader.feed(piece, start + Duration::from_millis(i));
                }
                let seen = (reader.texts.len(), reader.tokens(), reader.cached_tokens);
                assert_eq!(seen, (2, 3, Some(16)), "{size}");
                assert!(reader.is_done && reader.error.is_none());
                // Texts have the times of the pieces that end them.
                let text = |text: &str| {
                    let begin = stream.find(text).unwrap();
                    let end = begin + stream[begin..].find('\n').unwrap();
                    let at = start + Duration::from_millis((end / size) as u64);
                    Text { at, bytes: 1 }
                };
                assert_eq!(reader.texts, [text("\"a\""), text("\"b\"")], "{size}");
            }
        }
    }

    #[test]
    fn tokens_without_text_are_seen_by_their_ids() {
        let mut reader = Reader::default();
        for event in [
            "\"token_ids\":[7,8]",
            "\"token_ids\":[]",
            "\"token_ids\":null",
        ] {
            let line = format!("data: {{\"choices\":[{{\"text\":\"\",{event}}}]}}\n");
            reader.feed(line.as_bytes(), Instant::now());
        }
        let bytes: Vec<usize> = reader.texts.iter().map(|text| text.bytes).collect();
        assert_eq!(bytes, [2]);
    }

    #[test]
    fn errors_are_kept() {
        let mut reader = Reader::default();
        reader.feed(
            b"data: {\"error\":{\"message\":\"no room\"}}\n",
            Instant::now(),
        );
        assert!(reader.texts.is_empty());
        assert_eq!(reader.error.as_deref(), Some("no room"));
        let mut reader = Reader::default();
        reader.feed(b"data: {\n", Instant::now());
        assert!(reader.error.unwrap().contains("not JSON"));
        assert!(!reader.is_done);
    }

    #[test]
    fn the_beginning_of_a_refusal_is_kept() {
        let mut reader = Reader::default();
        for _ in 0..1_000 {
            reader.feed_refusal("no ré".as_bytes());
        }
        assert!(reader.refusal.len() <= MAX_REFUSAL);
        assert!(reader.refusal().starts_with("no réno ré"));
        assert_eq!(reader.refusal().chars().count(), 300);
    }
}
