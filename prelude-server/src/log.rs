//! The log on stderr: a line for each request, and the causes of failures. It has no output of a
//! model and no header, and prompts only if `server.log_prompts` asks for their beginnings.
//!
//! Commands write their lines themselves. A process that serves leaves that to a thread, behind a
//! queue with a bound: if nobody reads the log, lines are dropped and counted, and requests, probes
//! and signals are answered as ever.

use std::{
    any::Any,
    fmt,
    io::{self, Write},
    iter,
    panic::PanicHookInfo,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Most lines that wait to be written, about a megabyte.
const QUEUED_LINES: usize = 4096;
/// Most bytes of one write, unless a single line is longer: as many as a pipe takes in one piece,
/// so that lines of other programs do not mix with it.
const WRITE_BYTES: usize = 4096;
/// The time that a line waits for others to be written with, if one was written just before.
const COMPANY_WAIT: Duration = Duration::from_millis(5);
/// The longest time that the process waits at its end for its last lines to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// The queue of a process that serves: there is one stderr, whatever else there are several of.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// The near end of the queue.
#[derive(Debug)]
struct Queue {
    entries: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Entry {
    Line(String),
    /// Asks for an answer when everything before it has been written.
    Flush(SyncSender<()>),
}

/// Writes one line at once, so that lines of concurrent requests do not mix; through the queue once
/// there is one.
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

/// Returns the number of lines that had no room or could not be written.
pub(crate) fn dropped() -> u64 {
    QUEUE
        .get()
        .map_or(0, |queue| queue.dropped.load(Ordering::Relaxed))
}

/// Waits as it is dropped until all lines have been written, for half a second at most.
#[derive(Debug)]
pub struct Flush;

impl Drop for Flush {
    fn drop(&mut self) {
        if let Some(queue) = QUEUE.get() {
            queue.flush(FLUSH_TIMEOUT);
        }
    }
}

impl Queue {
    /// Starts the thread that writes lines to `out`.
    fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, entries) = sync_channel(QUEUED_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            dropped: Arc::clone(&dropped),
            said: 0,
            out,
        };
        let thread = thread::Builder::new().name("prelude-log".to_owned());
        thread.spawn(move || writer.run(&entries))?;
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

    /// Waits until the lines that are in the queue now have been written, for `timeout` at most.
    fn flush(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let (done, is_done) = sync_channel(1);
        while self.entries.try_send(Entry::Flush(done.clone())).is_err() {
            if Instant::now() >= deadline {
                return;
            }
            thread::sleep(COMPANY_WAIT);
        }
        // What has not been written by then is lost.
        let _ = is_done.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// The far end of the queue.
struct Writer<W> {
    dropped: Arc<AtomicU64>,
    /// The dropped lines that a line has told of.
    said: u64,
    out: W,
}

impl<W: Write> Writer<W> {
    /// Writes lines, several at a time if they come fast, until all senders are gone.
    fn run(mut self, entries: &Receiver<Entry>) {
        while let Ok(first) = entries.recv() {
            let (mut text, mut lines) = (String::new(), 0);
            let mut flushes = Vec::new();
            let mut taken = 0;
            for entry in iter::once(first).chain(entries.try_iter().take(QUEUED_LINES)) {
                taken += 1;
                match entry {
                    Entry::Flush(done) => flushes.push(done),
                    Entry::Line(line) => {
                        if text.len() + line.len() > WRITE_BYTES {
                            self.write(&text, lines);
                            text.clear();
                            lines = 0;
                        }
                        text.push_str(&line);
                        lines += 1;
                    }
                }
            }
            // Said once the reader has caught up, not between lines that it still has to take.
            if self.write(&text, lines) && taken <= QUEUED_LINES {
                self.say_dropped();
            }
            for done in flushes {
                // The caller of the flush may have timed out.
                let _ = done.try_send(());
            }
            thread::sleep(COMPANY_WAIT);
        }
    }

    /// Writes so many whole lines, and returns true if that worked.
    fn write(&mut self, text: &str, lines: u64) -> bool {
        let is_written = self.out.write_all(text.as_bytes()).is_ok();
        if !is_written {
            self.dropped.fetch_add(lines, Ordering::Relaxed);
        }
        is_written
    }

    /// Says how many lines were dropped since it was said last, if any were.
    fn say_dropped(&mut self) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > self.said {
            let lines = dropped - self.said;
            let said = format!("log: {lines} lines were dropped, because nobody took them\n");
            if self.write(&said, 0) {
                self.said = dropped;
            }
        }
    }
}

/// Returns the message of a panic if it is part of the program. A message made at run time is
/// withheld, because it may quote a client's text.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &'static str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .unwrap_or("(message withheld: it may quote a request)")
}

/// Writes the place of a panic, and its message if that quotes no request. A program that serves
/// installs this as its panic hook, because the standard hook prints every message. Where the panic
/// is caught, a line with the request's id follows.
pub fn report_panic(info: &PanicHookInfo<'_>) {
    let message = panic_message(info.payload());
    let thread = thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    match info.location() {
        Some(at) => line(format_args!("panic thread={thread} at={at} {message}")),
        None => line(format_args!("panic thread={thread} {message}")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// A reader that takes one write for each permit, until the sender of permits is gone.
    struct Reader {
        permits: Receiver<()>,
        read: Arc<Mutex<Vec<String>>>,
    }

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.permits.recv();
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
            read.push(text);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_nobody_takes_are_dropped_and_counted() {
        let read = Arc::new(Mutex::new(Vec::new()));
        let (permit, permits) = sync_channel(0);
        let reader = Reader {
            permits,
            read: Arc::clone(&read),
        };
        let queue = Queue::start(reader).unwrap();
        let long = format!("{}\n", "x".repeat(WRITE_BYTES));
        // Far more than the writer holds in its hand and the queue in its places.
        let lines = 3 * QUEUED_LINES;
        (0..lines).for_each(|_| queue.put(long.clone()));
        let dropped = queue.dropped.load(Ordering::Relaxed);
        assert!(dropped >= (2 * QUEUED_LINES - 2) as u64, "{dropped}");
        // The queue has no reader, and the flush gives up after its timeout.
        queue.flush(Duration::from_millis(1));
        drop(permit);
        queue.flush(Duration::from_secs(60));
        let read = read.lock().unwrap();
        let (last, whole) = read.split_last().unwrap();
        assert_eq!(whole.len() as u64 + dropped, lines as u64);
        assert!(whole.iter().all(|line| *line == long));
        let expected = format!("log: {dropped} lines were dropped, because nobody took them\n");
        assert_eq!(*last, expected);
    }

    #[test]
    fn a_log_that_cannot_be_written_is_counted() {
        let (full, closed) = io::pipe().map(|(r, w)| (w, r)).unwrap();
        drop(closed);
        let queue = Queue::start(full).unwrap();
        (0..3).for_each(|_| queue.put("a line\n".to_owned()));
        queue.flush(Duration::from_secs(60));
        assert_eq!(queue.dropped.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn messages_made_at_run_time_are_withheld() {
        let check = |panics: fn(), expected: &str| {
            let payload = std::panic::catch_unwind(panics).unwrap_err();
            assert_eq!(panic_message(&*payload), expected);
        };
        check(|| panic!("a row has no head"), "a row has no head");
        check(
            || {
                let prompt = std::hint::black_box("my secret");
                panic!("cannot use {prompt}")
            },
            "(message withheld: it may quote a request)",
        );
    }
}
