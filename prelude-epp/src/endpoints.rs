//! Where the addresses of engines come from: flags, a file that is watched, or DNS.

mod dns;
mod file;
mod spec;

pub use dns::DnsName;
pub use file::{FileError, FileWatch, read_endpoints};
pub use spec::{BadEndpoint, EndpointLine};
