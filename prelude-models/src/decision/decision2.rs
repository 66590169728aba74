//! Decision 2.0 of semantic-router: segments and an endpoint head. Package `dev2-package/1`.

use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::{
    Decision, DecisionFormat, DecisionHead, HeadTensors, LayerNorm, Linear, Parse, Temperatures,
    document::{document, refuse_others},
    wrong,
};
use crate::{Error, ModelConfig, json::Fields};

const PACKAGE: &str = "config.json";
pub(super) const CONFIG: &str = "decision_config.json";
pub(super) const HEAD: &str = "decision_head.safetensors";
pub(super) const CALIBRATION: &str = "calibration.json";
pub(super) const SCORE_BIAS: &str = "score_bias.json";

const HEAD_DIM_MAX: usize = 1 << 16;
const TOKENS_MAX: usize = 1 << 24;
/// Most levels of a score for which there may be offsets.
const LEVELS_MAX: usize = 255;

/// Returns the folder of the backbone, which the package's file names.
pub(super) fn backbone(folder: &Path) -> Result<PathBuf, Error> {
    let map = document(folder, PACKAGE)?;
    let fields = Fields::new(PACKAGE, &map);
    must_be(&fields, "decision_format", "vllm-sr-decision")?;
    let config = named(folder, &fields, "backbone", Some("config"))?;
    match (config.parent(), config.file_name()) {
        (Some(parent), Some(name)) if name == PACKAGE => Ok(parent.to_owned()),
        _ => Err(fields.wrong("backbone.config", "must name a config.json")),
    }
}

/// Reads the format's files.
pub(super) fn read(folder: &Path, config: &ModelConfig, parse: Parse) -> Result<Decision, Error> {
    let map = document(folder, PACKAGE)?;
    let package = Fields::new(PACKAGE, &map);
    if package.count("format_version", usize::MAX)? != Some(2) {
        return Err(package.wrong("format_version", "must be 2"));
    }
    must_be(&package, "package_schema", "dev2-package/1")?;
    let max_tokens = package.count("max_input_tokens", TOKENS_MAX)?;
    let settings = object_at(&named(folder, &package, "model_config", None)?)?;
    let settings = Fields::new(CONFIG, &settings);
    let known = [
        "architecture",
        "head_variant",
        "backbone_model_type",
        "prompt_version",
        "head_dim",
        "max_options",
        "checkpoint_format",
        "text_parameter_count",
        "parameter_dtype",
        "head_compute_dtype",
        "attention",
    ];
    refuse_others(&settings, &known)?;
    let prompt = "decision2-segmented-options-global-query-v1";
    must_be(&settings, "prompt_version", prompt)?;
    must_be(&settings, "head_variant", "shared")?;
    for (name, value) in [
        ("head_compute_dtype", "float32"),
        ("checkpoint_format", "full"),
    ] {
        if settings.get(name).is_some() {
            must_be(&settings, name, value)?;
        }
    }
    if settings
        .count("max_options", usize::MAX)?
        .is_some_and(|n| n != 255)
    {
        return Err(settings.wrong("max_options", "must be 255"));
    }
    let d = settings.required_count("head_dim", HEAD_DIM_MAX)?;
    let path = named(folder, &package, "decision_weights", Some("decision_head"))?;
    let head = head(folder, (&path, parse), [d, config.hidden_size])?;
    let calibration = object_at(&named(folder, &package, "calibration", None)?)?;
    let calibration = Fields::new(CALIBRATION, &calibration);
    must_be(
        &calibration,
        "calibration_version",
        "decision2-per-type-temperature/1",
    )?;
    let by_type = calibration.object("temperature_by_type")?;
    let by_type = calibration.required("temperature_by_type", by_type)?;
    let by_type = calibration.within("temperature_by_type.", by_type);
    let temperature = |name: &str| {
        let number = by_type.number(name, "in 0.05..=20", |t| (0.05..=20.0).contains(&t))?;
        by_type.required(name, number)
    };
    let temperatures = [
        temperature("choice")?,
        temperature("score")?,
        temperature("noul")?,
    ];
    Ok(Decision {
        format: DecisionFormat::Decision2,
        head,
        temperatures: Temperatures::by_type(temperatures),
        score_offsets: score_offsets(folder)?,
        max_tokens,
    })
}

fn head(
    folder: &Path,
    (path, parse): (&Path, Parse),
    [d, hidden]: [usize; 2],
) -> Result<DecisionHead, Error> {
    let name = path.strip_prefix(folder).unwrap_or(path);
    let mut tensors = HeadTensors::open(folder, &name.display().to_string(), parse)?;
    let of = &mut tensors;
    let option_norm = LayerNorm::take(of, "candidate_norm", hidden)?;
    let query_norm = LayerNorm::take(of, "query_norm", hidden)?;
    let mut product = |names: [&str; 2], size| Linear::take(&mut tensors, names, size);
    let head = DecisionHead::Segments {
        option_norm,
        query_norm,
        key: product(["key.weight", ""], [d, hidden])?,
        query: product(["query.weight", ""], [d, hidden])?,
        option_mlp: product(["candidate_mlp.weight", "candidate_mlp.bias"], [d, hidden])?,
        query_mlp: product(["query_mlp.weight", ""], [d, hidden])?,
        out: product(["scalar.weight", ""], [1, d])?,
    };
    tensors.finish()?;
    Ok(head)
}

/// Reads the numbers that are added to the logits of levels, if there is a file of such numbers.
fn score_offsets(folder: &Path) -> Result<std::collections::BTreeMap<usize, Vec<f32>>, Error> {
    if !folder.join(SCORE_BIAS).exists() {
        return Ok(Default::default());
    }
    let map = document(folder, SCORE_BIAS)?;
    let fields = Fields::new(SCORE_BIAS, &map);
    must_be(&fields, "format", "dev2-score-bias-v1")?;
    let offsets = fields.object("offsets")?.into_iter().flatten();
    let of_levels = |(levels, numbers): (&String, &Value)| {
        let n = levels.parse::<usize>().ok().filter(|n| *n <= LEVELS_MAX)?;
        let numbers = numbers.as_array()?.iter().map(Value::as_f64);
        let numbers: Vec<f32> = numbers
            .map(|x| x.map(|x| x as f32))
            .collect::<Option<_>>()?;
        let are_finite = numbers.iter().all(|x| x.is_finite());
        (numbers.len() == n && are_finite).then_some((n, numbers))
    };
    let wrong = || {
        fields.wrong(
            "offsets",
            "must be as many numbers as the levels they are for",
        )
    };
    offsets.map(|of| of_levels(of).ok_or_else(wrong)).collect()
}

/// Checks the version or the variant that a field names.
fn must_be(fields: &Fields<'_>, name: &str, value: &str) -> Result<(), Error> {
    match fields.text(name)? {
        Some(found) if found == value => Ok(()),
        Some(other) => Err(fields.unsupported(format!("`{name}` of {other:?}"))),
        None => Err(fields.wrong(name, format!("must be {value:?}"))),
    }
}

/// Returns the path that a field names, or a field of the object in it: a file inside the folder.
fn named(
    folder: &Path,
    fields: &Fields<'_>,
    name: &str,
    within: Option<&str>,
) -> Result<PathBuf, Error> {
    let (path, shown) = match within {
        None => (fields.text(name)?, name.to_owned()),
        Some(inner) => {
            let object = fields.object(name)?;
            let path = object.and_then(|of| of.get(inner)).and_then(Value::as_str);
            (path, format!("{name}.{inner}"))
        }
    };
    let path = Path::new(fields.required(&shown, path)?);
    let stays = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    match stays && !path.as_os_str().is_empty() {
        true => Ok(folder.join(path)),
        false => Err(fields.wrong(&shown, "must be a path inside the folder")),
    }
}

fn object_at(path: &Path) -> Result<Map<String, Value>, Error> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(wrong(&path.display().to_string(), "is no file"));
    };
    document(folder, &name.to_string_lossy())
}
