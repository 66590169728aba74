//! Code readout v1, of pplx-decider and d3: a row of a matrix for each code that names an option.

use std::{collections::HashSet, path::Path};

use super::{
    CodeWording, Decision, DecisionFormat, DecisionHead, HeadTensors, Linear, Parse, Temperatures,
    document::{document, refuse_others},
    look_ahead, wrong,
};
use crate::{Error, ModelConfig, json::Fields};

pub(super) const CONFIG: &str = "decision_config.json";
pub(super) const HEAD: &str = "readout.safetensors";

/// The number of codes, which is also the most options of a question.
const CODES: usize = 255;
/// Most tokens of a prompt of pplx's where the file does not say.
const PPLX_TOKENS: usize = 8_192;

/// Reads the format's files.
pub(super) fn read(
    folder: &Path,
    config: &mut ModelConfig,
    parse: Parse,
) -> Result<Decision, Error> {
    let map = document(folder, CONFIG)?;
    let fields = Fields::new(CONFIG, &map);
    if fields.get("codes").is_none() {
        let keys: Vec<&str> = map.keys().map(String::as_str).take(20).collect();
        let what = format!(
            "has no `codes`, so it is another format's: {}",
            keys.join(", ")
        );
        return Err(wrong(CONFIG, what));
    }
    let known = [
        "format_version",
        "format_id",
        "prompt",
        "codes",
        "token_ids",
        "temperature",
        "attention_mode",
        "pooling",
        "max_length",
        "readout_dtype",
        "base_model",
        "revision",
        "license",
        "notes",
    ];
    refuse_others(&fields, &known)?;
    let version = fields.count("format_version", usize::MAX)?;
    if version != Some(1) {
        return Err(fields.wrong("format_version", "must be 1"));
    }
    let only = |name: &str, allowed: &[&str]| match fields.text(name)? {
        Some(other) if !allowed.contains(&other) => {
            Err(fields.unsupported(format!("`{name}` of {other:?}")))
        }
        found => Ok(found),
    };
    only("format_id", &["d3-code-readout-v1"])?;
    only("pooling", &["last"])?;
    only("readout_dtype", &["float32"])?;
    let wording = match only("prompt", &["d3"])? {
        None => CodeWording::Pplx,
        Some(_) => CodeWording::D3,
    };
    if only("attention_mode", &["causal", "noncausal_full_attention"])?
        == Some("noncausal_full_attention")
    {
        look_ahead(config);
    }
    let temperature = fields.number("temperature", "above 0", |t| t > 0.0)?;
    let temperature = fields.required("temperature", temperature)?;
    let max_tokens = fields.count("max_length", usize::MAX)?;
    let mut tensors = HeadTensors::open(folder, HEAD, parse)?;
    let size = [CODES, config.hidden_size];
    let head = DecisionHead::Codes(Linear::take(&mut tensors, ["weight", ""], size)?);
    tensors.finish()?;
    Ok(Decision {
        format: DecisionFormat::Codes {
            wording,
            codes: codes(&fields, config.vocab_size)?,
        },
        head,
        temperatures: Temperatures::all(temperature),
        score_offsets: Default::default(),
        max_tokens: max_tokens.or(match wording {
            CodeWording::Pplx => Some(PPLX_TOKENS),
            CodeWording::D3 => None,
        }),
    })
}

/// Returns the codes and their tokens, all of which differ.
fn codes(fields: &Fields<'_>, vocab_size: usize) -> Result<Vec<(String, u32)>, Error> {
    let texts = fields.array("codes")?.unwrap_or_default();
    let tokens = fields.token_ids("token_ids")?;
    if texts.len() != CODES || tokens.len() != CODES {
        let what = format!(
            "and `token_ids` must be {CODES}, not {} and {}",
            texts.len(),
            tokens.len()
        );
        return Err(fields.wrong("codes", what));
    }
    let mut seen = HashSet::new();
    let code = |(text, &token): (&serde_json::Value, &u32)| match text.as_str() {
        Some(text) if (token as usize) < vocab_size && seen.insert(token) => {
            Ok((text.to_owned(), token))
        }
        _ => Err(fields.wrong("codes", "must be texts, each with a token of its own")),
    };
    texts.iter().zip(&tokens).map(code).collect()
}
