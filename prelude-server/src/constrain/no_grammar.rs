//! The stand-in for `grammar.rs` in builds without the feature `llguidance`.

use std::sync::Arc;

use prelude_core::Constraint;

use super::{ConstraintContext, Language};
use crate::error::ApiError;

/// Compiles nothing.
#[derive(Debug)]
pub(crate) struct Grammars;

impl Grammars {
    pub(crate) fn new(_continuations: u32) -> Self {
        Self
    }

    /// Returns 0.
    #[expect(clippy::unused_self, reason = "its twin keeps some")]
    pub(crate) fn bytes(&self) -> usize {
        0
    }

    #[expect(clippy::unused_async, reason = "its twin waits for a thread")]
    pub(super) async fn constraint(
        &self,
        _context: ConstraintContext<'_>,
        _language: &Language,
        param: &'static str,
        _ends: Arc<[u32]>,
    ) -> Result<Arc<dyn Constraint>, ApiError> {
        Err(ApiError::unsupported_parameter(param))
    }
}
