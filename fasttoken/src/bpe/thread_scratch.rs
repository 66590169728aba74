//! The scratch memory of a thread: taken when a call begins, given back when it ends.

use super::Scratch;
use std::cell::Cell;

thread_local! {
    static MEMORY: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
}

/// The scratch memory of this thread while a call uses it.
#[derive(Debug)]
pub(crate) struct ThreadScratch(Option<Box<Scratch>>);

impl Default for ThreadScratch {
    /// Takes the memory of this thread. A call inside of a call gets memory of its own.
    fn default() -> Self {
        Self(MEMORY.try_with(Cell::take).unwrap_or_default())
    }
}

impl ThreadScratch {
    #[inline]
    pub(crate) fn get(&mut self) -> &mut Scratch {
        self.0.get_or_insert_default()
    }
}

impl Drop for ThreadScratch {
    fn drop(&mut self) {
        if let Some(mut scratch) = self.0.take() {
            scratch.shrink();
            // A thread that is ending has no place for the memory.
            let _ = MEMORY.try_with(|memory| memory.set(Some(scratch)));
        }
    }
}
