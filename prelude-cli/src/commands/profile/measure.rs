//! The measurements of a profile: their order, and how long each takes.

use std::time::{Duration, Instant};

use prelude_core::{Executor, ForwardBatch, Sample, StepId};
use prelude_models::ModelKind;

use super::{
    super::{Code, Failure},
    steps::Steps,
};

/// Cached tokens before those of a step. The first that do not fit are left out.
const CACHED: [u32; 4] = [0, 256, 1024, 4096];
/// Prompts in a step.
const PROMPTS: [u32; 2] = [1, 8];
/// Generations in a step.
const GENERATIONS: [u32; 4] = [1, 4, 16, 64];
/// Largest number of times that one step is measured.
const MAX_ROUNDS: usize = 25;
/// The part of the time in which the cache is filled.
const FILLING: u32 = 5;
/// Largest part of the time that is left that one step may take.
const ONE_STEP: f64 = 0.25;

/// The median times of steps.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) prefill: Vec<Sample>,
    pub(super) decode: Vec<Sample>,
}

/// A step to be measured, and its times so far.
#[derive(Debug)]
struct Point {
    /// The step's shape; `ms` is 0.
    shape: Sample,
    generates: bool,
    ms: Vec<f64>,
}

impl Point {
    fn new(generates: bool, batch: u32, computed: u32, cached: u32) -> Self {
        Self {
            shape: Sample {
                batch,
                computed,
                cached,
                ms: 0.0,
            },
            generates,
            ms: Vec::new(),
        }
    }

    fn tokens(&self) -> u64 {
        u64::from(self.shape.batch) * u64::from(self.shape.computed)
    }

    /// Returns the median time. The first run of a shape does not count where there are others: it
    /// may compile, capture or touch memory for the first time.
    fn sample(&self) -> Option<Sample> {
        let mut ms = match &self.ms[..] {
            [_, later @ ..] if !later.is_empty() => later.to_vec(),
            all => all.to_vec(),
        };
        ms.sort_by(f64::total_cmp);
        let median = *ms.get(ms.len() / 2)?;
        Some(Sample {
            ms: median,
            ..self.shape
        })
    }
}

/// Measures steps of an executor that runs nothing else, for about the time of the budget; `tick` is
/// called after each. All shapes take turns, the small ones first, so that a noise that comes and
/// goes meets all of them. Shapes that would take too long are left out.
///
/// # Errors
/// If a step fails.
pub(super) fn measure(
    executor: &mut dyn Executor,
    kind: &ModelKind,
    budget: Duration,
    tick: &dyn Fn(),
) -> Result<Measured, Failure> {
    let mut runner = Runner {
        steps: Steps::new(executor.capacity(), kind),
        executor,
        next: 0,
        ends: Instant::now() + budget,
        tick,
    };
    let filled = runner.fill(budget / FILLING)?;
    let mut points = points(&runner.steps, filled);
    for _ in 0..MAX_ROUNDS {
        if !runner.round(&mut points)? {
            break;
        }
    }
    let of = |generates: bool| {
        let points = points.iter().filter(|p| p.generates == generates);
        points.filter_map(Point::sample).collect()
    };
    Ok(Measured {
        prefill: of(false),
        decode: of(true),
    })
}

/// Returns the shapes that an executor has room for behind at most `filled` cached tokens, the
/// smallest first.
fn points(steps: &Steps, filled: u32) -> Vec<Point> {
    let capacity = steps.capacity;
    let cached = || CACHED.into_iter().filter(move |&cached| cached <= filled);
    let powers = (0..u32::BITS).map(|power| 1_u32 << power);
    let lengths = powers.take_while(|&length| length <= capacity.max_step_tokens);
    let mut points = Vec::new();
    for computed in lengths {
        for batch in PROMPTS {
            let fits = batch <= capacity.max_step_tokens / computed;
            let cached = cached().filter(|cached| cached + computed <= capacity.max_context_len);
            points.extend(
                cached
                    .filter(|_| fits)
                    .map(|cached| Point::new(false, batch, computed, cached)),
            );
        }
    }
    for batch in GENERATIONS.into_iter().filter(|_| steps.generates()) {
        let has_room = |cached: &u32| {
            let blocks = cached / capacity.block_size + batch;
            batch <= capacity.max_step_tokens
                && blocks <= capacity.num_blocks
                && *cached < capacity.max_context_len
        };
        let cached = cached().filter(has_room);
        points.extend(cached.map(|cached| Point::new(true, batch, 1, cached)));
    }
    points.sort_by_key(|p| (p.tokens(), p.shape.cached, p.shape.batch, p.generates));
    points
}

struct Runner<'a> {
    executor: &'a mut dyn Executor,
    steps: Steps,
    next: u64,
    ends: Instant,
    tick: &'a dyn Fn(),
}

impl Runner<'_> {
    /// Runs a step and returns its milliseconds.
    fn run(&mut self, batch: ForwardBatch) -> Result<f64, Failure> {
        let step = StepId(self.next);
        self.next += 1;
        let started = Instant::now();
        let ran = self
            .executor
            .submit(step, batch)
            .and_then(|()| self.executor.collect(step));
        let took = started.elapsed();
        ran.map_err(|e| Failure::new(Code::Engine, e))?;
        // The next step of this shape runs as one does behind an engine that had time.
        while self.executor.prepare(true) {}
        (self.tick)();
        Ok(took.as_secs_f64() * 1e3)
    }

    /// Fills the cache for as long as `time` lets it, and returns the tokens that it holds then.
    fn fill(&mut self, time: Duration) -> Result<u32, Failure> {
        let capacity = self.steps.capacity;
        let blocks = u64::from(capacity.block_size) * u64::from(capacity.num_blocks);
        let ends = Instant::now() + time;
        let (mut filled, mut longest) = (0, Duration::ZERO);
        for cached in CACHED {
            let is_whole = cached % capacity.block_size == 0;
            let has_room = u64::from(cached) <= blocks && cached < capacity.max_context_len;
            if !is_whole || !has_room {
                break;
            }
            let at_once = (CACHED[1].min(capacity.max_step_tokens) / capacity.block_size)
                * capacity.block_size;
            if at_once == 0 {
                break;
            }
            let mut start = filled;
            while start < cached {
                if Instant::now() + longest > ends {
                    return Ok(filled);
                }
                let end = cached.min(start + at_once);
                let began = Instant::now();
                self.run(self.steps.fill(start..end))?;
                longest = longest.max(began.elapsed());
                start = end;
            }
            filled = cached;
        }
        Ok(filled)
    }

    /// Measures each of the shapes once, the smallest first, up to one that would take too long.
    /// Returns whether there is time for another round.
    fn round(&mut self, points: &mut [Point]) -> Result<bool, Failure> {
        let mut last: Option<(u64, f64)> = None;
        for point in points {
            let left = self.ends.saturating_duration_since(Instant::now());
            let known = point.ms.iter().copied().reduce(f64::max);
            // Twice as many tokens take up to four times as long.
            let grown = last.map(|(tokens, ms)| {
                let growth = point.tokens() as f64 / tokens as f64;
                ms * growth.powi(2)
            });
            let expected_ms = known.or(grown).unwrap_or(0.0);
            let most = match known {
                Some(_) => 1.0,
                None => ONE_STEP,
            };
            if left.is_zero() {
                return Ok(false);
            }
            if expected_ms > most * left.as_secs_f64() * 1e3 {
                // Steps after this one are larger. There may be time to measure the others again.
                return Ok(known.is_none());
            }
            let Sample {
                batch,
                computed,
                cached,
                ..
            } = point.shape;
            let step = match point.generates {
                true => self.steps.generations(batch, cached),
                false => self.steps.prompts(batch, computed, cached),
            };
            let ms = self.run(step)?;
            point.ms.push(ms);
            last = Some((point.tokens(), ms));
        }
        Ok(true)
    }
}
