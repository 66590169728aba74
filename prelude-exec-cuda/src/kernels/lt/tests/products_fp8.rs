use super::*;
use crate::kernels::fp8::{self, Fp8View, Scaling};

/// A matrix in e4m3 and its scales.
struct Factor {
    data: Buffer,
    scales: Buffer,
    shape: [usize; 2],
    scales_shape: [usize; 2],
    scaling: Scaling,
}

impl Factor {
    /// Small numbers, exact in e4m3, and scales that are powers of two, each unlike its neighbours in any
    /// order. `scales_shape`: of rows that are rounded, or of a weight.
    fn new(
        space: &Space,
        shape @ [rows, width]: [usize; 2],
        scaling: Scaling,
        scales_shape: [usize; 2],
        seed: usize,
    ) -> Self {
        // 1, -1/2, 3/2, 0, 1/4, -2, 3, -5/2.
        const NUMBERS: [u8; 8] = [0x38, 0xb0, 0x3c, 0x00, 0x28, 0xc0, 0x44, 0xc2];
        let number = |i: usize| NUMBERS[(i * 7 + i / 5 + seed * 13) % NUMBERS.len()];
        let numbers: Vec<u8> = (0..rows * width).map(number).collect();
        let count = scales_shape[0] * scales_shape[1];
        let scale = |i: usize| 2f32.powi(-((((i + seed) * 0x9e37) >> 5) as i32 % 4));
        let values: Vec<f32> = (0..count).map(scale).collect();
        let mut data = space.alloc("data", numbers.len()).unwrap();
        data.write(0, &numbers).unwrap();
        let mut scales = space.alloc("scales", count * 4).unwrap();
        scales.write(0, bytemuck::cast_slice(&values)).unwrap();
        Self {
            data,
            scales,
            shape,
            scales_shape,
            scaling,
        }
    }

    fn rounded(space: &Space, rows: usize, width: usize, scaling: Scaling) -> Self {
        Self::new(
            space,
            [rows, width],
            scaling,
            scaling.of_rows(rows, width),
            1,
        )
    }

    fn weight(space: &Space, rows: usize, width: usize, scaling: Scaling) -> Self {
        Self::new(
            space,
            [rows, width],
            scaling,
            scaling.of_weight(rows, width),
            2,
        )
    }

    fn view(&self) -> Fp8View {
        let ([rows, width], [scale_rows, scale_width]) = (self.shape, self.scales_shape);
        Fp8View {
            data: self.data.view(0, rows, width),
            scales: self.scales.view(0, scale_rows, scale_width),
            scaling: self.scaling,
        }
    }
}

/// Sizes of products, `m`, `n`, `k`, and elements between rows of y.
type Sizes = [(usize, usize, usize, usize); 3];

const WITH_SCALES_OF_ROWS: Sizes = [(1, 24, 16, 0), (33, 40, 48, 8), (5, 136, 64, 0)];
/// The sizes with scales of blocks: weights whose last row of blocks is not full, and numbers of rows that
/// are no multiples of 4.
const WITH_SCALES_OF_BLOCKS: Sizes = [(17, 24, 128, 0), (35, 264, 640, 8), (20, 136, 512, 0)];

/// Compares products in fp8 of the fake library with those of our kernel, as [`compare`] does.
fn compare_fp8(test: &str, option: &str, scaling: Scaling, mut check: impl FnMut(&Lt)) {
    let Some(device) = emulation() else { return };
    let Some(folder) = fake(test, &["-DVERSION=130100", option]) else {
        return;
    };
    let space = Space::Emu(Arc::clone(&device));
    let mut products = Products::library_alone(lt(&folder, &space).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    let mut launcher = Launcher::Emu(Arc::clone(&device), None);
    let sizes = match scaling {
        Scaling::Rows => WITH_SCALES_OF_ROWS,
        Scaling::Blocks => WITH_SCALES_OF_BLOCKS,
    };
    for (m, n, k, gap) in sizes {
        let x = Factor::rounded(&space, m, k, scaling);
        let w = Factor::weight(&space, n, k, scaling);
        let (x, w) = (x.view(), w.view());
        let bias = rows(&space, 1, n, 0, 3);
        for (adds, biased) in [(false, false), (true, false), (false, true), (true, true)] {
            let bias = biased.then(|| bias.view::<bf16>(0, 1, n));
            let mut results = [true, false].map(|by_library| {
                let y = rows(&space, m, n + gap, 0, 4);
                let whole = y.view::<bf16>(0, m, n + gap);
                let output = match adds {
                    true => ProductOutput::Add(whole.columns(0..n)),
                    false => ProductOutput::Write(whole.columns(0..n)),
                };
                match by_library {
                    true => products.multiply_fp8(&mut launcher, x, w, bias, output),
                    false => fp8::gemm_fp8(&mut launcher, x, w, bias, output),
                }
                .unwrap();
                device.download::<u16>(whole.ptr(), m * (n + gap)).unwrap()
            });
            let [by_library, by_own] = &mut results;
            assert_eq!(by_library, by_own, "{m} {n} {k} {adds} {biased}");
        }
    }
    check(products.library().unwrap());
}

#[test]
fn products_in_fp8_are_those_of_our_kernel() {
    for (test, scaling) in [("fp8", Scaling::Rows), ("fp8-blocks", Scaling::Blocks)] {
        compare_fp8(test, "-O1", scaling, |lt| {
            assert_eq!(lt.by_shape.len(), 3 * 4);
            assert!(lt.by_shape.values().all(Option::is_some));
            assert!(lt.chosen.keys().all(|key| key.fp8 == Some(scaling)));
        });
    }
}

#[test]
fn products_in_fp8_that_the_library_has_not_are_our_kernels() {
    for (test, option, scaling) in [
        ("without-fp8", "-DWITHOUT_FP8", Scaling::Rows),
        ("before-fp8", "-DBEFORE_12_9", Scaling::Rows),
        ("late-fp8", "-DREFUSES_LATE", Scaling::Rows),
        ("without-fp8-at-all", "-DWITHOUT_FP8", Scaling::Blocks),
        ("without-blocks", "-DWITHOUT_BLOCKS", Scaling::Blocks),
        ("before-blocks", "-DBEFORE_12_9", Scaling::Blocks),
        ("late-blocks", "-DREFUSES_LATE", Scaling::Blocks),
    ] {
        compare_fp8(test, option, scaling, |lt| {
            assert_eq!(lt.by_shape.len(), 3 * 4);
            assert!(lt.by_shape.values().all(Option::is_none));
        });
    }
}

/// Where the library has no products of e4m3, our kernel for few rows is the one for up to 16.
#[test]
fn few_rows_without_the_library_are_our_kernels() {
    let Some(device) = emulation() else { return };
    let Some(folder) = fake("few-fp8", &["-DVERSION=130100", "-DWITHOUT_FP8"]) else {
        return;
    };
    let space = Space::Emu(Arc::clone(&device));
    let mut products = Products::lt(lt(&folder, &space).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    let mut launcher = Launcher::Emu(device, None);
    for (m, skinny, own) in [(8, 1, 0), (16, 2, 0), (17, 2, 1)] {
        let x = Factor::rounded(&space, m, 32, Scaling::Rows);
        let w = Factor::weight(&space, 24, 32, Scaling::Rows);
        let y = rows(&space, m, 24, 0, 4);
        let output = ProductOutput::Write(y.view::<bf16>(0, m, 24));
        let (x, w) = (x.view(), w.view());
        let made = products.multiply_fp8(&mut launcher, x, w, None, output);
        made.unwrap();
        let counts = products.counts();
        assert_eq!(
            (counts.skinny, counts.own, counts.library),
            (skinny, own, 0)
        );
    }
}

/// With scales of blocks the library multiplies the fours of more than 16 rows, and our kernel for few rows
/// what is left.
#[test]
fn the_library_has_fours_of_rows() {
    let Some(device) = emulation() else { return };
    let Some(folder) = fake("fours", &["-DVERSION=130100"]) else {
        return;
    };
    let space = Space::Emu(Arc::clone(&device));
    let mut products = Products::lt(lt(&folder, &space).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    let mut launcher = Launcher::Emu(device, None);
    for (m, by) in [(3, [0, 1]), (16, [0, 1]), (17, [1, 1]), (20, [1, 0])] {
        let before = products.counts();
        let x = Factor::rounded(&space, m, 256, Scaling::Blocks);
        let w = Factor::weight(&space, 24, 256, Scaling::Blocks);
        let y = rows(&space, m, 24, 0, 4);
        let output = ProductOutput::Write(y.view::<bf16>(0, m, 24));
        let made = products.multiply_fp8(&mut launcher, x.view(), w.view(), None, output);
        made.unwrap();
        let now = products.counts();
        assert_eq!(now.own, 0);
        let counts = [now.library - before.library, now.skinny - before.skinny];
        assert_eq!(counts, by, "{m} rows");
    }
}
