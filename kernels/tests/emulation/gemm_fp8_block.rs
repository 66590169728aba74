use prelude_kernels::families::{GemmFp8Params, GemmOutput};

use crate::{
    gemm_fp8::{Case, Kernel, check, check_batches},
    support::under_all_schedules,
};

/// Edges of tiles and of blocks; more slabs than stages.
#[test]
fn products() {
    under_all_schedules(|device| {
        for (i, (kernel, m, n, k, gap)) in [
            (Kernel::SmallBlocks, 1, 1, 128, 0),
            (Kernel::SmallBlocks, 3, 40, 256, 16),
            (Kernel::SmallBlocks, 17, 200, 384, 0),
            (Kernel::SmallBlocks, 70, 130, 896, 16),
            (Kernel::LargeBlocks, 5, 130, 256, 16),
            (Kernel::LargeBlocks, 140, 24, 640, 0),
        ]
        .into_iter()
        .enumerate()
        {
            let case = Case {
                m,
                n,
                k,
                gap,
                adds: i % 2 == 1,
                bias: i % 3 == 1,
                live: (i == 3).then_some(65),
                kernel,
            };
            check(device, case);
        }
    });
}

/// Few rows: edges of tiles and blocks, fewer and more slabs than a block asks for ahead.
#[test]
fn few_rows() {
    under_all_schedules(|device| {
        for (i, (m, n, k)) in [
            (1, 1, 128),
            (3, 150, 256),
            (8, 33, 640),
            (9, 16, 2048),
            (16, 17, 4 * 16 * 64 + 128),
            (4, 260, 128),
        ]
        .into_iter()
        .enumerate()
        {
            let case = Case {
                m,
                n,
                k,
                adds: i % 2 == 1,
                bias: i % 3 == 0,
                live: (i % 4 == 3).then_some(m as u32 - 1),
                gap: 16 * (i % 2),
                kernel: Kernel::FewBlocks,
            };
            check(device, case);
        }
    });
}

/// A row's bits are the same among others, any number of them, and in tiles of either size; and 1 to 16
/// by the kernels for few.
#[test]
fn rows_do_not_depend_on_the_batch() {
    under_all_schedules(|device| {
        for kernels in [
            &[Kernel::FewBlocks][..],
            &[Kernel::SmallBlocks, Kernel::LargeBlocks],
        ] {
            check_batches(device, kernels, (40, 1152));
        }
    });
}

#[test]
fn there_are_no_products_in_f32_and_few_rows_are_16() {
    let params: GemmFp8Params = bytemuck::Zeroable::zeroed();
    assert_eq!(params.launch_blocks(GemmOutput::F32), None);
    assert_eq!(params.launch_blocks_few(GemmOutput::F32), None);
    let params = GemmFp8Params { m: 17, ..params };
    assert_eq!(params.launch_blocks_few(GemmOutput::Write), None);
}
