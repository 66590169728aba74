use super::{
    choices::{algo, key},
    *,
};
use crate::{kernels::gemm, memory::view::View};

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
