//! Builds the tables of a model from its tokens and merge rules.

use super::merge_rules::MergeRules;
use super::spelling::{push_swapped, swapped};
use super::{CharBpe, NO_ID, Scratch};
use crate::bpe::Bpe;
use crate::bpe::prove::Proofs;
use crate::error::Error;
use crate::pairs::{PairTable, TOKEN_END};
use crate::pieces::{META, Tokens};
use crate::premerge::Premerged;
use crate::short_tokens::{Key, ShortTokenTable};
use crate::store::{self, ZeroedBuffer};
use crate::vocab::{NO_TOKEN, Vocab};

/// Returns true if every byte of UTF-8 has a token.
pub(super) fn is_complete(bytes: &[u32; 256]) -> bool {
    let used = |byte: usize| !matches!(byte, 0xC0 | 0xC1 | 0xF5..);
    let mut bytes = bytes.iter().enumerate();
    bytes.all(|(b, id)| !used(b) || *id != NO_ID)
}

/// Builds the model of a file.
pub(super) fn build(file: &MergeRules) -> Result<CharBpe, Error> {
    let MergeRules {
        tokens,
        rules,
        unmerged,
        ..
    } = file;
    let bytes = unmerged.bytes;
    // Of two rules for one pair, the later wins, as in the reference.
    let pairs = PairTable::build(rules)
        .map_err(|_| Error::too_many_collisions("$.model.merges", "a pair"))?;
    // A byte stands for a character that is no token. That of a space stands for `▁` here.
    let mut byte_ids = bytes;
    byte_ids[usize::from(b' ')] = NO_TOKEN;
    let single = || tokens.iter().filter_map(single_character);
    for (c, id) in single().map(|(c, id)| (swapped(c), id)) {
        if c.is_ascii() {
            byte_ids[c as usize] = id;
        }
    }
    let space = bytes[usize::from(b' ')];
    let space = (tokens.id(" ").is_none() && space != NO_ID).then_some((META, space));
    let chars = single().map(|(c, id)| (swapped(c), id)).chain(space);
    let premerged = Premerged::of_chars(
        chars.filter(|(c, _)| !c.is_ascii()),
        neighbours(tokens, rules),
    );
    let premerged = premerged.map_err(|id| {
        Error::unsupported(
            "$.model.vocab",
            format!("character whose id is {id} (supported: below {TOKEN_END})"),
        )
    })?;
    let whole = || tokens.iter().map(|(token, id)| (token.to_owned(), id));
    let mut model = CharBpe {
        engine: Bpe::of_chars(byte_ids, pairs, premerged),
        no_words: Vocab::empty(),
        bytes,
        unk: unmerged.unk,
        fuse_unk: file.fuse_unk,
        whole: file.ignore_merges.then(|| whole().collect()),
        complete: is_complete(&bytes),
    };
    let words = words(tokens, rules, &model);
    model.engine.set_words(words.iter().copied());
    store::move_to_huge_pages(model.engine.tables().collect(), ZeroedBuffer::default());
    Ok(model)
}

/// Returns the characters on both sides of the place where each rule joins its parts, in the spelling
/// of texts.
fn neighbours(tokens: &Tokens, rules: &[[u32; 3]]) -> impl Iterator<Item = (char, char)> {
    let ends = |id| {
        let token = tokens.get(id).unwrap_or_default();
        Some([token.chars().next()?, token.chars().next_back()?].map(swapped))
    };
    let ends: Vec<Option<[char; 2]>> = (0..tokens.id_end() as u32).map(ends).collect();
    rules.iter().filter_map(move |&[left, right, _]| {
        let [_, left] = ends[left as usize]?;
        let [right, _] = ends[right as usize]?;
        Some((left, right))
    })
}

fn single_character((token, id): (&str, u32)) -> Option<(char, u32)> {
    let mut chars = token.chars();
    let c = chars.next()?;
    chars.next().is_none().then_some((c, id))
}

/// Returns the short tokens that their own characters are merged to.
fn words(tokens: &Tokens, rules: &[[u32; 3]], model: &CharBpe) -> Vec<(Key, u32)> {
    let single = tokens.iter().filter_map(single_character);
    let proofs = Proofs::new(
        single.map(|(_, id)| id),
        rules,
        model.engine.pairs(),
        tokens.id_end(),
    );
    let mut found = Vec::with_capacity(tokens.len());
    let mut scratch = Scratch::default();
    let mut spelled = String::new();
    for (token, id) in tokens.iter() {
        spelled.clear();
        push_swapped(token, &mut spelled);
        let key = Key::new(spelled.as_bytes(), 0, spelled.len());
        let mut makes = || {
            let (mut count, mut only) = (0, NO_ID);
            model.merge_all(token, &mut scratch, |made, _| {
                (count, only) = (count + 1, made);
            });
            (count, only) == (1, id)
        };
        if ShortTokenTable::fits(key, id) && (proofs.contains(id) || makes()) {
            found.push((key, id));
        }
    }
    found
}
