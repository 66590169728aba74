//! The tokenizer: encoding, counting, and looking up tokens.

mod word_collector;

use crate::added::{AddedToken, AddedTokens, Part, Pass, Reassigned, Recognise, TextSteps};
use crate::bpe::{Bpe, ThreadScratch};
use crate::encoding::Encoding;
use crate::family::Family;
use crate::input::Input;
use crate::normalize::Normalizer;
use crate::padding::Padding;
use crate::postprocess::{PostProcessor, TemplatePart};
use crate::pretokenize::{PreToken, PreTokenizer, PreTokens, SplitScratch};
use crate::truncation::Truncation;
use crate::vocab::Vocab;
use crate::warning::Warning;
use std::borrow::Cow;
use std::cell::Cell;
use std::ops::{ControlFlow, Range};

/// Upper bound of ids whose memory a thread keeps between calls of [`Tokenizer::count`].
const MAX_KEPT_IDS: usize = 1 << 14;

/// A tokenizer as one `tokenizer.json` describes it.
///
/// A tokenizer is immutable after loading: every method takes `&self` and there are no locks, so
/// one value can serve any number of threads. State between calls belongs to the thread: a cache of
/// at most 1.75 MiB, and 0.1 to 0.3 MiB of working memory, up to 1.5 MiB after very long words.
/// Only the first call and the end of a thread take a lock, to place its cache: on Linux the caches
/// of eight threads lie in seven huge pages.
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) normalizer: Normalizer,
    pub(crate) pre_tokenizer: PreTokenizer,
    pub(crate) post_processor: PostProcessor,
    pub(crate) added: AddedTokens,
    pub(crate) vocab: Vocab,
    pub(crate) bpe: Bpe,
    pub(crate) truncation: Option<Truncation>,
    pub(crate) padding: Option<Padding>,
    /// True if texts can be cut at the places of [`crate::window`].
    pub(crate) safe_cuts: bool,
    /// The model of a tokenizer that is not byte-level, whose `vocab` and `bpe` are empty.
    pub(crate) family: Option<Family>,
}

/// A receiver of the parts of a text, in order, while it is encoded.
///
/// A *segment* is the raw text between two added tokens; positions of words and of
/// tokens found in normalized text count bytes of the segment's normalized text.
pub(crate) trait Visitor<'t> {
    /// Begins a segment at byte `start` of the text. `changed` is false only if its normalized text
    /// is known to equal the raw text.
    fn segment(&mut self, start: usize, raw: &'t str, changed: bool);
    /// Takes a word.
    fn word(&mut self, word: PreToken<'_>) -> ControlFlow<()>;
    /// Takes an added token that was found in the raw text.
    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()>;
    /// Takes an added token that was found in the normalized segment, whose text is `normalized`. By
    /// default it is treated like a token of the raw text.
    fn normalized_token(
        &mut self,
        id: u32,
        range: Range<usize>,
        _normalized: &str,
    ) -> ControlFlow<()> {
        self.raw_token(id, range)
    }
}

impl Tokenizer {
    /// Returns all ids of a text, or of a pair of texts: `encode(text, true)`,
    /// `encode((first, second), true)`. Truncation and padding of the file apply only to
    /// [`Tokenizer::encode_with`].
    ///
    /// Added tokens in the text are recognised. With `add_special_tokens`, the ids that the file's
    /// template puts around a text are included. A pair is joined by the file's template for pairs;
    /// if the file has none, the ids of the second text follow those of the first.
    pub fn encode<'t>(&self, input: impl Into<Input<'t>>, add_special_tokens: bool) -> Vec<u32> {
        let input = input.into();
        let mut out = Vec::with_capacity(input.len() / 4 + 4);
        self.encode_input(input, add_special_tokens, &mut out);
        out
    }

    /// Appends the ids of a text or a pair to `out`; see [`Tokenizer::encode`].
    pub fn encode_into<'t>(
        &self,
        input: impl Into<Input<'t>>,
        add_special_tokens: bool,
        out: &mut Vec<u32>,
    ) {
        self.encode_input(input.into(), add_special_tokens, out);
    }

    fn encode_input(&self, input: Input<'_>, add_special_tokens: bool, out: &mut Vec<u32>) {
        let (template, [a, b]) = match input {
            Input::Single(text) => (&self.post_processor.single, [text, text]),
            Input::Pair(a, b) => (&self.post_processor.pair, [a, b]),
        };
        for part in template {
            match part {
                TemplatePart::A => self.encode_recognising(a, Recognise::All, out),
                TemplatePart::B => self.encode_recognising(b, Recognise::All, out),
                TemplatePart::Special(ids) if add_special_tokens => out.extend_from_slice(ids),
                TemplatePart::Special(_) => {}
            }
        }
    }

    /// Appends the ids of `text` as ordinary text: added tokens are not recognised.
    ///
    /// Use it for text whose authors must not be able to write `<|im_start|>` and have it taken for
    /// a control token. The id of an added token is not produced even if the model's vocabulary has
    /// the token and a word equals it: such a word becomes one token per byte. The exception is an
    /// added token that is itself the token of a single byte, which has no other spelling.
    /// WordPiece and Unigram models cut it into other tokens, or it becomes the unknown token. No
    /// special tokens are added.
    pub fn encode_plain_into(&self, text: &str, out: &mut Vec<u32>) {
        self.encode_text_into(text, (Recognise::None, true), out);
    }

    /// Appends the ids of `text`, recognising only some added tokens, as the reference
    /// does with the same setting. No special tokens are added.
    pub fn encode_recognising(&self, text: &str, recognise: Recognise, out: &mut Vec<u32>) {
        self.encode_text_into(text, (recognise, false), out);
    }

    /// Appends the ids of `text` without a template. If `plain`, words do not become added tokens.
    fn encode_text_into(
        &self,
        text: &str,
        (recognise, plain): (Recognise, bool),
        out: &mut Vec<u32>,
    ) {
        if let Some(family) = &self.family {
            return family.encode(self.text_steps(), text, (recognise, plain), out);
        }
        let mut visitor = Ids {
            tokenizer: self,
            scratch: ThreadScratch::default(),
            out,
            plain,
        };
        self.walk_words(text, recognise, &mut visitor);
    }

    /// Returns the number of ids that [`Tokenizer::encode`] gives.
    pub fn count<'t>(&self, input: impl Into<Input<'t>>, add_special_tokens: bool) -> usize {
        self.count_input(input.into(), add_special_tokens)
    }

    fn count_input(&self, input: Input<'_>, add_special_tokens: bool) -> usize {
        // A new buffer for each call would cost a short text a tenth of its time.
        thread_local! {
            static IDS: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
        }
        let mut ids = IDS.try_with(Cell::take).unwrap_or_default();
        ids.clear();
        self.encode_input(input, add_special_tokens, &mut ids);
        let count = ids.len();
        if ids.capacity() <= MAX_KEPT_IDS {
            // A thread that is ending has no place for the buffer.
            let _ = IDS.try_with(|kept| kept.set(ids));
        }
        count
    }

    /// Returns the steps before a model that is not byte-level.
    pub(crate) fn text_steps(&self) -> TextSteps<'_> {
        TextSteps {
            added: &self.added,
            normalizer: &self.normalizer,
        }
    }

    pub(crate) fn walk<'t, V: Visitor<'t>>(
        &self,
        text: &'t str,
        recognise: Recognise,
        visitor: &mut V,
    ) -> ControlFlow<()> {
        let mut scratch = SplitScratch::default();
        self.added
            .split(Pass::Raw, recognise, text, |part| match part {
                Part::Token(id, range) => visitor.raw_token(id, range),
                Part::Text(range) => {
                    let raw = &text[range.clone()];
                    let normalized = self.normalizer.apply(raw);
                    let changed = matches!(normalized, Cow::Owned(_));
                    visitor.segment(range.start, raw, changed);
                    self.walk_segment(&normalized, recognise, &mut scratch, visitor)
                }
            })
    }

    fn walk_segment<'t, V: Visitor<'t>>(
        &self,
        normalized: &str,
        recognise: Recognise,
        scratch: &mut SplitScratch,
        visitor: &mut V,
    ) -> ControlFlow<()> {
        self.added
            .split(Pass::Normalized, recognise, normalized, |part| match part {
                Part::Token(id, range) => visitor.normalized_token(id, range, normalized),
                Part::Text(range) => {
                    let piece = &normalized[range.clone()];
                    if let Some(grammar) = self.pre_tokenizer.only_grammar() {
                        return PreTokenizer::split_by_grammar(
                            grammar,
                            piece,
                            range.start,
                            scratch,
                            |words| words.each(|word| visitor.word(word)),
                        );
                    }
                    let mut each = |word: PreToken<'_>| visitor.word(word);
                    self.pre_tokenizer
                        .split(piece, range.start, scratch, &mut each)
                }
            })
    }

    /// Returns the bytes that `id` stands for, which need not be whole characters: the token's
    /// bytes, or the text of an added token.
    pub fn id_to_piece(&self, id: u32) -> Option<&[u8]> {
        if let Some(family) = &self.family {
            return family.contains(id).then(|| family.piece(id));
        }
        self.vocab.contains(id).then(|| self.vocab.piece(id))
    }

    /// Returns the token as the vocabulary spells it, such as `Ġthe`.
    pub fn id_to_token(&self, id: u32) -> Option<Cow<'_, str>> {
        if let Some(family) = &self.family {
            return family.spelling(id).map(Cow::Borrowed);
        }
        self.vocab.spelling(id)
    }

    /// Returns the id of a token by its spelling in the vocabulary. Added tokens take precedence.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        let added = self.added.ids.get(token).copied();
        added.or_else(|| match &self.family {
            Some(family) => family.id(&self.added, token),
            None => self.vocab.model_id(token),
        })
    }

    /// Returns the number of tokens, including added tokens. Ids can be larger if the file leaves
    /// holes.
    pub fn vocab_size(&self) -> usize {
        let family = self.family.as_ref();
        family.map_or_else(|| self.vocab.size(), |family| family.size())
    }

    /// Returns every id that has a token, with the token as the vocabulary spells it, by rising id.
    /// Added tokens are among them.
    pub fn vocab(&self) -> impl Iterator<Item = (u32, Cow<'_, str>)> {
        let end = match &self.family {
            Some(family) => family.end(),
            None => self.vocab.end(),
        };
        (0..end).filter_map(|id| Some((id, self.id_to_token(id)?)))
    }

    /// Returns true if `id` is an added token that is marked special.
    pub fn is_special(&self, id: u32) -> bool {
        let family = self.family.as_ref();
        family.map_or_else(|| self.vocab.is_special(id), |f| f.is_special(id))
    }

    /// Returns the added tokens and their ids, by rising id.
    pub fn added_tokens(&self) -> impl Iterator<Item = (u32, &AddedToken)> {
        self.added.tokens.iter().map(|(id, token)| (*id, token))
    }

    /// Returns notes about the file: parts that make encoding slow, or that are not known to be exact.
    /// There are none for the files of most models.
    pub fn warnings(&self) -> &[Warning] {
        &self.pre_tokenizer.warnings
    }

    /// Returns the added tokens whose id is not the one that the file states; see [`Reassigned`].
    pub fn reassigned_tokens(&self) -> &[Reassigned] {
        &self.added.reassigned
    }
}

/// Appends ids.
struct Ids<'a> {
    tokenizer: &'a Tokenizer,
    scratch: ThreadScratch,
    out: &'a mut Vec<u32>,
    /// True if words must not become added tokens.
    plain: bool,
}

impl<'t> Visitor<'t> for Ids<'_> {
    fn segment(&mut self, _: usize, _: &'t str, _: bool) {}

    #[inline]
    fn word(&mut self, word: PreToken<'_>) -> ControlFlow<()> {
        let Tokenizer { bpe, vocab, .. } = self.tokenizer;
        let (word, before) = (word.text.as_bytes(), self.out.len());
        bpe.encode(word, vocab, &mut self.scratch, self.out);
        if self.plain && self.out[before..].iter().any(|id| vocab.is_added(*id)) {
            self.out.truncate(before);
            bpe.encode_bytes(word, self.out);
        }
        ControlFlow::Continue(())
    }

    fn raw_token(&mut self, id: u32, _: Range<usize>) -> ControlFlow<()> {
        self.out.push(id);
        ControlFlow::Continue(())
    }
}

impl Ids<'_> {
    /// Appends the ids of several words.
    fn words(&mut self, words: &PreTokens<'_>) {
        let Tokenizer { bpe, vocab, .. } = self.tokenizer;
        let before = self.out.len();
        bpe.encode_words(words, vocab, &mut self.scratch, self.out);
        if self.plain && self.out[before..].iter().any(|id| vocab.is_added(*id)) {
            self.out.truncate(before);
            // This visitor never stops early.
            let _ = words.each(|word| self.word(word));
        }
    }
}

impl Encoding {
    /// Returns each id's token as the vocabulary of `tokenizer` spells it, such as `Ġthe`, and an
    /// empty string for an id without a token, which only padding can have. As in the reference, text
    /// that Unigram does not know is a token as it is, and added tokens have the blanks that they took;
    /// without offsets, the vocabulary's names may stand for both.
    pub fn tokens<'t>(&'t self, tokenizer: &'t Tokenizer) -> Vec<Cow<'t, str>> {
        let spelling = |id: &u32| tokenizer.id_to_token(*id).unwrap_or_default();
        let mut tokens: Vec<Cow<'t, str>> = self.ids.iter().map(spelling).collect();
        for (at, text) in self.spellings() {
            tokens[at] = Cow::Borrowed(text);
        }
        tokens
    }
}
