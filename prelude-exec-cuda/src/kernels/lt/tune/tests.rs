use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use super::*;
use crate::{
    PlanCounts,
    kernels::{
        fp8::Scaling,
        lt::{Algo, Blas, Measured, plans::Machine, workspace},
    },
    memory::space::Space,
};

/// A library and a GPU with a clock: each algorithm takes the time that is set for it.
#[derive(Clone, Debug, Default)]
struct Played(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    now_s: f64,
    /// Microseconds of the heuristic's candidates, in its order; infinite for one that fails.
    candidates_us: Vec<f64>,
    /// The error that a failing candidate returns.
    fault: Option<Error>,
    /// Calls that ran: rows, algorithm, weight.
    ran: Vec<(u32, u64, u64)>,
    is_host_bound: bool,
}

impl Played {
    fn with(candidates_us: &[f64]) -> Self {
        let this = Self::default();
        this.0.lock().unwrap().candidates_us = candidates_us.to_vec();
        this
    }

    fn take_ran(&self) -> Vec<(u32, u64, u64)> {
        std::mem::take(&mut self.0.lock().unwrap().ran)
    }
}

impl Blas for Played {
    fn candidates(&mut self, _: &Call) -> Result<Vec<ProductPlan>, Error> {
        let count = self.0.lock().unwrap().candidates_us.len() as u64;
        let plan = |word| ProductPlan {
            algo: Algo([word; 8]),
            workspace_bytes: 0,
            us: None,
        };
        Ok((0..count).map(plan).collect())
    }

    fn check(&mut self, _: &Call, algo: Algo) -> Result<Option<ProductPlan>, Error> {
        Ok(Some(ProductPlan {
            algo,
            workspace_bytes: 0,
            us: None,
        }))
    }

    fn try_multiply(&mut self, call: &Call, plan: &ProductPlan) -> Result<bool, Error> {
        let mut state = self.0.lock().unwrap();
        let algo = plan.algo.0[0];
        let us = state.candidates_us[usize::try_from(algo).unwrap()];
        if us.is_infinite() {
            let refused = || Error::launch("cublasLtMatmul", "refused");
            return Err(state.fault.clone().unwrap_or_else(refused));
        }
        state.now_s += us * 1e-6;
        state.ran.push((call.params.m, algo, call.params.w.0));
        Ok(true)
    }
}

impl Stopwatch for Played {
    fn wait(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn times(
        &mut self,
        count: usize,
        queue: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Option<Vec<f64>>, Error> {
        let now = || self.0.lock().unwrap().now_s;
        let mut seconds = Vec::new();
        for i in 0..count {
            let before = now();
            queue(i)?;
            seconds.push(now() - before);
        }
        let is_host_bound = self.0.lock().unwrap().is_host_bound;
        Ok((!is_host_bound).then_some(seconds))
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs_f64(self.0.lock().unwrap().now_s)
    }
}

const MATRIX: Matrix = Matrix {
    n: 24,
    k: 64,
    has_bias: false,
    fp8: None,
};
const SCRATCH: Scratch = Scratch {
    at: DevicePtr(1 << 30),
    bytes: 1 << 30,
};
const LONG: Duration = Duration::from_secs(3600);

fn weights(count: u64) -> Weights {
    let place = |i| WeightAt {
        w: DevicePtr(4096 * (i + 1)),
        scales: DevicePtr::NULL,
        bias: DevicePtr::NULL,
    };
    [(MATRIX, (0..count).map(place).collect())].into()
}

fn machine(device: &str) -> Machine {
    Machine {
        device: device.to_owned(),
        driver: "13.0".to_owned(),
        cublaslt: 130_100,
        build: "0".to_owned(),
    }
}

/// Returns an [`Lt`] with plans for up to `rows` rows of [`MATRIX`].
fn prepared(played: &Played, measured: Measured, rows: u32) -> Lt {
    let space = Space::Virtual(Arc::default());
    let engine = ProductEngine::CublasLt {
        version: "13.1.0".to_owned(),
        library: "played".into(),
        plans: "no table".to_owned(),
        counts: PlanCounts::default(),
    };
    let blas = Box::new(played.clone());
    let mut lt = Lt::new(blas, workspace(&space).unwrap(), engine, measured);
    let forms = [GemmOutput::Write, GemmOutput::Add];
    lt.prepare(MATRIX, &forms, rows).unwrap();
    lt
}

fn tune(lt: &mut Lt, played: &Played, weights: &Weights, budget: Duration) {
    lt.tune(weights, SCRATCH, &mut played.clone(), budget)
        .unwrap();
}

/// Rows, whether added, and the algorithm of every plan.
fn chosen(lt: &Lt) -> Vec<(u32, bool, u64)> {
    let of = lt.chosen.iter().map(|(key, (plan, _))| {
        let added = key.form == Form::Add;
        (key.m, added, plan.unwrap().algo.0[0])
    });
    of.collect()
}

fn counts(lt: &Lt) -> [usize; 4] {
    let counts = lt.counts();
    [counts.file, counts.table, counts.measured, counts.heuristic]
}

#[test]
fn the_fastest_is_chosen_for_both_forms() {
    let played = Played::with(&[20.0, 12.0, 9.0, 30.0]);
    let mut lt = prepared(&played, Measured::default(), 64);
    assert_eq!(counts(&lt), [0, 0, 0, 2]);
    tune(&mut lt, &played, &weights(3), LONG);
    let expected = [(32, false, 2), (32, true, 2), (64, false, 2), (64, true, 2)];
    let mut found = chosen(&lt);
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(counts(&lt), [0, 0, 2, 0]);
    let us = lt.chosen.values().map(|(plan, _)| plan.unwrap().us);
    assert!(us.flatten().all(|us| (us - 9.0).abs() < 0.01));
    // The fourth was far behind at its second run, and each call had another weight than the one
    // before it.
    let ran = played.take_ran();
    assert_eq!(
        ran.iter().filter(|&&(m, a, _)| (m, a) == (64, 3)).count(),
        2
    );
    assert!(
        ran.windows(2)
            .all(|of| of[0].2 != of[1].2 || of[0].0 != of[1].0)
    );
    // The most rows first.
    assert_eq!((ran[0].0, ran.last().unwrap().0), (64, 32));
    let text = lt.engine().to_string();
    assert!(
        text.contains("2 measured now, 0 from the heuristic"),
        "{text}"
    );
    assert!(text.contains("2 of 2 others measured in"), "{text}");
    // A step has that one, too, and nothing is measured again.
    tune(&mut lt, &played, &weights(3), LONG);
    assert!(played.take_ran().is_empty());
}

#[test]
fn the_first_choice_stays_where_another_is_hardly_faster() {
    let check = |second, expected: u64| {
        let played = Played::with(&[10.0, second, f64::INFINITY]);
        let mut lt = prepared(&played, Measured::default(), 32);
        tune(&mut lt, &played, &weights(2), LONG);
        assert_eq!(chosen(&lt)[0].2, expected, "{second}");
        assert_eq!(counts(&lt), [0, 0, 1, 0]);
    };
    check(9.9, 0);
    check(9.7, 1);
    check(10.1, 0);
}

#[test]
fn products_in_a_file_or_a_table_are_not_measured() {
    let plan = ProductPlan {
        algo: Algo([1; 8]),
        workspace_bytes: 0,
        us: Some(1.0),
    };
    let of = |m, form| {
        let key = Key {
            n: MATRIX.n,
            k: MATRIX.k,
            m,
            form,
            bias: false,
            fp8: None,
        };
        Plans::from([(key, plan)])
    };
    let played = Played::with(&[20.0, 12.0, 9.0]);
    let measured = Measured {
        file: of(32, Form::Add),
        table: of(64, Form::Write),
    };
    let mut lt = prepared(&played, measured, 96);
    tune(&mut lt, &played, &weights(2), LONG);
    assert_eq!(counts(&lt), [1, 1, 1, 0]);
    let ran = played.take_ran();
    assert!(!ran.is_empty() && ran.iter().all(|&(m, ..)| m == 96));
    let kept = |of| lt.chosen.iter().find(|(key, _)| (key.m, key.form) == of);
    assert_eq!(kept((32, Form::Add)).unwrap().1.1, Source::File);
    assert_eq!(kept((64, Form::Write)).unwrap().1.1, Source::Table);
}

#[test]
fn the_budget_ends_it() {
    let run = |budget| {
        let played = Played::with(&[2000.0, 1000.0]);
        let mut lt = prepared(&played, Measured::default(), 8192);
        tune(&mut lt, &played, &weights(2), budget);
        (counts(&lt), played.take_ran().len())
    };
    assert_eq!(run(Duration::ZERO), ([0, 0, 0, 15], 0));
    // 1 + 1 + 5 times of each: 3 + 3 + 5 ms of the one that is twice as fast.
    let ([_, _, measured, guessed], _) = run(Duration::from_millis(40));
    assert_eq!((measured, guessed), (4, 11));
    assert_eq!(run(LONG).0, [0, 0, 15, 0]);
    // It ends within a shape too.
    let (found, ran) = run(Duration::from_millis(2));
    assert_eq!((found, ran), ([0, 0, 0, 15], 1));
}

#[test]
fn candidates_that_fail_are_passed_over() {
    let played = Played::with(&[f64::INFINITY, 12.0, f64::INFINITY, 9.0]);
    let mut lt = prepared(&played, Measured::default(), 32);
    tune(&mut lt, &played, &weights(2), LONG);
    assert_eq!(chosen(&lt)[0].2, 3);
    let played = Played::with(&[f64::INFINITY; 2]);
    let mut lt = prepared(&played, Measured::default(), 32);
    tune(&mut lt, &played, &weights(2), LONG);
    assert_eq!((counts(&lt), chosen(&lt)[0].2), ([0, 0, 0, 1], 0));
    // A GPU that is lost ends the start.
    let lost = Error::DeviceLost {
        code: "CUDA_ERROR_ILLEGAL_ADDRESS".to_owned(),
        kernel: "a measurement",
    };
    played.0.lock().unwrap().fault = Some(lost);
    let tuned = lt.tune(&weights(2), SCRATCH, &mut played.clone(), LONG);
    assert!(matches!(tuned, Err(Error::DeviceLost { .. })));
}

#[test]
fn times_of_the_host_choose_nothing() {
    let played = Played::with(&[20.0, 9.0]);
    played.0.lock().unwrap().is_host_bound = true;
    let mut lt = prepared(&played, Measured::default(), 32);
    tune(&mut lt, &played, &weights(2), LONG);
    assert_eq!((counts(&lt), chosen(&lt)[0].2), ([0, 0, 0, 1], 0));
}

#[test]
fn shapes_without_a_choice_or_room_are_left() {
    let played = Played::with(&[20.0]);
    let mut one = prepared(&played, Measured::default(), 32);
    tune(&mut one, &played, &weights(2), LONG);
    assert_eq!(counts(&one), [0, 0, 0, 1]);
    let played = Played::with(&[20.0, 9.0]);
    let mut lt = prepared(&played, Measured::default(), 64);
    // 64 rows of x take 8,192 bytes, of y 3,072.
    let scratch = Scratch {
        bytes: 8192 + 3072 - 1,
        ..SCRATCH
    };
    lt.tune(&weights(2), scratch, &mut played.clone(), LONG)
        .unwrap();
    assert_eq!(counts(&lt), [0, 0, 1, 1]);
    assert!(played.take_ran().iter().all(|&(m, ..)| m == 32));
}

#[test]
fn operands_lie_apart_within_the_room() {
    for (fp8, form) in [
        (None, Form::Write),
        (Some(Scaling::Rows), Form::Add),
        (Some(Scaling::Blocks), Form::Write),
        (None, Form::F32),
    ] {
        let key = Key {
            n: 32,
            k: 256,
            m: 96,
            form,
            bias: false,
            fp8,
        };
        let place = WeightAt {
            w: DevicePtr(4096),
            scales: DevicePtr(8192),
            bias: DevicePtr::NULL,
        };
        let weights: Weights = [(key.matrix(), vec![place; 2])].into();
        let made = calls(key, &weights, SCRATCH);
        assert_eq!(made.len(), 2);
        let (call, element) = (&made[0], if fp8.is_some() { 1 } else { 2 });
        let p = &call.params;
        let mut next = p.x.0 + u64::from(p.m * p.x_stride) * element;
        assert_eq!((p.x, p.w), (SCRATCH.at, place.w));
        if let Some(scales) = call.scales {
            assert_eq!((Some(scales.scaling), scales.w), (fp8, place.scales));
            assert!(scales.x.0 >= next);
            let groups = if fp8 == Some(Scaling::Blocks) { 2 } else { 1 };
            next = scales.x.0 + u64::from(p.m) * groups * 4;
        }
        assert!(p.y.0 >= next && call.shape().key == key);
    }
}

/// A start does not measure again what an earlier start measured on the same machine, but measures for
/// another GPU.
#[test]
fn measured_plans_are_kept() {
    let folder = std::env::temp_dir().join(format!("prelude-tune-{}", std::process::id()));
    let start = |device: &str, folder: &Path, rows| {
        let played = Played::with(&[20.0, 9.0]);
        let machine = machine(device);
        let config = crate::CudaConfig {
            cache_dir: Some(folder.to_owned()),
            ..crate::CudaConfig::default()
        };
        let (file, _) = crate::kernels::lt::recorded(&config, &machine);
        let measured = Measured {
            file,
            table: Plans::new(),
        };
        let mut lt = prepared(&played, measured, rows);
        lt.own_file = Some(folder.join(plans::own_file(device)));
        lt.machine = Some(machine);
        tune(&mut lt, &played, &weights(2), LONG);
        let algorithms = chosen(&lt).into_iter().map(|(.., algo)| algo);
        assert!(algorithms.eq(vec![1; lt.chosen.len()]));
        let ran = played.take_ran().len();
        (counts(&lt), ran > 0, lt.engine().to_string())
    };
    let mut found = Vec::new();
    let mut texts = Vec::new();
    for (device, rows) in [("GPU A", 64), ("GPU A", 64), ("GPU B", 32), ("GPU A", 96)] {
        let (counts, ran, text) = start(device, &folder, rows);
        found.push((counts, ran));
        texts.push(text);
    }
    let files = std::fs::read_dir(&folder).unwrap().count();
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, "no folder").unwrap();
    let (counts, _, text) = start("GPU A", &folder, 32);
    std::fs::remove_file(&folder).unwrap();
    let expected = [
        ([0, 0, 2, 0], true),
        ([2, 0, 0, 0], false),
        ([0, 0, 1, 0], true),
        ([2, 0, 1, 0], true),
    ];
    assert_eq!((found, files), (expected.to_vec(), 2));
    assert!(texts[0].contains("kept in ") && texts[0].contains("gemm-plans-gpu-a.json"));
    // A folder that cannot be written costs the next start and nothing else.
    assert!(
        counts == [0, 0, 1, 0] && text.contains("not kept in"),
        "{text}"
    );
}

#[test]
fn a_file_that_would_be_too_large_holds_the_latest_alone() {
    let folder = std::env::temp_dir().join(format!("prelude-full-{}", std::process::id()));
    let path = folder.join("plans.json");
    let many = |n: u32, count: u32| -> Plans {
        let plan = ProductPlan {
            algo: Algo([7; 8]),
            workspace_bytes: 0,
            us: Some(1.0),
        };
        let key = |i: u32| Key {
            n,
            k: 8 * (i + 1),
            m: 32,
            form: Form::Write,
            bias: false,
            fp8: None,
        };
        (0..count).map(|i| (key(i), plan)).collect()
    };
    let (old, new) = (many(1, 2000), many(2, 1500));
    let of = machine("GPU A");
    let read = || plans::read(&path, &of, WORKSPACE_BYTES).unwrap();
    plans::keep(&path, &old, &of, WORKSPACE_BYTES).unwrap();
    let first = read();
    plans::keep(&path, &new, &of, WORKSPACE_BYTES).unwrap();
    let second = read();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!((first, second), (old, new));
}
