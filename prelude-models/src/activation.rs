//! The function between the logits of a classification head and what answers show.

use crate::{Error, json::Fields};

/// Turns the logits of a classification head into what answers show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassActivation {
    /// Probabilities of classes of which exactly one holds: they sum to 1.
    Softmax,
    /// A probability for each class by itself, or of the one class that there is.
    Sigmoid,
    /// The logits as they are.
    Identity,
}

impl ClassActivation {
    /// Returns the activation of classes by `problem_type` of `config.json`, as transformers'
    /// pipelines and vLLM choose it. Without the field it is a softmax, or the sigmoid of a
    /// single logit.
    pub(crate) fn of_classes(config: &Fields<'_>, labels: usize) -> Result<Self, Error> {
        let of_count = match labels {
            1 => Self::Sigmoid,
            _ => Self::Softmax,
        };
        match config.text("problem_type")? {
            None | Some("single_label_classification") => Ok(of_count),
            Some("multi_label_classification") => Ok(Self::Sigmoid),
            Some("regression") => Ok(Self::Identity),
            Some(other) => {
                let must = "must be \"regression\", \"single_label_classification\" or \
                            \"multi_label_classification\"";
                Err(config.wrong("problem_type", format!("{must}, not {other:?}")))
            }
        }
    }

    /// Returns the activation of a cross-encoder's score, if `config.json` names one in either of
    /// the places where sentence-transformers has put it.
    pub(crate) fn of_pairs(config: &Fields<'_>) -> Result<Option<Self>, Error> {
        const OLD: &str = "sbert_ce_default_activation_function";
        let named = match config.object("sentence_transformers")? {
            Some(map) => {
                let own = config.within("sentence_transformers.", map);
                own.text("activation_fn")?
            }
            None => None,
        };
        let named = match named {
            Some(name) => Some(name),
            None => config.text(OLD)?,
        };
        let named = named.map(|name| {
            Self::named(name).ok_or_else(|| config.unsupported(format!("activation {name:?}")))
        });
        named.transpose()
    }

    /// Returns the activation that PyTorch calls `path`, such as `torch.nn.modules.linear.Identity`;
    /// `None` if it is not one of this type's.
    #[must_use]
    pub fn named(path: &str) -> Option<Self> {
        match path.strip_prefix("torch.nn.")?.rsplit('.').next() {
            Some("Sigmoid") => Some(Self::Sigmoid),
            Some("Identity") => Some(Self::Identity),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with<T>(
        config: &Value,
        read: impl FnOnce(&Fields<'_>) -> Result<T, Error>,
    ) -> Result<T, String> {
        let map = config.as_object().unwrap();
        let fields = Fields::new("config.json", map);
        read(&fields).map_err(|e| e.to_string())
    }

    #[test]
    fn classes_are_activated_by_the_problem() {
        let check = |problem: Value, labels, expected| {
            let config = json!({ "problem_type": problem });
            let found = with(&config, |f| ClassActivation::of_classes(f, labels));
            assert_eq!(found.ok(), expected, "{problem} {labels}");
        };
        check(json!(null), 3, Some(ClassActivation::Softmax));
        check(json!(null), 1, Some(ClassActivation::Sigmoid));
        let single = "single_label_classification";
        check(json!(single), 3, Some(ClassActivation::Softmax));
        check(json!(single), 1, Some(ClassActivation::Sigmoid));
        let multi = "multi_label_classification";
        check(json!(multi), 3, Some(ClassActivation::Sigmoid));
        check(json!("regression"), 1, Some(ClassActivation::Identity));
        check(json!("regression"), 3, Some(ClassActivation::Identity));
        check(json!("ranking"), 3, None);
        check(json!(1), 3, None);
    }

    #[test]
    fn pairs_are_activated_by_name() {
        let check = |config: Value, expected: Result<Option<ClassActivation>, &str>| match (
            with(&config, ClassActivation::of_pairs),
            expected,
        ) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{config}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (found, _) => panic!("{config}: {found:?}"),
        };
        check(json!({}), Ok(None));
        let old = |name| json!({"sbert_ce_default_activation_function": name});
        let identity = "torch.nn.modules.linear.Identity";
        check(old(identity), Ok(Some(ClassActivation::Identity)));
        check(old("torch.nn.modules.activation.Tanh"), Err("Tanh"));
        check(old("os.Sigmoid"), Err("os.Sigmoid"));
        let new = json!({
            "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"},
            "sbert_ce_default_activation_function": identity,
        });
        check(new, Ok(Some(ClassActivation::Sigmoid)));
    }
}
