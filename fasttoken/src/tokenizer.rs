//! The tokenizer: encoding, counting, and looking up tokens.

use crate::added::{AddedToken, AddedTokens, Reassigned, Recognise};
use crate::encoding::Encoding;
use crate::family::Family;
use crate::input::Input;
use crate::normalize::Normalizer;
use crate::padding::Padding;
use crate::postprocess::{PostProcessor, TemplatePart};
use crate::text_walk::TextSteps;
use crate::truncation::Truncation;
use crate::warning::Warning;
use std::borrow::Cow;
use std::cell::Cell;

/// Upper bound of ids whose memory a thread keeps between calls of [`Tokenizer::count`].
const MAX_KEPT_IDS: usize = 1 << 14;

/// A tokenizer as one `tokenizer.json` describes it.
///
/// A tokenizer is immutable after loading: every method takes `&self` and there are no locks, so
/// one value can serve any number of threads. State between calls belongs to the thread: a cache of
/// 2 MiB, on Linux a huge page, and 0.1 to 0.3 MiB of working memory, up to 1.5 MiB after very long
/// words. Only the first call and the end of a thread take a lock, to hand its cache on.
#[derive(Debug)]
pub struct Tokenizer {
    pub(crate) normalizer: Normalizer,
    pub(crate) added: AddedTokens,
    pub(crate) family: Family,
    pub(crate) post_processor: PostProcessor,
    pub(crate) truncation: Option<Truncation>,
    pub(crate) padding: Option<Padding>,
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
        let mode = (Recognise::None, true);
        self.family.encode(self.text_steps(), text, mode, out);
    }

    /// Appends the ids of `text`, recognising only some added tokens, as the reference
    /// does with the same setting. No special tokens are added.
    pub fn encode_recognising(&self, text: &str, recognise: Recognise, out: &mut Vec<u32>) {
        let mode = (recognise, false);
        self.family.encode(self.text_steps(), text, mode, out);
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

    /// Returns the steps before the model.
    pub(crate) fn text_steps(&self) -> TextSteps<'_> {
        TextSteps {
            added: &self.added,
            normalizer: &self.normalizer,
        }
    }

    /// Returns the longest prefix of `encode(text, false)` of at most `max_tokens` ids, and the
    /// number of bytes of `text` that these ids cover.
    ///
    /// Reads only as much of the text as needed, if the file's split pattern is a common one and
    /// the text has spaces or Chinese or Japanese punctuation here and there. Models that are not
    /// byte-level read all of it.
    ///
    /// The number of bytes is the start of the first character that the ids do not cover
    /// completely, so it is a character boundary, and `text.len()` if there are no more ids. With
    /// WordPiece and Unigram, which drop blanks, it is the start of the next id. Text
    /// that is cut there need not encode to the same ids again.
    ///
    /// ```
    /// # let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");
    /// let tokenizer = fasttoken::Tokenizer::from_file(file)?;
    /// let text = "Where is my card?";
    /// let (ids, bytes) = tokenizer.encode_prefix(text, 3);
    /// assert_eq!(ids, tokenizer.encode(text, false)[..3]);
    /// assert_eq!(&text[..bytes], "Where is my");
    /// # Ok::<(), fasttoken::Error>(())
    /// ```
    pub fn encode_prefix(&self, text: &str, max_tokens: usize) -> (Vec<u32>, usize) {
        if max_tokens == 0 {
            return (Vec::new(), 0);
        }
        self.family.prefix(self.text_steps(), text, max_tokens)
    }

    /// Returns the bytes that `id` stands for, which need not be whole characters: the token's
    /// bytes, or the text of an added token.
    pub fn id_to_piece(&self, id: u32) -> Option<&[u8]> {
        let family = &self.family;
        family.contains(id).then(|| family.piece(id))
    }

    /// Returns the token as the vocabulary spells it, such as `Ġthe`.
    pub fn id_to_token(&self, id: u32) -> Option<Cow<'_, str>> {
        self.family.spelling(id)
    }

    /// Returns the id of a token by its spelling in the vocabulary. Added tokens take precedence.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        let added = self.added.ids.get(token).copied();
        added.or_else(|| self.family.id(&self.added, token))
    }

    /// Returns the number of tokens, including added tokens. Ids can be larger if the file leaves
    /// holes.
    pub fn vocab_size(&self) -> usize {
        self.family.size()
    }

    /// Returns every id that has a token, with the token as the vocabulary spells it, by rising id.
    /// Added tokens are among them.
    pub fn vocab(&self) -> impl Iterator<Item = (u32, Cow<'_, str>)> {
        (0..self.family.end()).filter_map(|id| Some((id, self.id_to_token(id)?)))
    }

    /// Returns true if `id` is an added token that is marked special.
    pub fn is_special(&self, id: u32) -> bool {
        self.family.is_special(id)
    }

    /// Returns the added tokens and their ids, by rising id.
    pub fn added_tokens(&self) -> impl Iterator<Item = (u32, &AddedToken)> {
        self.added.tokens.iter().map(|(id, token)| (*id, token))
    }

    /// Returns notes about the file: parts that make encoding slow, or that are not known to be exact.
    /// There are none for the files of most models.
    pub fn warnings(&self) -> &[Warning] {
        match &self.family {
            Family::ByteLevel(model) => &model.pre_tokenizer.warnings,
            Family::Text(_) | Family::Spm(_) => &[],
        }
    }

    /// Returns the added tokens whose id is not the one that the file states; see [`Reassigned`].
    pub fn reassigned_tokens(&self) -> &[Reassigned] {
        &self.added.reassigned
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
