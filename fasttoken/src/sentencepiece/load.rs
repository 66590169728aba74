//! Loading of SentencePiece-style models: from the parts of a `tokenizer.json` to a checked
//! [`SentencePiece`].

mod special;

use super::SentencePiece;
use super::cut_table::CutTable;
use super::file::File;
use super::letters;
use super::merge::{Merging, Model, NO_ID};
use super::split::Splitter;
use crate::added::AddedTokens;
use crate::bpe::prove::Proofs;
use crate::cache::Owner;
use crate::error::Error;
use crate::json::Component;
use crate::pairs::PairTable;
use crate::pieces::{Decoder, Tokens, vocabulary};
use crate::short_tokens::{Key, ShortTokenTable};
use crate::store::{self, ZeroedBuffer};
pub(super) use special::Special;

/// Returns true if a file is SentencePiece-style: its decoder is a chain, or puts spaces for `▁`,
/// and its pre-tokenizer is not byte-level.
pub(crate) fn is_sentencepiece(
    pre_tokenizer: Option<&Component>,
    decoder: Option<&Component>,
) -> bool {
    let kind = decoder.and_then(|decoder| decoder.kind("$.decoder").ok());
    matches!(kind, Some("Sequence" | "Metaspace")) && !pre_tokenizer.is_some_and(is_byte_level)
}

fn is_byte_level(component: &Component) -> bool {
    let path = "$.pre_tokenizer";
    let parts = component.parts("pretokenizers", path).unwrap_or_default();
    matches!(component.kind(path), Ok("ByteLevel"))
        || parts.iter().any(|(part, _)| is_byte_level(part))
}

/// Builds everything; `added` was loaded with the ids of `file`.
pub(crate) fn load(
    file: &File,
    pre_tokenizer: Option<&Component>,
    decoder: Option<&Component>,
    added: &AddedTokens,
) -> Result<SentencePiece, Error> {
    let splitter = Splitter::load(pre_tokenizer, "$.pre_tokenizer")?;
    let decoder = Decoder::load(decoder, "$.decoder")?;
    let vocab = vocabulary(&file.tokens, added, &decoder)?;
    Ok(SentencePiece {
        model: model(file)?,
        splitter,
        direct: None,
        decoder,
        vocab,
    })
}

/// Returns true if every byte of UTF-8 has a token.
pub(super) fn is_complete(bytes: &[u32; 256]) -> bool {
    let used = |byte: usize| !matches!(byte, 0xC0 | 0xC1 | 0xF5..);
    let mut bytes = bytes.iter().enumerate();
    bytes.all(|(b, id)| !used(b) || *id != NO_ID)
}

fn model(file: &File) -> Result<Model, Error> {
    let File {
        tokens,
        rules,
        special,
        ..
    } = file;
    let bytes = special.bytes;
    let mut letters = letters::Builder::new(tokens.iter().filter_map(single_character));
    // Of two rules for one pair, the later wins, as in the reference.
    let pairs = PairTable::build(rules)
        .map_err(|_| Error::too_many_collisions("$.model.merges", "a pair"))?;
    let ends = |id| {
        let token = tokens.get(id).unwrap_or_default();
        Some([token.chars().next()?, token.chars().next_back()?])
    };
    let ends: Vec<Option<[char; 2]>> = (0..tokens.id_end() as u32).map(ends).collect();
    let of_rule = |&[left, right, _]: &[u32; 3]| {
        let [_, left] = ends[left as usize]?;
        let [right, _] = ends[right as usize]?;
        Some((left, right))
    };
    let cut_table = CutTable::new(rules.iter().filter_map(of_rule), &mut letters, &pairs);
    let whole = || tokens.iter().map(|(token, id)| (token.to_owned(), id));
    let mut model = Model {
        letters: letters.finish(),
        bytes,
        unk: special.unk,
        fuse_unk: file.fuse_unk,
        pairs,
        cut_table,
        words: ShortTokenTable::default(),
        owner: Owner::new(),
        whole: file.ignore_merges.then(|| whole().collect()),
        complete: is_complete(&bytes),
    };
    model.words = words(tokens, rules, &model);
    store::move_to_huge_pages(model.tables().collect(), ZeroedBuffer::default());
    Ok(model)
}

fn single_character((token, id): (&str, u32)) -> Option<(char, u32)> {
    let mut chars = token.chars();
    let c = chars.next()?;
    chars.next().is_none().then_some((c, id))
}

/// The short tokens of several characters that their own characters are merged to.
fn words(tokens: &Tokens, rules: &[[u32; 3]], model: &Model) -> ShortTokenTable {
    let single = tokens.iter().filter_map(single_character);
    let proofs = Proofs::new(
        single.map(|(_, id)| id),
        rules,
        &model.pairs,
        tokens.id_end(),
    );
    let mut found = Vec::with_capacity(tokens.len());
    let mut merging = Merging::default();
    let mut spelled = Vec::new();
    for (token, id) in tokens.iter() {
        spelled.clear();
        letters::push_swapped(token, &mut spelled);
        let key = Key::new(&spelled, 0, spelled.len());
        let makes = |merging| proofs.contains(id) || model.makes(token, id, merging);
        if ShortTokenTable::fits(key, id) && makes(&mut merging) {
            found.push((key, id));
        }
    }
    // The other tokens are checked by merging.
    ShortTokenTable::new(found.iter().copied()).0
}
