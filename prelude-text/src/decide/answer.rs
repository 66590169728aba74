//! Answers from label probabilities: the arithmetic of the contract.

/// The answer to one question.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// The answer to a yes/no question.
    Noul {
        /// The probability of yes.
        noul: f64,
    },
    /// The answer to a choice.
    Choice {
        /// The index of the most probable option, the first of equals.
        choice: usize,
        /// The probability of each option; all of them sum to 1.
        probabilities: Vec<f64>,
        /// 0 if all options are equally probable, 1 if one is certain.
        confidence: f64,
    },
    /// The answer to a score.
    Score {
        /// The mean level.
        score: f64,
        /// The probability of each level; all of them sum to 1.
        probabilities: Vec<f64>,
        /// 0 if the levels are as spread as if all were equally probable, 1 if one is certain.
        confidence: f64,
    },
}

/// Measures of how far an answer can be trusted, beside its probabilities.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Diagnostics {
    /// The probability that the model says one of the labels at all.
    pub label_mass: Option<f64>,
    /// The gap between the probabilities of the two most probable answers.
    pub margin: f64,
}

impl Answer {
    /// Makes the answer to a yes/no question from the probabilities of yes and no.
    #[must_use]
    pub fn noul(probabilities: &[f64]) -> Self {
        Self::Noul {
            noul: probabilities[0],
        }
    }

    /// Makes the answer to a choice from the probabilities of its options, in their order.
    ///
    /// Confidence with n options and largest probability m: `(m - 1/n) / (1 - 1/n)`.
    #[must_use]
    pub fn choice(probabilities: Vec<f64>) -> Self {
        let choice = argmax(&probabilities);
        let uniform = 1.0 / probabilities.len() as f64;
        let confidence = (probabilities[choice] - uniform) / (1.0 - uniform);
        Self::Choice {
            choice,
            probabilities,
            // Rounding can leave a value just outside of 0 to 1.
            confidence: confidence.clamp(0.0, 1.0),
        }
    }

    /// Makes the answer to a score from the probabilities of its levels, low to high.
    ///
    /// Confidence with n levels and most likely level k: `max(0, 1 - sum p_i |i - k| / D)`, where
    /// `D = (1/n) sum |i - (n-1)/2|` is the spread of a uniform distribution.
    #[must_use]
    pub fn score(probabilities: Vec<f64>) -> Self {
        let n = probabilities.len() as f64;
        let likeliest = argmax(&probabilities) as f64;
        let levels = || probabilities.iter().enumerate().map(|(i, p)| (i as f64, p));
        let score = levels().map(|(i, p)| i * p).sum();
        let spread: f64 = levels().map(|(i, p)| p * (i - likeliest).abs()).sum();
        let middle = (n - 1.0) / 2.0;
        let uniform = levels().map(|(i, _)| (i - middle).abs()).sum::<f64>() / n;
        Self::Score {
            score,
            confidence: (1.0 - spread / uniform).clamp(0.0, 1.0),
            probabilities,
        }
    }
}

/// Returns the gap between the two largest values.
#[must_use]
pub(super) fn margin(probabilities: &[f64]) -> f64 {
    let mut sorted = probabilities.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    sorted[0] - sorted[1]
}

impl Diagnostics {
    /// Makes the diagnostics of one question from the probabilities of its labels.
    #[must_use]
    pub fn new(probabilities: &[f64], label_mass: Option<f64>) -> Self {
        Self {
            label_mass,
            margin: margin(probabilities),
        }
    }
}

/// Returns the index of the largest value, the first of equals.
fn argmax(values: &[f64]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-12
    }

    /// The worked examples of the contract.
    #[test]
    fn answers_match_the_contract_s_examples() {
        let Answer::Choice {
            choice, confidence, ..
        } = Answer::choice(vec![0.88, 0.12])
        else {
            panic!()
        };
        assert!(choice == 0 && close(confidence, 0.76));
        let Answer::Score {
            score, confidence, ..
        } = Answer::score(vec![0.0, 0.95, 0.05])
        else {
            panic!()
        };
        assert!(close(score, 1.05) && close(confidence, 0.925));
        assert_eq!(Answer::noul(&[0.95, 0.05]), Answer::Noul { noul: 0.95 });
    }

    #[test]
    fn ends_of_the_scale() {
        let confidence = |answer| match answer {
            Answer::Choice { confidence, .. } | Answer::Score { confidence, .. } => confidence,
            Answer::Noul { .. } => panic!("a noul has no confidence"),
        };
        let check = |answer, expected| assert!(close(confidence(answer), expected));
        check(Answer::choice(vec![0.0, 1.0, 0.0]), 1.0);
        check(Answer::choice(vec![0.25; 4]), 0.0);
        check(Answer::score(vec![0.0, 0.0, 1.0]), 1.0);
        // Half at each end: more spread than uniform.
        check(Answer::score(vec![0.5, 0.0, 0.5]), 0.0);
    }

    #[test]
    fn ties_go_to_the_first() {
        let Answer::Choice { choice, .. } = Answer::choice(vec![0.2, 0.4, 0.4]) else {
            panic!()
        };
        assert_eq!(choice, 1);
        assert!(close(margin(&[0.2, 0.4, 0.4]), 0.0));
    }

    proptest! {
        #[test]
        fn everything_is_finite_and_in_range(
            weights in prop::collection::vec(0.0f64..1.0, 2..255)
        ) {
            let sum: f64 = weights.iter().sum::<f64>().max(1e-9);
            let p: Vec<f64> = weights.iter().map(|w| w / sum).collect();
            let n = p.len() as f64;
            let Answer::Score { score, confidence, .. } = Answer::score(p.clone()) else { panic!() };
            prop_assert!((0.0..=n - 1.0 + 1e-9).contains(&score));
            prop_assert!((0.0..=1.0).contains(&confidence));
            let Answer::Choice { confidence, choice, .. } = Answer::choice(p.clone()) else { panic!() };
            prop_assert!((0.0..=1.0).contains(&confidence));
            prop_assert!(p.iter().all(|x| *x <= p[choice]));
        }
    }
}
