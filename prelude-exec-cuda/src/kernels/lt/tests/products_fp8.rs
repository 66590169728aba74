use super::*;
use crate::kernels::fp8::{self, Fp8View, Scaling};

/// Rows of small numbers, exact in e4m3, and scales that are powers of two.
fn fp8_rows(space: &Space, rows: usize, width: usize, seed: usize) -> [Buffer; 2] {
    // 1, -1/2, 3/2, 0, 1/4, -2, 3, -5/2.
    const NUMBERS: [u8; 8] = [0x38, 0xb0, 0x3c, 0x00, 0x28, 0xc0, 0x44, 0xc2];
    let number = |i: usize| NUMBERS[(i * 7 + i / 5 + seed * 13) % NUMBERS.len()];
    let numbers: Vec<u8> = (0..rows * width).map(number).collect();
    let scales = (0..rows).map(|i| 2f32.powi(-((i + seed) as i32 % 4)));
    let scales: Vec<f32> = scales.collect();
    let mut data = space.alloc("data", numbers.len()).unwrap();
    data.write(0, &numbers).unwrap();
    let mut of_rows = space.alloc("scales", rows * 4).unwrap();
    of_rows.write(0, bytemuck::cast_slice(&scales)).unwrap();
    [data, of_rows]
}

/// Compares products in fp8 of the fake library with those of our kernel, as [`compare`] does.
fn compare_fp8(test: &str, option: &str, mut check: impl FnMut(&Lt)) {
    let Some(device) = emulation() else { return };
    let Some(folder) = fake(test, &["-DVERSION=130100", option]) else {
        return;
    };
    let space = Space::Emu(Arc::clone(&device));
    let mut products = Products::library_alone(lt(&folder, &space).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    let mut launcher = Launcher::Emu(Arc::clone(&device), None);
    for (m, n, k, gap) in [(1, 24, 16, 0), (33, 40, 48, 8), (5, 136, 64, 0)] {
        let [x, x_scales] = fp8_rows(&space, m, k, 1);
        let [w, w_scales] = fp8_rows(&space, n, k, 2);
        let view = |data: &Buffer, scales: &Buffer, rows| Fp8View {
            data: data.view(0, rows, k),
            scales: scales.view(0, 1, rows),
            scaling: Scaling::Rows,
        };
        let (x, w) = (view(&x, &x_scales, m), view(&w, &w_scales, n));
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
    compare_fp8("fp8", "-O1", |lt| {
        assert_eq!(lt.by_shape.len(), 3 * 4);
        assert!(lt.by_shape.values().all(Option::is_some));
        assert!(lt.chosen.keys().all(|key| key.fp8));
    });
}

#[test]
fn products_in_fp8_that_the_library_has_not_are_our_kernels() {
    for (test, option) in [
        ("without-fp8", "-DWITHOUT_FP8"),
        ("before-fp8", "-DBEFORE_12_9"),
    ] {
        compare_fp8(test, option, |lt| {
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
        let [x, x_scales] = fp8_rows(&space, m, 32, 1);
        let [w, w_scales] = fp8_rows(&space, 24, 32, 2);
        let view = |data: &Buffer, scales: &Buffer, rows| Fp8View {
            data: data.view(0, rows, 32),
            scales: scales.view(0, 1, rows),
            scaling: Scaling::Rows,
        };
        let y = rows(&space, m, 24, 0, 4);
        let output = ProductOutput::Write(y.view::<bf16>(0, m, 24));
        let (x, w) = (view(&x, &x_scales, m), view(&w, &w_scales, 24));
        let made = products.multiply_fp8(&mut launcher, x, w, None, output);
        made.unwrap();
        let counts = products.counts();
        assert_eq!(
            (counts.skinny, counts.own, counts.library),
            (skinny, own, 0)
        );
    }
}
