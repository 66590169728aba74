//! A launch of `attn_decode`: its pages, its rows and what they should give.

use std::collections::BTreeMap;

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{AttnDecodeParams, DecodeItem, DecodeRow},
};

use crate::{
    attention::{DELICATE, Near, Pages, Shape, Token},
    support::{assert_untouched, assert_within, launch, upload, wide},
};

/// The tokens of a row: `(text, until)` goes on with that text up to position `until`. The last token is
/// the row's own; a row without tokens does not count.
pub(crate) type Row = Vec<(usize, usize)>;

/// A launch over rows. Rows whose contexts begin alike have the same blocks.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) shape: Shape,
    pub(crate) block_size: usize,
    pub(crate) rows: Vec<Row>,
    pub(crate) splits: u32,
    pub(crate) live: Option<u32>,
    /// True if the output replaces q.
    pub(crate) aliased: bool,
    pub(crate) near: Near,
}

/// How the rows of a launch read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    Alone,
    Together,
}

impl Step {
    fn context(&self, row: usize) -> Vec<Token> {
        let mut context = Vec::new();
        for &(text, until) in &self.rows[row] {
            context.extend((context.len()..until).map(|position| Token { text, position }));
        }
        context
    }

    fn len(&self, row: usize) -> usize {
        self.rows[row].last().map_or(0, |&(_, until)| until)
    }

    fn counts(&self, row: usize) -> bool {
        self.len(row) > 0 && self.live.is_none_or(|n| row < n as usize)
    }

    /// Returns the blocks of all rows, and the place where each row's table begins.
    fn pages(&self) -> (Pages, Vec<usize>) {
        let contexts: Vec<_> = (0..self.rows.len()).map(|row| self.context(row)).collect();
        let blocks = contexts.iter().map(|c| c.len().div_ceil(self.block_size));
        let mut pages = Pages::new(self.shape, self.block_size, blocks.sum());
        let mut known = BTreeMap::new();
        let mut firsts = Vec::new();
        for context in &contexts {
            firsts.push(pages.tables.len());
            for (i, tokens) in context.chunks(self.block_size).enumerate() {
                // A block with the row's own token is its own.
                let is_full = (i + 1) * self.block_size < context.len();
                match known.get(tokens) {
                    Some(&block) if is_full => pages.tables.push(block),
                    _ => {
                        pages.push_block(tokens);
                        known.insert(tokens, *pages.tables.last().unwrap());
                    }
                }
            }
        }
        (pages, firsts)
    }

    /// Returns an item for every split of every row, and one for rows that follow each other and have
    /// the split in the same blocks. An item reads the table of its first row only: the tables of its
    /// other rows are overwritten here.
    fn items(&self, pages: &mut Pages, firsts: &[usize]) -> Vec<DecodeItem> {
        let most = AttnDecodeParams::rows_shared(self.shape.group() as u32, self.shape.dim as u32)
            as usize;
        let each = 256 / self.block_size;
        let tables = pages.tables.clone();
        let blocks = |row: usize, split: usize| -> Option<&[i32]> {
            let is_full = self.len(row) > (split + 1) * 256;
            is_full.then(|| &tables[firsts[row] + split * each..][..each])
        };
        let mut items = Vec::new();
        for split in 0..self.splits as usize {
            let mut row = 0;
            while row < self.rows.len() {
                let first = row;
                row += 1;
                let own = blocks(first, split);
                while row < self.rows.len()
                    && row - first < most
                    && own.is_some()
                    && blocks(row, split) == own
                {
                    pages.tables[firsts[row] + split * each..][..each].fill(i32::MAX);
                    row += 1;
                }
                if split * 256 < self.len(first) {
                    items.push(DecodeItem {
                        first: first as u32,
                        count: (row - first) as u32,
                        split: split as u32,
                        reserved: 0,
                    });
                }
            }
            // An item that is not used: a launch may have room for more than there are.
            items.push(bytemuck::Zeroable::zeroed());
        }
        items
    }

    /// The output of each row that counts, and the most rows of an item. Fails if anything else was
    /// written.
    pub(crate) fn run(&self, device: &Device, reads: Reads) -> (Vec<Option<Vec<bf16>>>, u32) {
        let shape = self.shape;
        let n = self.rows.len();
        let (mut pages, firsts) = self.pages();
        let items = match reads {
            Reads::Alone => Vec::new(),
            Reads::Together => self.items(&mut pages, &firsts),
        };
        let (width, stride) = (shape.q_width(), shape.q_width() + 8);
        let mut q = vec![bf16::NAN; (n + 1) * stride];
        // From the last row to the first, after one that belongs to no sequence.
        let q_row = |row: usize| n - row;
        let rows: Vec<DecodeRow> = (0..n)
            .map(|row| {
                let context = self.context(row);
                if let Some(&token) = context.last() {
                    q[q_row(row) * stride..][..width].copy_from_slice(&shape.token(token).q);
                }
                DecodeRow {
                    q_row: q_row(row) as u32,
                    context_len: context.len() as u32,
                    block_first: firsts[row] as u32,
                    reserved: 0,
                }
            })
            .collect();
        let at = upload(device, &q);
        let (out, out_stride) = match self.aliased {
            true => (at, stride),
            false => (
                device.alloc((n + 1) * (width + 16) * 2).unwrap(),
                width + 16,
            ),
        };
        let partial = n * shape.heads * self.splits as usize * (shape.dim + 2);
        let params = AttnDecodeParams {
            q: at,
            out,
            k_pages: upload(device, &pages.k),
            v_pages: upload(device, &pages.v),
            tables: upload(device, &pages.tables),
            rows: upload(device, &rows),
            partial: match self.splits {
                1 => DevicePtr::NULL,
                _ => device.alloc(partial * 4).unwrap(),
            },
            live: self.live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
            items: match items.is_empty() {
                true => DevicePtr::NULL,
                false => upload(device, &items),
            },
            rows_max: n as u32,
            splits: self.splits,
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.dim as u32,
            q_stride: stride as u32,
            out_stride: out_stride as u32,
            block_size: self.block_size as u32,
            scale: shape.scale(),
            window: self.near.window(),
            cap: self.near.cap,
            items_max: items.len() as u32,
        };
        launch(device, params.launch().unwrap(), &params);
        if let Some(combine) = params.launch_combine() {
            launch(device, combine, &params);
        }
        let mut got: Vec<bf16> = device.download(out, (n + 1) * out_stride).unwrap();
        let results = (0..n)
            .map(|row| {
                let range = q_row(row) * out_stride..q_row(row) * out_stride + width;
                self.counts(row).then(|| {
                    let result = got[range.clone()].to_vec();
                    got[range].fill(bf16::from_bits(0xffff));
                    result
                })
            })
            .collect();
        match self.aliased {
            true => {
                for (got, before) in got.iter().zip(&q) {
                    assert!(got.to_bits() == 0xffff || got.to_bits() == before.to_bits());
                }
            }
            false => assert_untouched("out", &got),
        }
        let most = items.iter().map(|item| item.count).max();
        (results, most.unwrap_or(1))
    }

    /// Fails unless the output of each row is what the reference gives, or NaN where the context is
    /// longer than the launch was made for.
    pub(crate) fn compare(&self, outputs: &[Option<Vec<bf16>>]) {
        for (row, got) in outputs.iter().enumerate() {
            let Some(got) = got else { continue };
            let what = format!("{self:?} row {row}");
            if self.len(row) > 256 * self.splits as usize {
                assert!(got.iter().all(|v| v.is_nan()), "{what}: too long");
                continue;
            }
            let context = self.context(row);
            // No reference bounds the sums of that text.
            if context.iter().all(|token| token.text != DELICATE) {
                let query = context[context.len() - 1];
                let expected = self.shape.reference(query, &context, &self.near);
                assert_within(&what, &wide(got), expected.into_iter());
            }
        }
    }
}
