//! Freed memory goes back to the system. A process of its own, since other tests take memory meanwhile
//! and sanitizers bring an allocator of their own.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use prelude_exec_cpu::give_back_freed;

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
