//! The kinds of models.

use prelude_core::{Attention, Pooling};
use serde_json::Value;

use crate::{
    Error, ModelConfig,
    config::Companions,
    fields,
    json::Fields,
    modules::{self, Modules, Pipeline},
};

const POOLING: &str = "1_Pooling/config.json";

/// The purpose of a checkpoint, which decides the heads that it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// A vocabulary head: text, label scores, log-probabilities.
    CausalLm,
    /// A `score` matrix over the last token's hidden state. One label is a reward model.
    SequenceClassification {
        /// Names of the classes, in the order of the logits.
        labels: Vec<String>,
    },
    /// A matrix over each token's hidden state.
    TokenClassification {
        /// Names of the classes, in the order of the logits.
        labels: Vec<String>,
    },
    /// The bare body, whose hidden states are pooled.
    Embedding {
        /// The hidden states that are combined.
        pooling: Pooling,
        /// True if vectors are scaled to length 1 by default.
        normalise: bool,
    },
}

impl ModelKind {
    /// Decides the kind by the architecture, except that a body without head is an embedding model
    /// whatever its configuration says: either the tensors' names lack `model.` (`bare`), or the folder
    /// has the `modules.json` of sentence-transformers. Fields that are passed over go to `warnings`.
    pub(crate) fn of(
        config: &ModelConfig,
        documents: &Companions<'_>,
        bare: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let kind = Self::by_files(config, documents, bare, warnings)?;
        let is_embedder = matches!(kind, Self::Embedding { .. });
        if config.attention == Attention::Full && config.encoder.is_none() && !is_embedder {
            return Err(Error::Unsupported {
                file: "config.json".to_owned(),
                what:
                    "`is_causal` of false, or `use_bidirectional_attention`, of a decoder that is \
                       no embedder"
                        .to_owned(),
            });
        }
        Ok(kind)
    }

    /// Returns the kind that a checkpoint's files say.
    fn by_files(
        config: &ModelConfig,
        documents: &Companions<'_>,
        bare: bool,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Error> {
        let of_texts = config.architecture.ends_with("ForSequenceClassification");
        if of_texts || config.architecture.ends_with("ForTokenClassification") {
            if let Some(bytes) = documents.modules {
                Modules::read(bytes, Pipeline::Classifier, warnings)?;
            }
            let labels = config.labels.clone();
            return Ok(match of_texts {
                true => Self::SequenceClassification { labels },
                false => Self::TokenClassification { labels },
            });
        }
        let body = bare || config.encoder.is_some() || !config.architecture.contains("For");
        if !body && documents.modules.is_none() {
            return Ok(Self::CausalLm);
        }
        if let Some(bytes) = documents.modules
            && !body
            && modules::has_logit_score(bytes)?
        {
            Modules::read(bytes, Pipeline::Judge, warnings)?;
            return Ok(Self::CausalLm);
        }
        let pooling = documents.pooling.map_or(
            // Qwen3's embedding models pool the last token, and sentence-transformers takes the mean
            // where an encoder's folder does not say.
            Ok(match config.encoder {
                None => Pooling::Last,
                Some(_) => Pooling::Mean,
            }),
            |bytes| read_pooling(bytes, warnings),
        )?;
        let normalise = match documents.modules {
            Some(bytes) => {
                let modules = Modules::read(bytes, Pipeline::Embedder, warnings)?;
                if let Some((folder, bytes)) = modules.normalize.as_deref().zip(documents.normalize)
                {
                    modules::check_normalize(folder, bytes, warnings)?;
                }
                modules.normalize.is_some()
            }
            None => true,
        };
        Ok(Self::Embedding { pooling, normalise })
    }
}

/// Returns the pooling mode, in either spelling: one flag per mode, or a name.
fn read_pooling(bytes: &[u8], warnings: &mut Vec<String>) -> Result<Pooling, Error> {
    let (map, passed_over) = fields::read(POOLING, bytes)?;
    warnings.extend(passed_over);
    let fields = Fields::new(POOLING, &map);
    let mut modes: Vec<&str> = map
        .iter()
        .filter(|(_, on)| **on == Value::Bool(true))
        .filter_map(|(name, _)| name.strip_prefix("pooling_mode_"))
        .collect();
    modes.extend(fields.text("pooling_mode")?);
    match modes[..] {
        ["cls_token" | "cls"] => Ok(Pooling::First),
        ["lasttoken"] => Ok(Pooling::Last),
        ["mean_tokens" | "mean"] => Ok(Pooling::Mean),
        [] => Err(fields.wrong("pooling_mode_lasttoken", "or another mode must be true")),
        _ => Err(fields.unsupported(format!("pooling by {}", modes.join(" and ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::golden_models;

    #[test]
    fn golden_models_have_their_kinds() {
        for (name, checkpoint) in golden_models() {
            let labels = match checkpoint.kind() {
                ModelKind::CausalLm => None,
                ModelKind::SequenceClassification { labels }
                | ModelKind::TokenClassification { labels } => Some(labels.len()),
                ModelKind::Embedding { pooling, normalise } => {
                    let expected = match &*name {
                        "rand-bert-embed" => Pooling::First,
                        "rand-mpnet-embed" | "rand-modernbert-embed" => Pooling::Mean,
                        "rand-gemma3-embed" => Pooling::Mean,
                        _ => Pooling::Last,
                    };
                    assert_eq!((*pooling, *normalise), (expected, true));
                    Some(0)
                }
            };
            let expected = match &*name {
                "demo-lm" | "rand-untied-sharded" | "rand-llama" | "rand-qwen2" => None,
                "rand-gemma2" | "rand-gemma3" | "rand-qwen3-moe" | "rand-granite" => None,
                "rand-fp8-block" | "rand-gguf-llama" | "rand-gguf-qwen2" => None,
                "demo-classifier" => Some(77),
                _ if name.ends_with("-reward") || name.ends_with("-rank") => Some(1),
                _ if name.ends_with("-embed") || name == "rand-qwen2-whole" => Some(0),
                // The number is the end of the name.
                _ => name
                    .rsplit(char::is_alphabetic)
                    .next()
                    .unwrap()
                    .parse()
                    .ok(),
            };
            assert_eq!(labels, expected, "{name}");
            let of_tokens = matches!(checkpoint.kind(), ModelKind::TokenClassification { .. });
            assert_eq!(of_tokens, name.contains("-token"), "{name}");
        }
    }

    #[test]
    fn pooling_modes() {
        let check = |document: &str, expected: Result<Pooling, &str>| match (
            read_pooling(document.as_bytes(), &mut Vec::new()),
            expected,
        ) {
            (Ok(got), Ok(expected)) => assert_eq!(got, expected),
            (Err(error), Err(part)) => {
                let error = error.to_string();
                assert!(error.contains(part), "{error}");
            }
            (got, expected) => panic!("{document}: {got:?}, expected {expected:?}"),
        };
        check(
            r#"{"pooling_mode_cls_token":false,"pooling_mode_mean_tokens":true}"#,
            Ok(Pooling::Mean),
        );
        check(r#"{"pooling_mode":"lasttoken"}"#, Ok(Pooling::Last));
        check(r#"{"pooling_mode_cls_token":true}"#, Ok(Pooling::First));
        check(
            r#"{"pooling_mode_max_tokens":true}"#,
            Err("`pooling_mode_max_tokens` of true"),
        );
        check(
            r#"{"pooling_mode_lasttoken":true,"pooling_mode_mean_tokens":true}"#,
            Err("lasttoken and mean_tokens"),
        );
        check("{}", Err("another mode must be true"));
    }
}
