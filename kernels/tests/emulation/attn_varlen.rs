use std::collections::HashMap;

use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{AttnVarlenParams, Segment, Span, Tile},
};

use crate::{
    attention::{DELICATE, Near, Pages, Shape, Token, shape},
    support::{
        Values, assert_untouched, assert_within, extra_seed, launch, under_all_schedules, upload,
        wide,
    },
};

/// Rows of the step that belong to no segment, before the first segment.
const ROWS_BEFORE: usize = 2;

/// A step: segments in a tree, their tokens back to back.
pub(crate) struct Forest {
    pages: Pages,
    pub(crate) nodes: Vec<Node>,
    rows: usize,
    tiles: Vec<Tile>,
    tile_rows: u32,
    near: Near,
    /// Launches another kernel that computes the same; its arguments after the device are the
    /// parameters, and the numbers of rows of the step and of the pages.
    pub(crate) instead: Option<fn(&Device, &AttnVarlenParams, usize, usize)>,
}

pub(crate) struct Node {
    spans: Vec<Span>,
    /// Every token from position 0 to the node's last.
    context: Vec<Token>,
    /// First row of the step that is its own.
    row: usize,
    pub(crate) len: usize,
}

impl Forest {
    pub(crate) fn new(shape: Shape, block_size: usize) -> Self {
        Self {
            pages: Pages::new(shape, block_size, 11),
            nodes: Vec::new(),
            rows: ROWS_BEFORE,
            tiles: Vec::new(),
            tile_rows: Tile::ROWS,
            near: Near::default(),
            instead: None,
        }
    }

    /// Runs the kernels for many tiles.
    pub(crate) fn wide(shape: Shape, block_size: usize) -> Self {
        Self {
            tile_rows: Tile::ROWS_WIDE,
            ..Self::new(shape, block_size)
        }
    }

    /// Most queries of a tile.
    pub(crate) fn tokens_max(&self) -> usize {
        let group = self.pages.shape.group() as u32;
        Tile::tokens_max(group, self.tile_rows).unwrap() as usize
    }

    /// `cached` tokens of a text in blocks, then `len` of it in this step.
    pub(crate) fn root(&mut self, text: usize, cached: usize, len: usize) -> usize {
        let context: Vec<Token> = (0..cached)
            .map(|position| Token { text, position })
            .collect();
        let at = self.pages.add(&context) as u32;
        let span = Span {
            kv_start: 0,
            len: cached as u32,
            at,
            kind: Span::PAGES,
        };
        let spans = if cached > 0 { vec![span] } else { vec![] };
        self.push(context, spans, text, len)
    }

    /// `len` more tokens behind those of `parent`.
    pub(crate) fn child(&mut self, parent: usize, text: usize, len: usize) -> usize {
        let parent = &self.nodes[parent];
        let (context, spans) = (parent.context.clone(), parent.spans.clone());
        self.push(context, spans, text, len)
    }

    fn push(
        &mut self,
        mut context: Vec<Token>,
        mut spans: Vec<Span>,
        text: usize,
        len: usize,
    ) -> usize {
        let start = context.len();
        spans.push(Span {
            kv_start: start as u32,
            len: len as u32,
            at: self.rows as u32,
            kind: Span::STEP,
        });
        context.extend((start..start + len).map(|position| Token { text, position }));
        self.nodes.push(Node {
            spans,
            context,
            row: self.rows,
            len,
        });
        self.rows += len;
        self.nodes.len() - 1
    }

    /// Tiles of at most `tokens` queries for the last `queries` tokens of a node.
    pub(crate) fn ask(&mut self, node: usize, queries: usize, tokens: usize) {
        let Node {
            row,
            len,
            ref context,
            ..
        } = self.nodes[node];
        for first in (len - queries..len).step_by(tokens) {
            self.tiles.push(Tile {
                segment: node as u32,
                q_row: (row + first) as u32,
                q_pos: (context.len() - len + first) as u32,
                rows: tokens.min(len - first) as u32,
            });
        }
    }

    /// Tiles as large as they can be, for all tokens.
    pub(crate) fn ask_all(&mut self) {
        let tokens = self.tokens_max();
        for node in 0..self.nodes.len() {
            self.ask(node, self.nodes[node].len, tokens);
        }
    }

    /// Adds `texts` nodes of any form, of fewer than `longest` tokens each, and tiles of any size.
    pub(crate) fn grow(&mut self, values: &mut Values, texts: usize, longest: usize) {
        let most = self.tokens_max();
        for text in 0..texts {
            let len = values.below(longest);
            let parent = values.below(text + 1);
            if text == 0 || (parent == 0 && text % 3 == 0) {
                self.root(text, values.below(80), len);
            } else {
                self.child(parent.min(text - 1), text, len);
            }
            self.ask(text, values.below(len + 1), 1 + values.below(most));
        }
    }

    /// Adds a root and as many levels below it as there can be; returns the last node.
    pub(crate) fn chain(&mut self) -> usize {
        let root = self.root(0, 20, 3);
        let level = |node, level| self.child(node, level, [0, 1, 4, 7][level % 4]);
        (1..15).fold(root, level)
    }

    /// Returns the output of each query that was asked for, and the tokens that it should see. Fails if anything else
    /// was written. `aliased`: over q, in the fused rows.
    pub(crate) fn run(
        &self,
        device: &Device,
        live: Option<u32>,
        aliased: bool,
    ) -> Vec<(Token, Vec<bf16>, &[Token])> {
        let shape = self.pages.shape;
        let (q_width, kv_width) = (shape.q_width(), shape.kv_width());
        let stride = q_width + 2 * kv_width + 8;
        // The executor's order, or Q before the NaN between rows: padding must not read that.
        let (q_at, k_at) = if aliased {
            (0, q_width)
        } else {
            (2 * kv_width, 0)
        };
        let mut qkv = vec![bf16::NAN; self.rows * stride];
        for node in &self.nodes {
            let own = &node.context[node.context.len() - node.len..];
            for (i, &token) in own.iter().enumerate() {
                let heads = shape.token(token);
                let row = &mut qkv[(node.row + i) * stride..][..stride];
                row[q_at..][..q_width].copy_from_slice(&heads.q);
                row[k_at..][..kv_width].copy_from_slice(&heads.k);
                row[k_at + kv_width..][..kv_width].copy_from_slice(&heads.v);
            }
        }
        let spans: Vec<Span> = self.nodes.iter().flat_map(|n| n.spans.clone()).collect();
        let mut span_first = 0;
        let segments: Vec<Segment> = self
            .nodes
            .iter()
            .map(|n| {
                let span_count = n.spans.len() as u32;
                span_first += span_count;
                Segment {
                    span_first: span_first - span_count,
                    span_count,
                }
            })
            .collect();
        let at = upload(device, &qkv);
        let (out, out_stride) = if aliased {
            (at, stride)
        } else {
            let stride = q_width + 16;
            (device.alloc(self.rows * stride * 2).unwrap(), stride)
        };
        let params = AttnVarlenParams {
            q: at.offset(2 * q_at as u64),
            out,
            k_step: at.offset(2 * k_at as u64),
            v_step: at.offset(2 * (k_at + kv_width) as u64),
            k_pages: upload(device, &self.pages.k),
            v_pages: upload(device, &self.pages.v),
            tables: upload(device, &self.pages.tables),
            segments: upload(device, &segments),
            spans: upload(device, &spans),
            tiles: upload(device, &self.tiles),
            live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
            tiles_max: self.tiles.len() as u32,
            heads: shape.heads as u32,
            kv_heads: shape.kv_heads as u32,
            head_dim: shape.dim as u32,
            q_stride: stride as u32,
            out_stride: out_stride as u32,
            step_stride: stride as u32,
            block_size: self.pages.block_size as u32,
            scale: shape.scale(),
            tile_rows: self.tile_rows,
            window: self.near.window(),
            cap: self.near.cap,
            bias: DevicePtr::NULL,
            bias_reach: 0,
            reserved: 0,
        };
        match self.instead {
            None => launch(device, params.launch().unwrap(), &params),
            Some(launch) => launch(device, &params, self.rows, self.pages.k.len() / shape.dim),
        }

        let mut got: Vec<bf16> = device.download(out, self.rows * out_stride).unwrap();
        let mut results = Vec::new();
        let live = live.map_or(self.tiles.len(), |n| n as usize);
        let used = self.tiles[..live]
            .iter()
            .filter(|t| t.segment != Tile::NO_SEGMENT);
        for tile in used {
            let context = &self.nodes[tile.segment as usize].context;
            for i in 0..tile.rows as usize {
                let position = tile.q_pos as usize + i;
                let row = &mut got[(tile.q_row as usize + i) * out_stride..][..q_width];
                results.push((context[position], row.to_vec(), &context[..=position]));
                row.fill(bf16::from_bits(0xffff));
            }
        }
        if aliased {
            for (i, (got, before)) in got.iter().zip(&qkv).enumerate() {
                let is_result = got.to_bits() == 0xffff;
                assert!(
                    is_result || got.to_bits() == before.to_bits(),
                    "{i} was written"
                );
            }
        } else {
            assert_untouched("out", &got);
        }
        results
    }

    /// Checks that tiles beyond the live ones, and one without a segment, write nothing.
    pub(crate) fn check_unused_tiles(mut self, device: &Device) {
        let root = self.root(0, 3, 8);
        self.ask(root, 8, 2);
        self.tiles[1].segment = Tile::NO_SEGMENT;
        self.check(device, "three of four live", Some(3), false);
        self.check(device, "none live", Some(0), false);
    }

    pub(crate) fn check(&self, device: &Device, what: &str, live: Option<u32>, aliased: bool) {
        let shape = self.pages.shape;
        for (token, got, context) in self.run(device, live, aliased) {
            let what = format!("{what}, {shape:?}, {token:?} after {}", context.len() - 1);
            let expected = shape.reference(token, context, &self.near);
            assert_within(&what, &wide(&got), expected.into_iter());
        }
    }
}

/// 1, 2, 3, 4 and 8 queries a key, each padded size and sizes between.
const SHAPES: [Shape; 6] = [
    shape(1, 1, 24),
    shape(4, 2, 40),
    shape(3, 1, 32),
    shape(8, 2, 16),
    shape(8, 1, 64),
    shape(2, 2, 128),
];

/// Three levels over a cached root that ends inside a block; nodes that end at and beside the
/// first tile's edge, one without tokens, one longer than a tile.
#[test]
fn trees() {
    under_all_schedules(|device| {
        for (i, shape) in SHAPES.into_iter().enumerate() {
            let mut forest = Forest::new(shape, 16 << (i % 2));
            let root = forest.root(0, 50, 9);
            let edge = forest.child(root, 1, 5);
            let beside = forest.child(root, 2, 6);
            forest.child(edge, 3, 1);
            let empty = forest.child(beside, 4, 0);
            forest.child(empty, 5, 65);
            forest.ask_all();
            forest.check(device, "three levels", None, i % 2 == 0);
        }
    });
}

/// Checks the trees by the kernels for many tiles.
#[test]
fn wide_tiles() {
    under_all_schedules(|device| {
        for (i, shape) in SHAPES.into_iter().enumerate() {
            let mut forest = Forest::wide(shape, 32 >> (i % 2));
            let root = forest.root(0, 50, 9);
            let edge = forest.child(root, 1, 5);
            forest.child(edge, 3, 1);
            forest.child(root, 5, 130);
            forest.ask_all();
            forest.check(device, "wide", None, i % 2 == 1);
        }
    });
}

/// Windows of the token alone, inside a tile, of whole tiles and beyond all; bounds of scores; heads of
/// more than 128 elements, with neither.
const NEAR: [(Shape, Option<u32>, f32); 7] = [
    (shape(1, 1, 24), Some(0), 0.0),
    (shape(4, 2, 40), Some(5), 0.0),
    (shape(3, 1, 32), Some(63), 3.0),
    (shape(2, 2, 128), Some(64), 0.0),
    (shape(4, 1, 64), Some(1000), 2.0),
    (shape(2, 1, 256), None, 0.0),
    (shape(2, 1, 160), Some(20), 4.0),
];

#[test]
fn windows_and_caps() {
    under_all_schedules(|device| {
        for (i, (shape, window, cap)) in NEAR.into_iter().enumerate() {
            let mut forest = Forest::new(shape, 16 << (i % 2));
            forest.near = Near { window, cap };
            let root = forest.root(0, 50, 9);
            let edge = forest.child(root, 1, 5);
            forest.child(edge, 3, 1);
            forest.child(root, 5, 75);
            forest.root(7, 90, 3);
            forest.ask_all();
            forest.check(device, &format!("{:?}", forest.near), None, i % 2 == 0);
        }
    });
}

/// A row's bits do not depend on the first query of its tile, which decides where keys begin.
#[test]
fn windows_have_the_same_bits_in_any_tile() {
    under_all_schedules(|device| {
        let outputs = |tokens: usize| {
            let mut forest = Forest::new(shape(2, 1, 40), 16);
            forest.near.window = Some(30);
            let root = forest.root(DELICATE, 70, 64);
            forest.ask(root, 64, tokens);
            let rows = forest.run(device, None, false);
            let bits = |row: &[bf16]| row.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            let rows = rows
                .iter()
                .map(|(token, row, _)| (token.position, bits(row)));
            rows.collect::<HashMap<_, _>>()
        };
        let whole = outputs(32);
        for tokens in [1, 7] {
            assert_eq!(outputs(tokens), whole, "tiles of {tokens}");
        }
    });
}

/// One token; one more than a tile; cached up to, and up to beside, an edge of tile and block.
#[test]
fn lengths() {
    under_all_schedules(|device| {
        for shape in [shape(2, 1, 24), shape(1, 1, 40)] {
            let mut forest = Forest::new(shape, 16);
            for (text, (cached, len)) in [(0, 1), (0, 65), (64, 1), (63, 2), (16, 0), (15, 1)]
                .into_iter()
                .enumerate()
            {
                forest.root(text, cached, len);
            }
            forest.ask_all();
            forest.check(device, "roots", None, false);
        }
    });
}

/// Checks as many spans as there can be, and as many heads as a tile has rows.
#[test]
fn depth_and_width() {
    under_all_schedules(|device| {
        let mut forest = Forest::new(shape(64, 1, 8), 16);
        let node = forest.chain();
        assert_eq!(forest.nodes[node].spans.len(), 16);
        forest.ask(node, forest.nodes[node].len, 1);
        forest.check(device, "a deep tree", None, false);
    });
}

/// Trees of any form, tiles of any size.
#[test]
fn random_forests() {
    under_all_schedules(|device| {
        for seed in (0..8).chain(extra_seed()) {
            let mut values = Values::new(seed);
            let shape = SHAPES[values.below(5)];
            let mut forest = Forest::new(shape, 16 << values.below(3));
            if seed % 2 == 1 {
                forest.tile_rows = Tile::ROWS_WIDE;
            }
            forest.grow(&mut values, 7, 40);
            forest.check(device, &format!("forest {seed}"), None, seed % 2 == 0);
        }
    });
}

/// Tiles beyond the live ones and without a segment are left alone.
#[test]
fn unused_tiles() {
    under_all_schedules(|device| {
        Forest::new(shape(2, 2, 32), 64).check_unused_tiles(device);
    });
}

/// A token's output has the same bits however its context and its neighbours lie.
#[test]
fn bits_do_not_depend_on_the_layout() {
    let shape = shape(4, 2, 40);
    let [narrow, wide] = [Forest::new, Forest::wide];
    check_bits(&move |block_size, is_wide| match is_wide {
        true => wide(shape, block_size),
        false => narrow(shape, block_size),
    });
}

/// Fails unless one text's outputs have the same bits in all forests. `make` makes an empty forest from a
/// block size; its second argument is true for the kernels for many tiles.
pub(crate) fn check_bits(make: &dyn Fn(usize, bool) -> Forest) {
    const LEN: usize = 140;
    under_all_schedules(|device| {
        let mut first: HashMap<usize, Vec<bf16>> = HashMap::new();
        let mut compare = |what: &str, forest: &Forest| {
            let mut compared = 0;
            for (token, got, _) in forest.run(device, None, false) {
                if token.text == DELICATE {
                    compared += 1;
                    let expected = first.entry(token.position).or_insert_with(|| got.clone());
                    assert_eq!(*expected, got, "{what}: position {}", token.position);
                }
            }
            assert!(compared > 0, "{what}");
        };
        let new = |block_size| make(block_size, false);

        let mut flat = new(16);
        flat.root(DELICATE, 0, LEN);
        flat.ask_all();
        compare("flat", &flat);
        let mut wide = make(16, true);
        wide.root(DELICATE, 0, LEN);
        wide.ask_all();
        compare("wide", &wide);

        // The same text in nodes of a tree, with siblings, other roots before, tiles of 5.
        let mut tree = new(16);
        tree.root(7, 20, 40);
        let root = tree.root(DELICATE, 0, 33);
        let child = tree.child(root, DELICATE, 31);
        tree.child(root, 8, 50);
        let leaf = tree.child(child, DELICATE, LEN - 64);
        for node in 0..leaf {
            tree.ask(node, tree.nodes[node].len, 32);
        }
        tree.ask(leaf, LEN - 64, 5);
        compare("tree", &tree);

        for (cached, block_size) in [(70, 16), (128, 32), (LEN - 1, 64)] {
            let mut rest = new(block_size);
            let root = rest.root(DELICATE, cached, LEN - cached);
            rest.ask(root, LEN - cached, 32);
            compare("cached", &rest);
        }

        // A chunk of queries in the middle, then the last one alone.
        let mut chunk = new(16);
        let root = chunk.root(DELICATE, 32, 60);
        chunk.ask(root, 17, 32);
        compare("chunk", &chunk);
        let mut alone = new(16);
        let root = alone.root(DELICATE, 0, LEN);
        alone.ask(root, 1, 1);
        compare("alone", &alone);
    });
}
