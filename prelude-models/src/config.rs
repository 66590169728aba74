//! `config.json`: the shape of a model.

use prelude_core::{Attention, TokenId};
use serde_json::Value;

use crate::{
    Activation, AttnShape, ClassActivation, DType, Error, RopeConfig,
    families::{self, Biases, Family},
    fields,
    json::{self, Fields},
    modules::{DenseConfig, DenseDocument},
};

mod encoder;
mod experts;
mod local;
mod quantization;
mod scales;

pub use encoder::EncoderConfig;
pub use experts::ExpertsConfig;
pub use local::LocalLayers;
pub use quantization::Fp8Scales;
pub use scales::Scales;

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
    /// The family of the architecture.
    pub(crate) family: &'static Family,
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
    /// Added inside the root of norms, to the mean square or the variance.
    pub norm_eps: f32,
    /// The projections that have biases.
    pub biases: Biases,
    /// Factors and bounds.
    pub scales: Scales,
    /// The activation of the MLP's gate in a decoder, if that is not SiLU.
    pub gate: Option<Activation>,
    /// True if the output head is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Element type that the weights were saved in.
    pub dtype: Option<DType>,
    /// The form of the scales of matrices in fp8, if the file names one.
    pub fp8: Option<Fp8Scales>,
    /// Rotary embeddings, of layers that see whole texts.
    pub rope: RopeConfig,
    /// Layers whose tokens see a window, if there are such.
    pub local: Option<LocalLayers>,
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
    /// The experts of a mixture's layers.
    pub experts: Option<ExpertsConfig>,
    /// Modules `Dense` behind the pooling of an embedder, which other files name.
    pub dense: Vec<DenseConfig>,
    /// Notes for the operator: fields of the file that are passed over.
    pub warnings: Vec<String>,
}

/// The documents beside the weights.
#[derive(Default)]
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
        let fields = Fields::new(file, &map);
        let (architecture, note) = architecture(&fields)?;
        let family = families::of(&architecture)?;
        let mut warnings = fields::check_as(family.table(), file, &map)?;
        warnings.extend(note);
        family.check_model_type(&fields)?;
        Self::read(&fields, (architecture, family), warnings)
    }

    /// Reads the fields of a family.
    fn read(
        fields: &Fields<'_>,
        (architecture, family): (String, &'static Family),
        mut warnings: Vec<String>,
    ) -> Result<Self, Error> {
        let hidden_size = fields.required_count(family.shape.hidden, HIDDEN_MAX)?;
        let layers = fields.required_count(family.shape.layers, LAYERS_MAX)?;
        let attention = attention(fields, family)?;
        let (heads, kv_heads, head_dim) = head_sizes(fields, family, hidden_size)?;
        let positions = fields.required_count("max_position_embeddings", POSITIONS_MAX)?;
        let encoder = family
            .encoder
            .as_ref()
            .map(|parts| EncoderConfig::read(fields, parts, &architecture, positions))
            .transpose()?;
        let before_first = encoder.as_ref().map_or(0, |of| of.position_offset);
        let [rope, local_rope] = local::ropes(fields, family, positions)?;
        let (scales, residual) = Scales::read(fields, family, hidden_size)?;
        let labels = labels(fields)?;
        let config = Self {
            architecture,
            family,
            hidden_size,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            intermediate_size: fields
                .required_count(family.shape.intermediate, INTERMEDIATE_MAX)?,
            vocab_size: fields.required_count("vocab_size", VOCAB_MAX)?,
            max_position_embeddings: served(fields, family, positions, &mut warnings)?
                - before_first,
            attention,
            norm_eps: norm_eps(fields, family, residual)?,
            biases: family.biases(fields)?,
            scales,
            gate: gate(fields, family)?,
            tie_word_embeddings: match encoder {
                None => fields
                    .boolean("tie_word_embeddings")?
                    .unwrap_or(family.is_tied),
                Some(_) => false,
            },
            dtype: dtype(fields)?,
            fp8: fp8(fields, &mut warnings)?,
            rope,
            local: LocalLayers::of(fields, family, (layers, attention), local_rope)?,
            class_activation: ClassActivation::of_classes(fields, labels.len())?,
            pair_activation: ClassActivation::of_pairs(fields)?,
            labels,
            eos_token_ids: match encoder {
                None => fields.token_ids("eos_token_id")?,
                Some(_) => Vec::new(),
            },
            encoder,
            experts: family
                .has_experts
                .then(|| ExpertsConfig::read(fields, layers))
                .transpose()?,
            dense: Vec::new(),
            warnings,
        };
        config.check_special_ids(fields)?;
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

    /// Returns the beginning of the names of the body's tensors. `contains` says whether there is a
    /// tensor.
    pub(crate) fn prefix(&self, contains: impl Fn(&str) -> bool) -> &'static str {
        match self.encoder.as_ref().and_then(|of| of.markers) {
            Some(_) => "encoder.",
            None => self.family.prefix(contains),
        }
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
        // The scale follows from the configured head size, which need not be hidden / heads.
        let of_heads = || (self.head_dim as f64).powf(-0.5) as f32;
        AttnShape {
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            scale: self.scales.attention.unwrap_or_else(of_heads),
            soft_cap: self.scales.attention_cap,
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

/// Returns the number of positions that are served, and notes if a window bounds it: up to the window,
/// attention that looks back no further sees the whole text.
fn served(
    fields: &Fields<'_>,
    family: &Family,
    positions: usize,
    warnings: &mut Vec<String>,
) -> Result<usize, Error> {
    let window = family.window(fields, POSITIONS_MAX)?;
    let served = window.map_or(positions, |window| window.min(positions));
    if served < positions {
        warnings.push(format!(
            "{}: texts of up to {served} tokens are served, not {positions}: attention over a \
             sliding window (`sliding_window`) is not computed, and within one it is the same",
            fields.file
        ));
    }
    Ok(served)
}

/// Returns what norms add inside the root. Where hidden states are divided by the factor `residual`,
/// norms are those of the states themselves if it is divided by the square.
fn norm_eps(fields: &Fields<'_>, family: &Family, residual: f64) -> Result<f32, Error> {
    let (name, default) = family.eps;
    let named = match name {
        Some(name) => fields.number(name, "in (0, 0.1]", |eps| eps > 0.0 && eps <= 0.1)?,
        None => None,
    };
    let eps = named.unwrap_or(default) as f32;
    Ok((f64::from(eps) / (residual * residual)) as f32)
}

/// Returns the numbers of query and of key-value heads, and the size of a head.
fn head_sizes(
    fields: &Fields<'_>,
    family: &Family,
    hidden_size: usize,
) -> Result<(usize, usize, usize), Error> {
    let heads = fields.required_count(family.shape.heads, HEADS_MAX)?;
    if family.encoder.is_some() {
        if !hidden_size.is_multiple_of(2 * heads) {
            let what = format!(
                "must divide the hidden size {hidden_size} into heads of an even size, not be \
                 {heads}"
            );
            return Err(fields.wrong(family.shape.heads, what));
        }
        return Ok((heads, heads, hidden_size / heads));
    }
    if family.gemma.is_some() {
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

/// Returns the attention of a model: a decoder's by either of the fields with which embedders say that
/// they look ahead.
fn attention(fields: &Fields<'_>, family: &Family) -> Result<Attention, Error> {
    const AHEAD: &str = "use_bidirectional_attention";
    if family.encoder.is_some() {
        return Ok(Attention::Full);
    }
    let is_ahead = fields.boolean(AHEAD)? == Some(true);
    if let Some(gemma) = &family.gemma
        && is_ahead
        && !gemma.may_look_ahead
    {
        return Err(fields.unsupported(format!("`{AHEAD}` of true in a {}", gemma.title)));
    }
    let is_causal = fields.boolean("is_causal")? != Some(false);
    Ok(match is_causal && !is_ahead {
        true => Attention::Causal,
        false => Attention::Full,
    })
}

/// Returns the activation of the MLP's gate, if a file of the family names one.
fn gate(fields: &Fields<'_>, family: &Family) -> Result<Option<Activation>, Error> {
    let read = |_| encoder::activation(fields, "hidden_activation", Activation::GeluTanh);
    family.gemma.as_ref().map(read).transpose()
}

/// Returns the model's class, and a note for the operator where the file does not name it: the body
/// of its `model_type`, which transformers takes there too.
pub(crate) fn architecture(fields: &Fields<'_>) -> Result<(String, Option<String>), Error> {
    let list = fields.array("architectures")?.unwrap_or_default();
    match list.first() {
        Some(Value::String(name)) => return Ok((name.clone(), None)),
        Some(_) => return Err(fields.wrong("architectures", "must be a list of names")),
        None => {}
    }
    let model_type = fields.text("model_type")?;
    let Some(body) = model_type.and_then(families::body) else {
        return Err(fields.wrong("architectures", "is missing"));
    };
    let note = format!(
        "{}: `architectures` is missing; the model is taken for the body {body}, by `model_type`",
        fields.file
    );
    Ok((body.to_owned(), Some(note)))
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
