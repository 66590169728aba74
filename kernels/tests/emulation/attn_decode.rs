use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{AttnDecodeParams, DecodeRow},
};

use crate::{
    attention::{DELICATE, Near, Pages, Shape, Token},
    support::{assert_untouched, assert_within, launch, under_all_schedules, upload, wide},
};

/// A launch over rows of these texts with these lengths; 0 for a row that does not count.
#[derive(Clone, Debug)]
struct Step {
    shape: Shape,
    block_size: usize,
    rows: Vec<(usize, usize)>,
    splits: u32,
    live: Option<u32>,
    /// True if the output replaces q.
    aliased: bool,
    near: Near,
}

impl Step {
    fn context(&self, row: usize) -> Vec<Token> {
        let (text, len) = self.rows[row];
        (0..len).map(|position| Token { text, position }).collect()
    }

    fn counts(&self, row: usize) -> bool {
        self.rows[row].1 > 0 && self.live.is_none_or(|n| row < n as usize)
    }

    /// The output of each row that counts. Fails if anything else was written.
    fn run(&self, device: &Device) -> Vec<Option<Vec<bf16>>> {
        let shape = self.shape;
        let n = self.rows.len();
        let blocks = self
            .rows
            .iter()
            .map(|r| r.1.div_ceil(self.block_size))
            .sum();
        let mut pages = Pages::new(shape, self.block_size, blocks);
        let (width, stride) = (shape.q_width(), shape.q_width() + 8);
        let mut q = vec![bf16::NAN; (n + 1) * stride];
        // From the last row to the first, after one that belongs to no sequence.
        let q_row = |row: usize| n - row;
        let rows: Vec<DecodeRow> = (0..n)
            .map(|row| {
                let context = self.context(row);
                let block_first = pages.add(&context) as u32;
                if let Some(&token) = context.last() {
                    q[q_row(row) * stride..][..width].copy_from_slice(&shape.token(token).q);
                }
                DecodeRow {
                    q_row: q_row(row) as u32,
                    context_len: context.len() as u32,
                    block_first,
                    reserved: 0,
                }
            })
            .collect();
        let at = upload(device, &q);
        let (out, out_stride) = if self.aliased {
            (at, stride)
        } else {
            (
                device.alloc((n + 1) * (width + 16) * 2).unwrap(),
                width + 16,
            )
        };
        let splits = self.splits as usize;
        let partial = n * shape.heads * splits * (shape.dim + 2);
        let params = AttnDecodeParams {
            q: at,
            out,
            k_pages: upload(device, &pages.k),
            v_pages: upload(device, &pages.v),
            tables: upload(device, &pages.tables),
            rows: upload(device, &rows),
            partial: if splits == 1 {
                DevicePtr::NULL
            } else {
                device.alloc(partial * 4).unwrap()
            },
            live: self.live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
            items: DevicePtr::NULL,
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
            items_max: 0,
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
        if self.aliased {
            for (got, before) in got.iter().zip(&q) {
                assert!(got.to_bits() == 0xffff || got.to_bits() == before.to_bits());
            }
        } else {
            assert_untouched("out", &got);
        }
        results
    }

    fn check(&self, device: &Device) {
        for (row, got) in self.run(device).into_iter().enumerate() {
            let Some(got) = got else { continue };
            let context = self.context(row);
            let what = format!("{self:?} row {row}");
            if self.rows[row].1 > 256 * self.splits as usize {
                assert!(got.iter().all(|v| v.is_nan()), "{what}: too long");
                continue;
            }
            let query = context[context.len() - 1];
            let expected = self.shape.reference(query, &context, &self.near);
            assert_within(&what, &wide(&got), expected.into_iter());
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

fn texts(lengths: &[usize]) -> Vec<(usize, usize)> {
    lengths.iter().copied().enumerate().collect()
}

/// 1, 2, 3, 4, 8 and 20 queries a key, each padded size and sizes between; contexts at and beside
/// the edges of warps' shares, blocks and splits.
#[test]
fn contexts() {
    under_all_schedules(|device| {
        for (i, (shape, lengths)) in [
            (shape(2, 2, 24), &[1, 16, 17, 300][..]),
            (shape(4, 2, 40), &[64, 65, 0, 256, 257]),
            (shape(8, 1, 64), &[33, 130]),
            (shape(3, 1, 32), &[2, 520]),
            (shape(4, 1, 128), &[70]),
            (shape(20, 1, 16), &[40]),
        ]
        .into_iter()
        .enumerate()
        {
            let longest = lengths.iter().max().unwrap();
            let step = Step {
                shape,
                block_size: 16 << (i % 3),
                rows: texts(lengths),
                splits: longest.div_ceil(256) as u32,
                live: None,
                aliased: i % 2 == 1,
                near: Near::default(),
            };
            step.check(device);
        }
    });
}

/// Windows within a split, over an edge of splits, and beyond the context; bounds of scores; heads of more
/// than 128 elements.
#[test]
fn windows_and_caps() {
    under_all_schedules(|device| {
        for (i, (shape, window, cap)) in [
            (shape(2, 2, 24), Some(0), 0.0),
            (shape(4, 2, 40), Some(20), 0.0),
            (shape(3, 1, 32), Some(300), 3.0),
            (shape(4, 1, 128), Some(255), 0.0),
            (shape(2, 1, 64), None, 2.0),
            (shape(2, 1, 256), None, 0.0),
            (shape(2, 1, 160), Some(70), 4.0),
        ]
        .into_iter()
        .enumerate()
        {
            let step = Step {
                shape,
                block_size: 16 << (i % 3),
                rows: texts(&[1, 40, 0, 256, 257, 530]),
                splits: 3,
                live: None,
                aliased: i % 2 == 1,
                near: Near { window, cap },
            };
            step.check(device);
        }
    });
}

/// Rows that do not count are left alone; a context longer than the launch was made for is NaN.
#[test]
fn rows_that_cannot_be() {
    under_all_schedules(|device| {
        let step = Step {
            shape: shape(2, 1, 32),
            block_size: 16,
            rows: texts(&[20, 257, 3, 9]),
            splits: 1,
            live: Some(3),
            aliased: false,
            near: Near::default(),
        };
        step.check(device);
        let rows = texts(&[520, 0, 300]);
        let (splits, live) = (2, None);
        let longer = Step {
            rows,
            splits,
            live,
            ..step
        };
        longer.check(device);
    });
}

/// A row's bits do not depend on other rows, on the launch's splits or on blocks.
#[test]
fn bits_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        let alone = |len, splits| Step {
            shape: shape(4, 2, 40),
            block_size: 16,
            rows: vec![(DELICATE, len)],
            splits,
            live: None,
            aliased: false,
            near: Near::default(),
        };
        for (len, splits) in [(600, 3), (200, 1)] {
            let expected = alone(len, splits).run(device).remove(0);
            let batch = Step {
                block_size: 64,
                rows: vec![(5, 60), (6, 511), (DELICATE, len), (7, 0)],
                splits: 4,
                ..alone(len, splits)
            };
            assert_eq!(batch.run(device)[2], expected, "{len}");
        }
    });
}
