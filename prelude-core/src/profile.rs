//! The measured times of a model on an executor, as a file that all predictions read.

mod fit;
mod service;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use thiserror::Error;

use crate::Capacity;

pub use fit::{FitError, Fitted, Regression};
pub use service::{BadServiceTime, Sample, ServiceTime, StepWork};

/// The measured times of one model on one executor, and the [`ServiceTime`] that was fitted to them.
///
/// `prelude profile` writes it as JSON. Its readers are the scheduler's policies `srjf` and `laps`,
/// the server's predicted waits, the router and the simulator of clusters: all of them take
/// [`service`](Self::service) from it, so that they predict the same. A profile that was
/// deserialised is valid: unknown fields, another version and numbers that are no times are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
// Derives the functions that the impls below call, which check what was read.
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Profile {
    /// The version of this format: [`Self::VERSION`].
    pub version: u32,
    /// The model's own name: the name of its folder.
    pub model: String,
    /// The executor: device, arithmetic and, on the host, instruction set and threads.
    pub executor: String,
    /// The limits that the executor had: the size of its memory and of its steps.
    pub capacity: Capacity,
    /// The times that were fitted to the samples.
    pub service: ServiceTime,
    /// The measured steps with prompts, each the median of several.
    pub prefill: Vec<Sample>,
    /// The measured steps in which generations advance by a token each; none for a model that
    /// does not generate.
    pub decode: Vec<Sample>,
}

impl<'de> Deserialize<'de> for Profile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let profile = Self::deserialize(deserializer)?;
        profile.validate().map_err(D::Error::custom)?;
        Ok(profile)
    }
}

impl Serialize for Profile {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

/// The reason why a [`Profile`] cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The profile has another format.
    #[error(
        "the profile has version {0}, and this program reads version {known}; measure again with \
         `prelude profile`",
        known = Profile::VERSION
    )]
    Version(u32),
    /// A coefficient is no time.
    #[error(transparent)]
    Service(#[from] BadServiceTime),
    /// A sample is no measurement.
    #[error(
        "{list}[{at}]: a sample needs a batch and computed tokens of at least 1, and a time above \
         0 ms"
    )]
    Sample {
        /// The list that the sample is in.
        list: &'static str,
        /// The sample's index, from 0 on.
        at: usize,
    },
    /// The profile was measured with another model.
    #[error("the profile is of the model `{profile}`, not of `{served}`")]
    OtherModel {
        /// The model that was measured.
        profile: String,
        /// The model to be predicted.
        served: String,
    },
    /// The profile was measured on another executor.
    #[error(
        "the profile is of the executor `{profile}`, not of `{served}`; measure again with \
             `prelude profile`"
    )]
    OtherExecutor {
        /// The executor that was measured.
        profile: String,
        /// The executor to be predicted.
        served: String,
    },
}

impl Profile {
    /// The version of the format that this program writes and reads.
    pub const VERSION: u32 = 1;

    /// Checks that all numbers are possible.
    ///
    /// # Errors
    /// [`ProfileError`]: the first defect.
    pub fn validate(&self) -> Result<(), ProfileError> {
        if self.version != Self::VERSION {
            return Err(ProfileError::Version(self.version));
        }
        self.service.validate()?;
        for (list, samples) in [("prefill", &self.prefill), ("decode", &self.decode)] {
            if let Some(at) = samples.iter().position(|sample| !sample.is_valid()) {
                return Err(ProfileError::Sample { list, at });
            }
        }
        Ok(())
    }

    /// Checks that the profile is of this model on this executor.
    ///
    /// # Errors
    /// [`ProfileError::OtherModel`] or [`ProfileError::OtherExecutor`], with both names.
    pub fn check_source(&self, model: &str, executor: &str) -> Result<(), ProfileError> {
        if self.model != model {
            return Err(ProfileError::OtherModel {
                profile: self.model.clone(),
                served: model.to_owned(),
            });
        }
        if self.executor != executor {
            return Err(ProfileError::OtherExecutor {
                profile: self.executor.clone(),
                served: executor.to_owned(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let sample = Sample {
            batch: 1,
            computed: 64,
            cached: 16,
            ms: 3.5,
        };
        Profile {
            version: Profile::VERSION,
            model: "m".to_owned(),
            executor: "cpu".to_owned(),
            capacity: Capacity {
                block_size: 16,
                num_blocks: 100,
                max_step_tokens: 2048,
                full_step_tokens: 2048,
                max_context_len: 1600,
                vocab_size: 9,
                pipeline_depth: 1,
                passes: None,
                attention: crate::Attention::Causal,
                host_blocks: 0,
            },
            service: ServiceTime::default(),
            prefill: vec![sample],
            decode: Vec::new(),
        }
    }

    #[test]
    fn a_written_profile_reads_back() {
        let text = serde_json::to_string(&profile()).unwrap();
        assert_eq!(serde_json::from_str::<Profile>(&text).unwrap(), profile());
    }

    #[test]
    fn wrong_files_are_refused_by_name() {
        let check = |change: &dyn Fn(&mut serde_json::Value), expected: &str| {
            let mut value = serde_json::to_value(profile()).unwrap();
            change(&mut value);
            let error = serde_json::from_value::<Profile>(value).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check(&|v| v["version"] = 2.into(), "version 2");
        check(&|v| v["speed"] = 9.into(), "unknown field `speed`");
        check(
            &|v| v["service"]["speed"] = 9.into(),
            "unknown field `speed`",
        );
        check(
            &|v| v["service"]["floor_ms"] = (-1).into(),
            "floor_ms is -1",
        );
        // Not a number is written as null.
        check(&|v| v["service"]["base_ms"] = f64::NAN.into(), "null");
        check(&|v| v["prefill"][0]["ms"] = 0.into(), "prefill[0]");
        check(&|v| v["prefill"][0]["batch"] = 0.into(), "prefill[0]");
        let without = |v: &mut serde_json::Value| {
            v["service"].as_object_mut().unwrap().remove("per_token_ms");
        };
        check(&without, "missing field `per_token_ms`");
        let text = serde_json::to_string(&profile()).unwrap();
        for end in [0, 1, text.len() / 2, text.len() - 1] {
            let torn = serde_json::from_str::<Profile>(&text[..end]);
            assert!(torn.is_err(), "{end}");
        }
        let huge = text.replace("22.0", "1e999");
        assert!(serde_json::from_str::<Profile>(&huge).is_err());
    }

    #[test]
    fn a_profile_of_something_else_names_both() {
        let profile = profile();
        assert_eq!(profile.check_source("m", "cpu"), Ok(()));
        let check = |model, executor, parts: [&str; 2]| {
            let error = profile.check_source(model, executor).unwrap_err();
            let text = error.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        };
        check("other", "cpu", ["`m`", "`other`"]);
        check("m", "cuda", ["`cpu`", "`cuda`"]);
    }
}
