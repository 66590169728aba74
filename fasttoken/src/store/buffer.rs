//! Arrays that are filled before they are shared, and files that are read into them.

use super::Flat;
use crate::file;
use crate::pages::Pages;
use bytemuck::Pod;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::sync::Arc;

/// A zeroed array that is filled before it becomes a [`Flat`], in huge pages if it is large:
/// touching pages of 4 KiB for the first time takes longer than filling them.
pub(crate) enum ZeroedBuffer<T> {
    Pages(Pages, PhantomData<T>),
    Heap(Vec<T>),
}

impl<T: Pod> ZeroedBuffer<T> {
    pub(crate) fn zeroed(len: usize) -> Self {
        match len.checked_mul(size_of::<T>()).and_then(Pages::zeroed) {
            Some(pages) => Self::Pages(pages, PhantomData),
            None => Self::Heap(bytemuck::zeroed_vec(len)),
        }
    }
}

impl<T> Default for ZeroedBuffer<T> {
    fn default() -> Self {
        Self::Heap(Vec::new())
    }
}

impl<T: Pod> Deref for ZeroedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Pages(pages, _) => bytemuck::cast_slice(pages),
            Self::Heap(elements) => elements,
        }
    }
}

impl<T: Pod> DerefMut for ZeroedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self {
            Self::Pages(pages, _) => bytemuck::cast_slice_mut(pages),
            Self::Heap(elements) => elements,
        }
    }
}

impl<T: Pod + Send + Sync> From<ZeroedBuffer<T>> for Flat<T> {
    fn from(buffer: ZeroedBuffer<T>) -> Self {
        match buffer {
            ZeroedBuffer::Pages(pages, _) => {
                let pages = Arc::new(pages);
                Self::new(bytemuck::cast_slice(&pages), pages.clone())
            }
            ZeroedBuffer::Heap(elements) => elements.into(),
        }
    }
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> io::Result<ZeroedBuffer<u8>> {
    let (mut file, len) = file::open(path)?;
    if len < 1 << 20 {
        return file::read(path).map(ZeroedBuffer::Heap);
    }
    // A file larger than memory is an error there, and not a panic here.
    let Some(pages) = Pages::zeroed(len) else {
        return file::read(path).map(ZeroedBuffer::Heap);
    };
    let mut buffer = ZeroedBuffer::Pages(pages, PhantomData);
    let mut filled = 0;
    while filled < len {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    // Another process may be writing.
    if filled < len || file.read(&mut [0])? > 0 {
        return file::read(path).map(ZeroedBuffer::Heap);
    }
    Ok(buffer)
}
