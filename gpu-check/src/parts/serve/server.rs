//! The program `prelude` as a process, on a made model.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Result, ensure};
use prelude_bench::process::Process;
use prelude_exec_cuda::CudaConfig;
use prelude_measure::http::Client;
use serde_json::{Value, json};

use crate::{make_model, session::Session};

/// Longest start: weights are read, kernels perhaps compiled. Less than a part may be silent.
const READY_WITHIN: Duration = Duration::from_secs(100);
/// Longest wait for one answer: less than a part may be silent.
const SILENCE: Duration = Duration::from_secs(60);
/// The name by which requests ask for the model.
pub(in crate::parts) const MODEL: &str = "made";

/// The variable that names the folder of vLLM's packages, for part `rivals`: what
/// `pip install --target` writes.
pub(in crate::parts) const VLLM_FOLDER: &str = "PRELUDE_RIVAL_VLLM";

/// Settings with which a step is queued behind the one that runs.
pub(super) const DEEP: [(&str, &str); 1] = [("PRELUDE_CUDA__PIPELINE_DEPTH", "2")];

/// The differences of a server from one without flags.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::parts) struct Options<'a> {
    /// Behind the name of the server's log.
    pub(in crate::parts) log: &'a str,
    pub(in crate::parts) arguments: &'a [&'a str],
    /// Settings as variables of the environment.
    pub(in crate::parts) settings: &'a [(&'a str, &'a str)],
}

/// Starts the program `prelude` with a made model.
pub(in crate::parts) fn start(
    session: &Session,
    name: &str,
    options: Options<'_>,
) -> Result<Process> {
    let program = session.home.join("prelude");
    let model = make_model::folder(&session.models, name, None);
    let log = session
        .out
        .join(format!("server-{name}{}.txt", options.log));
    let mut command = Command::new(&program);
    command.arg("serve").arg(&model);
    command.args(["--port", "0", "--served-model-name", MODEL]);
    command.args(options.arguments);
    // The server refuses variables that it does not know.
    command.env_remove(VLLM_FOLDER);
    command.envs(options.settings.iter().copied());
    match session.target.is_gpu() {
        true => command
            .args(["--device", &format!("cuda:{}", session.common.device)])
            .envs(settings(&session.config)),
        // The emulation is not in that program.
        false => command.args(["--device", "cpu", "--kv-blocks", "128"]),
    };
    Process::start(command, Some(&log), READY_WITHIN.min(session.left()))
}

/// Returns the settings by which the server finds the libraries, kernels and plans that this
/// program does.
fn settings(config: &CudaConfig) -> Vec<(&'static str, String)> {
    // An array of JSON's is one of TOML's, as these settings are.
    let list = |folders: &[PathBuf]| json!(folders).to_string();
    let one = |folder: &PathBuf| json!(folder).to_string();
    // The server looks into the same Python's packages and toolkits as this program.
    let mut settings = vec![("PRELUDE_CUDA__LIBRARY_DIRS", list(&config.library_dirs))];
    let images = config.image_dir.as_ref().map(one);
    settings.extend(images.map(|text| ("PRELUDE_CUDA__IMAGE_DIR", text)));
    let cache = config.cache_dir.as_ref().map(one);
    settings.extend(cache.map(|text| ("PRELUDE_CUDA__CACHE_DIR", text)));
    settings
}

/// Notes what the server's matrix products run on: figures of the fallback are not this machine's
/// best.
pub(super) fn engine(session: &mut Session, name: &str, server: &Process) -> Result<()> {
    let name = format!("{name}: products");
    match said(server, "products by ") {
        Some(line) => session.note(&name, line),
        None if session.is_smoke() => session.skip(&name, "the server is on the CPU"),
        None => session.fail(&name, "the server did not say what they run on"),
    }
}

/// Returns the last thing that the server said at its start which begins so, to the line's end.
pub(super) fn said<'a>(server: &'a Process, begin: &str) -> Option<&'a str> {
    let mut lines = server.start_log.iter().rev();
    lines.find_map(|line| Some(&line[line.find(begin)?..]))
}

/// Asks one thing, for which a part's silence is long enough; the answer.
pub(in crate::parts) fn ask(
    session: &Session,
    address: &str,
    path: &str,
    body: &Value,
) -> Result<Value> {
    let mut client = Client::connect_within(address, SILENCE.min(session.left()))?;
    client.post(path, &body.to_string())?.ok()?.json()
}

/// Checks that a prompt of ids is answered with as many tokens as were asked for.
pub(in crate::parts) fn answers(session: &Session, address: &str, input: usize) -> Result<()> {
    for seed in 0..3 {
        let prompt = crate::batches::tokens(seed, input, super::requests::IDS);
        let body = super::requests::completion(&prompt, 2);
        let usage = &ask(session, address, "/v1/completions", &body)?["usage"];
        ensure!(
            usage["prompt_tokens"] == input && usage["completion_tokens"] == 2,
            "{input} tokens in and 2 out were asked for: {usage}"
        );
    }
    Ok(())
}
