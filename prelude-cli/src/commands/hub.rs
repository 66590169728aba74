//! Models by their names on the Hugging Face Hub: `prelude pull`, and the names that all commands
//! take in place of folders.

use std::{
    env,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use prelude_hub::{BadName, Check, Error, Hub, HubConfig, Progress, Repo, Revision, Snapshot};
use prelude_models::ModelConfig;
use prelude_models::refused_files;

use super::{Code, Failure, print, say};
use crate::args::PullArgs;

/// A method of the Hub: [`Hub::open`] or [`Hub::pull`].
type Get = fn(&Hub, &Repo, &Revision, &dyn Fn(Progress)) -> Result<Snapshot, Error>;

/// Longest silence before a line says which Hub is being asked: several attempts to reach one take a
/// quarter of a minute, in which a terminal without a word looks hung.
const SILENCE: Duration = Duration::from_secs(1);

/// A model on the Hub, named on the command line.
#[derive(Clone, Debug)]
pub(crate) struct HubModel {
    pub(crate) repo: Repo,
    revision: Revision,
}

impl HubModel {
    /// Returns the model of this name; `None` if no model can be called so.
    ///
    /// # Errors
    /// If the revision is malformed.
    pub(crate) fn of(name: &Path, revision: Option<&str>) -> Result<Option<Self>, Failure> {
        let Some(Ok(repo)) = name.to_str().map(str::parse::<Repo>) else {
            return Ok(None);
        };
        let revision = revision_of(revision)?;
        Ok(Some(Self { repo, revision }))
    }

    /// Returns the folder of the model, which is downloaded if the cache lacks it.
    pub(crate) fn open(&self, report: &dyn Fn(Progress)) -> Result<PathBuf, Failure> {
        self.with_bar(report, Hub::open, check)
            .map_err(|error| match error {
                // Perhaps a folder was meant, and its name is mistyped.
                Error::Denied { .. } | Error::NoModel { .. } | Error::Network { .. } => {
                    Failure::new(
                        Code::Model,
                        format_args!(
                            "{} is not a folder here, and not to be had: {error}",
                            self.repo
                        ),
                    )
                }
                error => failure(&error),
            })
    }

    /// Calls a method of the Hub, with a bar on a terminal and two lines in a log.
    fn with_bar(
        &self,
        report: &dyn Fn(Progress),
        get: Get,
        check: Check,
    ) -> Result<PathBuf, Error> {
        let config = HubConfig::from_variables(|name| env::var_os(name))?;
        let endpoint = config.endpoint.clone();
        let hub = Hub::new(config)?.with_check(check);
        // Drawn on stderr, and only if that is a terminal.
        let bar = ProgressBar::no_length().with_style(style());
        let (heard, silence) = mpsc::channel();
        let asked = format!("asking {endpoint} about {}", self.repo);
        thread::spawn(move || {
            if silence.recv_timeout(SILENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                say(format_args!("{asked}, which has not answered yet"));
            }
        });
        let shown = |progress: Progress| {
            // The thread that listens has ended after the first word.
            let _ = heard.send(());
            if bar.length().is_none() {
                say(format_args!(
                    "fetching what the cache lacks of {} from {endpoint}",
                    self.repo
                ));
                bar.enable_steady_tick(Duration::from_millis(200));
            }
            bar.set_length(progress.bytes_total);
            bar.set_position(progress.bytes);
            bar.set_message(format!("{}/{} files", progress.files, progress.files_total));
            report(progress);
        };
        let got = get(&hub, &self.repo, &self.revision, &shown);
        let (seconds, bytes) = (bar.elapsed().as_secs_f64(), bar.length());
        bar.finish_and_clear();
        let snapshot = got?;
        if let Some(bytes) = bytes {
            let bytes = indicatif::DecimalBytes(bytes);
            say(format_args!(
                "{} is here: {bytes} after {seconds:.1} s",
                self.repo
            ));
        }
        if let Some(warning) = &snapshot.warning {
            say(format_args!("warning: {}: {warning}", self.repo));
        }
        Ok(snapshot.folder)
    }
}

/// Refuses a model that this program does not serve, by its configuration and by the names of its
/// files.
fn check(folder: &Path, paths: &[&str]) -> Result<(), String> {
    // The body of a decision model may have a folder of its own.
    const CONFIGS: [&str; 3] = ["backbone/config.json", "encoder/config.json", "config.json"];
    if let Some(what) = refused_files(|file| paths.contains(&file)) {
        return Err(format!("it {what}"));
    }
    let is_there = |name: &&&str| folder.join(name).exists();
    let name = CONFIGS.iter().find(is_there).unwrap_or(&"config.json");
    let bytes = std::fs::read(folder.join(name)).map_err(|e| format!("{name}: {e}"))?;
    match ModelConfig::from_json(name, &bytes) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// Says that a model is not served, and lets it be downloaded.
fn warn(folder: &Path, paths: &[&str]) -> Result<(), String> {
    if let Err(why) = check(folder, paths) {
        say(format_args!(
            "warning: this version does not serve the model: {why}"
        ));
    }
    Ok(())
}

fn style() -> ProgressStyle {
    let template =
        "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
    ProgressStyle::with_template(template).expect("the template has known fields")
}

fn revision_of(text: Option<&str>) -> Result<Revision, Failure> {
    let parsed = text
        .map(str::parse)
        .transpose()
        .map_err(|e: BadName| failure(&e.into()))?;
    Ok(parsed.unwrap_or_default())
}

/// Runs the command `prelude pull`.
pub(crate) fn pull(args: &PullArgs) -> Result<(), Failure> {
    let model = HubModel {
        repo: args.name.parse().map_err(|e: BadName| failure(&e.into()))?,
        revision: revision_of(args.revision.as_deref())?,
    };
    let folder = model
        .with_bar(&|_| (), Hub::pull, warn)
        .map_err(|e| failure(&e))?;
    print(&format!("{}\n", folder.display()))
}

fn failure(error: &Error) -> Failure {
    let code = match error {
        Error::Name(_) | Error::Config { .. } => Code::Usage,
        _ => Code::Model,
    };
    Failure::new(code, error)
}
