//! A device that computes nothing and writes down every launch and copy of a step.
//!
//! Golden tests of plans compare its text. Addresses have the names of their buffers, so that the
//! text does not depend on where anything lies.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// First address given out: high enough that a small number is not taken for one.
const BASE: u64 = 0x1_0000_0000;

/// Buffers and what was done with them.
#[derive(Debug, Default)]
pub struct Recording(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Start, end and name of every buffer, in order of address.
    buffers: Vec<(u64, u64, String)>,
    lines: Vec<String>,
}

impl Recording {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves whole lines behind.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a buffer an address.
    pub(crate) fn place(&self, name: &str, bytes: usize, align: usize) -> u64 {
        let mut state = self.state();
        let end = state.buffers.last().map_or(BASE, |(_, end, _)| *end);
        let start = end.next_multiple_of(align as u64);
        // A gap behind each, so that the end of one is not the start of the next.
        let end = start + bytes as u64 + 1;
        state.buffers.push((start, end, name.to_owned()));
        start
    }

    /// Writes a copy down.
    pub(crate) fn copy(&self, what: &str, address: u64, bytes: usize) {
        let mut state = self.state();
        let place = state.name(address);
        state.lines.push(format!("{what} {place} bytes={bytes}"));
    }

    /// Writes a line down, in which addresses are given by [`Self::name`].
    pub(crate) fn push(&self, line: String) {
        self.state().lines.push(line);
    }

    /// Returns an address as `buffer+offset`.
    pub(crate) fn name(&self, address: u64) -> String {
        self.state().name(address)
    }

    /// Takes the lines written since the last call.
    #[must_use]
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.state().lines)
    }
}

impl State {
    fn name(&self, address: u64) -> String {
        if address == 0 {
            return "none".to_owned();
        }
        let after = self
            .buffers
            .partition_point(|(start, _, _)| *start <= address);
        match after.checked_sub(1).map(|i| &self.buffers[i]) {
            Some((start, end, name)) if address < *end => match address - start {
                0 => name.clone(),
                offset => format!("{name}+{offset}"),
            },
            _ => format!("outside({address:#x})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_names() {
        let recording = Recording::default();
        let a = recording.place("a", 100, 256);
        let b = recording.place("b", 10, 256);
        assert_eq!(recording.name(a), "a");
        assert_eq!(recording.name(a + 7), "a+7");
        assert_eq!(recording.name(b + 10), "b+10");
        assert!(recording.name(b + 11).starts_with("outside"));
        assert_eq!(recording.name(0), "none");
        recording.copy("upload", b, 3);
        assert_eq!(recording.take(), ["upload b bytes=3"]);
        assert!(recording.take().is_empty());
    }
}
