//! An endpoint as a value: its paths, what it needs, its types and its handler.
//!
//! Each file of `endpoints/` has one [`Endpoint`] for each of its routes, and `routes.rs` lists
//! them. Routing, limits, metrics and `/openapi.json` follow from these values.

mod call;

use std::{fmt, future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator};

pub use call::Asking;
pub(crate) use call::{Call, Inference, Reply, enter};

use crate::{
    dialects::Table,
    error::{ApiError, Dialect},
    wire::Request,
};

/// An HTTP interface of the server.
pub(crate) struct Endpoint {
    /// The paths; a `*` at the end of one matches any non-empty rest. The first names the endpoint
    /// in metrics and logs, others are aliases.
    pub(crate) paths: &'static [&'static str],
    /// `GET` (which takes HEAD along) or `POST`.
    pub(crate) method: &'static str,
    /// The part of the process that the endpoint needs.
    pub(crate) needs: Needs,
    /// True if an answer may take more than one step.
    pub(crate) generates: bool,
    /// True if an answer has no end: it tells of other requests as long as the client listens, and
    /// neither counts among the requests in flight nor delays the end of the process.
    pub(crate) watches: bool,
    /// The callers that may ask.
    pub(crate) access: Access,
    /// The dialect in which errors are written.
    pub(crate) dialect: Dialect,
    /// Another dialect in which errors may be written, if the request chooses it.
    pub(crate) other_dialect: Option<Dialect>,
    /// The group in the API's description.
    pub(crate) group: &'static str,
    /// A sentence that says what the endpoint does, for the API's description.
    pub(crate) summary: &'static str,
    /// The bodies that a request may have; none if it has no body.
    pub(crate) requests: &'static [Asked],
    /// The bodies of a success.
    pub(crate) responses: fn(&mut SchemaGenerator) -> Bodies,
    /// Answers a call.
    pub(crate) handle: Handler,
}

/// A call being answered, in a box of its endpoint's size: a future as large as the largest
/// endpoint's would be moved and kept for the smallest too.
pub(crate) type Answering<'a> = Pin<Box<dyn Future<Output = Result<Reply, ApiError>> + Send + 'a>>;

/// Answers a call with this body.
pub(crate) type Handler = for<'a> fn(&'a Arc<Call>, Bytes) -> Answering<'a>;

/// The media types and schemas of a body, in one form or several.
pub(crate) type Bodies = Vec<(&'static str, Schema)>;

/// The part of the process that an endpoint needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// The endpoint needs nothing: it answers in every phase.
    Nothing,
    /// The endpoint needs models and their tokenizers.
    Models,
    /// Room in the queue: the endpoint makes an engine work.
    Queue,
}

/// The callers that may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Callers with a key, where the server has keys.
    Key,
    /// All callers may use the endpoint.
    Open,
    /// All callers may use the endpoint, unless the server protects its metrics.
    Metrics,
}

impl Endpoint {
    /// Returns an endpoint that makes an engine work.
    pub(crate) const fn post(paths: &'static [&'static str], handle: Handler) -> Self {
        Self {
            paths,
            method: "POST",
            needs: Needs::Queue,
            generates: false,
            watches: false,
            access: Access::Key,
            dialect: Dialect::OpenAi,
            other_dialect: None,
            group: "",
            summary: "",
            requests: &[],
            responses: no_body,
            handle,
        }
    }

    /// Returns an endpoint that tells something of the process.
    pub(crate) const fn get(paths: &'static [&'static str], handle: Handler) -> Self {
        Self {
            method: "GET",
            needs: Needs::Nothing,
            ..Self::post(paths, handle)
        }
    }

    /// Returns the endpoint's path, as metrics and logs name it whatever alias was used.
    pub(crate) const fn route(&self) -> &'static str {
        self.paths[0]
    }

    /// Returns true if a call without a key is answered.
    pub(crate) fn is_open(&self, protect_metrics: bool) -> bool {
        match self.access {
            Access::Key => false,
            Access::Open => true,
            Access::Metrics => !protect_metrics,
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.route())
    }
}

/// A body that a request may have.
pub(crate) struct Asked {
    pub(crate) schema: fn(&mut SchemaGenerator) -> Schema,
    /// The fields of the body, and of its like on other servers.
    #[cfg_attr(not(test), expect(dead_code, reason = "the guide tells it"))]
    pub(crate) tables: &'static [Table],
}

/// Returns the description of a body.
pub(crate) const fn asked<R: Request<'static> + JsonSchema>() -> Asked {
    Asked {
        schema: |generator| generator.subschema_for::<R>(),
        tables: R::TABLES,
    }
}

/// Returns one JSON body.
pub(crate) fn json<T: JsonSchema>(generator: &mut SchemaGenerator) -> Bodies {
    vec![("application/json", generator.subschema_for::<T>())]
}

/// Returns one of two JSON bodies.
pub(crate) fn either<A: JsonSchema, B: JsonSchema>(generator: &mut SchemaGenerator) -> Bodies {
    let of = [
        generator.subschema_for::<A>(),
        generator.subschema_for::<B>(),
    ];
    vec![("application/json", schemars::json_schema!({ "anyOf": of }))]
}

/// Returns a JSON body, or server-sent events that each hold a `chunk`.
pub(crate) fn events<T: JsonSchema>(generator: &mut SchemaGenerator, chunk: &str) -> Bodies {
    // The schema has no type: to some tools a stream is one text, to others each event is an
    // object.
    let mut schema = schemars::json_schema!({});
    let what = format!(
        "Events `data: {chunk}`, one for each piece of the answer, the last `data: [DONE]`."
    );
    schema.insert("description".to_owned(), what.into());
    let mut bodies = json::<T>(generator);
    bodies.push(("text/event-stream", schema));
    bodies
}

fn no_body(_: &mut SchemaGenerator) -> Bodies {
    Vec::new()
}

/// Returns the seconds since 1970, for `created`.
pub(crate) fn unix_seconds() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    // A clock before 1970 is wrong by more than we can mend.
    since.map_or(0, |d| d.as_secs())
}
