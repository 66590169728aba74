//! Products at both models' shapes, by the number of rows: in bf16, then in fp8, with scales of rows and of
//! blocks.

use std::fs;

use anyhow::{Context as _, Result};
use half::bf16;
use prelude_exec_cuda::{
    CudaOps, Error, Weight,
    measure::{Device, Operands, Room, Target, Times, Tuner, WeightCycle, times},
};
use prelude_measure::record::replace;
use prelude_models::{Ops as _, step::ArenaTensor};

use super::{Layer, NO_FP8, has_fp8, in_step};
use crate::{
    session::{Figure, Session, Work},
    values,
};

/// Row counts, the ends and the most telling first. All that plans are made for are among them.
const ROWS: [usize; 19] = [
    1, 512, 128, 16, 8192, 64, 2048, 256, 32, 1024, 4096, 4, 8, 384, 1536, 96, 192, 768, 3072,
];
const ROWS_SMOKE: [usize; 3] = [1, 32, 17];
/// Row counts for which the library is asked with scales of blocks: fours of more than 16.
const ROWS_OF_BLOCKS: [usize; 5] = [512, 8192, 128, 2048, 32];
const ROWS_OF_BLOCKS_SMOKE: [usize; 1] = [32];
/// Row counts for which executors choose between the library and a kernel of our own.
const FEW: &[usize] = &[1, 4, 8, 16];
/// Bytes of weights that measurements go round, so that they come from memory and not from the L2
/// cache: more than any GPU has of that.
pub(super) const ROTATION_BYTES: usize = 240 << 20;
/// Matrices whose products models add to what is there.
const ADDED: [&str; 2] = ["o", "down"];

pub(super) fn run(session: &mut Session) -> Result<()> {
    session.say_ceilings()?;
    let models: &[&str] = session.pick(&["qwen3-0.6b", "qwen3-4b"], &["tiny"]);
    let rows: &[usize] = session.pick(&ROWS, &ROWS_SMOKE);
    let rows_of_blocks: &[usize] = session.pick(&ROWS_OF_BLOCKS, &ROWS_OF_BLOCKS_SMOKE);
    let mut tuner = Tuner::default();
    let mut forms = vec![Form::Bf16];
    match has_fp8(session) {
        true => forms.extend([Form::Rows, Form::Blocks]),
        false => session.skip("fp8", NO_FP8)?,
    }
    for form in forms {
        for model in models {
            let layer = Layer::of(model)?;
            for (name, n, k) in layer.matrices() {
                // The smallest model's are narrower than a block.
                let k = match form {
                    Form::Blocks => k.next_multiple_of(values::BLOCK),
                    Form::Bf16 | Form::Rows => k,
                };
                let case = Case {
                    layer,
                    what: format!("{model}{} {name} {n}×{k}", form.name()),
                    n,
                    k,
                    adds: ADDED.contains(&name),
                    form,
                };
                if session.has_time(&case.what, 4.0)? {
                    let rows_of_library = match form {
                        Form::Blocks => rows_of_blocks,
                        Form::Bf16 | Form::Rows => rows,
                    };
                    session.attempt(&case.what, |s| {
                        library(s, &mut tuner, &case, rows_of_library)
                    })?;
                    session.attempt(&case.what, |s| own(s, &case, rows, true))?;
                    session.attempt(&case.what, |s| own(s, &case, FEW, false))?;
                }
            }
        }
    }
    plan_file(session, &tuner)
}

/// Writes what was measured to the results, and to where executors of the parts behind this one
/// look for it.
fn plan_file(session: &mut Session, tuner: &Tuner) -> Result<()> {
    let Some(text) = tuner.file() else {
        return session.skip("plan file", "no algorithm of cuBLASLt was measured");
    };
    replace(&session.out.join(Tuner::FILE), text.as_bytes())?;
    let folder = session.config.cache_dir.clone();
    let folder = folder.context("there is no folder for what is kept")?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    replace(&folder.join(Tuner::FILE), text.as_bytes())?;
    match tuner.read_back(&folder) {
        Ok(plans) => session.note(
            "plan file",
            format!("{plans} plans; parts model and serve use them"),
        ),
        Err(why) => session.fail("plan file", format!("executors would not use it: {why}")),
    }
}

/// The form of a matrix, and of the rows that it is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Bf16,
    /// Rounded to fp8, a scale for each row.
    Rows,
    /// Weights in fp8 with a scale for each block, and rows with one for each 128 elements.
    Blocks,
}

impl Form {
    const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "",
            Self::Rows => " fp8",
            Self::Blocks => " fp8 blocks",
        }
    }

    /// Returns the bytes of an element.
    const fn bytes(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::Rows | Self::Blocks => 1,
        }
    }
}

/// A matrix of a layer.
struct Case {
    layer: Layer,
    what: String,
    n: usize,
    k: usize,
    /// True if the product is added to its output.
    adds: bool,
    form: Form,
}

/// A matrix, several copies of it, and room for the largest number of rows.
struct Bench {
    device: Device,
    room: Room,
    weights: Vec<Weight>,
    input: Vec<bf16>,
}

impl Bench {
    fn open(
        session: &Session,
        target: &Target,
        case: &Case,
        most: usize,
        deterministic: bool,
    ) -> Result<Self> {
        let &Case { n, k, .. } = case;
        let mut room = case.layer.room(most, 4, 64, most * (n + k) + 4096)?;
        room.fp8 = case.form != Form::Bf16;
        room.model.intermediate_size = room.model.intermediate_size.max(k);
        let device = Device::open(target, &room, deterministic)?;
        let bytes = n * k * case.form.bytes();
        let copies = session.pick(ROTATION_BYTES.div_ceil(bytes), 2);
        let mut loader = device.loader()?;
        let mut weights = Vec::new();
        for copy in 0..copies as u64 {
            weights.push(match case.form {
                Form::Bf16 | Form::Rows => values::matrix(&mut loader, copy, n, k)?.0,
                Form::Blocks => values::blocks(&mut loader, copy, n, k)?.0,
            });
        }
        Ok(Self {
            device,
            room,
            weights,
            input: values::values(9, most * k),
        })
    }

    /// Calls `body` in a step with `m` rows of input and of output.
    fn with<T>(
        &mut self,
        m: usize,
        case: &Case,
        body: impl FnOnce(&mut CudaOps, &ArenaTensor, &[Weight], &mut ArenaTensor) -> Result<T, Error>,
    ) -> Result<T> {
        let (input, weights) = (&self.input[..m * case.k], &self.weights);
        let before = values::values(10, m * case.n);
        let made = in_step(&mut self.device, &self.room, |ops| {
            let x = ops.filled(m, case.k, input)?;
            let mut y = ops.filled(m, case.n, &before)?;
            body(ops, &x, weights, &mut y)
        })?;
        Ok(made)
    }
}

/// Writes down the time of a product of `m` rows, beside its bounds.
fn figure(
    session: &mut Session,
    name: &str,
    (m, case): (usize, &Case),
    times: &Times,
    reason: String,
) -> Result<()> {
    let &Case {
        n, k, adds, form, ..
    } = case;
    let flops = 2.0 * (m * n) as f64 * k as f64;
    // What is added to is read, too.
    let outputs = if adds { 2 * m * n } else { m * n };
    // Products of e4m3 take half the time of those of bf16 at best.
    let factor_bytes = form.bytes();
    let of_flops = 0.5 * factor_bytes as f64 * flops;
    let bytes = (factor_bytes * (n * k + m * k) + 2 * outputs) as f64;
    session.figure(Figure {
        work: Some(Work::Flops(flops)),
        bound_s: session.ceilings.bound_s(of_flops, bytes),
        detail: !match form {
            Form::Bf16 | Form::Rows => matches!(m, 1 | 128 | 512 | 8192),
            Form::Blocks => matches!(m, 1 | 512),
        },
        reason,
        ..Figure::of(name, times)
    })
}

/// Measures cuBLASLt: the heuristic's first algorithm and the fastest of those that it names, of which
/// none may be wrong.
fn library(session: &mut Session, tuner: &mut Tuner, case: &Case, rows: &[usize]) -> Result<()> {
    // The emulation has no library; the device that writes down plays one.
    let target = session.pick(session.target.clone(), Target::recorded());
    let what = &case.what;
    let most = rows.iter().copied().max().unwrap_or(1);
    let mut bench = Bench::open(session, &target, case, most, false)?;
    let repetitions = session.pick(12, 2);
    let mut turn = WeightCycle::default();
    for &m in rows {
        session.beat(|| format!("{what}, M {m}"))?;
        let measured = bench.with(m, case, |ops, x, weights, y| {
            let engine = ops.products().to_string();
            let adds = case.adds;
            let mut operands = Operands {
                x,
                weights,
                y,
                adds,
            };
            let measured = tuner.measure(ops, &mut operands, repetitions, &mut turn)?;
            Ok(measured.ok_or(engine))
        })?;
        let name = format!("{what}, M {m}, cuBLASLt");
        let measured = match measured {
            Ok(measured) => measured,
            Err(engine) => return session.skip(&format!("{what}, cuBLASLt"), engine),
        };
        if measured.candidates == 0 {
            session.skip(&name, "the library has no algorithm for it")?;
        }
        for why in &measured.wrong {
            session.fail(&name, format!("not as our own kernel: {why}"))?;
        }
        if let Some(best) = &measured.best {
            let reason = format!("best of {}", measured.candidates);
            figure(session, &format!("{name}, best"), (m, case), best, reason)?;
        }
        if let Some(first) = &measured.first {
            let name = format!("{name}, heuristic's first");
            figure(session, &name, (m, case), first, String::new())?;
        }
    }
    Ok(())
}

/// Measures our own kernel, as deterministic mode runs it; or whatever runs the product otherwise.
/// Rounding rows to fp8 is in the times.
fn own(session: &mut Session, case: &Case, rows: &[usize], deterministic: bool) -> Result<()> {
    let most = rows.iter().copied().max().unwrap_or(1);
    let target = session.target.clone();
    let mut bench = Bench::open(session, &target, case, most, deterministic)?;
    let repetitions = session.pick(12, 2);
    let mut turn = WeightCycle::default();
    for &m in rows {
        session.beat(|| format!("{}, M {m}", case.what))?;
        let (times, skinny) = bench.with(m, case, |ops, x, weights, y| {
            let before = ops.product_counts().skinny;
            let times = times(ops, repetitions, |ops, _| {
                let weight = turn.next(weights);
                match case.adds {
                    true => ops.linear_add(x, 0..m, weight, y),
                    false => ops.linear(x, m, weight, y),
                }
            })?;
            Ok((times, ops.product_counts().skinny > before))
        })?;
        let [many, few] = match case.form {
            Form::Bf16 => ["gemm_mma", "gemm_skinny"],
            Form::Rows => ["gemm_fp8", "gemm_fp8_few"],
            Form::Blocks => ["gemm_fp8_block", "gemm_fp8_block_few"],
        };
        let by = match (deterministic, skinny) {
            (true, _) => many,
            (false, true) => few,
            (false, false) => "executor's choice",
        };
        let name = format!("{}, M {m}, {by}", case.what);
        figure(session, &name, (m, case), &times, String::new())?;
    }
    Ok(())
}
