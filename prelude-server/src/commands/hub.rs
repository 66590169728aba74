//! Models by their names on the Hugging Face Hub: `prelude pull`, and the names that all commands
//! take in place of folders.

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};
use prelude_hub::{BadName, Error, Hub, HubConfig, Progress, Repo, Revision, Snapshot};

use super::{Code, Failure, print, say};
use crate::args::PullArgs;

/// A method of the Hub: [`Hub::open`] or [`Hub::pull`].
type Get = fn(&Hub, &Repo, &Revision, &dyn Fn(Progress)) -> Result<Snapshot, Error>;

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
        self.with_bar(report, Hub::open)
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
    fn with_bar(&self, report: &dyn Fn(Progress), get: Get) -> Result<PathBuf, Error> {
        let config = HubConfig::from_variables(|name| env::var_os(name))?;
        let endpoint = config.endpoint.clone();
        let hub = Hub::new(config)?;
        // Drawn on stderr, and only if that is a terminal.
        let bar = ProgressBar::no_length().with_style(style());
        let shown = |progress: Progress| {
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
        .with_bar(&|_| (), Hub::pull)
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
