//! Models from the Hugging Face Hub, by name.
//!
//! [`Hub`] finds a model in the cache on disk or downloads the files that Prelude reads: the
//! configuration, the tokenizer, templates and safetensors weights. The cache has the layout of
//! Python's `huggingface_hub`, so that either program finds what the other one downloaded.
//!
//! A download is resumed where it was cut, is checked against the hash that the Hub publishes, and
//! is made once: processes that want the same file wait for each other.
//!
//! ```no_run
//! use prelude_hub::{Hub, HubConfig};
//!
//! let config = HubConfig::from_variables(|name| std::env::var_os(name))?;
//! let hub = Hub::new(config)?;
//! let model = hub.open(&"Qwen/Qwen3-0.6B".parse()?, &"main".parse()?, &|progress| {
//!     eprintln!("{} of {} bytes", progress.bytes, progress.bytes_total);
//! })?;
//! println!("{}", model.folder.display());
//! # Ok::<(), prelude_hub::Error>(())
//! ```
//!
//! The crate is not for uploads, data sets, or formats other than safetensors. Read first: [`Hub`],
//! [`HubConfig`], [`Error`].
#![forbid(unsafe_code)]

mod cache;
mod checksum;
mod client;
mod config;
mod download;
mod error;
mod file;
mod hub;
mod listing;
mod name;
mod progress;
mod proxy;
mod selection;
mod tls;

pub use config::{HubConfig, Proxies, Timing};
pub use error::Error;
pub use hub::{Check, Hub, Snapshot};
pub use name::{BadName, Repo, Revision};
pub use progress::Progress;
