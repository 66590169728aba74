//! The events of a cache that were not taken yet, in bounded memory.

use std::sync::Arc;

use prelude_core::{KvEvent, StoredBlocks, TokenId};

use crate::BlockHash;

/// Events in order. Blocks stored one behind the other are one event, and so are blocks removed in
/// a row.
#[derive(Debug)]
pub(crate) struct EventLog {
    events: Vec<KvEvent>,
    /// Blocks that `events` name.
    blocks: usize,
    max_blocks: usize,
    /// True if events were dropped, and the log with them.
    is_incomplete: bool,
}

impl EventLog {
    pub(crate) const fn new(max_blocks: usize) -> Self {
        Self {
            events: Vec::new(),
            blocks: 0,
            max_blocks,
            is_incomplete: false,
        }
    }

    /// Notes that a block was stored behind `parent`, or at the start of a prompt under `salt`.
    pub(crate) fn stored(
        &mut self,
        salt: Option<&Arc<str>>,
        parent: Option<BlockHash>,
        tokens: &[TokenId],
        hash: BlockHash,
    ) {
        if !self.has_room() {
            return;
        }
        let parent = parent.map(|parent| parent.0);
        if let Some(KvEvent::Stored(run)) = self.events.last_mut()
            && parent.is_some()
            && run.hashes.last().copied() == parent
        {
            run.hashes.push(hash.0);
            run.tokens.extend_from_slice(tokens);
            return;
        }
        self.events.push(KvEvent::Stored(StoredBlocks {
            hashes: vec![hash.0],
            parent,
            tokens: tokens.to_vec(),
            salt: salt.filter(|_| parent.is_none()).cloned(),
        }));
    }

    /// Notes that a block was removed.
    pub(crate) fn removed(&mut self, hash: BlockHash) {
        if !self.has_room() {
            return;
        }
        match self.events.last_mut() {
            Some(KvEvent::Removed(hashes)) => hashes.push(hash.0),
            _ => self.events.push(KvEvent::Removed(vec![hash.0])),
        }
    }

    /// Returns the events since the last call; `None` if some were dropped.
    pub(crate) fn take(&mut self) -> Option<Vec<KvEvent>> {
        self.blocks = 0;
        let events = std::mem::take(&mut self.events);
        let is_incomplete = std::mem::take(&mut self.is_incomplete);
        (!is_incomplete).then_some(events)
    }

    /// Counts one more block. Returns false if the log is full, and drops it.
    fn has_room(&mut self) -> bool {
        if self.is_incomplete {
            return false;
        }
        self.blocks += 1;
        if self.blocks > self.max_blocks {
            self.is_incomplete = true;
            self.events = Vec::new();
        }
        !self.is_incomplete
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::{KvCache, Reclaim};

    const BLOCK: usize = 2;

    /// A block's parent, tokens and salt.
    type Block = (Option<u64>, Vec<TokenId>, Option<Arc<str>>);

    /// A reader of events: blocks by hash.
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Reader(BTreeMap<u64, Block>);

    impl Reader {
        fn read(&mut self, events: Vec<KvEvent>) {
            for event in events {
                match event {
                    KvEvent::Stored(run) => self.store(&run),
                    KvEvent::Removed(hashes) => {
                        for hash in hashes {
                            assert!(self.0.remove(&hash).is_some(), "removed what is not there");
                            let is_parent =
                                |(parent, ..): &(Option<u64>, _, _)| *parent == Some(hash);
                            assert!(!self.0.values().any(is_parent), "a parent before its child");
                        }
                    }
                    KvEvent::Cleared => self.0.clear(),
                }
            }
        }

        fn store(&mut self, run: &StoredBlocks) {
            assert_eq!(run.block_size(), BLOCK);
            let mut parent = run.parent;
            let blocks = run.tokens.chunks(BLOCK);
            for (n, (&hash, tokens)) in run.hashes.iter().zip(blocks).enumerate() {
                let salt = run.salt.clone().filter(|_| n == 0);
                assert!(parent.is_none_or(|parent| self.0.contains_key(&parent)));
                let before = match parent {
                    Some(parent) => BlockHash(parent),
                    None => BlockHash::root(salt.as_deref()),
                };
                assert_eq!(
                    before.then(tokens).0,
                    hash,
                    "the hash is that of the tokens"
                );
                let known = self.0.insert(hash, (parent, tokens.to_vec(), salt));
                assert!(known.is_none(), "stored twice");
                parent = Some(hash);
            }
        }
    }

    /// Computes a prompt as a request alone would.
    fn compute(cache: &mut KvCache, salt: Option<&Arc<str>>, tokens: &[TokenId]) {
        let mut blocks = cache.match_prefix(salt, tokens, tokens.len()).into_blocks();
        let known = blocks.len();
        while (blocks.len() + 1) * BLOCK <= tokens.len() {
            let Some(block) = cache.allocate(Reclaim::Evict) else {
                break;
            };
            blocks.push(block);
        }
        let parent = known.checked_sub(1).map(|p| blocks[p]);
        let span = &tokens[known * BLOCK..blocks.len() * BLOCK];
        cache.publish(salt, parent, span, &mut blocks[known..]);
        cache.release_all(blocks);
    }

    #[test]
    fn a_prompt_is_one_event_and_its_salt_is_told_once() {
        let mut cache = KvCache::new(8, 2);
        assert_eq!(cache.take_events(), []);
        cache.record_events(100);
        let salt: Arc<str> = "tenant".into();
        compute(&mut cache, Some(&salt), &[1, 2, 3, 4]);
        let root = BlockHash::root(Some("tenant"));
        let hashes: Vec<u64> = root.blocks(&[1, 2, 3, 4, 5, 6], 2).map(|h| h.0).collect();
        let stored = |at: std::ops::Range<usize>, tokens: &[TokenId], salt| {
            KvEvent::Stored(StoredBlocks {
                parent: at.start.checked_sub(1).map(|n| hashes[n]),
                hashes: hashes[at].to_vec(),
                tokens: tokens.to_vec(),
                salt,
            })
        };
        let first = stored(0..2, &[1, 2, 3, 4], Some(salt.clone()));
        assert_eq!(cache.take_events(), [first]);
        compute(&mut cache, Some(&salt), &[1, 2, 3, 4, 5, 6]);
        assert_eq!(cache.take_events(), [stored(2..3, &[5, 6], None)]);
        assert_eq!(cache.take_events(), []);
    }

    proptest! {
        /// A reader of all events knows what the cache holds, however seldom it takes them and
        /// however few the cache keeps.
        #[test]
        fn readers_of_events_know_the_cache(
            prompts in proptest::collection::vec(
                (0usize..3, proptest::collection::vec(0u32..2, 0..12), any::<bool>()), 1..60),
            blocks in 1u32..8,
            kept in 0usize..20,
        ) {
            let salts = [None, Some(Arc::from("a")), Some(Arc::from("b"))];
            let mut cache = KvCache::new(blocks, 2);
            cache.record_events(kept);
            let mut reader = Reader::default();
            for (salt, tokens, take) in prompts {
                compute(&mut cache, salts[salt].as_ref(), &tokens);
                if take {
                    reader.read(cache.take_events());
                    let mut all = Reader::default();
                    all.read(cache.contents());
                    prop_assert_eq!(all.0.len(), cache.cached_blocks() as usize);
                    prop_assert_eq!(&reader, &all);
                }
            }
        }
    }
}
