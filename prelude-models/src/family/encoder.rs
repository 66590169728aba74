//! Names of encoders' architectures, and what distinguishes their families.

use serde_json::Value;

use crate::{Activation, Error, fields, json::Fields};

/// A family of encoders: models whose tensors have the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EncoderFamily {
    Bert,
    Roberta,
    XlmRoberta,
    DistilBert,
    MpNet,
    ModernBert,
}

const FAMILIES: [EncoderFamily; 6] = [
    EncoderFamily::Bert,
    EncoderFamily::Roberta,
    EncoderFamily::XlmRoberta,
    EncoderFamily::DistilBert,
    EncoderFamily::MpNet,
    EncoderFamily::ModernBert,
];

/// Ends of the names of a family's architectures: a bare body, a body with a head that is left
/// unread, classifiers of texts and of tokens.
const CLASSES: [&str; 4] = [
    "Model",
    "ForMaskedLM",
    "ForSequenceClassification",
    "ForTokenClassification",
];

impl EncoderFamily {
    /// Returns the family of an architecture, such as `BertModel`; `None` for a name of no family.
    pub(crate) fn of(architecture: &str) -> Option<Self> {
        FAMILIES.into_iter().find(|family| {
            let class = architecture.strip_prefix(family.name());
            class.is_some_and(|class| CLASSES.contains(&class))
        })
    }

    /// Returns the beginning of the names of the family's architectures.
    const fn name(self) -> &'static str {
        match self {
            Self::Bert => "Bert",
            Self::Roberta => "Roberta",
            Self::XlmRoberta => "XLMRoberta",
            Self::DistilBert => "DistilBert",
            Self::MpNet => "MPNet",
            Self::ModernBert => "ModernBert",
        }
    }

    /// Returns the name by which transformers chooses the class.
    const fn model_type(self) -> &'static str {
        match self {
            Self::Bert => "bert",
            Self::Roberta => "roberta",
            Self::XlmRoberta => "xlm-roberta",
            Self::DistilBert => "distilbert",
            Self::MpNet => "mpnet",
            Self::ModernBert => "modernbert",
        }
    }

    /// Returns the architecture of the bare body with this `model_type`.
    pub(crate) fn body(model_type: &str) -> Option<String> {
        let family = FAMILIES.iter().find(|of| of.model_type() == model_type)?;
        Some(format!("{}Model", family.name()))
    }

    /// Returns the name by which the table of fields knows the family's `config.json`.
    pub(crate) const fn table(self) -> &'static str {
        match self {
            Self::Bert | Self::Roberta | Self::XlmRoberta => fields::ENCODERS,
            Self::DistilBert => fields::DISTILBERTS,
            Self::MpNet => fields::MPNETS,
            Self::ModernBert => fields::MODERNBERTS,
        }
    }

    /// Checks that `model_type`, by which transformers chooses the class, names this family.
    pub(crate) fn check_model_type(self, fields: &Fields<'_>) -> Result<(), Error> {
        match fields.text("model_type")? {
            Some(other) if other != self.model_type() => Err(fields.unsupported(format!(
                "`model_type` of {other:?} beside an architecture of {}",
                self.name()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the beginning of the names of the body's tensors where a head is saved with it.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Bert => "bert.",
            Self::Roberta | Self::XlmRoberta => "roberta.",
            Self::DistilBert => "distilbert.",
            Self::MpNet => "mpnet.",
            Self::ModernBert => "model.",
        }
    }

    /// Returns the activation between the two products of the head that classifies texts. ModernBERT's
    /// configuration has its own.
    pub(crate) const fn head_activation(self) -> Activation {
        match self {
            Self::DistilBert => Activation::Relu,
            _ => Activation::Tanh,
        }
    }

    /// Returns the names of the two products of the head that classifies texts.
    pub(crate) const fn head_names(self) -> [&'static str; 2] {
        match self {
            Self::Bert => ["bert.pooler.dense", "classifier"],
            Self::Roberta | Self::XlmRoberta | Self::MpNet => {
                ["classifier.dense", "classifier.out_proj"]
            }
            Self::DistilBert => ["pre_classifier", "classifier"],
            Self::ModernBert => ["head.dense", "classifier"],
        }
    }

    /// Returns the names of a layer's parts; ModernBERT's are not among them.
    pub(crate) const fn layer_names(self) -> LayerNames {
        match self {
            Self::Bert | Self::Roberta | Self::XlmRoberta | Self::ModernBert => LayerNames {
                layers: "encoder.layer",
                qkv: [
                    "attention.self.query",
                    "attention.self.key",
                    "attention.self.value",
                ],
                o: "attention.output.dense",
                attention_norm: "attention.output.LayerNorm",
                up: "intermediate.dense",
                down: "output.dense",
                output_norm: "output.LayerNorm",
            },
            Self::DistilBert => LayerNames {
                layers: "transformer.layer",
                qkv: ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
                o: "attention.out_lin",
                attention_norm: "sa_layer_norm",
                up: "ffn.lin1",
                down: "ffn.lin2",
                output_norm: "output_layer_norm",
            },
            Self::MpNet => LayerNames {
                layers: "encoder.layer",
                qkv: ["attention.attn.q", "attention.attn.k", "attention.attn.v"],
                o: "attention.attn.o",
                attention_norm: "attention.LayerNorm",
                up: "intermediate.dense",
                down: "output.dense",
                output_norm: "output.LayerNorm",
            },
        }
    }

    /// Returns the names of the shape's fields in `config.json`.
    pub(crate) const fn fields(self) -> ShapeFields {
        match self {
            Self::DistilBert => ShapeFields {
                hidden: "dim",
                intermediate: "hidden_dim",
                layers: "n_layers",
                heads: "n_heads",
                activation: "activation",
            },
            _ => ShapeFields {
                hidden: "hidden_size",
                intermediate: "intermediate_size",
                layers: "num_hidden_layers",
                heads: "num_attention_heads",
                activation: match self {
                    Self::ModernBert => "hidden_activation",
                    _ => "hidden_act",
                },
            },
        }
    }

    /// Returns the number of rows of the position table before the one of position 0: RoBERTa counts
    /// from the row behind that of the padding token, MPNet from that behind the padding token 1.
    pub(crate) fn position_offset(self, fields: &Fields<'_>) -> Result<usize, Error> {
        const PADDING: u32 = 1;
        match self {
            Self::Bert | Self::DistilBert | Self::ModernBert => Ok(0),
            Self::MpNet => Ok(PADDING as usize + 1),
            Self::Roberta | Self::XlmRoberta => {
                // No token is padding, in the words of old tools.
                if fields.get("pad_token_id").and_then(Value::as_i64) == Some(-1) {
                    return Ok(0);
                }
                let padding = fields.token_ids("pad_token_id")?;
                Ok(padding.first().copied().unwrap_or(PADDING) as usize + 1)
            }
        }
    }

    /// Returns true if the family adds a vector for the type of each token.
    pub(crate) const fn has_types(self) -> bool {
        matches!(self, Self::Bert | Self::Roberta | Self::XlmRoberta)
    }
}

/// Names of the tensors of a layer, without `weight` and `bias`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerNames {
    /// The list of layers.
    pub(crate) layers: &'static str,
    pub(crate) qkv: [&'static str; 3],
    pub(crate) o: &'static str,
    pub(crate) attention_norm: &'static str,
    pub(crate) up: &'static str,
    pub(crate) down: &'static str,
    pub(crate) output_norm: &'static str,
}

/// Names of fields of `config.json`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShapeFields {
    pub(crate) hidden: &'static str,
    pub(crate) intermediate: &'static str,
    pub(crate) layers: &'static str,
    pub(crate) heads: &'static str,
    pub(crate) activation: &'static str,
}

/// Lists the families that are supported.
pub(crate) fn known() -> String {
    FAMILIES.map(EncoderFamily::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_name_their_families() {
        let check = |name, expected| assert_eq!(EncoderFamily::of(name), expected, "{name}");
        check("BertModel", Some(EncoderFamily::Bert));
        check(
            "XLMRobertaForSequenceClassification",
            Some(EncoderFamily::XlmRoberta),
        );
        check("RobertaForMaskedLM", Some(EncoderFamily::Roberta));
        check("DistilBertModel", Some(EncoderFamily::DistilBert));
        check("BertForTokenClassification", Some(EncoderFamily::Bert));
        check("MPNetModel", Some(EncoderFamily::MpNet));
        check("ModernBertForMaskedLM", Some(EncoderFamily::ModernBert));
        for name in [
            "ElectraModel",
            "ModernBertDecoderModel",
            "BertForQuestionAnswering",
            "Bert",
        ] {
            check(name, None);
        }
        assert_eq!(known().split(", ").count(), 6);
    }
}
