//! The C side of the emulation: `kernels/emu/abi.cpp`.
#![expect(unsafe_code, reason = "calls into a C library")]

use std::{
    ffi::{CStr, CString, c_char, c_void},
    path::Path,
    sync::Arc,
};

use bytemuck::Zeroable as _;
use libloading::Library;

use super::{Error, Extent, Kernel, Layout, Schedule};
use crate::{DevicePtr, Launch, TensorMap};

/// Longest fault that is passed on.
const MESSAGE_BYTES: usize = 8192;

#[repr(C)]
struct CLaunch {
    kernel: *const c_char,
    params: *const c_void,
    params_bytes: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    order: u32,
    seed: u64,
    extents: *const Extent,
    extent_count: u64,
}

type Device = *mut c_void;

/// The library's functions. They stay loaded for the process's life: fibres' stacks and
/// thread-local state of the library outlive any one launch.
pub(super) struct Symbols {
    open: unsafe extern "C" fn() -> Device,
    close: unsafe extern "C" fn(Device),
    allocate: unsafe extern "C" fn(Device, u64) -> u64,
    free: unsafe extern "C" fn(Device, u64) -> u32,
    write: unsafe extern "C" fn(Device, u64, *const c_void, u64) -> u32,
    read: unsafe extern "C" fn(Device, u64, *mut c_void, u64) -> u32,
    fill: unsafe extern "C" fn(Device, u64, u32, u64) -> u32,
    launch: unsafe extern "C" fn(Device, *const CLaunch, *mut c_char, u64) -> u32,
    kernel: unsafe extern "C" fn(u64, *mut *const c_char, *mut u32) -> *const c_char,
    params: unsafe extern "C" fn(u64, *mut u32) -> *const c_char,
    field: unsafe extern "C" fn(u64, u64, *mut u32, *mut u32) -> *const c_char,
}

impl std::fmt::Debug for Symbols {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Symbols")
    }
}

impl Symbols {
    pub(super) fn load(path: &Path) -> Result<Self, Error> {
        let load = |e: libloading::Error| Error::Load(e.to_string());
        // SAFETY: the library is one that `build` made from this crate's sources; its
        // initialisers fill tables and nothing else.
        let library = unsafe { Library::new(path) }.map_err(load)?;
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: `kernels/emu/abi.cpp` defines it with this signature.
                *unsafe { library.get($name) }.map_err(load)?
            };
        }
        let symbols = Self {
            open: symbol!(b"prelude_emu_open"),
            close: symbol!(b"prelude_emu_close"),
            allocate: symbol!(b"prelude_emu_allocate"),
            free: symbol!(b"prelude_emu_free"),
            write: symbol!(b"prelude_emu_write"),
            read: symbol!(b"prelude_emu_read"),
            fill: symbol!(b"prelude_emu_fill"),
            launch: symbol!(b"prelude_emu_launch"),
            kernel: symbol!(b"prelude_emu_kernel"),
            params: symbol!(b"prelude_emu_params"),
            field: symbol!(b"prelude_emu_field"),
        };
        std::mem::forget(library);
        Ok(symbols)
    }

    pub(super) fn kernels(&self) -> Vec<Kernel> {
        let one = |i| {
            let (mut params, mut threads) = (std::ptr::null(), 0);
            // SAFETY: both point to where the results go.
            let name = unsafe { (self.kernel)(i, &raw mut params, &raw mut threads) };
            Some(Kernel {
                name: text(name)?,
                params: text(params)?,
                threads_max: threads,
            })
        };
        (0..).map_while(one).collect()
    }

    pub(super) fn layout(&self, name: &str) -> Option<Layout> {
        for i in 0.. {
            let mut bytes = 0;
            // SAFETY: `bytes` is where the result goes.
            let found = text(unsafe { (self.params)(i, &raw mut bytes) })?;
            if found != name {
                continue;
            }
            let field = |field| {
                let (mut offset, mut bytes) = (0, 0);
                // SAFETY: both point to where the results go.
                let name = unsafe { (self.field)(i, field, &raw mut offset, &raw mut bytes) };
                Some((text(name)?, offset as usize, bytes as usize))
            };
            return Some(Layout {
                bytes: bytes as usize,
                fields: (0..).map_while(field).collect(),
            });
        }
        None
    }
}

/// Returns a name in the library's tables.
fn text(name: *const c_char) -> Option<String> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the tables hold string literals of a library that stays loaded.
    let name = unsafe { CStr::from_ptr(name) };
    Some(name.to_string_lossy().into_owned())
}

/// A device of the emulation; closed when dropped.
pub(super) struct Handle {
    device: Device,
    symbols: Arc<Symbols>,
}

// SAFETY: a device is plain memory and has no ties to the thread that made it; what a launch
// keeps per thread is used only while it runs.
unsafe impl Send for Handle {}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handle")
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: opened by `open`, closed here alone.
        unsafe { (self.symbols.close)(self.device) }
    }
}

impl Handle {
    pub(super) fn open(symbols: Arc<Symbols>) -> Self {
        // SAFETY: takes nothing.
        let device = unsafe { (symbols.open)() };
        Self { device, symbols }
    }

    pub(super) fn alloc(&self, bytes: usize) -> DevicePtr {
        // SAFETY: the device is open.
        DevicePtr(unsafe { (self.symbols.allocate)(self.device, bytes as u64) })
    }

    pub(super) fn free(&self, at: DevicePtr) -> Result<(), Error> {
        // SAFETY: the device is open; it knows its allocations.
        checked(unsafe { (self.symbols.free)(self.device, at.0) }, at, 0)
    }

    pub(super) fn write(&self, to: DevicePtr, from: &[u8]) -> Result<(), Error> {
        let n = from.len();
        // SAFETY: the device is open and checks its side; `from` has `n` bytes.
        let code =
            unsafe { (self.symbols.write)(self.device, to.0, from.as_ptr().cast(), n as u64) };
        checked(code, to, n)
    }

    pub(super) fn read(&self, from: DevicePtr, to: &mut [u8]) -> Result<(), Error> {
        let n = to.len();
        // SAFETY: the device is open and checks its side; `to` has `n` bytes.
        let code =
            unsafe { (self.symbols.read)(self.device, from.0, to.as_mut_ptr().cast(), n as u64) };
        checked(code, from, n)
    }

    pub(super) fn poison(&self, at: DevicePtr, bytes: usize) -> Result<(), Error> {
        // SAFETY: the device is open and checks the range.
        let code = unsafe { (self.symbols.fill)(self.device, at.0, 0xff, bytes as u64) };
        checked(code, at, bytes)
    }

    pub(super) fn launch(
        &self,
        launch: &Launch,
        params: &[u8],
        schedule: Schedule,
        extents: Option<&[Extent]>,
    ) -> Result<(), Error> {
        let fault = |what| Error::Fault { what, schedule };
        let kernel = CString::new(launch.kernel).map_err(|e| fault(e.to_string()))?;
        // C++ reads the parameters through a struct, so they must lie where a struct may: at a
        // multiple of 128 bytes if it holds tensor maps.
        let mut aligned = vec![TensorMap::zeroed(); params.len().div_ceil(size_of::<TensorMap>())];
        bytemuck::cast_slice_mut(&mut aligned)[..params.len()].copy_from_slice(params);
        let (order, seed) = match schedule {
            Schedule::RoundRobin => (0, 0),
            Schedule::WarpGreedy => (1, 0),
            Schedule::WarpGreedyReversed => (2, 0),
            Schedule::Random(seed) => (3, seed),
        };
        let request = CLaunch {
            kernel: kernel.as_ptr(),
            params: aligned.as_ptr().cast(),
            params_bytes: params.len() as u64,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: launch.shared_bytes,
            order,
            seed,
            extents: extents.map_or(std::ptr::null(), <[Extent]>::as_ptr),
            extent_count: extents.map_or(0, <[Extent]>::len) as u64,
        };
        let mut message = vec![0u8; MESSAGE_BYTES];
        let (text, room) = (message.as_mut_ptr().cast(), message.len() as u64);
        // SAFETY: everything the request points to lives until the call returns; kernels touch
        // device memory through checks, and the message has `room` bytes.
        let code = unsafe { (self.symbols.launch)(self.device, &raw const request, text, room) };
        if code == 0 {
            return Ok(());
        }
        let end = message.iter().position(|&b| b == 0).unwrap_or(0);
        Err(fault(String::from_utf8_lossy(&message[..end]).into_owned()))
    }
}

const fn checked(code: u32, at: DevicePtr, bytes: usize) -> Result<(), Error> {
    if code == 0 {
        return Ok(());
    }
    Err(Error::OutOfBounds { at: at.0, bytes })
}
