//! Conversations in the forms of `ShareGPT` and LMSYS-Chat-1M (Zheng et al., ICLR 2024), the sets
//! that LAPS takes its prompts from: texts, and no times.
//!
//! - `ShareGPT`: a JSON array of objects with `conversations`, a list of `{from, value}`.
//! - LMSYS-Chat-1M, exported as JSON lines: objects with `conversation`, a list of
//!   `{role, content}`.
//!
//! Each message that an assistant answers is a request, whose prompt is the conversation up to
//! there. Of a text nothing is kept but its length, four bytes for a token, and a hash, so that
//! prompts share what their conversations share. Conversations begin one a second on average, and
//! a turn comes 30 s after the one before: replay them at another rate to get another load.

use std::{fmt, io::Read};

use anyhow::{Context as _, Result, ensure};
use prelude_core::Timestamp;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};

use super::{Arrivals, Lines};
use crate::{
    random::{Random, mix},
    sim::{Arrival, Prompt, Run},
};

/// Bytes of a token: what English text has about, with a large vocabulary.
const TOKEN_BYTES: usize = 4;
/// Seconds from one turn of a conversation to the next, the answer included.
const TURN_SECONDS: f64 = 30.0;
/// Most requests of a file.
const MAX_REQUESTS: usize = 4_000_000;

/// The length and the hash of a text that was read and not kept.
#[derive(Clone, Copy, Debug)]
struct Text {
    tokens: u32,
    hash: u64,
}

impl Text {
    fn new(text: &str) -> Self {
        let tokens = u32::try_from(text.len().div_ceil(TOKEN_BYTES)).unwrap_or(u32::MAX);
        let hash = text
            .bytes()
            .fold(7, |hash, byte| mix(hash ^ u64::from(byte)));
        Self {
            tokens: tokens.max(1),
            hash,
        }
    }

    const fn run(self) -> Run {
        Run {
            stream: self.hash,
            start: 0,
            len: self.tokens,
        }
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct OfText;

        impl Visitor<'_> for OfText {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text::new(text))
            }
        }

        from.deserialize_str(OfText)
    }
}

#[derive(Deserialize)]
struct Message {
    #[serde(alias = "from")]
    role: String,
    #[serde(alias = "value")]
    content: Text,
}

impl Message {
    fn is_answer(&self) -> bool {
        matches!(
            &*self.role,
            "assistant" | "gpt" | "chatgpt" | "bing" | "bard"
        )
    }
}

#[derive(Deserialize)]
struct Conversation {
    #[serde(alias = "conversations")]
    conversation: Vec<Message>,
}

/// The requests of the conversations so far.
struct Builder {
    arrivals: Vec<Arrival>,
    random: Random,
    /// Seconds until the next conversation begins.
    begins: f64,
    conversations: u32,
}

impl Builder {
    const fn new() -> Self {
        Self {
            arrivals: Vec::new(),
            random: Random::new(1),
            begins: 0.0,
            conversations: 0,
        }
    }

    fn add(&mut self, conversation: &Conversation) -> Result<()> {
        let mut prompt = Prompt::default();
        let mut turn = 0.0;
        for message in &conversation.conversation {
            if message.is_answer() && !prompt.is_empty() {
                ensure!(
                    self.arrivals.len() < MAX_REQUESTS,
                    "more than {MAX_REQUESTS} requests"
                );
                let seconds = self.begins + TURN_SECONDS * turn;
                self.arrivals.push(Arrival {
                    at: Timestamp::from_nanos((1e9 * seconds) as u64),
                    prompt: prompt.clone(),
                    output_tokens: message.content.tokens,
                    key: self.conversations,
                    user: self.conversations,
                    root: self.conversations,
                });
                turn += 1.0;
            }
            prompt.push(message.content.run());
        }
        if turn > 0.0 {
            self.begins += self.random.exponential(1.0);
            self.conversations += 1;
        }
        Ok(())
    }
}

/// Returns whether a line of a `.jsonl` is a conversation.
pub(super) fn is_conversation(line: &str) -> bool {
    serde_json::from_str::<Conversation>(line).is_ok()
}

/// Reads JSON lines of conversations.
pub(super) fn arrivals(lines: &mut Lines<'_>) -> Arrivals {
    let mut builder = Builder::new();
    while let Some(line) = lines.next()? {
        lines.parse(&line, |line| builder.add(&serde_json::from_str(line)?))?;
    }
    Ok(builder.arrivals)
}

/// Reads a JSON array of conversations, one after another.
pub(super) fn arrivals_of_array(from: impl Read) -> Arrivals {
    struct OfArray(Builder);

    impl<'de> Visitor<'de> for OfArray {
        type Value = Builder;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of conversations")
        }

        fn visit_seq<A: SeqAccess<'de>>(mut self, mut array: A) -> Result<Builder, A::Error> {
            while let Some(conversation) = array.next_element()? {
                self.0.add(&conversation).map_err(de::Error::custom)?;
            }
            Ok(self.0)
        }
    }

    let mut json = serde_json::Deserializer::from_reader(from);
    let builder = json.deserialize_seq(OfArray(Builder::new()))?;
    json.end().context("behind the array")?;
    Ok(builder.arrivals)
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};

    const SHAREGPT: &str = r#"[
        {"id": "a", "conversations": [
            {"from": "human", "value": "Where is my card, please?"},
            {"from": "gpt", "value": "On its way."},
            {"from": "human", "value": "Thanks"},
            {"from": "gpt", "value": "You are welcome."}]},
        {"id": "b", "conversations": [{"from": "gpt", "value": "An answer to nothing"}]},
        {"id": "c", "conversations": [
            {"from": "human", "value": "Where is my card, please?"},
            {"from": "gpt", "value": "Which one?"}]}
    ]"#;

    #[test]
    fn each_answered_message_is_a_request_with_its_history() {
        let arrivals = arrivals_of_array(SHAREGPT.as_bytes()).unwrap();
        let sizes: Vec<_> = { arrivals.iter() }
            .map(|a| (a.user, a.prompt.len(), a.output_tokens))
            .collect();
        // 25, 11, 6 and 16 bytes, four to a token; the conversation without a question is none.
        assert_eq!(sizes, [(0, 7, 3), (0, 7 + 3 + 2, 4), (1, 7, 3)]);
        assert_eq!(arrivals[1].prompt.shared_with(&arrivals[0].prompt), 7);
        assert_eq!(arrivals[2].prompt.shared_with(&arrivals[0].prompt), 7);
        let gap = arrivals[1].at.saturating_since(arrivals[0].at);
        assert_eq!(gap.as_secs(), 30);
        assert!(arrivals[2].at > arrivals[0].at);
    }

    #[test]
    fn lines_of_conversations_are_the_same() {
        let line = |question: &str| {
            format!(
                "{{\"conversation_id\": \"x\", \"model\": \"m\", \"conversation\": [\
                 {{\"role\": \"user\", \"content\": \"{question}\"}}, \
                 {{\"role\": \"assistant\", \"content\": \"Yes\"}}]}}\n"
            )
        };
        let text = line("Is it here?") + &line("Is it there?");
        assert!(is_conversation(&line("q")));
        let found = from("lmsys.jsonl", &text, arrivals).unwrap();
        let lens: Vec<_> = found.iter().map(|a| a.prompt.len()).collect();
        assert_eq!(lens, [3, 3]);
        assert_eq!(found[0].prompt.shared_with(&found[1].prompt), 0);
    }

    #[test]
    fn a_fault_is_named_with_its_place() {
        let message = error("lmsys.jsonl", "{\"conversation\": 3}", arrivals);
        assert!(message.contains("lmsys.jsonl, line 1"), "{message}");
        let broken = SHAREGPT.replace("\"Thanks\"", "7");
        let message = format!("{:#}", arrivals_of_array(broken.as_bytes()).unwrap_err());
        assert!(
            message.contains("expected a text") && message.contains("line 5"),
            "{message}"
        );
        let more = format!("{SHAREGPT} 1");
        let message = format!("{:#}", arrivals_of_array(more.as_bytes()).unwrap_err());
        assert!(message.contains("behind the array"), "{message}");
    }
}
