//! The task of `/v1/embeddings` and `/pooling`: vectors of texts.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prelude_core::{Head, TokenHead};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    input::{Given, Inputs},
    prepared::{Outputs, Unit, vectors},
    submit::{Ask, UsageBody},
};
use crate::{
    admission::Printed,
    error::ApiError,
    served_model::{ServedModel, Vectors},
    wire::{Int, Text, one_of},
};

/// Numbers, or their bytes in base64.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

impl Vector {
    pub(crate) fn new(floats: Vec<f32>, form: Form) -> Self {
        match form.format {
            Format::Float => Self::Floats(floats),
            Format::Base64 => Self::Base64(STANDARD.encode(form.bytes(&floats))),
        }
    }
}

/// The way in which an answer writes vectors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Form {
    format: Format,
    dtype: Dtype,
    endianness: Endianness,
}

impl Form {
    fn bytes(self, floats: &[f32]) -> Vec<u8> {
        let big = self.endianness == Endianness::Big;
        let two = |bits: u16| {
            if big {
                bits.to_be_bytes()
            } else {
                bits.to_le_bytes()
            }
        };
        let floats = floats.iter();
        match self.dtype {
            Dtype::Float32 if big => floats.flat_map(|f| f.to_be_bytes()).collect(),
            Dtype::Float32 => floats.flat_map(|f| f.to_le_bytes()).collect(),
            Dtype::Float16 => { floats }
                .flat_map(|&f| two(half::f16::from_f32(f).to_bits()))
                .collect(),
            Dtype::Bfloat16 => { floats }
                .flat_map(|&f| two(half::bf16::from_f32(f).to_bits()))
                .collect(),
        }
    }
}

/// The type of a vector's numbers in base64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "EmbedDtype")]
pub(crate) enum Dtype {
    #[default]
    Float32,
    Float16,
    Bfloat16,
}

/// The order of a number's bytes in base64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Endianness {
    /// Little-endian: so are the machines that are served on.
    #[default]
    Native,
    Little,
    Big,
}

/// The form in which the numbers of a vector are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "EncodingFormat")]
pub(crate) enum Format {
    #[default]
    Float,
    /// Bytes, by default of little-endian float32.
    Base64,
}

impl Format {
    /// Returns how an answer prints a number of a vector.
    const fn printed(self) -> Printed {
        match self {
            Self::Float => Printed::Decimal,
            Self::Base64 => Printed::Base64,
        }
    }
}

/// The options of vectors.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct VectorFields<'a> {
    pub(crate) encoding_format: Option<Format>,
    /// Cut to this many components first, normalised after.
    pub(crate) dimensions: Option<Int<1, { u32::MAX as i64 }>>,
    /// Put before each text as `Instruct: {instruction}\nQuery:`.
    #[serde(borrow)]
    pub(crate) instruction: Option<Text<'a>>,
    /// A prompt that the model brings.
    pub(crate) prompt_name: Option<Text<'a>>,
    /// `query`, `search_query`, `document`, `passage` or `search_document`.
    pub(crate) input_type: Option<Text<'a>>,
    /// True if texts are embedded as they are where no prompt is named, whatever the model's default.
    #[serde(skip)]
    pub(crate) as_they_are: bool,
    /// The numbers' type in base64.
    pub(crate) embed_dtype: Option<Dtype>,
    /// The order of a number's bytes in base64.
    pub(crate) endianness: Option<Endianness>,
    /// Jina's name of `encoding_format`.
    pub(crate) embedding_type: Option<Format>,
    /// Voyage's name of `dimensions`.
    pub(crate) output_dimension: Option<Int<1, { u32::MAX as i64 }>>,
    /// Older vLLM's name of `use_activation`.
    pub(crate) normalize: Option<bool>,
    /// Jina's name of `use_activation`.
    pub(crate) normalized: Option<bool>,
}

impl VectorFields<'_> {
    /// Returns the way in which the answer writes vectors.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn form(&self) -> Result<Form, ApiError> {
        let format = one_of([
            ("encoding_format", self.encoding_format),
            ("embedding_type", self.embedding_type),
        ])?;
        Ok(Form {
            format: format.map(|(_, format)| format).unwrap_or_default(),
            dtype: self.embed_dtype.unwrap_or_default(),
            endianness: self.endianness.unwrap_or_default(),
        })
    }

    /// Returns true if vectors are scaled to length 1, under whichever name that is asked for.
    ///
    /// # Errors
    /// 400 `invalid_value` if it is asked for twice.
    pub(crate) fn normalise(
        &self,
        model: &ServedModel,
        use_activation: Option<bool>,
    ) -> Result<bool, ApiError> {
        let wanted = one_of([
            ("use_activation", use_activation),
            ("normalize", self.normalize),
            ("normalized", self.normalized),
        ])?;
        Ok(wanted.map_or_else(|| model.embeds().normalise, |(_, is_wanted)| is_wanted))
    }

    /// Refuses what only embeddings have.
    ///
    /// # Errors
    /// 400 `unsupported_parameter`.
    pub(crate) fn check_format_alone(&self) -> Result<(), ApiError> {
        ApiError::refuse_given(&[
            ("dimensions", self.dimensions.is_some()),
            ("output_dimension", self.output_dimension.is_some()),
            ("normalize", self.normalize.is_some()),
            ("normalized", self.normalized.is_some()),
            ("instruction", self.instruction.is_some()),
            ("prompt_name", self.prompt_name.is_some()),
            ("input_type", self.input_type.is_some()),
        ])
    }
}

/// The vectors of a request's inputs, and what they cost.
pub(crate) struct Embedded {
    /// The vectors of each input: one, or one for each of its tokens.
    pub(crate) vectors: Vec<Vec<Vec<f32>>>,
    pub(crate) form: Form,
    pub(crate) usage: UsageBody,
}

/// Embeds inputs; to vectors of length 1 if `normalise` is true.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn embed(
    ask: &Ask<'_>,
    fields: VectorFields<'_>,
    (inputs, normalise): (Given<'_>, bool),
    unit: Unit,
) -> Result<Embedded, ApiError> {
    let own = ask.model.embeds();
    let (longest, usual) = match unit {
        Unit::Texts => (own.embedding_size, own.truncate_dim),
        Unit::Tokens => (own.hidden_size, None),
    };
    let asked = one_of([
        ("dimensions", fields.dimensions),
        ("output_dimension", fields.output_dimension),
    ])?;
    let dimensions = match asked {
        Some((name, asked)) => dimensions(name, Some(asked), (longest, own))?,
        None => usual,
    };
    let asked = prefix(&fields, own)?;
    let before = |inputs: &Inputs<'_>| {
        inputs.check_no_pairs()?;
        match asked {
            Some(before) if !before.is_empty() && inputs.encoding.field == "messages" => {
                let must = "not be combined with an instruction or a named prompt";
                Err(ApiError::invalid_value("messages", must))
            }
            Some(before) => Ok(before),
            None if inputs.are_texts() && !fields.as_they_are => Ok(own.default_prompt.clone()),
            None => Ok(String::new()),
        }
    };
    let form = fields.form()?;
    let outputs = Outputs {
        head: match unit {
            Unit::Texts => Head::Embed {
                pooling: own.pooling,
                normalise,
                dimensions,
            },
            Unit::Tokens => Head::Tokens(TokenHead::Embed {
                normalise,
                dimensions,
            }),
        },
        unit,
        width: dimensions.unwrap_or(longest),
        printed: form.format.printed(),
    };
    let computed = inputs.compute(ask, before, outputs, vectors).await?;
    Ok(Embedded {
        usage: computed.usage(),
        vectors: computed.outputs,
        form,
    })
}

/// Returns the components of a vector that a request asks for in this field, if it does.
///
/// # Errors
/// 400 naming the field.
pub(crate) fn dimensions(
    field: &'static str,
    dimensions: Option<Int<1, { u32::MAX as i64 }>>,
    (longest, own): (u32, &Vectors),
) -> Result<Option<u32>, ApiError> {
    let dimensions = dimensions.map(Int::count);
    match dimensions {
        Some(d) if d > longest => {
            let must = format!("be from 1 to {longest}");
            Err(ApiError::invalid_value(field, must))
        }
        Some(d) if !own.matryoshka.is_empty() && !own.matryoshka.contains(&d) => {
            let must = format!(
                "be one of {:?}, which the model was trained for",
                own.matryoshka
            );
            Err(ApiError::invalid_value(field, must))
        }
        _ => Ok(dimensions),
    }
}

/// Returns the text before each input, if a request says which: at most one of `instruction`,
/// `prompt_name` and `input_type` names it.
fn prefix(fields: &VectorFields<'_>, own: &Vectors) -> Result<Option<String>, ApiError> {
    let given = [&fields.instruction, &fields.prompt_name, &fields.input_type];
    let [instruction, prompt_name, input_type] = given.map(|text| text.as_ref().map(|t| &*t.0));
    let named = |name: &str, param: &'static str| {
        own.prompts.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = own.prompts.keys().collect();
            ApiError::invalid_value(
                param,
                format!("name a prompt of this model; it has {known:?}"),
            )
        })
    };
    let before = match (instruction, prompt_name, input_type) {
        (None, None, None) => return Ok(None),
        (Some(instruction), None, None) => Ok(format!("Instruct: {instruction}\nQuery:")),
        (None, Some(name), None) => named(name, "prompt_name"),
        (None, None, Some("query" | "search_query")) => named("query", "input_type"),
        (None, None, Some("document" | "passage" | "search_document")) => {
            // The names that sentence-transformers looks for.
            let names = ["document", "passage", "corpus"];
            let prompt = names.iter().find_map(|name| own.prompts.get(*name));
            Ok(prompt.cloned().unwrap_or_default())
        }
        (None, None, Some(_)) => {
            let must = "be query, search_query, document, passage or search_document";
            Err(ApiError::invalid_value("input_type", must))
        }
        _ => {
            let must = "not be combined with prompt_name or input_type: at most one of the three";
            Err(ApiError::invalid_value("instruction", must))
        }
    };
    before.map(Some)
}
