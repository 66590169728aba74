//! Copies of KV blocks between an executor's pool and its host memory.

use crate::{BlockId, Capacity, HostBlockId};

/// Copies of whole KV blocks that an executor makes before it computes a step.
///
/// All stores come before all loads, and both before anything that the step writes. So a block may
/// be stored and loaded into in one step, and a load may read what a store of the same step wrote.
/// No two stores have one target, nor have two loads.
///
/// An executor makes the copies of a step even if it then fails that step
/// ([`crate::ExecutorError::Step`]), since later steps rely on them. One that cannot make them
/// answers [`crate::ExecutorError::Lost`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvCopies {
    /// Copies from the pool to host memory.
    pub stores: Vec<KvStore>,
    /// Copies from host memory to the pool.
    pub loads: Vec<KvLoad>,
}

/// A copy of one block from the pool to host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvStore {
    /// The block to read.
    pub from: BlockId,
    /// The host block to write.
    pub to: HostBlockId,
}

/// A copy of one block from host memory to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLoad {
    /// The host block to read.
    pub from: HostBlockId,
    /// The block to write.
    pub to: BlockId,
}

impl KvCopies {
    /// Returns whether there is nothing to copy.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.stores.is_empty() && self.loads.is_empty()
    }

    /// Checks that the copies are within `capacity` and have different targets.
    ///
    /// # Errors
    /// The rule that is broken. A scheduler never plans such copies; a foreign caller may.
    pub fn validate(&self, capacity: &Capacity) -> Result<(), &'static str> {
        let is_known = |block: BlockId, host: HostBlockId| {
            block.0 < capacity.num_blocks && host.0 < capacity.host_blocks
        };
        if !self.stores.iter().all(|s| is_known(s.from, s.to))
            || !self.loads.iter().all(|l| is_known(l.to, l.from))
        {
            return Err("a block outside the pool or outside host memory");
        }
        if repeats(self.stores.iter().map(|s| s.to.0)) {
            return Err("two stores into one host block");
        }
        if repeats(self.loads.iter().map(|l| l.to.0)) {
            return Err("two loads into one block");
        }
        Ok(())
    }
}

fn repeats(ids: impl Iterator<Item = u32>) -> bool {
    let mut ids: Vec<u32> = ids.collect();
    ids.sort_unstable();
    ids.windows(2).any(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeBatch, ForwardBatch};

    fn check(stores: &[(u32, u32)], loads: &[(u32, u32)], expected: Result<(), &str>) {
        let copies = KvCopies {
            stores: stores
                .iter()
                .map(|&(from, to)| KvStore {
                    from: BlockId(from),
                    to: HostBlockId(to),
                })
                .collect(),
            loads: loads
                .iter()
                .map(|&(from, to)| KvLoad {
                    from: HostBlockId(from),
                    to: BlockId(to),
                })
                .collect(),
        };
        let capacity = Capacity {
            block_size: 4,
            num_blocks: 2,
            max_step_tokens: 8,
            full_step_tokens: 2048,
            max_context_len: 8,
            vocab_size: 10,
            pipeline_depth: 1,
            passes: None,
            host_blocks: 3,
            attention: crate::Attention::Causal,
        };
        let batch = ForwardBatch::AfterCopies {
            copies,
            then: Box::new(ForwardBatch::Decode(DecodeBatch::EMPTY)),
        };
        let got = batch.validate(&capacity).map_err(|e| e.to_string());
        assert_eq!(got, expected.map_err(str::to_owned));
    }

    #[test]
    fn copies_are_checked() {
        check(&[(1, 2), (1, 0)], &[(2, 1), (2, 0)], Ok(()));
        let outside = Err("copies: a block outside the pool or outside host memory");
        check(&[(2, 0)], &[], outside);
        check(&[(0, 3)], &[], outside);
        check(&[], &[(3, 0)], outside);
        check(&[], &[(0, 2)], outside);
        check(
            &[(0, 1), (1, 1)],
            &[],
            Err("copies: two stores into one host block"),
        );
        check(
            &[],
            &[(0, 1), (1, 1)],
            Err("copies: two loads into one block"),
        );
    }

    #[test]
    fn copies_are_not_nested() {
        let capacity = Capacity {
            block_size: 4,
            num_blocks: 2,
            max_step_tokens: 8,
            full_step_tokens: 2048,
            max_context_len: 8,
            vocab_size: 10,
            pipeline_depth: 1,
            passes: None,
            host_blocks: 3,
            attention: crate::Attention::Causal,
        };
        let inner = ForwardBatch::Decode(DecodeBatch::EMPTY).after(KvCopies::default());
        assert!(matches!(inner, ForwardBatch::Decode(_)));
        let wrap = |then| ForwardBatch::AfterCopies {
            copies: KvCopies::default(),
            then: Box::new(then),
        };
        let error = wrap(wrap(inner)).validate(&capacity).unwrap_err();
        assert_eq!(error.to_string(), "copies: copies within copies");
    }
}
