//! The blocks of a trie as events, for a reader who has missed some.

use prelude_core::{BlockId, KvEvent, StoredBlocks};

use super::{NO_PARENT, PrefixTrie};

impl PrefixTrie {
    /// Returns events that store every block of the trie, parents before their children. Each event
    /// is a path down to a block: from where the paths of earlier events end, or from a root.
    pub(crate) fn contents(&self) -> Vec<KvEvent> {
        let mut is_told = vec![false; self.nodes.len()];
        let mut events = Vec::new();
        for at in 0..self.nodes.len() {
            if !self.nodes[at].present || is_told[at] {
                continue;
            }
            let mut path = Vec::new();
            let mut block = BlockId(u32::try_from(at).expect("block ids are u32"));
            while block != NO_PARENT && !is_told[block.index()] {
                is_told[block.index()] = true;
                path.push(block);
                block = self.nodes[block.index()].parent;
            }
            path.reverse();
            events.push(KvEvent::Stored(self.run(&path, block)));
        }
        events
    }

    /// Returns the blocks of a path, the first of which follows `parent`.
    fn run(&self, path: &[BlockId], parent: BlockId) -> StoredBlocks {
        let hash = |block: BlockId| self.nodes[block.index()].hash.0;
        let tokens = path.iter().flat_map(|&block| self.tokens_of(block));
        StoredBlocks {
            hashes: path.iter().map(|&block| hash(block)).collect(),
            parent: (parent != NO_PARENT).then(|| hash(parent)),
            tokens: tokens.copied().collect(),
            // Only blocks that start a prompt have a salt.
            salt: self.salts.get(&path[0]).cloned(),
        }
    }
}
