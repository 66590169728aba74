//! Numbers that Python reads in place, by the buffer protocol.

#![expect(unsafe_code, reason = "the buffer protocol hands out pointers")]

use pyo3::exceptions::PyBufferError;
use pyo3::ffi::{self, Py_ssize_t};
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicI64, AtomicU32};

/// The owner of numbers that `memoryview`s show. No Rust code reads or writes them once it is made.
///
/// The numbers are atomic because Python may change them through a view.
#[pyclass(frozen, module = "fasttoken")]
struct Block {
    numbers: Numbers,
    /// The number of numbers, and the bytes of each, where views point to them.
    shape: [Py_ssize_t; 1],
    stride: [Py_ssize_t; 1],
}

enum Numbers {
    U32(Box<[AtomicU32]>),
    I64(Box<[AtomicI64]>),
}

/// Returns a `memoryview` of format `I`, which owns the numbers.
pub(crate) fn view_u32(py: Python<'_>, numbers: Vec<u32>) -> PyResult<Bound<'_, PyMemoryView>> {
    let (count, numbers) = (numbers.len(), numbers.into_iter().map(AtomicU32::new));
    view(py, count, size_of::<u32>(), Numbers::U32(numbers.collect()))
}

/// Returns a `memoryview` of format `q`, which owns the numbers.
pub(crate) fn view_i64(py: Python<'_>, numbers: Vec<i64>) -> PyResult<Bound<'_, PyMemoryView>> {
    let (count, numbers) = (numbers.len(), numbers.into_iter().map(AtomicI64::new));
    view(py, count, size_of::<i64>(), Numbers::I64(numbers.collect()))
}

fn view(
    py: Python<'_>,
    count: usize,
    size: usize,
    numbers: Numbers,
) -> PyResult<Bound<'_, PyMemoryView>> {
    let block = Block {
        numbers,
        // A vector has at most `isize::MAX` bytes.
        shape: [count as Py_ssize_t],
        stride: [size as Py_ssize_t],
    };
    PyMemoryView::from(Bound::new(py, block)?.as_any())
}

#[pymethods]
impl Block {
    /// Fills in a view of all numbers.
    ///
    /// # Safety
    /// `view` must be null or point to a `Py_buffer` that may be written.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill in"));
        }
        let block = slf.get();
        let (pointer, format): (*mut _, &CStr) = match &block.numbers {
            Numbers::U32(numbers) => (numbers.as_ptr().cast_mut().cast(), c"I"),
            Numbers::I64(numbers) => (numbers.as_ptr().cast_mut().cast(), c"q"),
        };
        let asks = |flag: c_int| flags & flag == flag;
        let [count] = block.shape;
        let [size] = block.stride;
        let filled = ffi::Py_buffer {
            buf: pointer,
            obj: std::ptr::null_mut(),
            len: count * size,
            itemsize: size,
            readonly: 0,
            ndim: 1,
            format: match asks(ffi::PyBUF_FORMAT) {
                true => format.as_ptr().cast_mut(),
                false => std::ptr::null_mut(),
            },
            shape: match asks(ffi::PyBUF_ND) {
                true => block.shape.as_ptr().cast_mut(),
                false => std::ptr::null_mut(),
            },
            strides: match asks(ffi::PyBUF_STRIDES) {
                true => block.stride.as_ptr().cast_mut(),
                false => std::ptr::null_mut(),
            },
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        };
        // SAFETY: `view` is not null, and Python hands in one that may be written. The pointers are
        // into the block, which does not move and lives as long as the view, which owns a reference
        // to it. The numbers may be changed through a shared reference, since they are atomic, and
        // no code changes `shape` and `strides` through a view.
        unsafe {
            view.write(filled);
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }
}
