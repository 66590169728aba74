//! The tokenizer: loading, encoding, and looking up tokens.

use crate::added::{AddedToken, AddedTokens, Part, Pass, Reassigned, Recognise};
use crate::bpe::{Bpe, MergeScratch};
use crate::error::Error;
use crate::gather;
use crate::load;
use crate::normalize::Normalizer;
use crate::padding::Padding;
use crate::postprocess::{Piece, PostProcessor};
use crate::pretokenize::{PreTokenizer, SplitScratch, Word, Words};
use crate::sentencepiece::SentencePiece;
use crate::store;
use crate::truncation::Truncation;
use crate::vocab::Vocab;
use std::borrow::Cow;
use std::ops::{ControlFlow, Range};
use std::path::Path;

/// A tokenizer as one `tokenizer.json` describes it.
///
/// Immutable after loading: every method takes `&self`, there are no locks, and
/// what is remembered between calls belongs to the thread (at most 1.75 MiB of words, and
/// 0.1 to 0.3 MiB of room to work in, up to 1.5 after very long words), so one value can
/// serve any number of threads. Only the first call and the end of a thread take a lock, for
/// the place of its words: on Linux those of eight threads lie in seven huge pages.
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
    /// Whether texts can be cut as [`crate::window`] does.
    pub(crate) safe_cuts: bool,
    /// The model, if it is not byte-level; `vocab` and `bpe` are empty then.
    pub(crate) sentencepiece: Option<Box<SentencePiece>>,
}

/// What encoding a text comes across, in order.
///
/// A *segment* is the raw text between two added tokens; positions of words and of
/// tokens found in normalized text count bytes of the segment's normalized text.
pub(crate) trait Visitor<'t> {
    /// A segment begins at byte `start` of the text; `changed` unless its
    /// normalized text is known to be the raw one.
    fn segment(&mut self, start: usize, raw: &'t str, changed: bool);
    /// A word to be merged.
    fn word(&mut self, word: Word<'_>) -> ControlFlow<()>;
    /// Words to be merged, for visitors that can use many at a time.
    fn words(&mut self, words: Words<'_>) -> ControlFlow<()> {
        words.each(|word| self.word(word))
    }
    /// An added token that was found in the raw text.
    fn raw_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()>;
    /// An added token that was found in the segment.
    fn normalized_token(&mut self, id: u32, range: Range<usize>) -> ControlFlow<()>;
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    ///
    /// # Errors
    /// When the file cannot be read, is malformed or contradicts itself, or uses a
    /// component that this crate does not implement; see [`Error`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let json = store::read(path).map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })?;
        load::load_owned(json)
    }

    /// Loads the contents of a `tokenizer.json`.
    ///
    /// # Errors
    /// As [`Tokenizer::from_file`], without the reading.
    pub fn from_bytes(json: &[u8]) -> Result<Self, Error> {
        load::load(json)
    }

    /// The ids of `text`, all of them: the file's truncation and padding are only
    /// applied by [`Tokenizer::encode_with`].
    ///
    /// Added tokens in the text are recognised. With `add_special_tokens`, the ids
    /// that the file's template puts around a text are there too.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 4 + 4);
        self.encode_into(text, add_special_tokens, &mut out);
        out
    }

    /// Appends the ids of `text` to `out`; see [`Tokenizer::encode`].
    pub fn encode_into(&self, text: &str, add_special_tokens: bool, out: &mut Vec<u32>) {
        for piece in &self.post_processor.single {
            match piece {
                Piece::A | Piece::B => self.encode_recognising(text, Recognise::All, out),
                Piece::Special(ids) if add_special_tokens => out.extend_from_slice(ids),
                Piece::Special(_) => {}
            }
        }
    }

    /// The ids of two texts, put together by the file's template for pairs, or one
    /// after the other where it has none.
    pub fn encode_pair(&self, a: &str, b: &str, add_special_tokens: bool) -> Vec<u32> {
        let mut out = Vec::with_capacity((a.len() + b.len()) / 4 + 4);
        for piece in &self.post_processor.pair {
            match piece {
                Piece::A => self.encode_recognising(a, Recognise::All, &mut out),
                Piece::B => self.encode_recognising(b, Recognise::All, &mut out),
                Piece::Special(ids) if add_special_tokens => out.extend_from_slice(ids),
                Piece::Special(_) => {}
            }
        }
        out
    }

    /// Appends the ids of `text` as ordinary text: added tokens are not recognised.
    ///
    /// For text from people who must not be able to write `<|im_start|>` and be
    /// taken for the program. The id of an added token does not come out even where
    /// the model's vocabulary has the token and a word equals it: such a word becomes
    /// one token per byte. The exception is an added token that is itself the token of a
    /// single byte, which has no other spelling. No special tokens are added.
    pub fn encode_plain_into(&self, text: &str, out: &mut Vec<u32>) {
        if let Some(family) = &self.sentencepiece {
            return family.encode_plain(self, text, out);
        }
        let mut visitor = Ids {
            tokenizer: self,
            scratch: MergeScratch::default(),
            out,
            plain: true,
        };
        // Never stops early.
        let _ = self.walk_words(text, Recognise::None, &mut visitor);
    }

    /// Appends the ids of `text`, recognising only some added tokens, as the reference
    /// does with the same setting. No special tokens are added.
    pub fn encode_recognising(&self, text: &str, recognise: Recognise, out: &mut Vec<u32>) {
        if let Some(family) = &self.sentencepiece {
            return family.encode(self, text, recognise, out);
        }
        let mut visitor = Ids {
            tokenizer: self,
            scratch: MergeScratch::default(),
            out,
            plain: false,
        };
        // Never stops early.
        let _ = self.walk_words(text, recognise, &mut visitor);
    }

    /// The number of ids that [`Tokenizer::encode`] gives, without storing them.
    pub fn count(&self, text: &str, add_special_tokens: bool) -> usize {
        let pieces = self.post_processor.single.iter();
        pieces
            .map(|piece| match piece {
                Piece::A | Piece::B => self.count_text(text),
                Piece::Special(ids) if add_special_tokens => ids.len(),
                Piece::Special(_) => 0,
            })
            .sum()
    }

    fn count_text(&self, text: &str) -> usize {
        if let Some(family) = &self.sentencepiece {
            return family.count(self, text);
        }
        let mut visitor = Count {
            tokenizer: self,
            scratch: MergeScratch::default(),
            word: Vec::new(),
            count: 0,
        };
        // Never stops early.
        let _ = self.walk_words(text, Recognise::All, &mut visitor);
        visitor.count
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
                Part::Token(id, range) => visitor.normalized_token(id, range),
                Part::Text(range) => {
                    let piece = &normalized[range.clone()];
                    if let Some(grammar) = self.pre_tokenizer.only_grammar() {
                        return PreTokenizer::split_by_grammar(
                            grammar,
                            piece,
                            range.start,
                            scratch,
                            |words| visitor.words(words),
                        );
                    }
                    let mut each = |word: Word<'_>| visitor.word(word);
                    self.pre_tokenizer
                        .split(piece, range.start, scratch, &mut each)
                }
            })
    }

    /// The bytes that `id` stands for, which need not be whole characters: the
    /// token's bytes, or the text of an added token.
    pub fn id_to_piece(&self, id: u32) -> Option<&[u8]> {
        if let Some(family) = &self.sentencepiece {
            return family.contains(id).then(|| family.piece(id));
        }
        self.vocab.contains(id).then(|| self.vocab.piece(id))
    }

    /// The token as the vocabulary spells it, such as `Ġthe`.
    pub fn id_to_token(&self, id: u32) -> Option<Cow<'_, str>> {
        if let Some(family) = &self.sentencepiece {
            return family.spelling(id).map(Cow::Borrowed);
        }
        self.vocab.spelling(id)
    }

    /// The id of a token as the vocabulary spells it, added tokens first.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        let added = self.added.ids.get(token).copied();
        added.or_else(|| match &self.sentencepiece {
            Some(family) => family.id(self, token),
            None => self.vocab.model_id(token),
        })
    }

    /// The number of tokens, with added ones. Ids can be larger where the file
    /// leaves holes.
    pub fn vocab_size(&self) -> usize {
        let family = self.sentencepiece.as_ref();
        family.map_or_else(|| self.vocab.size(), |family| family.size())
    }

    /// Whether `id` is an added token that is marked special.
    pub fn is_special(&self, id: u32) -> bool {
        let family = self.sentencepiece.as_ref();
        family.map_or_else(|| self.vocab.is_special(id), |f| f.is_special(id))
    }

    /// The added tokens and their ids, by rising id.
    pub fn added_tokens(&self) -> impl Iterator<Item = (u32, &AddedToken)> {
        self.added.tokens.iter().map(|(id, token)| (*id, token))
    }

    /// Added tokens whose id is not the one the file states; see [`Reassigned`].
    pub fn reassigned_tokens(&self) -> &[Reassigned] {
        &self.added.reassigned
    }
}

/// Appends ids.
struct Ids<'a> {
    tokenizer: &'a Tokenizer,
    scratch: MergeScratch,
    out: &'a mut Vec<u32>,
    /// Words must not become added tokens.
    plain: bool,
}

impl<'t> Visitor<'t> for Ids<'_> {
    fn segment(&mut self, _: usize, _: &'t str, _: bool) {}

    #[inline]
    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        let Tokenizer { bpe, vocab, .. } = self.tokenizer;
        let (word, before) = (word.text.as_bytes(), self.out.len());
        bpe.encode(word, vocab, &mut self.scratch, self.out);
        if self.plain && self.out[before..].iter().any(|id| vocab.is_added(*id)) {
            self.out.truncate(before);
            bpe.encode_bytes(word, self.out);
        }
        ControlFlow::Continue(())
    }

    fn words(&mut self, words: Words<'_>) -> ControlFlow<()> {
        let Tokenizer { bpe, vocab, .. } = self.tokenizer;
        let before = self.out.len();
        bpe.encode_words(&words, vocab, &mut self.scratch, self.out);
        if self.plain && self.out[before..].iter().any(|id| vocab.is_added(*id)) {
            self.out.truncate(before);
            return words.each(|word| self.word(word));
        }
        ControlFlow::Continue(())
    }

    fn raw_token(&mut self, id: u32, _: Range<usize>) -> ControlFlow<()> {
        self.out.push(id);
        ControlFlow::Continue(())
    }

    fn normalized_token(&mut self, id: u32, _: Range<usize>) -> ControlFlow<()> {
        self.out.push(id);
        ControlFlow::Continue(())
    }
}

impl gather::Ids<'_> for Ids<'_> {
    fn scratch(&mut self) -> &mut MergeScratch {
        &mut self.scratch
    }
}

/// Counts ids.
struct Count<'a> {
    tokenizer: &'a Tokenizer,
    scratch: MergeScratch,
    word: Vec<u32>,
    count: usize,
}

impl<'t> Visitor<'t> for Count<'_> {
    fn segment(&mut self, _: usize, _: &'t str, _: bool) {}

    fn word(&mut self, word: Word<'_>) -> ControlFlow<()> {
        let Tokenizer { bpe, vocab, .. } = self.tokenizer;
        self.word.clear();
        bpe.encode(
            word.text.as_bytes(),
            vocab,
            &mut self.scratch,
            &mut self.word,
        );
        self.count += self.word.len();
        ControlFlow::Continue(())
    }

    fn words(&mut self, words: Words<'_>) -> ControlFlow<()> {
        let Tokenizer { bpe, vocab, .. } = self.tokenizer;
        self.word.clear();
        bpe.encode_words(&words, vocab, &mut self.scratch, &mut self.word);
        self.count += self.word.len();
        ControlFlow::Continue(())
    }

    fn raw_token(&mut self, _: u32, _: Range<usize>) -> ControlFlow<()> {
        self.count += 1;
        ControlFlow::Continue(())
    }

    fn normalized_token(&mut self, _: u32, _: Range<usize>) -> ControlFlow<()> {
        self.count += 1;
        ControlFlow::Continue(())
    }
}

impl gather::Ids<'_> for Count<'_> {
    fn scratch(&mut self) -> &mut MergeScratch {
        &mut self.scratch
    }
}
