//! `quantization_config`: the forms of stored weights that are widened when they are loaded.

use serde_json::{Map, Value};

use crate::{
    Error,
    json::{Fields, short},
};

/// The form of matrices that are stored in fp8 (e4m3), each with a tensor of scales beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fp8Scales {
    /// A scale for the whole matrix, or one for each of its rows.
    Whole,
    /// A scale for each block of so many rows and columns.
    Blocks([usize; 2]),
}

/// The field.
const FIELD: &str = "quantization_config";

/// The field within it about keys and values.
const CACHE: &str = "kv_cache_scheme";

/// Largest side of a block.
const BLOCK_MAX: usize = 1 << 16;

/// Reads `quantization_config`; `None` if the file has none.
///
/// # Errors
/// [`Error::Unsupported`] naming the method, the format or the field that is not read.
pub(super) fn read(
    fields: &Fields<'_>,
    warnings: &mut Vec<String>,
) -> Result<Option<Fp8Scales>, Error> {
    let Some(map) = fields.object(FIELD)? else {
        return Ok(None);
    };
    let own = fields.within("quantization_config.", map);
    // The scales that belong to it are not read either.
    if own.get(CACHE).is_some_and(|value| !is_empty(value)) {
        let (file, path) = (own.file, own.path);
        warnings.push(format!(
            "{file}: `{path}{CACHE}` is passed over: keys and values are kept as activations are"
        ));
    }
    match own.text("quant_method")? {
        Some("fp8") => fp8(&own).map(Some),
        Some("compressed-tensors") => compressed_tensors(&own).map(Some),
        Some(method) => Err(own.unsupported(format!("`{FIELD}` with `quant_method` {method:?}"))),
        None => Err(own.unsupported(format!("`{FIELD}` without `quant_method`"))),
    }
}

/// Reads the form that transformers and vLLM call `fp8`.
fn fp8(fields: &Fields<'_>) -> Result<Fp8Scales, Error> {
    check_names(
        fields,
        &[
            "quant_method",
            "fmt",
            "activation_scheme",
            "weight_block_size",
            "modules_to_not_convert",
            "ignored_layers",
            "dequantize",
            "scale_fmt",
            CACHE,
        ],
    )?;
    check_text(fields, "fmt", &["e4m3"])?;
    check_text(fields, "activation_scheme", &["dynamic", "static"])?;
    Ok(match fields.array("weight_block_size")? {
        None => Fp8Scales::Whole,
        Some(sides) => Fp8Scales::Blocks(block(fields, "weight_block_size", sides)?),
    })
}

/// Reads the form of llm-compressor. All groups must store their weights alike.
fn compressed_tensors(fields: &Fields<'_>) -> Result<Fp8Scales, Error> {
    check_names(
        fields,
        &[
            "quant_method",
            "format",
            "quantization_status",
            "global_compression_ratio",
            "ignore",
            CACHE,
            "config_groups",
            "sparsity_config",
            "transform_config",
            "version",
        ],
    )?;
    check_text(fields, "format", &["float-quantized"])?;
    check_text(fields, "quantization_status", &["compressed", "frozen"])?;
    check_empty(fields, "transform_config")?;
    if let Some(sparsity) = fields.object("sparsity_config")? {
        let own = fields.within("quantization_config.sparsity_config.", sparsity);
        check_text(&own, "format", &["dense"])?;
    }
    let groups = fields.required("config_groups", fields.object("config_groups")?)?;
    let mut found = None;
    for group in groups.values() {
        let group = group.as_object();
        let group = group.ok_or_else(|| fields.wrong("config_groups", "must hold objects"))?;
        let own = fields.within("quantization_config.config_groups.", group);
        let scales = compressed_group(&own)?;
        if *found.get_or_insert(scales) != scales {
            return Err(own.unsupported("`config_groups` whose scales differ in form"));
        }
    }
    found.ok_or_else(|| fields.wrong("config_groups", "must have a group"))
}

fn compressed_group(group: &Fields<'_>) -> Result<Fp8Scales, Error> {
    // Activations are not rounded here, whatever the file says of them, as where transformers
    // widens such weights.
    check_names(
        group,
        &["targets", "weights", "input_activations", "format"],
    )?;
    check_text(group, "format", &["float-quantized"])?;
    let weights = group.required("weights", group.object("weights")?)?;
    let own = group.within("quantization_config.config_groups.weights.", weights);
    check_text(&own, "type", &["float"])?;
    let strategy = own.text("strategy")?.unwrap_or("tensor");
    for (name, allowed) in [
        ("num_bits", Value::from(8)),
        ("symmetric", true.into()),
        ("dynamic", false.into()),
    ] {
        match own.get(name) {
            None => {}
            Some(value) if *value == allowed => {}
            Some(value) => {
                let what = format!("`{}{name}` of {}", own.path, short(value));
                return Err(own.unsupported(what));
            }
        }
    }
    match strategy {
        "tensor" | "channel" => Ok(Fp8Scales::Whole),
        "block" => {
            let sides = own.required("block_structure", own.array("block_structure")?)?;
            Ok(Fp8Scales::Blocks(block(&own, "block_structure", sides)?))
        }
        other => Err(own.unsupported(format!("weights with scales of strategy {other:?}"))),
    }
}

/// Returns the sides of a block: rows, then columns.
fn block(fields: &Fields<'_>, name: &str, sides: &[Value]) -> Result<[usize; 2], Error> {
    let side = |value: &Value| {
        let side = usize::try_from(value.as_u64()?).ok()?;
        (1..=BLOCK_MAX).contains(&side).then_some(side)
    };
    let sides: Option<Vec<usize>> = sides.iter().map(side).collect();
    match sides.as_deref() {
        Some(&[rows, columns]) => Ok([rows, columns]),
        _ => Err(fields.wrong(name, format!("must be two numbers in 1..={BLOCK_MAX}"))),
    }
}

/// Refuses fields that are not known.
fn check_names(fields: &Fields<'_>, known: &[&str]) -> Result<(), Error> {
    let is_unknown =
        |(name, value): &(&String, &Value)| !value.is_null() && !known.contains(&name.as_str());
    match fields.map.iter().find(is_unknown) {
        None => Ok(()),
        Some((name, _)) => {
            let name: String = name.chars().take(60).collect();
            Err(fields.unsupported(format!("`{}{name}`", fields.path)))
        }
    }
}

/// Refuses texts that are not among those allowed.
fn check_text(fields: &Fields<'_>, name: &str, allowed: &[&str]) -> Result<(), Error> {
    match fields.text(name)? {
        Some(text) if !allowed.contains(&text) => {
            let (text, allowed) = (short(&text.into()), allowed.join(" or "));
            let what = format!("`{}{name}` of {text} (only {allowed})", fields.path);
            Err(fields.unsupported(what))
        }
        _ => Ok(()),
    }
}

/// Refuses an object that says something.
fn check_empty(fields: &Fields<'_>, name: &str) -> Result<(), Error> {
    match fields.get(name) {
        Some(value) if !is_empty(value) => {
            Err(fields.unsupported(format!("`{}{name}`", fields.path)))
        }
        _ => Ok(()),
    }
}

/// Returns true for an object that says nothing.
fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(config: Value, expected: Result<Fp8Scales, &str>) {
        let document = json!({"quantization_config": config});
        let fields = Fields::new("config.json", document.as_object().unwrap());
        let mut warnings = Vec::new();
        match (read(&fields, &mut warnings), expected) {
            (Ok(found), Ok(expected)) => {
                assert_eq!(found, Some(expected), "{config}");
                let warned = config[CACHE].is_object() || config[CACHE].is_string();
                assert_eq!(warnings.len(), usize::from(warned), "{warnings:?}");
            }
            (Err(error), Err(part)) => {
                let error = error.to_string();
                assert!(error.contains(part), "{error}");
            }
            (found, expected) => panic!("{config}: {found:?}, expected {expected:?}"),
        }
    }

    fn compressed(changes: Value, weights: Value) -> Value {
        let mut own = json!({"num_bits": 8, "type": "float", "symmetric": true, "dynamic": false,
            "strategy": "channel"});
        own.as_object_mut()
            .unwrap()
            .extend(weights.as_object().unwrap().clone());
        let mut all = json!({"quant_method": "compressed-tensors", "format": "float-quantized",
            "ignore": ["lm_head"], "kv_cache_scheme": null,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": own,
                "input_activations": {"num_bits": 8, "dynamic": true}}}});
        all.as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        all
    }

    #[test]
    fn forms_that_are_read() {
        let blocks = Fp8Scales::Blocks([128, 64]);
        check(json!({"quant_method": "fp8"}), Ok(Fp8Scales::Whole));
        check(
            json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                "weight_block_size": [128, 64], "modules_to_not_convert": ["lm_head"]}),
            Ok(blocks),
        );
        check(compressed(json!({}), json!({})), Ok(Fp8Scales::Whole));
        // Weights are read the same whatever is said of keys and values.
        let cache = json!({"kv_cache_scheme": {"num_bits": 8, "type": "float"}});
        check(compressed(cache, json!({})), Ok(Fp8Scales::Whole));
        let cache = json!({"quant_method": "fp8", "kv_cache_scheme": "static"});
        check(cache, Ok(Fp8Scales::Whole));
        let of_blocks = json!({"strategy": "block", "block_structure": [128, 64]});
        check(compressed(json!({}), of_blocks), Ok(blocks));
    }

    #[test]
    fn other_forms_are_named() {
        let refused = |config: Value, part: &str| check(config, Err(part));
        refused(json!({"quant_method": "gptq", "bits": 4}), "\"gptq\"");
        refused(json!({}), "without `quant_method`");
        let fp8 = |name: &str, value: Value| {
            let mut config = json!({"quant_method": "fp8"});
            config[name] = value;
            config
        };
        refused(fp8("fmt", json!("e5m2")), "\"e5m2\"");
        refused(fp8("other", json!(1)), "`quantization_config.other`");
        refused(fp8("weight_block_size", json!([128])), "two numbers");
        refused(fp8("weight_block_size", json!([0, 1])), "two numbers");
        let none = || json!({});
        refused(
            compressed(json!({"format": "pack-quantized"}), none()),
            "\"pack-quantized\"",
        );
        refused(
            compressed(json!({"transform_config": {"a": 1}}), none()),
            "transform_config",
        );
        refused(
            compressed(json!({"sparsity_config": {"format": "sparse-24"}}), none()),
            "sparse-24",
        );
        refused(compressed(none(), json!({"type": "int"})), "\"int\"");
        refused(compressed(none(), json!({"num_bits": 4})), "num_bits");
        refused(compressed(none(), json!({"dynamic": true})), "dynamic");
        refused(
            compressed(none(), json!({"strategy": "group"})),
            "\"group\"",
        );
        refused(compressed(json!({"config_groups": {}}), none()), "a group");
    }
}
