//! Loading of SentencePiece-style models: from the parts of a `tokenizer.json` to a checked
//! [`SentencePiece`].

mod special;

use super::SentencePiece;
use super::borders::Borders;
use super::decode::Decoder;
use super::file::{File, token_collides};
use super::letters;
use super::merge::{Merging, Model, NO_ID};
use super::split::Splitter;
use super::tokens::Tokens;
use super::vocab::{self, Info, Vocab};
use crate::added::AddedTokens;
use crate::bpe::prove::Proofs;
use crate::cache::Owner;
use crate::error::Error;
use crate::json::Component;
use crate::pairs::PairTable;
use crate::short_tokens::{Key, ShortTokenTable};
use crate::store::{self, Room};
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
    let borders = Borders::new(rules.iter().filter_map(of_rule), &mut letters, &pairs);
    let whole = || tokens.iter().map(|(token, id)| (token.to_owned(), id));
    let mut model = Model {
        letters: letters.finish(),
        bytes,
        unk: special.unk,
        fuse_unk: file.fuse_unk,
        pairs,
        borders,
        words: ShortTokenTable::default(),
        owner: Owner::new(),
        whole: file.ignore_merges.then(|| whole().collect()),
        complete: is_complete(&bytes),
    };
    model.words = words(tokens, rules, &model);
    store::gather(model.tables().collect(), Room::default());
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

fn vocabulary(tokens: &Tokens, added: &AddedTokens, decoder: &Decoder) -> Result<Vocab, Error> {
    let added_end = added.tokens.last().map_or(0, |(id, _)| *id as usize + 1);
    let end = tokens.id_end().max(added_end) as u32;
    let mut builder = vocab::Builder::default();
    let special = added.special_contents.iter();
    let mut special: Vec<u32> = special.filter_map(|token| tokens.id(token)).collect();
    special.sort_unstable();
    let mut rest = added.tokens.iter().peekable();
    for id in 0..end {
        let model = tokens.get(id);
        let Some((_, token)) = rest.next_if(|(next, _)| *next == id) else {
            let Some(token) = model else {
                builder.push_hole();
                continue;
            };
            let info = Info {
                hidden: special.binary_search(&id).is_ok(),
                model: true,
                ..Info::default()
            };
            builder.push(token, |out| decoder.push_piece(token, out), info);
            continue;
        };
        if let Some(other) = model.filter(|other| *other != token.content) {
            // Happens where the vocabulary has holes: the next free id is not free.
            return Err(Error::DuplicateId {
                id,
                first: other.to_owned(),
                second: token.content.clone(),
            });
        }
        // Decoding writes an added token in its normalized form.
        let form = added.normalized_forms.get(&id);
        let spelling = form.unwrap_or(&token.content);
        let info = Info {
            hidden: added.special_contents.contains(spelling),
            special: token.special,
            added: true,
            model: model.is_some(),
            renamed: form.is_some(),
        };
        builder.push(spelling, |out| decoder.push_piece(spelling, out), info);
    }
    let contents = added.ids.keys();
    let new = contents.filter(|content| tokens.id(content).is_none());
    let vocab = builder.finish(tokens.len() + new.count());
    vocab.map_err(|id| token_collides(tokens.get(id).unwrap_or_default()))
}
