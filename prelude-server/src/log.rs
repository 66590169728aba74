//! Lines on stderr: one per request, and the causes of failures. No prompt, no output, no header.

use std::{fmt, io::Write};

/// Writes one line, whole: lines of concurrent requests do not mix.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let line = format!("{text}\n");
    // A log nobody can read is no reason to fail a request.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
