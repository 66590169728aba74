//! Requests to the Hub: one method, redirections, statuses.

use std::{error::Error as StdError, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::{
    HeaderMap, Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{self, HeaderName, HeaderValue},
    http::uri::Authority,
};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::{
        legacy::{Client as Pool, connect::HttpConnector},
        proxy::matcher::Matcher,
    },
    rt::{TokioExecutor, TokioTimer},
};
use tokio::time::timeout;

use crate::{
    Error, Repo, Revision,
    config::{HubConfig, Timing},
    listing::MAX_LISTING_BYTES,
    name::encoded,
    proxy::Route,
    tls,
};

/// Most redirections that one request follows.
const MAX_REDIRECTS: usize = 5;
/// Most attempts in succession that bring nothing.
const MAX_ATTEMPTS: u32 = 5;
/// Longest time between two attempts, also if the server asks for more.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Upper bound in characters of the server's words in an error.
const MAX_MESSAGE: usize = 300;

/// A failed request: its error, and if it may be made again.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: Error,
    pub(crate) is_final: bool,
    /// The time before the next attempt that the server asks for.
    after: Option<Duration>,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            error,
            is_final: true,
            after: None,
        }
    }
}

impl Failed {
    /// Returns a failure of the connection, which the next attempt may not meet.
    pub(crate) fn network(url: &str, why: impl Into<String>) -> Self {
        let (url, why) = (url.to_owned(), why.into());
        Self {
            error: Error::Network { url, why },
            is_final: false,
            after: None,
        }
    }
}

/// The attempts of one piece of work.
#[derive(Debug)]
pub(crate) struct Attempts {
    failures: u32,
    delay: Duration,
}

impl Attempts {
    pub(crate) fn new(timing: &Timing) -> Self {
        Self {
            failures: 0,
            delay: timing.retry,
        }
    }

    /// Starts to count anew, after an attempt that brought something.
    pub(crate) fn restart(&mut self) {
        self.failures = 0;
    }

    /// Waits until the next attempt.
    ///
    /// # Errors
    /// The failure's error if there is no further attempt.
    pub(crate) async fn wait(&mut self, failed: Failed) -> Result<(), Error> {
        self.failures += 1;
        if failed.is_final || self.failures == MAX_ATTEMPTS {
            return Err(failed.error);
        }
        let delay = self.delay * 2_u32.pow(self.failures - 1);
        let delay = failed.after.map_or(delay, |after| after.max(delay));
        tokio::time::sleep(delay.min(MAX_DELAY)).await;
        Ok(())
    }
}

/// A client of one Hub. It belongs to the runtime on which it is first used.
#[derive(Debug)]
pub(crate) struct Client {
    pool: Pool<HttpsConnector<Route>, Empty<Bytes>>,
    endpoint: String,
    token: Option<HeaderValue>,
    timing: Timing,
}

impl Client {
    pub(crate) fn new(config: &HubConfig) -> Result<Self, Error> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(config.timing.connect));
        let proxies = Matcher::builder()
            .http(&config.proxies.http)
            .https(&config.proxies.https)
            .all(&config.proxies.all)
            .no(&config.proxies.no)
            .build();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls::client(config)?)
            .https_or_http()
            .enable_http1()
            .wrap_connector(Route::new(http, proxies));
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build(connector);
        let token = config.token.as_ref().map(|token| {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            value.map(|mut value| {
                value.set_sensitive(true);
                value
            })
        });
        Ok(Self {
            pool,
            endpoint: config.endpoint.clone(),
            token: token.transpose().map_err(|_| Error::Config {
                name: "HF_TOKEN",
                why: "the token holds characters that no token has".to_owned(),
            })?,
            timing: config.timing,
        })
    }

    pub(crate) fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Returns the address of a file at a commit.
    pub(crate) fn file_url(&self, repo: &Repo, commit: &str, path: &str) -> String {
        format!(
            "{}/{repo}/resolve/{commit}/{}",
            self.endpoint,
            encoded(path, true)
        )
    }

    /// Asks for the files of a model at a revision.
    pub(crate) async fn describe(
        &self,
        repo: &Repo,
        revision: &Revision,
    ) -> Result<Vec<u8>, Error> {
        let name = encoded(revision.as_str(), false);
        let url = format!(
            "{}/api/models/{repo}/revision/{name}?blobs=true",
            self.endpoint
        );
        let mut attempts = Attempts::new(&self.timing);
        loop {
            // Silence has a bound, and so has an answer that comes drop by drop.
            let document = timeout(self.timing.read * 4, self.document(&url)).await;
            match document.unwrap_or_else(|_| Err(self.silence(&url))) {
                Ok(Ok(bytes)) => return Ok(bytes),
                Ok(Err(refusal)) => attempts.wait(self.refused(refusal, repo, revision)).await?,
                Err(failed) => attempts.wait(failed).await?,
            }
        }
    }

    /// Gets a document of bounded size, or the refusal.
    async fn document(&self, url: &str) -> Result<Result<Vec<u8>, Refusal>, Failed> {
        let response = self.get(url, None).await?;
        if response.status() != StatusCode::OK {
            return Ok(Err(Refusal::of(url, &response)));
        }
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        while let Some(part) = self.part(url, &mut body).await? {
            if (bytes.len() + part.len()) as u64 > MAX_LISTING_BYTES {
                return Err(Failed::from(Error::Listing {
                    what: url.to_owned(),
                    why: format!("it has more than {MAX_LISTING_BYTES} bytes"),
                }));
            }
            bytes.extend_from_slice(&part);
        }
        Ok(Ok(bytes))
    }

    /// Waits for the next bytes of a body; `None` at its end.
    pub(crate) async fn part(
        &self,
        url: &str,
        body: &mut Incoming,
    ) -> Result<Option<Bytes>, Failed> {
        loop {
            let frame = timeout(self.timing.read, body.frame()).await;
            let frame = frame.map_err(|_| self.silence(url))?;
            match frame.transpose() {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => {
                    // Trailers say nothing here.
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
                Err(e) => return Err(Failed::network(url, causes(&e))),
            }
        }
    }

    fn silence(&self, url: &str) -> Failed {
        let seconds = self.timing.read.as_secs_f64();
        Failed::network(
            url,
            format!("the server sent nothing, or too little, for {seconds} s"),
        )
    }

    /// Sends a request for all bytes from `from` on, and follows redirections. The token goes to the
    /// endpoint alone.
    pub(crate) async fn get(
        &self,
        url: &str,
        from: Option<u64>,
    ) -> Result<Response<Incoming>, Failed> {
        let wrong = |why: &str| {
            Failed::from(Error::Redirect {
                url: url.to_owned(),
                why: why.to_owned(),
            })
        };
        let first: Uri = url.parse().map_err(|_| wrong("the address is malformed"))?;
        let mut to = first.clone();
        for _ in 0..=MAX_REDIRECTS {
            let request = self
                .request(&to, &first, from)
                .map_err(|e| wrong(&e.to_string()))?;
            // Connections have a bound of their own.
            let bound = self.timing.connect + self.timing.read;
            let response = timeout(bound, self.pool.request(request)).await;
            let response = response.map_err(|_| self.silence(url))?;
            let response = response.map_err(|e| Failed::network(url, causes(&e)))?;
            if !is_redirect(response.status()) {
                return Ok(response);
            }
            let location = response.headers().get(header::LOCATION);
            let location = location.and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| resolved(&to, location));
            let next = next.ok_or_else(|| wrong("the redirection has no usable address"))?;
            if to.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                return Err(wrong(
                    "it leads from an encrypted connection to a plain one",
                ));
            }
            to = next;
        }
        Err(wrong(&format!(
            "there are more than {MAX_REDIRECTS} redirections"
        )))
    }

    fn request(
        &self,
        to: &Uri,
        first: &Uri,
        from: Option<u64>,
    ) -> Result<Request<Empty<Bytes>>, hyper::http::Error> {
        let mut request = Request::get(to)
            .header(
                header::USER_AGENT,
                concat!("prelude/", env!("CARGO_PKG_VERSION")),
            )
            .header(header::ACCEPT_ENCODING, "identity");
        if let Some(from) = from {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        let is_same_server = to.scheme() == first.scheme() && to.authority() == first.authority();
        if let Some(token) = self.token.as_ref().filter(|_| is_same_server) {
            request = request.header(header::AUTHORIZATION, token);
        }
        request.body(Empty::new())
    }

    /// Turns a refusal into an error that says what to do.
    pub(crate) fn refused(&self, refusal: Refusal, repo: &Repo, revision: &Revision) -> Failed {
        let page = format!("{}/{repo}", self.endpoint);
        let status = refusal.status.as_u16();
        let error = match (status, refusal.code.as_str()) {
            (401 | 403, code) => Error::Denied {
                repo: repo.clone(),
                status,
                advice: self.advice(status, code, &page),
            },
            (404, "RevisionNotFound") => Error::NoRevision {
                repo: repo.clone(),
                revision: revision.clone(),
                page: format!("{page}/tree/main"),
            },
            (404, "" | "RepoNotFound") => Error::NoModel {
                repo: repo.clone(),
                endpoint: self.endpoint.clone(),
            },
            _ => Error::Status {
                url: refusal.url,
                status,
                message: refusal.message,
            },
        };
        Failed {
            error,
            is_final: !matches!(status, 408 | 429 | 500 | 502 | 503 | 504),
            after: refusal.after,
        }
    }

    fn advice(&self, status: u16, code: &str, page: &str) -> String {
        let accept = format!("accept the licence at {page}");
        let tokens = format!("{}/settings/tokens", self.endpoint);
        match (self.token.is_some(), code == "GatedRepo" || status == 403) {
            (true, true) => format!("{accept} with the account of your token"),
            (true, false) => format!(
                "the token in HF_TOKEN is not valid, or may not read the model, or there is no model of this name; see {page} and {tokens}"
            ),
            (false, true) => format!("{accept}, then set HF_TOKEN to a token of {tokens}"),
            (false, false) => format!(
                "it does not exist, or it is private or gated. Check the name; if it is right, {accept} and set HF_TOKEN to a token of {tokens}"
            ),
        }
    }
}

/// An answer that is not what was asked for.
#[derive(Debug)]
pub(crate) struct Refusal {
    url: String,
    status: StatusCode,
    /// The Hub's name of the error; empty if there is none.
    code: String,
    /// The server's words behind a colon, or nothing.
    message: String,
    after: Option<Duration>,
}

impl Refusal {
    pub(crate) fn of(url: &str, response: &Response<Incoming>) -> Self {
        let headers = response.headers();
        let message = text_of(headers, HeaderName::from_static("x-error-message"));
        let after = text_of(headers, header::RETRY_AFTER).parse().ok();
        Self {
            url: url.to_owned(),
            status: response.status(),
            code: text_of(headers, HeaderName::from_static("x-error-code")),
            message: match message.is_empty() {
                true => message,
                false => format!(": {message}"),
            },
            after: after.map(Duration::from_secs),
        }
    }
}

/// Returns the beginning of a header's text, without characters that move a terminal's cursor.
fn text_of(headers: &HeaderMap, name: HeaderName) -> String {
    let text = headers
        .get(name)
        .map(|value| String::from_utf8_lossy(value.as_bytes()));
    let text = text.unwrap_or_default();
    text.chars()
        .filter(|c| !c.is_control())
        .take(MAX_MESSAGE)
        .collect()
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// Returns the address of a redirection: whole, or on the server that redirects.
fn resolved(from: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next()?;
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    let whole = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        location.to_owned()
    };
    let uri: Uri = whole.parse().ok()?;
    let has_user = uri.authority().map(Authority::as_str)?.contains('@');
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    (is_http && !has_user).then_some(uri)
}

/// Returns the message of an error with those of its causes.
fn causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.ends_with(&message) {
            text.push_str(": ");
            text.push_str(&message);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_are_resolved() {
        let from: Uri = "https://hub.example/a/b?c=d".parse().unwrap();
        let check = |location: &str, expected: Option<&str>| {
            let uri = resolved(&from, location).map(|uri| uri.to_string());
            assert_eq!(uri.as_deref(), expected, "{location}");
        };
        check("/x?y=z#f", Some("https://hub.example/x?y=z"));
        check("//cdn.example/x", Some("https://cdn.example/x"));
        check(
            "https://cdn.example:8443/x%20y?s=%2F",
            Some("https://cdn.example:8443/x%20y?s=%2F"),
        );
        check("http://cdn.example/x", Some("http://cdn.example/x"));
        for wrong in [
            "",
            "x/y",
            "ftp://a/b",
            "https://u:p@a/b",
            "javascript:1",
            "https://",
        ] {
            check(wrong, None);
        }
    }
}
