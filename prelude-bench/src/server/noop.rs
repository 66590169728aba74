//! A model that computes nothing: what is left is the server.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context as _, Result};
use prelude_core::{
    Capacity, Executor, ExecutorError, ForwardBatch, LabelScores, OneShotBatch, OutputHead,
    OutputRow, PositionLogprobs, RowOutput, SampledToken, StepId, StepOutput,
};
use prelude_engine::{EngineConfig, EngineHandle, ScheduledEngine};
use prelude_server::{
    ApiKeys, App, Server, ServerConfig,
    assets::{Assets, EmbeddedModel},
    executor::Devices,
    load::{LoadOptions, Loaded, load},
};

/// A server in this process.
pub(crate) struct Here {
    pub(crate) address: SocketAddr,
    pub(super) app: Arc<App>,
    /// Dropped before the engines: connections first.
    _runtime: tokio::runtime::Runtime,
    _engines: Vec<ScheduledEngine>,
}

impl Here {
    /// Serves `loaded` on a free port.
    pub(crate) fn serve(config: ServerConfig, loaded: Vec<Loaded>) -> Result<Self> {
        let config = ServerConfig {
            port: 0,
            access_log: false,
            ..config
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(config.worker_threads.max(1))
            .enable_all()
            .build()?;
        let app = App::new(config, ApiKeys::default());
        let (models, engines) = loaded.into_iter().map(|l| (l.model, l.engine)).unzip();
        app.set_models(models);
        let server = runtime
            .block_on(Server::bind(&app))
            .context("a loopback port")?;
        let address = server.local_addr()?;
        runtime.spawn(server.run());
        Ok(Self {
            address,
            app,
            _runtime: runtime,
            _engines: engines,
        })
    }

    /// Returns the engine of the first model.
    pub(crate) fn engine(&self) -> EngineHandle {
        self.app.models()[0].engine.clone()
    }
}

/// Returns a demo model with its own arithmetic.
pub(crate) fn demo(files: &EmbeddedModel) -> Result<Loaded> {
    let assets = Assets::embedded(files)?;
    let loaded = load(assets, &LoadOptions::default(), &Devices::of_machine());
    loaded.with_context(|| format!("the model {}", files.name))
}

/// Returns a demo model, its tokenizer and template, without its arithmetic.
pub(crate) fn idle(files: &EmbeddedModel) -> Result<Loaded> {
    let mut loaded = demo(files)?;
    // It computes no passes in slices.
    let capacity = Capacity {
        passes: None,
        host_blocks: 0,
        ..loaded.engine.handle().capacity()
    };
    let executor = Box::new(Nothing {
        capacity,
        classes: loaded.model.class_names().len(),
        done: None,
    });
    let engine = ScheduledEngine::spawn("noop", EngineConfig::default(), executor)?;
    loaded.model.engine = engine.handle();
    loaded.engine = engine;
    Ok(loaded)
}

/// Answers at once, with nothing meant by it.
struct Nothing {
    capacity: Capacity,
    classes: usize,
    done: Option<StepOutput>,
}

impl Executor for Nothing {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError> {
        let (oneshot, prefill, decode) = batch.parts();
        let decode = decode
            .rows
            .iter()
            .map(|row| RowOutput::Sampled(sampled(row.sample.draws)));
        self.done = Some(StepOutput {
            oneshot: self.rows(oneshot),
            prefill: self.rows(prefill),
            decode: decode.collect(),
            step,
        });
        Ok(())
    }

    fn collect(&mut self, _step: StepId) -> Result<StepOutput, ExecutorError> {
        let nothing = || ExecutorError::Step("no step was submitted".to_owned());
        self.done.take().ok_or_else(nothing)
    }

    fn computes_at_once(&self) -> bool {
        true
    }
}

impl Nothing {
    fn rows(&self, batch: &OneShotBatch) -> Vec<RowOutput> {
        let output = |row: &OutputRow| match &row.head {
            OutputHead::Sample(head) => RowOutput::Sampled(sampled(head.draws)),
            OutputHead::LabelScores { labels, .. } => RowOutput::LabelScores(LabelScores {
                logits: vec![0.0; labels.len()],
                log_sum_exp: Some(1.0),
            }),
            OutputHead::Logprobs { targets, .. } => RowOutput::Logprobs {
                first_position: 1,
                entries: targets.iter().map(|&token| logprob(token)).collect(),
            },
            OutputHead::Embed { .. } => RowOutput::Embedding(vec![1.0]),
            OutputHead::Classify => RowOutput::Classes(vec![0.0; self.classes]),
            OutputHead::Tokens(_) | OutputHead::States(_) => RowOutput::Tokens {
                first_position: row.positions.start,
                rows: vec![vec![0.0; self.classes]; row.num_outputs()],
            },
        };
        batch.rows.iter().map(output).collect()
    }
}

fn sampled(draws: u32) -> Vec<SampledToken> {
    let token = |_| SampledToken {
        token: 100,
        logprob: None,
        top: Vec::new(),
    };
    (0..draws).map(token).collect()
}

fn logprob(token: u32) -> PositionLogprobs {
    PositionLogprobs {
        token,
        logprob: -1.0,
        rank: 1,
        top: Vec::new(),
    }
}
