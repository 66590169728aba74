//! Accuracy of the demo models over HTTP, as they are and with int8 weights, beside the figures recorded at their training.

use std::{ffi::OsStr, path::PathBuf};

use anyhow::Result;

use crate::{
    demo_server::{build, start_with},
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
    build()?;
    // Each arithmetic against the same figures, within the same tolerance.
    for arguments in [&[][..], &["--quantization", "int8"]] {
        println!("prelude serve {}", arguments.join(" "));
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        let server = start_with(&arguments)?;
        cargo("run --release -p prelude-bench -- accuracy --data".split(' '))
            .args([data.as_os_str()])
            .args(["--url", &format!("http://{}", server.address)])
            .run()?;
    }
    Ok("accuracy: as recorded, with int8 weights too".to_owned())
}
