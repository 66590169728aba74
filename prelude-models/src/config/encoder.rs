//! The part of an encoder's `config.json` that decoders do not have.

use prelude_core::Pooling;
use serde_json::Value;

use crate::{
    Activation, Error,
    families::{EncoderParts, FirstPosition},
    json::Fields,
};

/// Upper bound of the types of a token.
const TYPES_MAX: usize = 16;

/// The parts of an encoder's shape that decoders do not have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct EncoderConfig {
    /// The activation between the two products of a layer's second half.
    pub activation: Activation,
    /// Rows of the position table; 0 if there is none.
    pub position_rows: usize,
    /// Rows of the position table before the one of position 0.
    pub position_offset: usize,
    /// Types of tokens: text pairs have type 0 and type 1. A token of type `k` has the id that its
    /// word has, plus `k` times the vocabulary's size.
    pub token_types: usize,
    /// The number of layers that a decision model of options' markers has behind the encoder, if this
    /// is one. Its token types are those of questions.
    pub markers: Option<usize>,
    /// Buckets of distances between tokens that add to attention's scores; 0 if none do.
    pub relative_buckets: usize,
    /// True if norms have biases.
    pub norm_bias: bool,
    /// The hidden states from which the classes of a text are read.
    pub class_pooling: Pooling,
    /// True if the first product of the classification head has a bias.
    pub class_bias: bool,
    /// The activation between the two products of the classification head.
    pub class_activation: Activation,
}

impl EncoderConfig {
    /// Returns true if the classes of a text are read from the mean of its hidden states, so that
    /// single tokens have none.
    #[must_use]
    pub fn has_mean_classes(&self) -> bool {
        self.class_pooling == Pooling::Mean
    }

    /// Reads the fields of an encoder's parts; `rows` is `max_position_embeddings`.
    pub(super) fn read(
        fields: &Fields<'_>,
        parts: &EncoderParts,
        architecture: &str,
        rows: usize,
    ) -> Result<Self, Error> {
        let (position_rows, position_offset) = match parts.positions {
            None => (0, 0),
            Some(first) => (rows, position_offset(fields, first)?),
        };
        if position_rows > 0 && position_rows <= position_offset {
            let what = format!("must be above {position_offset}, the row of the first position");
            return Err(fields.wrong("max_position_embeddings", what));
        }
        let token_types = match parts.has_types {
            true => fields.count("type_vocab_size", TYPES_MAX)?.unwrap_or(2),
            false => 1,
        };
        Ok(Self {
            activation: activation(fields, parts.activation, Activation::Gelu)?,
            position_rows,
            position_offset,
            token_types,
            markers: None,
            relative_buckets: parts.buckets,
            norm_bias: parts.norm_bias.read(fields)?,
            class_pooling: match parts.class_pooling {
                None => Pooling::First,
                Some(name) => class_pooling(fields, name, architecture)?,
            },
            class_bias: parts.class_bias.read(fields)?,
            class_activation: match parts.class_activation {
                Some(known) => known,
                None => activation(fields, "classifier_activation", Activation::Gelu)?,
            },
        })
    }
}

/// Returns the rows of the position table before the one of position 0.
fn position_offset(fields: &Fields<'_>, first: FirstPosition) -> Result<usize, Error> {
    /// The padding token where the file does not say.
    const PADDING: u32 = 1;
    match first {
        FirstPosition::Row(row) => Ok(row),
        // No token is padding, in the words of old tools.
        FirstPosition::BehindPadding
            if fields.get("pad_token_id").and_then(Value::as_i64) == Some(-1) =>
        {
            Ok(0)
        }
        FirstPosition::BehindPadding => {
            let padding = fields.token_ids("pad_token_id")?;
            Ok(padding.first().copied().unwrap_or(PADDING) as usize + 1)
        }
    }
}

/// Returns the hidden states from which the classes of a text are read. The field is left in the files
/// of other heads too, which do not read it.
fn class_pooling(fields: &Fields<'_>, name: &str, architecture: &str) -> Result<Pooling, Error> {
    match fields.text(name)? {
        None | Some("cls") => Ok(Pooling::First),
        Some("mean") if architecture.ends_with("ForSequenceClassification") => Ok(Pooling::Mean),
        Some("mean") => Ok(Pooling::First),
        Some(other) => {
            let must = format!("must be \"cls\" or \"mean\", not {other:?}");
            Err(fields.wrong(name, must))
        }
    }
}

/// Returns the activation that a field names.
pub(super) fn activation(
    fields: &Fields<'_>,
    name: &str,
    default: Activation,
) -> Result<Activation, Error> {
    match fields.text(name)? {
        None => Ok(default),
        Some("gelu") => Ok(Activation::Gelu),
        Some("gelu_new" | "gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some("relu") => Ok(Activation::Relu),
        Some(other) => Err(fields.unsupported(format!("`{name}` of {other:?}"))),
    }
}
