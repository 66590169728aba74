//! The time model and the memory of a device.
//!
//! Fits that others published, as constants, or the profile of an executor of ours. A simulation
//! shows what a policy does under such a model; it says nothing about the speed of a GPU.

use std::{sync::Arc, time::Duration};

use prelude_core::{
    Capacity, ForwardBatch, OneShotBatch, PassCapacity, Profile, ServiceTime, StepWork,
};
use serde::{Deserialize, Serialize};

use super::VOCABULARY;

/// A request's part of an iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Tokens that are computed.
    pub new: u32,
    /// Tokens that they attend to, themselves included.
    pub context: u32,
    /// True if it is a generation's next token, false if it is of a prompt.
    pub decodes: bool,
}

impl Piece {
    /// Returns the last `new` of `context` tokens of a prompt.
    #[must_use]
    pub const fn prompt(new: u32, context: u32) -> Self {
        Self {
            new,
            context,
            decodes: false,
        }
    }

    /// Returns a generation's next token, the last of `context`.
    #[must_use]
    pub const fn decode(context: u32) -> Self {
        Self {
            new: 1,
            context,
            decodes: true,
        }
    }

    fn work(self) -> StepWork {
        match self.decodes {
            true => StepWork::decode(self.context - 1),
            false => StepWork::prompt(self.new, self.context),
        }
    }
}

/// Returns the pieces of a batch: a segment of new tokens each, or a generation's next token. What
/// several rows share is computed once, and is one piece.
pub fn pieces(batch: &ForwardBatch) -> impl Iterator<Item = Piece> {
    let (oneshot, prefill, decode) = batch.parts();
    let segments = oneshot.segments.iter().chain(&prefill.segments);
    let segments = segments.map(|segment| Piece::prompt(segment.len(), segment.end()));
    let rows = { decode.rows.iter() }.map(|row| Piece::decode(row.context_len + 1));
    segments.chain(rows)
}

/// Most tokens of a piece of a pass: published fits are of chunks, in which each token counts as
/// attending to all of them, which would double the attention of a long prompt.
const PIECE_TOKENS: u32 = 512;

/// Returns the pieces of a pass: up to [`PIECE_TOKENS`] tokens of a segment each.
pub(super) fn pieces_of_pass(forest: &OneShotBatch) -> impl Iterator<Item = Piece> {
    forest.segments.iter().flat_map(|segment| {
        let (len, end) = (segment.len(), segment.end());
        (0..len).step_by(PIECE_TOKENS as usize).map(move |first| {
            let new = PIECE_TOKENS.min(len - first);
            Piece::prompt(new, end - len + first + new)
        })
    })
}

/// The model of an engine: the time of its iterations and the size of its memory.
#[derive(Clone, Debug)]
pub enum EngineModel {
    /// A published fit of another engine.
    Published(Preset),
    /// An engine that `prelude profile` measured.
    Measured(Arc<Profile>),
}

impl From<Preset> for EngineModel {
    fn from(preset: Preset) -> Self {
        Self::Published(preset)
    }
}

impl EngineModel {
    /// Returns the name in reports.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Published(preset) => preset.name().to_owned(),
            Self::Measured(profile) => format!("{} on {}", profile.model, profile.executor),
        }
    }

    /// Returns the time of an iteration that computes these pieces.
    #[must_use]
    pub fn iteration(&self, pieces: impl Iterator<Item = Piece>) -> Duration {
        match self {
            Self::Published(preset) => preset.iteration(pieces),
            Self::Measured(profile) => {
                let ms = profile.service.step_ms(&pieces.map(Piece::work).sum());
                Duration::from_nanos((ms * 1e6) as u64)
            }
        }
    }

    /// Returns the measured time of steps, which policies of a server would know too.
    #[must_use]
    pub fn service(&self) -> Option<ServiceTime> {
        match self {
            Self::Published(_) => None,
            Self::Measured(profile) => Some(profile.service),
        }
    }

    /// Returns the number of tokens whose keys and values fit into the engine's memory.
    #[must_use]
    pub fn kv_tokens(&self) -> u64 {
        match self {
            Self::Published(preset) => preset.kv_tokens(),
            Self::Measured(profile) => {
                let capacity = &profile.capacity;
                u64::from(capacity.num_blocks) * u64::from(capacity.block_size)
            }
        }
    }

    /// Returns the most tokens of an iteration.
    #[must_use]
    pub fn chunk_tokens(&self) -> u32 {
        match self {
            Self::Published(preset) => preset.chunk_tokens(),
            Self::Measured(profile) => profile.capacity.max_step_tokens.min(MAX_MEASURED_STEP),
        }
    }

    /// Returns the limits of a scheduler for such an engine with `kv_tokens` tokens of memory.
    ///
    /// Prompts may be as long as fits into memory: a model of time knows no positions.
    #[must_use]
    pub fn capacity(&self, kv_tokens: u64, block_size: u32) -> Capacity {
        let num_blocks = u32::try_from(kv_tokens / u64::from(block_size)).unwrap_or(u32::MAX);
        Capacity {
            block_size,
            num_blocks,
            max_step_tokens: self.chunk_tokens(),
            full_step_tokens: 2048,
            max_context_len: num_blocks.saturating_mul(block_size),
            vocab_size: VOCABULARY,
            pipeline_depth: 1,
            passes: self.passes(),
            attention: prelude_core::Attention::Causal,
            host_blocks: 0,
        }
    }

    /// Returns the room for long one-shot prompts in slices.
    fn passes(&self) -> Option<PassCapacity> {
        match self {
            Self::Published(preset) => Some(preset.passes()),
            Self::Measured(profile) => profile.capacity.passes,
        }
    }
}

/// Most tokens of a measured engine's iteration, as a server's scheduler limits it unless it is
/// configured.
const MAX_MEASURED_STEP: u32 = 2048;

/// A model on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Preset {
    /// Mistral-7B on one A6000, as the authors of Preble fitted it.
    #[value(name = "mistral-7b-a6000")]
    #[serde(rename = "mistral-7b-a6000")]
    Mistral7bA6000,
    /// Llama-3-70B on two H100, as the authors of Preble fitted it.
    #[value(name = "llama-3-70b-2xh100")]
    #[serde(rename = "llama-3-70b-2xh100")]
    Llama70bH100x2,
    /// Qwen3-4B on one H100: the rates that are filed in `bench/gpu`, and arithmetic for the rest.
    #[value(name = "qwen3-4b-h100")]
    #[serde(rename = "qwen3-4b-h100")]
    Qwen4bH100,
    /// Qwen3-4B on one H200: the rates that are filed in `bench/gpu`, and arithmetic for the rest.
    #[value(name = "qwen3-4b-h200")]
    #[serde(rename = "qwen3-4b-h200")]
    Qwen4bH200,
    /// Qwen3-0.6B on two cores of an EPYC with AVX-512 and without AMX, by `prelude profile`.
    #[value(name = "qwen3-0.6b-cpu")]
    #[serde(rename = "qwen3-0.6b-cpu")]
    Qwen06bCpu,
}

/// A preset's name, memory and limits; [`Preset::iteration`] has its times.
struct About {
    name: &'static str,
    /// Tokens whose keys and values fit into its memory.
    kv_tokens: u64,
    /// Most tokens of an iteration: the authors' chunk budget (published for Mistral; the same for
    /// Llama is our choice), or that of our server.
    chunk_tokens: u32,
    /// Layers of the model, by which passes are cut into slices.
    layers: u32,
    /// Milliseconds of a slice, as servers have them on such a device.
    slice_ms: u32,
}

impl Preset {
    /// Returns the name in reports and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.about().name
    }

    const fn about(self) -> About {
        match self {
            Self::Mistral7bA6000 => About {
                name: "mistral-7b-a6000",
                kv_tokens: 198_516,
                chunk_tokens: 512,
                layers: 32,
                slice_ms: 5,
            },
            Self::Llama70bH100x2 => About {
                name: "llama-3-70b-2xh100",
                // Not published. 90 % of 160 GB, less 70.6 GB of 8-bit weights, at 80 layers x 8
                // heads x 128 x 2 (K and V) x 2 bytes = 327,680 bytes a token. Weights of 16 bits,
                // 141 GB, would leave room for one long prompt, and reading them would take 21 ms
                // at 2 x 3.35 TB/s, where the fit says 18.67.
                kv_tokens: 224_000,
                chunk_tokens: 512,
                layers: 80,
                slice_ms: 5,
            },
            // 90 % of 80 and of 141 GB, less 8 GB of weights and 4 GB for activations and graphs, at
            // 36 layers x 8 heads x 128 x 2 (K and V) x 2 bytes = 147,456 bytes a token.
            Self::Qwen4bH100 => About {
                name: "qwen3-4b-h100",
                kv_tokens: 407_000,
                chunk_tokens: MAX_MEASURED_STEP,
                layers: 36,
                slice_ms: 5,
            },
            Self::Qwen4bH200 => About {
                name: "qwen3-4b-h200",
                kv_tokens: 779_000,
                chunk_tokens: MAX_MEASURED_STEP,
                layers: 36,
                slice_ms: 5,
            },
            // 8.5 GB for keys and values, at 28 layers x 8 heads x 128 x 2 x 2 bytes = 114,688 a token.
            Self::Qwen06bCpu => About {
                name: "qwen3-0.6b-cpu",
                kv_tokens: 74_000,
                chunk_tokens: MAX_MEASURED_STEP,
                layers: 28,
                slice_ms: 20,
            },
        }
    }

    /// Returns the time of an iteration that computes these pieces.
    #[must_use]
    pub fn iteration(self, pieces: impl Iterator<Item = Piece>) -> Duration {
        let ms = match self {
            Self::Mistral7bA6000 => mistral_ms(pieces),
            Self::Llama70bH100x2 => llama_ms(pieces),
            Self::Qwen4bH100 => QWEN_4B_H100.step_ms(&pieces.map(Piece::work).sum()),
            Self::Qwen4bH200 => QWEN_4B_H200.step_ms(&pieces.map(Piece::work).sum()),
            Self::Qwen06bCpu => QWEN_06B_CPU.step_ms(&pieces.map(Piece::work).sum()),
        };
        Duration::from_nanos((ms * 1e6) as u64)
    }

    /// Returns the number of tokens whose keys and values fit into the engine's memory.
    #[must_use]
    pub const fn kv_tokens(self) -> u64 {
        self.about().kv_tokens
    }

    /// Returns the most tokens of an iteration.
    #[must_use]
    pub const fn chunk_tokens(self) -> u32 {
        self.about().chunk_tokens
    }

    /// Returns the room for long one-shot prompts in slices: as many tokens as the longest prompt of a
    /// workload has, whatever is cached.
    const fn passes(self) -> PassCapacity {
        let about = self.about();
        PassCapacity {
            layers: about.layers,
            tokens: 131_072,
            passes: 4,
            outputs: 256,
            slice_ms: about.slice_ms,
        }
    }
}

/// Qwen3-4B on an H100. The time of a token is that of 512-token prompts at saturation, 158.7 of them
/// a second, and the base is what is left of 8.32 ms for one of them alone (`bench/gpu`,
/// 2026-11-23-0540). The floor is 8.04 GB of weights, and a cached token 147,456 bytes, at 3.35 TB/s.
/// A pair is 4 x 36 layers x 32 heads x 128 operations at 400 TFLOP/s.
const QWEN_4B_H100: ServiceTime = ServiceTime {
    floor_ms: 2.4,
    per_cached_ms: 4.4e-5,
    base_ms: 2.0,
    per_token_ms: 0.0123,
    per_pair_ms: 1.47e-6,
    decode_ms: 0.02,
};

/// Qwen3-4B on an H200, in the same way: 152 prompts of 512 tokens a second at saturation (`bench/gpu`,
/// 2026-11-28-0913), 8.05 ms for one of them alone (2026-11-22-1639), and memory of 4.8 TB/s.
const QWEN_4B_H200: ServiceTime = ServiceTime {
    floor_ms: 1.7,
    per_cached_ms: 3.1e-5,
    base_ms: 1.5,
    per_token_ms: 0.0128,
    per_pair_ms: 1.47e-6,
    decode_ms: 0.02,
};

/// Qwen3-0.6B on two cores of an EPYC (Zen 4), fitted by `prelude profile`.
const QWEN_06B_CPU: ServiceTime = ServiceTime {
    floor_ms: 42.4,
    per_cached_ms: 0.006,
    base_ms: 30.2,
    per_token_ms: 2.24,
    per_pair_ms: 9.4e-4,
    decode_ms: 3.55,
};

/// Returns Preble's fit for Mistral-7B on an A6000, from the simulator that its authors published.
///
/// Of their middle piece, `-118 + 1.25 n - 0.00256 n²` for 192 to 383 tokens, only the part that
/// rises is used: beyond its top at 244 tokens it falls, below zero from 360 tokens on, which no
/// device does. From there on it stays, until the piece above takes over. Left out are what theirs
/// has besides: for long attention terms in a piece's tokens and context alone (18 ms more for a
/// chunk at 10,000 tokens), and half the attention over short contexts that requests share.
fn mistral_ms(pieces: impl Iterator<Item = Piece>) -> f64 {
    const TOP: f64 = 1.25 / (2.0 * 0.00256);
    /// Beyond as many pairs of tokens a piece's attention is bound by arithmetic.
    const PAIRS: f64 = (1 << 20) as f64;
    let (mut new, mut context, mut long) = (0.0, 0.0, 0.0);
    for piece in pieces {
        let pairs = f64::from(piece.new) * f64::from(piece.context);
        new += f64::from(piece.new);
        context += f64::from(piece.context);
        long += if pairs > PAIRS { 2.19e-6 * pairs } else { 0.0 };
    }
    let linear = if new < 192.0 {
        22.0
    } else if new < 384.0 {
        let n = new.min(TOP);
        -118.0 + 1.25 * n - 0.00256 * n * n
    } else {
        0.1084 * new + 4.21
    };
    let attention = (1.86e-4 * context + 0.159).max(0.32);
    (linear + attention + long) / 0.9
}

/// Returns Preble's fit for Llama-3-70B on two H100, which is of one request alone. Its constant,
/// mostly reading weights, is charged once for an iteration and not for each request in it: else 50
/// generations would take a second for a token each.
fn llama_ms(pieces: impl Iterator<Item = Piece>) -> f64 {
    let piece_ms = |piece: Piece| {
        let (new, context) = (f64::from(piece.new), f64::from(piece.context));
        0.0799 * new + 0.00269 * context + 7.44e-7 * new * context
    };
    18.67 + pieces.map(piece_ms).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(preset: Preset, pieces: &[(u32, u32)], expected_ms: f64) {
        let pieces = { pieces.iter() }.map(|&(new, context)| Piece::prompt(new, context));
        let ms = preset.iteration(pieces).as_secs_f64() * 1e3;
        assert!((ms - expected_ms).abs() < 2e-6, "{ms}, not {expected_ms}");
    }

    #[test]
    fn mistral_is_as_computed_by_hand() {
        let check = |pieces: &[(u32, u32)], ms| check(Preset::Mistral7bA6000, pieces, ms);
        // (22 + 0.32) / 0.9: attention's floor.
        check(&[(1, 100)], 24.8);
        // (22 + 1.86e-4 * 20,000 + 0.159) / 0.9.
        check(&[(1, 12_000), (1, 8000)], 28.754_444);
        // (-118 + 250 - 102.4 + 0.32) / 0.9 for 200 tokens.
        check(&[(200, 200)], 33.244_444);
        // At its top and beyond: (-118 + 1.25² / (4 * 0.00256) + 0.32) / 0.9.
        check(&[(300, 300)], 38.786_545);
        check(&[(383, 383)], 38.786_545);
        // (0.1084 * 384 + 4.21 + 0.32) / 0.9.
        check(&[(384, 384)], 51.284);
        // (0.1084 * 512 + 4.21 + 1.86e-4 * 4097 + 0.159 + 2.19e-6 * 512 * 4097) / 0.9: the pairs
        // are twice 2^20.
        check(&[(512, 4097)], 72.473_029);
        // 2^20 pairs are not beyond 2^20: (59.7108 + 1.86e-4 * 2048 + 0.159) / 0.9.
        check(&[(512, 2048)], 66.945_253);
    }

    #[test]
    fn more_tokens_never_take_mistral_less_time() {
        let took = |n| Preset::Mistral7bA6000.iteration([Piece::prompt(n, n)].into_iter());
        for n in 1..=1024 {
            assert!(took(n) <= took(n + 1), "{n}");
        }
    }

    #[test]
    fn llama_is_as_computed_by_hand() {
        let check = |pieces: &[(u32, u32)], ms| check(Preset::Llama70bH100x2, pieces, ms);
        // 18.67 + 0.0799 * 512 + 0.00269 * 4096 + 7.44e-7 * 512 * 4096.
        check(&[(512, 4096)], 72.157_321);
        // 18.67 + 2 * (0.0799 + 0.00269 * 1000 + 7.44e-7 * 1000).
        check(&[(1, 1000), (1, 1000)], 24.211_288);
    }

    #[test]
    fn capacities_are_whole_blocks() {
        let capacity = EngineModel::from(Preset::Mistral7bA6000).capacity(198_516, 16);
        assert_eq!(capacity.num_blocks, 12_407);
        assert_eq!(capacity.max_context_len, 198_512);
        assert_eq!(capacity.max_step_tokens, 512);
    }

    #[test]
    fn a_measured_engine_takes_what_its_profile_says() {
        let capacity = Capacity {
            num_blocks: 100,
            ..EngineModel::from(Preset::Mistral7bA6000).capacity(1600, 16)
        };
        let service = ServiceTime {
            per_cached_ms: 0.01,
            ..ServiceTime::default()
        };
        let engine = EngineModel::Measured(Arc::new(Profile {
            version: Profile::VERSION,
            model: "m".to_owned(),
            executor: "cpu".to_owned(),
            capacity,
            service,
            prefill: Vec::new(),
            decode: Vec::new(),
        }));
        let ms = |pieces: &[Piece]| engine.iteration(pieces.iter().copied()).as_secs_f64() * 1e3;
        // 22 + 0.01 * (99 + 199) for what is cached.
        let expected = 22.0 + 2.98;
        let took = ms(&[Piece::decode(100), Piece::decode(200)]);
        assert!((took - expected).abs() < 1e-5, "{took}");
        // 4.68 + 0.12 * 400 + 2.4e-6 * (400 * 401 / 2) + 1.5.
        let took = ms(&[Piece::prompt(400, 400), Piece::decode(200)]);
        assert!((took - 54.372_48).abs() < 1e-5, "{took}");
        assert_eq!((engine.kv_tokens(), engine.chunk_tokens()), (1600, 512));
        assert_eq!(engine.service(), Some(service));
    }
}
