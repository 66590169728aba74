//! `sm90_attn` against the reference of `attn_varlen`, whose function it computes.

use prelude_kernels::{
    TensorMap,
    emu::Device,
    families::{AttnVarlenParams, Sm90AttnParams},
};

use crate::{
    attention::{Shape, shape},
    attn_varlen::{Forest, check_bits},
    support::{Values, extra_seed, launch, under_all_schedules},
};

/// 1, 2, 3, 4 and 8 queries a key, both sizes of heads.
const SHAPES: [Shape; 5] = [
    shape(1, 1, 64),
    shape(4, 2, 128),
    shape(3, 1, 64),
    shape(4, 1, 128),
    shape(16, 2, 64),
];

/// A forest whose tiles two blocks share.
fn forest(shape: Shape, block_size: usize) -> Forest {
    forest_of::<2>(shape, block_size)
}

/// A forest whose tiles so many blocks share.
fn forest_of<const BLOCKS: u32>(shape: Shape, block_size: usize) -> Forest {
    let mut forest = Forest::wide(shape, block_size);
    forest.instead = Some(on_hopper::<BLOCKS>);
    forest
}

/// Launches it for what the parameters of `attn_varlen` say.
fn on_hopper<const BLOCKS: u32>(
    device: &Device,
    p: &AttnVarlenParams,
    step_rows: usize,
    page_rows: usize,
) {
    let dim = u64::from(p.head_dim);
    let width = u64::from(p.kv_heads) * dim;
    let maps = |step, pages| -> [TensorMap; 5] {
        let step = Sm90AttnParams::boxes(step, step_rows as u64, width, p.step_stride.into());
        let pages = Sm90AttnParams::boxes(pages, page_rows as u64, dim, dim);
        let tiles = [step[0], step[1], pages[0], pages[1], step[2]];
        assert!(tiles.iter().all(|tile| tile.is_valid()));
        tiles.map(|tile| tile.emulated())
    };
    let params = Sm90AttnParams {
        k: maps(p.k_step, p.k_pages),
        v: maps(p.v_step, p.v_pages),
        q: p.q,
        out: p.out,
        tables: p.tables,
        segments: p.segments,
        spans: p.spans,
        tiles: p.tiles,
        live: p.live,
        tiles_max: p.tiles_max,
        heads: p.heads,
        kv_heads: p.kv_heads,
        q_stride: p.q_stride,
        out_stride: p.out_stride,
        step_rows: step_rows as u32,
        block_size: p.block_size,
        scale: p.scale,
        reserved: [0; 10],
    };
    launch(device, params.launch(p.head_dim, BLOCKS).unwrap(), &params);
}

/// Three levels over a cached root that ends inside a block and inside a box; a node without tokens,
/// one longer than a tile.
#[test]
fn trees() {
    under_all_schedules(|device| {
        for (i, shape) in SHAPES.into_iter().enumerate() {
            let mut forest = forest(shape, 16 << (i % 2));
            let root = forest.root(0, 50, 9);
            let edge = forest.child(root, 1, 69);
            let beside = forest.child(root, 2, 6);
            forest.child(edge, 3, 1);
            let empty = forest.child(beside, 4, 0);
            forest.child(empty, 5, 70);
            forest.ask_all();
            forest.check(device, "three levels", None, i % 2 == 0);
        }
    });
}

/// More tiles of keys than twice the stages: phases of all barriers come again.
#[test]
fn long_contexts() {
    under_all_schedules(|device| {
        for (shape, cached, len) in [(shape(2, 1, 64), 600, 70), (shape(1, 1, 128), 0, 645)] {
            let mut forest = forest(shape, 64);
            let root = forest.root(0, cached, len);
            forest.ask(root, 70, forest.tokens_max());
            forest.check(device, "long", None, false);
        }
    });
}

/// One token; edges of tiles, boxes and blocks, and beside them.
#[test]
fn lengths() {
    under_all_schedules(|device| {
        for shape in [shape(2, 1, 64), shape(1, 1, 128)] {
            let mut forest = forest(shape, 16);
            for (text, (cached, len)) in [(0, 1), (0, 129), (112, 17), (15, 2), (16, 0), (16, 16)]
                .into_iter()
                .enumerate()
            {
                forest.root(text, cached, len);
            }
            forest.ask_all();
            forest.check(device, "roots", None, true);
        }
    });
}

/// Attention is right with as many heads as fit into a tile, with spans so short that every key is
/// copied by itself, and with blocks of fewer positions than a box has rows.
#[test]
fn depth_and_width() {
    under_all_schedules(|device| {
        for (shape, block_size) in [(shape(64, 1, 64), 16), (shape(2, 1, 128), 8)] {
            let mut forest = forest(shape, block_size);
            let node = forest.chain();
            forest.ask(node, forest.nodes[node].len, 2);
            forest.check(device, "a deep tree", None, false);
        }
    });
}

/// Trees of any form, tiles of any size.
#[test]
fn random_forests() {
    under_all_schedules(|device| {
        for seed in (0..4).chain(extra_seed()) {
            let mut values = Values::new(seed);
            let mut forest = forest(SHAPES[values.below(5)], 16 << values.below(3));
            forest.grow(&mut values, 5, 70);
            forest.check(device, &format!("forest {seed}"), None, seed % 2 == 0);
        }
    });
}

/// Tiles beyond the live ones and without a segment are left alone.
#[test]
fn unused_tiles() {
    under_all_schedules(|device| {
        forest(shape(2, 2, 64), 64).check_unused_tiles(device);
    });
}

/// A token's output has the same bits however its context and its neighbours lie.
#[test]
fn bits_do_not_depend_on_the_layout() {
    check_bits(&|block_size, _| forest(shape(4, 2, 64), block_size));
}

/// Items of tiles that one warpgroup has no rows of between others: first, last, and next to each other;
/// of one tile of keys and of several; in one block, shared out in turns, and a block each.
#[test]
fn items() {
    under_all_schedules(|device| {
        for make in [forest_of::<1>, forest_of::<3>, forest_of::<1000>] {
            for rows in [[40, 128, 64], [128, 30, 70]] {
                let mut forest = make(shape(1, 1, 64), 16);
                for (text, len) in [130, 128, 180].into_iter().enumerate() {
                    let root = forest.root(text, 10 * text, len);
                    forest.ask(root, len, rows[text]);
                }
                forest.check(device, &format!("tiles of {rows:?}"), None, false);
            }
        }
    });
}
