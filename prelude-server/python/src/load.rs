//! Loading a model on a thread of its own, so that Python can be interrupted meanwhile.

use std::{
    env,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread,
};

use prelude_engine::ScheduledEngine;
use prelude_hub::{Hub, HubConfig, Progress, Repo, Revision};
use prelude_server::{
    ApiKeys, App,
    assets::{Assets, is_gguf_file},
    demo,
    executor::Devices,
    load::{LoadOptions, Loaded, load},
};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::{errors::Failure, options::Options, wait::SIGNALS};

/// A model in service, and what loading it had to say.
pub(crate) struct Opened {
    pub(crate) app: Arc<App>,
    pub(crate) engine: ScheduledEngine,
    pub(crate) devices: Devices,
    pub(crate) name: String,
    /// The names of the model's classes; none of a model that has none of its own.
    pub(crate) labels: Vec<String>,
    pub(crate) memory: String,
    pub(crate) warnings: Vec<String>,
}

/// News of the thread that loads.
enum News {
    Downloaded(Progress),
    Ended(Result<Box<Opened>, Failure>),
}

/// Loads a model. `report` is called with bytes, bytes in total, files and files in total of a
/// download; `beside` has the devices of another model, with which this one takes turns.
///
/// # Errors
/// Python's exceptions of loading, and those that `report` and handlers of signals raise.
pub(crate) fn open(
    py: Python<'_>,
    options: Options,
    report: Option<&Bound<'_, PyAny>>,
    beside: Option<Devices>,
) -> PyResult<Box<Opened>> {
    let left = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = sync_channel(1);
    let is_left = Arc::clone(&left);
    thread::Builder::new()
        .name("prelude-load".to_owned())
        .spawn(move || {
            let opened = try_open(&options, beside, &|progress| {
                // The callback is called on this thread, in the midst of a download. Unwinding ends
                // it, as dropping it would; what was downloaded is kept and continued next time.
                if is_left.load(Ordering::Relaxed) {
                    std::panic::resume_unwind(Box::new("nobody waits for this download"));
                }
                tell(&sender, progress);
            });
            // Nobody may listen any more. What was loaded ends with the message then.
            let _ = sender.send(News::Ended(opened));
        })
        .map_err(|e| PyRuntimeError::new_err(format!("cannot start a thread: {e}")))?;
    let heard = listen(py, receiver, report);
    left.store(true, Ordering::Relaxed);
    heard
}

/// Sends the progress, unless one is unread.
fn tell(sender: &SyncSender<News>, progress: Progress) {
    match sender.try_send(News::Downloaded(progress)) {
        Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
    }
}

/// Waits for the model, and lets Python handle signals meanwhile.
fn listen(
    py: Python<'_>,
    receiver: Receiver<News>,
    report: Option<&Bound<'_, PyAny>>,
) -> PyResult<Box<Opened>> {
    // A receiver may not be shared, and the compiler does not know that this thread alone has it.
    let receiver = Mutex::new(receiver);
    loop {
        let news = py.detach(|| {
            let receiver = receiver.lock();
            let receiver = receiver.unwrap_or_else(PoisonError::into_inner);
            receiver.recv_timeout(SIGNALS)
        });
        match news {
            Ok(News::Ended(opened)) => return Ok(opened?),
            Ok(News::Downloaded(progress)) => {
                if let Some(report) = report {
                    let Progress {
                        files,
                        files_total,
                        bytes,
                        bytes_total,
                    } = progress;
                    report.call1((bytes, bytes_total, files, files_total))?;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(
                    "loading failed by a defect of this program; the message above says where",
                ));
            }
        }
        py.check_signals()?;
    }
}

fn try_open(
    options: &Options,
    beside: Option<Devices>,
    report: &dyn Fn(Progress),
) -> Result<Box<Opened>, Failure> {
    let load_options = options.load_options()?;
    let mut warnings = Vec::new();
    let assets = find(options, &load_options, report, &mut warnings)?;
    let (cuda, places) = options.cuda();
    let shared = beside.unwrap_or_else(Devices::of_machine);
    let devices = shared.beside(options.device.unwrap_or_default(), cuda, &places)?;
    let Loaded {
        model,
        engine,
        warnings: more,
        memory,
        executor: _,
    } = load(assets, &load_options, &devices)?;
    warnings.extend(more);
    let (name, labels) = (model.name.clone(), model.class_names().to_vec());
    let app = App::new(options.server_config(), ApiKeys::default());
    app.set_models(vec![model]);
    Ok(Box::new(Opened {
        app,
        engine,
        devices,
        name,
        labels,
        memory,
        warnings,
    }))
}

/// Opens the model's files: in a folder, if there is one; else inside of this module, or from the Hub.
fn find(
    options: &Options,
    load_options: &LoadOptions,
    report: &dyn Fn(Progress),
    warnings: &mut Vec<String>,
) -> Result<Assets, Failure> {
    let (name, tokenizers) = (&*options.model, load_options.tokenizer_cache.as_deref());
    let folder = Path::new(name);
    let is_here = folder.is_dir() || is_gguf_file(folder);
    let repo = match is_here {
        true => None,
        false => name.parse::<Repo>().ok(),
    };
    let Some(repo) = repo else {
        if let Some(revision) = &options.revision {
            return Err(Failure::Option(format!(
                "revision {revision:?} is for names on the Hub (OWNER/MODEL), and {name:?} is none"
            )));
        }
        let mut demos = [demo::LM, demo::CLASSIFIER].into_iter();
        let demo = demos.find(|demo| !is_here && demo.name == name);
        return Ok(match demo {
            Some(demo) => Assets::embedded(&demo)?,
            None => Assets::open_cached(folder, tokenizers)?,
        });
    };
    let revision = options.revision.as_deref();
    let revision = revision.map(str::parse::<Revision>).transpose();
    let revision = revision.map_err(|e| Failure::Option(e.to_string()))?;
    let hub = Hub::new(HubConfig::from_variables(|name| env::var_os(name))?)?;
    let snapshot = hub.open(&repo, &revision.unwrap_or_default(), report)?;
    warnings.extend(snapshot.warning);
    let mut assets = Assets::open_cached(&snapshot.folder, tokenizers)?;
    // The folder is named after a commit.
    name.clone_into(&mut assets.name);
    Ok(assets)
}
