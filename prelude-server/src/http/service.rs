//! A request from its head to its answer. Checks are made in the order of their cost, so that a
//! refusal costs less than the work that it refuses.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use hyper::{
    HeaderMap, Method, Request, Response,
    body::{Body, Incoming},
    header::{self, HeaderValue},
};

use super::{
    body, cors, foreign, reply_body::ReplyBody, request_log::RequestLog, respond,
    socket::Connection,
};
use crate::{
    app::App,
    endpoint::{Call, Endpoint, Needs, Reply, enter},
    error::{ApiError, Dialect},
    identity::{self, Client},
    lifecycle::Phase,
    panics::catch_panic,
    routes,
};

/// Upper bound of `x-slo-ttft-ms`: a day.
const SLO_MAX_MS: u64 = 86_400_000;

/// Answers a request. Refusals and failures are responses too.
pub(super) async fn serve(
    app: Arc<App>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Result<Response<ReplyBody>, Infallible> {
    let id = request_id(&app, request.headers());
    let mut log = RequestLog::new(&app, &connection, &request, id);
    let mut dialect = Dialect::OpenAi;
    let (parts, mut body) = request.into_parts();
    let had_body = !body.is_end_stream();
    let origin = cors::origin(&app.config, &parts.headers);
    if let Some(origin) = &origin
        && cors::is_preflight(&parts)
    {
        let mut headers = cors::preflight(&parts.headers);
        cors::allow(origin.clone(), &mut headers);
        return Ok(respond::preflight(&app, headers, log));
    }
    let answer = {
        let work = admit(&app, &parts, &mut body, &mut log, &mut dialect);
        tokio::select! {
            answer = work => answer,
            () = app.lifecycle.reached(Phase::Ending) => Err(ApiError::draining()),
        }
    };
    if had_body && !body.is_end_stream() {
        connection.leave_body_unread();
    }
    let mut response = match answer {
        Ok(reply) => respond::reply(&app, reply, log),
        Err(error) => respond::error(&app, &error, dialect, log),
    };
    if let Some(origin) = origin {
        cors::allow(origin, response.headers_mut());
    }
    Ok(response)
}

async fn admit(
    app: &Arc<App>,
    parts: &hyper::http::request::Parts,
    body: &mut Incoming,
    log: &mut RequestLog,
    dialect: &mut Dialect,
) -> Result<Reply, ApiError> {
    let path = parts.uri.path();
    check_head(app, parts)?;
    foreign::check(app, parts)?;
    let found = routes::find(app, parts.method.as_str(), path);
    if let Some(endpoint) = routes::named(app, path) {
        *dialect = endpoint.dialect;
        log.routed(endpoint);
    }
    let client = client(app, path, &parts.headers)?;
    let (endpoint, tail) = found?;
    if endpoint.watches {
        log.stand_aside();
    }
    let coding = match parts.method == Method::POST {
        true => check_media_type(&parts.headers)?,
        false => Coding::Identity,
    };
    let declared = body.size_hint().exact();
    let limits = &app.config.limits;
    if declared.is_some_and(|d| d > limits.body_bytes) {
        return Err(ApiError::body_too_large(limits.body_bytes));
    }
    let declared = declared.unwrap_or(0);
    let call = admit_call(app, parts, (endpoint, tail), client, declared, log)?;
    log.admitted(&call);
    let mut body = body::read(body, limits, &call.reservation).await?;
    if coding == Coding::Gzip {
        body = body::unpack(app, &body, &call.reservation).await?;
    }
    catch_panic(&call.request_id, (call.endpoint.handle)(&call, body)).await
}

/// Makes the last checks before the body is read, and reserves room in the queue.
fn admit_call(
    app: &Arc<App>,
    parts: &hyper::http::request::Parts,
    (endpoint, tail): (&'static Endpoint, Option<&str>),
    client: Client,
    declared: u64,
    log: &RequestLog,
) -> Result<Arc<Call>, ApiError> {
    if endpoint.needs != Needs::Nothing {
        app.accepting()?;
        app.admission.check_answers()?;
    }
    let reservation = enter(app, endpoint, declared)?;
    Ok(Arc::new(Call {
        app: Arc::clone(app),
        endpoint,
        tail: tail.map(str::to_owned),
        request_id: log.request_id().to_owned(),
        named: named(&parts.headers),
        client,
        strict: strict(&parts.headers)?,
        inline: None,
        slo: slo(&parts.headers)?,
        arrival: log.arrival(),
        reservation,
        seen: Mutex::default(),
    }))
}

fn request_id(app: &App, headers: &HeaderMap) -> String {
    client_id(headers).map_or_else(|| app.ids.next("req-"), str::to_owned)
}

fn client_id(headers: &HeaderMap) -> Option<&str> {
    let id = headers.get("x-request-id")?.to_str().ok()?;
    identity::is_request_id(id).then_some(id)
}

/// Returns the id in the request's header, which a `request_id` in the body does not replace.
fn named(headers: &HeaderMap) -> OnceLock<String> {
    client_id(headers).map_or_else(OnceLock::new, |id| OnceLock::from(id.to_owned()))
}

fn check_head(app: &App, parts: &hyper::http::request::Parts) -> Result<(), ApiError> {
    let limits = &app.config.limits;
    let target = parts.uri.path_and_query().map_or(0, |p| p.as_str().len());
    if target > limits.uri_bytes {
        return Err(ApiError::uri_too_long(limits.uri_bytes));
    }
    let headers = &parts.headers;
    // Each header has a colon, a blank and a line break.
    let bytes: usize = headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    if headers.len() > limits.headers || bytes > limits.header_bytes {
        return Err(ApiError::headers_too_large(
            limits.headers,
            limits.header_bytes,
        ));
    }
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
    if !codings.next().is_none_or(is_chunked) || codings.next().is_some() {
        // Where two programs disagree on a body's end, one of them reads another's request.
        let message = "`Transfer-Encoding` must be `chunked`, once, or left out";
        return Err(ApiError::new(400, "malformed_http", message).closing());
    }
    Ok(())
}

/// Returns the rights of the client, if the path is open or the key right. Unknown paths need a key
/// as known ones do.
///
/// # Errors
/// 401.
fn client(app: &App, path: &str, headers: &HeaderMap) -> Result<Client, ApiError> {
    let protect_metrics = app.config.protect_metrics;
    if routes::named(app, path).is_some_and(|endpoint| endpoint.is_open(protect_metrics)) {
        return Ok(Client::default());
    }
    let client = app.keys().client(presented_key(headers));
    client.ok_or_else(ApiError::unauthorized)
}

fn presented_key(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let (scheme, key) = value.as_bytes().split_at_checked(7)?;
        return scheme
            .eq_ignore_ascii_case(b"bearer ")
            .then(|| key.trim_ascii());
    }
    headers.get("x-api-key").map(|value| value.as_bytes())
}

/// The form in which a body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Identity,
    Gzip,
}

/// Checks that a body is JSON, and returns the form in which it is sent.
///
/// # Errors
/// 415.
fn check_media_type(headers: &HeaderMap) -> Result<Coding, ApiError> {
    let coding = coding(headers)?;
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Ok(coding);
    };
    let essence = value.as_bytes().split(|&b| b == b';').next();
    let essence = essence
        .unwrap_or_default()
        .trim_ascii()
        .to_ascii_lowercase();
    let is_json = essence == b"application/json"
        || (essence.starts_with(b"application/") && essence.ends_with(b"+json"));
    if is_json {
        Ok(coding)
    } else {
        let message = "`Content-Type` must be application/json: send the header \
                       `content-type: application/json` (curl: -H 'content-type: application/json')";
        Err(ApiError::unsupported_media_type(message))
    }
}

fn coding(headers: &HeaderMap) -> Result<Coding, ApiError> {
    let mut coding = Coding::Identity;
    for value in headers.get_all(header::CONTENT_ENCODING) {
        let value = value.as_bytes();
        if value.eq_ignore_ascii_case(b"gzip") && coding == Coding::Identity {
            coding = Coding::Gzip;
        } else if !value.eq_ignore_ascii_case(b"identity") {
            let message = "the body must be as it is, or packed once by gzip";
            return Err(ApiError::unsupported_media_type(message));
        }
    }
    Ok(coding)
}

/// Returns true if the client asks for unknown fields to be refused.
fn strict(headers: &HeaderMap) -> Result<bool, ApiError> {
    match headers.get("x-prelude-strict").map(HeaderValue::as_bytes) {
        None | Some(b"0") => Ok(false),
        Some(b"1") => Ok(true),
        Some(_) => Err(ApiError::invalid_value("x-prelude-strict", "be 1 or 0")),
    }
}

fn slo(headers: &HeaderMap) -> Result<Option<Duration>, ApiError> {
    let Some(value) = headers.get("x-slo-ttft-ms") else {
        return Ok(None);
    };
    let ms: Option<u64> = value.to_str().ok().and_then(|v| v.trim().parse().ok());
    match ms {
        Some(ms @ 1..=SLO_MAX_MS) => Ok(Some(Duration::from_millis(ms))),
        _ => {
            let must = format!("be an integer from 1 to {SLO_MAX_MS}");
            Err(ApiError::invalid_value("x-slo-ttft-ms", must))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strictness_is_asked_for_or_not() {
        let check = |value: &'static str, expected: Option<bool>| {
            let mut headers = HeaderMap::new();
            headers.insert("x-prelude-strict", HeaderValue::from_static(value));
            assert_eq!(strict(&headers).ok(), expected, "{value}");
        };
        assert_eq!(strict(&HeaderMap::new()).ok(), Some(false));
        check("1", Some(true));
        check("0", Some(false));
        check("true", None);
    }

    #[test]
    fn only_json_media_types_are_accepted() {
        let check = |name: header::HeaderName, value: &'static str, expected: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            assert_eq!(check_media_type(&headers).is_ok(), expected, "{value}");
        };
        assert!(check_media_type(&HeaderMap::new()).is_ok());
        check(header::CONTENT_TYPE, "application/json", true);
        check(
            header::CONTENT_TYPE,
            "Application/JSON; charset=latin1",
            true,
        );
        check(header::CONTENT_TYPE, "application/problem+json", true);
        check(header::CONTENT_TYPE, "text/plain", false);
        check(header::CONTENT_TYPE, "application/jsonx", false);
        check(header::CONTENT_TYPE, "", false);
        check(header::CONTENT_ENCODING, "gzip", true);
        check(header::CONTENT_ENCODING, "gzip, gzip", false);
        check(header::CONTENT_ENCODING, "br", false);
        check(header::CONTENT_ENCODING, "identity", true);
    }

    #[test]
    fn keys_are_found_in_either_header() {
        let check = |name: &'static str, value: &'static str, expected: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            assert_eq!(presented_key(&headers), expected.map(str::as_bytes));
        };
        check("authorization", "Bearer abc", Some("abc"));
        check("authorization", "bearer  abc ", Some("abc"));
        check("authorization", "Basic abc", None);
        check("authorization", "Bear", None);
        check("x-api-key", "abc", Some("abc"));
        check("cookie", "abc", None);
    }
}
