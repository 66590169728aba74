//! Moving arrays into huge pages, where the tables of a tokenizer lie side by side.

use super::{LINE, Room};
use crate::pages::Pages;
use std::ops::Range;
use std::sync::Arc;

/// A [`super::Flat`] of any elements, to be moved.
pub(crate) trait Movable {
    fn bytes(&self) -> &[u8];
    /// Whether it lies in huge pages already.
    fn is_huge(&self) -> bool;
    /// Points it to `range` of `pages`, which has a copy of its bytes, aligned to a line.
    fn point_to(&mut self, pages: &Arc<Pages>, range: Range<usize>);
}

/// At most one part in so many of used memory is wasted to save the zeroing of new one.
const WASTE: usize = 2;

/// Copies arrays into huge pages, one after the other, and lets go of where they were, but
/// for those that are in such pages. Does nothing where there are none.
///
/// `spare` is memory that is not needed any more. It is used if not much of it would be
/// wasted: what is in memory already needs no zeros, and making these takes the system
/// longer than the copying.
pub(crate) fn gather(mut arrays: Vec<&mut dyn Movable>, spare: Room<u8>) {
    arrays.retain(|array| !array.is_huge());
    let sizes = arrays.iter().map(|array| array.bytes().len());
    let total: usize = sizes.map(|bytes| bytes.next_multiple_of(LINE)).sum();
    let fits = |len: usize| (total..=total + total / WASTE).contains(&len);
    let pages = match spare {
        Room::Pages(pages, _) if fits(pages.len()) => Some(pages),
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
