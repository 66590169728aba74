//! An engine as a flag or a line of a file names it.

use std::{net::SocketAddr, str::FromStr};

use prelude_router::Pool;
use serde::Deserialize;
use thiserror::Error;

/// An engine: its address and, if given, the number of tokens that its KV cache holds, and its
/// pool.
///
/// Its text is `HOST:PORT`, `HOST:PORT=TOKENS`, or a JSON object
/// `{"address": "HOST:PORT", "kv_tokens": TOKENS, "pool": "short"}`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointLine {
    /// An IP address or a name, and a port.
    pub address: String,
    /// Tokens that the KV cache holds.
    #[serde(default)]
    pub kv_tokens: Option<u64>,
    /// The pool that the engine stays in under the policy `laps`: `short` or `long`. With none, the
    /// policy moves the engine between the pools. Other policies ignore it.
    #[serde(default)]
    pub pool: Option<Pool>,
}

/// The reason why a text names no engine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BadEndpoint {
    /// The text has no port, or one that is no number from 1 to 65,535.
    #[error("`{0}` is no HOST:PORT; write for example 10.0.0.1:8000 or [::1]:8000")]
    Address(String),
    /// The capacity is no number of tokens.
    #[error("`{0}` is no number of tokens; write for example 10.0.0.1:8000=200000")]
    Tokens(String),
    /// The text begins like a JSON object and is none with the fields of an engine.
    #[error("not an object of `address`, `kv_tokens` and `pool`: {0}")]
    Object(String),
}

impl FromStr for EndpointLine {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let text = text.trim();
        let line = if text.starts_with('{') {
            serde_json::from_str(text).map_err(|error| BadEndpoint::Object(error.to_string()))?
        } else {
            let (address, tokens) = match text.split_once('=') {
                Some((address, tokens)) => (address, Some(tokens.trim())),
                None => (text, None),
            };
            let number = |text: &str| {
                let wrong = || BadEndpoint::Tokens(text.to_owned());
                text.parse::<u64>().map_err(|_| wrong())
            };
            Self {
                address: address.trim().to_owned(),
                kv_tokens: tokens.map(number).transpose()?,
                pool: None,
            }
        };
        line.check()?;
        Ok(line)
    }
}

impl EndpointLine {
    /// Returns the address if it needs no resolution.
    #[must_use]
    pub fn ip(&self) -> Option<SocketAddr> {
        self.address.parse().ok()
    }

    fn check(&self) -> Result<(), BadEndpoint> {
        check_host_port(&self.address)?;
        match self.kv_tokens {
            Some(0) => Err(BadEndpoint::Tokens("0".to_owned())),
            _ => Ok(()),
        }
    }
}

/// Checks that a text is a host and a port.
pub(super) fn check_host_port(text: &str) -> Result<(), BadEndpoint> {
    let is_fine = text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_bare = !host.contains(':') || host.starts_with('[') && host.ends_with(']');
        let is_name = !host.is_empty() && !host.contains(char::is_whitespace);
        is_bare && is_name && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    match is_fine {
        true => Ok(()),
        false => Err(BadEndpoint::Address(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_parse_or_are_refused() {
        let labelled = |text: &str, address: &str, kv_tokens, pool| {
            let expected = EndpointLine {
                address: address.to_owned(),
                kv_tokens,
                pool,
            };
            assert_eq!(text.parse::<EndpointLine>(), Ok(expected), "{text}");
        };
        let check = |text, address, kv_tokens| labelled(text, address, kv_tokens, None);
        check("10.0.0.1:80", "10.0.0.1:80", None);
        check(" a.b:80=5 ", "a.b:80", Some(5));
        check("[::1]:8000", "[::1]:8000", None);
        check(r#"{"address":"a:1","kv_tokens":7}"#, "a:1", Some(7));
        let long = r#"{"address":"a:1","pool":"long"}"#;
        labelled(long, "a:1", None, Some(Pool::Long));
        for text in [
            "", "a", "a:", ":80", "a:0", "a:99999", "::1:80", "a b:80", "a:80=0", "a:80=x",
        ] {
            assert!(text.parse::<EndpointLine>().is_err(), "{text}");
        }
        let pool = r#"{"address":"a:1","pool":"middle"}"#;
        for text in [r#"{"address":"a"}"#, r#"{"host":"a:1"}"#, "{", pool] {
            assert!(text.parse::<EndpointLine>().is_err(), "{text}");
        }
    }
}
