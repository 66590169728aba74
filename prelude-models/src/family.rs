//! Names of architectures, and what distinguishes the families of models that bear them.

use crate::{Error, fields, json::Fields};

mod encoder;

pub(crate) use encoder::EncoderFamily;

/// The projections of a layer that have biases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Biases {
    /// True of queries, keys and values.
    pub qkv: bool,
    /// True of attention's output.
    pub o: bool,
    /// True of the MLP's three.
    pub mlp: bool,
}

/// A family of dense decoders: models whose layers have the same parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Gemma2,
    Gemma3,
    Granite,
}

const FAMILIES: [Family; 8] = [
    Family::Llama,
    Family::Mistral,
    Family::Qwen2,
    Family::Qwen3,
    Family::Qwen3Moe,
    Family::Gemma2,
    Family::Gemma3,
    Family::Granite,
];

/// Ends of the names of a family's architectures: a language model, a classifier of texts, one of
/// tokens, a bare body.
const CLASSES: [&str; 4] = [
    "ForCausalLM",
    "ForSequenceClassification",
    "ForTokenClassification",
    "Model",
];

impl Family {
    /// Returns the family of an architecture, such as `Qwen3ForCausalLM`.
    ///
    /// # Errors
    /// [`Error::Architecture`] for a name of no family.
    pub(crate) fn of(architecture: &str) -> Result<Self, Error> {
        let is_of = |family: &Self| family.architectures().contains(&architecture.to_owned());
        let found = FAMILIES.iter().copied().find(is_of);
        found.ok_or_else(|| Error::Architecture {
            name: architecture.to_owned(),
            known: format!(
                "the decoders {} and the encoders {}",
                known(),
                encoder::known()
            ),
        })
    }

    /// Returns the beginning of the names of the family's architectures.
    const fn name(self) -> &'static str {
        match self {
            Self::Llama => "Llama",
            Self::Mistral => "Mistral",
            Self::Qwen2 => "Qwen2",
            Self::Qwen3 => "Qwen3",
            Self::Qwen3Moe => "Qwen3Moe",
            Self::Gemma2 => "Gemma2",
            Self::Gemma3 => "Gemma3",
            Self::Granite => "Granite",
        }
    }

    /// Returns the names of the family's architectures.
    fn architectures(self) -> Vec<String> {
        // Transformers has no classifier of tokens of Gemma 3, and none at all of Granite.
        let is_known = |class: &&&str| match self {
            Self::Gemma3 => !class.contains("Token"),
            Self::Granite => !class.contains("Classification"),
            _ => true,
        };
        let name = |class: &&str| match (self, *class) {
            // The names without `Text` are of models that see pictures, too.
            (Self::Gemma3, "ForSequenceClassification" | "Model") => format!("Gemma3Text{class}"),
            _ => format!("{}{class}", self.name()),
        };
        CLASSES.iter().filter(is_known).map(name).collect()
    }

    /// Returns the architecture of the bare body with this `model_type`.
    pub(crate) fn body(model_type: &str) -> Option<String> {
        let family = FAMILIES.iter().find(|of| of.model_type() == model_type)?;
        family.architectures().pop()
    }

    /// Returns the name by which transformers chooses the class.
    fn model_type(self) -> String {
        match self {
            Self::Gemma3 => "gemma3_text".to_owned(),
            Self::Qwen3Moe => "qwen3_moe".to_owned(),
            _ => self.name().to_lowercase(),
        }
    }

    /// Returns true if norms have weights that are stored less 1, each half of a layer ends with a norm,
    /// and some layers see a window.
    pub(crate) fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// Returns true if layers have experts.
    pub(crate) fn has_experts(self) -> bool {
        self == Self::Qwen3Moe
    }

    /// Returns the name by which the table of fields knows the family's `config.json`.
    pub(crate) fn table(self) -> &'static str {
        match self.is_gemma() {
            true => fields::GEMMAS,
            false => "config.json",
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

    /// Returns true if heads of queries and keys are normalised.
    pub(crate) fn has_qk_norm(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Qwen3Moe | Self::Gemma3)
    }

    /// Returns which projections have biases: Qwen2's always the same, of others what the
    /// configuration says where transformers reads it.
    pub(crate) fn biases(self, fields: &Fields<'_>) -> Result<Biases, Error> {
        let field = |name| Ok(fields.boolean(name)?.unwrap_or(false));
        let mut biases = Biases::default();
        match self {
            Self::Qwen2 => biases.qkv = true,
            Self::Mistral => {}
            Self::Qwen3
            | Self::Qwen3Moe
            | Self::Llama
            | Self::Gemma2
            | Self::Gemma3
            | Self::Granite => {
                biases.qkv = field("attention_bias")?;
                biases.o = biases.qkv;
            }
        }
        biases.mlp = matches!(self, Self::Llama | Self::Granite) && field("mlp_bias")?;
        Ok(biases)
    }

    /// Returns the number of positions that attention looks back over, its own included, if that
    /// is not the whole text.
    pub(crate) fn window(self, fields: &Fields<'_>, max: usize) -> Result<Option<usize>, Error> {
        // The default of transformers, where the file does not say; null is no window.
        const MISTRAL: usize = 4096;
        match (self, fields.map.contains_key("sliding_window")) {
            (Self::Mistral, true) => fields.count("sliding_window", max),
            (Self::Mistral, false) => Ok(Some(MISTRAL)),
            _ => Ok(None),
        }
    }
}

/// Lists the families that are supported.
fn known() -> String {
    FAMILIES.map(Family::name).join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn with<T>(config: &Value, read: impl FnOnce(&Fields<'_>) -> T) -> T {
        let map = config.as_object().unwrap();
        read(&Fields {
            file: "config.json",
            path: "",
            map,
        })
    }

    #[test]
    fn unknown_architectures_are_named() {
        let check = |name, expected: Option<Family>| match (Family::of(name), expected) {
            (Ok(found), Some(expected)) => assert_eq!(found, expected, "{name}"),
            (Err(error), None) => {
                let text = error.to_string();
                let part = format!("{name:?} is not supported;\nserved are the decoders Llama, ");
                assert!(text.contains(&part), "{text}");
                // Readable on a terminal.
                assert!(text.lines().count() == 2 && text.len() < 300, "{text}");
            }
            (found, _) => panic!("{name}: {found:?}"),
        };
        check("Qwen3ForCausalLM", Some(Family::Qwen3));
        check("Qwen2ForSequenceClassification", Some(Family::Qwen2));
        check("LlamaModel", Some(Family::Llama));
        check("Qwen3ForTokenClassification", Some(Family::Qwen3));
        check("MistralForCausalLM", Some(Family::Mistral));
        check("Qwen3MoeForCausalLM", Some(Family::Qwen3Moe));
        check("Gemma2Model", Some(Family::Gemma2));
        check("Gemma3ForCausalLM", Some(Family::Gemma3));
        check("Gemma3TextModel", Some(Family::Gemma3));
        for name in [
            "Gemma3Model",
            "Gemma3ForConditionalGeneration",
            "Qwen2ForRewardModel",
            "Gemma3TextForTokenClassification",
            "Mistral",
            "BertForQuestionAnswering",
        ] {
            check(name, None);
        }
        assert_eq!(FAMILIES.map(Family::architectures).concat().len(), 29);
        assert_eq!(
            Family::body("gemma3_text").as_deref(),
            Some("Gemma3TextModel")
        );
        assert_eq!(Family::body("bert"), None);
    }

    #[test]
    fn the_type_is_the_family() {
        let check = |family: Family, config: Value| {
            with(&config, |fields| family.check_model_type(fields)).map_err(|e| e.to_string())
        };
        assert_eq!(check(Family::Qwen2, json!({"model_type": "qwen2"})), Ok(()));
        assert_eq!(check(Family::Llama, json!({})), Ok(()));
        let text = json!({"model_type": "gemma3_text"});
        assert_eq!(check(Family::Gemma3, text), Ok(()));
        let error = check(Family::Llama, json!({"model_type": "mistral"})).unwrap_err();
        assert!(error.contains("`model_type` of \"mistral\""), "{error}");
    }

    #[test]
    fn biases_by_family() {
        let all = json!({"attention_bias": true, "mlp_bias": true});
        let check = |family: Family, config: &Value, expected: [bool; 3]| {
            let found = with(config, |fields| family.biases(fields)).unwrap();
            assert_eq!([found.qkv, found.o, found.mlp], expected, "{family:?}");
        };
        check(Family::Llama, &all, [true, true, true]);
        check(Family::Qwen3, &all, [true, true, false]);
        check(Family::Qwen2, &all, [true, false, false]);
        check(Family::Mistral, &all, [false, false, false]);
        check(Family::Gemma2, &all, [true, true, false]);
        check(Family::Llama, &json!({}), [false, false, false]);
        check(Family::Qwen2, &json!({}), [true, false, false]);
    }

    #[test]
    fn windows_by_family() {
        let check = |family: Family, config: Value, expected: Option<usize>| {
            let found = with(&config, |fields| family.window(fields, 9000)).unwrap();
            assert_eq!(found, expected, "{family:?} {config}");
        };
        check(Family::Mistral, json!({}), Some(4096));
        check(Family::Mistral, json!({"sliding_window": null}), None);
        check(Family::Mistral, json!({"sliding_window": 512}), Some(512));
        check(Family::Llama, json!({"sliding_window": 512}), None);
        check(Family::Qwen2, json!({"sliding_window": 512}), None);
        let zero = json!({"sliding_window": 0});
        let error = with(&zero, |fields| Family::Mistral.window(fields, 9000)).unwrap_err();
        assert!(error.to_string().contains("`sliding_window`"), "{error}");
    }
}
