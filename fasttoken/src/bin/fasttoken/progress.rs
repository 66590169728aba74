//! A bar on standard error, when that is a terminal and there is something to wait for.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The number of bytes below which no progress bar is shown.
const BYTES_MIN: u64 = 8 << 20;

/// Returns a bar over `bytes` bytes of text; hidden where it would be in the way.
pub(crate) fn bytes(bytes: u64, what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(bytes).with_message(what);
    // indicatif draws on terminals only.
    bar.set_draw_target(if bytes < BYTES_MIN {
        ProgressDrawTarget::hidden()
    } else {
        ProgressDrawTarget::stderr()
    });
    let template = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
