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

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    #[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
    fn resident_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kib = line.unwrap().trim().trim_end_matches(" kB");
        kib.parse().unwrap()
    }

    #[test]
    fn freed_memory_goes_back() {
        // Small pieces, of which the last stays: the allocator cannot give back what is below it.
        let mut pieces: Vec<Box<[u8]>> = (0..1 << 17).map(|_| vec![1; 1 << 10].into()).collect();
        pieces.drain(..pieces.len() - 1);
        let before = resident_kib();
        give_back_freed();
        let after = resident_kib();
        assert!(after + (64 << 10) < before, "{before} KiB, then {after}");
        drop(pieces);
    }
}
