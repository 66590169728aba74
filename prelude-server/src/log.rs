//! The log on stderr: a line for each request, and the causes of failures. It has no output of a
//! model and no header, and prompts only if `server.log_prompts` asks for their beginnings.

use std::{any::Any, fmt, io::Write, panic::PanicHookInfo};

/// Writes one line at once, so that lines of concurrent requests do not mix.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let line = format!("{text}\n");
    // A log that cannot be written is no reason to fail a request.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
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
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    match info.location() {
        Some(at) => line(format_args!("panic thread={thread} at={at} {message}")),
        None => line(format_args!("panic thread={thread} {message}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
