//! The kinds of models.

use prelude_core::{Attention, Pooling};
use serde_json::Value;

use crate::{Error, ModelConfig, config::Companions, fields, json, json::Fields};

pub(crate) const MODULES: &str = "modules.json";
const POOLING: &str = "1_Pooling/config.json";
const NORMALIZE: &str = "2_Normalize/config.json";

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
    /// By architecture, except that a body without head is an embedding model whatever its
    /// configuration says: either the tensors' names lack `model.` (`bare`), or the folder has the
    /// `modules.json` of sentence-transformers. Fields that are passed over go to `warnings`.
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
                read_modules(bytes, Pipeline::Classifier, warnings)?;
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
            && has_logit_score(bytes)?
        {
            read_modules(bytes, Pipeline::Judge, warnings)?;
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
            Some(bytes) => read_modules(bytes, Pipeline::Embedder, warnings)?,
            None => true,
        };
        if let Some(bytes) = documents.normalize {
            warnings.extend(fields::read(NORMALIZE, bytes)?.1);
        }
        Ok(Self::Embedding { pooling, normalise })
    }
}

/// The pooling mode, in either spelling: one flag per mode, or a name.
fn read_pooling(bytes: &[u8], warnings: &mut Vec<String>) -> Result<Pooling, Error> {
    let (map, passed_over) = fields::read(POOLING, bytes)?;
    warnings.extend(passed_over);
    let fields = Fields {
        file: POOLING,
        path: "",
        map: &map,
    };
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

/// The kinds of pipelines of modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pipeline {
    /// The model alone.
    Classifier,
    /// A body, its pooling, and perhaps the scaling of vectors.
    Embedder,
    /// A language model and the logits that are its score.
    Judge,
}

/// Returns whether the modules score texts by a language model's logits.
pub(crate) fn has_logit_score(bytes: &[u8]) -> Result<bool, Error> {
    let modules = json::value(MODULES, bytes)?;
    let modules = modules.as_array().map_or(&[][..], Vec::as_slice);
    let is_score = |module: &Value| class(module) == "LogitScore";
    Ok(modules.iter().any(is_score))
}

/// Returns the name of a module's class, without the path of its package.
fn class(module: &Value) -> &str {
    let kind = module["type"].as_str().unwrap_or_default();
    kind.rsplit('.').next().unwrap_or_default()
}

/// Returns whether the pipeline of modules normalises. Modules that would change the numbers
/// otherwise are refused.
fn read_modules(
    bytes: &[u8],
    pipeline: Pipeline,
    warnings: &mut Vec<String>,
) -> Result<bool, Error> {
    let wrong = |what: String| Error::Unsupported {
        file: MODULES.to_owned(),
        what,
    };
    let modules = json::value(MODULES, bytes)?;
    let modules = modules
        .as_array()
        .ok_or_else(|| wrong("anything but a list of modules".to_owned()))?;
    let mut normalise = false;
    for module in modules {
        let kind = module["type"].as_str().unwrap_or_default();
        let path = module["path"].as_str().unwrap_or_default();
        match (class(module), path, pipeline) {
            ("Transformer", ..) => (),
            ("Normalize", "2_Normalize", Pipeline::Embedder) => normalise = true,
            ("Pooling", "1_Pooling", Pipeline::Embedder) => (),
            ("LogitScore", "1_LogitScore", Pipeline::Judge) => (),
            _ => return Err(wrong(format!("module {kind:?} at {path:?}"))),
        }
        if let Some(map) = module.as_object() {
            warnings.extend(fields::check(MODULES, map)?);
        }
    }
    Ok(normalise)
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
                        _ => Pooling::Last,
                    };
                    assert_eq!((*pooling, *normalise), (expected, true));
                    Some(0)
                }
            };
            let expected = match &*name {
                "demo-lm" | "rand-untied-sharded" | "rand-llama" | "rand-qwen2" => None,
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

    #[test]
    fn modules() {
        let check = |document: &str, expected: Option<bool>| {
            let found = read_modules(document.as_bytes(), Pipeline::Embedder, &mut Vec::new());
            assert_eq!(found.ok(), expected);
        };
        check("[]", Some(false));
        check(
            r#"[{"type":"sentence_transformers.models.Normalize","path":"2_Normalize"}]"#,
            Some(true),
        );
        check(
            r#"[{"type":"sentence_transformers.models.Dense","path":"2_Dense"}]"#,
            None,
        );
        check(
            r#"[{"type":"sentence_transformers.models.Pooling","path":"pool"}]"#,
            None,
        );
        check("{}", None);
    }
}
