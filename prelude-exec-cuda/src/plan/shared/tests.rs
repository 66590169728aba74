//! Items against a naive twin, and what their launches compute against rows alone.

use std::collections::BTreeMap;

use half::bf16;
use prelude_core::{
    BlockId, BlockSpan, DecodeBatch, DecodeRow as BatchRow, ForwardBatch, SeqId, TokenSource,
};
use prelude_kernels::{DevicePtr, emu::Device, families::NO_WINDOW};
use prelude_models::conformance::batches::greedy;
use proptest::{prelude::*, test_runner::TestRunner};

use super::*;
use crate::{
    plan::{DecodeLaunch, PlanConfig, StepPlan},
    testing::emulation,
};

const BLOCK: usize = 16;
/// Blocks of a split.
const EACH: usize = 256 / BLOCK;

fn config(rows_shared: usize) -> PlanConfig {
    PlanConfig {
        block_size: BLOCK as u32,
        chunk_tokens: 1024,
        group: 2,
        wide_tokens: 1024,
        decode_as_segments: false,
        pad_tokens: 1024,
        splits_max: 1 << 20,
        rows_shared,
        whole: false,
    }
}

/// The context of a row: the text of its blocks up to one of them, the text of the others, and its
/// length, its own token included.
#[derive(Clone, Copy, Debug)]
struct Row {
    text: usize,
    until: usize,
    then: usize,
    len: usize,
}

/// A row over a prompt of so many blocks.
const fn over(until: usize, row: usize, len: usize) -> Row {
    Row {
        text: 0,
        until,
        then: 1 + row,
        len,
    }
}

/// A step of rows whose equal beginnings are in the same blocks, but for the blocks of their own tokens.
fn batch(rows: &[Row]) -> ForwardBatch {
    let mut batch = DecodeBatch::EMPTY;
    let mut known = BTreeMap::new();
    let mut next = 0;
    for (i, row) in rows.iter().enumerate() {
        let (start, blocks) = (batch.block_ids.len(), row.len.div_ceil(BLOCK));
        for at in 0..blocks {
            let text = if at < row.until { row.text } else { row.then };
            let parts = if at < row.until {
                usize::MAX
            } else {
                row.until
            };
            let own = if at + 1 == blocks { i + 1 } else { 0 };
            let id = *known
                .entry((at, row.text, text, parts, own))
                .or_insert(next);
            next += u32::from(id == next);
            batch.block_ids.push(BlockId(id));
        }
        batch.rows.push(BatchRow {
            seq: SeqId(i as u64),
            token: TokenSource::Known(1),
            context_len: count(row.len - 1),
            blocks: BlockSpan {
                start: count(start),
                len: count(blocks),
            },
            sample: greedy(None),
        });
    }
    ForwardBatch::Decode(batch)
}

fn plan(rows: &[Row], config: PlanConfig) -> StepPlan {
    let mut plan = StepPlan::default();
    plan.rebuild(batch(rows), config, |_, _| None).unwrap();
    plan
}

/// Counts the splits that a launch reads.
fn reads(plan: &StepPlan, launch: &DecodeLaunch) -> usize {
    match launch.items.len() {
        0 => plan.decode[launch.rows.clone()].iter().map(splits_of).sum(),
        items => items,
    }
}

/// The blocks of a row up to the end of a split, if there is a key behind it.
fn until(plan: &StepPlan, row: DecodeRow, split: usize) -> Option<&[u32]> {
    let is_full = row.context_len as usize > (split + 1) * 256;
    is_full.then(|| &plan.layout.blocks[row.block_first as usize..][..(split + 1) * EACH])
}

/// The fewest items of at most `most` rows that begin with the same blocks.
fn fewest(plan: &StepPlan, rows: &[DecodeRow], most: usize) -> usize {
    let splits = rows.iter().map(splits_of).max().unwrap_or(0);
    let of_split = |split| {
        let mut runs = BTreeMap::new();
        let mut alone = 0;
        for &row in rows.iter().filter(|row| splits_of(row) > split) {
            match until(plan, row, split) {
                Some(blocks) => *runs.entry(blocks).or_insert(0usize) += 1,
                None => alone += 1,
            }
        }
        let runs = runs.values().map(|rows| rows.div_ceil(most));
        alone + runs.sum::<usize>()
    };
    (0..splits).map(of_split).sum()
}

/// Every split of every row is read once, with rows that have it in the same blocks alone, and as few
/// times as it can be; or rows are as they would be if none could be read together.
fn check(rows: &[Row], config: PlanConfig) {
    let shared = plan(rows, config);
    let alone = plan(
        rows,
        PlanConfig {
            rows_shared: 1,
            ..config
        },
    );
    assert!(alone.items.is_empty());
    assert_eq!(shared.launches.len(), alone.launches.len());
    for (launch, alone_launch) in shared.launches.iter().zip(&alone.launches) {
        assert_eq!(launch.rows, alone_launch.rows);
        assert_eq!(launch.splits, alone_launch.splits);
        let of_launch = &shared.decode[launch.rows.clone()];
        let mut sorted = of_launch.to_vec();
        sorted.sort_by_key(|row| row.q_row);
        assert_eq!(sorted, alone.decode[launch.rows.clone()]);
        let fewest = fewest(&shared, of_launch, config.rows_shared);
        let all = reads(&alone, alone_launch);
        if fewest == all {
            assert_eq!(of_launch, sorted, "nothing is shared");
        }
        if 4 * fewest > 3 * all {
            assert_eq!(launch.items.len(), 0);
            continue;
        }
        assert_eq!(launch.items.len(), fewest);
        let mut seen: Vec<_> = of_launch
            .iter()
            .map(|row| vec![0; splits_of(row)])
            .collect();
        for item in &shared.items[launch.items.clone()] {
            let (first, rows) = (item.first as usize, item.count as usize);
            assert!((1..=config.rows_shared).contains(&rows));
            let split = item.split as usize;
            for (at, &row) in of_launch.iter().enumerate().skip(first).take(rows) {
                seen[at][split] += 1;
                let own = until(&shared, row, split);
                assert!(
                    rows == 1 || own.is_some() && own == until(&shared, of_launch[first], split)
                );
            }
        }
        assert!(seen.concat().iter().all(|&times| times == 1), "{seen:?}");
    }
}

/// Returns rows of few texts, which part at any block, with contexts of up to so many tokens.
fn some_rows(most: usize, longest: usize) -> impl Strategy<Value = Vec<Row>> {
    let until = prop_oneof![
        Just(0),
        Just(EACH),
        Just(2 * EACH),
        0..longest / BLOCK,
        Just(1000)
    ];
    let row = (0usize..3, until, 0usize..4, 1..longest);
    let row = row.prop_map(|(text, until, then, len)| Row {
        text,
        until,
        then,
        len,
    });
    prop::collection::vec(row, 0..most)
}

proptest! {
    #[test]
    fn splits_are_read_as_rarely_as_can_be(
        rows in some_rows(30, 1300),
        most in 1usize..9,
        splits_max in prop_oneof![Just(20usize), Just(1 << 20)],
    ) {
        check(&rows, PlanConfig { splits_max, ..config(most) });
    }
}

#[test]
fn shared_pages_are_read_once_for_all_rows_of_an_item() {
    let prompt = 2048 / BLOCK;
    let chats: Vec<_> = (0..64).map(|i| over(prompt, i, 2049 + 3 * i)).collect();
    let shared = plan(&chats, config(16));
    let [launch] = &shared.launches[..] else {
        panic!("{:?}", shared.launches)
    };
    // 8 splits for 64 rows in fours; one split of each row's own.
    assert_eq!(reads(&shared, launch), 8 * 4 + 64);
    let alone = plan(&chats, config(1));
    assert_eq!(reads(&alone, &alone.launches[0]), 64 * 9);
    // Equal batches give equal plans, whatever was planned before.
    let mut again = plan(&[over(EACH, 0, 300), over(EACH, 1, 300)], config(16));
    again
        .rebuild(batch(&chats), config(16), |_, _| None)
        .unwrap();
    assert_eq!((again.items, again.decode), (shared.items, shared.decode));
}

#[test]
fn a_plan_of_rows_that_share_little_is_that_of_rows_alone() {
    // Nothing; one split of four by two rows of six.
    let nothing: Vec<_> = (0..6).map(|i| over(0, i, 1000)).collect();
    let little: Vec<_> = (0..6)
        .map(|i| over(if i < 2 { EACH } else { 0 }, i, 1000))
        .collect();
    for rows in [nothing, little] {
        let plans = [config(16), config(1)].map(|config| plan(&rows, config));
        assert!(plans[0].items.is_empty());
        assert_eq!(plans[0].launches, plans[1].launches);
        check(&rows, config(16));
    }
    // Rows that part within a split have it apart.
    let parts: Vec<_> = (0..4).map(|i| over(EACH + 3, i, 700)).collect();
    assert_eq!(plan(&parts, config(16)).items.len(), 1 + 4 * 2);
    let ends = [over(2 * EACH, 0, 512), over(2 * EACH, 1, 512)];
    assert_eq!(
        plan(&ends, config(16)).items.len(),
        3,
        "the own key's split"
    );
}

/// Heads and their size.
const HEADS: (usize, usize, usize) = (4, 2, 16);

/// q, keys and values on a device.
struct Tensors {
    q: DevicePtr,
    pages: [DevicePtr; 2],
    tables: DevicePtr,
}

fn numbers(n: usize, seed: u32) -> Vec<bf16> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bf16::from_f32((state >> 8) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..n).map(next).collect()
}

impl Tensors {
    fn new(device: &Device, plan: &StepPlan) -> Self {
        let (heads, kv_heads, dim) = HEADS;
        let blocks = plan
            .layout
            .blocks
            .iter()
            .max()
            .map_or(0, |&b| b as usize + 1);
        let page = blocks * kv_heads * BLOCK * dim;
        let upload = |values: &[bf16]| device.upload(values).unwrap();
        Self {
            q: upload(&numbers(plan.layout.tokens.len() * heads * dim, 1)),
            pages: [2, 3].map(|seed| upload(&numbers(page, seed))),
            tables: device.upload(&plan.layout.blocks).unwrap(),
        }
    }

    /// Attention of a launch, which writes the rows of `out` that it has.
    fn attend(&self, device: &Device, rows: &[DecodeRow], items: &[DecodeItem], out: DevicePtr) {
        let (heads, kv_heads, dim) = HEADS;
        let splits = rows.iter().map(splits_of).max().unwrap();
        let params = AttnDecodeParams {
            q: self.q,
            out,
            k_pages: self.pages[0],
            v_pages: self.pages[1],
            tables: self.tables,
            rows: device.upload(rows).unwrap(),
            partial: device
                .alloc(rows.len() * heads * splits * (dim + 2) * 4)
                .unwrap(),
            live: DevicePtr::NULL,
            items: match items.len() {
                0 => DevicePtr::NULL,
                _ => device.upload(items).unwrap(),
            },
            rows_max: count(rows.len()),
            splits: count(splits),
            heads: count(heads),
            kv_heads: count(kv_heads),
            head_dim: count(dim),
            q_stride: count(heads * dim),
            out_stride: count(heads * dim),
            block_size: BLOCK as u32,
            scale: 0.25,
            window: NO_WINDOW,
            cap: 0.0,
            items_max: count(items.len()),
        };
        device.launch(&params.launch().unwrap(), &params).unwrap();
        if let Some(combine) = params.launch_combine() {
            device.launch(&combine, &params).unwrap();
        }
    }
}

/// Checks that rows read together have the bits that each has alone. Returns the most rows that were
/// read together.
fn check_bits(device: &Device, rows: &[Row]) -> u32 {
    let most = AttnDecodeParams::rows_shared(2, HEADS.2 as u32) as usize;
    let shared = plan(rows, config(most));
    let tensors = Tensors::new(device, &shared);
    let width = HEADS.0 * HEADS.2;
    let run = |launches: &mut dyn FnMut(DevicePtr)| -> Vec<u16> {
        let out = device.alloc(rows.len() * width * 2).unwrap();
        launches(out);
        device.download(out, rows.len() * width).unwrap()
    };
    let together = run(&mut |out| {
        for launch in &shared.launches {
            let (rows, items) = (launch.rows.clone(), launch.items.clone());
            tensors.attend(device, &shared.decode[rows], &shared.items[items], out);
        }
    });
    let alone = run(&mut |out| {
        for row in &shared.decode {
            tensors.attend(device, std::slice::from_ref(row), &[], out);
        }
    });
    assert_eq!(together, alone, "{rows:?}");
    let counts = shared.items.iter().map(|item| item.count);
    counts.max().unwrap_or(0)
}

#[test]
fn rows_have_the_same_bits_in_any_company() {
    let Some(device) = emulation() else { return };
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 12,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let rows = some_rows(9, 800).prop_filter("a step has rows", |rows| !rows.is_empty());
    let result = runner.run(&rows, |rows| {
        check_bits(&device, &rows);
        Ok(())
    });
    result.unwrap();
    // More than fit into an item.
    let chats: Vec<_> = (0..18).map(|i| over(EACH, i, 257 + i)).collect();
    assert_eq!(check_bits(&device, &chats), 16);
}
