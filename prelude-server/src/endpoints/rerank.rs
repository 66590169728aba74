//! `POST /rerank`, `/v1/rerank`, `/v2/rerank`: documents in the order of their relevance, in four
//! dialects.

mod answers;
mod documents;
mod tei;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use bytes::Bytes;

use self::{
    answers::{Body, CohereBody, ListedBody},
    documents::RerankRequest,
    tei::TeiRerankRequest,
};
use crate::{
    endpoint::{Asked, Call, Endpoint, Handler, Reply, asked, either},
    error::{ApiError, Dialect},
    tasks::rank::Judged,
};

/// `POST /rerank`.
pub(crate) const RERANK: Endpoint = Endpoint {
    responses: either::<Body<'static>, Vec<ListedBody<'static>>>,
    ..reranks(&["/rerank", "/v1/rerank"], |call, body| {
        Box::pin(handle(call, body, Answered::Jina))
    })
};

/// `POST /v2/rerank`.
pub(crate) const RERANK_V2: Endpoint = Endpoint {
    responses: either::<CohereBody<'static>, Vec<ListedBody<'static>>>,
    ..reranks(&["/v2/rerank"], |call, body| {
        Box::pin(handle(call, body, Answered::Cohere))
    })
};

const REQUESTS: &[Asked] = &[
    asked::<RerankRequest<'static>>(),
    asked::<TeiRerankRequest<'static>>(),
];

const fn reranks(paths: &'static [&'static str], handle: Handler) -> Endpoint {
    Endpoint {
        group: "decisions",
        summary: "Order documents by relevance",
        requests: REQUESTS,
        other_dialect: Some(Dialect::Tei),
        ..Endpoint::post(paths, handle)
    }
}

/// The dialect in which `documents` are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answered {
    /// Jina's and vLLM's.
    Jina,
    Cohere,
    /// SGLang's, which the routers of SGLang and of vLLM ask for.
    Sglang,
}

/// Answers the rerank routes.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
async fn handle(call: &Arc<Call>, body: Bytes, answered: Answered) -> Result<Reply, ApiError> {
    let mut fields = call.fields(&body).await?;
    match (fields.has("documents"), fields.has("texts")) {
        (true, true) => {
            let must = "not be combined with `documents`: they are two dialects";
            Err(ApiError::invalid_value("texts", must))
        }
        (_, true) => {
            // What is null is absent.
            fields.take("documents");
            let ranked = tei::rank(call, fields).await;
            ranked.map_err(|e| e.in_dialect(Dialect::Tei))
        }
        (_, false) => {
            fields.take("texts");
            let answered = match answered {
                Answered::Jina if fields.names("rid") => Answered::Sglang,
                other => other,
            };
            documents::rank(call, fields, answered).await
        }
    }
}

/// Returns the indices and scores by falling score, ties by index.
fn ranked(judged: &Judged, activation: bool, top_n: Option<usize>) -> Vec<(usize, f64)> {
    let mut ranked: Vec<_> = judged.scores(activation).into_iter().enumerate().collect();
    // Stable, so equal scores stay in the order of their documents.
    ranked.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    ranked.truncate(top_n.unwrap_or(usize::MAX));
    ranked
}
