//! Moves arrays into huge pages, where the tables of a tokenizer lie side by side.

use super::{LINE, ZeroedBuffer};
use crate::pages::Pages;
use std::ops::Range;
use std::sync::Arc;

/// A [`super::Flat`] of any elements that can be moved into huge pages.
pub(crate) trait Relocatable {
    fn bytes(&self) -> &[u8];
    /// Returns true if the array lies in huge pages already.
    fn is_huge(&self) -> bool;
    /// Points the array to `range` of `pages`, which holds a copy of its bytes, aligned to a line.
    fn point_to(&mut self, pages: &Arc<Pages>, range: Range<usize>);
}

/// The reciprocal of the largest part of reused memory that may stay unused.
const WASTE: usize = 2;

/// Copies arrays into huge pages, one after the other, and frees their old memory. Arrays in such
/// pages already stay. Does nothing where there are no huge pages.
///
/// `spare` is memory that is no longer needed. It is reused if not much of it would stay unused: it
/// needs no zeroing, which takes the system longer than the copying.
pub(crate) fn move_to_huge_pages(mut arrays: Vec<&mut dyn Relocatable>, spare: ZeroedBuffer<u8>) {
    arrays.retain(|array| !array.is_huge());
    let sizes = arrays.iter().map(|array| array.bytes().len());
    let total: usize = sizes.map(|bytes| bytes.next_multiple_of(LINE)).sum();
    let fits = |len: usize| (total..=total + total / WASTE).contains(&len);
    let pages = match spare {
        ZeroedBuffer::Pages(pages, _) if fits(pages.len()) => Some(pages),
        other => {
            drop(other);
            Pages::zeroed(total)
        }
    };
    let Some(mut pages) = pages else {
        return;
    };
    let mut ranges = Vec::with_capacity(arrays.len());
    let mut start = 0;
    for array in &arrays {
        let bytes = array.bytes();
        let range = start..start + bytes.len();
        pages[range.clone()].copy_from_slice(bytes);
        start = range.end.next_multiple_of(LINE);
        ranges.push(range);
    }
    let pages = Arc::new(pages);
    for (array, range) in arrays.iter_mut().zip(ranges) {
        array.point_to(&pages, range);
    }
}
