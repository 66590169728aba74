//! `POST /v1/moderations`: harmful categories of texts, in OpenAI's shape, by a classification head
//! or by the verdicts of a guard model, which judges the last turn of a conversation too.

mod answers;
mod input;
mod scores;

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Deserialize;

use self::{answers::Response, input::Input, scores::Guidelines};
use crate::{
    dialects::{self, COMMON, LABELS, MEDIA, ONE_PIECE},
    endpoint::{Call, Endpoint, Reply, asked, json},
    error::ApiError,
    tasks::{
        classify::{self, LabelFields},
        judged::Judged,
        submit::{Ask, Common, CommonFields},
    },
    wire::request,
};

/// `POST /v1/moderations`.
pub(crate) const MODERATIONS: Endpoint = Endpoint {
    group: "decisions",
    summary: "Flag harmful texts",
    requests: &[asked::<ModerationRequest<'static>>()],
    responses: json::<Response<'static>>,
    ..Endpoint::post(&["/v1/moderations"], |call, body| {
        Box::pin(handle(call, body))
    })
};

/// Names by which OpenAI's clients call the model that moderates.
const ALIASES: [&str; 5] = [
    "omni-moderation-latest",
    "omni-moderation-2024-09-26",
    "text-moderation-latest",
    "text-moderation-stable",
    "text-moderation-007",
];

/// Texts to moderate.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ModerationFields<'a> {
    #[serde(borrow)]
    input: Input<'a>,
    /// 1 to 64 categories, each with the guideline that its texts violate: of a guard that is asked
    /// about one at a time (ShieldGemma, Granite Guardian). Null is the guideline that the model knows
    /// by this name.
    guidelines: Option<Guidelines>,
}

request! {
    /// `POST /v1/moderations`.
    struct ModerationRequest<'a> {
        moderation: ModerationFields<'a>,
        labels: LabelFields<'a>,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, LABELS, dialects::MODERATIONS];
}

/// Answers `/v1/moderations`.
async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: ModerationRequest<'_> = call.read(&body).await?;
    let common = Common::new(call, request.common)?;
    let ModerationFields { input, guidelines } = request.moderation;
    let judged = match input {
        Input::Texts(texts) => Judged::Texts(texts),
        Input::Messages(messages) => Judged::conversation(messages, "input")?,
    };
    let labels = request.labels;
    let is_conversation = matches!(judged, Judged::Conversation(_));
    let asks_language_model = labels.labels.is_some() || guidelines.is_some() || is_conversation;
    // The name of a model wins over what OpenAI's clients mean by it.
    let is_meant = |name: &&str| !ALIASES.contains(name) || call.app.model(Some(name)).is_ok();
    let name = common.model.as_deref().filter(is_meant);
    let model = classify::model(&call.app, name, asks_language_model)?;
    let ask = Ask {
        call,
        model,
        common,
    };
    let found = scores::found(&ask, judged, (labels, guidelines)).await?;
    let write = move || found.reply(call.app.ids.next("modr-"), &model.name);
    Ok(call.write(0, write).await)
}

#[cfg(test)]
mod tests;
