//! Freed memory on its way back to the system: a call of the C library, which is `unsafe`.
#![cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    expect(
        unsafe_code,
        reason = "a call of the C library; see the comment at the call"
    )
)]

/// Gives the memory that this process has freed back to the system, as far as the allocator keeps
/// it. The C library of GNU keeps what its many threads freed until it is asked; elsewhere this
/// does nothing. Takes milliseconds for each gigabyte kept, in which allocations may wait.
pub fn give_back_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        // SAFETY: glibc lets any thread call it at any time; it takes a number and touches free
        // memory alone.
        unsafe { malloc_trim(0) };
    }
}
