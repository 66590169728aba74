//! The common part of tests of endpoints: the demo models in service, and one way to ask them.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock, Mutex},
};

use prelude_text::template::ChatTemplate;
use serde_json::{Value, json};

use crate::{
    app::App,
    assets::{Assets, EmbeddedModel},
    config::ServerConfig,
    demo,
    endpoint::{Asking, Call, Inference, Reply},
    executor::{Devices, ExecutorConfig, ExecutorDtype},
    identity::ApiKeys,
    load::{LoadOptions, Loaded, load},
    openapi::{self, validate},
    routes::{self, ENDPOINTS},
};

/// `/openapi.json`.
static DOCUMENT: LazyLock<Value> = LazyLock::new(|| openapi::document(ENDPOINTS));

/// Engines of all apps, kept until the test process ends.
static ENGINES: Mutex<Vec<prelude_engine::ScheduledEngine>> = Mutex::new(Vec::new());

/// Returns options with arithmetic in f32, as the golden values were made.
pub(crate) fn options() -> LoadOptions {
    LoadOptions {
        executor: ExecutorConfig {
            dtype: Some(ExecutorDtype::F32),
            ..ExecutorConfig::default()
        },
        ..LoadOptions::default()
    }
}

/// Returns an app that serves these models.
pub(crate) fn app(models: Vec<Loaded>) -> Arc<App> {
    app_with(ServerConfig::default(), models)
}

/// Returns an app that serves these models under a configuration.
pub(crate) fn app_with(config: ServerConfig, models: Vec<Loaded>) -> Arc<App> {
    let app = App::new(config, ApiKeys::default());
    let mut served = Vec::new();
    for loaded in models {
        assert_eq!(loaded.warnings, Vec::<String>::new());
        ENGINES.lock().unwrap().push(loaded.engine);
        served.push(loaded.model);
    }
    app.set_models(served);
    app
}

pub(crate) fn embedded(files: &EmbeddedModel, options: &LoadOptions) -> Loaded {
    load(
        Assets::embedded(files).unwrap(),
        options,
        &Devices::of_machine(),
    )
    .unwrap()
}

/// Returns the demo language model with another template.
pub(crate) fn asking(source: &str) -> Arc<App> {
    let mut guard = embedded(&demo::LM, &options());
    guard.model.form.template = Some(Arc::new(ChatTemplate::new(source, []).unwrap()));
    app(vec![guard])
}

/// Returns an app of both demo models, in f32.
pub(crate) fn demos() -> &'static Arc<App> {
    static APP: LazyLock<Arc<App>> = LazyLock::new(|| {
        app(vec![
            embedded(&demo::LM, &options()),
            embedded(&demo::CLASSIFIER, &options()),
        ])
    });
    &APP
}

/// Returns an app in which some model serves each task.
pub(crate) fn every_task() -> &'static Arc<App> {
    static APP: LazyLock<Arc<App>> = LazyLock::new(|| {
        let all = LoadOptions {
            pooling: Some(prelude_core::Pooling::Last),
            rerank_template: Some("qwen3".into()),
            ..options()
        };
        app(vec![
            embedded(&demo::LM, &all),
            embedded(&demo::CLASSIFIER, &options()),
        ])
    });
    &APP
}

/// Returns a folder of the workspace's golden data; `None`, said aloud, where the crate stands alone.
/// In the workspace it must be there.
pub(crate) fn golden(name: &str) -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = workspace.join("golden").join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    assert!(
        !workspace.join("golden/MANIFEST").exists(),
        "{} is missing",
        folder.display()
    );
    // Past the harness, which shows what is printed only where a test fails.
    let _ = writeln!(
        std::io::stderr(),
        "SKIP: {} is not here; it is part of the workspace",
        folder.display()
    );
    None
}

/// Returns the golden embedding model, where there is one.
pub(crate) fn embedder() -> Option<&'static Arc<App>> {
    static APP: LazyLock<Option<Arc<App>>> = LazyLock::new(|| {
        let assets = Assets::open(&golden("rand-embed")?.join("model")).unwrap();
        let loaded = load(assets, &options(), &Devices::of_machine()).unwrap();
        Some(app(vec![loaded]))
    });
    APP.as_ref()
}

/// Returns a call of an endpoint that has not been answered.
pub(crate) fn call(app: &Arc<App>, path: &str) -> Arc<Call> {
    let (endpoint, tail) = routes::find(app, "POST", path).unwrap();
    let call = Call::new(app, endpoint, tail, app.ids.next("req-"), Asking::default());
    Arc::new(call.unwrap())
}

/// Asks and returns status, body and what is known of the request.
pub(crate) fn ask(app: &Arc<App>, path: &str, body: &Value) -> (u16, Value, Inference) {
    ask_raw(app, path, body.to_string())
}

/// Asks as [`ask`] does, with a body that need not be JSON.
pub(crate) fn ask_raw(app: &Arc<App>, path: &str, body: String) -> (u16, Value, Inference) {
    ask_as(app, path, body, false)
}

fn ask_as(app: &Arc<App>, path: &str, body: String, is_strict: bool) -> (u16, Value, Inference) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(async {
        let mut call = Arc::into_inner(call(app, path)).unwrap();
        call.strict = is_strict;
        let call = Arc::new(call);
        let answer = (call.endpoint.handle)(&call, body.into()).await;
        let seen = call.inference();
        let (status, body) = match answer {
            Ok(Reply::Json(body)) => (200, body),
            Ok(other) => panic!("not JSON: {other:?}"),
            Err(error) => {
                let body = error.to_json(call.endpoint.dialect);
                (error.status(), body.into())
            }
        };
        let body: Value = serde_json::from_slice(&body).unwrap();
        // Whatever is asked in a test is answered as the document says.
        validate::check(&DOCUMENT, "POST", path, status, &body).unwrap();
        (status, body, seen)
    })
}

/// Asks as a client does who wants fields refused that nobody knows.
pub(crate) fn ask_strictly(app: &Arc<App>, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer, _) = ask_as(app, path, body.to_string(), true);
    (status, answer)
}

/// Sends a request that must succeed, and returns the body.
pub(crate) fn answer(app: &Arc<App>, path: &str, body: &Value) -> Value {
    let (status, answer, _) = ask(app, path, body);
    assert_eq!(status, 200, "{path} {body}: {answer}");
    answer
}

/// Sends a request that must be refused, and compares status, reason and field.
pub(crate) fn refused(
    app: &Arc<App>,
    path: &str,
    body: &Value,
    expected: (u16, &str, Option<&str>),
) {
    let (status, answer, _) = ask(app, path, body);
    let error = &answer["error"];
    let found = (
        status,
        error["reason"].as_str().unwrap_or(""),
        error["param"].as_str(),
    );
    assert_eq!(found, expected, "{path} {body}: {answer}");
    assert_eq!(error["code"], json!(status));
}

/// Recorded prompts and values of a golden model.
pub(crate) struct Golden {
    prompts: Vec<Value>,
    arrays: Vec<u8>,
}

impl Golden {
    pub(crate) fn open(folder: &Path) -> Self {
        let json: Value =
            serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
        Self {
            prompts: json["prompts"].as_array().unwrap().clone(),
            arrays: std::fs::read(folder.join("golden.safetensors")).unwrap(),
        }
    }

    /// Returns the prompts by index: kind and text, where the text encodes to exactly the recorded ids.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (usize, &str, &str)> {
        self.prompts
            .iter()
            .enumerate()
            .filter_map(|(i, p)| Some((i, p["kind"].as_str().unwrap(), p["text"].as_str()?)))
    }

    /// Row `index` of the f32 array `name`.
    pub(crate) fn row(&self, name: &str, index: usize) -> Vec<f32> {
        let arrays = safetensors::SafeTensors::deserialize(&self.arrays).unwrap();
        let array = arrays.tensor(name).unwrap();
        let width = array.shape()[1..].iter().product::<usize>() * 4;
        array.data()[index * width..][..width]
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect()
    }
}

/// Compares numbers of an answer with recorded ones.
pub(crate) fn assert_close(found: &Value, expected: &[f32], tolerance: f32, what: &str) {
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "compared in f32's precision"
        )]
        let found = found.as_f64().unwrap() as f32;
        let difference = (found - expected).abs();
        assert!(
            difference <= tolerance,
            "{what}[{i}]: {found}, recorded {expected}"
        );
    }
}
