//! `POST /v2/embed`: vectors of texts in Cohere's dialect. Its `/v2/rerank` is a dialect of ours.

mod answers;

use std::{borrow::Cow, sync::Arc};

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;

use self::answers::{Response, Room, VectorType};
use crate::{
    dialects::{COHERE_EMBED, COMMON, MEDIA, ONE_PIECE},
    endpoint::{Call, Endpoint, Reply, asked, json},
    error::ApiError,
    served_model::{ServedModel, Task},
    tasks::{
        embed::{self, Format, VectorFields, embed},
        input::{Given, Prompt},
        prepared::Unit,
        submit::{Ask, CommonFields},
        truncate::{Side, Truncation},
    },
    wire::{Count, Int, Text, check_some, request},
};

/// `POST /v2/embed`.
pub(crate) const EMBED_V2: Endpoint = Endpoint {
    group: "vectors",
    summary: "Embed texts, in Cohere's dialect",
    requests: &[asked::<CohereEmbedRequest<'static>>()],
    responses: json::<Response<'static>>,
    ..Endpoint::post(&["/v2/embed"], |call, body| Box::pin(handle(call, body)))
};

/// Texts to embed.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "CohereTexts")]
pub(crate) struct TextFields<'a> {
    #[serde(borrow)]
    #[schemars(length(min = 1))]
    texts: Vec<Text<'a>>,
    /// Chooses the prompt that the model brings for such texts, if it brings one.
    input_type: Option<InputType>,
    /// The forms of the vectors; by default floats alone.
    #[schemars(length(min = 1))]
    embedding_types: Option<Vec<VectorType>>,
    /// Cut to this many components first, normalised after.
    output_dimension: Option<Int<1, { u32::MAX as i64 }>>,
    /// The side of a text that is cut if it is too long; by default its end.
    truncate: Option<Cut>,
    /// Tokens of a text that are read; the rest is cut as `truncate` says.
    max_tokens: Option<Count>,
}

request! {
    /// `POST /v2/embed`.
    struct CohereEmbedRequest<'a> {
        texts: TextFields<'a>,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, COHERE_EMBED];
}

/// The use of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "CohereInputType")]
enum InputType {
    SearchQuery,
    SearchDocument,
    Classification,
    Clustering,
}

impl InputType {
    /// Returns the name of the prompt that the model brings for this use. Without one, texts are embedded
    /// as they are, as sentence-transformers does it.
    fn prompt_name(self, model: &ServedModel) -> Option<&'static str> {
        let names: &[&'static str] = match self {
            Self::SearchQuery => &["query"],
            Self::SearchDocument => &["document", "passage", "corpus"],
            Self::Classification => &["classification"],
            Self::Clustering => &["clustering"],
        };
        let is_there = |name: &&&'static str| model.embeds().prompts.contains_key(**name);
        names.iter().find(is_there).copied()
    }
}

/// The side of a text that is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(rename = "CohereCut")]
enum Cut {
    None,
    Start,
    End,
}

/// Answers `/v2/embed`.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: CohereEmbedRequest<'_> = call.read(&body).await?;
    let ask = Ask::new(call, request.common, Task::Embeddings)?;
    let model = ask.model;
    let asked = request.texts;
    check_some("texts", &asked.texts)?;
    let types = asked.embedding_types;
    let types = types.unwrap_or_else(|| vec![VectorType::Float]);
    check_some("embedding_types", &types)?;
    let own = model.embeds();
    let dimensions = asked.output_dimension;
    let width = embed::dimensions("output_dimension", dimensions, (own.embedding_size, own))?;
    let width = width.or(own.truncate_dim).unwrap_or(own.embedding_size);
    let is_packed = |t: &VectorType| matches!(t, VectorType::Binary | VectorType::Ubinary);
    if types.iter().any(is_packed) && !width.is_multiple_of(8) {
        let must = "give a multiple of 8 where vectors are asked for in bits";
        return Err(ApiError::invalid_value("output_dimension", must));
    }
    let truncation = truncation(model, asked.truncate, asked.max_tokens)?;
    let texts: Vec<Cow<'_, str>> = asked.texts.into_iter().map(|text| text.0).collect();
    let room = Room {
        numbers: texts.len() as u64 * u64::from(width),
        bytes: texts.iter().map(|text| text.len() as u64).sum(),
    };
    // The vectors' own room is taken as they are computed: that of their largest form.
    let format = match types.contains(&VectorType::Float) {
        true => Format::Float,
        false => Format::Base64,
    };
    room.take(&call.reservation, &types)?;
    let prompts = { texts.iter() }.map(|text| Prompt::Text(Cow::Borrowed(&**text)));
    let inputs = Given::Prompts(prompts.collect(), "texts", truncation);
    let prompt_name = asked.input_type.and_then(|kind| kind.prompt_name(model));
    let fields = VectorFields {
        encoding_format: Some(format),
        dimensions,
        prompt_name: prompt_name.map(|name| Text(Cow::Borrowed(name))),
        as_they_are: asked.input_type.is_some(),
        ..VectorFields::default()
    };
    let inputs = (inputs, own.normalise);
    let embedded = embed(&ask, fields, inputs, Unit::Texts).await?;
    let write = move || {
        let vectors = embedded.vectors.into_iter().map(|v| v.concat());
        let id = call.app.ids.next("embd-");
        let vectors: Vec<_> = vectors.collect();
        answers::reply(id, &vectors, &types, texts, embedded.usage.prompt_tokens)
    };
    Ok(call.write(room.bytes, write).await)
}

/// Returns how texts that are too long are cut, if they are.
fn truncation(
    model: &ServedModel,
    cut: Option<Cut>,
    max_tokens: Option<Count>,
) -> Result<Option<Truncation>, ApiError> {
    let side = match cut {
        Some(Cut::Start) => Side::Left,
        None | Some(Cut::End) => Side::Right,
        Some(Cut::None) if max_tokens.is_some() => {
            let must = "not be combined with `max_tokens`, which cuts";
            return Err(ApiError::invalid_value("truncate", must));
        }
        Some(Cut::None) => return Ok(None),
    };
    let truncation = Truncation::to_context(model, side);
    match max_tokens.map(Int::count) {
        Some(0) => Err(ApiError::invalid_value("max_tokens", "be at least 1")),
        Some(limit) => Ok(Some(truncation.within(limit as usize))),
        None => Ok(Some(truncation)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::answers::{VectorType, Vectors, bits};
    use crate::testing::{answer, demos, embedder, refused};

    const PATH: &str = "/v2/embed";

    #[test]
    fn bits_are_packed_from_the_highest() {
        let vector = [1.0, -1.0, 0.0, 0.1, -0.0, 2.0, -3.0, 4.0, -1.0, -1.0, -1.0];
        assert_eq!(bits(&vector[..8]), [0b1001_0101]);
        let vectors = [[1.0; 8].to_vec(), [-1.0; 8].to_vec()];
        let made = Vectors::new(&vectors, &[VectorType::Binary, VectorType::Ubinary]);
        assert_eq!(made.binary, Some(vec![vec![127], vec![-128]]));
        assert_eq!(made.ubinary, Some(vec![vec![255], vec![0]]));
        assert!(made.float.is_none() && made.base64.is_none());
    }

    #[test]
    fn the_vectors_are_those_of_the_other_dialects() {
        let Some(app) = embedder() else { return };
        let texts = ["Where is my card?", "x"];
        let plain = answer(app, "/v1/embeddings", &json!({"input": texts}));
        let body = json!({
            "model": plain["model"], "texts": texts, "input_type": "search_document",
            "embedding_types": ["float", "base64", "ubinary", "binary"],
        });
        let found = answer(app, PATH, &body);
        let base64 = json!({"input": texts, "encoding_format": "base64"});
        let in_base64 = answer(app, "/v1/embeddings", &base64);
        for i in 0..2 {
            let vector = &plain["data"][i]["embedding"];
            assert_eq!(&found["embeddings"]["float"][i], vector);
            let expected = &in_base64["data"][i]["embedding"];
            assert_eq!(&found["embeddings"]["base64"][i], expected);
            let first = &found["embeddings"]["ubinary"][i][0];
            let is_positive = vector[0].as_f64().unwrap() > 0.0;
            assert_eq!(first.as_u64().unwrap() >= 128, is_positive);
            let signed = found["embeddings"]["binary"][i][0].as_i64().unwrap();
            assert_eq!(signed + 128, first.as_i64().unwrap());
        }
        assert_eq!(found["texts"], json!(texts));
        assert_eq!(found["meta"]["api_version"]["version"], "2");
        let tokens = &found["meta"]["billed_units"]["input_tokens"];
        assert_eq!(tokens, &plain["usage"]["prompt_tokens"]);
        let plain = answer(app, PATH, &json!({"texts": texts}));
        assert_eq!(
            plain["embeddings"],
            json!({"float": found["embeddings"]["float"]})
        );
    }

    #[test]
    fn texts_are_cut_unless_told_otherwise() {
        let Some(app) = embedder() else { return };
        let ask = |body: Value| answer(app, PATH, &body)["embeddings"]["float"].clone();
        let (text, limit) = ("card ".repeat(5), 3);
        let cut = ask(json!({"texts": [text], "max_tokens": limit}));
        let input = json!({"input": [text], "truncate_prompt_tokens": limit});
        let plain = answer(app, "/v1/embeddings", &input);
        assert_eq!(cut[0], plain["data"][0]["embedding"]);
        let long = "card ".repeat(5_000);
        ask(json!({"texts": [long]}));
        ask(json!({"texts": [long], "truncate": "START"}));
        let refused_ = (400, "context_length_exceeded", Some("texts"));
        refused(
            app,
            PATH,
            &json!({"texts": [long], "truncate": "NONE"}),
            refused_,
        );
    }

    #[test]
    fn wrong_requests_are_refused_by_field() {
        let Some(app) = embedder() else { return };
        let check = |more: Value, reason: &str, field: &str| {
            let mut body = json!({"texts": ["a"]});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            refused(app, PATH, &body, (400, reason, Some(field)));
        };
        check(json!({"texts": []}), "invalid_value", "texts");
        check(json!({"texts": null}), "missing_field", "texts");
        check(json!({"texts": ["a", 3]}), "invalid_type", "/texts/1");
        check(
            json!({"embedding_types": []}),
            "invalid_value",
            "embedding_types",
        );
        check(
            json!({"embedding_types": ["int8"]}),
            "invalid_value",
            "/embedding_types/0",
        );
        check(
            json!({"input_type": "image"}),
            "invalid_value",
            "input_type",
        );
        check(json!({"truncate": "end"}), "invalid_value", "truncate");
        check(
            json!({"truncate": "NONE", "max_tokens": 3}),
            "invalid_value",
            "truncate",
        );
        check(json!({"max_tokens": 0}), "invalid_value", "max_tokens");
        check(
            json!({"output_dimension": 100_000}),
            "invalid_value",
            "output_dimension",
        );
        let odd = json!({"output_dimension": 3, "embedding_types": ["binary"]});
        check(odd, "invalid_value", "output_dimension");
        check(
            json!({"images": ["data:"]}),
            "unsupported_parameter",
            "images",
        );
        check(json!({"inputs": [{}]}), "unsupported_parameter", "inputs");
        let unserved = (400, "unsupported_task", Some("model"));
        refused(demos(), PATH, &json!({"texts": ["a"]}), unserved);
    }
}
