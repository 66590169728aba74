//! Families of models: one value for each, in a file of its own.
//!
//! A value says which names a family has among architectures, which fields of `config.json` differ
//! from those of other families, which parts a layer has and how its tensors are called. Reading
//! `config.json`, listing a checkpoint's tensors, loading and the guide's table of fields follow
//! from it.

mod bert;
mod distilbert;
mod gemma;
mod granite;
mod llama;
mod mistral;
mod modernbert;
mod mpnet;
mod qwen;

use crate::{
    Activation, Error,
    field::{ENCODERS, Field},
    json::Fields,
};

pub(crate) use qwen::QWEN3;

/// All families, those of encoders first.
pub(crate) const FAMILIES: [&Family; 14] = [
    &bert::BERT,
    &bert::ROBERTA,
    &bert::XLM_ROBERTA,
    &distilbert::DISTILBERT,
    &mpnet::MPNET,
    &modernbert::MODERNBERT,
    &llama::LLAMA,
    &mistral::MISTRAL,
    &qwen::QWEN2,
    &QWEN3,
    &qwen::QWEN3_MOE,
    &gemma::GEMMA2,
    &gemma::GEMMA3,
    &granite::GRANITE,
];

/// The projections of a layer that have biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Biases {
    /// True of queries, keys and values.
    pub qkv: bool,
    /// True of attention's output.
    pub o: bool,
    /// True of the MLP's products.
    pub mlp: bool,
}

/// A family: models whose layers have the same parts and whose tensors have the same names.
#[derive(Debug, PartialEq)]
pub(crate) struct Family {
    /// The beginning of the names of architectures.
    pub(crate) name: &'static str,
    /// The names of architectures, that of the bare body last.
    pub(crate) architectures: &'static [&'static str],
    /// The name by which transformers chooses the class.
    pub(crate) model_type: &'static str,
    /// The rows of the table of fields that differ from those of other decoders or encoders.
    pub(crate) own_fields: &'static [Field],
    /// The names of the shape's fields.
    pub(crate) shape: ShapeFields,
    /// The field of what norms add inside the root, if there is one, and the default.
    pub(crate) eps: (Option<&'static str>, f64),
    /// The biases of queries, keys and values, of attention's output, and of the MLP's products.
    pub(crate) biases: [Bias; 3],
    /// True if the output head is the embedding matrix where the file does not say.
    pub(crate) is_tied: bool,
    /// True if heads of queries and keys are normalised.
    pub(crate) qk_norm: bool,
    /// True if the field `sliding_window` bounds the texts that are served, 4096 if the file does not
    /// say.
    pub(crate) is_served_in_window: bool,
    /// The layers whose tokens see a window, if the family has such.
    pub(crate) local: Option<LocalFields>,
    /// True if layers have experts.
    pub(crate) has_experts: bool,
    /// The parts that Gemmas alone have.
    pub(crate) gemma: Option<GemmaParts>,
    /// True if embeddings, scores, halves of layers and logits have factors.
    pub(crate) has_factors: bool,
    /// The beginning of the names of the body's tensors where a head is saved with it.
    pub(crate) prefix: &'static str,
    /// The table of words.
    pub(crate) words: &'static str,
    /// Tensors that a checkpoint may have and that no model of the family reads.
    pub(crate) unread: Unread,
    /// The head that classifies texts.
    pub(crate) text_classes: ClassHead,
    /// The head that classifies tokens.
    pub(crate) token_classes: ClassHead,
    /// The parts that encoders alone have.
    pub(crate) encoder: Option<EncoderParts>,
}

/// Names of fields of `config.json`.
#[derive(Debug, PartialEq)]
pub(crate) struct ShapeFields {
    pub(crate) hidden: &'static str,
    pub(crate) intermediate: &'static str,
    pub(crate) layers: &'static str,
    pub(crate) heads: &'static str,
}

/// The presence of a bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bias {
    Never,
    Always,
    /// A field says it, and false is the default.
    Field(&'static str),
}

impl Bias {
    pub(crate) fn read(self, fields: &Fields<'_>) -> Result<bool, Error> {
        match self {
            Self::Never => Ok(false),
            Self::Always => Ok(true),
            Self::Field(name) => Ok(fields.boolean(name)?.unwrap_or(false)),
        }
    }
}

/// The fields of layers whose tokens see a window, of which `layer_types` is one in every family.
#[derive(Debug, PartialEq)]
pub(crate) struct LocalFields {
    /// The field of the window, and its default.
    pub(crate) window: (&'static str, usize),
    /// True if the window must not be null.
    pub(crate) has_window: bool,
    /// The number added to a layer's index before it is divided by `every`.
    pub(crate) first: usize,
    /// Layers whose number this divides see the whole text: the field, if there is one, and the
    /// default.
    pub(crate) every: (Option<&'static str>, usize),
    /// Rotations of layers that see whole texts and of those with a window, if they differ.
    pub(crate) ropes: Option<[RopeFields; 2]>,
}

/// The rotary embeddings of one kind of layers: the field of older files that names the base, and the
/// base by default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RopeFields {
    pub(crate) theta: &'static str,
    pub(crate) default: f64,
}

/// The parts of a decoder that Gemmas alone have, beside norms behind the halves of a layer.
#[derive(Debug, PartialEq)]
pub(crate) struct GemmaParts {
    /// The family's name in messages.
    pub(crate) title: &'static str,
    /// The bound of attention's scores by default; if there is none, the field is refused.
    pub(crate) attention_cap: Option<f32>,
    /// The bound of logits by default.
    pub(crate) logit_cap: Option<f32>,
    /// True if tokens may see later ones.
    pub(crate) may_look_ahead: bool,
}

/// A head that classifies: `score · norm(f(dense · h))`, of which a family has all or some.
#[derive(Debug, PartialEq)]
pub(crate) struct ClassHead {
    pub(crate) dense: Option<&'static str>,
    pub(crate) norm: Option<&'static str>,
    pub(crate) score: &'static str,
    /// True if the last product has a bias.
    pub(crate) score_bias: bool,
}

/// The parts of a family of encoders that decoders do not have.
#[derive(Debug, PartialEq)]
pub(crate) struct EncoderParts {
    /// The field of the activation in a layer's second half.
    pub(crate) activation: &'static str,
    /// The place of the first position in the table of positions, if there is one.
    pub(crate) positions: Option<FirstPosition>,
    /// True if a vector for the type of each token is added.
    pub(crate) has_types: bool,
    /// Buckets of distances between tokens that add to attention's scores; 0 if none do.
    pub(crate) buckets: usize,
    /// The norm of embeddings.
    pub(crate) norm: &'static str,
    /// The norm behind the last layer, if norms lie before the halves of a layer and not behind them.
    pub(crate) last_norm: Option<&'static str>,
    /// The biases of norms.
    pub(crate) norm_bias: Bias,
    pub(crate) layer: LayerNames,
    /// The bias of the first product of a head that classifies.
    pub(crate) class_bias: Bias,
    /// The activation behind that product; a field names it if there is none here.
    pub(crate) class_activation: Option<Activation>,
    /// The field that says from which hidden states the classes of a text are read, if there is one.
    pub(crate) class_pooling: Option<&'static str>,
}

/// Names of the tensors of an encoder's layer, without `weight` and `bias`.
#[derive(Debug, PartialEq)]
pub(crate) struct LayerNames {
    /// The list of layers.
    pub(crate) layers: &'static str,
    /// Queries, keys and values, in one matrix or three.
    pub(crate) qkv: &'static [&'static str],
    pub(crate) o: &'static str,
    /// The norm behind attention or before it; the first layer has none before it.
    pub(crate) attention_norm: &'static str,
    /// The first product of the second half: gate and up in one, if norms lie before the halves.
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
    /// The norm behind the second half, or before it.
    pub(crate) mlp_norm: &'static str,
}

/// The row of the position table that is the first position's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FirstPosition {
    Row(usize),
    /// The row behind that of the padding token.
    BehindPadding,
}

/// Names of tensors that the reference does not read either where they are not among the model's.
#[derive(Debug, PartialEq)]
pub(crate) struct Unread {
    /// Whole names.
    pub(crate) names: &'static [&'static str],
    /// Beginnings of names.
    pub(crate) starts: &'static [&'static str],
    /// Beginnings of names that embedders do not read.
    pub(crate) starts_of_embedders: &'static [&'static str],
    /// Parts of names.
    pub(crate) parts: &'static [&'static str],
    /// Ends of names.
    pub(crate) ends: &'static [&'static str],
}

/// A decoder without anything that distinguishes families: what a family's value does not say.
const DECODER: Family = Family {
    name: "",
    architectures: &[],
    model_type: "",
    own_fields: &[],
    shape: SHAPE,
    eps: (Some("rms_norm_eps"), 1e-6),
    biases: [
        Bias::Field("attention_bias"),
        Bias::Field("attention_bias"),
        Bias::Never,
    ],
    is_tied: false,
    qk_norm: false,
    is_served_in_window: false,
    local: None,
    has_experts: false,
    gemma: None,
    has_factors: false,
    prefix: "model.",
    words: "embed_tokens",
    unread: Unread {
        // The head of a language model: tied checkpoints often hold a copy of the embedding matrix, and
        // bodies saved from a language model keep the head.
        names: &[
            "lm_head.weight",
            "lm_head.weight_scale",
            "lm_head.weight_scale_inv",
            "lm_head.input_scale",
        ],
        starts: &[],
        starts_of_embedders: &[],
        // Llama's first checkpoints hold frequencies, which follow from the configuration.
        parts: &["rotary_emb."],
        // Scales with which other servers keep queries, keys and values in fp8, as several releases of
        // llm-compressor and of transformers name them.
        ends: &[
            ".self_attn.q_scale",
            ".self_attn.k_scale",
            ".self_attn.v_scale",
            ".self_attn.kv_scale",
            ".self_attn.q_proj.output_scale",
            ".self_attn.k_proj.output_scale",
            ".self_attn.v_proj.output_scale",
        ],
    },
    text_classes: ClassHead {
        dense: None,
        norm: None,
        score: "score",
        score_bias: false,
    },
    token_classes: ClassHead {
        dense: None,
        norm: None,
        score: "score",
        score_bias: true,
    },
    encoder: None,
};

/// An encoder without its parts.
const ENCODER: Family = Family {
    words: "embeddings.word_embeddings",
    unread: Unread {
        names: &[],
        // Heads that predict words, and the pooler of a bare body: neither embeddings nor classes read
        // them.
        starts: &[
            "cls.",
            "lm_head.",
            "vocab_layer_norm.",
            "vocab_projector.",
            "vocab_transform.",
            "pooler.",
        ],
        starts_of_embedders: &[],
        parts: &[],
        // Buffers that count positions and name types, which transformers saved before 4.31.
        ends: &["embeddings.position_ids", "embeddings.token_type_ids"],
    },
    eps: (Some("layer_norm_eps"), 1e-12),
    biases: [Bias::Always; 3],
    token_classes: ClassHead {
        dense: None,
        norm: None,
        score: "classifier",
        score_bias: true,
    },
    ..DECODER
};

const SHAPE: ShapeFields = ShapeFields {
    hidden: "hidden_size",
    intermediate: "intermediate_size",
    layers: "num_hidden_layers",
    heads: "num_attention_heads",
};

/// Returns the family of an architecture, such as `Qwen3ForCausalLM`.
///
/// # Errors
/// [`Error::Architecture`] for a name of no family.
pub(crate) fn of(architecture: &str) -> Result<&'static Family, Error> {
    let is_of = |family: &&&Family| family.architectures.contains(&architecture);
    let found = FAMILIES.iter().find(is_of).copied();
    found.ok_or_else(|| Error::Architecture {
        name: architecture.to_owned(),
        known: format!(
            "the decoders {} and the encoders {}",
            known(|family| family.encoder.is_none()),
            known(|family| family.encoder.is_some())
        ),
    })
}

/// Returns the architecture of the bare body with this `model_type`.
pub(crate) fn body(model_type: &str) -> Option<&'static str> {
    let family = FAMILIES.iter().find(|of| of.model_type == model_type)?;
    family.architectures.last().copied()
}

/// Lists families.
fn known(is_listed: impl Fn(&Family) -> bool) -> String {
    let listed = FAMILIES.iter().filter(|family| is_listed(family));
    listed.map(|of| of.name).collect::<Vec<_>>().join(", ")
}

impl Family {
    /// Returns the name by which the table of fields knows what all decoders or all encoders have.
    pub(crate) const fn shared_table(&self) -> &'static str {
        match self.encoder {
            None => "config.json",
            Some(_) => ENCODERS,
        }
    }

    /// Returns the name by which the table of fields knows the family's `config.json`.
    pub(crate) fn table(&self) -> &'static str {
        match self.own_fields {
            [] => self.shared_table(),
            [row, ..] => row.file,
        }
    }

    /// Checks that `model_type`, by which transformers chooses the class, names this family.
    pub(crate) fn check_model_type(&self, fields: &Fields<'_>) -> Result<(), Error> {
        match fields.text("model_type")? {
            Some(other) if other != self.model_type => Err(fields.unsupported(format!(
                "`model_type` of {other:?} beside an architecture of {}",
                self.name
            ))),
            _ => Ok(()),
        }
    }

    /// Returns true for encoders with norms before the halves of a layer, and gates in the second.
    pub(crate) fn has_pre_norms(&self) -> bool {
        self.encoder
            .as_ref()
            .is_some_and(|parts| parts.last_norm.is_some())
    }

    /// Returns the beginning of the names of the body's tensors: a bare body is saved without one.
    /// `contains` says whether there is a tensor.
    pub(crate) fn prefix(&self, contains: impl Fn(&str) -> bool) -> &'static str {
        match contains(&format!("{}.weight", self.words)) {
            true => "",
            false => self.prefix,
        }
    }

    /// Returns true for a tensor that no model of the family reads, embedders or others.
    pub(crate) fn is_unread(&self, name: &str, embeds: bool) -> bool {
        let Unread {
            names,
            starts,
            starts_of_embedders,
            parts,
            ends,
        } = &self.unread;
        let own = name.strip_prefix(self.prefix).unwrap_or(name);
        let of_embedders = starts_of_embedders.iter().filter(|_| embeds);
        names.contains(&name)
            || starts
                .iter()
                .chain(of_embedders)
                .any(|start| own.starts_with(start))
            || parts.iter().any(|part| name.contains(part))
            || ends.iter().any(|end| name.ends_with(end))
    }

    /// Returns the projections that have biases.
    pub(crate) fn biases(&self, fields: &Fields<'_>) -> Result<Biases, Error> {
        let [qkv, o, mlp] = self.biases;
        Ok(Biases {
            qkv: qkv.read(fields)?,
            o: o.read(fields)?,
            mlp: mlp.read(fields)?,
        })
    }

    /// Returns the number of positions that attention looks back over, its own included, if that
    /// bounds the texts that are served.
    pub(crate) fn window(&self, fields: &Fields<'_>, max: usize) -> Result<Option<usize>, Error> {
        // The default of transformers, where the file does not say; null is no window.
        const DEFAULT: usize = 4096;
        match (
            self.is_served_in_window,
            fields.map.contains_key("sliding_window"),
        ) {
            (true, true) => fields.count("sliding_window", max),
            (true, false) => Ok(Some(DEFAULT)),
            (false, _) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
