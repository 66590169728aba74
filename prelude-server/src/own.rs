//! Endpoints that a program adds to the server's: one port, one set of keys, limits, logs and
//! metrics.

use std::{
    future::Future,
    sync::{Arc, PoisonError},
};

use bytes::Bytes;
use serde_json::Value;

use crate::{
    app::App,
    endpoint::{Asking, Call, Endpoint, Needs, Reply},
    error::ApiError,
    in_process, routes,
};

/// A `POST` endpoint of a program that composes a server: it reads a body in a dialect of its own,
/// asks the server's endpoints, and writes their answers in that dialect.
/// [`App::add_endpoint`] puts it into service.
///
/// ```
/// use prelude_server::{ApiError, Bytes, OwnCall, OwnEndpoint};
/// use serde_json::{Value, json};
///
/// /// `POST /length` tells how many tokens a text has.
/// struct Length;
///
/// impl OwnEndpoint for Length {
///     const PATH: &'static str = "/length";
///     const SUMMARY: &'static str = "Counts the tokens of a text";
///
///     async fn answer(call: OwnCall, body: Bytes) -> Result<Value, ApiError> {
///         let Ok(text) = std::str::from_utf8(&body) else {
///             return Err(ApiError::invalid_value("body", "be UTF-8"));
///         };
///         let found = call.ask("/tokenize", &json!({ "prompt": text })).await?;
///         Ok(json!({ "tokens": found["count"] }))
///     }
/// }
/// ```
pub trait OwnEndpoint: 'static {
    /// The path, from its first `/`.
    const PATH: &'static str;
    /// A sentence that `/docs` and `/openapi.json` show.
    const SUMMARY: &'static str;

    /// Answers a body of `application/json`, which is bytes that the server has bounded and not
    /// read.
    fn answer(call: OwnCall, body: Bytes) -> impl Future<Output = Result<Value, ApiError>> + Send;
}

/// A call of an [`OwnEndpoint`], with the rights of its client.
#[derive(Clone, Debug)]
pub struct OwnCall(Arc<Call>);

impl OwnCall {
    /// Returns the id of the request, as logs and the answer's header have it.
    #[must_use]
    pub fn request_id(&self) -> &str {
        &self.0.request_id
    }

    /// Posts `body` to an endpoint of the server, as the client itself might: with its priority, its
    /// deadline, its share of the cache and of the queue.
    ///
    /// # Errors
    /// The endpoint's: `?` hands it to the client.
    pub async fn ask(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        let outer = &self.0;
        let (endpoint, tail) = routes::find(&outer.app, "POST", path)?;
        let id = outer.request_id.clone();
        let mut inner = Call::new(&outer.app, endpoint, tail, id, Asking::default())?;
        inner.named.clone_from(&outer.named);
        inner.client = outer.client.clone();
        inner.strict = outer.strict;
        inner.slo = outer.slo;
        inner.arrival = outer.arrival;
        let inner = Arc::new(inner);
        let answer = in_process::whole(&inner, body.to_string().into()).await;
        outer.note(|seen| *seen = inner.inference());
        let answer = answer?;
        serde_json::from_slice(&answer).map_err(|_| {
            let message = format!("{path} answers with something else than one JSON document");
            ApiError::new(500, "internal", message)
        })
    }
}

impl App {
    /// Puts an endpoint beside those of the server. Requests find it from now on.
    ///
    /// # Panics
    /// If another endpoint has the path.
    pub fn add_endpoint<E: OwnEndpoint>(&self) {
        assert!(
            routes::named(self, E::PATH).is_none(),
            "another endpoint has the path {}",
            E::PATH
        );
        let mut own = self.own.write().unwrap_or_else(PoisonError::into_inner);
        own.push(&Made::<E>::ENDPOINT);
    }
}

/// Makes the endpoint of a type.
struct Made<E>(E);

impl<E: OwnEndpoint> Made<E> {
    const ENDPOINT: Endpoint = Endpoint {
        needs: Needs::Models,
        group: "own",
        summary: E::SUMMARY,
        responses: |generator| crate::endpoint::json::<Value>(generator),
        ..Endpoint::post(&[E::PATH], |call, body| {
            Box::pin(async {
                let answer = E::answer(OwnCall(Arc::clone(call)), body).await?;
                Ok(Reply::json(&answer))
            })
        })
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{
        ApiKeys, ServerConfig, demo,
        identity::Client,
        testing::{app, embedded, options},
    };

    /// Posts the body's `body` to the endpoint that it names.
    struct Relay;

    impl OwnEndpoint for Relay {
        const PATH: &'static str = "/relay";
        const SUMMARY: &'static str = "Relays a request";

        async fn answer(call: OwnCall, body: Bytes) -> Result<Value, ApiError> {
            let read: Value = serde_json::from_slice(&body)
                .map_err(|error| ApiError::invalid_json(error.to_string()))?;
            let path = read["path"].as_str().unwrap_or_default();
            call.ask(path, &read["body"]).await
        }
    }

    fn with_relay() -> Arc<App> {
        let app = app(vec![embedded(&demo::LM, &options())]);
        app.add_endpoint::<Relay>();
        app
    }

    #[tokio::test]
    async fn an_answer_and_a_refusal_are_those_of_the_endpoint_asked() {
        let app = with_relay();
        let check = async |path: &str, body: Value| {
            let direct = app.answer("POST", path, body.to_string()).await;
            let relayed = json!({ "path": path, "body": body }).to_string();
            let relayed = app.answer("POST", "/relay", relayed).await;
            assert_eq!(relayed.status, direct.status, "{path}");
            assert_eq!(relayed.reason, direct.reason, "{path}");
            if direct.status == 200 {
                let read = |body| serde_json::from_slice::<Value>(body).unwrap();
                assert_eq!(read(&relayed.body), read(&direct.body), "{path}");
            }
            assert_eq!(app.admission.reserved(), (0, 0, 0));
        };
        check("/tokenize", json!({ "prompt": "Where is my card?" })).await;
        check("/tokenize", json!({ "prompt": 1 })).await;
        check("/nothing", json!({})).await;
        let streamed = json!({ "prompt": "a", "max_tokens": 1, "stream": true });
        let body = json!({ "path": "/v1/completions", "body": streamed }).to_string();
        let answered = app.answer("POST", "/relay", body).await;
        assert_eq!(answered.status, 500, "{answered:?}");
    }

    #[tokio::test]
    async fn the_endpoint_asked_sees_the_client_and_the_log_sees_its_request() {
        let app = with_relay();
        let (endpoint, tail) = routes::find(&app, "POST", Relay::PATH).unwrap();
        let mut call = Call::new(&app, endpoint, tail, "id".into(), Asking::default()).unwrap();
        call.client = Client {
            best_priority: Some(7),
            ..Client::default()
        };
        let call = Arc::new(call);
        let ask = async |priority: i64| {
            let body = json!({ "input": "a", "labels": ["b", "c"], "priority": priority });
            let body = json!({ "path": "/classify", "body": body }).to_string();
            (endpoint.handle)(&call, body.into()).await
        };
        let refused = ask(3).await.unwrap_err();
        assert_eq!(refused.param(), Some("priority"), "{refused}");
        ask(7).await.unwrap();
        assert!(call.inference().prompt_tokens > 0);
    }

    #[tokio::test]
    async fn the_page_of_routes_has_it() {
        let app = with_relay();
        for path in ["/docs", "/openapi.json"] {
            let page = app.answer("GET", path, "").await.body;
            let page = String::from_utf8(page.to_vec()).unwrap();
            assert!(
                page.contains("/relay") && page.contains(Relay::SUMMARY),
                "{path}"
            );
        }
    }

    #[test]
    #[should_panic(expected = "another endpoint has the path /relay")]
    fn a_path_has_one_endpoint() {
        let app = App::new(ServerConfig::default(), ApiKeys::default());
        app.add_endpoint::<Relay>();
        app.add_endpoint::<Relay>();
    }
}
