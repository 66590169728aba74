//! The process itself: its memory, on its way back to the system too, its files, its time.

use std::{
    fs,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::{Duration, SystemTime},
};

use rustix::time::{ClockId, clock_gettime};

/// Returns the bytes of memory that the process holds; `None` where the system does not say.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Returns the number of open files; `None` where the system does not say.
pub(crate) fn open_files() -> Option<u64> {
    let files = fs::read_dir("/proc/self/fd").ok()?.count();
    // Less the one that lists them.
    Some((files as u64).saturating_sub(1))
}

/// Returns the seconds for which the process has had a core.
pub(crate) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let time = Duration::try_from(time).unwrap_or_default();
    time.as_secs_f64()
}

/// Returns a time in seconds since 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> f64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    // A clock before 1970 is wrong by more than we can mend.
    since.unwrap_or_default().as_secs_f64()
}

/// The time from the end of a large request to giving back what it freed, and between two such
/// times: what ends together is given back together.
const PAUSE: Duration = Duration::from_secs(2);

/// The thread that gives freed memory back to the system, which ends with its last asker. The
/// allocator would keep it: what many threads freed of one large request is as much again as the
/// server holds.
#[derive(Debug)]
pub(crate) struct GiveBack(Option<SyncSender<()>>);

impl GiveBack {
    /// Starts the thread. Without one, memory stays with the allocator.
    pub(crate) fn start() -> Self {
        // One asker waits at most: it asks for all.
        let (sender, asked) = sync_channel(1);
        let thread = thread::Builder::new().name("prelude-free".to_owned());
        Self(thread.spawn(move || run(&asked)).ok().map(|_| sender))
    }

    /// Asks for what has been freed to be given back soon. Does not wait.
    pub(crate) fn ask(&self) {
        if let Some(sender) = &self.0 {
            // Full: somebody has asked already.
            let _ = sender.try_send(());
        }
    }
}

fn run(asked: &Receiver<()>) {
    while asked.recv().is_ok() {
        thread::sleep(PAUSE);
        prelude_exec_cpu::give_back_freed();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_process_knows_itself() {
        // Other tests run beside this one: what it holds itself is the least there is.
        let held = vec![1u8; 64 << 20];
        let files: Vec<_> = (0..8)
            .map(|_| fs::File::open("/proc/self/status"))
            .collect();
        assert!(resident_bytes().unwrap() >= held.len() as u64);
        assert!(open_files().unwrap() >= files.len() as u64);
        assert!(cpu_seconds() > 0.0);
        assert!(unix_seconds(SystemTime::now()) > 1.7e9);
        drop((held, files));
    }
}
