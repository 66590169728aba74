//! Attention over whole segments, within a window and with a number for each distance.

use std::collections::HashMap;

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{AttnVarlenParams, NO_WINDOW, Segment, Span, Tile},
};

use crate::{
    attention::{DELICATE, Shape, Token, shape},
    support::{
        U16, Values, assert_untouched, assert_within, launch, under_all_schedules, upload, wide,
    },
};

/// Segments that see nothing of each other, their tokens back to back in one step.
struct Step {
    shape: Shape,
    /// The text and the number of tokens of each segment.
    segments: Vec<(usize, usize)>,
    window: Option<u32>,
    /// Distances on either side with a number of their own.
    reach: Option<usize>,
    tile_rows: u32,
    /// Most queries of a tile, if fewer than there could be.
    tile_tokens: usize,
}

impl Step {
    fn new(shape: Shape, lens: &[usize]) -> Self {
        Self {
            shape,
            segments: lens.iter().copied().enumerate().collect(),
            window: None,
            reach: None,
            tile_rows: Tile::ROWS,
            tile_tokens: usize::MAX,
        }
    }

    /// Numbers by head and distance.
    fn bias(&self) -> Vec<bf16> {
        let numbers = self.reach.map_or(0, |reach| 2 * reach + 1);
        Values::new(77).bf16s(self.shape.heads * numbers, -3.0, 3.0)
    }

    /// Returns the rows of output of all tokens. Fails if anything else was written.
    fn run(&self, device: &Device) -> HashMap<(usize, usize), Vec<bf16>> {
        let shape = self.shape;
        let (q_width, kv_width) = (shape.q_width(), shape.kv_width());
        let stride = q_width + 2 * kv_width + 8;
        let group = shape.group() as u32;
        let most = Tile::tokens_max(group, self.tile_rows).unwrap() as usize;
        let most = most.min(self.tile_tokens);
        let (mut qkv, mut spans, mut segments, mut tiles) = (vec![], vec![], vec![], vec![]);
        let mut rows = 0;
        for (index, &(text, len)) in self.segments.iter().enumerate() {
            for position in 0..len {
                let heads = shape.token(Token { text, position });
                let row = [heads.q, heads.k, heads.v, vec![bf16::NAN; 8]];
                qkv.extend(row.into_iter().flatten());
            }
            segments.push(Segment {
                span_first: index as u32,
                span_count: 1,
            });
            spans.push(Span {
                kv_start: 0,
                len: len as u32,
                at: rows as u32,
                kind: Span::STEP,
            });
            for first in (0..len).step_by(most) {
                tiles.push(Tile {
                    segment: index as u32,
                    q_row: (rows + first) as u32,
                    q_pos: first as u32,
                    rows: most.min(len - first) as u32,
                });
            }
            rows += len;
        }
        tiles.push(Tile {
            segment: Tile::NO_SEGMENT,
            q_row: 0,
            q_pos: 0,
            rows: 0,
        });
        let at = upload(device, &qkv);
        let out_stride = q_width + 16;
        let out = device.alloc(rows * out_stride * 2).unwrap();
        let params = AttnVarlenParams {
            q: at,
            out,
            k_step: at.offset(2 * q_width as u64),
            v_step: at.offset(2 * (q_width + kv_width) as u64),
            k_pages: DevicePtr::NULL,
            v_pages: DevicePtr::NULL,
            tables: DevicePtr::NULL,
            segments: upload(device, &segments),
            spans: upload(device, &spans),
            tiles: upload(device, &tiles),
            live: DevicePtr::NULL,
            bias: match self.reach {
                Some(_) => upload(device, &self.bias()),
                None => DevicePtr::NULL,
            },
            tiles_max: tiles.len() as u32,
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.dim as u32,
            q_stride: stride as u32,
            out_stride: out_stride as u32,
            step_stride: stride as u32,
            block_size: 16,
            scale: shape.scale(),
            tile_rows: self.tile_rows,
            window: self.window.unwrap_or(NO_WINDOW),
            cap: 0.0,
            bias_reach: self.reach.unwrap_or(0) as u32,
            reserved: 0,
        };
        launch(device, params.launch_whole().unwrap(), &params);
        let got: Vec<bf16> = device.download(out, rows * out_stride).unwrap();
        let mut results = HashMap::new();
        let mut got = got.chunks(out_stride);
        for &(text, len) in &self.segments {
            for position in 0..len {
                let (row, gap) = got.next().unwrap().split_at(q_width);
                assert_untouched("out", gap);
                results.insert((text, position), row.to_vec());
            }
        }
        results
    }

    /// Computes the output of one token, with its bounds.
    fn reference(&self, (text, len): (usize, usize), position: usize) -> Vec<(f64, f64)> {
        let shape = self.shape;
        let bias = wide(&self.bias());
        let token = |position| shape.token(Token { text, position });
        let q = wide(&token(position).q);
        let window = self.window.map_or(len, |window| window as usize);
        let seen: Vec<usize> = (0..len)
            .filter(|key| key.abs_diff(position) <= window)
            .collect();
        let keys: Vec<_> = seen.iter().map(|&key| token(key)).collect();
        let mut out = Vec::new();
        for head in 0..shape.heads {
            let at = head / shape.group() * shape.dim;
            let q = &q[head * shape.dim..][..shape.dim];
            let score = |(&key, heads): (&usize, &crate::attention::Heads)| {
                let k = &heads.k[at..at + shape.dim];
                let dot: f64 = k.iter().zip(q).map(|(k, q)| k.to_f64() * q).sum();
                let of_distance = self.reach.map_or(0.0, |reach| {
                    let reach = reach as isize;
                    let distance = (key as isize - position as isize).clamp(-reach, reach);
                    bias[head * (2 * reach as usize + 1) + (distance + reach) as usize]
                });
                dot * f64::from(shape.scale()) + of_distance
            };
            let scores: Vec<f64> = seen.iter().zip(&keys).map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for i in 0..shape.dim {
                let (mut value, mut magnitude) = (0.0, 0.0);
                for (weight, heads) in weights.iter().zip(&keys) {
                    let v = heads.v[at + i].to_f64();
                    value += weight / sum * v;
                    magnitude += weight / sum * v.abs();
                }
                // As in `Shape::reference`.
                let bound = 1.001 * U16 * (value.abs() + magnitude) + 1e-4 * magnitude;
                out.push((value, bound));
            }
        }
        out
    }

    fn check(&self, device: &Device) {
        let got = self.run(device);
        for &segment in &self.segments {
            for position in 0..segment.1 {
                let what = format!(
                    "{:?}, window {:?}, reach {:?}: {position} of {segment:?}",
                    self.shape, self.window, self.reach
                );
                let expected = self.reference(segment, position);
                let row = wide(&got[&(segment.0, position)]);
                assert_within(&what, &row, expected.into_iter());
            }
        }
    }
}

/// Sizes that are padded, and queries that share keys.
const SHAPES: [Shape; 4] = [
    shape(2, 2, 24),
    shape(3, 3, 40),
    shape(4, 2, 16),
    shape(1, 1, 128),
];

#[test]
fn large_heads() {
    under_all_schedules(|device| {
        for (dim, window) in [(256, None), (160, Some(20))] {
            let step = Step {
                window,
                ..Step::new(shape(2, 1, dim), &[70, 1])
            };
            step.check(device);
        }
    });
}

/// One token, tokens beside the edges of tiles, and more than two tiles.
const LENS: [usize; 5] = [1, 63, 65, 17, 150];

#[test]
fn whole_segments() {
    under_all_schedules(|device| {
        for shape in SHAPES {
            Step::new(shape, &LENS).check(device);
        }
    });
}

#[test]
fn wide_tiles() {
    under_all_schedules(|device| {
        for shape in [shape(2, 2, 24), shape(4, 2, 40)] {
            for window in [None, Some(9)] {
                let step = Step {
                    window,
                    tile_rows: Tile::ROWS_WIDE,
                    ..Step::new(shape, &LENS)
                };
                step.check(device);
            }
        }
    });
}

/// Windows of the token alone, inside a tile, of whole tiles and beyond all.
#[test]
fn windows() {
    under_all_schedules(|device| {
        for (i, window) in [0, 5, 63, 64, 1000, u32::MAX - 1].into_iter().enumerate() {
            let step = Step {
                window: Some(window),
                ..Step::new(SHAPES[i % 4], &LENS)
            };
            step.check(device);
        }
    });
}

/// Numbers for the same token alone, for some distances and for more than there are; and a window
/// beside them.
#[test]
fn distances() {
    under_all_schedules(|device| {
        for (i, (reach, window)) in [(0, None), (9, None), (200, None), (20, Some(40))]
            .into_iter()
            .enumerate()
        {
            let step = Step {
                reach: Some(reach),
                window,
                ..Step::new(SHAPES[i], &LENS)
            };
            step.check(device);
        }
    });
}

/// A row's bits depend neither on the tile that it is in nor on other segments.
#[test]
fn bits_do_not_depend_on_the_layout() {
    const LEN: usize = 140;
    under_all_schedules(|device| {
        for window in [None, Some(30)] {
            let alone = Step {
                segments: vec![(DELICATE, LEN)],
                window,
                ..Step::new(shape(2, 2, 40), &[])
            };
            let expected = alone.run(device);
            let compare = |what: &str, step: Step| {
                let got = step.run(device);
                for position in 0..LEN {
                    let at = &(DELICATE, position);
                    assert_eq!(got[at], expected[at], "{what}: {position}");
                }
            };
            let crowd = vec![(1, 70), (DELICATE, LEN), (2, 9)];
            compare(
                "in a crowd",
                Step {
                    segments: crowd.clone(),
                    window,
                    ..Step::new(shape(2, 2, 40), &[])
                },
            );
            compare(
                "in small tiles",
                Step {
                    segments: crowd.clone(),
                    window,
                    tile_tokens: 7,
                    ..Step::new(shape(2, 2, 40), &[])
                },
            );
            compare(
                "in wide tiles",
                Step {
                    segments: crowd,
                    window,
                    tile_rows: Tile::ROWS_WIDE,
                    ..Step::new(shape(2, 2, 40), &[])
                },
            );
        }
    });
}
