//! A stream of a GPU, and points in it whose times the GPU notes: what measurements are made with.

use std::sync::Arc;

use crate::{
    Error,
    memory::{context::Context, event::Event, space::Buffer},
};

/// Most bytes of one copy that keeps a stream busy: 0.13 ms at 4 TB/s, read and written.
pub(crate) const FILL_BYTES: usize = 256 << 20;

/// A stream, and points in it whose times are noted.
pub(crate) trait Stream {
    type Point;

    /// Keeps the stream busy with some copies.
    ///
    /// # Errors
    /// The driver's.
    fn fill(&mut self, copies: usize) -> Result<(), Error>;

    /// Returns a point behind everything queued so far.
    ///
    /// # Errors
    /// The driver's.
    fn mark(&mut self) -> Result<Self::Point, Error>;

    /// Returns true if the stream has passed the point.
    ///
    /// # Errors
    /// The driver's.
    fn has_passed(&mut self, point: &Self::Point) -> Result<bool, Error>;

    /// Waits until the stream has passed everything queued so far.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    fn wait(&mut self) -> Result<(), Error>;

    /// Returns the seconds between two points that the stream has passed.
    ///
    /// # Errors
    /// The driver's.
    fn between(&mut self, from: &Self::Point, to: &Self::Point) -> Result<f64, Error>;
}

/// The stream on which a GPU runs steps.
#[derive(Debug)]
pub(crate) struct GpuStream<'a> {
    context: &'a Arc<Context>,
    /// A buffer whose second half is copied over its first one.
    filler: &'a Buffer,
}

impl<'a> GpuStream<'a> {
    /// Returns the stream; `filler` is a buffer whose contents do not matter.
    pub(crate) const fn new(context: &'a Arc<Context>, filler: &'a Buffer) -> Self {
        Self { context, filler }
    }
}

impl Stream for GpuStream<'_> {
    type Point = Event;

    fn fill(&mut self, copies: usize) -> Result<(), Error> {
        let half = self.filler.bytes() / 2;
        let bytes = half.min(FILL_BYTES);
        (0..copies).try_for_each(|_| self.filler.copy_from(0, self.filler, half..half + bytes))
    }

    fn mark(&mut self) -> Result<Event, Error> {
        let event = Event::new(self.context)?;
        event.record()?;
        Ok(event)
    }

    fn has_passed(&mut self, point: &Event) -> Result<bool, Error> {
        point.has_passed()
    }

    fn wait(&mut self) -> Result<(), Error> {
        self.context.synchronize("a measurement")
    }

    fn between(&mut self, from: &Event, to: &Event) -> Result<f64, Error> {
        to.seconds_since(from)
    }
}
