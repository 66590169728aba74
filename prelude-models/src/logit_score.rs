//! Cross-encoders of sentence-transformers that are language models.

use prelude_core::TokenId;
use serde_json::Value;

use crate::{Error, ModelConfig, config::Companions, fields, json::Fields, modules};

const LOGIT_SCORE: &str = "1_LogitScore/config.json";

/// The tokens whose logits, behind a prompt about two texts, are their score: the logit of one less
/// that of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitScore {
    /// The token that says yes.
    pub true_token: TokenId,
    /// The token that says no.
    pub false_token: TokenId,
}

impl LogitScore {
    /// Reads the module `LogitScore`, if `modules.json` names it.
    pub(crate) fn of(
        config: &ModelConfig,
        documents: &Companions<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Option<Self>, Error> {
        let Some(modules) = documents.modules else {
            return Ok(None);
        };
        if !modules::has_logit_score(modules)? {
            return Ok(None);
        }
        let (map, passed_over) = fields::read(LOGIT_SCORE, documents.logit_score.unwrap_or(b"{}"))?;
        warnings.extend(passed_over);
        let fields = Fields::new(LOGIT_SCORE, &map);
        let token = |name: &str| {
            let id = map.get(name).and_then(Value::as_u64);
            let id = id.and_then(|id| TokenId::try_from(id).ok());
            id.filter(|&id| (id as usize) < config.vocab_size)
                .ok_or_else(|| fields.wrong(name, "must be a token id of the vocabulary"))
        };
        if map.get("false_token_id").is_none_or(Value::is_null) {
            return Err(fields.unsupported("a score by the logit of one token"));
        }
        Ok(Some(Self {
            true_token: token("true_token_id")?,
            false_token: token("false_token_id")?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::golden_models;

    #[test]
    fn tokens_of_scores_are_read() {
        let models = golden_models();
        let (_, checkpoint) = models
            .iter()
            .find(|(name, _)| &**name == "demo-lm")
            .unwrap();
        let config = checkpoint.config();
        let modules = |class: &str, path: &str| {
            format!(
                r#"[{{"path":"","type":"sentence_transformers.models.Transformer"}},
                    {{"path":"{path}","type":"sentence_transformers.cross_encoder.{class}"}}]"#
            )
        };
        let read = |modules: &str, score: Option<&str>| {
            let documents = Companions {
                config: b"{}",
                modules: Some(modules.as_bytes()),
                logit_score: score.map(str::as_bytes),
                ..Companions::default()
            };
            LogitScore::of(config, &documents, &mut Vec::new()).map_err(|e| e.to_string())
        };
        let judge = modules("LogitScore", "1_LogitScore");
        let both = r#"{"true_token_id":7,"false_token_id":9,"module_input_name":"causal_logits"}"#;
        let expected = LogitScore {
            true_token: 7,
            false_token: 9,
        };
        assert_eq!(read(&judge, Some(both)), Ok(Some(expected)));
        assert_eq!(read(&modules("Pooling", "1_Pooling"), None), Ok(None));
        let refused = |score: Option<&str>, part: &str| {
            let error = read(&judge, score).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        refused(None, "one token");
        refused(
            Some(r#"{"true_token_id":7,"false_token_id":null}"#),
            "one token",
        );
        refused(Some(r#"{"false_token_id":7}"#), "true_token_id");
        refused(
            Some(r#"{"true_token_id":7,"false_token_id":4000000}"#),
            "false_token_id",
        );
        refused(
            Some(r#"{"true_token_id":7,"false_token_id":"no"}"#),
            "false_token_id",
        );
        let other = r#"{"true_token_id":7,"false_token_id":9,"module_input_name":"scores"}"#;
        refused(Some(other), "module_input_name");
    }
}
