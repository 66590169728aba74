use std::sync::Mutex;

use super::*;

/// Answers as it is told, and remembers what it was asked.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<Answers>>);

#[derive(Debug, Default)]
struct Answers {
    /// Rows of calls that were asked about, and of those that were made, with the algorithm.
    asked: Vec<u32>,
    checked: Vec<(u32, u64)>,
    made: Vec<(u32, u64)>,
    /// Algorithms that are refused when they are to run, after all.
    refused: Vec<u64>,
    /// The only rows that algorithms of this number run.
    rows_of: Vec<(u64, u32)>,
}

pub(super) fn algo(word: u64) -> Algo {
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

    fn try_multiply(&mut self, call: &Call, plan: &ProductPlan) -> Result<bool, Error> {
        let mut answers = self.0.lock().unwrap();
        answers.made.push((call.params.m, plan.algo.0[0]));
        Ok(!answers.refused.contains(&plan.algo.0[0]))
    }
}

/// The rows and algorithms of products of 5, 20, 40 and 5 rows.
fn choices(told: &Told, file: Plans) -> Vec<(u32, u64)> {
    let table = Plans::new();
    choices_of(told, Measured { file, table }).0
}

/// Returns the rows and algorithms of products of 5, 20, 40 and 5 rows, and how many algorithms came
/// from each source.
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

pub(super) fn key(m: u32) -> Key {
    Key {
        n: 24,
        k: 64,
        m,
        form: plans::Form::Write,
        bias: false,
        fp8: None,
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
        fp8: None,
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

/// A product that the library refuses when it is made, after it has named an algorithm for it, is our own
/// kernel's, and the library is not asked for so many rows again.
#[test]
fn products_refused_late_are_our_kernel_s() {
    let told = Told::default();
    told.0.lock().unwrap().refused.push(32);
    let (made, counts) = choices_of(&told, Measured::default());
    assert_eq!(made, [(5, 32), (20, 20), (40, 64)]);
    assert_eq!((counts.heuristic, counts.none), (1, 1));
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
