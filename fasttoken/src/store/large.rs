//! One large value that stays where it is.
#![expect(unsafe_code, reason = "a value that does not borrow from its keeper")]

use crate::pages::Pages;
use bytemuck::Pod;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// A value that begins with all bits zero and stays where it is, in a huge page if it is
/// large.
pub(crate) struct Large<T> {
    data: NonNull<T>,
    /// Owns what `data` points to, and is not looked at otherwise.
    _keeper: Keeper<T>,
}

enum Keeper<T> {
    Pages { _pages: Pages },
    Heap { _one: Vec<T> },
}

impl<T: Pod> Large<T> {
    pub(crate) fn zeroed() -> Self {
        if let Some(mut pages) = Pages::zeroed(size_of::<T>())
            && let Ok(value) = bytemuck::try_from_bytes_mut(&mut pages)
        {
            return Self {
                data: NonNull::from(value),
                _keeper: Keeper::Pages { _pages: pages },
            };
        }
        // Not a box: moving one would end the pointer's right to its contents.
        let mut one = bytemuck::zeroed_vec(1);
        Self {
            data: NonNull::from(&mut one[0]),
            _keeper: Keeper::Heap { _one: one },
        }
    }
}

impl<T> Deref for Large<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `zeroed` took the pointer from memory that the keeper owns, holds a
        // valid `T` and does not move; only this value has it.
        unsafe { self.data.as_ref() }
    }
}

impl<T> DerefMut for Large<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` is exclusive.
        unsafe { self.data.as_mut() }
    }
}

impl<T> fmt::Debug for Large<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Large<{}>", std::any::type_name::<T>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_values_begin_with_zeros() {
        fn check<const N: usize>() {
            let mut large = Large::<[u32; N]>::zeroed();
            let paged = matches!(large._keeper, Keeper::Pages { .. });
            assert_eq!(paged, Pages::zeroed(size_of::<[u32; N]>()).is_some());
            assert!(large.iter().all(|n| *n == 0));
            large[N - 1] = 7;
            let moved = large;
            assert_eq!(moved[N - 1], 7);
        }
        check::<3>();
        check::<400_000>();
    }
}
