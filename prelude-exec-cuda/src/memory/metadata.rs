//! A step's ids, tables and tiles for the GPU: packed on the host, sent by one copy.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::{
    pinned::Pinned,
    space::{Buffer, Space},
    view::View,
};
use crate::Error;

/// The multiple of bytes at which every array starts.
const ALIGN: usize = 16;

/// An array among the metadata.
#[derive(Debug)]
pub(crate) struct Field<T> {
    offset: usize,
    len: usize,
    element: PhantomData<T>,
}

// By hand: the element type need not be `Clone`.
impl<T> Clone for Field<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Field<T> {}

impl<T> Default for Field<T> {
    fn default() -> Self {
        Self {
            offset: 0,
            len: 0,
            element: PhantomData,
        }
    }
}

/// The metadata of one step, on both sides.
#[derive(Debug)]
pub(crate) struct Metadata {
    host: Pinned,
    device: Buffer,
    used: usize,
}

impl Metadata {
    pub(crate) fn new(space: &Space, bytes: usize) -> Result<Self, Error> {
        Ok(Self {
            host: space.pinned("metadata", bytes)?,
            device: space.alloc("metadata", bytes)?,
            used: 0,
        })
    }

    /// Allocates host memory for [`Metadata::exchange`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn spare(&self, space: &Space) -> Result<Pinned, Error> {
        space.pinned("metadata", self.host.bytes().len())
    }

    /// Packs into other host memory from here on: what was packed may still be on its way.
    pub(crate) const fn exchange(&mut self, host: &mut Pinned) {
        std::mem::swap(&mut self.host, host);
    }

    /// Returns the bytes on the device.
    pub(crate) const fn bytes(&self) -> usize {
        self.device.bytes()
    }

    /// Forgets all arrays.
    pub(crate) const fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns the bytes that arrays may still take, each rounded up by at most
    /// [`Metadata::PADDING`].
    pub(crate) fn room(&self) -> usize {
        self.host.bytes().len() - self.used
    }

    /// Most bytes that an array takes beside its own.
    pub(crate) const PADDING: usize = ALIGN - 1;

    /// Adds an array.
    ///
    /// # Errors
    /// [`Error::Step`] if there is no room.
    pub(crate) fn push<T: Pod>(&mut self, values: &[T]) -> Result<Field<T>, Error> {
        self.push_within(values, 0)
    }

    /// Adds an array that takes the room of `room` elements if it has fewer, so that what comes
    /// behind it lies where it lay. Nothing is written to the rest of its room.
    ///
    /// # Errors
    /// [`Error::Step`] if there is no room.
    pub(crate) fn push_within<T: Pod>(
        &mut self,
        values: &[T],
        room: usize,
    ) -> Result<Field<T>, Error> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let end = self.used + bytes.len().max(room * size_of::<T>());
        let most = self.host.bytes().len();
        if end > most {
            return Err(Error::Step(format!(
                "its ids, block tables and tiles take more than the {most} bytes of \
                 `metadata_bytes`"
            )));
        }
        self.host.bytes_mut()[self.used..][..bytes.len()].copy_from_slice(bytes);
        let field = Field {
            offset: self.used,
            len: values.len(),
            element: PhantomData,
        };
        self.used = end.next_multiple_of(ALIGN).min(most);
        Ok(field)
    }

    /// Queues the copy to the device.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn send(&mut self) -> Result<(), Error> {
        self.device.upload(&self.host, self.used)
    }

    /// Returns an array on the device, as one row.
    pub(crate) fn view<T: Pod>(&self, field: Field<T>) -> View<T> {
        self.device.view(field.offset, 1, field.len)
    }

    /// Returns a part of an array on the device, as one row.
    pub(crate) fn part<T: Pod>(&self, field: Field<T>, range: std::ops::Range<usize>) -> View<T> {
        self.view(field).columns(range)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn arrays_are_aligned_and_bounded() {
        let mut metadata = Metadata::new(&Space::Virtual(Arc::default()), 40).unwrap();
        let a = metadata.push(&[1u8, 2, 3]).unwrap();
        let b = metadata.push(&[7u32, 8]).unwrap();
        assert_eq!((a.offset, b.offset, b.len), (0, 16, 2));
        assert!(matches!(metadata.push(&[0u32; 3]), Err(Error::Step(_))));
        assert!(metadata.push(&[0u32; 2]).is_ok());
        assert!(metadata.push(&[0u8; 1]).is_err());
        assert_eq!(metadata.part(b, 1..2).width(), 1);
        assert_eq!(metadata.room(), 0);
        metadata.clear();
        assert_eq!(metadata.room(), 40);
        let few = metadata.push_within(&[7u16], 9).unwrap();
        assert_eq!((few.offset, few.len, metadata.room()), (0, 1, 8));
        assert!(metadata.push_within(&[0u8], 9).is_err());
        metadata.clear();
        assert_eq!(metadata.push(&[0u8; 40]).unwrap().offset, 0);
    }
}
