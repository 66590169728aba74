//! Accuracy of the demo models over HTTP, beside the figures recorded at their training.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    demo_server::start,
    files,
    run::{build_programs, program, root},
};

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
    let server = start()?;
    program(files::target().join("release/prelude-bench"))
        .args(["accuracy".as_ref(), "--data".as_ref(), data.as_os_str()])
        .args(["--url", &format!("http://{}", server.address)])
        .run()?;
    Ok("accuracy: as recorded".to_owned())
}
