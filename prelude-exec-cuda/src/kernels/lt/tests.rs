//! The library's side is played by `tests/fake/cublaslt.c`, built here where there is a C
//! compiler: it multiplies in the emulation's memory, which is the host's.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
};

use half::bf16;
use prelude_core::{
    BlockSpan, Executor as _, ForwardBatch, OneShotBatch, OutputHead, OutputRow, Residency,
    RowOutput, Segment, SegmentIdx, StepId,
};

use super::*;
use prelude_models::{DType, TensorView, WeightLoader as _, conformance::batches::prompt};

use crate::{
    CudaExecutor, CudaLoader,
    kernels::{
        fp8::{self, Fp8View, Scaling},
        gemm::{self, ProductOutput, Products},
        launch::Launcher,
    },
    measure::{Device, Operands, Room, Target, Tuner, WeightCycle},
    memory::view::View,
    testing::{checkpoint, emulation, say, small},
};

/// A folder with a library of CUDA 13, of this name and with these options; `None`, said aloud, without
/// a C compiler. Each test's folder is its own, since a path that was opened stays that library.
fn fake(test: &str, options: &[&str]) -> Option<PathBuf> {
    fake_of(13, test, options)
}

/// The same of a major version of CUDA.
fn fake_of(major: i32, test: &str, options: &[&str]) -> Option<PathBuf> {
    let file = Library::CublasLt.file(major);
    let folder = std::env::temp_dir().join(format!("prelude-lt-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/cublaslt.c");
    // A name of its own for the loader, or it would give the library of another test.
    let soname = format!("-Wl,-soname,{test}-{file}");
    let built = Command::new("cc")
        .args([
            "-std=c11", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror",
        ])
        .args(options)
        .args([soname.as_str(), source, "-o"])
        .arg(folder.join(file))
        .output();
    match built {
        Ok(output) if output.status.success() => Some(folder),
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(why) => {
            say(&format!(
                "SKIP: no C compiler `cc` ({why}): cuBLASLt is not played"
            ));
            None
        }
    }
}

fn config(folder: &Path) -> CudaConfig {
    CudaConfig {
        library_dirs: vec![folder.to_owned()],
        ..small()
    }
}

/// The fake library over an emulated device.
fn lt(folder: &Path, space: &Space) -> Result<Lt, Error> {
    let (functions, version, library) = load(libs::majors(), &config(folder))?;
    let workspace = workspace(space)?;
    let address = workspace.view::<u8>(0, 1, 1).ptr().0;
    let blas = CublasLt::new(functions, None, address)?;
    let engine = ProductEngine::CublasLt {
        version: dotted(version),
        library,
        plans: String::new(),
        counts: PlanCounts::default(),
    };
    let measured = Measured::default();
    Ok(Lt::new(Box::new(blas), workspace, engine, measured))
}

#[test]
fn a_library_that_cannot_be_used_says_why() {
    let check = |test: &str, options: &[&str], expected: &str| {
        let Some(folder) = fake(test, options) else {
            return;
        };
        let space = Space::Virtual(Arc::default());
        let error = lt(&folder, &space).unwrap_err().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(error.contains(expected), "{error}");
    };
    check(
        "old",
        &["-DVERSION=120800"],
        "version 12.8.0, but 13 is needed",
    );
    check("new", &["-DVERSION=140000"], "version 14.0.0");
    check(
        "without",
        &["-DVERSION=130100", "-DWITHOUT_MATMUL"],
        "libcublasLt.so.13 has no `cublasLtMatmul`",
    );
    check(
        "create",
        &["-DVERSION=130100", "-DNO_CREATE"],
        "cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED",
    );
}

/// A missing library is an error, and none is opened in its place.
#[test]
fn a_missing_library_is_an_error() {
    match load(&[13, 12], &config(Path::new("/nowhere"))) {
        Err(Error::LibraryMissing { name, searched }) => {
            assert_eq!(name, "libcublasLt.so.13");
            assert!(searched.contains(&"/nowhere/nvidia/cu13/lib".into()));
        }
        // Where the system has it, it is found there.
        Ok((_, _, path)) => {
            assert!(path.starts_with("libcublasLt.so.13") || path.starts_with("libcublasLt.so.12"))
        }
        Err(other) => panic!("{other}"),
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    form: GemmOutput,
    bias: bool,
    /// Elements between the end of a row and the next, of x, w and y.
    gaps: [usize; 3],
}

/// Rows of small numbers, exact in bf16.
fn rows(space: &Space, rows: usize, width: usize, gap: usize, seed: usize) -> Buffer {
    let stride = width + gap;
    let value = |i: usize| ((i * 7 + seed * 13) % 31) as f32 / 8.0 - 1.75;
    let values: Vec<bf16> = (0..rows * stride)
        .map(|i| bf16::from_f32(value(i)))
        .collect();
    let mut buffer = space.alloc("rows", rows * stride * 2).unwrap();
    buffer.write(0, bytemuck::cast_slice(&values)).unwrap();
    buffer
}

/// The product's bits, row by row, by whatever `multiply` calls.
fn product(
    case: Case,
    space: &Space,
    mut multiply: impl FnMut(View<bf16>, View<bf16>, Option<View<bf16>>, ProductOutput),
) -> Vec<u32> {
    let Case {
        m,
        n,
        k,
        form,
        bias,
        gaps,
    } = case;
    let (x, w) = (rows(space, m, k, gaps[0], 1), rows(space, n, k, gaps[1], 2));
    let b = rows(space, 1, n, 0, 3);
    let y = rows(space, m, 2 * (n + gaps[2]), 0, 4);
    let x = x.view::<bf16>(0, m, k + gaps[0]).columns(0..k);
    let w = w.view::<bf16>(0, n, k + gaps[1]).columns(0..k);
    let b = bias.then(|| b.view::<bf16>(0, 1, n));
    let narrow = y.view::<bf16>(0, m, n + gaps[2]).columns(0..n);
    let wide = y.view::<f32>(0, m, n + gaps[2]).columns(0..n);
    let output = match form {
        GemmOutput::Write => ProductOutput::Write(narrow),
        GemmOutput::Add => ProductOutput::Add(narrow),
        GemmOutput::F32 => ProductOutput::Logits(wide),
    };
    multiply(x, w, b, output);
    let Space::Emu(device) = space else {
        unreachable!("products are read back from the emulation")
    };
    // With the gaps, which must be as they were.
    match form {
        GemmOutput::F32 => device.download(wide.ptr(), m * (n + gaps[2])).unwrap(),
        _ => {
            let halves: Vec<u16> = device.download(narrow.ptr(), m * (n + gaps[2])).unwrap();
            halves.into_iter().map(u32::from).collect()
        }
    }
}

/// Compares products of the fake library with those of our kernel: sums of these numbers are exact
/// in f32 in any order, so the bits must be equal.
fn compare(test: &str, options: &[&str], cases: &[Case], mut check: impl FnMut(&Lt)) {
    let Some(device) = emulation() else { return };
    let options: Vec<_> = options
        .iter()
        .chain(&["-DVERSION=130100"])
        .copied()
        .collect();
    let Some(folder) = fake(test, &options) else {
        return;
    };
    let space = Space::Emu(Arc::clone(&device));
    let mut products = Products::library_alone(lt(&folder, &space).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    let mut launcher = Launcher::Emu(device, None);
    for &case in cases {
        let by_lt = product(case, &space, |x, w, b, y| {
            products.multiply(&mut launcher, x, w, b, y).unwrap();
        });
        let by_mma = product(case, &space, |x, w, b, y| {
            gemm::gemm_mma(&mut launcher, x, w, b, y).unwrap();
        });
        assert_eq!(by_lt, by_mma, "{case:?}");
    }
    check(products.library().unwrap());
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (m, n, k) in [(1, 24, 16), (33, 40, 8), (5, 136, 40)] {
        for form in [GemmOutput::Write, GemmOutput::Add, GemmOutput::F32] {
            for (bias, gaps) in [(false, [0; 3]), (true, [8, 16, 24]), (false, [24, 8, 40])] {
                cases.push(Case {
                    m,
                    n,
                    k,
                    form,
                    bias,
                    gaps,
                });
            }
        }
    }
    cases
}

#[test]
fn products_are_those_of_our_kernel() {
    compare("products", &[], &cases(), |lt| {
        assert!(lt.by_shape.values().all(Option::is_some));
        // 3 sizes, of which outputs in f32 with a bias are none of the library's.
        assert_eq!(lt.by_shape.len(), 3 * (3 * 3 - 1));
    });
}

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

/// A driver of CUDA 13 takes libraries of 12 too, one of 12 no newer ones.
#[test]
fn libraries_are_those_that_the_driver_takes() {
    let Some(folder) = fake_of(12, "older", &["-DVERSION=120900"]) else {
        return;
    };
    let of = |majors: &[i32]| {
        let (_, version, path) = load(majors, &config(&folder)).unwrap();
        (version, path)
    };
    let twelve = (120_900, folder.join("libcublasLt.so.12"));
    assert_eq!(of(&[12]), twelve);
    assert_eq!(of(&[13, 12]), twelve);
    let newer = fake("newer", &["-DVERSION=130100"]).unwrap();
    std::fs::rename(
        newer.join("libcublasLt.so.13"),
        folder.join("libcublasLt.so.13"),
    )
    .unwrap();
    let found = (of(&[12]), of(&[13, 12]));
    std::fs::remove_dir_all(&newer).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(found.0, twelve);
    assert_eq!(found.1, (130_100, folder.join("libcublasLt.so.13")));
}

/// Rows of the output that begin at other than 16 bytes, which the library was not promised.
#[test]
fn outputs_with_less_alignment_are_our_kernels() {
    let case = Case {
        m: 3,
        n: 130,
        k: 16,
        form: GemmOutput::F32,
        bias: false,
        gaps: [0; 3],
    };
    compare("aligned", &[], &[case], |lt| {
        assert!(lt.by_shape.is_empty())
    });
}

/// Bucketed plans that do not run a number of rows are replaced for it.
#[test]
fn shapes_that_a_plan_does_not_run_get_their_own() {
    compare("odd", &["-DODD_ROWS_ONLY"], &cases(), |lt| {
        let mut buckets = lt.chosen.values();
        assert!(buckets.all(|(plan, _)| plan.is_none()), "buckets are even");
        assert!(lt.by_shape.values().all(Option::is_some), "rows are odd");
    });
}

#[test]
fn products_without_an_algorithm_are_our_kernels() {
    compare("none", &["-DNO_ALGORITHMS"], &cases(), |lt| {
        assert!(lt.by_shape.values().all(Option::is_none));
    });
}

/// Our kernel is for shapes that the library does not do, not for a library that does not work.
#[test]
fn an_error_of_the_heuristic_is_not_passed_over() {
    let Some(folder) = fake("broken", &["-DVERSION=130100", "-DHEURISTIC_FAILS"]) else {
        return;
    };
    let recording = Arc::new(Recording::default());
    let space = Space::Virtual(Arc::clone(&recording));
    let mut products = Products::library_alone(lt(&folder, &space).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    let memory = space.alloc("memory", 1 << 20).unwrap();
    let x = memory.view::<bf16>(0, 5, 64);
    let w = memory.view::<bf16>(64 << 10, 24, 64);
    let y = ProductOutput::Write(memory.view::<bf16>(128 << 10, 5, 24));
    let mut launcher = Launcher::Record(recording, None);
    let error = products.multiply(&mut launcher, x, w, None, y).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_INTERNAL_ERROR"
    );
}

/// An algorithm that is wrong is said and never chosen, however fast; what is chosen is kept for
/// the rows that plans are made for alone, and found again as an executor looks for it.
#[test]
fn measured_algorithms_are_right_before_they_are_fast() {
    check_measured("measured", false);
}

#[test]
fn so_they_are_in_fp8() {
    check_measured("measured-fp8", true);
}

fn check_measured(test: &str, fp8: bool) {
    let Some(device) = emulation() else { return };
    let Some(folder) = fake(test, &["-DVERSION=130100", "-DWRONG_FIRST"]) else {
        return;
    };
    let room = Room {
        model: checkpoint("demo-classifier").config().clone(),
        blocks: 4,
        block_size: 16,
        step_tokens: 64,
        chunk_tokens: 64,
        context_len: 64,
        arena_elements: 1 << 14,
        lists_bytes: 1 << 20,
        logits_rows: 1,
        fp8,
        hopper_attention: false,
    };
    let target = Target::emulated(Arc::clone(&device));
    let mut measuring = Device::open(&target, &room, false).unwrap();
    let weight = |loader: &mut CudaLoader, n: usize, k: usize, seed: usize| {
        let values: Vec<bf16> = (0..n * k)
            .map(|i| bf16::from_f32(((i * 37 + seed) % 23) as f32 / 23.0 - 0.5))
            .collect();
        let view = TensorView {
            dtype: DType::Bf16,
            shape: vec![n, k],
            bytes: bytemuck::cast_slice(&values),
        };
        loader.linear("w", &[view], &[]).unwrap()
    };
    let (n, k) = (24, 64);
    let mut loader = measuring.loader();
    let weights: Vec<_> = (0..3).map(|i| weight(&mut loader, n, k, i)).collect();
    let space = Space::Emu(Arc::clone(&device));
    let mut lt = lt(&folder, &space).unwrap();
    lt.machine = Some(Machine {
        device: "played".to_owned(),
        driver: "none".to_owned(),
        cublaslt: 130_100,
        build: "0".to_owned(),
    });
    let mut products = Some(Products::library_alone(lt));
    let mut tuner = Tuner::default();
    let mut turn = WeightCycle::default();
    for (m, adds) in [(32, true), (32, false), (5, true), (40, false)] {
        let batch = ForwardBatch::OneShot(OneShotBatch::EMPTY);
        let measured = measuring.step(batch, |ops, _| {
            if let Some(products) = products.take() {
                ops.products = products;
            }
            let values: Vec<bf16> = (0..m * k)
                .map(|i| bf16::from_f32((i % 19) as f32 / 19.0 - 0.4))
                .collect();
            let x = ops.filled(m, k, &values)?;
            let mut y = ops.filled(m, n, &vec![bf16::ONE; m * n])?;
            let mut operands = Operands {
                x: &x,
                weights: &weights,
                y: &mut y,
                adds,
            };
            tuner.measure(ops, &mut operands, 2, &mut turn)
        });
        let measured = measured.unwrap().0.unwrap();
        assert_eq!((measured.candidates, measured.wrong.len()), (2, 1), "M {m}");
        assert!(measured.wrong[0].starts_with("candidate 0: number"));
        assert!(measured.first.is_none() && measured.best.is_some());
    }
    // Neither 5 nor 40 rows are a plan's.
    assert_eq!(tuner.plans(), 2);
    std::fs::write(folder.join(Tuner::FILE), tuner.file().unwrap()).unwrap();
    assert_eq!(tuner.read_back(&folder), Ok(2));
    let config = CudaConfig {
        cache_dir: Some(folder.clone()),
        ..small()
    };
    let machine = Machine {
        device: "played".to_owned(),
        driver: "none".to_owned(),
        cublaslt: 130_100,
        build: "0".to_owned(),
    };
    let (found, _) = super::recorded(&config, &machine);
    std::fs::write(folder.join(Tuner::FILE), "{}").unwrap();
    assert!(tuner.read_back(&folder).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(found.keys().all(|key| key.fp8 == fp8));
    let forms: Vec<_> = found.keys().map(|key| (key.m, key.form)).collect();
    assert_eq!(forms, [(32, plans::Form::Write), (32, plans::Form::Add)]);
    // The second of the two that work.
    assert!(
        found
            .values()
            .all(|plan| plan.algo.0[2] == 0 && plan.us.is_some())
    );
}

/// A step's size and heads may be any: its algorithms were chosen before it.
#[test]
fn no_step_asks_the_heuristic() {
    for (name, fp8) in [
        ("demo-lm", false),
        ("demo-classifier", false),
        ("demo-lm", true),
    ] {
        let config = CudaConfig {
            chunk_tokens: 128,
            max_step_tokens: 320,
            fp8,
            ..small()
        };
        let (mut executor, recording) =
            CudaExecutor::recording(&checkpoint(name), &config).unwrap();
        let chosen = |executor: &CudaExecutor| -> Vec<Key> {
            let lt = executor.ops().products.library().unwrap();
            lt.chosen.keys().copied().collect()
        };
        let before = chosen(&executor);
        assert!(!before.is_empty());
        let head = || match name {
            "demo-lm" => OutputHead::Sample(prelude_core::SampleHead {
                sampling: Arc::default(),
                choice: 0,
                draws: 1,
                output_position: 0,
                top_logprobs: None,
                history: None,
                mask: None,
            }),
            _ => OutputHead::Classify,
        };
        for len in [1, 31, 32, 33, 100, 128, 129, 300] {
            let batch = OneShotBatch {
                tokens: vec![7; len as usize],
                segments: vec![Segment {
                    tokens: 0..len,
                    parent: None,
                    context_len: 0,
                    cached: BlockSpan::EMPTY,
                    residency: Residency::Transient,
                }],
                rows: vec![OutputRow {
                    segment: SegmentIdx(0),
                    positions: len - 1..len,
                    head: head(),
                }],
                block_ids: vec![],
            };
            let step = StepId(u64::from(len));
            executor.submit(step, ForwardBatch::OneShot(batch)).unwrap();
            let _ = executor.collect(step).unwrap();
        }
        let products = recording.take();
        let mut products = products.iter().map(String::as_str);
        let by_library = match fp8 {
            true => "cublasLtMatmul fp8",
            false => "cublasLtMatmul ",
        };
        assert!(products.any(|line| line.contains(by_library)));
        assert_eq!(chosen(&executor), before, "{name}");
    }
}

/// Rows in fp8 that our kernel for few of them takes from the library: prompts of so many tokens, of which
/// all layers but the last have as many rows.
#[test]
fn few_rows_in_fp8_are_our_kernels() {
    let config = CudaConfig {
        fp8: true,
        ..small()
    };
    let (mut executor, recording) =
        CudaExecutor::recording(&checkpoint("demo-lm"), &config).unwrap();
    for (len, by_own) in [(1, true), (8, true), (9, false), (16, false), (17, false)] {
        let batch = prompt(&vec![7; len], vec![]);
        let step = StepId(len as u64);
        let _ = recording.take();
        executor.submit(step, ForwardBatch::OneShot(batch)).unwrap();
        let _ = executor.collect(step).unwrap();
        let lines = recording.take();
        let names = ["prelude_gemm_fp8", "cublasLtMatmul fp8"];
        let of_product = |line: &&String| names.iter().any(|name| line.starts_with(name));
        let first = lines.iter().find(of_product).unwrap();
        assert_eq!(
            first.contains("gemm_fp8_few"),
            by_own,
            "{len} rows: {first}"
        );
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

/// A whole model by the library's products, against the same by our kernel.
#[test]
fn a_model_runs_by_the_librarys_products() {
    let Some(device) = emulation() else { return };
    let Some(folder) = fake("model", &["-DVERSION=130100"]) else {
        return;
    };
    let tokens: Vec<u32> = (0..40).map(|i| (i * 997 + 31) % 4096).collect();
    let mut classes = Vec::new();
    for by_library in [false, true] {
        let mut executor = CudaExecutor::emulated(
            &checkpoint("demo-classifier"),
            &small(),
            Arc::clone(&device),
        )
        .unwrap();
        if by_library {
            let space = Space::Emu(Arc::clone(&device));
            executor.set_products(Products::library_alone(lt(&folder, &space).unwrap()));
            assert!(executor.products().to_string().contains("cuBLASLt 13.1.0"));
        }
        let batch = OneShotBatch {
            tokens: tokens.clone(),
            segments: vec![Segment {
                tokens: 0..40,
                parent: None,
                context_len: 0,
                cached: BlockSpan::EMPTY,
                residency: Residency::Transient,
            }],
            rows: vec![OutputRow {
                segment: SegmentIdx(0),
                positions: 39..40,
                head: OutputHead::Classify,
            }],
            block_ids: vec![],
        };
        executor
            .submit(StepId(0), ForwardBatch::OneShot(batch))
            .unwrap();
        let output = executor.collect(StepId(0)).unwrap().oneshot;
        let [RowOutput::Classes(logits)] = &output[..] else {
            panic!("{output:?}");
        };
        classes.push(logits.clone());
    }
    std::fs::remove_dir_all(&folder).unwrap();
    let difference = classes[0].iter().zip(&classes[1]);
    let largest = difference.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let spread = classes[0]
        .iter()
        .copied()
        .fold(0.0, |m: f32, x| m.max(x.abs()));
    // Sums in another order, rounded to bf16 after each of 12 products.
    assert!(largest < 0.02 * spread, "{largest} of {spread}");
}

/// Answers as it is told, and remembers what it was asked.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Answers>>);

#[derive(Debug, Default)]
struct Answers {
    /// Rows of calls that were asked about, and of those that were made, with the algorithm.
    asked: Vec<u32>,
    checked: Vec<(u32, u64)>,
    made: Vec<(u32, u64)>,
    /// The only rows that algorithms of this number run.
    rows_of: Vec<(u64, u32)>,
}

fn algo(word: u64) -> Algo {
    Algo([word, 0, 0, 0, 0, 0, 0, 0])
}

impl Blas for Told {
    fn candidates(&mut self, call: &Call) -> Result<Vec<ProductPlan>, Error> {
        self.0.lock().unwrap().asked.push(call.params.m);
        let plan = |word| ProductPlan {
            algo: algo(word),
            workspace_bytes: 0,
            us: None,
        };
        Ok(vec![plan(u64::from(call.params.m)), plan(0)])
    }

    fn check(&mut self, call: &Call, algo: Algo) -> Result<Option<ProductPlan>, Error> {
        let mut answers = self.0.lock().unwrap();
        let m = call.params.m;
        answers.checked.push((m, algo.0[0]));
        let only = answers.rows_of.iter().find(|(word, _)| *word == algo.0[0]);
        let runs = only.is_none_or(|(_, rows)| *rows == m);
        Ok(runs.then_some(ProductPlan {
            algo,
            workspace_bytes: 0,
            us: None,
        }))
    }

    fn multiply(&mut self, call: &Call, plan: &ProductPlan) -> Result<(), Error> {
        let mut answers = self.0.lock().unwrap();
        answers.made.push((call.params.m, plan.algo.0[0]));
        Ok(())
    }
}

/// The rows and algorithms of products of 5, 20, 40 and 5 rows.
fn choices(told: &Told, file: Plans) -> Vec<(u32, u64)> {
    let table = Plans::new();
    choices_of(told, Measured { file, table }).0
}

/// The same, and the sources of the algorithms.
fn choices_of(told: &Told, measured: Measured) -> (Vec<(u32, u64)>, PlanCounts) {
    let recording = Arc::new(Recording::default());
    let space = Space::Virtual(Arc::clone(&recording));
    let buffer = workspace(&space).unwrap();
    let lt = Lt::new(
        Box::new(told.clone()),
        buffer,
        ProductEngine::Emulated,
        measured,
    );
    let mut products = Products::library_alone(lt);
    let mut launcher = Launcher::Record(recording, None);
    let memory = space.alloc("memory", 1 << 20).unwrap();
    for m in [5, 20, 40, 5] {
        let x = memory.view::<bf16>(0, m, 64);
        let w = memory.view::<bf16>(64 << 10, 24, 64);
        let y = ProductOutput::Write(memory.view::<bf16>(128 << 10, m, 24));
        products.multiply(&mut launcher, x, w, None, y).unwrap();
    }
    let counts = products.library().unwrap().counts();
    (std::mem::take(&mut told.0.lock().unwrap().made), counts)
}

fn key(m: u32) -> Key {
    Key {
        n: 24,
        k: 64,
        m,
        form: plans::Form::Write,
        bias: false,
        fp8: false,
    }
}

fn recorded(word: u64) -> Plans {
    let plan = ProductPlan {
        algo: algo(word),
        workspace_bytes: 0,
        us: Some(1.0),
    };
    [(key(32), plan)].into()
}

#[test]
fn a_bucket_has_one_plan() {
    let told = Told::default();
    let made = choices(&told, Plans::new());
    assert_eq!(made, [(5, 32), (20, 32), (40, 64), (5, 32)]);
    // The heuristic is asked once a bucket, and each shape is checked once.
    let answers = told.0.lock().unwrap();
    assert_eq!(answers.asked, [32, 64]);
    assert_eq!(answers.checked, [(5, 32), (20, 32), (40, 64)]);
}

#[test]
fn measured_plans_come_first() {
    let told = Told::default();
    let made = choices(&told, recorded(777));
    assert_eq!(made, [(5, 777), (20, 777), (40, 64), (5, 777)]);
    let answers = told.0.lock().unwrap();
    assert_eq!(answers.asked, [64]);
    assert_eq!(answers.checked[0], (32, 777), "before it is used");
}

/// The file of this machine, then the program's table, then the heuristic, each shape by itself.
#[test]
fn files_come_before_tables_and_tables_before_the_heuristic() {
    let told = Told::default();
    let check = |file, table, expected: [u64; 2], counts: [usize; 3]| {
        let (made, found) = choices_of(&told, Measured { file, table });
        let [of_32, of_64] = expected;
        assert_eq!(made, [(5, of_32), (20, of_32), (40, of_64), (5, of_32)]);
        assert_eq!([found.file, found.table, found.heuristic], counts);
        assert_eq!(found.none, 0);
    };
    check(recorded(777), recorded(555), [777, 64], [1, 0, 1]);
    check(Plans::new(), recorded(555), [555, 64], [0, 1, 1]);
    check(Plans::new(), Plans::new(), [32, 64], [0, 0, 2]);
    let both: Plans = [32, 64].map(|m| (key(m), recorded(555)[&key(32)])).into();
    check(recorded(777), both, [777, 555], [1, 1, 0]);
    // What the library refuses of one is looked for in the next.
    told.0.lock().unwrap().rows_of.push((777, 0));
    check(recorded(777), recorded(555), [555, 64], [0, 1, 1]);
    told.0.lock().unwrap().rows_of.push((555, 0));
    check(recorded(777), recorded(555), [32, 64], [0, 0, 2]);
}

/// Where a product is measured in one form, the form that is never asked for does not count.
#[test]
fn counts_are_of_shapes_in_the_form_that_is_measured() {
    let recording = Arc::new(Recording::default());
    let space = Space::Virtual(Arc::clone(&recording));
    let measured = Measured {
        file: Plans::new(),
        table: recorded(555),
    };
    let engine = lt_engine();
    let blas = Box::new(Told::default());
    let lt = Lt::new(blas, workspace(&space).unwrap(), engine, measured);
    let mut products = Products::library_alone(lt);
    let matrix = |n| Matrix {
        n,
        k: 64,
        has_bias: false,
        is_fp8: false,
    };
    let matrices = [matrix(24), matrix(4096)].map(|of| (of, Vec::new())).into();
    products.prepare(&matrices, 4096, 64, 32).unwrap();
    let ProductEngine::CublasLt { counts, .. } = products.engine() else {
        panic!("{:?}", products.engine())
    };
    // 32 and 64 rows of the one, of which the table has 32 in one of two forms; 32 of the other.
    assert_eq!((counts.table, counts.heuristic), (1, 2));
    let line = products.engine().to_string();
    let expected = "0 from the file, 1 from the table, 0 measured now, 2 from the heuristic (a file; a \
                    table)";
    assert!(line.ends_with(expected), "{line}");
}

fn lt_engine() -> ProductEngine {
    ProductEngine::CublasLt {
        version: "13.1.0".to_owned(),
        library: PathBuf::new(),
        plans: "a file; a table".to_owned(),
        counts: PlanCounts::default(),
    }
}

/// The library is asked about an algorithm of a table, and one that it does not know is not used:
/// products are right either way.
#[test]
fn algorithms_of_a_table_are_asked_about() {
    let Some(device) = emulation() else { return };
    let Some(folder) = fake("table", &["-DVERSION=130100"]) else {
        return;
    };
    let case = Case {
        m: 33,
        n: 40,
        k: 8,
        form: GemmOutput::Write,
        bias: false,
        gaps: [0; 3],
    };
    // What the library played knows its own by, and that it asks for 16 bytes.
    let known = Algo([0x6b6c_6d6e_6f70_7172, 16, 0, 0, 0, 0, 0, 0]);
    for (algo, expected) in [(known, [1, 0]), (algo(5), [0, 1])] {
        let space = Space::Emu(Arc::clone(&device));
        let mut lt = lt(&folder, &space).unwrap();
        let of = Key {
            n: 40,
            k: 8,
            ..key(64)
        };
        let plan = ProductPlan {
            algo,
            workspace_bytes: 0,
            us: Some(1.0),
        };
        lt.measured.table.insert(of, plan);
        let mut products = Products::library_alone(lt);
        let mut launcher = Launcher::Emu(Arc::clone(&device), None);
        let by_lt = product(case, &space, |x, w, b, y| {
            products.multiply(&mut launcher, x, w, b, y).unwrap();
        });
        let by_mma = product(case, &space, |x, w, b, y| {
            gemm::gemm_mma(&mut launcher, x, w, b, y).unwrap();
        });
        assert_eq!(by_lt, by_mma, "{algo:?}");
        let counts = products.library().unwrap().counts();
        assert_eq!([counts.table, counts.heuristic], expected);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn measured_plans_that_the_library_refuses_are_not_used() {
    let told = Told::default();
    told.0.lock().unwrap().rows_of.push((777, 0));
    let made = choices(&told, recorded(777));
    assert_eq!(made, [(5, 32), (20, 32), (40, 64), (5, 32)]);
}

#[test]
fn rows_that_a_plan_does_not_run_have_their_own() {
    let told = Told::default();
    told.0.lock().unwrap().rows_of.push((32, 20));
    let made = choices(&told, Plans::new());
    assert_eq!(made, [(5, 5), (20, 32), (40, 64), (5, 5)]);
}

/// The file in the cache folder is used, or the report says why it is not.
#[test]
fn the_plan_file_is_reported() {
    let folder = std::env::temp_dir().join(format!("prelude-lt-file-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let machine = Machine {
        device: "a GPU".to_owned(),
        driver: "13.0".to_owned(),
        cublaslt: 130_100,
        build: "0".to_owned(),
    };
    let other = Machine {
        cublaslt: 130_000,
        ..machine.clone()
    };
    let config = CudaConfig {
        cache_dir: Some(folder.clone()),
        ..small()
    };
    std::fs::write(
        folder.join(plans::FILE),
        plans::text(&recorded(7), &machine),
    )
    .unwrap();
    let (same, line) = super::recorded(&config, &machine);
    let (foreign, why) = super::recorded(&config, &other);
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!((same.len(), foreign.len()), (1, 0));
    assert!(line.starts_with("1 in "), "{line}");
    assert!(why.contains("is not used: it is for"), "{why}");
    let (none, why) = super::recorded(&small(), &machine);
    assert!(none.is_empty() && why.contains("cache_dir"), "{why}");
}

/// The real library, which needs no GPU for what it only describes: `cargo xtask kernels
/// cublaslt` names a folder that has it.
#[test]
fn the_real_library_takes_our_descriptions() {
    let Some(folder) = std::env::var_os("PRELUDE_TEST_CUBLASLT").map(PathBuf::from) else {
        say("SKIP: cuBLASLt is not tested: PRELUDE_TEST_CUBLASLT names no folder");
        return;
    };
    let (functions, version, path) = load(&[13, 12], &config(&folder)).unwrap();
    println!("{} {}", dotted(version), path.display());
    blas::describes(functions, version);
}

/// The numbers and sizes that the library's part is played with are those of NVIDIA's header.
#[test]
fn the_real_librarys_numbers_are_those_played() {
    let Some(folder) = std::env::var_os("PRELUDE_TEST_CUBLASLT").map(PathBuf::from) else {
        say("SKIP: cuBLASLt's header is not compared: PRELUDE_TEST_CUBLASLT names no folder");
        return;
    };
    let checked = Command::new("cc")
        .args(["-std=c11", "-fsyntax-only", "-DREAL_HEADER", "-I"])
        .arg(folder.join("nvidia/cu13/include"))
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/fake/cublaslt.c"
        ))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{errors}");
}
