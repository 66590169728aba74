//! Envoy, a picker or none, and engines, as processes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use prelude_measure::{
    http::Client,
    process::{self as measure, Ended, Output},
};
use serde_json::{Value, json};

use super::{Config, ENVOY_VARIABLE};
use crate::{
    process::{Process, free_address, metrics},
    server::cores,
};

/// Longest start of a program.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// Time between two looks at what has begun to work.
const POLL: Duration = Duration::from_millis(10);
/// The cluster of Envoy's own round robin, by `round_robin.json`.
const IN_TURN: &str = "in_turn";
/// The clusters of the picker's configuration: with a pick, and without.
const PICKED: &str = "picked";
const UNPICKED: &str = "unpicked";

/// A way to distribute requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// Envoy asks the picker.
    Picker,
    /// Envoy sends to one engine after the other.
    RoundRobin,
}

impl Setup {
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Picker => "Envoy and the picker",
            Self::RoundRobin => "Envoy's round robin",
        }
    }

    /// Returns the beginning of the names of its files.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Picker => "picker",
            Self::RoundRobin => "round-robin",
        }
    }

    /// Returns the cluster of Envoy's configuration to which requests are to go.
    const fn envoy_cluster(self) -> &'static str {
        match self {
            Self::Picker => PICKED,
            Self::RoundRobin => IN_TURN,
        }
    }
}

/// Returns the cores of each engine, or `None` if there are fewer cores than engines.
pub(super) fn cores(engines: usize) -> Option<Vec<Vec<usize>>> {
    cores::shares(engines)
}

/// Running processes, which end in this order.
pub(super) struct Cluster {
    setup: Setup,
    envoy: Process,
    _picker: Option<Process>,
    engines: Vec<Process>,
    /// The address at which Envoy shows its state.
    admin: String,
}

/// Counters of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Counters {
    /// The prompt tokens of each engine, the part of them that was found in its cache, and the part
    /// that another request of the same step computed.
    pub(super) engines: Vec<[f64; 3]>,
    /// Requests that went to an engine without a pick.
    pub(super) unpicked: f64,
}

impl Counters {
    /// Returns what was counted since `from`.
    pub(super) fn since(&self, from: &Self) -> Self {
        let engines = self.engines.iter().zip(&from.engines);
        Self {
            engines: engines
                .map(|(to, from)| std::array::from_fn(|i| to[i] - from[i]))
                .collect(),
            unpicked: self.unpicked - from.unpicked,
        }
    }
}

impl Cluster {
    /// Starts all processes, and waits until Envoy has sent a request to each engine.
    pub(super) fn start(
        config: &Config,
        setup: Setup,
        kv_blocks: usize,
        kv_tokens: usize,
    ) -> Result<Self> {
        let out = |name: &str| config.out.join(format!("{}-{name}", setup.prefix()));
        let engines = start_engines(config, kv_blocks, &out)?;
        let (listen, admin) = (free_address()?, free_address()?);
        let addresses: Vec<&str> = engines.iter().map(|e| e.address.as_str()).collect();
        let (picker, text) = match setup {
            Setup::Picker => {
                let picker = start_picker(config, &addresses, kv_tokens, &out("picker.log"))?;
                let at = [&*listen, &*admin, &*picker.address];
                let text = picker_config(config.programs.paths()[2], at, &addresses)?;
                (Some(picker), text)
            }
            Setup::RoundRobin => (None, round_robin_config(&listen, &admin, &addresses)),
        };
        let file = out("envoy.yaml");
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        let mut command = Command::new(config.programs.paths()[0]);
        command.arg("-c").arg(&file);
        command.args(["--concurrency", "1", "--disable-hot-restart"]);
        command.args(["--log-level", "warning"]);
        let envoy = Process::rival(&mut command, listen, &out("envoy.log"), READY_WITHIN)?;
        let cluster = Self {
            setup,
            envoy,
            _picker: picker,
            engines,
            admin,
        };
        cluster.settle()?;
        Ok(cluster)
    }

    /// Returns where clients connect.
    pub(super) fn address(&self) -> &str {
        &self.envoy.address
    }

    /// Returns the counters at this moment.
    pub(super) fn counters(&self) -> Result<Counters> {
        let names = [
            "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_hits_total",
            "prelude:shared_tokens_total",
        ];
        let engines = self.engines.iter();
        Ok(Counters {
            engines: engines
                .map(|engine| metrics(&engine.address, names))
                .collect::<Result<_>>()?,
            unpicked: match self.setup {
                Setup::Picker => requests(&self.envoy_state()?, UNPICKED).iter().sum(),
                Setup::RoundRobin => 0.0,
            },
        })
    }

    /// Asks for the health of engines through Envoy until each of them was asked. Envoy and the
    /// picker use an engine once they have found it healthy.
    fn settle(&self) -> Result<()> {
        let started = Instant::now();
        loop {
            let _ = Client::connect(&self.envoy.address).and_then(|mut c| c.get("/health"));
            let asked = requests(&self.envoy_state()?, self.setup.envoy_cluster());
            if asked.len() == self.engines.len() && asked.iter().all(|&count| count > 0.0) {
                return Ok(());
            }
            ensure!(
                started.elapsed() < READY_WITHIN,
                "{} does not use all engines after {READY_WITHIN:?}: {asked:?} requests",
                self.setup.title()
            );
            thread::sleep(POLL);
        }
    }

    fn envoy_state(&self) -> Result<String> {
        let page = Client::connect(&self.admin).and_then(|mut client| client.get("/clusters"));
        Ok(page.context("Envoy's own state")?.text())
    }
}

/// Starts engines with cores of their own where there are enough.
fn start_engines(
    config: &Config,
    kv_blocks: usize,
    out: &impl Fn(&str) -> PathBuf,
) -> Result<Vec<Process>> {
    let cores = cores(config.engines);
    let start = |engine: usize| {
        let mut command = Command::new(config.programs.paths()[1]);
        command.args(["serve", "--port", "0", "--drain-delay", "0s"]);
        command.args(["--kv-blocks", &kv_blocks.to_string()]);
        command.env_remove(ENVOY_VARIABLE);
        let log = out(&format!("engine-{}.log", engine + 1));
        let start = || Process::start(command, Some(&log), READY_WITHIN);
        match &cores {
            Some(cores) => cores::within(&cores[engine], start),
            None => start(),
        }
    };
    (0..config.engines).map(start).collect()
}

/// Seconds for which an engine is measured.
const PROFILE_SECONDS: &str = "8";
/// Longest run of that measurement, with the loading of the model.
const PROFILED_WITHIN: Duration = Duration::from_secs(600);

/// Measures the service times of an engine on the cores of the first one, for the picker.
///
/// # Errors
/// If the program fails; its output is in `profile.log`.
pub(super) fn measure(config: &Config) -> Result<()> {
    let log = config.out.join("profile.log");
    let mut command = Command::new(config.programs.paths()[1]);
    command.args(["profile", "--seconds", PROFILE_SECONDS, "--output"]);
    command.arg(profile(config));
    command.env_remove(ENVOY_VARIABLE);
    let mut run = || -> Result<()> {
        let mut profile = measure::Process::start(&mut command, Output::File(&log))?;
        let ended = profile.wait(PROFILED_WITHIN, |_| Ok(true))?;
        ensure!(
            matches!(ended, Ended::Itself(status) if status.success()),
            "`prelude profile` failed; see {}",
            log.display()
        );
        Ok(())
    };
    match cores(config.engines) {
        Some(cores) => cores::within(&cores[0], run),
        None => run(),
    }
}

/// Returns the file of an engine's service times.
fn profile(config: &Config) -> PathBuf {
    config.out.join("profile.json")
}

fn start_picker(
    config: &Config,
    engines: &[&str],
    kv_tokens: usize,
    log: &Path,
) -> Result<Process> {
    let address = free_address()?;
    let mut command = Command::new(config.programs.paths()[2]);
    command.args(["--listen", &address, "--drain-delay", "10ms"]);
    command.args(["--drain-timeout", "1s"]);
    command.args(["--kv-tokens", &kv_tokens.to_string(), "--profile"]);
    command.arg(profile(config));
    command.args(engines.iter().flat_map(|engine| ["--endpoint", engine]));
    Process::listening(&mut command, address, log, READY_WITHIN)
}

/// Returns the configuration of Envoy that the picker's program prints. `at` is where Envoy listens
/// and shows its state, and where the picker listens.
fn picker_config(program: &Path, at: [&str; 3], engines: &[&str]) -> Result<String> {
    let mut command = Command::new(program);
    command.arg("envoy-config");
    for (flag, address) in ["--listen", "--admin", "--picker"].into_iter().zip(at) {
        command.args([flag, address]);
    }
    command.args(engines.iter().flat_map(|engine| ["--endpoint", engine]));
    let name = program.display();
    let output = command.output();
    let output = output.with_context(|| format!("cannot start {name}"))?;
    ensure!(
        output.status.success(),
        "{name} envoy-config ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).with_context(|| format!("what {name} printed"))
}

/// Returns a configuration of Envoy that sends to one engine after the other. JSON is YAML, too.
fn round_robin_config(listen: &str, admin: &str, engines: &[&str]) -> String {
    let endpoint = |engine: &&str| json!({"endpoint": {"address": socket(engine)}}).to_string();
    let endpoints: Vec<String> = engines.iter().map(endpoint).collect();
    include_str!("round_robin.json")
        .replace("\"ADMIN\"", &socket(admin).to_string())
        .replace("\"LISTEN\"", &socket(listen).to_string())
        .replace("\"ENGINES\"", &endpoints.join(", "))
}

fn socket(address: &str) -> Value {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let port = port.parse::<u16>().unwrap_or(0);
    json!({"socket_address": {"address": host, "port_value": port}})
}

/// Returns the requests to each member of a cluster, by Envoy's page `/clusters`.
fn requests(page: &str, cluster: &str) -> Vec<f64> {
    let count = |line: &str| {
        let rest = line.strip_prefix(cluster)?.strip_prefix("::")?;
        let (_, count) = rest.split_once("::rq_total::")?;
        count.trim().parse().ok()
    };
    page.lines().filter_map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_from_envoys_page() {
        let page = "picked::default_priority::max_requests::16384\n\
                    picked::10.0.0.1:8001::rq_success::3\n\
                    picked::10.0.0.1:8001::rq_total::4\n\
                    picked::10.0.0.2:8001::rq_total::5\r\n\
                    unpicked::10.0.0.1:8001::rq_total::7\n";
        assert_eq!(requests(page, "picked"), [4.0, 5.0]);
        assert_eq!(requests(page, "unpicked"), [7.0]);
        assert!(requests(page, "pick").is_empty());
    }

    #[test]
    fn round_robin_has_all_engines() {
        let text = round_robin_config("127.0.0.1:1", "127.0.0.1:2", &["10.0.0.1:3", "[::1]:4"]);
        let config: Value = serde_json::from_str(&text).unwrap();
        let cluster = &config["static_resources"]["clusters"][0];
        let members = &cluster["load_assignment"]["endpoints"][0]["lb_endpoints"];
        let ports: Vec<_> = (0..2)
            .map(|i| &members[i]["endpoint"]["address"]["socket_address"]["port_value"])
            .collect();
        assert_eq!(ports, [&json!(3), &json!(4)]);
        let manager = "HttpConnectionManager\"";
        assert!(
            text.contains(manager) && !text.contains("network. "),
            "{text}"
        );
    }

    #[test]
    fn counters_are_of_the_time_between() {
        let counters = |queries: f64, unpicked| Counters {
            engines: vec![[queries, 1.0, 0.0], [2.0 * queries, queries, queries]],
            unpicked,
        };
        let found = counters(10.0, 3.0).since(&counters(4.0, 1.0));
        let expected = Counters {
            engines: vec![[6.0, 0.0, 0.0], [12.0, 6.0, 6.0]],
            unpicked: 2.0,
        };
        assert_eq!(found, expected);
    }
}
