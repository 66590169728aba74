//! Builds the tables of a model from its tokens and merge rules.

use super::cut_table::CutTable;
use super::letter_table::{self, push_swapped};
use super::merge_rules::MergeRules;
use super::{CharBpe, NO_ID, Scratch};
use crate::bpe::prove::Proofs;
use crate::cache::Owner;
use crate::error::Error;
use crate::pairs::PairTable;
use crate::pieces::Tokens;
use crate::short_tokens::{Key, ShortTokenTable};
use crate::store::{self, ZeroedBuffer};

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
    let mut letters = letter_table::Builder::new(tokens.iter().filter_map(single_character));
    let cut_table = CutTable::new(neighbours(tokens, rules), &mut letters, &pairs);
    let whole = || tokens.iter().map(|(token, id)| (token.to_owned(), id));
    let mut model = CharBpe {
        letters: letters.finish(),
        bytes,
        unk: unmerged.unk,
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

/// Returns the characters on both sides of the place where each rule joins its parts.
fn neighbours(tokens: &Tokens, rules: &[[u32; 3]]) -> impl Iterator<Item = (char, char)> + Clone {
    let ends = |id| {
        let token = tokens.get(id).unwrap_or_default();
        Some([token.chars().next()?, token.chars().next_back()?])
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
fn words(tokens: &Tokens, rules: &[[u32; 3]], model: &CharBpe) -> ShortTokenTable {
    let single = tokens.iter().filter_map(single_character);
    let proofs = Proofs::new(
        single.map(|(_, id)| id),
        rules,
        &model.pairs,
        tokens.id_end(),
    );
    let mut found = Vec::with_capacity(tokens.len());
    let mut scratch = Scratch::default();
    let mut spelled = Vec::new();
    for (token, id) in tokens.iter() {
        spelled.clear();
        push_swapped(token, &mut spelled);
        let key = Key::new(&spelled, 0, spelled.len());
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
    // A word without a slot is merged.
    ShortTokenTable::new(found.iter().copied()).0
}
