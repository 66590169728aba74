//! Rotary position embeddings: inverse frequencies and their scaling.
//!
//! Su et al., RoFormer (2021), §3.2; Peng et al., YaRN (2023), §3.2 and §3.4; Llama Team, The Llama
//! 3 Herd of Models (2024). Scalings are static here, as in published checkpoints: they change
//! short prompts too.

use std::f64::consts::PI;

use crate::{Error, json::Fields};

/// Largest length that a model may have been trained on.
const POSITIONS_MAX: usize = 1 << 24;

/// The rule by which positions become angles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of frequencies, above 1.
    pub theta: f64,
    /// The scaling that stretches frequencies over longer texts.
    pub scaling: RopeScaling,
}

/// The rule by which frequencies are stretched beyond the length that a model was first trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Frequencies are not scaled.
    None,
    /// All pairs are slowed by this factor.
    Linear(f64),
    /// Slow pairs are slowed by `factor`, fast ones kept, those between interpolated.
    Yarn(Yarn),
    /// Interpolation as YaRN's, but by turns instead of by pairs, and without a factor on cos and
    /// sin.
    Llama3(Llama3),
}

/// Parameters of the scaling of Llama 3.1 and later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Llama3 {
    /// The factor by which texts may be longer than the original length, at least 1.
    pub factor: f64,
    /// Pairs that turn less often than this over the original length are slowed by the whole
    /// factor.
    pub low_freq_factor: f64,
    /// Pairs that turn more often than this are kept; above `low_freq_factor`.
    pub high_freq_factor: f64,
    /// The length that the model was first trained on, in tokens.
    pub original_max_position_embeddings: usize,
}

/// Parameters of YaRN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// The factor by which texts may be longer than the original length, at least 1.
    pub factor: f64,
    /// The length that the model was first trained on, in tokens.
    pub original_max_position_embeddings: usize,
    /// Factor on cos and sin; `0.1 ln(factor) + 1` unless the checkpoint gives it.
    pub attention_factor: Option<f64>,
    /// Pairs that turn more often than this over the original length are kept.
    pub beta_fast: f64,
    /// Pairs that turn less often than this are slowed by the whole factor.
    pub beta_slow: f64,
    /// True if the range of interpolated pairs is rounded outwards to whole pairs.
    pub truncate: bool,
}

/// Returns the factor by which a text may be longer than the original length.
fn factor(fields: &Fields<'_>) -> Result<f64, Error> {
    let is_factor = |f: f64| (1.0..=10_000.0).contains(&f);
    let factor = fields.number("factor", "a number in 1..=10000", is_factor)?;
    fields.required("factor", factor)
}

/// The field of the base of the frequencies.
const BASE: &str = "rope_theta";

/// Returns the base of the frequencies, if the object has it in the field `name`.
pub(crate) fn base(fields: &Fields<'_>, name: &str) -> Result<Option<f64>, Error> {
    let is_base = |theta| theta > 1.0 && theta <= 1e12;
    fields.number(name, "a number above 1", is_base)
}

/// Refuses rotations of a part of each head.
fn check_whole(fields: &Fields<'_>) -> Result<(), Error> {
    match fields.number("partial_rotary_factor", "a number", |_| true)? {
        Some(factor) if factor != 1.0 => {
            Err(fields.unsupported("a `partial_rotary_factor` other than 1"))
        }
        _ => Ok(()),
    }
}

/// Returns a number of turns over the original length, if the object names it.
fn turns(fields: &Fields<'_>, name: &str) -> Result<Option<f64>, Error> {
    let is_turns = |turns: f64| (1e-6..=1e6).contains(&turns);
    fields.number(name, "a number in 1e-6..=1e6", is_turns)
}

impl Llama3 {
    fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        const LENGTH: &str = "original_max_position_embeddings";
        let turns = |name| fields.required(name, turns(fields, name)?);
        let scaling = Self {
            factor: factor(fields)?,
            low_freq_factor: turns("low_freq_factor")?,
            high_freq_factor: turns("high_freq_factor")?,
            original_max_position_embeddings: fields.required_count(LENGTH, POSITIONS_MAX)?,
        };
        // The factors are compared as f32, the type in which their difference divides.
        if scaling.low_freq_factor as f32 >= scaling.high_freq_factor as f32 {
            return Err(fields.wrong("high_freq_factor", "must be above `low_freq_factor`"));
        }
        Ok(scaling)
    }

    /// Slows a frequency, in the reference's order of f32 operations.
    pub(crate) fn scaled(&self, frequency: f32) -> f32 {
        let original = self.original_max_position_embeddings as f64;
        let (low, high) = (self.low_freq_factor, self.high_freq_factor);
        let factor = self.factor as f32;
        let wavelength = 2.0 * PI as f32 / frequency;
        if wavelength > (original / low) as f32 {
            frequency / factor
        } else if wavelength < (original / high) as f32 {
            frequency
        } else {
            let kept = (original as f32 / wavelength - low as f32) / (high - low) as f32;
            (1.0 - kept) * frequency / factor + kept * frequency
        }
    }
}

impl Yarn {
    fn read(fields: &Fields<'_>, max_positions: usize) -> Result<Self, Error> {
        if fields.get("mscale").is_some() || fields.get("mscale_all_dim").is_some() {
            return Err(fields.unsupported("YaRN with `mscale` or `mscale_all_dim`"));
        }
        let original = fields
            .count("original_max_position_embeddings", POSITIONS_MAX)?
            .unwrap_or(max_positions);
        let yarn = Self {
            factor: factor(fields)?,
            original_max_position_embeddings: original,
            attention_factor: fields
                .number("attention_factor", "in (0, 100]", |f| f > 0.0 && f <= 100.0)?,
            beta_fast: turns(fields, "beta_fast")?.unwrap_or(32.0),
            beta_slow: turns(fields, "beta_slow")?.unwrap_or(1.0),
            truncate: fields.boolean("truncate")?.unwrap_or(true),
        };
        if yarn.beta_fast < yarn.beta_slow {
            return Err(fields.wrong("beta_fast", "must be at least `beta_slow`"));
        }
        Ok(yarn)
    }
}

impl RopeConfig {
    /// Reads either spelling: `rope_parameters`, or `rope_theta` beside `rope_scaling`.
    pub(crate) fn read(config: &Fields<'_>, max_positions: usize) -> Result<Self, Error> {
        let empty = serde_json::Map::new();
        let (path, map) = match (
            config.object("rope_parameters")?,
            config.object("rope_scaling")?,
        ) {
            (Some(map), _) => ("rope_parameters.", map),
            (None, Some(map)) => ("rope_scaling.", map),
            (None, None) => ("", &empty),
        };
        let fields = config.within(path, map);
        if map.values().any(serde_json::Value::is_object) {
            return Err(fields.unsupported(format!("`{path}*` with a set per layer type")));
        }
        let theta = base(config, BASE)?.unwrap_or(10_000.0);
        check_whole(config)?;
        Self::read_set(&fields, theta, max_positions)
    }

    /// Reads one object of parameters; `theta` is the base if it names none.
    pub(crate) fn read_set(
        fields: &Fields<'_>,
        theta: f64,
        max_positions: usize,
    ) -> Result<Self, Error> {
        let kind = match fields.text("rope_type")? {
            Some(kind) => kind,
            None => fields.text("type")?.unwrap_or("default"),
        };
        check_whole(fields)?;
        let scaling = match kind {
            "default" => RopeScaling::None,
            "linear" => RopeScaling::Linear(factor(fields)?),
            "yarn" => RopeScaling::Yarn(Yarn::read(fields, max_positions)?),
            "llama3" => RopeScaling::Llama3(Llama3::read(fields)?),
            other => return Err(fields.unsupported(format!("rope type {other:?}"))),
        };
        let theta = base(fields, BASE)?.unwrap_or(theta);
        Ok(Self { theta, scaling })
    }

    /// Returns the angle per position of each pair of a head: `[head_dim / 2]`. Element `i` of a
    /// head is rotated with element `i + head_dim / 2`.
    ///
    /// Powers are rounded once to f32 and everything after them is f32 arithmetic, as in the
    /// reference: frequencies in f64 would be better ones, but not those of the training.
    #[must_use]
    pub fn inv_freq(&self, head_dim: usize) -> Vec<f32> {
        let power = |pair: usize| {
            let exponent = (2 * pair) as f32 / head_dim as f32;
            self.theta.powf(f64::from(exponent)) as f32
        };
        let powers = (0..head_dim / 2).map(power);
        match self.scaling {
            RopeScaling::None => powers.map(|p| 1.0 / p).collect(),
            RopeScaling::Linear(factor) => powers.map(|p| 1.0 / p / factor as f32).collect(),
            RopeScaling::Llama3(llama3) => powers.map(|p| llama3.scaled(1.0 / p)).collect(),
            RopeScaling::Yarn(yarn) => {
                let (low, high) = yarn.interpolated(self.theta, head_dim);
                powers
                    .enumerate()
                    .map(|(pair, power)| {
                        let ramp = ((pair as f32 - low) / (high - low)).clamp(0.0, 1.0);
                        let kept = 1.0 - ramp;
                        let slowed = 1.0 / (yarn.factor as f32 * power);
                        slowed * (1.0 - kept) + (1.0 / power) * kept
                    })
                    .collect()
            }
        }
    }

    /// Returns the factor on cos and sin, for q and for k.
    #[must_use]
    pub fn attention_scaling(&self) -> f32 {
        match self.scaling {
            RopeScaling::None | RopeScaling::Linear(_) | RopeScaling::Llama3(_) => 1.0,
            RopeScaling::Yarn(yarn) => {
                yarn.attention_factor
                    .unwrap_or_else(|| 0.1 * yarn.factor.ln() + 1.0) as f32
            }
        }
    }
}

impl Yarn {
    /// Returns the first and the last pair of the interpolated range.
    fn interpolated(&self, theta: f64, head_dim: usize) -> (f32, f32) {
        let original = self.original_max_position_embeddings as f64;
        // The (fractional) pair that makes this many turns over the original length.
        let pair_of = |turns: f64| {
            head_dim as f64 * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
        // The reference makes the ramp a step here. The ends are compared as f32, in which the ramp
        // is computed: ends that differ in f64 alone would divide by zero.
        if low as f32 == high as f32 {
            high = low + 0.001;
        }
        (low as f32, high as f32)
    }
}

/// Returns the cosine and the sine by which a pair of elements is rotated at a position. The angle
/// is an f32 product, as in the reference: it decides which rotation is meant. What follows is as
/// exact as can be.
#[must_use]
pub fn rotation(position: usize, inv_freq: f32, attention_scaling: f32) -> (f32, f32) {
    let angle = f64::from(position as f32 * inv_freq);
    let scaling = f64::from(attention_scaling);
    (
        (angle.cos() * scaling) as f32,
        (angle.sin() * scaling) as f32,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{golden_models, golden_tensors};

    /// Two roundings of f32 (a power, a quotient) may differ from torch's by one unit each.
    const RELATIVE: f32 = 2.5e-7;

    #[test]
    fn frequencies_are_those_of_the_reference() {
        for (golden, checkpoint) in golden_models() {
            if checkpoint.config().encoder.is_some() {
                continue;
            }
            let tensors = golden_tensors(&golden);
            let expected = tensors.f32("rope.inv_freq").unwrap().0;
            let config = checkpoint.config();
            let got = config.rope.inv_freq(config.head_dim);
            assert_eq!(got.len(), expected.len(), "{golden}");
            for (g, e) in got.iter().zip(&expected) {
                assert!((g - e).abs() <= RELATIVE * e, "{golden}: {g} for {e}");
            }
            let local = tensors.f32("rope.local_inv_freq").map(|(values, _)| values);
            let got = config.local.as_ref().map(|local| local.rope);
            let got = got.map(|rope| rope.inv_freq(config.head_dim));
            for (g, e) in got.into_iter().flatten().zip(local.unwrap_or(expected)) {
                assert!(
                    (g - e).abs() <= RELATIVE * e,
                    "{golden}, local: {g} for {e}"
                );
            }
            let scaling = tensors.document()["rope"]["attention_scaling"]
                .as_f64()
                .unwrap();
            assert!((f64::from(config.rope.attention_scaling()) - scaling).abs() < 1e-7);
        }
    }

    fn read(config: &str) -> Result<RopeConfig, String> {
        let map = crate::json::object("config.json", config.as_bytes()).unwrap();
        let fields = Fields::new("config.json", &map);
        RopeConfig::read(&fields, 4096).map_err(|e| e.to_string())
    }

    #[test]
    fn both_spellings_are_read() {
        let check = |config: &str, expected: Result<(f64, Option<f64>), &str>| match (
            read(config),
            expected,
        ) {
            (Ok(rope), Ok((theta, factor))) => {
                assert_eq!(rope.theta, theta);
                let got = match rope.scaling {
                    RopeScaling::None => None,
                    RopeScaling::Linear(factor) => Some(factor),
                    RopeScaling::Yarn(yarn) => Some(yarn.factor),
                    RopeScaling::Llama3(llama3) => Some(llama3.factor),
                };
                assert_eq!(got, factor);
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (got, expected) => panic!("{config}: {got:?}, expected {expected:?}"),
        };
        check("{}", Ok((1e4, None)));
        check(r#"{"rope_theta":1000000}"#, Ok((1e6, None)));
        check(r#"{"rope_theta":5e6,"rope_scaling":null}"#, Ok((5e6, None)));
        check(
            r#"{"rope_parameters":{"rope_theta":1e6,"rope_type":"default"}}"#,
            Ok((1e6, None)),
        );
        check(
            r#"{"rope_theta":1e6,"rope_scaling":{"type":"yarn","factor":4}}"#,
            Ok((1e6, Some(4.0))),
        );
        check(
            r#"{"rope_scaling":{"rope_type":"yarn"}}"#,
            Err("`rope_scaling.factor` is missing"),
        );
        check(
            r#"{"rope_scaling":{"rope_type":"yarn","factor":0.5}}"#,
            Err("`rope_scaling.factor` must be a number in 1..=10000, not 0.5"),
        );
        check(
            r#"{"rope_scaling":{"rope_type":"yarn","factor":4,"mscale":1.0}}"#,
            Err("mscale"),
        );
        let llama3 = |low: &str, high: &str| {
            let shared = r#""rope_type":"llama3","factor":8,"original_max_position_embeddings":64"#;
            format!("{{\"rope_scaling\":{{{shared}{low}{high}}}}}")
        };
        let (low, high) = (r#","low_freq_factor":1"#, r#","high_freq_factor":4"#);
        check(&llama3(low, high), Ok((1e4, Some(8.0))));
        let missing = "`rope_scaling.low_freq_factor` is missing";
        check(&llama3("", high), Err(missing));
        check(
            &llama3(low, r#","high_freq_factor":1"#),
            Err("`rope_scaling.high_freq_factor` must be above"),
        );
        check(
            r#"{"rope_scaling":{"rope_type":"dynamic","factor":4}}"#,
            Err("rope type \"dynamic\" is not supported"),
        );
        check(
            r#"{"rope_parameters":{"full_attention":{"rope_theta":1e6}}}"#,
            Err("per layer type"),
        );
        check(r#"{"rope_theta":1}"#, Err("`rope_theta` must be"));
        check(
            r#"{"partial_rotary_factor":0.5}"#,
            Err("partial_rotary_factor"),
        );
    }

    #[test]
    fn a_range_of_one_pair_is_a_step() {
        const TURNS: usize = 628;
        let check = |original_max_position_embeddings, beta_fast, truncate| {
            let rope = RopeConfig {
                theta: (TURNS as f64 / (2.0 * PI)).powi(4),
                scaling: RopeScaling::Yarn(Yarn {
                    factor: 2.0,
                    original_max_position_embeddings,
                    attention_factor: None,
                    beta_fast,
                    beta_slow: 1.0,
                    truncate,
                }),
            };
            let frequencies = rope.inv_freq(8);
            assert!(frequencies.iter().all(|f| f.is_finite()), "{frequencies:?}");
        };
        check(1, 32.0, true);
        // Ends at pair 1 that differ in f64 only: 0/0 at that pair if compared there.
        check(TURNS, 1.0, false);
        check(TURNS, 1.0 + 1e-12, false);
    }

    #[test]
    fn betas_are_bounded() {
        let config = r#"{"rope_scaling":{"rope_type":"yarn","factor":4,"beta_slow":1e-300}}"#;
        let error = read(config).unwrap_err();
        assert!(error.contains("`rope_scaling.beta_slow`"), "{error}");
    }
}
