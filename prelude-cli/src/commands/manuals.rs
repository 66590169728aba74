//! `prelude completions` and `prelude man`: what shells and `man` know of the program, made from its
//! command line.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{Code, Failure, print, say};
use crate::args::Cli;

/// Prints a shell's completions.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "prelude", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// Writes a man page of each command into a folder, which is made if there is none.
pub(crate) fn man(folder: &Path) -> Result<(), Failure> {
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
    written.map_err(|e| {
        let message = format_args!("cannot write man pages into {}: {e}", folder.display());
        Failure::new(Code::Failed, message)
    })?;
    say(format_args!(
        "man pages are in {0}; read one with: man {0}/prelude.1",
        folder.display()
    ));
    Ok(())
}
