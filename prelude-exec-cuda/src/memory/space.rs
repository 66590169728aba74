//! The sources of memory, and copies to and from it.

use std::{ops::Range, sync::Arc};

use bytemuck::Pod;
use cudarc::driver::{DriverError, result, sys::CUresult};
use prelude_kernels::DevicePtr;
#[cfg(feature = "emu")]
use prelude_kernels::emu;

use super::{
    context::{Context, failed},
    event::{Event, Point},
    pinned::Pinned,
    view::View,
};
use crate::Error;
#[cfg(feature = "emu")]
use crate::record::Recording;

/// Alignment of recorded buffers: what the driver gives.
#[cfg(feature = "emu")]
const ALIGN: usize = 256;

/// The source of memory.
#[derive(Clone, Debug)]
pub(crate) enum Space {
    /// A GPU.
    Cuda(Arc<Context>),
    /// The emulation's: filled with NaN, and checked.
    #[cfg(feature = "emu")]
    Emu(Arc<emu::Device>),
    /// There is no memory: addresses have names and nothing behind them.
    #[cfg(feature = "emu")]
    Virtual(Arc<Recording>),
}

/// Memory of one [`Space`]. Freed when dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    space: Space,
    address: u64,
    bytes: usize,
}

// SAFETY: a buffer is the only owner of its memory, and addresses are used only through calls
// that take `&mut self` or run in the order of one stream.
unsafe impl Send for Buffer {}

impl Space {
    /// Returns the name of the device that the memory is of.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Cuda(context) => &context.name,
            #[cfg(feature = "emu")]
            Self::Emu(_) => "emulation",
            #[cfg(feature = "emu")]
            Self::Virtual(_) => "recording",
        }
    }

    /// Takes memory; its contents are unspecified.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn alloc(&self, name: &str, bytes: usize) -> Result<Buffer, Error> {
        // Zero bytes have no address.
        let bytes = bytes.max(1);
        let out_of_memory = |free| Error::OutOfMemory {
            stage: name.to_owned(),
            asked: bytes as u64,
            free,
        };
        let address = match self {
            Self::Cuda(context) => {
                context.bind()?;
                // SAFETY: freed once, in `drop`.
                match unsafe { result::malloc_sync(bytes) } {
                    Ok(address) => address,
                    Err(DriverError(CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                        return Err(out_of_memory(context.free_bytes()?));
                    }
                    Err(e) => return Err(failed("cuMemAlloc", e)),
                }
            }
            #[cfg(feature = "emu")]
            Self::Emu(device) => device.alloc(bytes).map_err(|e| emulated("alloc", &e))?.0,
            #[cfg(feature = "emu")]
            Self::Virtual(recording) => recording.place(name, bytes, ALIGN),
        };
        Ok(Buffer {
            space: self.clone(),
            address,
            bytes,
        })
    }

    /// Allocates host memory that copies may run from and to.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub(crate) fn pinned(&self, name: &str, bytes: usize) -> Result<Pinned, Error> {
        match self {
            Self::Cuda(context) => Pinned::locked(Arc::clone(context), name, bytes),
            #[cfg(feature = "emu")]
            Self::Emu(_) | Self::Virtual(_) => Ok(Pinned::plain(bytes)),
        }
    }

    /// Waits until what loading sent is there.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if it cannot be waited for.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        match self {
            Self::Cuda(context) => context.synchronize_all("loading"),
            #[cfg(feature = "emu")]
            Self::Emu(_) | Self::Virtual(_) => Ok(()),
        }
    }

    /// Returns a point in what steps queue, to be waited for.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn point(&self) -> Result<Point, Error> {
        match self {
            Self::Cuda(context) => Event::new(context).map(Point::Gpu),
            #[cfg(feature = "emu")]
            Self::Emu(_) | Self::Virtual(_) => Ok(Point::host()),
        }
    }

    /// Waits for everything that steps queued.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if a kernel went wrong or cannot be waited for.
    pub(crate) fn synchronize(&self, what: &'static str) -> Result<(), Error> {
        match self {
            Self::Cuda(context) => context.synchronize(what),
            #[cfg(feature = "emu")]
            Self::Emu(_) | Self::Virtual(_) => Ok(()),
        }
    }

    /// Returns the bytes that are free, where there is a limit.
    pub(crate) fn free_bytes(&self) -> Result<Option<u64>, Error> {
        match self {
            Self::Cuda(context) => context.free_bytes().map(Some),
            #[cfg(feature = "emu")]
            Self::Emu(_) | Self::Virtual(_) => Ok(None),
        }
    }
}

#[cfg(feature = "emu")]
fn emulated(call: &'static str, error: &emu::Error) -> Error {
    Error::Driver {
        call,
        code: error.to_string(),
    }
}

impl Buffer {
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address of the buffer's first byte.
    pub(crate) const fn start(&self) -> DevicePtr {
        DevicePtr(self.address)
    }

    /// Returns `rows · width` elements from a byte offset on.
    ///
    /// # Panics
    /// If they are not within the buffer, or the offset is not aligned for `T`.
    pub(crate) fn view<T: Pod>(&self, offset: usize, rows: usize, width: usize) -> View<T> {
        let bytes = rows
            .checked_mul(width)
            .and_then(|n| n.checked_mul(size_of::<T>()))
            .and_then(|n| n.checked_add(offset));
        assert!(
            bytes.is_some_and(|end| end <= self.bytes) && offset.is_multiple_of(align_of::<T>()),
            "[{rows}, {width}] at {offset} is not within {} bytes",
            self.bytes
        );
        View::new(self.address + offset as u64, rows, width)
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "bytes {range:?} of {}",
            self.bytes
        );
    }

    /// Writes bytes. For tests and measurements: returns when `bytes` have been read, but they are
    /// there for steps only after [`Space::settle`], since the last part of a copy from pageable memory
    /// may still be on its way, on a stream that the steps' does not wait for.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If they do not fit.
    #[cfg(any(test, feature = "measure"))]
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check(&(offset..offset + bytes.len()));
        let to = self.address + offset as u64;
        match &self.space {
            Space::Cuda(context) => {
                context.bind()?;
                // SAFETY: the range is within this buffer; the call returns when `bytes` have
                // been read, into the driver's own memory or the GPU's.
                unsafe { result::memcpy_htod_sync(to, bytes) }
                    .map_err(|e| failed("cuMemcpyHtoD", e))
            }
            #[cfg(feature = "emu")]
            Space::Emu(device) => device
                .write(DevicePtr(to), bytes)
                .map_err(|e| emulated("write", &e)),
            #[cfg(feature = "emu")]
            Space::Virtual(_) => Ok(()),
        }
    }

    /// Reads bytes that have been waited for. For tests and measurements.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If they are not within the buffer.
    #[cfg(feature = "measure")]
    pub(crate) fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.check(&(offset..offset + bytes.len()));
        let from = self.address + offset as u64;
        match &self.space {
            Space::Cuda(context) => {
                context.bind()?;
                // SAFETY: the range is within this buffer; the call returns when it has been read.
                unsafe { result::memcpy_dtoh_sync(bytes, from) }
                    .map_err(|e| failed("cuMemcpyDtoH", e))
            }
            Space::Emu(device) => device
                .read(DevicePtr(from), bytes)
                .map_err(|e| emulated("read", &e)),
            Space::Virtual(_) => Ok(()),
        }
    }

    /// Queues a copy of the first `bytes` of `from` to the front of this buffer. `from` must not
    /// be written before the stream has passed the copy, which [`Pinned`]'s owners see to by
    /// waiting for the step.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn upload(&mut self, from: &Pinned, bytes: usize) -> Result<(), Error> {
        self.upload_at(0, from, 0..bytes)
    }

    /// Queues a copy of bytes of `from` into this buffer, as [`Self::upload`] does.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If they are not within both.
    pub(crate) fn upload_at(
        &mut self,
        at: usize,
        from: &Pinned,
        range: Range<usize>,
    ) -> Result<(), Error> {
        #[cfg(feature = "emu")]
        if let Space::Virtual(recording) = &self.space {
            self.check(&(at..at + range.len()));
            recording.copy("upload", self.address + at as u64, range.len());
            return Ok(());
        }
        self.fill_from(at, from, range)
    }

    /// Queues a copy of bytes of `from` into this buffer, which may be shared already: they are of a
    /// part that nothing has read. For loading.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If they are not within both.
    pub(crate) fn fill_from(
        &self,
        at: usize,
        from: &Pinned,
        range: Range<usize>,
    ) -> Result<(), Error> {
        self.check(&(at..at + range.len()));
        let from = &from.bytes()[range];
        let to = self.address + at as u64;
        match &self.space {
            Space::Cuda(context) => {
                context.bind()?;
                // SAFETY: both ranges were checked; these bytes of the pinned memory are not written
                // or freed before the stream has passed the copy.
                unsafe { result::memcpy_htod_async(to, from, context.stream()) }
                    .map_err(|e| failed("cuMemcpyHtoDAsync", e))
            }
            #[cfg(feature = "emu")]
            Space::Emu(device) => device
                .write(DevicePtr(to), from)
                .map_err(|e| emulated("write", &e)),
            #[cfg(feature = "emu")]
            Space::Virtual(_) => Ok(()),
        }
    }

    /// Queues a copy of bytes of another buffer into this one, as a kernel would write them.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If they are not within both buffers.
    pub(crate) fn copy_from(
        &self,
        at: usize,
        from: &Self,
        range: Range<usize>,
    ) -> Result<(), Error> {
        from.check(&range);
        self.check(&(at..at + range.len()));
        let (to, source) = (self.address + at as u64, from.address + range.start as u64);
        match &self.space {
            Space::Cuda(context) => {
                context.bind()?;
                // SAFETY: both ranges were checked; both buffers are of this context and live
                // until the stream has been waited for.
                unsafe { result::memcpy_dtod_async(to, source, range.len(), context.stream()) }
                    .map_err(|e| failed("cuMemcpyDtoDAsync", e))
            }
            #[cfg(feature = "emu")]
            Space::Emu(device) => {
                let mut bytes = vec![0u8; range.len()];
                device
                    .read(DevicePtr(source), &mut bytes)
                    .and_then(|()| device.write(DevicePtr(to), &bytes))
                    .map_err(|e| emulated("copy", &e))
            }
            #[cfg(feature = "emu")]
            Space::Virtual(recording) => {
                let place = recording.name(source);
                recording.copy(&format!("copy {place} to"), to, range.len());
                Ok(())
            }
        }
    }

    /// Queues a copy of the first `bytes` of this buffer to the front of `to`, to be read after
    /// [`Space::synchronize`].
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn download(&self, to: &mut Pinned, bytes: usize) -> Result<(), Error> {
        self.download_at(0..bytes, to, 0)
    }

    /// Queues a copy of bytes of this buffer into `to`, as [`Self::download`] does.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If they are not within both.
    pub(crate) fn download_at(
        &self,
        range: Range<usize>,
        to: &mut Pinned,
        at: usize,
    ) -> Result<(), Error> {
        self.check(&range);
        let to = &mut to.bytes_mut()[at..at + range.len()];
        let from = self.address + range.start as u64;
        match &self.space {
            Space::Cuda(context) => {
                context.bind()?;
                // SAFETY: both ranges were checked; the pinned memory is not read or freed before
                // the stream has passed the copy.
                unsafe { result::memcpy_dtoh_async(to, from, context.stream()) }
                    .map_err(|e| failed("cuMemcpyDtoHAsync", e))
            }
            #[cfg(feature = "emu")]
            Space::Emu(device) => device
                .read(DevicePtr(from), to)
                .map_err(|e| emulated("read", &e)),
            #[cfg(feature = "emu")]
            Space::Virtual(recording) => {
                recording.copy("download", from, to.len());
                Ok(())
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.space {
            Space::Cuda(context) => {
                // A context that is lost has lost its memory too.
                if context.bind().is_ok() {
                    // SAFETY: allocated in `alloc`, freed here only; `cuMemFree` waits for what
                    // is queued.
                    let _ = unsafe { result::free_sync(self.address) };
                }
            }
            #[cfg(feature = "emu")]
            Space::Emu(device) => device
                .free(DevicePtr(self.address))
                .expect("it was allocated here and is freed once"),
            #[cfg(feature = "emu")]
            Space::Virtual(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        let Some(device) = crate::testing::emulation() else {
            return;
        };
        let space = Space::Emu(device);
        let mut buffer = space.alloc("test", 100).unwrap();
        let mut host = space.pinned("host", 100).unwrap();
        buffer.download(&mut host, 100).unwrap();
        assert!(host.bytes()[..100].iter().all(|&b| b == 0xff), "poison");
        buffer.write(40, &[1, 2, 3]).unwrap();
        buffer.download(&mut host, 43).unwrap();
        assert_eq!(host.bytes()[39..43], [0xff, 1, 2, 3]);
        host.bytes_mut()[0] = 9;
        buffer.upload(&host, 1).unwrap();
        host.bytes_mut()[0] = 0;
        buffer.download(&mut host, 1).unwrap();
        assert_eq!(host.bytes()[0], 9);
    }

    #[test]
    #[should_panic(expected = "[3, 9] at 0 is not within 100 bytes")]
    fn views_beyond_a_buffer_panic() {
        let space = Space::Virtual(Arc::default());
        let buffer = space.alloc("test", 100).unwrap();
        let _ = buffer.view::<f32>(0, 3, 9);
    }
}
