//! The command line.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use prelude_epp::endpoints::{DnsName, EndpointLine};

const EXAMPLES: &str = "\
Examples:
  prelude-epp --endpoint 10.0.0.1:8000 --endpoint 10.0.0.2:8000
  prelude-epp --endpoints-file engines.txt        a HOST:PORT on each line, read again when it changes
  prelude-epp --dns engines.default.svc:8000      all addresses of a name, resolved every 5 s
  prelude-epp envoy-config --endpoint 10.0.0.1:8000 > envoy.yaml && envoy -c envoy.yaml

The flow: client -> Envoy -> (gRPC) prelude-epp picks -> Envoy -> the engine picked.
Requests whose prompts begin alike go to the engine that has the beginning in its cache, as long as
that engine has not too much to do. The server that answers needs no change.

Client headers that are read:
  x-gateway-inference-objective     named by --sheddable: may get 429 when all engines are busy
  x-gateway-inference-fairness-id   the user, for the policy user_sticky
  x-slo-ttft-ms, x-slo-tpot-ms      passed on (Prelude's server and the policy laps obey the first)

Health: gRPC health checks answer for the names `readiness`, `liveness`, the external processor's
service and the empty name.";

const ENVOY: &str = "\
Example:
  prelude-epp envoy-config --endpoint 10.0.0.1:8000 --endpoint 10.0.0.2:8000 > envoy.yaml
  envoy -c envoy.yaml

Clients then connect to --listen. Without a picker Envoy sends requests to the engines in turn.";

/// Pick engines for Envoy: an endpoint picker that understands decisions.
#[derive(Debug, Parser)]
#[command(
    name = "prelude-epp", version, after_help = EXAMPLES, max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print a configuration of Envoy that asks this picker.
    #[command(after_help = ENVOY)]
    EnvoyConfig(EnvoyArgs),
}

/// The sources of the engines' addresses.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct EndpointArgs {
    /// An engine, with the tokens that its KV cache holds if these differ from --kv-tokens.
    #[arg(long = "endpoint", value_name = "HOST:PORT[=TOKENS]")]
    pub(crate) endpoints: Vec<EndpointLine>,
    /// A file with an engine on each line: HOST:PORT[=TOKENS], or {"address": .., "kv_tokens": ..,
    /// "pool": ..}, where the pool is short or long: there the engine stays under the policy laps.
    ///
    /// It is read again when its time of change or its length is another. A file with a fault is
    /// logged, and the engines that it had before stay.
    #[arg(long, value_name = "FILE")]
    pub(crate) endpoints_file: Option<PathBuf>,
    /// A name all of whose addresses are engines.
    #[arg(long, value_name = "NAME:PORT")]
    pub(crate) dns: Vec<DnsName>,
    /// The path of an engine that answers 200 while it takes requests. Prelude has /health, which
    /// fails as soon as a server drains.
    #[arg(long, value_name = "PATH", default_value = "/health", value_parser = path)]
    pub(crate) health_path: String,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) engines: EndpointArgs,
    /// The address at which Envoy reaches the picker.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9002")]
    pub(crate) listen: SocketAddr,
    /// Threads that answer. One answers some tens of thousands of exchanges a second.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) threads: u16,
    /// Tokens that the KV cache of an engine holds: blocks times their size. By default the
    /// profile's, or 200000.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) kv_tokens: Option<u64>,
    /// Service times of the engines, as `prelude profile` measured them.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Make prefix keys of tokens with this tokenizer.json. By default keys are of bytes, which
    /// finds the same shared beginnings and takes less time.
    #[arg(long, value_name = "FILE")]
    pub(crate) tokenizer: Option<PathBuf>,
    /// The port at which each engine publishes its KV events, beside its address: what an engine
    /// drops, and that it was started anew, is then known and not guessed. Of Prelude's servers,
    /// the port of `kv_events.endpoint`.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) kv_events: Option<u16>,
    /// The port at which each engine replays them (`kv_events.replay_endpoint`). Without it, a lost
    /// message makes the picker forget what the engine has cached.
    #[arg(long, value_name = "PORT", requires = "kv_events", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) kv_events_replay: Option<u16>,
    /// Knobs of the router as TOML: policy, granule_tokens, shed_ms, fallbacks and others.
    #[arg(long, value_name = "FILE")]
    pub(crate) router_config: Option<PathBuf>,
    /// Milliseconds of work that every engine must have before requests that may be shed get 429.
    /// By default none does.
    #[arg(long, value_name = "MS")]
    pub(crate) shed_ms: Option<u64>,
    /// An objective whose requests may be shed. By default all may.
    #[arg(long, value_name = "OBJECTIVE")]
    pub(crate) sheddable: Vec<String>,
    /// Take all engines for healthy: probe none.
    #[arg(long)]
    pub(crate) no_probes: bool,
    /// Time between probes of an engine.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration)]
    pub(crate) probe_every: Duration,
    /// Time for a body to arrive; a later one is picked for by what has come.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) body_timeout: Duration,
    /// Bytes of the longest body; a longer one gets 413.
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    pub(crate) max_body_bytes: usize,
    /// Bytes of all bodies that wait for their end; beyond it, requests get 503.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 30)]
    pub(crate) max_buffered_bytes: usize,
    /// Time from failing health checks to the last new exchange, on SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration)]
    pub(crate) drain_delay: Duration,
    /// Time for exchanges under way after the last new one, on SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(crate) drain_timeout: Duration,
    /// Log each pick, each refusal and each late body.
    #[arg(long)]
    pub(crate) log_picks: bool,
}

#[derive(Debug, Args)]
pub(crate) struct EnvoyArgs {
    #[command(flatten)]
    pub(crate) engines: EndpointArgs,
    /// The address at which clients connect.
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:8080")]
    pub(crate) listen: SocketAddr,
    /// The address at which Envoy shows its state.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:9901")]
    pub(crate) admin: SocketAddr,
    /// The address at which the picker listens.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9002")]
    pub(crate) picker: DnsName,
    /// Hide the bodies of responses from the picker. Streams then survive the end of a picker and
    /// cost Envoy less; the picker counts a generation as ended after about the time it takes.
    #[arg(long)]
    pub(crate) hide_responses: bool,
}

/// Reads a path of HTTP.
fn path(text: &str) -> Result<String, String> {
    let is_fine = text.starts_with('/') && text.bytes().all(|b| b.is_ascii_graphic());
    match is_fine {
        true => Ok(text.to_owned()),
        false => Err("a path begins with `/` and has no blanks".to_owned()),
    }
}

/// Reads a time with its unit: `500ms`, `2s`, `1m`.
fn duration(text: &str) -> Result<Duration, String> {
    let at = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return Err("write a number and `ms`, `s` or `m`, as in 500ms".to_owned()),
    };
    let number: u32 = number
        .parse()
        .map_err(|_| "no whole number before the unit".to_owned())?;
    match u64::from(number) * ms {
        0 => Err("must be above 0".to_owned()),
        ms => Ok(Duration::from_millis(ms)),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn times_have_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "5", "s", "0s", "1h", "-1s", "99999999999s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
