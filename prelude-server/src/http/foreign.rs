//! Requests that a page of somebody else made a browser send, refused where nothing else keeps them
//! out: by a server for this machine alone that has no keys.

use std::net::IpAddr;

use hyper::{
    header::{self, HeaderValue},
    http::request::Parts,
};

use super::cors;
use crate::{app::App, config::ServerConfig, error::ApiError};

/// Checks that a request is addressed to this server, and comes from no page that may not ask.
///
/// # Errors
/// 403.
pub(super) fn check(app: &App, parts: &Parts) -> Result<(), ApiError> {
    let config = &app.config;
    if !config.host.is_loopback() || !app.keys().is_empty() {
        return Ok(());
    }
    let host = match parts.uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => text(parts.headers.get(header::HOST)),
    };
    // A name that leads here is another's to give: it may stand in the address of that page.
    // Programs from before HTTP/1.1, which send no name, are no browsers.
    if host.is_some_and(|host| !is_ours(config, name(host))) {
        return Err(ApiError::foreign_host());
    }
    let Some(origin) = parts.headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let of_us = |origin: &str| {
        let (_, authority) = origin.split_once("://")?;
        let is_own = host.is_some_and(|host| host.eq_ignore_ascii_case(authority));
        (is_own || is_listed(config, name(authority))).then_some(())
    };
    if text(Some(origin)).and_then(of_us).is_some()
        || cors::origin(config, &parts.headers).is_some()
    {
        return Ok(());
    }
    Err(ApiError::foreign_origin())
}

/// Returns a header as text, empty if it is not ASCII: no name of a server is.
fn text(value: Option<&HeaderValue>) -> Option<&str> {
    value.map(|value| value.to_str().unwrap_or_default())
}

/// Returns an authority without its port.
fn name(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    }
}

/// Returns whether a name is this machine's: no page of somebody else has an IP address in its own
/// address and leads here all the same.
fn is_ours(config: &ServerConfig, name: &str) -> bool {
    let is_local = |name: &str| {
        let at = name.len().saturating_sub("localhost".len());
        let is_end = |end: &[u8]| end.eq_ignore_ascii_case(b"localhost");
        name.as_bytes().get(at..).is_some_and(is_end)
            && (at == 0 || name.as_bytes()[at - 1] == b'.')
    };
    is_local(name) || name.parse::<IpAddr>().is_ok() || is_listed(config, name)
}

fn is_listed(config: &ServerConfig, name: &str) -> bool {
    config
        .hosts
        .iter()
        .any(|host| host.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine() {
        let config = ServerConfig {
            hosts: vec!["judge.example".to_owned()],
            ..ServerConfig::default()
        };
        let check = |authority: &str, expected: bool| {
            assert_eq!(is_ours(&config, name(authority)), expected, "{authority}");
        };
        check("localhost", true);
        check("LocalHost:8000", true);
        check("app.localhost:1", true);
        check("127.0.0.1:8000", true);
        check("[::1]:8000", true);
        check("10.0.0.7", true);
        check("Judge.example:443", true);
        check("evil.test", false);
        check("localhost.evil.test", false);
        check("evillocalhost", false);
        check("judge.example.evil.test", false);
        check("me@localhost", false);
        check("", false);
    }
}
