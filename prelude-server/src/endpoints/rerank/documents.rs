//! Documents in the order of their relevance: vLLM's, Jina's, Cohere's and SGLang's dialects.

use std::{borrow::Cow, sync::Arc};

use schemars::{JsonSchema, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, value::MapAccessDeserializer},
};

use super::{
    Answered,
    answers::{Body, CohereBody, DocumentBody, ListedBody, RankedBody, Usage},
    ranked,
};
use crate::{
    dialects::{COMMON, MEDIA, ONE_PIECE, RERANK, RERANK_DOCUMENTS, SWITCH, TRUNCATION},
    endpoint::{Call, Reply},
    error::ApiError,
    served_model::Task,
    tasks::{
        rank::{JudgeFields, judge},
        submit::{Ask, CommonFields},
        truncate::{Side, SwitchFields, Truncation, TruncationFields},
    },
    wire::{Fields, Int, Shapes, Text, by_shape, check_some, described, request},
};

/// Tokens of a document that Cohere's dialect reads unless told otherwise.
const COHERE_MAX_TOKENS_PER_DOC: u32 = 4_096;

/// A query and documents.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct RerankFields<'a> {
    #[serde(borrow)]
    query: Text<'a>,
    #[schemars(length(min = 1))]
    documents: Option<Vec<Document<'a>>>,
    /// Results to return; 0 and null are all.
    top_n: Option<Int<0, { i64::MAX }>>,
    /// SGLang's name of `top_n` (with `rid`).
    top_k: Option<Int<0, { i64::MAX }>>,
    /// SGLang's name of the request, which is not used. A body that has it, even as null, is
    /// answered as SGLang does: by a list.
    #[expect(
        dead_code,
        reason = "its presence chooses the dialect before the fields are read"
    )]
    rid: Option<Text<'a>>,
    return_documents: Option<bool>,
    /// Another name of `instruction`.
    instruct: Option<Text<'a>>,
}

/// A document: a string, or an object that holds one as `text`.
#[derive(Debug)]
struct Document<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Document<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        by_shape::<Document<'de>, D>(deserializer)
    }
}

impl<'de> Shapes<'de> for Document<'de> {
    const WORDS: &'static str = "a string or an object with a string `text`";

    fn text<E: Error>(text: Cow<'de, str>) -> Result<Self, E> {
        Ok(Self(text))
    }

    fn object<A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        let object = DocumentObject::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Self(object.text.0))
    }
}

#[derive(Deserialize, JsonSchema)]
struct DocumentObject<'a> {
    #[serde(borrow)]
    text: Text<'a>,
}

described!(Document<'_>, "Document", |generator| {
    let object = generator.subschema_for::<DocumentObject<'_>>();
    json_schema!({ "anyOf": [{ "type": "string" }, object] })
});

request! {
    /// `POST /rerank`: `documents` (Jina's, vLLM's and Cohere's dialect; with `rid` SGLang's).
    struct RerankRequest<'a> {
        rerank: RerankFields<'a>,
        judge: JudgeFields<'a>,
        switch: SwitchFields,
        truncation: TruncationFields,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, SWITCH, TRUNCATION, RERANK, RERANK_DOCUMENTS];
}

/// Returns how many results are asked for. Zero asks for all, as leaving the number out does.
fn wanted(top_n: Option<Int<0, { i64::MAX }>>) -> Option<usize> {
    let top_n = usize::try_from(top_n?.get()).ok();
    top_n.filter(|&n| n > 0)
}

/// Answers a request for a ranking of `documents`.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(super) async fn rank(
    call: &Arc<Call>,
    fields: Fields<'_>,
    answered: Answered,
) -> Result<Reply, ApiError> {
    let is_cohere = answered == Answered::Cohere;
    let request: RerankRequest<'_> = call.read_fields(fields).await?;
    let (asked, mut how) = (request.rerank, request.judge);
    if asked.top_k.is_some() && answered != Answered::Sglang {
        return Err(ApiError::unsupported_parameter("top_k"));
    }
    let ask = Ask::new(call, request.common, Task::Rerank)?;
    let model = ask.model;
    let query = asked.query.0;
    let documents = asked.documents;
    let documents = documents.ok_or_else(|| ApiError::missing_field("documents"))?;
    check_some("documents", &documents)?;
    let top_n = wanted(asked.top_n.or(asked.top_k));
    let return_documents = asked.return_documents.unwrap_or(!is_cohere);
    if how.instruction.is_some() && asked.instruct.is_some() {
        let must = "not be combined with `instruction`, which means the same";
        return Err(ApiError::invalid_value("instruct", must));
    }
    how.instruction = how.instruction.or(asked.instruct);
    let reads_all = !is_cohere || how.max_tokens_per_doc.is_some();
    let (mut options, activation) = how.options(("query", "documents"))?;
    if !reads_all {
        options.max_tokens_per_doc = COHERE_MAX_TOKENS_PER_DOC;
    }
    let cut = (Side::Right, is_cohere);
    options.truncation =
        Truncation::of_texts(request.truncation, Some(request.switch), model, cut)?;
    let pairs: Vec<(&str, &str)> = documents.iter().map(|d| (&*query, &*d.0)).collect();
    let judged = judge(&ask, &pairs, &options).await?;
    let ranked = ranked(&judged, activation, top_n);
    let text = |index: usize| return_documents.then(|| &*documents[index].0);
    if answered == Answered::Sglang {
        let results = ranked.into_iter().map(|(index, score)| ListedBody {
            index,
            score,
            text: None,
            document: text(index),
        });
        return Ok(Reply::json(&results.collect::<Vec<_>>()));
    }
    let results = ranked
        .into_iter()
        .map(|(index, relevance_score)| RankedBody {
            index,
            relevance_score,
            document: text(index).map(|text| DocumentBody { text }),
        });
    let id = call.app.ids.next("rerank-");
    let results = results.collect();
    Ok(if is_cohere {
        Reply::json(&CohereBody::new(id, results))
    } else {
        let prompt_tokens = judged.computed.tokens;
        Reply::json(&Body {
            id,
            model: &model.name,
            usage: Usage {
                prompt_tokens,
                total_tokens: prompt_tokens,
            },
            results,
        })
    })
}
