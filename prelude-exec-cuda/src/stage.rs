//! The way of weights to a GPU.
//!
//! ```text
//! threads      make part after part in one half of locked memory │ in the other half
//! the GPU                                                        │ copies from the first
//! ```
//!
//! From memory that is not locked the driver copies by itself, on one thread, a small piece at a
//! time.

use std::{ops::Range, thread, time::Duration};

use crate::{
    Error,
    memory::{
        event::Point,
        pinned::Pinned,
        space::{Buffer, Space},
    },
    wait,
};

/// Bytes of each half: some 0.5 ms of copying.
const HALF_BYTES: usize = 16 << 20;
/// Least bytes for a thread: tens of times what starting it takes.
pub(crate) const PART_BYTES: usize = 2 << 20;
/// Most threads: as many as read memory at its rate.
const THREADS_MAX: usize = 8;
/// The longest that a copy from one half may take.
const LIMIT: Duration = Duration::from_mins(1);

/// Locked memory, and the threads that fill it.
#[derive(Debug)]
pub(crate) struct Stage {
    space: Space,
    threads: usize,
    half_bytes: usize,
    /// The one that is filled comes last.
    halves: Vec<Half>,
}

#[derive(Debug)]
struct Half {
    memory: Pinned,
    used: usize,
    /// The point behind the copies from the half.
    end: Point,
}

impl Stage {
    pub(crate) fn new(space: Space) -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Self::with(space, threads.min(THREADS_MAX), HALF_BYTES)
    }

    /// Returns a stage, which takes memory when something is sent.
    pub(crate) const fn with(space: Space, threads: usize, half_bytes: usize) -> Self {
        Self {
            space,
            threads,
            half_bytes,
            halves: Vec::new(),
        }
    }

    /// Queues copies of `count` items of `size` bytes each to a buffer, from its byte `at` on. They
    /// are there for steps after [`Space::settle`]. `make` writes a range of items, as one of several
    /// threads.
    ///
    /// # Errors
    /// `make`'s, of the first range that failed; [`Error::OutOfMemory`]; the driver's.
    pub(crate) fn send(
        &mut self,
        to: &Buffer,
        at: usize,
        (count, size): (usize, usize),
        make: impl Fn(Range<usize>, &mut [u8]) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        let mut sent = 0;
        while sent < count && size > 0 {
            let threads = self.threads;
            let half = self.half(size)?;
            let room = (half.memory.bytes().len() - half.used) / size;
            let items = sent..count.min(sent + room);
            let bytes = half.used..half.used + items.len() * size;
            let memory = &mut half.memory.bytes_mut()[bytes.clone()];
            fill(memory, &items, size, threads, &make)?;
            to.fill_from(at + sent * size, &half.memory, bytes.clone())?;
            half.used = bytes.end;
            sent = items.end;
        }
        Ok(())
    }

    /// Returns the first of what the threads find in parts of `count` items, each of `least` or more.
    pub(crate) fn first_of(
        &self,
        count: usize,
        least: usize,
        find: impl Fn(Range<usize>) -> Option<usize> + Sync,
    ) -> Option<usize> {
        let mut parts = parts(count, least, self.threads);
        let last = parts.pop()?;
        thread::scope(|scope| {
            let find = &find;
            let others: Vec<_> = parts
                .into_iter()
                .map(|part| scope.spawn(move || find(part)))
                .collect();
            let own = find(last);
            let found = others
                .into_iter()
                .map(|other| other.join().expect("parts do not panic"));
            let found: Vec<_> = found.collect();
            found.into_iter().flatten().next().or(own)
        })
    }

    /// Returns the half that is filled, with room for an item at least.
    fn half(&mut self, size: usize) -> Result<&mut Half, Error> {
        let half_bytes = self.half_bytes.max(size);
        let fits = |half: &Half| half.memory.bytes().len() >= half.used + size;
        if !self.halves.last().is_some_and(fits) {
            if let Some(half) = self.halves.last() {
                half.end.record()?;
            }
            let next = match self.halves.len() {
                0 | 1 => Half {
                    memory: self.space.pinned("staging", half_bytes)?,
                    used: 0,
                    end: self.space.point()?,
                },
                _ => self.emptied(half_bytes)?,
            };
            self.halves.push(next);
        }
        Ok(self.halves.last_mut().expect("a half was just added"))
    }

    /// Waits until copies from the older half have ended, and returns that half.
    fn emptied(&mut self, half_bytes: usize) -> Result<Half, Error> {
        let mut half = self.halves.remove(0);
        wait::until_passed(&half.end, LIMIT, "loading")?;
        if half.memory.bytes().len() < half_bytes {
            half.memory = self.space.pinned("staging", half_bytes)?;
        }
        half.used = 0;
        Ok(half)
    }
}

/// Makes items in place, on several threads if they are many.
fn fill(
    memory: &mut [u8],
    items: &Range<usize>,
    size: usize,
    threads: usize,
    make: &(impl Fn(Range<usize>, &mut [u8]) -> Result<(), Error> + Sync),
) -> Result<(), Error> {
    let parts = parts(items.len(), (PART_BYTES / size).max(1), threads);
    let mut rest = memory;
    let mut jobs = Vec::with_capacity(parts.len());
    for part in parts {
        let (these, behind) = rest.split_at_mut(part.len() * size);
        rest = behind;
        jobs.push((items.start + part.start..items.start + part.end, these));
    }
    let first = jobs.pop();
    let run = |(items, memory): (Range<usize>, &mut [u8])| make(items, memory);
    thread::scope(|scope| {
        let others: Vec<_> = jobs
            .into_iter()
            .map(|job| scope.spawn(move || run(job)))
            .collect();
        // The last part is this thread's.
        let own = first.map_or(Ok(()), run);
        for other in others {
            other.join().expect("parts do not panic")?;
        }
        own
    })
}

/// Cuts `count` items into as many ranges as there are threads, but of `least` items each.
fn parts(count: usize, least: usize, threads: usize) -> Vec<Range<usize>> {
    let parts = (count / least.max(1)).clamp(1, threads.max(1));
    (0..parts)
        .map(|i| i * count / parts..(i + 1) * count / parts)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::testing::emulation;

    /// Items of all sizes beside a half's, from any place on, on any number of threads.
    #[test]
    fn everything_arrives_where_it_belongs() {
        let Some(device) = emulation() else { return };
        let space = Space::Emu(Arc::clone(&device));
        for (threads, half_bytes) in [(1, 64), (3, 64), (4, 1 << 20), (2, 8)] {
            let mut stage = Stage::with(space.clone(), threads, half_bytes);
            let buffer = space.alloc("test", 4096).unwrap();
            let mut expected = vec![0xffu8; 4096];
            let mut at = 0;
            for (count, size) in [
                (3, 2),
                (100, 2),
                (7, 24),
                (0, 8),
                (40, 16),
                (1, 200),
                (300, 4),
            ] {
                let make = |items: Range<usize>, out: &mut [u8]| {
                    for (i, item) in items.zip(out.chunks_exact_mut(size)) {
                        item.fill(u8::try_from((i * 7 + at) % 251).unwrap());
                    }
                    Ok(())
                };
                make(0..count, &mut expected[at..at + count * size]).unwrap();
                stage.send(&buffer, at, (count, size), make).unwrap();
                at += count * size + 10;
            }
            let got: Vec<u8> = device
                .download(buffer.view::<u8>(0, 1, 1).ptr(), 4096)
                .unwrap();
            assert!(got == expected, "{threads} threads, {half_bytes} bytes");
        }
    }

    #[test]
    fn the_first_error_counts() {
        let space = Space::Virtual(Arc::default());
        let buffer = space.alloc("test", 64 << 20).unwrap();
        let mut stage = Stage::with(space, 4, 32 << 20);
        let wrong = |items: Range<usize>, _: &mut [u8]| match items.start {
            0 => Ok(()),
            start => Err(Error::Step(start.to_string())),
        };
        let error = stage.send(&buffer, 0, (16 << 20, 1), wrong).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the step does not fit: 4194304",
            "of the second quarter"
        );
    }

    #[test]
    fn parts_are_all_of_it_and_not_too_small() {
        for (count, least, threads) in [(0, 5, 4), (4, 5, 4), (100, 5, 4), (17, 4, 8), (3, 0, 2)] {
            let parts = parts(count, least, threads);
            let all: Vec<usize> = parts.iter().cloned().flatten().collect();
            assert!(all.into_iter().eq(0..count));
            assert!(parts.len() <= threads);
            assert!(parts.len() == 1 || parts.iter().all(|part| part.len() >= least));
        }
    }

    #[test]
    fn the_first_that_is_found_counts() {
        let stage = Stage::with(Space::Virtual(Arc::default()), 4, 64);
        let find = |at: &'static [usize]| {
            stage.first_of(1000, 10, move |part| {
                at.iter().copied().find(|at| part.contains(at))
            })
        };
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[999]), Some(999));
        assert_eq!(find(&[3, 700, 999]), Some(3));
    }
}
