//! `attn_decode` with items: rows over the same blocks read them together.

use half::bf16;
use prelude_kernels::emu::Device;

use crate::{
    attention::{DELICATE, Near, shape},
    decode_step::{Reads, Step},
    support::under_all_schedules,
};

/// Fails unless rows have the bits that they have where each reads for itself, or unless the most
/// rows that are read together are `most`.
fn check(step: &Step, device: &Device, most: u32) {
    let (alone, _) = step.run(device, Reads::Alone);
    let (together, largest) = step.run(device, Reads::Together);
    assert_eq!(largest, most, "{step:?}");
    let bits = |values: &Option<Vec<bf16>>| -> Option<Vec<u16>> {
        let values = values.as_ref()?.iter();
        Some(values.map(|v| v.to_bits()).collect())
    };
    for (row, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert_eq!(bits(together), bits(alone), "{step:?} row {row}");
    }
    step.compare(&together);
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
            check(&step, device, most);
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
        check(&step, device, 4);
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
        check(&step, device, 3);
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
            check(&step, device, 4);
        }
        let many = Step {
            shape: shape(2, 1, 256),
            ..over((1, 256), &[257; 9])
        };
        check(&many, device, 8);
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
            check(&step, device, 4);
        }
    });
}
