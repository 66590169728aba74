use std::collections::BTreeMap;

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{AttnDecodeParams, DecodeItem, DecodeRow},
};

use crate::{
    attention::{DELICATE, Near, Pages, Shape, Token},
    support::{assert_untouched, assert_within, launch, under_all_schedules, upload, wide},
};

/// A row's tokens: of each text up to a position, the last one's its own. None: a row that does not
/// count.
type Row = Vec<(usize, usize)>;

/// A launch over rows, whose equal blocks are one.
#[derive(Clone, Debug)]
struct Step {
    shape: Shape,
    block_size: usize,
    rows: Vec<Row>,
    splits: u32,
    live: Option<u32>,
    /// True if the output replaces q.
    aliased: bool,
    near: Near,
}

/// How the rows of a launch read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
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

    /// The blocks of all rows; where each table begins.
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

    /// Every split of every row: of rows that follow each other and have it in the same blocks, in one
    /// item. Of these rows the first one's table alone may be read: the others' are spoilt.
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
            // What a launch has room for beyond.
            items.push(bytemuck::Zeroable::zeroed());
        }
        items
    }

    /// The output of each row that counts, and the most rows of an item. Fails if anything else was
    /// written.
    fn run(&self, device: &Device, reads: Reads) -> (Vec<Option<Vec<bf16>>>, u32) {
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
            partial: device.alloc(partial * 4).unwrap(),
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
        launch(device, params.launch_combine().unwrap(), &params);
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

    /// Rows have the bits that they have where each reads for itself, and `most` of them at most, and
    /// somewhere so many, are read together.
    fn check(&self, device: &Device, most: u32) {
        let (alone, _) = self.run(device, Reads::Alone);
        let (together, largest) = self.run(device, Reads::Together);
        assert_eq!(largest, most, "{self:?}");
        for (row, (alone, together)) in alone.iter().zip(&together).enumerate() {
            let bits = |values: &Option<Vec<bf16>>| -> Option<Vec<u16>> {
                let values = values.as_ref()?.iter();
                Some(values.map(|v| v.to_bits()).collect())
            };
            assert_eq!(bits(together), bits(alone), "{self:?} row {row}");
            let Some(got) = together else { continue };
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

const fn shape(heads: usize, kv_heads: usize, dim: usize) -> Shape {
    Shape {
        heads,
        kv_heads,
        dim,
    }
}

/// A step of rows over one prompt of `prompt` tokens of a text, whose contexts have these lengths.
fn over(prompt: (usize, usize), lengths: &[usize]) -> Step {
    let (text, prompt) = prompt;
    let row = |(i, &len): (usize, &usize)| match len {
        0 => Vec::new(),
        len => vec![(text, prompt.min(len)), (10 + i, len)],
    };
    Step {
        shape: shape(2, 1, 16),
        block_size: 16,
        rows: lengths.iter().enumerate().map(row).collect(),
        splits: lengths.iter().max().unwrap().div_ceil(256) as u32,
        live: None,
        aliased: false,
        near: Near::default(),
    }
}

/// 1, 2, 3, 8, 16, 20 and 40 queries a key, as many rows as fit into a block and one more, each padded
/// size of heads and sizes between, rows whose contexts end with a split, and one that is short.
#[test]
fn rows_over_one_prompt() {
    under_all_schedules(|device| {
        for (i, (shape, most, lengths)) in [
            // The row that ends with the split, and the empty one, lie between others.
            (shape(2, 2, 24), 2, &[257, 300, 256, 0, 270, 257, 3][..]),
            (shape(8, 1, 40), 4, &[258, 259, 260, 300, 261, 513]),
            (shape(16, 1, 64), 2, &[300, 290, 280]),
            (shape(20, 1, 16), 1, &[300, 257]),
            (shape(40, 1, 16), 1, &[300, 257]),
            (shape(3, 1, 128), 3, &[280, 257, 290]),
            (shape(3, 1, 16), 10, &[257; 12]),
        ]
        .into_iter()
        .enumerate()
        {
            let step = Step {
                shape,
                block_size: 16 << (i % 3),
                aliased: i % 2 == 1,
                ..over((1, 256), lengths)
            };
            step.check(device, most);
        }
    });
}

/// The sums of a text that depend on their order in the leading bits.
#[test]
fn sums_run_in_the_same_order() {
    under_all_schedules(|device| {
        let step = Step {
            shape: shape(4, 2, 40),
            rows: (0..4).map(|i| vec![(DELICATE, 601 + i)]).collect(),
            ..over((DELICATE, 600), &[601])
        };
        step.check(device, 4);
    });
}

/// Prompts of which some rows share more than others, and one that parts within a split.
#[test]
fn rows_that_part() {
    under_all_schedules(|device| {
        let rows = vec![
            vec![(1, 256), (2, 530), (10, 540)],
            vec![(1, 256), (2, 530), (11, 600)],
            vec![(1, 256), (3, 560)],
            // The same blocks but those of 272..288.
            vec![(4, 272), (5, 288), (4, 520)],
            vec![(4, 272), (6, 288), (4, 530)],
            vec![(8, 100)],
        ];
        let step = Step {
            rows,
            ..over((1, 1), &[600])
        };
        step.check(device, 3);
    });
}

/// Windows that begin in a shared split, for some rows behind it, and bounds of scores; heads of more
/// than 128 elements.
#[test]
fn windows_and_caps() {
    under_all_schedules(|device| {
        for (i, (shape, window, cap)) in [
            (shape(2, 2, 24), Some(20), 0.0),
            (shape(4, 2, 40), Some(300), 3.0),
            (shape(4, 1, 128), Some(255), 0.0),
            (shape(2, 1, 64), None, 2.0),
            (shape(2, 1, 160), Some(280), 4.0),
        ]
        .into_iter()
        .enumerate()
        {
            let step = Step {
                shape,
                block_size: 16 << (i % 3),
                aliased: i % 2 == 1,
                near: Near { window, cap },
                ..over((1, 512), &[770, 513, 530, 600])
            };
            step.check(device, 4);
        }
        let many = Step {
            shape: shape(2, 1, 256),
            ..over((1, 256), &[257; 9])
        };
        many.check(device, 8);
    });
}

/// Rows that do not count are left alone, also among those of an item; a context longer than the
/// launch was made for is NaN.
#[test]
fn rows_that_cannot_be() {
    under_all_schedules(|device| {
        for (aliased, window) in [(false, None), (true, None), (true, Some(260))] {
            let step = Step {
                splits: 2,
                live: Some(3),
                aliased,
                near: Near { window, cap: 0.0 },
                ..over((1, 512), &[300, 520, 513, 600])
            };
            step.check(device, 4);
        }
    });
}
