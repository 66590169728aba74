//! The server under a service manager: what it tells it, and the unit file for systemd.

use std::{
    io::Write as _,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::support::Served;

/// A folder of the test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("prelude-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left lies in a folder for such things.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_service_manager_is_told_of_start_life_and_end() {
    let folder = Folder::new("notify");
    let socket = folder.0.join("socket");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let next = || {
        let mut buffer = [0; 4096];
        let len = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    };
    let server = Served::start_as_service(&socket, Duration::from_millis(100));
    let expected = "READY=1\nSTATUS=serving demo-lm, demo-classifier\n";
    assert_eq!(next(), expected);
    for _ in 0..3 {
        assert_eq!(next(), "WATCHDOG=1\n");
    }
    assert_eq!(server.get("/ready").status, 200);
    server.signal("-TERM");
    let last = std::iter::from_fn(|| Some(next())).find(|message| message != "WATCHDOG=1\n");
    assert_eq!(last.unwrap(), "STOPPING=1\nSTATUS=draining\n");
}

/// The unit file, as far as it can be checked where systemd does not run.
#[test]
fn the_unit_file_is_valid() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/deploy/prelude.service");
    let skip = |why: &str| {
        // Past the harness, which shows what is printed only where a test fails.
        let _ = writeln!(std::io::stderr(), "SKIP the_unit_file_is_valid: {why}");
    };
    let Ok(text) = std::fs::read_to_string(&unit) else {
        return skip("docs/deploy is part of the workspace, which is not here");
    };
    for line in [
        "Type=notify",
        "WatchdogSec=30s",
        "RestartPreventExitStatus=2 3",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}");
    }
    // systemd looks whether the program is there.
    let program = env!("CARGO_BIN_EXE_prelude");
    let text = text.replace("/usr/local/bin/prelude", program);
    assert!(text.contains(&format!("ExecStart={program} serve")));
    let folder = Folder::new("unit");
    let copy = folder.0.join("prelude.service");
    std::fs::write(&copy, text).unwrap();
    let verify = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&copy)
        .output();
    let Ok(verify) = verify else {
        return skip("there is no systemd-analyze");
    };
    let said = String::from_utf8_lossy(&verify.stderr);
    // Of other units, if it says something of them.
    let faults: Vec<&str> = said.lines().filter(|l| l.contains("prelude")).collect();
    assert!(verify.status.success() && faults.is_empty(), "{said}");
}
