//! Loading: finds the words that are a single token, and the characters at which merging can begin.

use super::Bpe;
use super::prove::Proofs;
use crate::ablation::FastPath;
use crate::heap_merge::HeapMerge;
use crate::premerge::Premerged;
use crate::short_tokens::ShortTokenTable;
use crate::string_table::{StringTableBuilder, TooManyCollisions};
use crate::vocab::Vocab;

impl Bpe {
    /// Fills the tables of single-token words. `all` lists the model's own tokens that spell bytes,
    /// rising. With `ignore_merges` each of them is taken, otherwise those that merging their bytes
    /// produces. `rules` lists the merges that the pair table was built from.
    ///
    /// # Errors
    /// Fails if too many words share a slot of a table.
    pub(crate) fn index_words(
        &mut self,
        all: &[u32],
        rules: &[[u32; 3]],
        vocab: &Vocab,
        ignore_merges: bool,
    ) -> Result<(), TooManyCollisions> {
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
        if FastPath::Premerge.is_taken() {
            self.premerged = Premerged::new(&self.byte_ids, &self.pairs, ranked, all, vocab);
        }
        self.proved = !ignore_merges;
        self.name_owners();
        Ok(())
    }

    /// Returns the tokens of `all` that merging their bytes produces.
    fn reproduced(&self, all: &[u32], rules: &[[u32; 3]], vocab: &Vocab) -> Vec<u32> {
        let id_end = all.last().map_or(0, |id| *id as usize + 1);
        let proofs = Proofs::new(self.byte_ids.into_iter(), rules, &self.pairs, id_end);
        let mut merging = HeapMerge::default();
        let mut merged = Vec::new();
        let mut is_own = |id: u32| {
            merged.clear();
            self.merge(vocab.piece(id), &mut merging, &mut merged);
            merged == [id]
        };
        let ids = all.iter().copied();
        let proved = |id: u32| FastPath::Proofs.is_taken() && proofs.contains(id);
        ids.filter(|id| proved(*id) || is_own(*id)).collect()
    }

    /// Fills both tables of words. Returns the byte lengths of the shortest and the longest word of
    /// the second table.
    fn index_ids(&mut self, ids: &[u32], vocab: &Vocab) -> Result<(u32, u32), TooManyCollisions> {
        let (words, crowded) = ShortTokenTable::new(ids.iter().map(|&id| (vocab.key(id), id)));
        self.words = words;
        let long = ids
            .iter()
            .filter(|&&id| !ShortTokenTable::fits(vocab.key(id), id))
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
