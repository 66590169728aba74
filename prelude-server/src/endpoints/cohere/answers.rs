//! Vectors in the forms of Cohere's dialect.

use std::borrow::Cow;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    admission::{Growth, Printed, Reservation},
    endpoint::Reply,
    error::ApiError,
};

/// The form of a vector's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "CohereVectorType")]
pub(super) enum VectorType {
    Float,
    /// Little-endian float32.
    Base64,
    /// A bit for each number, 1 if it is above 0; the first is the highest of its byte, less 128.
    Binary,
    /// A bit for each number as in `Binary`; the bytes are numbers from 0 to 255.
    Ubinary,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CohereEmbeddings")]
pub(crate) struct Response<'a> {
    id: String,
    embeddings: Vectors,
    texts: Vec<Cow<'a, str>>,
    meta: Meta,
    response_type: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CohereEmbeddingsMeta")]
struct Meta {
    api_version: ApiVersion,
    billed_units: BilledUnits,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CohereEmbeddingsVersion")]
struct ApiVersion {
    version: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CohereEmbeddingsUnits")]
struct BilledUnits {
    input_tokens: u64,
}

/// The vectors of the texts, in each form that was asked for.
#[derive(Default, Serialize, JsonSchema)]
#[schemars(rename = "CohereVectors")]
pub(super) struct Vectors {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) float: Option<Vec<Vec<f32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) base64: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) binary: Option<Vec<Vec<i8>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ubinary: Option<Vec<Vec<u8>>>,
}

/// The size of an answer.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) numbers: u64,
    /// Bytes of the texts, which the answer repeats.
    pub(super) bytes: u64,
}

impl Room {
    /// Takes room for the forms of vectors beside the one whose room is taken as it is computed.
    pub(super) fn take(self, room: &Reservation, types: &[VectorType]) -> Result<(), ApiError> {
        let has = |wanted: VectorType| types.contains(&wanted);
        if has(VectorType::Float) && has(VectorType::Base64) {
            room.grow(Growth::Numbers(self.numbers, Printed::Base64))?;
        }
        for packed in [VectorType::Binary, VectorType::Ubinary] {
            if has(packed) {
                room.grow(Growth::Numbers(self.numbers / 8, Printed::Decimal))?;
            }
        }
        room.grow(Growth::Answer(self.bytes))
    }
}

/// Writes the vectors of texts in the forms asked for.
pub(super) fn reply(
    id: String,
    vectors: &[Vec<f32>],
    types: &[VectorType],
    texts: Vec<Cow<'_, str>>,
    input_tokens: u64,
) -> Reply {
    Reply::json(&Response {
        id,
        embeddings: Vectors::new(vectors, types),
        texts,
        meta: Meta {
            api_version: ApiVersion { version: "2" },
            billed_units: BilledUnits { input_tokens },
        },
        response_type: "embeddings_by_type",
    })
}

impl Vectors {
    pub(super) fn new(vectors: &[Vec<f32>], types: &[VectorType]) -> Self {
        fn each<T>(vectors: &[Vec<f32>], one: impl Fn(&Vec<f32>) -> T) -> Option<Vec<T>> {
            Some(vectors.iter().map(one).collect())
        }
        let mut made = Self::default();
        for kind in types {
            match kind {
                VectorType::Float => made.float = Some(vectors.to_vec()),
                VectorType::Base64 => made.base64 = each(vectors, |v| in_base64(v)),
                VectorType::Ubinary => made.ubinary = each(vectors, |v| bits(v)),
                VectorType::Binary => {
                    let signed = |v: &Vec<f32>| {
                        let bytes = bits(v).into_iter();
                        bytes.map(|byte| (byte ^ 0x80).cast_signed()).collect()
                    };
                    made.binary = each(vectors, signed);
                }
            }
        }
        made
    }
}

fn in_base64(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|f| f.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

/// Returns a bit for each number, eight to a byte, the first of them the highest.
pub(super) fn bits(vector: &[f32]) -> Vec<u8> {
    let (bytes, rest) = vector.as_chunks::<8>();
    debug_assert!(rest.is_empty(), "the request's dimensions are checked");
    let byte = |eight: &[f32; 8]| {
        let bit = |byte: u8, number: &f32| byte << 1 | u8::from(*number > 0.0);
        eight.iter().fold(0, bit)
    };
    bytes.iter().map(byte).collect()
}
