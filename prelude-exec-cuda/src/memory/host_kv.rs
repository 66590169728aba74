//! Host memory for KV blocks that the prefix cache has evicted.
//!
//! ```text
//! host    [host_block][layer][k | v][kv_head][block_size][head_dim]   bf16, locked
//! ```
//!
//! A block lies in one piece here and in `2 · layers` pieces in the pool, so it is copied in as many
//! copies, each of 32 KB for 8 heads of 16 × 128. The host itself neither reads nor writes the
//! memory: all that touches it is on the stream of the steps, in order.

use prelude_core::KvCopies;

use super::{kv_pool::KvPool, pinned::Pinned, space::Space};
use crate::Error;

/// Room for copies of KV blocks.
#[derive(Debug)]
pub(crate) struct HostKv {
    memory: Pinned,
    blocks: u32,
    block_bytes: usize,
}

impl HostKv {
    /// Allocates as many blocks as `bytes` holds; returns `None` if that is 0.
    ///
    /// # Errors
    /// [`Error::Config`] if not even one block fits; [`Error::OutOfMemory`].
    pub(crate) fn new(space: &Space, pool: &KvPool, bytes: u64) -> Result<Option<Self>, Error> {
        if bytes == 0 {
            return Ok(None);
        }
        let block_bytes = pool.shape().block_bytes();
        let blocks = u32::try_from(bytes / block_bytes).unwrap_or(u32::MAX);
        if blocks == 0 {
            let what = format!("is {bytes}, and one KV block takes {block_bytes} bytes");
            return Err(Error::config("host_bytes", what));
        }
        let too_large = |_| Error::config("host_bytes", "exceeds the address space");
        let all = usize::try_from(u64::from(blocks) * block_bytes).map_err(too_large)?;
        Ok(Some(Self {
            memory: space.pinned("kv host blocks", all)?,
            blocks,
            block_bytes: all / blocks as usize,
        }))
    }

    /// Returns the number of host blocks.
    pub(crate) const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Returns the bytes of host memory.
    pub(crate) fn bytes(&self) -> u64 {
        self.memory.bytes().len() as u64
    }

    /// Queues copies, all stores first.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn copy(&mut self, pool: &mut KvPool, copies: &KvCopies) -> Result<(), Error> {
        for store in &copies.stores {
            let at = store.to.index() * self.block_bytes;
            pool.download(store.from.index(), &mut self.memory, at)?;
        }
        for load in &copies.loads {
            let at = load.from.index() * self.block_bytes;
            pool.upload(load.to.index(), &self.memory, at)?;
        }
        Ok(())
    }
}
