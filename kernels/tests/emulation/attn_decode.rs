use half::bf16;
use prelude_kernels::emu::Device;

use crate::{
    attention::{DELICATE, Near, shape},
    decode_step::{Reads, Row, Step},
    support::under_all_schedules,
};

/// Returns rows of texts of their own with these lengths; 0 for a row that does not count.
fn texts(lengths: &[usize]) -> Vec<Row> {
    let row = |(text, &len): (usize, &usize)| match len {
        0 => Vec::new(),
        len => vec![(text, len)],
    };
    lengths.iter().enumerate().map(row).collect()
}

fn run(step: &Step, device: &Device) -> Vec<Option<Vec<bf16>>> {
    step.run(device, Reads::Alone).0
}

fn check(step: &Step, device: &Device) {
    step.compare(&run(step, device));
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
            check(&step, device);
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
            check(&step, device);
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
        check(&step, device);
        let rows = texts(&[520, 0, 300]);
        let (splits, live) = (2, None);
        let longer = Step {
            rows,
            splits,
            live,
            ..step
        };
        check(&longer, device);
    });
}

/// A row's bits do not depend on other rows, on the launch's splits or on blocks.
#[test]
fn bits_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        let alone = |len, splits| Step {
            shape: shape(4, 2, 40),
            block_size: 16,
            rows: vec![vec![(DELICATE, len)]],
            splits,
            live: None,
            aliased: false,
            near: Near::default(),
        };
        for (len, splits) in [(600, 3), (200, 1)] {
            let expected = run(&alone(len, splits), device).remove(0);
            let batch = Step {
                block_size: 64,
                rows: vec![vec![(5, 60)], vec![(6, 511)], vec![(DELICATE, len)], vec![]],
                splits: 4,
                ..alone(len, splits)
            };
            assert_eq!(run(&batch, device)[2], expected, "{len}");
        }
    });
}
