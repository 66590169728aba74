//! Splits generated text into reasoning, content and tool calls.

use super::{
    CALL, CALL_END, Parts, THINK, THINK_END, ToolCall,
    call::{self, Body},
};

/// A part of an answer. Neighbouring parts of one kind are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutputPart {
    /// The model's reasoning.
    Reasoning(String),
    /// Text for the caller.
    Content(String),
    /// A tool call.
    Call(ToolCall),
}

/// Splits an answer's text into [`OutputPart`]s while it arrives.
#[derive(Clone, Debug)]
pub struct OutputParser {
    parts: Parts,
    state: State,
    /// Text that may still become part of a tag.
    held: String,
    /// The blanks before the block whose inside is in `held`.
    gap: String,
    /// The finished parts that the caller has not taken yet.
    pub out: Vec<OutputPart>,
    /// The number of calls so far.
    pub calls: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Only blanks have come; reasoning may begin.
    Start,
    /// Inside of reasoning, of which only line breaks have come.
    ThinkStart,
    /// Inside of reasoning.
    Think,
    /// Behind the tag that closes reasoning, to which line breaks belong.
    AfterThink,
    Content,
    /// Inside of a block, whose first bytes, as many as this, hold no end tag that counts.
    Block(usize),
    /// Behind a block, to which blanks belong.
    AfterBlock,
}

impl OutputParser {
    /// Returns a parser at the beginning of a text in which it looks for `parts`.
    #[must_use]
    pub fn new(parts: Parts) -> Self {
        Self {
            state: match parts.reasoning {
                Some(true) => State::ThinkStart,
                Some(false) => State::Start,
                None => State::Content,
            },
            parts,
            held: String::new(),
            gap: String::new(),
            out: Vec::new(),
            calls: 0,
        }
    }

    /// Adds text.
    pub fn push(&mut self, text: &str) {
        self.held.push_str(text);
        while self.step(false) {}
    }

    /// Ends the text: held text becomes no tag any more. If the text `is_cut` by a limit of its
    /// length, a block that has begun is a call whose end is missing.
    pub fn finish(&mut self, is_cut: bool) {
        while self.step(true) {}
        if let State::Block(_) = self.state {
            let rest = std::mem::take(&mut self.held);
            match call::read_cut(&rest).filter(|_| is_cut) {
                Some(call) => self.call(call),
                None => self.hand_back(&rest, ""),
            }
        }
    }

    /// Parses held text by one step. Returns true if another step can follow.
    fn step(&mut self, is_last: bool) -> bool {
        match self.state {
            State::Start => self.start(is_last),
            State::ThinkStart => self.skip(|c| c == '\n', State::Think),
            State::Think => self.think(is_last),
            State::AfterThink => self.skip(|c| c == '\n', State::Content),
            State::Content => self.content(is_last),
            State::Block(searched) => self.block(searched),
            State::AfterBlock => self.skip(char::is_whitespace, State::Content),
        }
    }

    fn start(&mut self, is_last: bool) -> bool {
        let text = self.held.trim_start();
        if let Some(rest) = text.strip_prefix(THINK) {
            self.held = rest.to_owned();
            self.state = State::ThinkStart;
            return true;
        }
        if THINK.starts_with(text) && !is_last {
            return false;
        }
        self.state = State::Content;
        true
    }

    /// Drops the characters that belong to the tag before.
    fn skip(&mut self, belongs: impl Fn(char) -> bool, then: State) -> bool {
        let len = self.held.len() - self.held.trim_start_matches(belongs).len();
        self.held.drain(..len);
        if self.held.is_empty() {
            return false;
        }
        self.state = then;
        true
    }

    fn think(&mut self, is_last: bool) -> bool {
        if let Some(at) = self.held.find(THINK_END) {
            let said = self.held[..at].trim_end_matches('\n').to_owned();
            self.held.drain(..at + THINK_END.len());
            self.say(OutputPart::Reasoning(said));
            self.state = State::AfterThink;
            return true;
        }
        let certain = match is_last {
            true => self.held.len(),
            false => certain(&self.held, THINK_END, |c| c == '\n'),
        };
        let said = self.held.drain(..certain).collect();
        self.say(OutputPart::Reasoning(said));
        false
    }

    fn content(&mut self, is_last: bool) -> bool {
        let looks = self.parts.calls.is_some();
        if let Some(at) = self.held.find(CALL).filter(|_| looks) {
            let said = self.held[..at].trim_end().to_owned();
            self.gap = self.held[said.len()..at].to_owned();
            self.held.drain(..at + CALL.len());
            self.say(OutputPart::Content(said));
            self.state = State::Block(0);
            return true;
        }
        let certain = match looks && !is_last {
            true => certain(&self.held, CALL, char::is_whitespace),
            false => self.held.len(),
        };
        let said = self.held.drain(..certain).collect();
        self.say(OutputPart::Content(said));
        false
    }

    fn block(&mut self, searched: usize) -> bool {
        // The searched text may end with a part of the tag.
        let mut from = searched.saturating_sub(CALL_END.len() - 1);
        while !self.held.is_char_boundary(from) {
            from -= 1;
        }
        let Some(at) = self.held[from..].find(CALL_END).map(|at| from + at) else {
            self.state = State::Block(self.held.len());
            return false;
        };
        let body = self.held[..at].to_owned();
        let end = at + CALL_END.len();
        match call::read(&body) {
            // The end tag was a part of a string.
            Body::Unfinished => {
                // Goes on past this end tag: one byte behind its beginning is enough.
                self.state = State::Block(end + CALL_END.len() - 1);
                return end < self.held.len();
            }
            Body::Call(call) => {
                self.call(call);
                self.gap.clear();
                self.state = State::AfterBlock;
            }
            Body::IllFormed => {
                self.hand_back(&body, CALL_END);
                self.state = State::Content;
            }
        }
        self.held.drain(..end);
        true
    }

    /// Adds a call, unless only the first call counts and there was one.
    fn call(&mut self, call: ToolCall) {
        if self.parts.calls == Some(true) || self.calls == 0 {
            self.say(OutputPart::Call(call));
            self.calls += 1;
        }
    }

    /// Adds a block that is not a call as content, unchanged.
    fn hand_back(&mut self, body: &str, end: &str) {
        let gap = std::mem::take(&mut self.gap);
        self.say(OutputPart::Content([&*gap, CALL, body, end].concat()));
    }

    fn say(&mut self, piece: OutputPart) {
        match (self.out.last_mut(), piece) {
            (_, OutputPart::Reasoning(new) | OutputPart::Content(new)) if new.is_empty() => {}
            (_, OutputPart::Reasoning(_)) if self.parts.silent => {}
            (Some(OutputPart::Reasoning(said)), OutputPart::Reasoning(new))
            | (Some(OutputPart::Content(said)), OutputPart::Content(new)) => said.push_str(&new),
            (_, piece) => self.out.push(piece),
        }
    }
}

/// Returns the length of the part of `text` that cannot belong to `tag`, nor to the characters
/// before `tag` that belong to the tag.
fn certain(text: &str, tag: &str, belongs: impl Fn(char) -> bool) -> usize {
    let most = text.len().min(tag.len() - 1);
    let begun = (1..=most).rev().find(|&n| text.ends_with(&tag[..n]));
    let before = &text[..text.len() - begun.unwrap_or(0)];
    before.trim_end_matches(belongs).len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parts(reasoning: Option<bool>, calls: Option<bool>) -> Parts {
        Parts {
            reasoning,
            calls,
            silent: false,
        }
    }

    fn read<'a>(parts: Parts, texts: impl IntoIterator<Item = &'a str>) -> Vec<OutputPart> {
        read_to(false, parts, texts)
    }

    fn read_to<'a>(
        is_cut: bool,
        parts: Parts,
        texts: impl IntoIterator<Item = &'a str>,
    ) -> Vec<OutputPart> {
        let mut pieces = OutputParser::new(parts);
        texts.into_iter().for_each(|text| pieces.push(text));
        pieces.finish(is_cut);
        pieces.out
    }

    fn thought(text: &str) -> OutputPart {
        OutputPart::Reasoning(text.to_owned())
    }

    fn said(text: &str) -> OutputPart {
        OutputPart::Content(text.to_owned())
    }

    fn called(name: &str, arguments: &str) -> OutputPart {
        OutputPart::Call(ToolCall {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        })
    }

    #[test]
    fn reasoning_is_told_from_content() {
        let check = |open: bool, text: &str, expected: &[OutputPart]| {
            assert_eq!(read(parts(Some(open), None), [text]), expected, "{text:?}");
        };
        check(
            false,
            "<think>\nwhy\nnot\n</think>\n\nyes\n",
            &[thought("why\nnot"), said("yes\n")],
        );
        check(false, "\n<think>a</think>b", &[thought("a"), said("b")]);
        check(false, " plain <think>", &[said(" plain <think>")]);
        check(false, "<thin", &[said("<thin")]);
        check(false, "<think>\ncut short\n", &[thought("cut short\n")]);
        check(false, "<think>\n\n</think>\n\nyes", &[said("yes")]);
        check(
            true,
            "\nwhy</think>yes</think>",
            &[thought("why"), said("yes</think>")],
        );
        check(true, "why", &[thought("why")]);
        check(false, "", &[]);
    }

    #[test]
    fn calls_are_told_from_content() {
        let check = |text: &str, expected: &[OutputPart]| {
            assert_eq!(read(parts(None, Some(true)), [text]), expected, "{text:?}");
        };
        let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        let f = || called("f", "{\"a\": 1}");
        check(one, &[f()]);
        check(&format!("So:\n{one}\n{one}\n"), &[said("So:"), f(), f()]);
        check(&format!("{one} and then"), &[f(), said("and then")]);
        check(
            "a <tool_call>{}</tool_call> b",
            &[said("a <tool_call>{}</tool_call> b")],
        );
        check(
            " \n<tool_call>{\"name\"",
            &[said(" \n<tool_call>{\"name\"")],
        );
        check("<tool_cal", &[said("<tool_cal")]);
        check("a < b\n", &[said("a < b\n")]);
        let quoted =
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"</tool_call>\"}}</tool_call>";
        check(quoted, &[called("f", "{\"a\":\"</tool_call>\"}")]);
        let first = parts(None, Some(false));
        assert_eq!(read(first, [&*format!("{one}{one}")]), [f()]);
    }

    #[test]
    fn a_call_that_is_cut_is_a_call() {
        let check = |text: &str, expected: &[OutputPart]| {
            assert_eq!(
                read_to(true, parts(None, Some(true)), [text]),
                expected,
                "{text:?}"
            );
        };
        let begun = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x";
        check(begun, &[called("f", "{\"a\": \"x")]);
        check(
            &format!("So:\n{begun}"),
            &[said("So:"), called("f", "{\"a\": \"x")],
        );
        let whole = "<tool_call>{\"name\":\"f\"}</tool_call>";
        check(
            &format!("{whole}{begun}"),
            &[called("f", "{}"), called("f", "{\"a\": \"x")],
        );
        check("<tool_call>{\"na", &[said("<tool_call>{\"na")]);
        // One call is all that may be told.
        let one = read_to(
            true,
            parts(None, Some(false)),
            [&*format!("{whole}{begun}")],
        );
        assert_eq!(one, [called("f", "{}")]);
        // Ended by the model itself, it is no call.
        assert_eq!(read(parts(None, Some(true)), [begun]), [said(begun)]);
    }

    #[test]
    fn reasoning_may_be_left_out() {
        let silent = Parts {
            silent: true,
            ..parts(Some(false), None)
        };
        let found = read(silent, ["<think>why", "</think>\n", "yes"]);
        assert_eq!(found, [said("yes")]);
    }

    #[test]
    fn both_in_one_answer() {
        let text =
            "<think>\nf it is <tool_call>\n</think>\n\n<tool_call>{\"name\":\"f\"}</tool_call>";
        let expected = [thought("f it is <tool_call>"), called("f", "{}")];
        assert_eq!(read(parts(Some(false), Some(true)), [text]), expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn pieces_do_not_depend_on_cuts(
            words in prop::collection::vec(prop_oneof![
                Just(THINK), Just(THINK_END), Just(CALL), Just(CALL_END), Just("\n"), Just(" "),
                Just("é"), Just("<"), Just("</t"), Just("{\"name\":\"f\",\"arguments\":{}}"),
                Just("{\"name\":\"f\",\"arguments\":{\"a\":\""), Just("\"}}"), Just("{}"), Just("word"),
            ], 0..14),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
            reasoning in prop::option::of(any::<bool>()),
            calls in prop::option::of(any::<bool>()),
            is_cut in any::<bool>(),
        ) {
            let text = words.concat();
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            at.retain(|&at| text.is_char_boundary(at));
            let chunks = at.windows(2).map(|w| &text[w[0]..w[1]]);
            let parts = parts(reasoning, calls);
            let whole = read_to(is_cut, parts, [&*text]);
            prop_assert_eq!(&read_to(is_cut, parts, chunks), &whole);
            // One character at a time, each decided on with what came before alone.
            let mut pieces = OutputParser::new(parts);
            let mut told = Vec::new();
            for (at, c) in text.char_indices() {
                pieces.push(&text[at..at + c.len_utf8()]);
                told.append(&mut pieces.out);
            }
            pieces.finish(is_cut);
            told.append(&mut pieces.out);
            let mut joined = OutputParser::new(parts);
            told.into_iter().for_each(|piece| joined.say(piece));
            prop_assert_eq!(&joined.out, &whole);
            // Without tags nothing is lost.
            if reasoning.is_none() && calls.is_none() {
                prop_assert_eq!(whole, if text.is_empty() { vec![] } else { vec![said(&text)] });
            }
        }
    }
}
