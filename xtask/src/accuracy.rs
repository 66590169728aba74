//! Accuracy of the demo models over HTTP, beside the figures recorded at their training.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    demo_server::start,
    run::{cargo, root},
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
    let server = start()?;
    cargo("run --release -p prelude-bench -- accuracy --data".split(' '))
        .args([data.as_os_str()])
        .args(["--url", &format!("http://{}", server.address)])
        .run()?;
    Ok("accuracy: as recorded".to_owned())
}
