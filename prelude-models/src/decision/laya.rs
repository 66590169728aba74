//! Laya: an encoder whose options are read at markers. Package `laya` 0.4.15.

use std::path::Path;

use serde_json::Value;

use super::{
    Decision, DecisionFormat, DecisionHead, HeadTensors, LayerNorm, Linear, Temperatures,
    document::{document, refuse_others},
    wrong,
};
use crate::{Error, ModelConfig, encoder::markers, json::Fields};

pub(super) const CONFIG: &str = "rl_agent_config.json";

/// Types of questions in the order of `temperature` and of the rows of `type_emb.weight`.
const TYPES: [&str; 3] = ["choice", "score", "noul"];
/// Names of numbers of options in `temperature_by_options`.
const BUCKETS: [&str; 4] = ["2", "3-5", "6-10", "11+"];

const LAYERS_MAX: usize = 64;
const TOKENS_MAX: usize = 1 << 24;

/// Tensors beside the encoder that are the head's, or that no answer needs: of escalation and a copy of
/// the temperatures.
pub(super) fn is_of_head(tensor: &str) -> bool {
    tensor.starts_with("scorer.") || tensor.starts_with("act_head.") || tensor == "temperature"
}

/// PyTorch's attention calls the product of queries, keys and values otherwise than other products.
pub(super) fn renamed(tensor: &str) -> String {
    tensor.replace(".in_proj_", ".in_proj.")
}

/// Reads the format's file, and takes the head from the model's tensors.
pub(super) fn read(
    folder: &Path,
    config: &mut ModelConfig,
    mut tensors: HeadTensors,
) -> Result<Decision, Error> {
    let map = document(folder, CONFIG)?;
    let fields = Fields::new(CONFIG, &map);
    let known = [
        "head_layers",
        "max_len",
        "head_max_len",
        "temperature",
        "temperature_by_options",
        "option_layout",
        "act_costs",
        "encoder",
        "amp_dtype",
        "max_prefixes",
        "model_name",
    ];
    refuse_others(&fields, &known)?;
    match fields.text("option_layout")? {
        None | Some("sequential") => {}
        Some(other) => return Err(fields.unsupported(format!("`option_layout` of {other:?}"))),
    }
    let layers = match fields.get("head_layers") {
        Some(Value::Number(zero)) if zero.as_u64() == Some(0) => 0,
        _ => fields.count("head_layers", LAYERS_MAX)?.unwrap_or(2),
    };
    let hidden = config.hidden_size;
    let shape = markers::shape(hidden);
    if shape.out_width() != hidden || !shape.head_dim.is_multiple_of(2) {
        let what = format!(
            "stands on an encoder of {hidden}, which {} heads do not divide",
            shape.heads
        );
        return Err(wrong(CONFIG, what));
    }
    let Some(encoder) = &mut config.encoder else {
        let what = format!("stands on a {}, which is no encoder", config.architecture);
        return Err(wrong(CONFIG, what));
    };
    encoder.markers = Some(layers);
    encoder.token_types = TYPES.len();
    let max_tokens = fields.count("max_len", TOKENS_MAX)?.unwrap_or(512);
    let head_tokens = fields.count("head_max_len", TOKENS_MAX)?.unwrap_or(192);
    if max_tokens > config.max_position_embeddings {
        let positions = config.max_position_embeddings;
        let what = format!("is {max_tokens}, but the encoder has {positions} positions");
        return Err(fields.wrong("max_len", what));
    }
    let head = DecisionHead::Markers {
        norm: LayerNorm::take(&mut tensors, "scorer.0", hidden)?,
        up: Linear::take(
            &mut tensors,
            ["scorer.1.weight", "scorer.1.bias"],
            [hidden, hidden],
        )?,
        out: Linear::take(
            &mut tensors,
            ["scorer.3.weight", "scorer.3.bias"],
            [1, hidden],
        )?,
    };
    Ok(Decision {
        format: DecisionFormat::Laya {
            max_tokens,
            head_tokens,
        },
        head,
        temperatures: temperatures(&fields)?,
        score_offsets: Default::default(),
        max_tokens: Some(max_tokens),
    })
}

pub(super) fn temperatures(fields: &Fields<'_>) -> Result<Temperatures, Error> {
    let by_type = fields.array("temperature")?.unwrap_or_default();
    let by_type = [0, 1, 2].map(|i| clamped(by_type.get(i)));
    let by_options = fields.object("temperature_by_options")?;
    let mut by_count = [[None; 4]; 3];
    for (key, value) in by_options.into_iter().flatten() {
        let place = key.split_once(':').and_then(|(of, bucket)| {
            let of = TYPES.iter().position(|name| *name == of)?;
            Some((of, BUCKETS.iter().position(|name| *name == bucket)?))
        });
        // The authors' code looks keys up, so it never sees one of another form.
        if let Some((of, bucket)) = place {
            by_count[of][bucket] = Some(clamped(Some(value)));
        }
    }
    Ok(Temperatures { by_type, by_count })
}

/// Returns a temperature as the authors' code reads it: within 0.5 and 5, and 1 for what is no number.
fn clamped(value: Option<&Value>) -> f64 {
    let number = match value {
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.trim().parse().ok(),
        _ => None,
    };
    let number = number.filter(|number| number.is_finite());
    number.map_or(1.0, |number| number.clamp(0.5, 5.0))
}
