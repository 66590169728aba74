//! Addresses as ZeroMQ writes them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A TCP address such as `tcp://*:5557`, `tcp://127.0.0.1:5557` or `tcp://[::1]:5557`; `*` is every
/// interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    host: String,
    port: u16,
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no address of the form tcp://HOST:PORT, such as tcp://*:5557")]
pub struct BadAddress(pub String);

impl Address {
    /// Returns an address of a host's name or IP address.
    #[must_use]
    pub const fn new(host: String, port: u16) -> Self {
        Self { host, port }
    }

    /// Returns the address with the port that is `n` higher; `None` if there is none.
    #[must_use]
    pub fn offset(&self, n: u16) -> Option<Self> {
        // Port 0 means any free port, so it stays what it is.
        let port = match self.port {
            0 => 0,
            port => port.checked_add(n)?,
        };
        Some(Self {
            host: self.host.clone(),
            port,
        })
    }

    /// Returns the port; 0 stands for any free port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns host and port for the operating system to resolve.
    #[must_use]
    pub fn to_bind(&self) -> (&str, u16) {
        let host = match self.host.as_str() {
            "*" => "0.0.0.0",
            host => host.trim_matches(['[', ']']),
        };
        (host, self.port)
    }
}

impl FromStr for Address {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress(text.to_owned());
        let rest = text.strip_prefix("tcp://").ok_or_else(bad)?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
        let is_bare_v6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        if host.is_empty() || is_bare_v6 {
            return Err(bad());
        }
        let port = port.parse().map_err(|_| bad())?;
        Ok(Self::new(host.to_owned(), port))
    }
}

impl TryFrom<String> for Address {
    type Error = BadAddress;

    fn try_from(text: String) -> Result<Self, BadAddress> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp://{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, bind: (&str, u16)) {
        let address: Address = text.parse().unwrap();
        assert_eq!(address.to_bind(), bind);
        assert_eq!(address.to_string(), text);
    }

    #[test]
    fn addresses_are_read_and_written() {
        check("tcp://*:5557", ("0.0.0.0", 5557));
        check("tcp://127.0.0.1:0", ("127.0.0.1", 0));
        check("tcp://[::1]:9", ("::1", 9));
        check("tcp://engine-0.svc:1", ("engine-0.svc", 1));
        let wrong = [
            "",
            "tcp://",
            "tcp://a",
            "tcp://:1",
            "tcp://::1:9",
            "tcp://a:65536",
            "a:1",
        ];
        for text in wrong.into_iter().chain(["ipc:///tmp/x", "tcp://a:"]) {
            let found = text.parse::<Address>();
            assert_eq!(found, Err(BadAddress(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn each_model_has_the_next_port() {
        let address: Address = "tcp://*:65534".parse().unwrap();
        let port = |n| address.offset(n).map(|a| a.port());
        assert_eq!(
            (port(0), port(1), port(2)),
            (Some(65534), Some(65535), None)
        );
        let any: Address = "tcp://*:0".parse().unwrap();
        assert_eq!(any.offset(7).map(|a| a.port()), Some(0));
    }
}
