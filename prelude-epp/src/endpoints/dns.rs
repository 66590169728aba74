//! A name that stands for engines.

use std::{collections::BTreeSet, io, net::SocketAddr, str::FromStr};

use super::spec::{BadEndpoint, check_host_port};

/// A name and a port, as `NAME:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsName(pub String);

impl FromStr for DnsName {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        check_host_port(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl DnsName {
    /// Returns all addresses of the name.
    ///
    /// # Errors
    /// The system's, if it finds none; the addresses found last stay.
    pub async fn resolve(&self) -> io::Result<BTreeSet<SocketAddr>> {
        Ok(tokio::net::lookup_host(&self.0).await?.collect())
    }
}
