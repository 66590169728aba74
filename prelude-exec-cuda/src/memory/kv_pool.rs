//! Pages of keys and values.
//!
//! ```text
//! pages   [layer][k | v][block][kv_head][block_size][head_dim]   bf16
//! ```
//!
//! One head's rows of a block lie together (4 KB at 16 × 128). Behind the blocks that the
//! scheduler knows there is one more, the trash page, to which padding writes.

use std::ops::Range;

use half::bf16;

use super::{
    pinned::Pinned,
    space::{Buffer, Space},
    view::View,
};
use crate::Error;

/// The pool's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvShape {
    pub(crate) layers: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) block_size: usize,
    /// The number of blocks, without the trash page.
    pub(crate) blocks: usize,
}

impl KvShape {
    /// Returns the number of elements of one token's keys (or values) in one layer.
    pub(crate) const fn row_len(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Returns the number of elements of one block's keys (or values) in one layer.
    const fn block_len(&self) -> usize {
        self.block_size * self.row_len()
    }

    /// Returns the bytes of one block: keys and values of all layers.
    pub(crate) const fn block_bytes(&self) -> u64 {
        (2 * self.layers * self.block_len() * size_of::<bf16>()) as u64
    }

    /// Returns the bytes of the pool.
    pub(crate) const fn bytes(&self) -> u64 {
        (self.blocks as u64 + 1) * self.block_bytes()
    }
}

/// The pool.
#[derive(Debug)]
pub(crate) struct KvPool {
    buffer: Buffer,
    shape: KvShape,
}

impl KvPool {
    pub(crate) fn new(space: &Space, shape: KvShape) -> Result<Self, Error> {
        let bytes = usize::try_from(shape.bytes())
            .map_err(|_| Error::config("num_blocks", "exceeds the address space"))?;
        Ok(Self {
            buffer: space.alloc("kv", bytes)?,
            shape,
        })
    }

    pub(crate) const fn shape(&self) -> KvShape {
        self.shape
    }

    /// Returns the bytes at which the parts of a block lie in the pool, keys and values of each layer
    /// apart, and at which they lie one behind the other.
    fn parts(shape: KvShape, block: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
        assert!(block < shape.blocks, "block {block} of {}", shape.blocks);
        let bytes = shape.block_len() * size_of::<bf16>();
        let half = (shape.blocks + 1) * bytes;
        (0..2 * shape.layers).map(move |part| {
            let start = part * half + block * bytes;
            (start..start + bytes, part * bytes)
        })
    }

    /// Queues copies of a block to `at` of host memory, [`KvShape::block_bytes`] of it.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If there is no such block, or no such room.
    pub(crate) fn download(&self, block: usize, to: &mut Pinned, at: usize) -> Result<(), Error> {
        for (range, offset) in Self::parts(self.shape, block) {
            self.buffer.download_at(range, to, at + offset)?;
        }
        Ok(())
    }

    /// Queues copies of [`KvShape::block_bytes`] of host memory from `at` on into a block.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If there is no such block, or not so much memory.
    pub(crate) fn upload(&mut self, block: usize, from: &Pinned, at: usize) -> Result<(), Error> {
        for (range, offset) in Self::parts(self.shape, block) {
            let source = at + offset..at + offset + range.len();
            self.buffer.upload_at(range.start, from, source)?;
        }
        Ok(())
    }

    /// Returns the keys and values of a layer, a row for each block, the trash page last.
    ///
    /// # Panics
    /// If there is no such layer.
    pub(crate) fn layer(&self, layer: usize) -> (View<bf16>, View<bf16>) {
        assert!(
            layer < self.shape.layers,
            "layer {layer} of {}",
            self.shape.layers
        );
        let len = self.shape.block_len();
        let rows = self.shape.blocks + 1;
        let half = rows * len * size_of::<bf16>();
        let at = |which| self.buffer.view(which * half, rows, len);
        (at(2 * layer), at(2 * layer + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_do_not_overlap_and_fill_the_pool() {
        let shape = KvShape {
            layers: 2,
            kv_heads: 2,
            head_dim: 8,
            block_size: 16,
            blocks: 3,
        };
        let pool = KvPool::new(&Space::Virtual(std::sync::Arc::default()), shape).unwrap();
        let (k, v) = pool.layer(0);
        assert_eq!((k.rows(), k.width()), (4, 2 * 16 * 8));
        assert_eq!(k.span().end, v.span().start);
        assert_eq!(v.span().end, pool.layer(1).0.span().start);
        assert_eq!(pool.layer(1).1.span().end - k.span().start, shape.bytes());
    }
}
