//! Answers of the rerank routes, in each dialect.

use schemars::JsonSchema;
use serde::Serialize;

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Ranking")]
pub(crate) struct Body<'a> {
    pub(super) id: String,
    pub(super) model: &'a str,
    pub(super) usage: Usage,
    pub(super) results: Vec<RankedBody<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RankingUsage")]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    pub(super) total_tokens: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Ranked")]
pub(super) struct RankedBody<'a> {
    pub(super) index: usize,
    pub(super) relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) document: Option<DocumentBody<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RankedDocument")]
pub(super) struct DocumentBody<'a> {
    pub(super) text: &'a str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CohereRanking")]
pub(crate) struct CohereBody<'a> {
    pub(super) id: String,
    pub(super) results: Vec<RankedBody<'a>>,
    meta: Meta,
}

impl<'a> CohereBody<'a> {
    pub(super) const fn new(id: String, results: Vec<RankedBody<'a>>) -> Self {
        Self {
            id,
            results,
            meta: Meta {
                api_version: ApiVersion { version: "2" },
                billed_units: BilledUnits { search_units: 1 },
            },
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CohereMeta")]
struct Meta {
    api_version: ApiVersion,
    billed_units: BilledUnits,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CohereApiVersion")]
struct ApiVersion {
    version: &'static str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CohereBilledUnits")]
struct BilledUnits {
    search_units: u32,
}

/// A result of the dialects that answer by a list: TEI's with `text`, SGLang's with `document`.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ListedRanked")]
pub(crate) struct ListedBody<'a> {
    pub(super) index: usize,
    pub(super) score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) document: Option<&'a str>,
}
