//! The types of traces in a program that was built without them.

use std::time::Instant;

use hyper::Request;

use super::Ended;

/// The traces of a server: none, since the program was built without the feature `otlp`.
#[derive(Debug, Default)]
pub struct Traces(());

/// The trace that a request belongs to: none.
#[derive(Debug)]
pub(crate) struct Trace(());

impl Trace {
    /// Returns false.
    pub(crate) fn is_on(&self) -> bool {
        false
    }
}

impl Traces {
    /// Returns no trace.
    pub(crate) fn begin<B>(&self, _: &Request<B>) -> Trace {
        Trace(())
    }

    /// Returns no time.
    pub(crate) fn now(&self) -> Option<Instant> {
        None
    }

    /// Does nothing.
    pub(crate) fn end(&self, _: &Trace, _: &Ended<'_>) {}

    /// Does nothing.
    pub async fn flush(&self) {}
}
