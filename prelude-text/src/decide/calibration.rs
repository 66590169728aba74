//! Temperatures that calibrate the probabilities of answers.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::Criteria;

/// Temperatures by type of question. The logits of the labels are divided by the temperature before
/// they become probabilities, unless the request names another. A temperature is found by
/// calibrating a model on answered questions: 1 leaves the model's own probabilities, a value above
/// 1 evens them out, a value below 1 sharpens them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calibration {
    /// The temperature of yes/no questions.
    #[serde(deserialize_with = "temperature")]
    pub noul: f64,
    /// The temperature of choices.
    #[serde(deserialize_with = "temperature")]
    pub choice: f64,
    /// The temperature of scores.
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
    /// Returns the temperature of questions of this type.
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
