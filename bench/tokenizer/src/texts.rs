//! The texts of one round of a row.

use crate::{corpus::Corpus, kind::Kind};

/// Texts of one round.
#[derive(Clone)]
pub(crate) struct Texts {
    pub(crate) what: What,
    pub(crate) bytes: usize,
    pub(crate) count: usize,
}

#[derive(Clone)]
pub(crate) enum What {
    Plain(Kind),
    /// Turns of English and code between the markers of a chat.
    Chat,
    /// Always the same: a pattern without end, cut to size, or a text that has this size.
    Pattern(Pattern),
}

/// Makes text of about so many bytes.
pub(crate) type Pattern = fn(usize) -> String;

impl Texts {
    pub(crate) fn new(what: What, bytes: usize, count: usize) -> Self {
        Self { what, bytes, count }
    }

    /// Returns the next texts, which are new to every engine unless the pattern is always the same.
    pub(crate) fn next(&self, corpus: &mut Corpus, chat_markers: bool) -> Vec<String> {
        let one = |_| match self.what {
            What::Plain(kind) => corpus.take(kind, self.bytes),
            What::Chat => chat(corpus, self.bytes, chat_markers),
            What::Pattern(pattern) => pattern(self.bytes),
        };
        (0..self.count).map(one).collect()
    }
}

/// Returns a conversation of about `bytes` bytes.
fn chat(corpus: &mut Corpus, bytes: usize, markers: bool) -> String {
    let (open, close) = if markers {
        ("<|im_start|>", "<|im_end|>\n")
    } else {
        ("", "\n\n")
    };
    let mut text = format!("{open}system\nYou are a helpful assistant.{close}");
    let mut turn = 0;
    while text.len() < bytes {
        let role = ["user", "assistant"][turn % 2];
        // Questions are short, answers longer, and every third one brings code.
        let prose = corpus.take(Kind::English, [180, 700][turn % 2]);
        text.push_str(&format!("{open}{role}\n{prose}"));
        if turn % 6 == 5 {
            let code = corpus.take(Kind::Code, 500);
            text.push_str(&format!("\n```\n{code}\n```"));
        }
        text.push_str(close);
        turn += 1;
    }
    text
}
