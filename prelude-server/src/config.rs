//! Settings of the HTTP edge: addresses, limits, times.

use std::{net::IpAddr, time::Duration};

use prelude_text::decide::Calibration;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

pub use prelude_text::output::{ReasoningParser, ToolParser};

/// Configuration of the HTTP edge. Every public field that serde reads is a setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address to bind (default 127.0.0.1); in files a name is resolved. 0.0.0.0 lets other
    /// machines connect, without encryption.
    #[serde(deserialize_with = "crate::host::deserialize")]
    pub host: IpAddr,
    /// Port to bind (default 8000); 0 lets the system choose.
    pub port: u16,
    /// Threads that run connections (default one for every four cores, at least 1 and at most 8).
    /// The engine computes on threads of its own, so each further thread takes time from it and
    /// is woken for requests that another thread could have taken.
    pub worker_threads: usize,
    /// Long texts that are encoded at the same time (default 2). More shortens the wait for long
    /// prompts and takes cores from the engine.
    pub encode_threads: usize,
    /// Upper bound in microseconds of a step that the connection's own thread computes for a client
    /// that is alone (default 500; 0: none). That saves some tens of microseconds for waking the
    /// engine's thread; meanwhile the connection's thread serves no other. A client counts as alone
    /// from its 17th request over one connection, if no other request was in flight meanwhile. Only
    /// on this machine's processor.
    pub inline_step_us: u64,
    /// Upper bound of alternatives beside a token's log-probability (default 20); -1 allows the
    /// whole vocabulary, which makes answers large.
    pub max_logprobs: i64,
    /// True if `/metrics` needs a key when keys are configured (default false, so that a collector
    /// needs no secret).
    pub protect_metrics: bool,
    /// Status of a request that is refused for load: 429 (default), or 503 for gateways that fail
    /// over on 5xx only; clients of OpenAI's kind retry both.
    #[serde(deserialize_with = "overload_status")]
    pub overload_status: u16,
    /// Milliseconds after SIGTERM during which new work is still taken while health is red
    /// (default 5,000). Longer than a balancer's check, or it sends requests to a closed port.
    pub drain_delay_ms: u64,
    /// Milliseconds that running work then has to finish (default 60,000). Less ends long
    /// generations early, more makes a restart slower.
    pub drain_timeout_ms: u64,
    /// True if each request writes a line to stderr (default true).
    pub access_log: bool,
    /// True if the log has the first 256 characters of each request's first prompt (default
    /// false). Otherwise no line holds anything that a client wrote but its request's id.
    pub log_prompts: bool,
    /// True if requests without a `cache_salt` are refused (default false), so that no tenant can
    /// tell from an answer's time what another tenant asked. Prefixes are then shared within a
    /// salt only.
    pub require_cache_salt: bool,
    /// True if special tokens in what people wrote are encoded as plain text unless a request says
    /// otherwise with `escape_special_tokens` (default false: the reference takes them for control
    /// tokens).
    pub escape_special_tokens: bool,
    /// Names by which clients address this server beside `localhost` and IP addresses (default
    /// none), such as the name that a proxy on this machine passes on. Checked where the server has
    /// no keys and listens on this machine alone: any page could ask it by a name of its own
    /// otherwise.
    pub hosts: Vec<String>,
    /// Origins whose pages may ask from a browser, such as `https://a.example` (default none); `*`
    /// is any, and is refused together with keys.
    pub cors_origins: Vec<String>,
    /// Seed from which the seeds of requests that name none are made (default random). With a seed,
    /// the same requests in the same order draw the same tokens.
    pub seed: Option<u64>,
    /// The form in which the model writes its reasoning (default none, which leaves it in the
    /// content): `qwen3` moves the text between `<think>` and `</think>` to a field of its own.
    pub reasoning_parser: Option<ReasoningParser>,
    /// The form in which the model calls tools (default none, which leaves calls in the content):
    /// `hermes` makes `<tool_call>` blocks `tool_calls`. Calls that a request forces are always
    /// recognised.
    pub tool_parser: Option<ToolParser>,
    /// Requests that may wait for one of the `encode_threads`: 429. No setting, since a text waits
    /// with a row of its own, and `limits.queued_rows` bounds those.
    #[serde(skip)]
    pub encode_queue: usize,
    /// Bytes of text that are encoded, or of an answer that are written, without waiting for a
    /// thread. No setting: encoding as much takes less time than waking a thread.
    #[serde(skip)]
    pub encode_inline_bytes: usize,
    /// Limits on what clients may send: a table of its own in files.
    #[serde(skip)]
    pub limits: Limits,
    /// Typed decisions: a table of its own in files.
    #[serde(skip)]
    pub decide: DecideConfig,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: IpAddr::from([127, 0, 0, 1]),
            port: 8000,
            worker_threads: worker_threads(),
            encode_threads: 2,
            inline_step_us: 500,
            max_logprobs: 20,
            protect_metrics: false,
            overload_status: 429,
            drain_delay_ms: 5_000,
            drain_timeout_ms: 60_000,
            access_log: true,
            log_prompts: false,
            require_cache_salt: false,
            escape_special_tokens: false,
            hosts: Vec::new(),
            cors_origins: Vec::new(),
            seed: None,
            reasoning_parser: None,
            tool_parser: None,
            encode_queue: 256,
            encode_inline_bytes: 16 << 10,
            limits: Limits::default(),
            decide: DecideConfig::default(),
        }
    }
}

/// Settings of typed decisions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DecideConfig {
    /// Names by which System One's clients call the served model (default `jev-latest`).
    pub systemone_aliases: Vec<String>,
    /// Temperatures by type of question.
    pub calibration: Calibration,
    /// The fate of a state that a decision model's format cuts to its row (default `cut`).
    pub truncate: Truncate,
}

/// The fate of a state that does not fit the row of a decision model whose format cuts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Truncate {
    /// The model reads what fits, as its authors serve it; answers say so.
    #[default]
    Cut,
    /// 413 on `/v1/systemone`, 400 on `/v1/decisions`.
    Refuse,
}

impl Default for DecideConfig {
    fn default() -> Self {
        Self {
            systemone_aliases: vec!["jev-latest".to_owned()],
            calibration: Calibration::default(),
            truncate: Truncate::default(),
        }
    }
}

/// Levels of nesting in a body; deeper ones are answered with 400. The deepest body that an
/// endpoint takes, a JSON schema inside of a tool, stays far below.
pub(crate) const JSON_DEPTH_MAX: usize = 64;

/// Bounds on requests and connections. Each says which answer a request beyond it gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of one body (default 10 MiB): 413. A body is held in memory while its request waits.
    pub body_bytes: u64,
    /// Bytes of all bodies being read or parsed, and of the values that they become (832 for each, of
    /// which one request may have 262,144; default 512 MiB): 429. Bounds this process's memory for
    /// bodies.
    pub bodies_in_flight_bytes: u64,
    /// Bytes of all answers that are being made or that clients have not taken yet (default 512
    /// MiB): 429. Bounds this process's memory for answers. Long answers (vectors, a prompt's
    /// log-probabilities, echoed prompts) are counted before they are computed.
    pub answers_in_flight_bytes: u64,
    /// Milliseconds from a head's first byte to its last (default 10,000): 408, and the connection
    /// closes. More admits slower links, and keeps connections longer for clients that stall.
    pub header_read_ms: u64,
    /// Milliseconds for a whole body (default 60,000): 408, and the connection closes. More admits
    /// slower links, and holds memory longer for clients that stall.
    pub body_read_ms: u64,
    /// Milliseconds that an idle connection is kept (default 75,000). Longer than the idle time of
    /// a gateway in front, or the gateway may send a request into a closing connection.
    pub keep_alive_ms: u64,
    /// Milliseconds that a client may take nothing of an answer (default 60,000): its request is
    /// aborted. The HTTP/1.1 connection closes; of an HTTP/2 connection that is read, only the
    /// stream is reset.
    pub write_stall_ms: u64,
    /// Open connections (default 4,096): 503, and the connection closes. Each takes an open file.
    pub connections: usize,
    /// Rows of one request, and texts of one `/tokenize` (default 4,096): 400. More lets one
    /// request fill the queue for others.
    pub rows: u64,
    /// Numbers that one answer prints, of any endpoint (default 2,097,152): 400. A number in base64
    /// counts as a third. Log-probabilities of prompts count as two numbers each, positions x
    /// (likeliest tokens + 1) x `n` for each prompt, since each choice repeats its prompt's. Those
    /// of generated tokens do not count: each of them has to be computed. More makes larger answers
    /// possible, of which each takes memory and time to print.
    pub answer_numbers: u64,
    /// Bytes of a regular expression, schema or grammar, or of a choice's options (default 64 KiB):
    /// 400. Longer grammars take longer to compile.
    pub grammar_bytes: usize,
    /// Milliseconds that compiling a grammar may take (400), and that a request waits for other
    /// grammars to be compiled first (429); default 2,000. More admits larger schemas and lets one
    /// of them hold a core for longer.
    pub grammar_ms: u64,
    /// Bytes of compiled grammars kept for each model (default 128 MiB); the least recently used
    /// one is dropped. Less compiles returning grammars again.
    pub grammar_cache_bytes: usize,
    /// Rows of all requests waiting for their first result (default 16,384): 429. More takes longer
    /// bursts and makes the last in the queue wait longer.
    pub queued_rows: u64,
    /// Rows of waiting one-shot requests, of the `queued_rows` (default as many): 429
    /// `class_quota`. Fewer leave room that a flood of one class cannot take from the other.
    pub queued_oneshot_rows: Option<u64>,
    /// Rows of waiting generations, each of `n` continuations one, of the `queued_rows` (default as
    /// many): 429 `class_quota`.
    pub queued_decode_rows: Option<u64>,
    /// Prompt tokens of all requests waiting for their first result (default 4,194,304): 429.
    /// Divided by the device's tokens per second, it is the longest wait in the queue.
    pub queued_tokens: u64,
    /// Lowest `priority` that a request may name (default 0): 400. Lower numbers run first, so by
    /// default a client may let others go before it and never go before others. A key may say
    /// otherwise for its client: `KEY priority=-10` in the key file.
    pub best_priority: i64,
    /// Milliseconds of silence on a stream before a comment is sent (default 15,000). Shorter than
    /// the idle time of a gateway in front, or the gateway cuts slow streams.
    pub keep_alive_comment_ms: u64,

    // What follows are no settings: no server needs other values. Tests lower them.
    /// Bytes of the request target: 414.
    #[serde(skip)]
    pub uri_bytes: usize,
    /// Headers of one request: 431.
    #[serde(skip)]
    pub headers: usize,
    /// Bytes of all headers of one request: 431.
    #[serde(skip)]
    pub header_bytes: usize,
    /// Bytes per second that a body must keep up on average: 408, and the connection closes.
    #[serde(skip)]
    pub body_min_bytes_per_s: u64,
    /// Milliseconds before `body_min_bytes_per_s` applies.
    #[serde(skip)]
    pub body_min_rate_after_ms: u64,
    /// Bytes of a stream that the client has not taken: the request is aborted.
    #[serde(skip)]
    pub unread_bytes: usize,
    /// Requests at once on one HTTP/2 connection; the next one waits for its turn.
    #[serde(skip)]
    pub streams_per_connection: u32,
    /// Bytes of the text that `/detokenize` writes: 400.
    #[serde(skip)]
    pub detokenize_bytes: u64,
    /// Bytes of prompts (echoed text, and seven for each id) that one answer repeats: 400. Each of
    /// `n` choices repeats its prompt.
    #[serde(skip)]
    pub echo_bytes: u64,
    /// Milliseconds that a stream waits for its first event before it sends its headers.
    #[serde(skip)]
    pub first_event_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 10 << 20,
            bodies_in_flight_bytes: 512 << 20,
            answers_in_flight_bytes: 512 << 20,
            header_read_ms: 10_000,
            body_read_ms: 60_000,
            keep_alive_ms: 75_000,
            write_stall_ms: 60_000,
            connections: 4_096,
            rows: 4_096,
            answer_numbers: 2 << 20,
            grammar_bytes: 64 << 10,
            grammar_ms: 2_000,
            grammar_cache_bytes: 128 << 20,
            queued_rows: 16_384,
            queued_oneshot_rows: None,
            queued_decode_rows: None,
            queued_tokens: 4_194_304,
            best_priority: 0,
            keep_alive_comment_ms: 15_000,
            uri_bytes: 8 << 10,
            headers: 100,
            header_bytes: 32 << 10,
            body_min_bytes_per_s: 1 << 10,
            body_min_rate_after_ms: 5_000,
            unread_bytes: 1 << 20,
            streams_per_connection: 256,
            detokenize_bytes: 4 << 20,
            echo_bytes: 32 << 20,
            first_event_ms: 10_000,
        }
    }
}

/// Upper bound of settings in milliseconds: a year. Adding much more to a clock would overflow.
const MS_MAX: u64 = 365 * 24 * 3_600 * 1_000;
/// Upper bound of the sizes of buffers, in bytes.
const BYTES_MAX: u64 = 1 << 40;
/// Upper bound of the numbers of threads: a system may not have more.
const THREADS_MAX: u64 = 1_024;
/// Upper bound of open connections.
const CONNECTIONS_MAX: u64 = 1 << 30;

/// A setting that is too large for any machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, must be at most {max}")]
pub struct SettingError {
    /// The setting's table and name, such as `limits.connections`.
    pub field: &'static str,
    /// The value that was set.
    pub value: u64,
    /// The largest value that is taken.
    pub max: u64,
}

impl ServerConfig {
    /// Checks what would otherwise fail much later: times that no clock holds, more threads than a
    /// system has, buffers that no memory holds.
    ///
    /// # Errors
    /// The first setting that is too large.
    pub fn validate(&self) -> Result<(), SettingError> {
        let limits = &self.limits;
        let size = |size: usize| size as u64;
        let threads = [
            ("server.worker_threads", size(self.worker_threads)),
            ("server.encode_threads", size(self.encode_threads)),
        ];
        let times = [
            ("server.inline_step_us", self.inline_step_us),
            ("server.drain_delay_ms", self.drain_delay_ms),
            ("server.drain_timeout_ms", self.drain_timeout_ms),
            ("limits.header_read_ms", limits.header_read_ms),
            ("limits.body_read_ms", limits.body_read_ms),
            ("limits.keep_alive_ms", limits.keep_alive_ms),
            ("limits.write_stall_ms", limits.write_stall_ms),
            ("limits.grammar_ms", limits.grammar_ms),
            ("limits.keep_alive_comment_ms", limits.keep_alive_comment_ms),
        ];
        let sizes = [
            ("limits.body_bytes", limits.body_bytes),
            (
                "limits.bodies_in_flight_bytes",
                limits.bodies_in_flight_bytes,
            ),
        ];
        let connections = [("limits.connections", size(limits.connections))];
        at_most(&threads, THREADS_MAX)?;
        at_most(&times, MS_MAX)?;
        at_most(&sizes, BYTES_MAX)?;
        at_most(&connections, CONNECTIONS_MAX)
    }
}

/// Returns the first of the settings that exceeds `max` as an error.
fn at_most(settings: &[(&'static str, u64)], max: u64) -> Result<(), SettingError> {
    match settings.iter().find(|(_, value)| *value > max) {
        Some(&(field, value)) => Err(SettingError { field, value, max }),
        None => Ok(()),
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Returns the default number of threads that run connections. On two cores, one connection: 8.1 context switches and 10.6
/// futex calls per `/classify` with one thread, 12.4 and 18.2 with two.
fn worker_threads() -> usize {
    (cores() / 4).clamp(1, 8)
}

fn overload_status<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    match u16::deserialize(deserializer)? {
        status @ (429 | 503) => Ok(status),
        status => Err(D::Error::custom(format_args!(
            "overload_status is {status}, must be 429 or 503"
        ))),
    }
}

/// Returns milliseconds as a duration.
pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_table_and_refuses_unknown_fields() {
        let config: ServerConfig = serde_json::from_str(r#"{"port":0}"#).unwrap();
        assert_eq!((config.port, config.encode_threads), (0, 2));
        let limits: Limits = serde_json::from_str(r#"{"rows":3}"#).unwrap();
        assert_eq!((limits.rows, limits.headers), (3, 100));
        assert!(serde_json::from_str::<Limits>(r#"{"headers":3}"#).is_err());
        assert!(serde_json::from_str::<ServerConfig>(r#"{"prot":1}"#).is_err());
    }

    #[test]
    fn settings_that_no_server_can_run_with_are_named() {
        assert_eq!(ServerConfig::default().validate(), Ok(()));
        let check = |table: &str, field: &'static str| {
            let text = format!(
                r#"{{"{}":18446744073709551615}}"#,
                &field[table.len() + 1..]
            );
            let mut config = ServerConfig::default();
            match table {
                "limits" => config.limits = serde_json::from_str(&text).unwrap(),
                _ => config = serde_json::from_str(&text).unwrap(),
            }
            assert_eq!(config.validate().map_err(|e| e.field), Err(field));
        };
        check("server", "server.worker_threads");
        check("server", "server.drain_delay_ms");
        check("limits", "limits.body_bytes");
        check("limits", "limits.write_stall_ms");
        check("limits", "limits.connections");
    }

    #[test]
    fn overload_is_429_or_503() {
        let check = |status: u16, is_ok: bool| {
            let text = format!(r#"{{"overload_status":{status}}}"#);
            let found = serde_json::from_str::<ServerConfig>(&text);
            assert_eq!(found.is_ok(), is_ok, "{status}: {found:?}");
        };
        check(429, true);
        check(503, true);
        check(200, false);
        check(99, false);
    }
}
