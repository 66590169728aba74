//! Asking without a connection: one-shot commands run the same handlers as the server.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    app::App,
    endpoint::{Asking, Call, Needs, Reply},
    error::ApiError,
    panics::catch_panic,
    routes,
};

/// An answer without a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The status a client would have seen.
    pub status: u16,
    /// The body a client would have seen; of a stream, all its events; of a stream without an end,
    /// the first.
    pub body: Bytes,
    /// The request's id, as in logs.
    pub request_id: String,
    /// The stable slug of a refusal or failure.
    pub reason: Option<&'static str>,
}

impl App {
    /// Answers a request as the server would: same checks, same limits, same body.
    ///
    /// ```no_run
    /// # async fn example(app: std::sync::Arc<prelude_server::App>) {
    /// let body = r#"{"prompt": "Where is my", "max_tokens": 4}"#;
    /// let answered = app.answer("POST", "/v1/completions", body).await;
    /// assert_eq!(answered.status, 200);
    /// # }
    /// ```
    pub async fn answer(
        self: &Arc<Self>,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Answered {
        self.answer_as(Asking::default(), method, path, body).await
    }

    /// Answers a request as [`App::answer`] does, in the way that `asking` says.
    pub async fn answer_as(
        self: &Arc<Self>,
        asking: Asking,
        method: &str,
        path: &str,
        body: impl Into<Bytes>,
    ) -> Answered {
        let dialect =
            routes::named(self, path).map_or_else(Default::default, |endpoint| endpoint.dialect);
        let request_id = self.ids.next("req-");
        let id = (request_id.clone(), asking);
        match self.try_answer(method, path, body.into(), id).await {
            Ok(body) => Answered {
                status: 200,
                body,
                request_id,
                reason: None,
            },
            Err(error) => Answered {
                status: error.status(),
                body: error.to_json(dialect).into(),
                request_id,
                reason: Some(error.reason()),
            },
        }
    }

    /// Returns true if this path is an inference route, which makes an engine work.
    #[must_use]
    pub fn infers(path: &str) -> bool {
        routes::among(routes::ENDPOINTS, path)
            .is_some_and(|(endpoint, _)| endpoint.needs == Needs::Queue)
    }

    /// Returns an id that no other answer has: `prefix` and 128 random bits in hex.
    #[must_use]
    pub fn answer_id(&self, prefix: &str) -> String {
        self.ids.next(prefix)
    }

    async fn try_answer(
        self: &Arc<Self>,
        method: &str,
        path: &str,
        body: Bytes,
        (request_id, asking): (String, Asking),
    ) -> Result<Bytes, ApiError> {
        let (endpoint, tail) = routes::find(self, method, path)?;
        let max_bytes = self.config.limits.body_bytes;
        if body.len() as u64 > max_bytes {
            return Err(ApiError::body_too_large(max_bytes));
        }
        let call = Arc::new(Call::new(self, endpoint, tail, request_id, asking)?);
        catch_panic(&call.request_id, Box::pin(whole(&call, body))).await
    }
}

/// Returns the answer's bytes; of a stream, all there are, or the first ones if it has no end.
pub(crate) async fn whole(call: &Arc<Call>, body: Bytes) -> Result<Bytes, ApiError> {
    match (call.endpoint.handle)(call, body).await? {
        Reply::Json(body) | Reply::Text { body, .. } | Reply::Page { body, .. } => Ok(body),
        Reply::Empty => Ok(Bytes::new()),
        Reply::Stream(mut events) => {
            let mut all = Vec::new();
            while let Some(bytes) = events.next().await {
                all.extend_from_slice(&bytes);
                if call.endpoint.watches {
                    break;
                }
            }
            Ok(all.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Asking, Call};
    use crate::{
        ApiKeys, App, ServerConfig, demo,
        endpoints::classify,
        served_model::Task,
        testing::{app, embedded, options},
    };

    #[tokio::test]
    async fn who_asks_for_nothing_of_an_engine_takes_no_room() {
        let app = App::new(ServerConfig::default(), ApiKeys::default());
        let metrics = app.answer("GET", "/metrics", "").await.body;
        let page = String::from_utf8(metrics.to_vec()).unwrap();
        let arriving = "prelude:queue_rows{class=\"arriving\"";
        let line = page.lines().find(|line| line.starts_with(arriving));
        assert!(line.unwrap().ends_with(" 0"), "{line:?}");
    }

    /// A request without a connection is refused before it is read, as over a connection.
    #[tokio::test]
    async fn a_class_has_its_share_of_the_queue_from_the_start() {
        let mut config = ServerConfig::default();
        config.limits.queued_oneshot_rows = Some(1);
        let app = App::new(config, ApiKeys::default());
        let check = async |path: &str, expected: &str| {
            let answered = app.answer("POST", path, "{").await;
            assert_eq!(answered.reason, Some(expected), "{path}");
        };
        check("/classify", "invalid_json").await;
        let id = "first".to_owned();
        let asking = Asking::default();
        let first = Call::new(&app, &classify::CLASSIFY, None, id, asking).unwrap();
        check("/classify", "class_quota").await;
        // It may be no one-shot request: that is known once it is read.
        check("/v1/completions", "invalid_json").await;
        drop(first);
        check("/classify", "invalid_json").await;
    }

    #[tokio::test]
    async fn unknown_fields_are_refused_if_asked() {
        let app = app(vec![embedded(&demo::LM, &options())]);
        let body = r#"{"prompt":"a","max_tokens":1,"temprature":0}"#;
        assert_eq!(
            app.answer("POST", "/v1/completions", body).await.status,
            200
        );
        let asking = Asking {
            strict: true,
            ..Asking::default()
        };
        let refused = app.answer_as(asking, "POST", "/v1/completions", body).await;
        assert_eq!(refused.reason, Some("unknown_field"), "{refused:?}");
    }

    #[tokio::test]
    async fn a_panic_fails_its_request_alone() {
        let mut broken = embedded(&demo::LM, &options());
        // A promise that loading keeps, broken here.
        broken.model.tasks.push(Task::Embeddings);
        assert!(broken.model.vectors().is_none());
        let app = app(vec![broken]);
        let failed = app.answer("POST", "/v1/embeddings", r#"{"input":"a"}"#);
        assert_eq!(failed.await.status, 500);
        let fine = r#"{"prompt":"a","max_tokens":1}"#;
        assert_eq!(
            app.answer("POST", "/v1/completions", fine).await.status,
            200
        );
        assert_eq!(app.admission.reserved(), (0, 0, 0));
    }
}
