//! `config.json`: the shape of a model.

use prelude_core::{Attention, TokenId};
use serde_json::Value;

use crate::{
    AttnShape, ClassActivation, DType, Error, RopeConfig,
    family::{Biases, EncoderFamily, Family},
    fields,
    json::{self, Fields},
    modules::{DenseConfig, DenseDocument},
};

mod encoder;
mod experts;
mod gemma;
mod granite;
mod modern;
mod quantization;

pub use encoder::EncoderConfig;
pub use experts::ExpertsConfig;
pub use gemma::GemmaConfig;
pub use granite::GraniteConfig;
pub use modern::ModernConfig;
pub use quantization::Fp8Scales;

// Bounds far above any published model, and far below where a product of two overflows.
const HIDDEN_MAX: usize = 1 << 17;
const INTERMEDIATE_MAX: usize = 1 << 20;
const LAYERS_MAX: usize = 1 << 10;
const HEADS_MAX: usize = 1 << 10;
const HEAD_DIM_MAX: usize = 1 << 10;
const VOCAB_MAX: usize = 1 << 22;
const POSITIONS_MAX: usize = 1 << 24;
const LABELS_MAX: usize = 1 << 20;

/// A model's shape, as `config.json` says it. Every field has been checked.
///
/// Both styles are read: `rope_theta`, `rope_scaling` and `torch_dtype` of older checkpoints,
/// `rope_parameters` and `dtype` of newer ones.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// First of `architectures`, such as `Qwen3ForCausalLM`.
    pub architecture: String,
    /// `H`: width of hidden states.
    pub hidden_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// `Hq`: query heads.
    pub num_attention_heads: usize,
    /// `Hkv`: key-value heads, a divisor of the query heads.
    pub num_key_value_heads: usize,
    /// `D`: size of a head, even; `hidden / heads` if the file does not say.
    pub head_dim: usize,
    /// `I`: width of the MLP.
    pub intermediate_size: usize,
    /// `V`: rows of the embedding matrix. A tokenizer may use fewer.
    pub vocab_size: usize,
    /// Longest text, in tokens, that the model is meant for and computed exactly.
    pub max_position_embeddings: usize,
    /// The tokens of a prompt that each of its tokens sees.
    pub attention: Attention,
    /// Added to the mean square inside the root of RMS norms.
    pub rms_norm_eps: f32,
    /// The projections that have biases.
    pub biases: Biases,
    /// True if each head of queries and keys is normalised.
    pub qk_norm: bool,
    /// True if the output head is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Element type that the weights were saved in.
    pub dtype: Option<DType>,
    /// The form of the scales of matrices in fp8, if the file names one.
    pub fp8: Option<Fp8Scales>,
    /// Rotary embeddings.
    pub rope: RopeConfig,
    /// Names of the classes of a classifier, in the order of its logits.
    pub labels: Vec<String>,
    /// The activation of a classifier's logits, by `problem_type`.
    pub class_activation: ClassActivation,
    /// The activation of a cross-encoder's score, if the file names one.
    pub pair_activation: Option<ClassActivation>,
    /// End tokens, possibly none.
    pub eos_token_ids: Vec<TokenId>,
    /// The rest of the shape, if the model is an encoder.
    pub encoder: Option<EncoderConfig>,
    /// The rest of the shape, if the model is a Gemma.
    pub gemma: Option<GemmaConfig>,
    /// The rest of the shape, if the model is a Granite.
    pub granite: Option<GraniteConfig>,
    /// The experts of a mixture's layers.
    pub experts: Option<ExpertsConfig>,
    /// Modules `Dense` behind the pooling of an embedder, which other files name.
    pub dense: Vec<DenseConfig>,
    /// Notes for the operator: fields of the file that are passed over.
    pub warnings: Vec<String>,
}

/// The documents beside the weights.
pub(crate) struct Companions<'a> {
    pub(crate) config: &'a [u8],
    pub(crate) generation: Option<&'a [u8]>,
    pub(crate) modules: Option<&'a [u8]>,
    pub(crate) pooling: Option<&'a [u8]>,
    pub(crate) normalize: Option<&'a [u8]>,
    pub(crate) dense: &'a [DenseDocument],
    pub(crate) logit_score: Option<&'a [u8]>,
}

impl ModelConfig {
    /// Reads and checks a `config.json`; `file` is its name in messages.
    ///
    /// # Errors
    /// [`Error::Json`]; [`Error::Architecture`] for a model that no definition computes;
    /// [`Error::Field`] for a value that is missing, malformed or out of range;
    /// [`Error::Unsupported`] for a field that [`fields::all`] says is refused: its neglect
    /// would give wrong numbers.
    pub fn from_json(file: &str, bytes: &[u8]) -> Result<Self, Error> {
        let map = json::object(file, bytes)?;
        let fields = Fields {
            file,
            path: "",
            map: &map,
        };
        let (architecture, note) = architecture(&fields)?;
        if let Some(family) = EncoderFamily::of(&architecture) {
            let mut config = encoder::read(file, &fields, (architecture, family))?;
            config.warnings.extend(note);
            return Ok(config);
        }
        let family = Family::of(&architecture)?;
        let mut warnings = fields::check_as(family.table(), file, &map)?;
        warnings.extend(note);
        family.check_model_type(&fields)?;
        let hidden_size = fields.required_count("hidden_size", HIDDEN_MAX)?;
        let layers = fields.required_count("num_hidden_layers", LAYERS_MAX)?;
        let attention = attention(&fields)?;
        let gemma = match family.is_gemma() {
            true => {
                gemma::check_attention(&fields, family)?;
                let looks_ahead = attention == Attention::Full;
                let size = (hidden_size, layers);
                Some(GemmaConfig::read(&fields, family, size, looks_ahead)?)
            }
            false => {
                check_layers(&fields)?;
                None
            }
        };
        let (heads, kv_heads, head_dim) = head_sizes(&fields, family, hidden_size)?;
        let max_positions = fields.required_count("max_position_embeddings", POSITIONS_MAX)?;
        let labels = labels(&fields)?;
        let window = family.window(&fields, POSITIONS_MAX)?;
        let served = window.map_or(max_positions, |window| window.min(max_positions));
        if served < max_positions {
            warnings.push(window_warning(file, served, max_positions));
        }
        let config = Self {
            architecture,
            hidden_size,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            intermediate_size: fields.required_count("intermediate_size", INTERMEDIATE_MAX)?,
            vocab_size: fields.required_count("vocab_size", VOCAB_MAX)?,
            max_position_embeddings: served,
            attention,
            rms_norm_eps: fields
                .number("rms_norm_eps", "in (0, 0.1]", |eps| eps > 0.0 && eps <= 0.1)?
                .unwrap_or(1e-6) as f32,
            biases: family.biases(&fields)?,
            qk_norm: family.has_qk_norm(),
            tie_word_embeddings: fields
                .boolean("tie_word_embeddings")?
                .unwrap_or_else(|| family.is_gemma()),
            dtype: dtype(&fields)?,
            fp8: fp8(&fields, &mut warnings)?,
            rope: gemma::rope(&fields, family, max_positions)?,
            class_activation: ClassActivation::of_classes(&fields, labels.len())?,
            pair_activation: ClassActivation::of_pairs(&fields)?,
            labels,
            eos_token_ids: fields.token_ids("eos_token_id")?,
            encoder: None,
            gemma,
            granite: GraniteConfig::of(&fields, family)?,
            experts: match family.has_experts() {
                true => Some(ExpertsConfig::read(&fields, layers)?),
                false => None,
            },
            dense: Vec::new(),
            warnings,
        };
        config.check_special_ids(&fields)?;
        Ok(config)
    }

    fn check_special_ids(&self, fields: &Fields<'_>) -> Result<(), Error> {
        let mut special = self.eos_token_ids.iter();
        match special.find(|&&id| id as usize >= self.vocab_size) {
            None => Ok(()),
            Some(id) => Err(fields.wrong(
                "eos_token_id",
                format!("{id} is outside the vocabulary of {}", self.vocab_size),
            )),
        }
    }

    /// Returns the number of ids that tokens have: those of an encoder say their type as well.
    #[must_use]
    pub fn num_ids(&self) -> usize {
        let types = self.encoder.as_ref().map_or(1, |of| of.token_types);
        self.vocab_size * types
    }

    /// Returns the experts of a layer, if it has them in place of one MLP.
    #[must_use]
    pub fn experts_of(&self, layer: usize) -> Option<&ExpertsConfig> {
        let experts = self.experts.as_ref();
        experts.filter(|experts| experts.layers.get(layer) == Some(&true))
    }

    /// Returns the length of an embedding before it is cut: that of a hidden state, or what the
    /// last module `Dense` makes of it.
    #[must_use]
    pub fn embedding_size(&self) -> usize {
        self.dense.last().map_or(self.hidden_size, |of| of.outputs)
    }

    /// Returns the shape of every layer's attention.
    #[must_use]
    pub fn attn_shape(&self) -> AttnShape {
        let gemma = self.gemma.as_ref();
        let scale = match &self.granite {
            Some(granite) => granite.attention_multiplier as f32,
            // The scale follows from the configured head size, which need not be hidden / heads.
            None => (self.head_dim as f64).powf(-0.5) as f32,
        };
        AttnShape {
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            scale: gemma.map_or(scale, |gemma| gemma.attention_scale),
            soft_cap: gemma.and_then(|gemma| gemma.attention_cap),
            attention: self.attention,
        }
    }
}

/// Returns the form of weights in fp8, if the file names one, and notes what that means.
fn fp8(fields: &Fields<'_>, warnings: &mut Vec<String>) -> Result<Option<Fp8Scales>, Error> {
    let fp8 = quantization::read(fields, warnings)?;
    if fp8.is_some() {
        warnings.push(format!("{}: {WIDENED}", fields.file));
    }
    Ok(fp8)
}

/// A note for the operator about weights in fp8.
const WIDENED: &str = "weights in fp8 are widened when they are loaded, and activations are not \
     rounded to fp8, unless quantization to fp8 is asked for";

/// Returns a warning that only texts up to the window are served: up to it, attention that looks
/// back no further sees the whole text.
fn window_warning(file: &str, served: usize, max_positions: usize) -> String {
    format!(
        "{file}: texts of up to {served} tokens are served, not {max_positions}: attention over a \
         sliding window (`sliding_window`) is not computed, and within one it is the same"
    )
}

/// Returns the numbers of query and of key-value heads, and the size of a head.
fn head_sizes(
    fields: &Fields<'_>,
    family: Family,
    hidden_size: usize,
) -> Result<(usize, usize, usize), Error> {
    let heads = fields.required_count("num_attention_heads", HEADS_MAX)?;
    if family.is_gemma() {
        // Transformers' defaults are those of one size, and published files name both.
        fields.required_count("head_dim", HEAD_DIM_MAX)?;
        fields.required_count("num_key_value_heads", HEADS_MAX)?;
    }
    let kv_heads = fields
        .count("num_key_value_heads", HEADS_MAX)?
        .unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        return Err(fields.wrong(
            "num_key_value_heads",
            format!("must divide the {heads} query heads, not be {kv_heads}"),
        ));
    }
    let head_dim = match fields.count("head_dim", HEAD_DIM_MAX)? {
        Some(dim) => dim,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            let what = format!(
                "is missing, and hidden size {hidden_size} is no multiple of {heads} heads"
            );
            return Err(fields.wrong("head_dim", what));
        }
    };
    if !head_dim.is_multiple_of(2) || head_dim > HEAD_DIM_MAX {
        let what =
            format!("must be even and at most {HEAD_DIM_MAX}, not {head_dim}: RoPE rotates pairs");
        return Err(fields.wrong("head_dim", what));
    }
    Ok((heads, kv_heads, head_dim))
}

/// Returns the attention of a decoder, by either of the fields with which embedders say that they
/// look ahead.
fn attention(fields: &Fields<'_>) -> Result<Attention, Error> {
    let looks_ahead = fields.boolean("is_causal")? == Some(false)
        || fields.boolean("use_bidirectional_attention")? == Some(true);
    Ok(match looks_ahead {
        true => Attention::Full,
        false => Attention::Causal,
    })
}

/// Refuses layers that do not attend to all of their context.
fn check_layers(fields: &Fields<'_>) -> Result<(), Error> {
    let kinds = fields.array("layer_types")?.unwrap_or_default();
    match kinds.iter().find(|k| k.as_str() != Some("full_attention")) {
        Some(kind) => Err(fields.unsupported(format!("layer type {kind}"))),
        None => Ok(()),
    }
}

/// Returns the model's class, and a note for the operator where the file does not name it: the body
/// of its `model_type`, which transformers takes there too.
fn architecture(fields: &Fields<'_>) -> Result<(String, Option<String>), Error> {
    let list = fields.array("architectures")?.unwrap_or_default();
    match list.first() {
        Some(Value::String(name)) => return Ok((name.clone(), None)),
        Some(_) => return Err(fields.wrong("architectures", "must be a list of names")),
        None => {}
    }
    let model_type = fields.text("model_type")?;
    let body = model_type.and_then(|name| EncoderFamily::body(name).or_else(|| Family::body(name)));
    let Some(body) = body else {
        return Err(fields.wrong("architectures", "is missing"));
    };
    let note = format!(
        "{}: `architectures` is missing; the model is taken for the body {body}, by `model_type`",
        fields.file
    );
    Ok((body, Some(note)))
}

fn dtype(fields: &Fields<'_>) -> Result<Option<DType>, Error> {
    let name = match fields.text("dtype")? {
        Some(name) => Some(name),
        None => fields.text("torch_dtype")?,
    };
    match name {
        None | Some("auto") => Ok(None),
        Some("bfloat16") => Ok(Some(DType::Bf16)),
        Some("float16") => Ok(Some(DType::F16)),
        Some("float32") => Ok(Some(DType::F32)),
        Some(other) => Err(fields.unsupported(format!("element type {other:?}"))),
    }
}

/// Class names by number. Keys are numbers written as strings, in any order: "10" follows "9".
fn labels(fields: &Fields<'_>) -> Result<Vec<String>, Error> {
    let Some(map) = fields.object("id2label")? else {
        // transformers names two classes if the file names none.
        let count = fields.count("num_labels", LABELS_MAX)?.unwrap_or(2);
        return Ok((0..count).map(|i| format!("LABEL_{i}")).collect());
    };
    if map.is_empty() || map.len() > LABELS_MAX {
        return Err(fields.wrong(
            "id2label",
            format!("must name 1..={LABELS_MAX} classes, not {}", map.len()),
        ));
    }
    let mut labels = vec![None; map.len()];
    for (key, label) in map {
        let slot = key
            .parse()
            .ok()
            .and_then(|i: usize| labels.get_mut(i))
            .filter(|slot| slot.is_none());
        let (Some(slot), Some(label)) = (slot, label.as_str()) else {
            return Err(fields.wrong(
                "id2label",
                format!(
                    "must map each of \"0\"..=\"{}\" to a name; entry {key:?} does not fit",
                    map.len() - 1
                ),
            ));
        };
        *slot = Some(label.to_owned());
    }
    Ok(labels
        .into_iter()
        .map(|label| label.expect("as many distinct slots were filled as there are"))
        .collect())
}

#[cfg(test)]
mod tests;
