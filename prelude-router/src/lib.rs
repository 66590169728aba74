//! Routes language-model requests to engines.
//!
//! Engines cache the prompts that they have computed, so where a request goes decides how much of
//! it must be computed again. This crate is that decision as pure code: E2 of Preble (Srivatsa et
//! al., ICLR 2025), and the policies that others use, for comparison. It opens no socket, reads no
//! clock, starts no thread and knows no engine; a gateway's endpoint picker and a simulator drive
//! it alike.
//!
//! Read first: [`Router`], then [`E2Config`] for what E2 weighs, then [`Policy`] for a policy of
//! one's own.
//!
//! ```
//! use prelude_core::{RequestId, Timestamp};
//! use prelude_router::{
//!     EndpointSpec, Finish, Prefix, Prompt, Root, RouteRequest, Router, RouterConfig,
//! };
//!
//! let mut router = Router::new(RouterConfig::default())?;
//! let now = Timestamp::ZERO;
//! for _ in 0..2 {
//!     let spec = EndpointSpec { kv_capacity_tokens: 200_000, ..EndpointSpec::default() };
//!     router.join(now, spec)?;
//! }
//!
//! // A thousand tokens of instructions, and two questions about them.
//! let root = Root::new("qwen3", None, "r1", None);
//! let ask = |router: &mut Router, id, question| {
//!     let mut tokens: Vec<u32> = (0..1000).collect();
//!     tokens.push(question);
//!     let prefix = Prefix::new(root, Prompt::Tokens(&tokens), 64);
//!     let request = RouteRequest {
//!         id: RequestId(id),
//!         prefix: &prefix,
//!         max_output_tokens: Some(1),
//!         user: None,
//!         sheddable: false,
//!         subset: None,
//!         deadline: None,
//!     };
//!     router.route(now, &request)
//! };
//! let first = ask(&mut router, 1, 7)?;
//! let second = ask(&mut router, 2, 8)?;
//! assert_eq!(second.endpoint, first.endpoint);
//! assert_eq!(second.cached_tokens, 960); // 15 granules of 64
//!
//! router.finished(now, RequestId(1), Finish::default());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod cached;
mod config;
mod e2;
mod endpoint;
mod error;
mod index;
mod laps;
mod policies;
mod policy;
mod prompt;
mod random;
mod router;
mod service;

pub use config::{
    CacheAwareConfig, ConfigError, E2Config, E2Load, LapsConfig, PolicyConfig, PrefixHashConfig,
    RouterConfig, UserStickyConfig,
};
pub use endpoint::{Endpoint, EndpointId, EndpointSpec, Fleet, Outstanding, Pool};
pub use error::{RouteError, UnknownEndpoint};
pub use policy::{Choice, Finished, Policy, Query, Reason};
pub use prompt::{ByteHasher, Prefix, Prompt, Root};
pub use router::{Finish, Pick, RouteRequest, Router};
pub use service::{Cost, FitConfig};

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
