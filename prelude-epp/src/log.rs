//! The log on stderr: changes of endpoints and, if they are asked for, picks and refusals. It has no
//! text of a request but its path.
//!
//! A picker that serves leaves the writing to a thread, behind a queue with a bound: if nobody reads
//! the log, lines are dropped, exchanges go on, and a line says how many it was once somebody does.

use std::{
    fmt,
    io::{self, Write},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

/// Most lines that wait to be written, about a megabyte.
const QUEUED_LINES: usize = 4096;
/// The longest time that the process waits at its end for its last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// The queue of a process that serves: there is one stderr, whatever else there are several of.
static QUEUE: OnceLock<Queue> = OnceLock::new();

struct Queue {
    entries: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

enum Entry {
    Line(String),
    /// Asks for an answer when everything before it has been written.
    Flush(SyncSender<()>),
}

/// Writes one line at once, so that lines of several threads do not mix; through the queue once there
/// is one.
pub fn line(text: fmt::Arguments<'_>) {
    let line = format!("{text}\n");
    match QUEUE.get() {
        Some(queue) => queue.put(line),
        // A log that cannot be written is no reason to fail.
        None => drop(io::stderr().lock().write_all(line.as_bytes())),
    }
}

/// Leaves the writing of all further lines to a thread, so that no line waits for a reader.
///
/// # Errors
/// If the system gives no thread.
pub fn start() -> io::Result<()> {
    if QUEUE.get().is_none() {
        // A second call loses: its thread ends when its queue is dropped.
        let _ = QUEUE.set(Queue::start(io::stderr())?);
    }
    Ok(())
}

/// Waits until all lines have been written, for half a second at most.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FLUSH_TIMEOUT);
    }
}

impl Queue {
    /// Starts the thread that writes lines to `out`.
    fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, entries) = sync_channel(QUEUED_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        let thread = thread::Builder::new().name("prelude-log".to_owned());
        thread.spawn(move || write(&entries, &counted, out))?;
        Ok(Self {
            entries: sender,
            dropped,
        })
    }

    fn put(&self, line: String) {
        if self.entries.try_send(Entry::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn flush(&self, timeout: Duration) {
        let (done, is_done) = sync_channel(1);
        // The queue is full and has no reader, so the wait would not end.
        if self.entries.try_send(Entry::Flush(done)).is_ok() {
            // What has not been written by then is lost.
            let _ = is_done.recv_timeout(timeout);
        }
    }
}

/// Writes lines until all senders are gone.
fn write(entries: &Receiver<Entry>, dropped: &AtomicU64, mut out: impl Write) {
    while let Ok(entry) = entries.recv() {
        match entry {
            Entry::Line(line) => drop(out.write_all(line.as_bytes())),
            Entry::Flush(done) => drop(done.try_send(())),
        }
        let lines = dropped.swap(0, Ordering::Relaxed);
        if lines > 0 {
            let _ = writeln!(
                out,
                "log: {lines} lines were dropped, because nobody took them"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_nobody_takes_are_dropped_and_told_of() {
        let (mut reader, writer) = io::pipe().unwrap();
        let queue = Queue::start(writer).unwrap();
        let line = format!("{}\n", "x".repeat(1 << 16));
        let lines = 2 * QUEUED_LINES;
        (0..lines).for_each(|_| queue.put(line.clone()));
        let dropped = queue.dropped.load(Ordering::Relaxed);
        assert!(dropped >= (QUEUED_LINES - 2) as u64, "{dropped}");
        // The queue has no reader, and the flush gives up after its timeout.
        queue.flush(Duration::from_millis(1));
        drop(queue);
        let mut text = String::new();
        io::Read::read_to_string(&mut reader, &mut text).unwrap();
        let whole = text.matches(&*line).count();
        assert_eq!(whole as u64 + dropped, lines as u64);
        assert!(text.contains(&format!("log: {dropped} lines were dropped")));
    }
}
