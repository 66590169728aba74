//! `prelude serve`: bind, load, answer, and leave in good order.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use prelude_engine::ScheduledEngine;
use prelude_models::file;
use prelude_server::{ApiKeys, App, Ended, ServedModel, Server, ServerConfig, executor, log};

use super::{
    Code, Environment, Failure, Settings, Source, kv_events, loading, models, on_terminal, print,
    say, signals, supervisor, traces,
};
use crate::args::{LogLevel, ServeArgs};

/// Runs until told to stop.
pub(crate) fn run(args: &ServeArgs, environment: &Environment) -> Result<(), Failure> {
    std::panic::set_hook(Box::new(log::report_panic));
    signals::outlive_users()?;
    let settings = settings(args, environment)?;
    let keys = keys(args)?;
    if args.print_config {
        let text = toml::to_string(&settings).map_err(|e| {
            Failure::new(Code::Failed, format_args!("cannot print the settings: {e}"))
        })?;
        return print(&text);
    }
    allow_files(settings.limits.connections);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(settings.server.worker_threads.max(1))
        .enable_all()
        .build()
        .map_err(|e| Failure::new(Code::Failed, format_args!("cannot start: {e}")))?;
    let served = runtime.block_on(serve(args, settings, keys, &environment.otel));
    // If the program is told to stop while it loads, it does not wait for the loading.
    runtime.shutdown_background();
    served
}

/// Files that a server holds beside its connections.
const OWN_FILES: u64 = 64;

/// Asks for as many open files as the connections allowed need. Many systems let a process have
/// 1,024 unless it asks; further connections are not accepted, not even to be refused.
fn allow_files(connections: usize) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let wanted = connections as u64 + OWN_FILES;
    let mut limit = getrlimit(Resource::Nofile);
    let is_enough = |files: Option<u64>| files.is_none_or(|files| files >= wanted);
    if is_enough(limit.current) {
        return;
    }
    let most = limit.maximum.map_or(wanted, |most| most.min(wanted));
    limit.current = Some(most);
    if setrlimit(Resource::Nofile, limit).is_err() || !is_enough(Some(most)) {
        say(format_args!(
            "warning: this process may hold {} files open, fewer than the {connections} \
             connections allowed need: raise the limit (ulimit -n) or lower limits.connections",
            getrlimit(Resource::Nofile).current.unwrap_or(most)
        ));
    }
}

/// Flags over the environment over the file over defaults.
fn settings(args: &ServeArgs, environment: &Environment) -> Result<Settings, Failure> {
    let mut settings = environment.settings(args.config.as_deref())?;
    let is_untouched = environment.config.is_none() && environment.variables.is_empty();
    let is_demo = args.config.is_none() && is_untouched && args.models.is_empty();
    if is_demo && !args.print_config {
        // No balancer needs time to notice its end. What is printed is for a file of settings, and
        // a server with one is no demo.
        settings.server.drain_delay_ms = 0;
    }
    models::put(&args.models, &mut settings.models)?;
    let settings = with_flags(settings, args)?;
    // Checked here, since flags say times too.
    let checked = settings.server_config().validate();
    checked.map_err(|e| Failure::new(Code::Usage, e))?;
    Ok(settings)
}

/// Puts flags over the settings of the process, or of one of its models.
fn with_flags(mut settings: Settings, args: &ServeArgs) -> Result<Settings, Failure> {
    fn put<T: Copy>(flag: Option<T>, setting: &mut T) {
        if let Some(value) = flag {
            *setting = value;
        }
    }
    let server = &mut settings.server;
    put(args.host, &mut server.host);
    put(args.port, &mut server.port);
    server.seed = args.seed.or(server.seed);
    let access_log = args.log_level.map(|level| level == LogLevel::Info);
    put(access_log, &mut server.access_log);
    put(args.max_logprobs, &mut server.max_logprobs);
    server.reasoning_parser = args.reasoning_parser.or(server.reasoning_parser);
    server.tool_parser = args.tool_parser.or(server.tool_parser);
    server.log_prompts |= args.log_prompts;
    put(args.drain_delay_ms, &mut server.drain_delay_ms);
    put(args.drain_timeout_ms, &mut server.drain_timeout_ms);
    let scheduler = &mut settings.scheduler;
    put(args.max_num_seqs, &mut scheduler.max_num_seqs);
    scheduler.max_batch_tokens = args.max_num_batched_tokens.or(scheduler.max_batch_tokens);
    if args.no_enable_prefix_caching {
        scheduler.enable_prefix_caching = false;
    } else if args.enable_prefix_caching {
        scheduler.enable_prefix_caching = true;
    }
    if let Some(policy) = &args.policy {
        let known = serde_json::from_value(policy.as_str().into());
        scheduler.policy =
            known.map_err(|e| Failure::new(Code::Usage, format_args!("--policy {policy}: {e}")))?;
    }
    settings.profile.file = args.profile.clone().or(settings.profile.file);
    if args.deterministic {
        executor::make_deterministic(&mut settings.cuda);
    }
    let model = &args.model_args;
    settings.executor = settings.load_options(model).executor;
    Ok(settings)
}

fn keys(args: &ServeArgs) -> Result<ApiKeys, Failure> {
    match (&args.api_key, &args.api_key_file) {
        (None, None) => Ok(ApiKeys::default()),
        (Some(key), None) => {
            if key.trim().is_empty() {
                // An empty secret must not pass for a key.
                let message = "--api-key is empty; leave it out to serve without a key";
                return Err(Failure::new(Code::Usage, message));
            }
            if !args.api_key_is_private {
                say(format_args!(
                    "warning: --api-key is visible in process lists; prefer --api-key-file"
                ));
            }
            Ok(ApiKeys::new([key]))
        }
        (None, Some(path)) => read_keys(path),
        (Some(_), Some(_)) => Err(Failure::new(
            Code::Usage,
            "give --api-key or --api-key-file, not both",
        )),
    }
}

pub(super) fn read_keys(path: &Path) -> Result<ApiKeys, Failure> {
    let wrong = |why: &dyn std::fmt::Display| {
        Failure::new(
            Code::Usage,
            format_args!("cannot use {}: {why}", path.display()),
        )
    };
    let text = file::read_text(path).map_err(|e| wrong(&e))?;
    let keys = ApiKeys::from_lines(&text).map_err(|e| wrong(&e))?;
    if keys.is_empty() {
        // An empty file must not open the server to everybody.
        return Err(wrong(&"it holds no key"));
    }
    Ok(keys)
}

/// Refuses to let the pages of all origins ask where keys are configured.
fn check_origins(origins: &[String], keys: &ApiKeys) -> Result<(), Failure> {
    if !keys.is_empty() && origins.iter().any(|origin| origin == "*") {
        let message = "cors_origins must list origins, not `*`, where keys are configured";
        return Err(Failure::new(Code::Usage, message));
    }
    Ok(())
}

/// Serves until told to stop. `otel` are the variables of OpenTelemetry.
async fn serve(
    args: &ServeArgs,
    settings: Settings,
    keys: ApiKeys,
    otel: &[(String, String)],
) -> Result<(), Failure> {
    let started = Instant::now();
    let is_demo = args.models.is_empty() && settings.models.is_empty();
    let config = settings.server_config();
    check_origins(&config.cors_origins, &keys)?;
    // Checked before anything else can fail: a program without CUDA cannot do what it was asked to.
    let flags = models::Flags {
        model: &args.model_args,
        generation_config: args.generation_config,
        served_model_name: &args.served_model_name,
        has_profile: args.profile.is_some(),
        put: &|settings| with_flags(settings, args),
    };
    let chosen = models::choose(models::lone(&args.models), &settings, &flags)?;
    let traces = traces::start(otel)?;
    // From here on a log without a reader delays no request.
    log::start().map_err(|e| Failure::new(Code::Failed, format_args!("cannot start: {e}")))?;
    let app = App::with_traces(config, keys, traces);
    // Bound before loading: a taken port is noticed at once, and probes get 503, not silence.
    let server = Server::bind(&app)
        .await
        .map_err(|e| bind_failure(&e, &settings.server))?;
    let address = server.local_addr().map_err(|e| {
        Failure::new(
            Code::Failed,
            format_args!("cannot tell the address it listens on: {e}"),
        )
    })?;
    let is_hub = |model: &models::ToServe| matches!(model.source, Source::Hub(_));
    if chosen.iter().any(is_hub) {
        say(format_args!(
            "listening on http://{address}; answers begin when the models are here"
        ));
    }
    let names: Vec<String> = chosen.iter().map(models::ToServe::name).collect();
    let publishers = settings.kv_events.bind(&names).await?;
    let mut serving = tokio::spawn(server.run());
    signals::watch(&app, args.api_key_file.as_deref())?;
    let loading = tokio::task::spawn_blocking({
        let app = Arc::clone(&app);
        move || load(chosen, &settings, &app)
    });
    let engines = tokio::select! {
        loaded = loading => loaded
            .map_err(|e| Failure::new(Code::Failed, format_args!("loading failed: {e}")))??,
        // The program was told to stop: a download goes on from here the next time.
        _ = &mut serving => return Ok(()),
    };
    for (publisher, engine) in publishers.into_iter().zip(&engines) {
        if let Some(events) = engine.handle().kv_events() {
            tokio::spawn(kv_events::publish(publisher, events));
        }
    }
    announce(app.models(), address, started.elapsed());
    supervisor::ready(&app);
    if is_demo {
        suggest(address);
    }
    let ended = serving
        .await
        .map_err(|e| Failure::new(Code::Failed, format_args!("the server failed: {e}")))?;
    for engine in engines {
        engine.stop();
    }
    app.flush_traces().await;
    match ended {
        Ended::Drained => Ok(()),
        Ended::EngineLost => Err(Failure::new(
            Code::Engine,
            "the engine is lost; start the server again",
        )),
    }
}

/// Loads the models and puts them into service.
fn load(
    mut chosen: Vec<models::ToServe>,
    settings: &Settings,
    app: &App,
) -> Result<Vec<ScheduledEngine>, Failure> {
    for model in &mut chosen {
        model.options.engine.kv_events = settings.kv_events.is_on();
    }
    let limit = settings.executor.memory_limit_bytes;
    let report = |progress| app.set_download(progress);
    let (models, engines) = loading::load_all(chosen, limit, &report)?;
    app.set_models(models);
    Ok(engines)
}

fn bind_failure(error: &io::Error, config: &ServerConfig) -> Failure {
    let (host, port) = (config.host, config.port);
    let message = match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "port {port} on {host} is taken by another program\n\
             choose another one:   prelude serve --port {}\n\
             or any free one:      prelude serve --port 0",
            port.checked_add(1).unwrap_or(8000)
        ),
        io::ErrorKind::PermissionDenied => format!(
            "this user may not listen on port {port}; ports from 1024 on are free to use: \
             prelude serve --port 8000"
        ),
        io::ErrorKind::AddrNotAvailable => format!(
            "this machine has no address {host}; try --host 127.0.0.1, or --host 0.0.0.0 for all"
        ),
        _ => format!("cannot listen on {host}:{port}: {error}"),
    };
    Failure::new(Code::Failed, message)
}

fn announce(models: &[Arc<ServedModel>], address: SocketAddr, elapsed: Duration) {
    let names: Vec<String> = models
        .iter()
        .map(|m| format!("{} ({})", m.name, m.kind.as_str()))
        .collect();
    say(format_args!(
        "ready: {} on http://{address} after {:.2} s; in a browser /ui, for programs /docs",
        names.join(", "),
        elapsed.as_secs_f64()
    ));
}

/// Prints the address of the page, and three requests to copy: a class, a typed decision, one
/// token.
fn suggest(address: SocketAddr) {
    let bold = |text: &str| match on_terminal() {
        true => format!("\x1b[1m{text}\x1b[0m"),
        false => text.to_owned(),
    };
    let json = "-H 'Content-Type: application/json'";
    say(format_args!(
        "
{}
http://{address}/ui

{}
curl -s http://{address}/classify {json} \\
  -d '{{\"input\": \"Where is my card? I ordered it two weeks ago.\"}}'

{}
curl -s http://{address}/v1/systemone {json} \\
  -d '{{\"state\": \"Where is my card? I ordered it two weeks ago.\", \"questions\": {{
        \"topic\": {{\"type\": \"choice\", \"instructions\": \"Which topic?\",
                  \"criteria\": {{\"card\": null, \"transfer\": null, \"exchange\": null}}}}}}}}'

{}
curl -s http://{address}/v1/chat/completions {json} \\
  -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Where is my card?\\nWhich topic?\"}}],
       \"max_tokens\": 1, \"temperature\": 0, \"enable_thinking\": false, \"logprobs\": true, \"top_logprobs\": 3}}'

The demo models know the messages of a bank's customers and nothing else. Stop with Ctrl-C.",
        bold("# The same in a browser, and what it costs"),
        bold("# Classify a message"),
        bold("# Typed decisions about a state"),
        bold("# A one-token answer"),
    ));
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use prelude_core::{
        Attention, Capacity, Executor, ExecutorError, ForwardBatch, Head, PromptTree, RowOutput,
        RowSpec, Segment, StepId, StepOutput,
    };
    use prelude_engine::RequestSpec;

    use super::*;

    #[test]
    fn a_taken_port_says_how_to_choose_another() {
        let error = io::Error::from(io::ErrorKind::AddrInUse);
        let failure = bind_failure(&error, &ServerConfig::default());
        let text = failure.to_string();
        assert!(text.contains("port 8000") && text.contains("prelude serve --port 8001"));
        assert_eq!(failure.code(), 1);
    }

    #[test]
    fn an_empty_key_file_does_not_open_the_server() {
        let path = std::env::temp_dir().join(format!("prelude-keys-{}", std::process::id()));
        std::fs::write(&path, "# none yet\n").unwrap();
        let failure = read_keys(&path).unwrap_err();
        assert_eq!(failure.code(), 2);
        std::fs::write(&path, "secret\n").unwrap();
        assert!(!read_keys(&path).unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn flags_make_settings() {
        let args = ServeArgs {
            port: Some(0),
            max_num_batched_tokens: Some(64),
            no_enable_prefix_caching: true,
            policy: Some("fcfs".to_owned()),
            log_level: Some(LogLevel::Error),
            ..ServeArgs::default()
        };
        let settings = settings(&args, &Environment::default()).unwrap();
        assert_eq!(settings.server.port, 0);
        assert_eq!(settings.server.drain_delay_ms, 0);
        let printed = ServeArgs {
            print_config: true,
            ..ServeArgs::default()
        };
        let printed = super::settings(&printed, &Environment::default()).unwrap();
        assert_eq!(printed.server.drain_delay_ms, 5_000);
        assert_eq!(settings.scheduler.max_batch_tokens, Some(64));
        assert!(!settings.scheduler.enable_prefix_caching);
        assert!(!settings.server.access_log);
    }

    #[test]
    fn every_policy_can_be_named() {
        for name in ["auto", "fcfs", "srjf", "groups", "laps", "round-robin"] {
            let args = ServeArgs {
                policy: Some(name.to_owned()),
                ..ServeArgs::default()
            };
            let settings = settings(&args, &Environment::default()).unwrap();
            let known = serde_json::to_value(settings.scheduler.policy).unwrap();
            assert_eq!(known, name);
        }
        let args = ServeArgs {
            policy: Some("round_robin".to_owned()),
            ..ServeArgs::default()
        };
        let settings = settings(&args, &Environment::default()).unwrap();
        let known = serde_json::to_value(settings.scheduler.policy).unwrap();
        assert_eq!(known, "round-robin");
    }

    /// Answers one-shot rows, and tells what tokens each step has of its prompts, fewest first.
    struct Recorder {
        /// Steps end once the other end is gone.
        held: Receiver<()>,
        steps: Sender<Vec<u32>>,
        output: StepOutput,
    }

    impl Executor for Recorder {
        fn capacity(&self) -> Capacity {
            Capacity {
                block_size: 16,
                num_blocks: 256,
                max_step_tokens: 2048,
                full_step_tokens: 2048,
                max_context_len: 2048,
                vocab_size: 10_000,
                pipeline_depth: 1,
                passes: None,
                attention: Attention::Causal,
                host_blocks: 0,
            }
        }

        fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError> {
            let (oneshot, _, _) = batch.parts();
            let mut prompts: Vec<u32> = oneshot.segments.iter().map(Segment::len).collect();
            prompts.sort_unstable();
            self.steps.send(prompts).unwrap();
            let answers = oneshot.rows.iter().map(|_| RowOutput::Classes(vec![1.0]));
            self.output = StepOutput {
                step,
                oneshot: answers.collect(),
                ..StepOutput::default()
            };
            Ok(())
        }

        fn collect(&mut self, _: StepId) -> Result<StepOutput, ExecutorError> {
            let _ = self.held.recv();
            Ok(std::mem::take(&mut self.output))
        }
    }

    /// Returns the tokens of each prompt in each step of an engine that is started with `--policy`,
    /// for two short and two long requests that come during a step.
    fn steps_of(policy: &str) -> Vec<Vec<u32>> {
        let args = ServeArgs {
            policy: Some(policy.to_owned()),
            ..ServeArgs::default()
        };
        let settings = settings(&args, &Environment::default()).unwrap();
        let options = settings.load_options(&args.model_args);
        let (hold, held) = channel();
        let (steps, taken) = channel();
        let recorder = Recorder {
            held,
            steps,
            output: StepOutput::default(),
        };
        let engine = ScheduledEngine::spawn("test", options.engine, Box::new(recorder)).unwrap();
        let ask = |first: u32, len: u32| {
            let tree = PromptTree::single((first..first + len).collect());
            let rows = vec![RowSpec {
                node: tree.last_node(),
                head: Head::Classify,
            }];
            let request = RequestSpec::new(tree, rows);
            engine.handle().submit(request).unwrap()
        };
        let mut answers = vec![ask(0, 8)];
        assert_eq!(taken.recv().unwrap(), [8]);
        answers.extend([(1000, 300), (2000, 10), (3000, 400), (4000, 20)].map(|(a, b)| ask(a, b)));
        drop(hold);
        for answer in answers {
            answer.blocking_collect().unwrap();
        }
        drop(engine);
        taken.iter().collect()
    }

    /// The same requests in the order of arrival share a step; under LAPS short ones have a step and
    /// long ones have others.
    #[test]
    fn the_policy_that_is_named_orders_the_engine_s_work() {
        assert_eq!(steps_of("fcfs"), [[10, 20, 300, 400]]);
        let mut steps = steps_of("laps");
        steps.sort();
        assert_eq!(steps, [vec![10, 20], vec![300], vec![400]]);
    }

    #[test]
    fn knobs_of_a_policy_come_from_the_environment() {
        let environment = Environment {
            config: None,
            variables: vec![("SCHEDULER__LAPS__CHUNK_TOKENS".to_owned(), "512".to_owned())],
            otel: Vec::new(),
        };
        let settings = settings(&ServeArgs::default(), &environment).unwrap();
        assert_eq!(settings.scheduler.laps.chunk_tokens, 512);
    }

    #[test]
    fn an_unknown_policy_says_which_there_are() {
        let args = ServeArgs {
            policy: Some("luck".to_owned()),
            ..ServeArgs::default()
        };
        let failure = settings(&args, &Environment::default()).unwrap_err();
        assert!(failure.to_string().contains("fcfs"), "{failure}");
        assert_eq!(failure.code(), 2);
    }
}
