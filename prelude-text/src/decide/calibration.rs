//! How sure answers are made to be.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::Criteria;

/// Temperatures by type of question: what the labels' logits are divided by before they become
/// probabilities, unless a request names one. Found by calibrating a model on answered questions;
/// 1 leaves the model's own probabilities. Above 1 evens out, below 1 sharpens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calibration {
    /// Of yes/no questions.
    #[serde(deserialize_with = "temperature")]
    pub noul: f64,
    /// Of choices.
    #[serde(deserialize_with = "temperature")]
    pub choice: f64,
    /// Of scores.
    #[serde(deserialize_with = "temperature")]
    pub score: f64,
}

impl Default for Calibration {
    fn default() -> Self {
        Self {
            noul: 1.0,
            choice: 1.0,
            score: 1.0,
        }
    }
}

impl Calibration {
    /// The temperature of questions like this one.
    #[must_use]
    pub const fn temperature(&self, criteria: &Criteria) -> f64 {
        match criteria {
            Criteria::Noul { .. } => self.noul,
            Criteria::Choice(_) => self.choice,
            Criteria::Score(_) => self.score,
        }
    }
}

fn temperature<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if value > 0.0 && value.is_finite() {
        return Ok(value);
    }
    Err(D::Error::custom(format_args!(
        "a temperature is {value}, must be above 0 and finite"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temperatures_are_above_zero() {
        let check = |json: &str, expected: Option<f64>| {
            let found = serde_json::from_str::<Calibration>(json);
            assert_eq!(found.ok().map(|c| c.choice), expected, "{json}");
        };
        check("{}", Some(1.0));
        check(r#"{"choice": 2.5}"#, Some(2.5));
        check(r#"{"choice": 0}"#, None);
        check(r#"{"choice": -1.0}"#, None);
        check(r#"{"chance": 1.0}"#, None);
    }
}
