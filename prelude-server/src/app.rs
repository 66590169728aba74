//! The state that all requests share: models, limits, counters, the phase of the process.

use std::{
    any::Any,
    sync::{Arc, Mutex, OnceLock, PoisonError, RwLock},
    thread,
    time::SystemTime,
};

use prelude_hub::Progress;

use crate::{
    admission::Admission,
    config::{ServerConfig, ms},
    encode::EncodePool,
    error::ApiError,
    executor::PackedCheck,
    identity::{ApiKeys, Ids},
    lifecycle::{InFlight, Lifecycle, Phase},
    log,
    metrics::EdgeMetrics,
    served_model::{ServedModel, Task},
    traces::Traces,
};

/// Everything a handler may need, shared by all of them. Built in `main`, never global.
#[derive(Debug)]
pub struct App {
    pub(crate) config: ServerConfig,
    pub(crate) admission: Arc<Admission>,
    pub(crate) encoder: EncodePool,
    pub(crate) metrics: EdgeMetrics,
    pub(crate) ids: Ids,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) in_flight: InFlight,
    pub(crate) traces: Traces,
    /// The time at which the state was made, as the process started.
    pub(crate) started: SystemTime,
    /// The endpoints that the program has added to those of the server. Their type, `Endpoint`, is
    /// not named here, since it is made of this one.
    pub(crate) own: RwLock<Vec<&'static (dyn Any + Send + Sync)>>,
    keys: RwLock<Arc<ApiKeys>>,
    models: OnceLock<Vec<Arc<ServedModel>>>,
    /// The progress of the download that loading waits for.
    download: Mutex<Option<Progress>>,
    /// The damage of packed weights, once it is found.
    damage: Arc<OnceLock<String>>,
}

/// Names that routers write in place of a model's name that they have not read.
const PLACEHOLDERS: [&str; 2] = ["unknown", "default"];

impl App {
    /// Returns an app that answers 503 `loading` until [`App::set_models`].
    #[must_use]
    pub fn new(config: ServerConfig, keys: ApiKeys) -> Arc<Self> {
        Self::with_traces(config, keys, Traces::default())
    }

    /// Returns an app as that of [`App::new`] whose requests leave traces.
    #[must_use]
    pub fn with_traces(config: ServerConfig, keys: ApiKeys, traces: Traces) -> Arc<Self> {
        Arc::new(Self {
            admission: Admission::new(config.limits.clone()),
            encoder: EncodePool::new(&config),
            metrics: EdgeMetrics::default(),
            ids: Ids::new(config.seed),
            lifecycle: Lifecycle::new(),
            in_flight: InFlight::default(),
            traces,
            started: SystemTime::now(),
            own: RwLock::default(),
            keys: RwLock::new(Arc::new(keys)),
            models: OnceLock::new(),
            download: Mutex::new(None),
            damage: Arc::default(),
            config,
        })
    }

    /// Puts the models into service; the first one is the default.
    ///
    /// # Panics
    /// If there are none, if two have one name, or if called twice.
    pub fn set_models(&self, mut models: Vec<ServedModel>) {
        assert!(!models.is_empty(), "a server serves at least one model");
        let unchecked = models.iter_mut().filter_map(|model| {
            let check = model.host.packed_check.take()?;
            Some((model.name.clone(), check))
        });
        let unchecked = unchecked.collect();
        let models: Vec<_> = models.into_iter().map(Arc::new).collect();
        let mut names: Vec<&str> = models.iter().flat_map(|m| m.names()).collect();
        names.sort_unstable();
        assert!(
            names.windows(2).all(|w| w[0] != w[1]),
            "served names are distinct"
        );
        let engines = models.iter().map(|model| model.engine.clone());
        self.admission.serve(engines.collect());
        self.models.set(models).expect("models are set once");
        self.lifecycle.advance(Phase::Ready);
        self.check_weights(unchecked);
    }

    /// Compares packed weights with their checksums, beside serving. From the moment on at which some
    /// differ nothing is computed by any: what they answer may be wrong.
    fn check_weights(&self, unchecked: Vec<(String, PackedCheck)>) {
        if unchecked.is_empty() {
            return;
        }
        let damage = Arc::clone(&self.damage);
        let job = move || {
            for (name, check) in unchecked {
                if let Err(found) = check.run() {
                    let what = format!("{name}: {found}; restart the server");
                    log::line(format_args!("error: {what}"));
                    // The first one is told.
                    let _ = damage.set(what);
                }
            }
        };
        let thread = thread::Builder::new().name("prelude-checksum".to_owned());
        if let Err(error) = thread.spawn(job) {
            log::line(format_args!("packed weights are not checked: {error}"));
        }
    }

    /// Returns the error for packed weights that were found to be damaged; restarting helps.
    pub(crate) fn damaged(&self) -> Option<ApiError> {
        self.damage
            .get()
            .map(|what| ApiError::weights_damaged(what))
    }

    /// Sets the progress of a download, which answers of 503 tell until the models are in service;
    /// `None` after its end.
    pub fn set_download(&self, progress: Option<Progress>) {
        *self.download.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Returns the progress of the download that loading waits for, if there is one.
    pub(crate) fn download(&self) -> Option<Progress> {
        *self.download.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the error for requests before the models are in service.
    pub(crate) fn loading(&self) -> ApiError {
        match self.download() {
            Some(progress) => ApiError::downloading(&progress),
            None => ApiError::loading(),
        }
    }

    /// Replaces the keys.
    pub fn set_keys(&self, keys: ApiKeys) {
        *self.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
    }

    pub(crate) fn keys(&self) -> Arc<ApiKeys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the models in service; none while loading.
    pub fn models(&self) -> &[Arc<ServedModel>] {
        self.models.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the place of a model among those served.
    pub(crate) fn place_of(&self, model: &ServedModel) -> Option<usize> {
        let is_same = |served: &Arc<ServedModel>| std::ptr::eq(&**served, model);
        self.models().iter().position(is_same)
    }

    /// Returns the model named `name`, or the default one.
    ///
    /// # Errors
    /// 503 `loading`, 404 `model_not_found`.
    pub fn model(&self, name: Option<&str>) -> Result<&Arc<ServedModel>, ApiError> {
        let models = self.models();
        let default = models.first().ok_or_else(|| self.loading())?;
        match name {
            None => Ok(default),
            Some(name) => models
                .iter()
                .find(|m| m.names().any(|n| n == name))
                .ok_or_else(|| {
                    let served = models.iter().flat_map(|m| m.names());
                    ApiError::model_not_found(name, served)
                }),
        }
    }

    /// Returns the model named `name`, which must serve `task`; without a name the first whose kind
    /// is made for it, or else the first that serves it, in the order in which models were given;
    /// for a router's placeholder the only such model.
    ///
    /// # Errors
    /// The errors of [`App::model`], and 400 `unsupported_task`.
    pub fn model_for(&self, name: Option<&str>, task: Task) -> Result<&Arc<ServedModel>, ApiError> {
        self.model_of(name, task, |_| true)
    }

    /// Returns the model as [`App::model_for`] chooses it, where only models that are `fit` are
    /// chosen for requests that name none, if there are any.
    ///
    /// # Errors
    /// The errors of [`App::model_for`].
    pub(crate) fn model_of(
        &self,
        name: Option<&str>,
        task: Task,
        fit: impl Fn(&ServedModel) -> bool,
    ) -> Result<&Arc<ServedModel>, ApiError> {
        let chosen = match name {
            None => { self.candidates(task, &fit).first().copied() }
                .or_else(|| self.candidates(task, |_| true).first().copied()),
            // The name of a model wins over what routers mean by it.
            Some(name) if PLACEHOLDERS.contains(&name) && self.model(Some(name)).is_err() => {
                match self.candidates(task, &fit)[..] {
                    [only] => Some(only),
                    _ => None,
                }
            }
            Some(_) => None,
        };
        let model = match chosen {
            Some(model) => model,
            None => self.model(name)?,
        };
        if model.serves(task) {
            return Ok(model);
        }
        let serves: Vec<_> = model.tasks.iter().map(|t| t.as_str()).collect();
        Err(ApiError::unsupported_task(
            &model.name,
            model.kind.as_str(),
            task.as_str(),
            &serves.join(", "),
            model.kind.flag_for(task),
        ))
    }

    /// Returns the models that serve `task` and are fit for it: those whose kind is made for it, or
    /// else all of them.
    fn candidates(&self, task: Task, fit: impl Fn(&ServedModel) -> bool) -> Vec<&Arc<ServedModel>> {
        let serving = self.models().iter().filter(|m| m.serves(task) && fit(m));
        let made = serving.clone().filter(|m| m.kind.is_made_for(task));
        let made: Vec<_> = made.collect();
        match made.is_empty() {
            true => serving.collect(),
            false => made,
        }
    }

    /// Checks that new work is taken.
    ///
    /// # Errors
    /// 503 `loading`, `draining`, `engine_dead` or `weights_damaged`.
    pub(crate) fn accepting(&self) -> Result<(), ApiError> {
        if let Some(error) = self.damaged() {
            return Err(error);
        }
        match self.lifecycle.phase() {
            Phase::Loading => Err(self.loading()),
            _ if self.engine_lost() => Err(ApiError::engine_dead()),
            Phase::Draining | Phase::Ending => Err(ApiError::draining()),
            Phase::Ready | Phase::Leaving => Ok(()),
        }
    }

    /// Checks that balancers should send work here.
    ///
    /// # Errors
    /// Those of [`App::accepting`]; `draining` already from the moment of being told to stop.
    pub(crate) fn healthy(&self) -> Result<(), ApiError> {
        if self.lifecycle.phase() == Phase::Leaving {
            return Err(ApiError::draining());
        }
        self.accepting()
    }

    /// Takes the process out of service: health turns red at once, work is still taken for
    /// `drain_delay_ms`, then refused; what runs may finish within `drain_timeout_ms` and is
    /// ended then. [`Server::run`](crate::Server::run) returns after that.
    pub async fn drain(&self) {
        self.lifecycle.advance(Phase::Leaving);
        tokio::time::sleep(ms(self.config.drain_delay_ms)).await;
        self.lifecycle.advance(Phase::Draining);
        let timeout = ms(self.config.drain_timeout_ms);
        // Running out of time is no failure: it is one of the two ways to go on.
        let _ = tokio::time::timeout(timeout, self.in_flight.none()).await;
        self.lifecycle.advance(Phase::Ending);
    }

    /// Waits until the collector of traces, if there is one, has those of all requests that have
    /// ended: for a few seconds at most.
    pub async fn flush_traces(&self) {
        self.traces.flush().await;
    }

    /// Returns true if a model can never be served again by this process.
    #[must_use]
    pub fn engine_lost(&self) -> bool {
        self.models().iter().any(|m| !m.engine.is_alive())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, time::Duration};

    use serde_json::Value;

    use super::*;
    use crate::{
        assets::Assets,
        executor::Devices,
        load::{Loaded, load},
        testing::{app, options},
    };

    /// Loads the demo classifier by the packed weights in a folder.
    fn packed(folder: &Path) -> Loaded {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/demo-classifier");
        let mut options = options();
        options.executor.packed_dir = Some(folder.to_owned());
        let assets = Assets::open(model.as_ref()).unwrap();
        load(assets, &options, &Devices::of_machine()).unwrap()
    }

    /// Waits until `is` is true; the test's own end is the bound.
    fn wait(mut is: impl FnMut() -> bool) {
        while !is() {
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn damaged_weights_turn_readiness_red() {
        let name = format!("prelude-damaged-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&folder);
        let files = || {
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let paths = entries.map(|entry| entry.path());
            let whole = paths.filter(|path| path.extension().is_some_and(|e| e == "packed"));
            whole.collect::<Vec<_>>()
        };
        drop(packed(&folder));
        wait(|| !files().is_empty());
        let path = files().remove(0);
        // Whole files do nothing.
        let check = packed(&folder).model.host.packed_check.unwrap();
        check.run().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::remove_file(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let app = app(vec![packed(&folder)]);
        wait(|| app.healthy().is_err());
        assert_eq!(files(), [path; 0]);
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        for (method, path) in [
            ("GET", "/health"),
            ("GET", "/ready"),
            ("GET", "/live"),
            ("POST", "/classify"),
        ] {
            let body = r#"{"input": "Where is my card?"}"#.to_owned();
            let answered = runtime.block_on(app.answer(method, path, body));
            assert_eq!(answered.status, 503, "{path}");
            let body: Value = serde_json::from_slice(&answered.body).unwrap();
            let error = &body["error"];
            assert_eq!(error["reason"], "weights_damaged", "{path} {body}");
            let why = error["message"].as_str().unwrap();
            assert!(why.contains("restart"), "{why}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
