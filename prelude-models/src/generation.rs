//! `generation_config.json`: end tokens and sampling defaults.

use prelude_core::TokenId;

use crate::{
    Error, ModelConfig, fields,
    json::{self, Fields},
};

const FILE: &str = "generation_config.json";

/// The rules by which text is generated unless a request has others.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct GenerationConfig {
    /// Any of these ends the text. From `config.json` if `generation_config.json` names none.
    pub eos_token_ids: Vec<TokenId>,
    /// Sampling temperature; 0, greedy, if `do_sample` is false.
    pub temperature: Option<f32>,
    /// Nucleus, in (0, 1].
    pub top_p: Option<f32>,
    /// Most likely tokens to keep; 0 is off.
    pub top_k: Option<u32>,
    /// Least probability relative to the likeliest token, in [0, 1].
    pub min_p: Option<f32>,
    /// Penalty on repeated tokens, above 0.
    pub repetition_penalty: Option<f32>,
    /// Defaults that Prelude does not generate by, each with its name. A server that takes its
    /// defaults from this file has to refuse them.
    pub unserved: Vec<String>,
    /// Notes for the operator: fields that are passed over.
    pub warnings: Vec<String>,
}

impl GenerationConfig {
    pub(crate) fn from_documents(
        config: &ModelConfig,
        generation: Option<&[u8]>,
    ) -> Result<Self, Error> {
        let Some(bytes) = generation else {
            let eos_token_ids = config.eos_token_ids.clone();
            return Ok(Self {
                eos_token_ids,
                ..Self::default()
            });
        };
        let map = json::object(FILE, bytes)?;
        let fields = Fields::new(FILE, &map);
        let mut eos_token_ids = fields.token_ids("eos_token_id")?;
        if eos_token_ids.is_empty() {
            eos_token_ids.clone_from(&config.eos_token_ids);
        }
        let mut ids = eos_token_ids.iter();
        if let Some(id) = ids.find(|&&id| id as usize >= config.vocab_size) {
            return Err(fields.wrong("eos_token_id", format!("{id} is outside the vocabulary")));
        }
        let number = |field, must, ok: fn(f64) -> bool| -> Result<Option<f32>, Error> {
            Ok(fields.number(field, must, ok)?.map(|n| n as f32))
        };
        let mut temperature = number("temperature", "in [0, 100]", |t| (0.0..=100.0).contains(&t))?;
        if fields.boolean("do_sample")? == Some(false) {
            temperature = Some(0.0);
        }
        Ok(Self {
            unserved: fields::refused(FILE, &map).collect(),
            warnings: fields::passed_over(FILE, FILE, &map),
            eos_token_ids,
            temperature,
            top_p: number("top_p", "in (0, 1]", |p| p > 0.0 && p <= 1.0)?,
            top_k: number("top_k", "an integer of at least 0", |k| {
                k.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&k)
            })?
            .map(|k| k as u32),
            min_p: number("min_p", "in [0, 1]", |p| (0.0..=1.0).contains(&p))?,
            repetition_penalty: number("repetition_penalty", "in (0, 100]", |p| {
                p > 0.0 && p <= 100.0
            })?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(document: Option<&str>) -> Result<GenerationConfig, String> {
        let config = ModelConfig::from_json(
            "config.json",
            br#"{"architectures":["Qwen3ForCausalLM"],"hidden_size":8,"intermediate_size":8,
                "num_hidden_layers":1,"num_attention_heads":1,"vocab_size":100,
                "max_position_embeddings":16,"eos_token_id":66}"#,
        )
        .unwrap();
        GenerationConfig::from_documents(&config, document.map(str::as_bytes))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn end_tokens() {
        let eos = |document| read(document).unwrap().eos_token_ids;
        assert_eq!(eos(None), [66]);
        assert_eq!(eos(Some("{}")), [66]);
        assert_eq!(eos(Some(r#"{"eos_token_id":[1,2]}"#)), [1, 2]);
        assert_eq!(eos(Some(r#"{"eos_token_id":3}"#)), [3]);
    }

    #[test]
    fn sampling_defaults() {
        let got = read(Some(
            r#"{"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.95}"#,
        ))
        .unwrap();
        assert_eq!(
            (got.temperature, got.top_k, got.top_p, got.min_p),
            (Some(0.6), Some(20), Some(0.95), None)
        );
        let greedy = read(Some(r#"{"do_sample":false,"temperature":0.6}"#)).unwrap();
        assert_eq!(greedy.temperature, Some(0.0));
    }

    #[test]
    fn unserved_settings_of_generation_are_named() {
        let got = read(Some(r#"{"num_beams":1,"no_repeat_ngram_size":3,"x":1}"#)).unwrap();
        assert_eq!(got.unserved.len(), 1);
        assert!(got.unserved[0].contains("`no_repeat_ngram_size` of 3"));
        assert!(got.warnings[0].contains("`x`"), "{:?}", got.warnings);
    }

    #[test]
    fn bad_values_are_named() {
        let refuses = |document, part: &str| {
            let error = read(Some(document)).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        refuses("[]", "generation_config.json");
        refuses(r#"{"eos_token_id":100}"#, "outside the vocabulary");
        refuses(r#"{"top_k":1.5}"#, "`top_k`");
        refuses(r#"{"top_p":0}"#, "`top_p`");
        refuses(r#"{"temperature":-1}"#, "`temperature`");
    }
}
