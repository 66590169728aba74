//! Accuracy of the demo models over HTTP, as they are and with weights in int8 and fp8, beside the figures recorded at their training.

use std::{ffi::OsStr, iter, path::PathBuf};

use anyhow::Result;

use crate::{
    demo, files,
    run::{build_programs, program, root},
};

/// Percentage points that rounding to int8 or fp8 may cost.
const ROUNDING_MAY_LOSE: &str = "0.3";

/// Returns what to show: done, or why it was skipped. The messages are no part of the project.
pub(crate) fn run(data: Option<PathBuf>) -> Result<String> {
    let data = data.unwrap_or_else(|| root().join("../shared/data/banking77"));
    if !data.join("test.csv").is_file() {
        return Ok(
            "SKIP accuracy: no folder with banking77's test.csv (prelude-bench/data/README.md \
             says where it comes from; name it with `cargo xtask accuracy --data`)"
                .to_owned(),
        );
    }
    // Before the server's own build, which leaves the program that is started.
    build_programs()?;
    demo::build()?;
    // fp8 is for GPUs: the CPU computes the same numbers. The demo models run on the CPU unasked.
    let rounded = ["int8", "fp8"].map(|form| ["--quantization", form]);
    let may_lose = ["--may-lose", ROUNDING_MAY_LOSE];
    let rounded = rounded.iter().map(|serve| (&serve[..], &may_lose[..]));
    for (serve, accuracy) in iter::once((&[][..], &[][..])).chain(rounded) {
        println!("prelude serve {}", serve.join(" "));
        let serve: Vec<&OsStr> = serve.iter().map(OsStr::new).collect();
        let server = demo::start(&serve)?;
        program(files::target().join("release/prelude-bench"))
            .args(["accuracy".as_ref(), "--data".as_ref(), data.as_os_str()])
            .args(["--url", &format!("http://{}", server.address)])
            .args(accuracy)
            .run()?;
    }
    Ok("accuracy: as recorded, and no worse than int8 and fp8 may be".to_owned())
}
