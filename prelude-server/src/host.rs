//! The address of a host that is given by name or by number.

use std::net::{IpAddr, ToSocketAddrs as _};

use serde::{Deserialize, Deserializer, de::Error as _};

/// Returns the address of a host: an IP address as it is, a name as this machine resolves it, an
/// IPv4 address first.
///
/// # Errors
/// A message that says why the name has no address.
pub fn resolve_host(host: &str) -> Result<IpAddr, String> {
    if let Ok(address) = host.parse() {
        return Ok(address);
    }
    let found = (host, 0).to_socket_addrs().map_err(|e| {
        format!("{host:?} is no IP address and no name that this machine knows: {e}")
    })?;
    let mut found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    found.sort_by_key(IpAddr::is_ipv6);
    let first = found.first().copied();
    first.ok_or_else(|| format!("{host:?} has no address"))
}

/// Reads a host of a settings file.
pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<IpAddr, D::Error> {
    resolve_host(&String::deserialize(from)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let check = |host: &str, expected: Result<&str, &str>| match (resolve_host(host), expected)
        {
            (Ok(found), Ok(expected)) => assert_eq!(found.to_string(), expected, "{host}"),
            (Err(error), Err(part)) => assert!(error.contains(part), "{error}"),
            (found, _) => panic!("{host}: {found:?}"),
        };
        check("127.0.0.1", Ok("127.0.0.1"));
        check("::1", Ok("::1"));
        check("localhost", Ok("127.0.0.1"));
        check("no such host", Err("\"no such host\" is no IP address"));
        check("", Err("is no IP address"));
    }
}
