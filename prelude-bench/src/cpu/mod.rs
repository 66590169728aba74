//! The CPU executor beside other engines in process, on random weights of Qwen3-0.6B's shape.
//!
//! All engines are loaded at once and work in turns, round after round, on prompts that are new each
//! time; a ratio is taken of one round. Ours is the executor, called as the engine calls it; rivals
//! are called by the functions that their users call. The work is given in shares of what the
//! machine's units do with operands in registers, which is measured before each round: virtual
//! cores that share a physical one halve it. The time that a cache line takes from one core to another
//! is measured as well: virtual cores of different third-level caches make it five times as long.

mod ours;
mod peer;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use prelude_exec_cpu::measure::handover_ns;

use crate::server::{Bar, Report, Row, Unit, folders, load_average, report_since};
use ours::Ours;
pub use peer::Peer;
use peer::Running;

const EXAMPLES: &str = "\
Examples:
  prelude-bench cpu
      the executor alone: times, and shares of what the processor's units can do
  prelude-bench cpu --peers vllm,hf --install-peers
      beside vLLM and transformers, which are installed first, in turns, with a plot";

/// The CPU executor on random weights of Qwen3-0.6B's shape, beside other engines in process.
///
/// Writes a checkpoint of 1.2 GB. All engines are loaded at once, which takes more than 10 GB with vLLM
/// and transformers. Leave the machine alone meanwhile: each engine uses all cores.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Config {
    /// Also measure these engines.
    #[arg(long, value_delimiter = ',')]
    pub peers: Vec<Peer>,
    /// Install the engines into the output folder first.
    #[arg(long)]
    pub install_peers: bool,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 5)]
    pub rounds: usize,
    /// Folder for the report, its plot, the checkpoint and installed engines.
    #[arg(long, default_value = "bench/out/server")]
    pub out: PathBuf,
}

/// The work that an engine is asked for at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Prompts that begin with `shared` equal tokens, then have `own` of their own. Each is answered
    /// by one token.
    Prompts { shared: u32, count: u32, own: u32 },
    /// Generations that have `context` tokens and go on by one token: the time of a step.
    Decode { rows: u32, context: u32 },
}

/// Rows of the largest decode step.
const ROWS_MAX: u32 = 4;
/// Tokens of the longest generation before its first measured step.
const CONTEXT_MAX: u32 = 4_000;

/// A line of the report.
struct Case {
    name: &'static str,
    work: Work,
    /// Least factor by which ours is to be faster than each rival.
    aim: f64,
}

const CASES: [Case; 10] = [
    Case {
        name: "a prompt of 128 tokens",
        work: prompts(0, 1, 128),
        aim: 1.15,
    },
    Case {
        name: "a prompt of 512 tokens",
        work: prompts(0, 1, 512),
        aim: 1.15,
    },
    Case {
        name: "16 prompts of 128 tokens",
        work: prompts(0, 16, 128),
        aim: 1.15,
    },
    Case {
        name: "8 prompts of 448 shared and 64 own tokens",
        work: prompts(448, 8, 64),
        aim: 1.8,
    },
    Case {
        name: "a decode step of 1 row behind 128 tokens",
        work: decode(1, 128),
        aim: 1.9,
    },
    Case {
        name: "a decode step of 1 row behind 1,000 tokens",
        work: decode(1, 1_000),
        aim: 1.0,
    },
    Case {
        name: "a decode step of 1 row behind 4,000 tokens",
        work: decode(1, 4_000),
        aim: 1.0,
    },
    Case {
        name: "a decode step of 4 rows behind 128 tokens",
        work: decode(4, 128),
        aim: 1.5,
    },
    Case {
        name: "a decode step of 4 rows behind 1,000 tokens",
        work: decode(4, 1_000),
        aim: 1.2,
    },
    Case {
        name: "a decode step of 4 rows behind 4,000 tokens",
        work: decode(4, 4_000),
        aim: 1.2,
    },
];

/// Least share of the peak that prompts are to reach, in percent.
const PEAK_AIM: f64 = 78.0;
/// Times of reading weights, keys and values once that a decode step may take.
const READING_AIM: f64 = 1.2;
/// Seconds that loading a checkpoint may take.
const FIRST_LOAD_AIM: f64 = 0.8;
/// Seconds that mapping packed weights may take.
const PACKED_LOAD_AIM: f64 = 0.3;
/// Least ratio of a decode step of one row in bf16 to one with int8 weights.
const INT8_AIM: f64 = 1.7;

const fn prompts(shared: u32, count: u32, own: u32) -> Work {
    Work::Prompts { shared, count, own }
}

const fn decode(rows: u32, context: u32) -> Work {
    Work::Decode { rows, context }
}

/// Measures all engines in turns.
///
/// # Errors
/// If the checkpoint cannot be written, or an engine fails.
pub fn run(config: &Config) -> Result<Report> {
    ensure!(config.rounds > 0, "0 rounds, not at least 1");
    std::fs::create_dir_all(&config.out)?;
    let config = &Config {
        out: std::path::absolute(&config.out)?,
        ..config.clone()
    };
    let before = load_average();
    let bar = Bar::new();
    bar.says("random weights of Qwen3-0.6B's shape");
    let model = folders::make(&config.out, "qwen3-0.6b-random")?;
    let (mut peers, skipped) = start_peers(config, &model, &bar)?;
    bar.says("loading");
    let (mut loaded, loads) = load(&model, &config.out, &peers)?;
    let Loaded { ours, mapped, int8 } = &mut loaded;
    let (mut mapped_steps, mut int8_steps) = (Vec::new(), Vec::new());
    let mut results: Vec<Rounds> = CASES.iter().map(|_| Rounds::new(peers.len())).collect();
    let (mut peaks, mut rates, mut handovers) = (Vec::new(), Vec::new(), Vec::new());
    bar.says("keys and values of the longest generations");
    ours.generate(ROWS_MAX, CONTEXT_MAX)?;
    // The first round compiles and warms what there is to compile and to warm; it does not count.
    for round in 0..=config.rounds {
        peaks.extend(ours.peak().filter(|_| round > 0));
        rates.extend((round > 0).then(|| ours.read_rate()));
        handovers.extend((round > 0).then(|| handover_ns() / 1e3));
        for (case, result) in CASES.iter().zip(&mut results) {
            bar.says(&format!(
                "round {round} of {}: {}",
                config.rounds, case.name
            ));
            let seconds = ours.measure(case.work)?;
            let theirs = peers.iter_mut().map(|peer| peer.measure(case.work));
            let theirs = theirs.collect::<Result<Vec<f64>>>()?;
            if round > 0 {
                result.push(seconds, &theirs);
            }
        }
        let one_row = decode(1, 128);
        let (packed, bytes) = (mapped.measure(one_row)?, int8.measure(one_row)?);
        // After the rivals' turns: the row that int8 is compared with is measured beside it.
        let bf16 = ours.measure(one_row)?;
        if round > 0 {
            mapped_steps.push(1e3 * packed);
            int8_steps.push((1e3 * bytes, 1e3 * bf16));
        }
    }
    bar.done();
    let peak = Row::new("peak of the units, bf16", Unit::GigaflopsPerSecond, peaks);
    let mapped_steps = Row::new(
        "a decode step of packed weights",
        Unit::Millis,
        mapped_steps,
    );
    let (int8_steps, bf16_steps): (Vec<f64>, Vec<f64>) = int8_steps.into_iter().unzip();
    let mut int8_steps = Row::new("a decode step of int8 weights", Unit::Millis, int8_steps);
    int8_steps.against("the same in bf16", &bf16_steps, Some(INT8_AIM));
    let handovers = Row::new(
        "a cache line to another core and back",
        Unit::Micros,
        handovers,
    );
    let rate = Row::new("reading memory", Unit::GigabytesPerSecond, rates);
    let mut rows = vec![peak, rate, handovers];
    rows.extend(loads);
    rows.extend([mapped_steps, int8_steps]);
    for (case, result) in CASES.iter().zip(results) {
        rows.extend(case.rows(ours, &peers, &result, (rows[0].value, rows[1].value))?);
    }
    Ok(report_since(before, config.rounds, rows, skipped))
}

/// The model in the forms that are measured.
struct Loaded {
    ours: Ours,
    /// The model with its weights mapped from a packed file.
    mapped: Ours,
    /// The model with its weights rounded to int8.
    int8: Ours,
}

/// Loads the model in all forms; returns it with the rows of the time that loading took.
fn load(model: &Path, out: &Path, peers: &[Running]) -> Result<(Loaded, Vec<Row>)> {
    let first = Ours::load(model)?;
    let mut loads =
        Row::one("loading", Unit::Seconds, first.loaded.as_secs_f64()).at_most(FIRST_LOAD_AIM);
    for peer in peers {
        loads.against(peer.title(), &[peer.loaded], None);
    }
    // New huge pages may be slow on a virtual machine: the second loading gets the memory that the
    // first one has just given back.
    drop(first);
    let ours = Ours::load(model)?;
    let again = Row::one(
        "loading again, into the same memory",
        Unit::Seconds,
        ours.loaded.as_secs_f64(),
    )
    .at_most(FIRST_LOAD_AIM);
    // Mapped weights lie in small pages, which a decode step might feel: it is measured with both.
    let mapped = Ours::load_packed(model, &out.join("packed"))?;
    let packed = Row::one(
        "loading packed weights",
        Unit::Seconds,
        mapped.loaded.as_secs_f64(),
    )
    .at_most(PACKED_LOAD_AIM);
    let int8 = Ours::load_int8(model)?;
    Ok((Loaded { ours, mapped, int8 }, vec![loads, again, packed]))
}

/// Starts the peers of `config`; returns them, and a line for each that cannot be started.
fn start_peers(config: &Config, model: &Path, bar: &Bar) -> Result<(Vec<Running>, Vec<String>)> {
    let mut skipped = Vec::new();
    let mut peers = Vec::new();
    for &peer in &config.peers {
        if config.install_peers {
            bar.says(&format!("installing {}", peer.title()));
            peer.install(&config.out)?;
        }
        match peer.lacks(&config.out) {
            Some(why) => skipped.push(format!("{}: {why}", peer.title())),
            None => {
                bar.says(&format!("starting {}", peer.title()));
                peers.push(peer.start(&config.out, model)?);
            }
        }
    }
    Ok((peers, skipped))
}

/// The seconds of each round.
struct Rounds {
    ours: Vec<f64>,
    theirs: Vec<Vec<f64>>,
}

impl Rounds {
    fn new(peers: usize) -> Self {
        Self {
            ours: Vec::new(),
            theirs: vec![Vec::new(); peers],
        }
    }

    fn push(&mut self, ours: f64, theirs: &[f64]) {
        self.ours.push(ours);
        for (all, &one) in self.theirs.iter_mut().zip(theirs) {
            all.push(one);
        }
    }
}

impl Case {
    /// Returns the time beside those of `peers`, and what it is of the machine's limit: the units'
    /// peak in gigaflops a second, or the rate of reading in gigabytes a second.
    fn rows(
        &self,
        ours: &Ours,
        peers: &[Running],
        result: &Rounds,
        (peak, rate): (f64, f64),
    ) -> Result<Vec<Row>> {
        let ms = |seconds: &[f64]| seconds.iter().map(|s| 1e3 * s).collect::<Vec<_>>();
        let mut time = Row::new(self.name, Unit::Millis, ms(&result.ours));
        for (peer, theirs) in peers.iter().zip(&result.theirs) {
            time.against(peer.title(), &ms(theirs), Some(self.aim));
        }
        let seconds = time.value / 1e3;
        let mut rows = vec![time];
        if let Some(flops) = self.work.flops()
            && peak.is_finite()
        {
            let share = 100.0 * flops / seconds / (1e9 * peak);
            let name = format!("{}: share of the peak", self.name);
            let products = ours.products_seconds(self.work)?;
            let note = format!(
                "products alone take {:.0} % of the time",
                100.0 * products / seconds
            );
            rows.push(
                Row::one(name, Unit::Percent, share)
                    .at_least(PEAK_AIM)
                    .noting(note),
            );
        }
        if let Some(bytes) = self.work.bytes() {
            let reads = seconds / (bytes / (1e9 * rate));
            let name = format!("{}: times of reading once", self.name);
            let note = format!("weights, keys and values: {:.2} GB", bytes / 1e9);
            rows.push(
                Row::one(name, Unit::Times, reads)
                    .at_most(READING_AIM)
                    .noting(note),
            );
        }
        Ok(rows)
    }
}

/// The shape of Qwen3-0.6B.
mod shape {
    pub(super) const LAYERS: u32 = 28;
    pub(super) const HIDDEN: u32 = 1_024;
    pub(super) const HEADS: u32 = 16;
    pub(super) const KV_HEADS: u32 = 8;
    pub(super) const HEAD_DIM: u32 = 128;
    pub(super) const VOCABULARY: u32 = 151_936;
    /// Outputs and inputs of the four products of a layer: q, k and v; o; gate and up; down.
    pub(super) const PRODUCTS: [(u32, u32); 4] = [
        (4_096, 1_024),
        (1_024, 2_048),
        (6_144, 1_024),
        (1_024, 3_072),
    ];
}

impl Work {
    /// Returns the multiplications and additions of the whole model, each shared token once; `None`
    /// of decoding, which waits for memory.
    fn flops(self) -> Option<f64> {
        let Self::Prompts { shared, count, own } = self else {
            return None;
        };
        let [shared, count, own] = [shared, count, own].map(f64::from);
        let products = { shape::PRODUCTS.iter() }
            .map(|&(outputs, inputs)| 2.0 * f64::from(outputs) * f64::from(inputs))
            .sum::<f64>();
        let tokens = shared + count * own;
        let causal = |tokens: f64| tokens * (tokens + 1.0) / 2.0;
        let pairs = causal(shared) + count * (own * shared + causal(own));
        let attention = 4.0 * f64::from(shape::HEADS * shape::HEAD_DIM) * pairs;
        let head = 2.0 * f64::from(shape::HIDDEN) * f64::from(shape::VOCABULARY) * count;
        Some(f64::from(shape::LAYERS) * (tokens * products + attention) + head)
    }

    /// Returns the bytes of the weights, and of the keys and values behind which each row decodes, all
    /// in bf16; `None` of prompts, which wait for the units.
    fn bytes(self) -> Option<f64> {
        let Self::Decode { rows, context } = self else {
            return None;
        };
        let products = { shape::PRODUCTS.iter() }
            .map(|&(outputs, inputs)| f64::from(outputs) * f64::from(inputs))
            .sum::<f64>();
        let head = f64::from(shape::HIDDEN) * f64::from(shape::VOCABULARY);
        let kv = 2.0 * f64::from(shape::KV_HEADS * shape::HEAD_DIM * rows * context);
        Some(2.0 * (f64::from(shape::LAYERS) * (products + kv) + head))
    }

    /// Returns the tokens that are computed.
    const fn tokens(self) -> u32 {
        match self {
            Self::Prompts { shared, count, own } => shared + count * own,
            Self::Decode { rows, .. } => rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_once_for_shared_tokens() {
        let giga = |work: Work| work.flops().unwrap() / 1e9;
        // The specification's figures: 0.881 a token, 1.9 for the attention of 128 causal tokens,
        // 0.31 for a row of the head.
        let one = giga(prompts(0, 1, 128));
        assert!((one - (128.0 * 0.881 + 1.9 + 0.31)).abs() < 0.3, "{one}");
        let shared = giga(prompts(448, 8, 64));
        let apart = giga(prompts(0, 8, 512));
        assert!(shared < 0.3 * apart, "{shared} of {apart}");
        assert_eq!(prompts(448, 8, 64).tokens(), 960);
        assert_eq!(decode(4, 128).flops(), None);
        // 596 million weights, and 114,688 bytes for each token.
        let bytes = decode(4, 1_000).bytes().unwrap();
        assert!(
            (bytes - (2.0 * 595.8e6 + 4e3 * 114_688.0)).abs() < 1e6,
            "{bytes}"
        );
    }
}
