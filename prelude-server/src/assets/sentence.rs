//! The files of sentence-transformers beside a checkpoint's own.

use std::collections::BTreeMap;

use prelude_models::{ClassActivation, fields};
use serde_json::{Map, Value};

use super::{LoadError, documents::length};

const PIPELINE: &str = "config_sentence_transformers.json";
const TRANSFORMER: &str = "sentence_bert_config.json";

/// Settings of a model in the files of sentence-transformers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentenceConfig {
    /// Texts that requests put before theirs, by name.
    pub prompts: BTreeMap<String, String>,
    /// The similarity that vectors are to be compared by, if it is not the cosine.
    pub other_similarity: Option<String>,
    /// The activation of a cross-encoder's score.
    pub pair_activation: Option<ClassActivation>,
    /// True if the pipeline judges pairs of texts.
    pub is_cross_encoder: bool,
    /// The prompt of requests that name none: before a text of an embedder, the instruction of a
    /// cross-encoder.
    pub default_prompt: Option<String>,
    /// The components of a vector for requests that do not say.
    pub truncate_dim: Option<u32>,
    /// Longest text.
    pub max_seq_length: Option<u32>,
    /// Fields that are passed over.
    pub(super) warnings: Vec<String>,
}

impl SentenceConfig {
    /// Reads `config_sentence_transformers.json` and `sentence_bert_config.json`, as far as there
    /// are such files.
    ///
    /// # Errors
    /// [`LoadError::Model`] for a field that says what is not served; [`LoadError::Document`].
    pub fn from_json(
        pipeline: Option<&[u8]>,
        transformer: Option<&[u8]>,
    ) -> Result<Self, LoadError> {
        let mut config = Self::default();
        if let Some(bytes) = pipeline {
            let (map, warnings) = fields::read(PIPELINE, bytes)?;
            config.prompts = prompts(&map)?;
            let similarity = map.get("similarity_fn_name").and_then(Value::as_str);
            let other = similarity.filter(|name| *name != "cosine");
            config.other_similarity = other.map(str::to_owned);
            config.pair_activation = pair_activation(&map)?;
            let model = map.get("model_type").and_then(Value::as_str);
            config.is_cross_encoder = model == Some("CrossEncoder");
            config.default_prompt = config.default_prompt(&map)?;
            config.truncate_dim = truncate_dim(&map)?;
            config.warnings.extend(warnings);
        }
        if let Some(bytes) = transformer {
            let (map, warnings) = fields::read(TRANSFORMER, bytes)?;
            config.max_seq_length = map.get("max_seq_length").and_then(length);
            config.warnings.extend(warnings);
        }
        Ok(config)
    }
}

impl SentenceConfig {
    /// Returns the prompt that `default_prompt_name` names.
    fn default_prompt(&self, map: &Map<String, Value>) -> Result<Option<String>, LoadError> {
        let Some(name) = map
            .get("default_prompt_name")
            .filter(|name| !name.is_null())
        else {
            return Ok(None);
        };
        let prompt = name.as_str().and_then(|name| self.prompts.get(name));
        let prompt = prompt.ok_or_else(|| {
            wrong("has `default_prompt_name` that is no name of one of its `prompts`")
        })?;
        Ok(Some(prompt.clone()).filter(|prompt| !prompt.is_empty()))
    }
}

fn truncate_dim(map: &Map<String, Value>) -> Result<Option<u32>, LoadError> {
    let Some(value) = map.get("truncate_dim").filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let size = value.as_u64().and_then(|size| u32::try_from(size).ok());
    match size.filter(|size| *size > 0) {
        Some(size) => Ok(Some(size)),
        None => Err(wrong("has `truncate_dim` that is no number of components")),
    }
}

fn wrong(what: impl Into<String>) -> LoadError {
    LoadError::Document {
        file: PIPELINE,
        what: what.into(),
    }
}

/// Reads prompts by name and leaves out those that are null, which have yet to be given.
fn prompts(map: &Map<String, Value>) -> Result<BTreeMap<String, String>, LoadError> {
    let Some(prompts) = map.get("prompts").filter(|prompts| !prompts.is_null()) else {
        return Ok(BTreeMap::new());
    };
    let prompts: BTreeMap<String, Option<String>> = serde_json::from_value(prompts.clone())
        .map_err(|e| wrong(format!("has `prompts` that are not texts by name: {e}")))?;
    let given = |(name, prompt): (String, Option<String>)| Some((name, prompt?));
    Ok(prompts.into_iter().filter_map(given).collect())
}

fn pair_activation(map: &Map<String, Value>) -> Result<Option<ClassActivation>, LoadError> {
    let Some(name) = map.get("activation_fn").and_then(Value::as_str) else {
        return Ok(None);
    };
    let activation = ClassActivation::named(name);
    activation.map(Some).ok_or_else(|| {
        let shown: String = name.chars().take(60).collect();
        wrong(format!(
            "has `activation_fn` {shown:?}, which is not supported"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_sentence_transformers_are_read() {
        let read = |json: &str| SentenceConfig::from_json(Some(json.as_bytes()), None);
        let config = read(
            r#"{"prompts":{"query":"Instruct: x\nQuery:","document":"","other":null},
                "similarity_fn_name":"cosine"}"#,
        );
        let config = config.unwrap();
        assert_eq!(config.prompts["query"], "Instruct: x\nQuery:");
        assert_eq!(config.prompts.len(), 2);
        assert_eq!(config.other_similarity, None);
        assert!(read(r#"{"__version__":{}}"#).unwrap().prompts.is_empty());
        assert!(read(r#"{"prompts":{"query":1}}"#).is_err());
        let dot = read(r#"{"similarity_fn_name":"dot"}"#).unwrap();
        assert_eq!(dot.other_similarity.as_deref(), Some("dot"));
        let named = |name| read(&format!(r#"{{"activation_fn":"torch.nn.modules.{name}"}}"#));
        let identity = named("linear.Identity").unwrap().pair_activation;
        assert_eq!(identity, Some(ClassActivation::Identity));
        assert!(named("activation.Tanh").is_err());
        let judge = |name: &str| {
            read(&format!(
                r#"{{"model_type":"CrossEncoder","prompts":{{"web":"Find it.","none":""}},
                    "default_prompt_name":{name}}}"#
            ))
        };
        let config = judge(r#""web""#).unwrap();
        assert!(config.is_cross_encoder);
        assert_eq!(config.default_prompt.as_deref(), Some("Find it."));
        assert_eq!(judge(r#""none""#).unwrap().default_prompt, None);
        assert_eq!(judge("null").unwrap().default_prompt, None);
        assert!(judge(r#""other""#).is_err());
        let embedder = read(r#"{"prompts":{"q":"Q"},"default_prompt_name":"q","truncate_dim":7}"#);
        let embedder = embedder.unwrap();
        assert_eq!(embedder.default_prompt.as_deref(), Some("Q"));
        assert_eq!(embedder.truncate_dim, Some(7));
        for wrong in ["0", "-1", "1.5", "\"7\""] {
            assert!(read(&format!(r#"{{"truncate_dim":{wrong}}}"#)).is_err());
        }
    }
}
