//! Flat arrays that are owned, or lie in an image that is mapped or held in memory.
//!
//! Reading one costs the same either way: a pointer and a length. The array keeps
//! what it points into alive, so clones and parts of an image can be passed around
//! freely. The bytes of an image are read as plain numbers, whose every bit pattern
//! is valid; what the numbers mean is for their users to check.
#![expect(
    unsafe_code,
    reason = "a slice that does not borrow from its keeper, and mapping a file"
)]

use crate::pages::Pages;
use bytemuck::Pod;
use memmap2::{Mmap, MmapOptions};
use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

/// An immutable `[T]` that owns its elements or shares an image's.
///
/// Made from a `Vec`, or by [`Image::view`]. Cloning shares.
pub(crate) struct Flat<T> {
    data: NonNull<T>,
    len: usize,
    /// Owns what `data` points to and is never written: a `Vec<T>`, an `Image`, or
    /// [`Pages`], which [`gather`] fills before it shares them.
    keeper: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a `Flat<T>` is a shared reference to elements that nobody writes, and its
// keeper is `Send + Sync`: a `Vec<T>` and an image have no way to be written through an
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
    /// `elements` must belong to what `keeper` owns; private to keep that checkable.
    fn new(elements: &[T], keeper: Arc<dyn Any + Send + Sync>) -> Self {
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

/// An array that begins with all bits zero and is filled, in huge pages if it is large:
/// filling pages of 4 KiB for the first time takes longer than what is written to them.
pub(crate) enum Room<T> {
    Pages(Pages, PhantomData<T>),
    Heap(Vec<T>),
}

impl<T: Pod> Room<T> {
    pub(crate) fn zeroed(len: usize) -> Self {
        match len.checked_mul(size_of::<T>()).and_then(Pages::zeroed) {
            Some(pages) => Self::Pages(pages, PhantomData),
            None => Self::Heap(bytemuck::zeroed_vec(len)),
        }
    }
}

/// At most one part in so many of used memory is wasted to save the zeroing of new one.
const WASTE: usize = 2;

/// The contents of a file.
pub(crate) fn read(path: &Path) -> io::Result<Room<u8>> {
    let mut file = File::open(path)?;
    let about = file.metadata()?;
    let len = usize::try_from(about.len()).unwrap_or(0);
    if len < 1 << 20 || !about.is_file() {
        return std::fs::read(path).map(Room::Heap);
    }
    // A file larger than memory is an error there, and not a panic here.
    let Some(pages) = Pages::zeroed(len) else {
        return std::fs::read(path).map(Room::Heap);
    };
    let mut room = Room::Pages(pages, PhantomData);
    let mut filled = 0;
    while filled < len {
        match file.read(&mut room[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // Another process may be writing.
    if filled < len || file.read(&mut [0])? > 0 {
        return std::fs::read(path).map(Room::Heap);
    }
    Ok(room)
}

impl<T> Default for Room<T> {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl<T: Pod> Deref for Room<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Pages(pages, _) => bytemuck::cast_slice(pages),
            Self::Heap(elements) => elements,
        }
    }
}

impl<T: Pod> DerefMut for Room<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Pages(pages, _) => bytemuck::cast_slice_mut(pages),
            Self::Heap(elements) => elements,
        }
    }
}

impl<T: Pod + Send + Sync> From<Room<T>> for Flat<T> {
    fn from(room: Room<T>) -> Self {
        match room {
            Room::Pages(pages, _) => {
                let pages = Arc::new(pages);
                Self::new(bytemuck::cast_slice(&pages), pages.clone())
            }
            Room::Heap(elements) => elements.into(),
        }
    }
}

/// A [`Flat`] of any elements, to be moved.
pub(crate) trait Movable {
    fn bytes(&self) -> &[u8];
    /// Whether it lies in huge pages already.
    fn is_huge(&self) -> bool;
    /// Points it to `range` of `pages`, which has a copy of its bytes, aligned to a line.
    fn point_to(&mut self, pages: &Arc<Pages>, range: Range<usize>);
}

impl<T: Pod> Movable for Flat<T> {
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
    /// Names and counts the elements: tables hold hundreds of thousands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flat<{}>[{}]", std::any::type_name::<T>(), self.len)
    }
}

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

/// A cache line. Images start on one, so arrays of any alignment up to it can lie in
/// them.
#[derive(Clone, Copy, bytemuck::Zeroable, bytemuck::Pod)]
#[repr(C, align(64))]
struct Line([u8; LINE]);

/// Alignment of an image's first byte.
pub(crate) const LINE: usize = 64;

/// The bytes of an image file. Cloning shares.
#[derive(Clone)]
pub(crate) struct Image {
    /// Kept alive by the keeper of each [`Flat`] made from it.
    bytes: Arc<Bytes>,
}

enum Bytes {
    Mapped(Mmap),
    Held { lines: Vec<Line>, len: usize },
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Held { lines, len } => &bytemuck::cast_slice(lines)[..*len],
        }
    }
}

impl Image {
    /// Maps `file` for reading, all of it at once.
    ///
    /// Nobody may change or shorten the file while the image or an array of it is
    /// alive; a writer must replace it by a new one.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is private and read-only, so this process cannot write
        // through it. That no other one changes the file meanwhile is the caller's
        // duty, stated above; no check could establish it.
        let map = unsafe { MmapOptions::new().populate().map(file)? };
        Ok(Self {
            bytes: Arc::new(Bytes::Mapped(map)),
        })
    }

    /// An image that is a copy of `bytes`.
    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let mut lines = vec![Line([0; LINE]); bytes.len().div_ceil(LINE)];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        let len = bytes.len();
        Self {
            bytes: Arc::new(Bytes::Held { lines, len }),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes of `range` as an array; `None` if they are not there, or not a whole
    /// number of properly aligned elements.
    pub(crate) fn view<T: Pod>(&self, range: Range<usize>) -> Option<Flat<T>> {
        let elements = bytemuck::try_cast_slice(self.bytes.get(range)?).ok()?;
        Some(Flat::new(elements, self.bytes.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_outlive_what_they_were_made_from() {
        let owned: Flat<u32> = vec![1, 2, 3].into();
        let clone = owned.clone();
        drop(owned);
        assert_eq!(*clone, [1, 2, 3]);
        assert!(Flat::<u64>::default().is_empty());

        let bytes: Vec<u8> = (0..200).collect();
        let image = Image::copy_of(&bytes);
        assert_eq!(image.bytes(), bytes);
        let numbers = image.view::<u32>(64..72).unwrap();
        drop(image);
        let expected = [[64, 65, 66, 67], [68, 69, 70, 71]].map(u32::from_le_bytes);
        assert_eq!(*numbers, expected);
        let sent = std::thread::spawn(move || numbers.len());
        assert_eq!(sent.join().unwrap(), 2);
    }

    #[test]
    fn gathered_arrays_are_what_they_were() {
        let numbers: Vec<u64> = (0..300_000).collect();
        let bytes = vec![7u8; 100];
        let (mut a, mut b) = (Flat::from(numbers.clone()), Flat::from(bytes.clone()));
        let (mut empty, old) = (Flat::<u32>::default(), a.clone());
        let arrays: [&mut dyn Movable; 3] = [&mut b, &mut empty, &mut a];
        gather(arrays.into(), Room::default());
        assert_eq!((a.to_vec(), b.to_vec(), empty.len()), (numbers, bytes, 0));
        assert_eq!(*a, *old);
        assert!(!cfg!(target_os = "linux") || a.as_ptr() != old.as_ptr());
    }

    #[test]
    fn spare_memory_is_used_if_it_fits() {
        let numbers: Vec<u64> = (0..300_000).collect();
        let bytes = numbers.len() * 8;
        for (len, used) in [
            (bytes, true),
            (bytes + bytes / 4, true),
            (bytes - 1, false),
            (2 * bytes, false),
        ] {
            let spare: Room<u8> = Room::zeroed(len);
            let place = spare.as_ptr();
            let paged = matches!(spare, Room::Pages(..));
            let mut array = Flat::from(numbers.clone());
            gather(vec![&mut array], spare);
            assert_eq!(array.to_vec(), numbers);
            assert!(!used || !paged || array.as_ptr().cast() == place);
        }
    }

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

    #[test]
    fn rooms_are_zeroed_and_become_arrays() {
        for len in [0, 5, 300_000] {
            let mut room: Room<u64> = Room::zeroed(len);
            assert_eq!(*room, vec![0; len]);
            room.iter_mut().zip(1..).for_each(|(n, value)| *n = value);
            let mut array: Flat<u64> = room.into();
            // Once more, wherever it is.
            gather(vec![&mut array], Room::default());
            assert!((1..).zip(&*array).all(|(n, value)| *value == n));
            assert_eq!(array.len(), len);
        }
    }

    #[test]
    fn files_are_read_whole() {
        let path = std::env::temp_dir().join(format!("fasttoken-read-{}", std::process::id()));
        for len in [0, 7, (1 << 20) + 3] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(*read(&path).unwrap(), bytes);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(read(&path).is_err());
    }

    #[test]
    fn parts_that_do_not_fit_are_none() {
        let image = Image::copy_of(&[7; 130]);
        assert!(image.view::<u8>(0..130).is_some());
        assert!(image.view::<u8>(0..131).is_none());
        assert!(image.view::<u32>(0..6).is_none());
        assert!(image.view::<u32>(2..6).is_none());
        #[expect(clippy::reversed_empty_ranges, reason = "damaged files have them")]
        let reversed = image.view::<u8>(9..3);
        assert!(reversed.is_none());
        assert!(image.view::<u64>(64..64).unwrap().is_empty());
    }

    #[test]
    fn files_are_mapped() {
        let path = std::env::temp_dir().join(format!("fasttoken-store-{}", std::process::id()));
        std::fs::write(&path, [3; 100]).unwrap();
        let image = Image::map(&File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let numbers = image.view::<u16>(0..100).unwrap();
        drop(image);
        assert_eq!(*numbers, [0x0303; 50]);
    }
}
