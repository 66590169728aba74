//! The addresses of engines, from flags, from a file that is watched, or from DNS.

mod dns;
mod file;
mod spec;

pub use dns::DnsName;
pub use file::{FileError, FileWatch, read_endpoints};
pub use spec::{BadEndpoint, EndpointLine};
