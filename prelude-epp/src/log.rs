//! The log on stderr: changes of endpoints and, if they are asked for, picks and refusals. It has no
//! text of a request but its path.

use std::{fmt, io::Write as _};

/// Writes one line at once, so that lines of several threads do not mix.
pub fn line(text: fmt::Arguments<'_>) {
    let line = format!("{text}\n");
    // A log that cannot be written is no reason to fail a request.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
