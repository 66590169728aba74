//! Lines on stderr: one per request, and the causes of failures. No output, no header, and no
//! prompt unless `server.log_prompts` asks for its beginning.

use std::{any::Any, fmt, io::Write, panic::PanicHookInfo};

/// Writes one line, whole: lines of concurrent requests do not mix.
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let line = format!("{text}\n");
    // A closed log is no reason to fail a request.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Returns the part of a panic that the log may have: a message written in the source. A message
/// made at run time may quote a client.
pub(crate) fn panic_message(payload: &(dyn Any + Send)) -> &'static str {
    payload
        .downcast_ref::<&'static str>()
        .copied()
        .unwrap_or("(message withheld: it may quote a request)")
}

/// Writes where a panic happened and what may be told of it. To be installed as the panic hook of
/// a program that serves: the standard hook prints every message. The line with the request's id
/// follows where the panic is caught.
pub fn report_panic(info: &PanicHookInfo<'_>) {
    let what = panic_message(info.payload());
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    match info.location() {
        Some(at) => line(format_args!("panic thread={thread} at={at} {what}")),
        None => line(format_args!("panic thread={thread} {what}")),
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
