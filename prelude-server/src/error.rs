//! The one error a handler returns: a status, a stable reason and a message for the caller.
//!
//! Messages name fields, limits and positions. They never hold a prompt, an output, a path or
//! the text of a library's error.

use std::{borrow::Cow, fmt, time::Duration};

use prelude_hub::Progress;
use serde_json::{Value, json};

/// Names of served models that a message lists at most.
const NAMES_SHOWN: usize = 32;

/// The shape of an error's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `{"error": {..}}`.
    #[default]
    OpenAi,
    /// `{"error": {..}, "detail": ..}`: System One clients read `detail`.
    SystemOne,
    /// `{"error", "error_type"}`, as TEI's clients read it.
    Tei,
}

/// A refusal or a failure, ready to be sent.
#[derive(Clone, Debug)]
pub struct ApiError(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    status: u16,
    reason: &'static str,
    message: Cow<'static, str>,
    param: Option<Cow<'static, str>>,
    retry_after: Option<Duration>,
    should_retry: Option<bool>,
    allow: Option<&'static str>,
    close: bool,
    detail: Option<Value>,
    dialect: Option<Dialect>,
}

impl ApiError {
    /// Returns an error of any status. Prefer the named constructors: they fix status and reason.
    pub(crate) fn new(
        status: u16,
        reason: &'static str,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self(Box::new(Inner {
            status,
            reason,
            message: message.into(),
            param: None,
            retry_after: None,
            should_retry: None,
            allow: None,
            close: false,
            detail: None,
            dialect: None,
        }))
    }

    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.0.status
    }

    /// Returns the reason: a slug that does not change.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.0.reason
    }

    /// Returns what was wrong and what to do.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the field at fault: a name, or a JSON pointer below the top level.
    #[must_use]
    pub fn param(&self) -> Option<&str> {
        self.0.param.as_deref()
    }

    pub(crate) fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    pub(crate) fn should_retry(&self) -> Option<bool> {
        self.0.should_retry
    }

    pub(crate) fn allow(&self) -> Option<&'static str> {
        self.0.allow
    }

    /// Returns true if the connection ends with this response.
    pub(crate) fn closes(&self) -> bool {
        self.0.close
    }

    /// Names the field at fault.
    #[must_use]
    pub(crate) fn with_param(mut self, param: impl Into<Cow<'static, str>>) -> Self {
        self.0.param = Some(param.into());
        self
    }

    /// Says when to come back.
    #[must_use]
    pub(crate) fn with_retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// Ends the connection with this response.
    #[must_use]
    pub(crate) fn closing(mut self) -> Self {
        self.0.close = true;
        self
    }

    /// Sets `detail`, written beside `error` in whatever dialect.
    #[must_use]
    pub(crate) fn with_detail(mut self, detail: Value) -> Self {
        self.0.detail = Some(detail);
        self
    }

    /// Writes the body in the dialect that the request chose, whatever its route's is.
    #[must_use]
    pub(crate) fn in_dialect(mut self, dialect: Dialect) -> Self {
        self.0.dialect = Some(dialect);
        self
    }

    /// Puts words before the message, for clients that search for them.
    #[must_use]
    pub(crate) fn prefixed(mut self, prefix: &str) -> Self {
        self.0.message = format!("{prefix}{}", self.0.message).into();
        self
    }

    /// Changes the status and keeps the rest: 400 becomes 422 where a dialect wants it.
    #[must_use]
    pub(crate) fn with_status(mut self, status: u16) -> Self {
        self.0.status = status;
        self
    }

    /// Returns `{"message", "type", "param", "code", "reason"}`.
    pub(crate) fn to_value(&self) -> Value {
        json!({
            "message": self.0.message,
            "type": type_name(self.0.status),
            "param": self.0.param,
            "code": self.0.status,
            "reason": self.0.reason,
        })
    }

    /// Returns the response body.
    pub(crate) fn to_json(&self, dialect: Dialect) -> Vec<u8> {
        let dialect = self.0.dialect.unwrap_or(dialect);
        if dialect == Dialect::Tei {
            let error_type = tei_type(self.0.status, self.0.reason);
            let body = json!({ "error": self.0.message, "error_type": error_type });
            return body.to_string().into_bytes();
        }
        let mut body = json!({ "error": self.to_value() });
        let detail = self.0.detail.clone().or_else(|| match dialect {
            Dialect::OpenAi | Dialect::Tei => None,
            Dialect::SystemOne => Some(json!({
                "error_type": system_one_type(self.0.status),
                "message": self.0.message,
            })),
        });
        if let Some(detail) = detail {
            body["detail"] = detail;
        }
        body.to_string().into_bytes()
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            status,
            reason,
            message,
            ..
        } = &*self.0;
        write!(f, "{status} {reason}: {message}")
    }
}

impl std::error::Error for ApiError {}

/// 400: the request is wrong.
impl ApiError {
    /// Returns the error for a body that is not JSON.
    #[must_use]
    pub fn invalid_json(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(400, "invalid_json", message)
    }

    /// Returns the error for a field of the wrong JSON type.
    pub(crate) fn invalid_type(param: impl Into<Cow<'static, str>>, must_be: &str) -> Self {
        let param = param.into();
        Self::new(
            400,
            "invalid_type",
            format!("field `{param}` must be {must_be}"),
        )
        .with_param(param)
    }

    /// Returns the error for a field whose value is out of range or contradicts another; `must`
    /// completes "field `x` must ...".
    #[must_use]
    pub fn invalid_value(param: impl Into<Cow<'static, str>>, must: impl fmt::Display) -> Self {
        let param = param.into();
        Self::new(400, "invalid_value", format!("field `{param}` must {must}")).with_param(param)
    }

    /// Returns the error for a required field that is absent or null.
    pub(crate) fn missing_field(param: impl Into<Cow<'static, str>>) -> Self {
        let param = param.into();
        Self::new(400, "missing_field", format!("field `{param}` is required")).with_param(param)
    }

    /// Refuses the first of these fields that is given with a value of its own.
    ///
    /// # Errors
    /// 400 `unsupported_parameter`.
    pub(crate) fn refuse_given(fields: &[(&'static str, bool)]) -> Result<(), Self> {
        match fields.iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(Self::unsupported_parameter(*name)),
            None => Ok(()),
        }
    }

    /// Returns the error for a field that is known and not implemented, unless it has its neutral
    /// value.
    pub(crate) fn unsupported_parameter(param: impl Into<Cow<'static, str>>) -> Self {
        let param = param.into();
        Self::new(
            400,
            "unsupported_parameter",
            format!("field `{param}` is not supported by this server; leave it out"),
        )
        .with_param(param)
    }

    /// Returns the error for a field of other servers that is not served, with the reason.
    pub(crate) fn refused_field(name: String, reason: &str) -> Self {
        let message = format!("field `{name}` is not supported by this server: {reason}");
        Self::new(400, "unsupported_parameter", message).with_param(name)
    }

    /// Returns the error for a request to keep special tokens apart whose texts are put into prompts as
    /// they are.
    pub(crate) fn special_tokens_not_kept_apart() -> Self {
        let message = "this request puts texts into prompts without keeping special tokens apart: \
            leave the field out, or escape them yourself";
        Self::new(400, "unsupported_parameter", message).with_param("escape_special_tokens")
    }

    /// Returns the error for an unknown field, under `x-prelude-strict: 1`.
    pub(crate) fn unknown_field(param: impl Into<Cow<'static, str>>) -> Self {
        let param = param.into();
        Self::new(
            400,
            "unknown_field",
            format!("field `{param}` is unknown, and the request asked for strict parsing"),
        )
        .with_param(param)
    }

    /// Returns the error for an endpoint that the model's kind does not serve. `serves` lists what it
    /// does serve; `flag` is what makes it serve the endpoint too, if anything does.
    pub(crate) fn unsupported_task(
        model: &str,
        kind: &str,
        task: &str,
        serves: &str,
        flag: Option<&str>,
    ) -> Self {
        let flag = flag.map_or_else(String::new, |flag| {
            format!("; for {task} its server must be started with {flag}")
        });
        Self::new(
            400,
            "unsupported_task",
            format!(
                "model {model:?} (kind {kind}) does not serve {task}; it serves: {serves}{flag}"
            ),
        )
        .with_param("model")
    }

    /// Returns the error for a prompt that (with its output budget) exceeds the context. Clients search
    /// for the wording.
    pub(crate) fn context_length_exceeded(
        param: impl Into<Cow<'static, str>>,
        max_model_len: u32,
        prompt_tokens: u64,
        output_tokens: u64,
    ) -> Self {
        let param = param.into();
        let requested = prompt_tokens.saturating_add(output_tokens);
        let advice = shorten(&param, output_tokens > 0);
        let message = format!(
            "This model's maximum context length is {max_model_len} tokens. However, you \
             requested {requested} tokens ({prompt_tokens} in the prompt, {output_tokens} for \
             the output). {advice}"
        );
        Self::new(400, "context_length_exceeded", message).with_param(param)
    }

    /// Returns the error for a text so long that its ids exceed the context, however many there are.
    pub(crate) fn context_bytes_exceeded(
        param: impl Into<Cow<'static, str>>,
        max_model_len: u32,
        bytes: usize,
        least: usize,
    ) -> Self {
        let param = param.into();
        let advice = shorten(&param, false);
        let message = format!(
            "This model's maximum context length is {max_model_len} tokens. However, you \
             requested {least} tokens or more ({bytes} bytes of text). {advice}"
        );
        Self::new(400, "context_length_exceeded", message).with_param(param)
    }

    /// Returns the error for an id outside the vocabulary.
    pub(crate) fn token_out_of_range(
        param: impl Into<Cow<'static, str>>,
        id: u64,
        vocab_size: u32,
    ) -> Self {
        let message = format!("token id {id} is out of range: the vocabulary has {vocab_size} ids");
        Self::new(400, "token_out_of_range", message).with_param(param)
    }

    /// Returns the error for more rows than one request may have.
    pub(crate) fn too_many_rows(rows: u64, max: u64) -> Self {
        let message = format!("the request has {rows} rows, the limit is {max}; split it");
        Self::new(400, "too_many_rows", message)
    }

    /// Returns the error for more numbers than one answer may print.
    pub(crate) fn too_many_numbers(numbers: u64, max: u64) -> Self {
        let message = format!(
            "the answer would print {numbers} numbers, the limit is {max}; ask for fewer inputs, \
             choices or numbers of each"
        );
        Self::new(400, "too_many_numbers", message)
    }

    /// Returns the error for an answer that would repeat too much of its prompts.
    pub(crate) fn too_much_echo(bytes: u64, max: u64) -> Self {
        let message = format!(
            "the answer would repeat {bytes} bytes of prompts, the limit is {max}; ask for fewer \
             choices (`n`), or leave `echo` and `return_token_ids` out"
        );
        Self::new(400, "too_much_echo", message)
    }

    /// Returns the error for a request that the queue could not take even when empty.
    pub(crate) fn larger_than_queue(what: &str, asked: u64, max: u64) -> Self {
        let message =
            format!("the request needs {asked} {what}, the whole queue holds {max}; split it");
        Self::new(400, "larger_than_queue", message)
    }

    /// Returns the error for a deadline that no engine of this speed meets.
    pub(crate) fn deadline_infeasible(slo: Duration, least: Duration) -> Self {
        let message = format!(
            "a deadline of {} ms cannot be met: an idle engine takes {:.3} ms at least",
            slo.as_millis(),
            least.as_secs_f64() * 1e3
        );
        Self::new(400, "deadline_infeasible", message).with_param("slo_ttft_ms")
    }

    /// A constraint that is malformed, or that cannot be enforced. `must` completes "must ..".
    #[cfg_attr(
        not(feature = "llguidance"),
        expect(dead_code, reason = "of grammars alone")
    )]
    pub(crate) fn grammar(must: impl fmt::Display, param: impl Into<Cow<'static, str>>) -> Self {
        let param = param.into();
        Self::new(400, "grammar_error", format!("`{param}` must {must}")).with_param(param)
    }

    /// Returns the error for a constraint that takes more than the server grants.
    pub(crate) fn grammar_too_complex(message: String, param: &'static str) -> Self {
        Self::new(400, "grammar_too_complex", message).with_param(param)
    }

    /// Returns the error for an answer that nothing can go on with after `tokens` tokens. Half of
    /// what was asked for is not an answer, and the same request would end there again.
    pub(crate) fn dead_end(tokens: u64) -> Self {
        let message = format!(
            "after {tokens} tokens none may come next: the constraint together with \
             `allowed_token_ids` and `min_tokens` leaves none, or it needs more than a parser may \
             spend on one; loosen it"
        );
        Self::new(400, "constraint_dead_end", message)
    }

    /// Returns the error for messages that the chat template refused or could not render.
    pub(crate) fn template(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(400, "template_error", message).with_param("messages")
    }
}

/// Says what to do about a text that is too long: of a list, which one it is.
fn shorten(param: &str, has_output: bool) -> String {
    match (param.starts_with('/'), has_output) {
        (false, false) => "Shorten the prompt.".to_owned(),
        (false, true) => "Shorten the prompt or the output.".to_owned(),
        (true, true) => format!("Shorten `{param}` or the output."),
        (true, false) => format!(
            "Shorten `{param}`, or have it cut: by `truncate_prompt_tokens` (TEI: `truncate`), or by \
             --auto-truncate where the server starts."
        ),
    }
}

/// 401 to 431: the request is not for us, or not in this form.
impl ApiError {
    /// Returns the error for a key that is missing or wrong.
    pub(crate) fn unauthorized() -> Self {
        let message = "a valid API key is required: `Authorization: Bearer <key>` or `x-api-key`";
        Self::new(401, "invalid_api_key", message)
    }

    /// Returns the error for a request to a name that is not this server's.
    pub(crate) fn foreign_host() -> Self {
        let message = "the request's host is no name of this machine; behind a proxy, list the name \
            that it passes on in `server.hosts`";
        Self::new(403, "foreign_origin", message)
    }

    /// Returns the error for a request of a page that is not this server's.
    pub(crate) fn foreign_origin() -> Self {
        let message = "the request comes from a page of another origin; list that in \
            `server.cors_origins` if it may ask";
        Self::new(403, "foreign_origin", message)
    }

    /// Returns the error for a path that does not exist.
    pub(crate) fn not_found() -> Self {
        Self::new(
            404,
            "not_found",
            "no such path; GET /openapi.json lists all",
        )
    }

    /// Returns the error for a model name that is not among those served, which are `served`.
    pub(crate) fn model_not_found<'a>(name: &str, served: impl Iterator<Item = &'a str>) -> Self {
        // A name may be as long as the body; the message is not.
        let shown: String = name.chars().take(128).collect();
        let served: Vec<&str> = served.collect();
        let listed = &served[..served.len().min(NAMES_SHOWN)];
        let more = match served.len() - listed.len() {
            0 => "",
            _ => ", and others that GET /v1/models lists",
        };
        let listed = listed.join(", ");
        let message = format!("the model {shown:?} is not served here; served are {listed}{more}");
        Self::new(404, "model_not_found", message).with_param("model")
    }

    /// Returns the error for a known path with another method. `allow` lists the methods it has.
    pub(crate) fn method_not_allowed(allow: &'static str) -> Self {
        let message = format!("this path takes {allow}");
        let mut error = Self::new(405, "method_not_allowed", message);
        error.0.allow = Some(allow);
        error
    }

    /// Returns the error for a client that did not finish sending in time.
    pub(crate) fn request_timeout(message: &'static str) -> Self {
        Self::new(408, "request_timeout", message).closing()
    }

    /// Returns the error for a body that is too large.
    pub(crate) fn body_too_large(max_bytes: u64) -> Self {
        let message = format!("the request body exceeds the limit of {max_bytes} bytes");
        Self::new(413, "body_too_large", message).closing()
    }

    /// Returns the error for a body that is said to be gzip'd and is not.
    pub(crate) fn invalid_gzip() -> Self {
        let message = "the body is not gzip'd as `Content-Encoding` says, or ends early";
        Self::new(400, "invalid_gzip", message)
    }

    /// Returns the error for a request target that is too long.
    pub(crate) fn uri_too_long(max_bytes: usize) -> Self {
        let message = format!("the request target exceeds the limit of {max_bytes} bytes");
        Self::new(414, "uri_too_long", message)
    }

    /// Returns the error for a wrong `Content-Type` or `Content-Encoding`.
    pub(crate) fn unsupported_media_type(message: &'static str) -> Self {
        Self::new(415, "unsupported_media_type", message)
    }

    /// Returns the error for too many or too large headers.
    pub(crate) fn headers_too_large(max_headers: usize, max_bytes: usize) -> Self {
        let message =
            format!("the headers exceed the limit of {max_headers} headers and {max_bytes} bytes");
        Self::new(431, "headers_too_large", message)
    }
}

/// 429: healthy, but this request is shed.
impl ApiError {
    /// Returns the error for a queue that has no room now.
    pub(crate) fn queue_full(message: impl Into<Cow<'static, str>>, retry: Duration) -> Self {
        Self::new(429, "queue_full", message).with_retry_after(retry)
    }

    /// Returns the error for a queue that has room, but not for more of the request's class.
    pub(crate) fn class_quota(message: String, retry: Duration) -> Self {
        Self::new(429, "class_quota", message).with_retry_after(retry)
    }

    /// Returns the error 429 for waiting requests that take longer than the deadline leaves.
    pub(crate) fn deadline_unmeetable(wait: Duration, left: Duration) -> Self {
        let message = format!(
            "what waits is expected to take {} ms, the deadline leaves {} ms",
            wait.as_millis(),
            left.as_millis()
        );
        let later = wait.saturating_sub(left);
        let later = later.clamp(Duration::from_secs(1), Duration::from_secs(60));
        Self::new(429, "deadline_unmeetable", message).with_retry_after(later)
    }

    /// Returns the error for a deadline that passed while the request waited.
    pub(crate) fn deadline_expired() -> Self {
        let message = "the deadline passed while the request waited";
        let mut error = Self::new(429, "deadline_expired", message);
        error.0.retry_after = Some(Duration::from_secs(1));
        error.0.should_retry = Some(false);
        error
    }
}

/// 5xx: our fault, or this process is not in service.
impl ApiError {
    /// Returns the error for a failed step that computed this request. The cause goes to the log, not
    /// to the caller.
    pub(crate) fn step_failed(request_id: &str) -> Self {
        let message = format!("the request could not be computed (request id {request_id})");
        Self::new(500, "step_failed", message)
    }

    /// Returns the error for a bug.
    pub(crate) fn internal(request_id: &str) -> Self {
        let message = format!("internal error (request id {request_id})");
        Self::new(500, "internal", message)
    }

    /// Returns the error for models that are still being loaded.
    pub(crate) fn loading() -> Self {
        Self::new(503, "loading", "the model is being loaded")
            .with_retry_after(Duration::from_secs(5))
    }

    /// Returns the error for models that are still being downloaded.
    pub(crate) fn downloading(progress: &Progress) -> Self {
        let Progress {
            files,
            files_total,
            bytes,
            bytes_total,
        } = *progress;
        let decimal = |bytes: u64| match bytes as f64 {
            bytes if bytes < 1e9 => format!("{:.2} MB", bytes / 1e6),
            bytes => format!("{:.2} GB", bytes / 1e9),
        };
        let message = format!(
            "the model is being downloaded: {files} of {files_total} files, {} of {}",
            decimal(bytes),
            decimal(bytes_total)
        );
        Self::new(503, "loading", message).with_retry_after(Duration::from_secs(5))
    }

    /// Returns the error for a process that is about to stop.
    pub(crate) fn draining() -> Self {
        Self::new(503, "draining", "this server is stopping")
            .with_retry_after(Duration::from_secs(5))
            .closing()
    }

    /// Returns the error for an engine that has stopped for good.
    pub(crate) fn engine_dead() -> Self {
        Self::new(503, "engine_dead", "the engine has stopped")
            .with_retry_after(Duration::from_secs(5))
    }

    /// Returns the error for packed weights that are not those that were written.
    pub(crate) fn weights_damaged(what: &str) -> Self {
        Self::new(503, "weights_damaged", what.to_owned()).with_retry_after(Duration::from_secs(5))
    }

    /// Returns the error for a connection beyond the limit.
    pub(crate) fn too_many_connections() -> Self {
        Self::new(503, "too_many_connections", "too many open connections")
            .with_retry_after(Duration::from_secs(1))
            .closing()
    }
}

fn type_name(status: u16) -> &'static str {
    match status {
        401 => "AuthenticationError",
        403 => "PermissionDeniedError",
        404 => "NotFoundError",
        405 => "MethodNotAllowedError",
        408 => "RequestTimeoutError",
        413 => "PayloadTooLargeError",
        415 => "UnsupportedMediaTypeError",
        422 => "UnprocessableEntityError",
        429 => "RateLimitError",
        503 => "ServiceUnavailableError",
        500.. => "InternalServerError",
        _ => "BadRequestError",
    }
}

fn tei_type(status: u16, reason: &str) -> &'static str {
    match (status, reason) {
        (429, _) => "Overloaded",
        (503, "too_many_connections" | "queue_full" | "class_quota") => "Overloaded",
        (503, _) => "Unhealthy",
        (500.., _) => "Backend",
        (_, "context_length_exceeded" | "token_out_of_range") => "Tokenizer",
        _ => "Validation",
    }
}

fn system_one_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        404 => "not_found",
        408 => "timeout",
        413 => "max_tokens_exceeded",
        429 | 503 => "overloaded",
        500.. => "internal_error",
        _ => "invalid_request",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(error: &ApiError, dialect: Dialect, expected: &str) {
        assert_eq!(String::from_utf8(error.to_json(dialect)).unwrap(), expected);
    }

    #[test]
    fn errors_have_the_body_of_their_dialect() {
        check(
            &ApiError::queue_full("queue is full: 8 of 8 rows", Duration::from_secs(2)),
            Dialect::OpenAi,
            r#"{"error":{"message":"queue is full: 8 of 8 rows","type":"RateLimitError","param":null,"code":429,"reason":"queue_full"}}"#,
        );
        check(
            &ApiError::missing_field("prompt"),
            Dialect::OpenAi,
            r#"{"error":{"message":"field `prompt` is required","type":"BadRequestError","param":"prompt","code":400,"reason":"missing_field"}}"#,
        );
        check(
            &ApiError::unauthorized().with_detail(json!(1)),
            Dialect::SystemOne,
            r#"{"error":{"message":"a valid API key is required: `Authorization: Bearer <key>` or `x-api-key`","type":"AuthenticationError","param":null,"code":401,"reason":"invalid_api_key"},"detail":1}"#,
        );
        check(
            &ApiError::loading(),
            Dialect::SystemOne,
            r#"{"error":{"message":"the model is being loaded","type":"ServiceUnavailableError","param":null,"code":503,"reason":"loading"},"detail":{"error_type":"overloaded","message":"the model is being loaded"}}"#,
        );
    }

    #[test]
    fn a_long_context_message_begins_as_clients_expect() {
        let error = ApiError::context_length_exceeded("prompt", 64, 60, 16);
        assert!(error.message().starts_with(
            "This model's maximum context length is 64 tokens. However, you requested 76 tokens"
        ));
    }
}
