//! The program `prelude` as a function: the command line, the environment and exit codes. `main.rs`
//! runs it, and so do the commands that the Python package installs.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod variables;
mod wording;

use std::{env, ffi::OsString};

use clap::{Parser as _, ValueEnum as _};
use prelude_server::log;

use crate::{
    args::{Cli, Command, CudaCommand, LogLevel, ServeArgs},
    commands::{Code, Failure, cuda, hub, manuals, one_shot, profile, run_batch, say, serve},
};

/// Runs the program `prelude` and returns its exit code. The first of `args` is the program's name.
///
/// It behaves as if it had the process for itself: it reads the environment and standard input,
/// writes to standard output and standard error, and may end the process. A server installs a panic
/// hook, and takes SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2; handlers that are there are called
/// too.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let _flush = log::Flush;
    let command = match Cli::try_parse_from(args) {
        Ok(cli) => cli.command,
        // Help and the version come this way too.
        Err(message) => {
            // A closed stream is no reason to fail in another way.
            let _ = message.print();
            return match message.use_stderr() {
                true => Code::Usage as u8,
                false => 0,
            };
        }
    };
    match run_command(command.unwrap_or_else(|| Command::Serve(Box::default()))) {
        Ok(code) => code,
        Err(failure) => {
            say(format_args!("error: {failure}"));
            failure.code()
        }
    }
}

/// Returns the exit code of a command that did what it was told.
fn run_command(command: Command) -> Result<u8, Failure> {
    let environment = variables::environment()?;
    match command {
        Command::RunBatch(args) => return run_batch::run(&args, &environment),
        Command::Serve(args) => serve::run(&with_keys(*args)?, &environment),
        Command::Pull(args) => hub::pull(&args),
        Command::Classify(args) => one_shot::classify(&args, &environment),
        Command::Complete(args) => one_shot::complete(&args, &environment),
        Command::Embed(args) => one_shot::embed(&args, &environment),
        Command::Rerank(args) => one_shot::rerank(&args, &environment),
        Command::Decide(args) => one_shot::decide(&args, &environment),
        Command::Profile(args) => profile::run(&args, &environment),
        Command::Tokenize(args) => one_shot::tokenize(&args, &environment),
        Command::Completions { shell } => manuals::completions(shell),
        Command::Man { folder } => manuals::man(&folder),
        Command::Cuda {
            command: CudaCommand::Info { device },
        } => cuda::info(device),
    }?;
    Ok(0)
}

/// Puts the keys and the log level that the environment has below those of the flags.
fn with_keys(mut args: ServeArgs) -> Result<ServeArgs, Failure> {
    if args.api_key.is_none() && args.api_key_file.is_none() {
        args.api_key_file = variables::filled("PRELUDE_API_KEY_FILE")?.map(Into::into);
        if args.api_key_file.is_none() {
            args.api_key_is_private = true;
            let key = variables::filled("PRELUDE_API_KEY")?.map(OsString::into_string);
            args.api_key = key
                .transpose()
                .map_err(|_| Failure::new(Code::Usage, "PRELUDE_API_KEY is not UTF-8"))?;
        }
    }
    if args.log_level.is_none()
        && let Ok(level) = env::var("PRELUDE_LOG")
        && !level.is_empty()
    {
        let level = LogLevel::from_str(&level, true)
            .map_err(|e| Failure::new(Code::Usage, format_args!("PRELUDE_LOG={level}: {e}")))?;
        args.log_level = Some(level);
    }
    Ok(args)
}
