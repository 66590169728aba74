//! An array that keeps the memory behind it alive.
#![expect(unsafe_code, reason = "a slice that does not borrow from its keeper")]

use super::Relocatable;
use crate::pages::Pages;
use bytemuck::Pod;
use std::any::Any;
use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// An immutable `[T]` that owns its elements or shares those of a file.
///
/// Made from a `Vec`, or by [`super::FileBytes::view`]. Cloning shares the elements.
pub(crate) struct Flat<T> {
    data: NonNull<T>,
    len: usize,
    /// The owner of the memory behind `data`, which is never written: a `Vec<T>`,
    /// [`super::FileBytes`], or [`Pages`], which [`super::move_to_huge_pages`] fills before it shares them.
    keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a `Flat<T>` is a shared reference to elements that are never written, and its
// keeper is `Send + Sync`: a `Vec<T>` and `FileBytes` have no way to be written through an
// `Arc`, and neither have `Pages`, whose only writable view needs `&mut Pages`.
unsafe impl<T: Sync> Send for Flat<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Flat<T> {}

impl<T> Deref for Flat<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` took both from a slice that the keeper owns. The keeper lives
        // as long as `self`, does not move its elements, and is not written to.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len) }
    }
}

impl<T> Flat<T> {
    /// Creates an array of `elements`, which must belong to the memory that `keeper` owns. Visible
    /// in this folder only, to keep that checkable.
    pub(super) fn new(elements: &[T], keeper: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            data: NonNull::from(elements).cast(),
            len: elements.len(),
            keeper,
        }
    }
}

impl<T: Send + Sync + 'static> From<Vec<T>> for Flat<T> {
    fn from(mut elements: Vec<T>) -> Self {
        elements.shrink_to_fit();
        let keeper = Arc::new(elements);
        Self::new(&keeper, keeper.clone())
    }
}

impl<T: Send + Sync + 'static> Default for Flat<T> {
    fn default() -> Self {
        Vec::new().into()
    }
}

impl<T: Pod> Relocatable for Flat<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn is_huge(&self) -> bool {
        self.keeper.downcast_ref().is_some_and(Pages::is_huge)
    }

    fn point_to(&mut self, pages: &Arc<Pages>, range: Range<usize>) {
        *self = Self::new(bytemuck::cast_slice(&pages[range]), pages.clone());
    }
}

impl<T> Clone for Flat<T> {
    fn clone(&self) -> Self {
        Self {
            data: self.data,
            len: self.len,
            keeper: self.keeper.clone(),
        }
    }
}

impl<T> fmt::Debug for Flat<T> {
    /// Writes the type and the number of the elements, since tables hold hundreds of thousands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flat<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}
