//! Finding the words that are one token, and where merging can begin.

use super::Bpe;
use super::merge::Merging;
use super::prove::Proofs;
use crate::atoms::Atoms;
use crate::table::{Crowded, StringTableBuilder};
use crate::vocab::Vocab;
use crate::words::WordTable;

impl Bpe {
    /// Finds the words that are one token. `all` are the model's own tokens that
    /// spell bytes, rising; with `ignore_merges` all of them are taken, otherwise those
    /// that their merges lead to. `rules` are those that the pairs were made of.
    ///
    /// # Errors
    /// Where words were chosen to share their place in a table.
    pub(crate) fn index_words(
        &mut self,
        all: &[u32],
        rules: &[[u32; 3]],
        vocab: &Vocab,
        ignore_merges: bool,
    ) -> Result<(), Crowded> {
        // Tokens are numbered in the order in which training found them, which is
        // about that of their frequency.
        let own;
        let ids = if ignore_merges {
            all
        } else {
            own = self.reproduced(all, rules, vocab);
            &own
        };
        let lens = self.index_ids(ids, vocab)?;
        self.long_lens = lens;
        let repeats = self.pairs.has_repeats();
        let ranked = (0..)
            .zip(rules)
            .map(|(rank, rule)| (rule[0], rule[1], rank));
        // Of two rules for one pair, the earlier does not exist.
        let ranked = ranked.filter(|&(l, r, rank)| !repeats || self.pairs.rank(l, r) == rank);
        self.atoms = Atoms::new(&self.byte_ids, &self.pairs, ranked, all, vocab);
        self.proved = !ignore_merges;
        self.name_owners();
        Ok(())
    }

    /// Those of `all` that merging their bytes leads to.
    fn reproduced(&self, all: &[u32], rules: &[[u32; 3]], vocab: &Vocab) -> Vec<u32> {
        let id_end = all.last().map_or(0, |id| *id as usize + 1);
        let proofs = Proofs::new(self.byte_ids.into_iter(), rules, &self.pairs, id_end);
        let mut merging = Merging::default();
        let mut merged = Vec::new();
        let mut is_own = |id: u32| {
            merged.clear();
            self.merge(vocab.piece(id), &mut merging, &mut merged);
            merged == [id]
        };
        let ids = all.iter().copied();
        ids.filter(|id| proofs.contains(*id) || is_own(*id))
            .collect()
    }

    /// Fills the tables of words; the lengths of the shortest and the longest of those in
    /// the second one.
    fn index_ids(&mut self, ids: &[u32], vocab: &Vocab) -> Result<(u32, u32), Crowded> {
        let (words, crowded) = WordTable::new(ids.iter().map(|&id| (vocab.key(id), id)));
        self.words = words;
        let long = ids
            .iter()
            .filter(|&&id| !WordTable::fits(vocab.key(id), id))
            .chain(&crowded);
        let mut long_words = StringTableBuilder::with_capacity(long.clone().count());
        let mut lens = (u32::MAX, 0);
        for &id in long {
            let word = vocab.piece(id);
            long_words.insert(word, id, |id| vocab.piece(id))?;
            let len = u32::try_from(word.len()).unwrap_or(u32::MAX);
            lens = (len.min(lens.0), len.max(lens.1));
        }
        self.long_words = long_words.finish();
        Ok(lens)
    }
}
