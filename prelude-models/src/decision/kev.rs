//! Kev: a pointer head in a pickle beside a body.

use std::path::Path;

use super::{
    Decision, DecisionFormat, DecisionHead, HeadTensors, Linear, Temperatures,
    pickle::{Pickle, Value},
    tensors::read_head,
    wrong,
};
use crate::{Error, ModelConfig};

pub(super) const HEAD: &str = "head.pt";

/// Keys that change no answer of a checkpoint with whole weights.
const UNREAD: [&str; 6] = [
    "weights_dtype",
    "base",
    "base_revision",
    "lora",
    "holdout",
    "args",
];

/// Reads the format's file.
pub(super) fn read(folder: &Path, config: &ModelConfig) -> Result<Decision, Error> {
    let bytes = read_head(folder, HEAD)?;
    let pickle = Pickle::open(&bytes).map_err(|what| wrong(HEAD, what))?;
    let keys = pickle.root().map_err(|what| wrong(HEAD, what))?;
    let get = |name: &str| {
        keys.iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| *value)
    };
    if get("head").is_none() || get("base").is_none() {
        let found: Vec<&str> = keys.iter().map(|(key, _)| *key).take(20).collect();
        let what = format!("is no head of a Kev: it has {}", found.join(", "));
        return Err(wrong(HEAD, what));
    }
    let unread = UNREAD.iter().copied();
    let known: Vec<&str> = unread
        .chain([
            "head",
            "head_dim",
            "temperature",
            "option_isolation",
            "special_embeddings",
        ])
        .collect();
    if let Some((other, _)) = keys.iter().find(|(key, _)| !known.contains(key)) {
        let other: String = other.chars().take(60).collect();
        return Err(wrong(
            HEAD,
            format!("has the key {other:?}, which is not known"),
        ));
    }
    for name in ["option_isolation", "special_embeddings"] {
        match get(name) {
            None | Some(Value::None | Value::Bool(false)) => {}
            Some(_) => return Err(wrong(HEAD, format!("has `{name}`, which is not supported"))),
        }
    }
    let temperature = match get("temperature") {
        None | Some(Value::None) => 1.0,
        Some(value) => { value.number() }
            .filter(|t| *t > 0.0 && t.is_finite())
            .ok_or_else(|| wrong(HEAD, "has a temperature that is not above 0"))?,
    };
    let head_dim = get("head_dim").and_then(Value::number);
    let tensors = pickle.tensors("head").map_err(|what| wrong(HEAD, what))?;
    let mut tensors = HeadTensors::new(HEAD, tensors);
    let d = tensors
        .shape("q.weight")
        .and_then(|shape| shape.first().copied());
    let d = d
        .filter(|d| *d > 0)
        .ok_or_else(|| wrong(HEAD, "lacks the tensor \"q.weight\""))?;
    if let Some(named) = head_dim
        && named != d as f64
    {
        return Err(wrong(
            HEAD,
            format!("has a head of {d} rows, but `head_dim` says {named}"),
        ));
    }
    let size = [d, config.hidden_size];
    let head = DecisionHead::Pointer {
        query: Linear::take(&mut tensors, ["q.weight", "q.bias"], size)?,
        key: Linear::take(&mut tensors, ["k.weight", "k.bias"], size)?,
    };
    tensors.finish()?;
    Ok(Decision {
        format: DecisionFormat::Kev,
        head,
        temperatures: Temperatures::all(temperature),
        score_offsets: Default::default(),
        max_tokens: None,
    })
}
