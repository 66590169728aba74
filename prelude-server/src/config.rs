//! What the HTTP edge may be told: addresses, limits, times.

use std::{net::IpAddr, time::Duration};

use prelude_text::decide::Calibration;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

pub use prelude_text::output::{ReasoningParser, ToolParser};

/// Configuration of the HTTP edge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerConfig {
    /// Address to bind; in files a name is resolved.
    #[serde(deserialize_with = "crate::host::deserialize")]
    pub host: IpAddr,
    /// Port to bind; 0 lets the system choose.
    pub port: u16,
    /// Threads that run connections, by default one for every four cores and at least one. The
    /// engine computes on threads of its own, so more only take time from it; and where there are
    /// several, each request wakes those that have nothing to do.
    pub worker_threads: usize,
    /// Texts encoded at the same time when they are too long to encode in passing.
    pub encode_threads: usize,
    /// Requests that may wait for one of the `encode_threads`; the next is refused (429).
    pub encode_queue: usize,
    /// Texts of at most this many bytes are encoded, and answers of about as many written, in
    /// passing, without waiting for a thread.
    pub encode_inline_bytes: usize,
    /// Upper bound in microseconds of a step that the connection's own thread computes for a client
    /// that is alone (default 500; 0: none). That saves some tens of microseconds for waking the
    /// engine's thread; meanwhile the connection's thread serves no other. A client counts as alone
    /// from its 17th request over one connection, if no other request was in flight meanwhile. Only
    /// on this machine's processor.
    pub inline_step_us: u64,
    /// Most alternatives beside a token's log-probability; -1 allows the whole vocabulary.
    pub max_logprobs: i64,
    /// Whether `/metrics` needs a key when keys are configured.
    pub protect_metrics: bool,
    /// Status of a shed request. 429 by default; 503 for gateways that fail over on 5xx only.
    #[serde(deserialize_with = "overload_status")]
    pub overload_status: u16,
    /// Milliseconds after SIGTERM during which new work is still taken while health is red.
    pub drain_delay_ms: u64,
    /// Milliseconds that running work then has to finish.
    pub drain_timeout_ms: u64,
    /// One line per request on stderr.
    pub access_log: bool,
    /// Whether the log has the first 256 characters of each request's first prompt. Off, no line
    /// holds anything that a client wrote but its request's id.
    pub log_prompts: bool,
    /// Whether requests without a `cache_salt` are refused, so that no tenant can tell from an
    /// answer's time what another one asked.
    pub require_cache_salt: bool,
    /// Whether a request may bring a chat template of its own (`chat_template`). A template is a
    /// program: its steps and its output are bounded, what it holds in between is not. For clients
    /// that may be trusted with the memory of this process.
    pub trust_request_template: bool,
    /// Whether special tokens in what people wrote are encoded as plain text unless a request says
    /// otherwise (`escape_special_tokens`). The reference takes them for control tokens.
    pub escape_special_tokens: bool,
    /// Origins whose pages may ask from a browser, such as `https://a.example`; `*` is any, and
    /// goes with no keys. Empty: none.
    pub cors_origins: Vec<String>,
    /// Seed from which the seeds of requests that name none are made; a random one if absent.
    pub seed: Option<u64>,
    /// How the model writes its reasoning: `qwen3` puts what lies between `<think>` and
    /// `</think>` into a field of its own; absent, it stays in the content.
    pub reasoning_parser: Option<ReasoningParser>,
    /// How the model calls tools: `hermes` makes `<tool_call>` blocks `tool_calls`; absent, they
    /// stay in the content. Calls that a request forces are told in any case.
    pub tool_parser: Option<ToolParser>,
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
            encode_queue: 256,
            encode_inline_bytes: 16 << 10,
            inline_step_us: 500,
            max_logprobs: 20,
            protect_metrics: false,
            overload_status: 429,
            drain_delay_ms: 5_000,
            drain_timeout_ms: 60_000,
            access_log: true,
            log_prompts: false,
            require_cache_salt: false,
            trust_request_template: false,
            escape_special_tokens: false,
            cors_origins: Vec::new(),
            seed: None,
            reasoning_parser: None,
            tool_parser: None,
            limits: Limits::default(),
            decide: DecideConfig::default(),
        }
    }
}

/// How typed decisions are made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DecideConfig {
    /// Names by which System One's clients call whatever model is served.
    pub systemone_aliases: Vec<String>,
    /// Temperatures by type of question.
    pub calibration: Calibration,
}

impl Default for DecideConfig {
    fn default() -> Self {
        Self {
            systemone_aliases: vec!["jev-latest".to_owned()],
            calibration: Calibration::default(),
        }
    }
}

/// Bounds on requests and connections. Each says what happens beyond it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of one body: 413.
    pub body_bytes: u64,
    /// Bytes of all bodies being read or parsed: 429.
    pub bodies_in_flight_bytes: u64,
    /// Bytes of all answers that are being made or that clients have not taken yet: 429. Long ones
    /// (vectors, a prompt's log-probabilities, what is echoed) are counted before they are computed.
    pub answers_in_flight_bytes: u64,
    /// Levels of nesting in a body: 400.
    pub json_depth: usize,
    /// Bytes of the request target: 414.
    pub uri_bytes: usize,
    /// Headers of one request: 431.
    pub headers: usize,
    /// Bytes of all headers of one request: 431.
    pub header_bytes: usize,
    /// Milliseconds from a head's first byte to its last: 408, and the connection closes.
    pub header_read_ms: u64,
    /// Milliseconds for a whole body: 408, and the connection closes.
    pub body_read_ms: u64,
    /// Bytes per second that a body must keep up on average: 408, and the connection closes.
    pub body_min_bytes_per_s: u64,
    /// Milliseconds before `body_min_bytes_per_s` applies.
    pub body_min_rate_after_ms: u64,
    /// Milliseconds an idle connection is kept.
    pub keep_alive_ms: u64,
    /// Milliseconds that a client may take nothing of an answer: its request is aborted. The
    /// HTTP/1.1 connection closes; of an HTTP/2 connection that is read, only the stream is reset.
    pub write_stall_ms: u64,
    /// Bytes of a stream that the client has not taken: the request is aborted in the same way.
    pub unread_bytes: usize,
    /// Open connections: 503, and the connection closes.
    pub connections: usize,
    /// Requests at once on one HTTP/2 connection; a client waits for a free one.
    pub streams_per_connection: u32,
    /// Rows of one request, and texts of one `/tokenize`: 400.
    pub rows: u64,
    /// Bytes of the text that `/detokenize` writes: 400.
    pub detokenize_bytes: u64,
    /// Numbers that one answer prints, of any endpoint: 400. A number in base64 counts as a third.
    /// Log-probabilities of prompts count as two numbers each, positions x (likeliest tokens + 1)
    /// x `n` for each prompt, since each choice repeats its prompt's. Those of generated tokens do
    /// not count: each of them has to be computed.
    pub answer_numbers: u64,
    /// Bytes of prompts (echoed text, and seven for each id) that one answer repeats: 400. Each of
    /// `n` choices repeats its prompt.
    pub echo_bytes: u64,
    /// Bytes of a chat template that a request brings: 400.
    pub template_bytes: usize,
    /// Bytes of what such a template prints: 400.
    pub rendered_bytes: usize,
    /// Bytes of a regular expression, schema or grammar, or of a choice's options: 400.
    pub grammar_bytes: usize,
    /// Milliseconds that compiling one may take (400), and that a request waits for others to be
    /// compiled first (429).
    pub grammar_ms: u64,
    /// Bytes of compiled grammars kept for each model; the least recently used goes.
    pub grammar_cache_bytes: usize,
    /// Bytes of parser tables that the constrained continuations of a model may hold together:
    /// each of `scheduler.max_num_seqs` has its share. A grammar that needs more is refused (400),
    /// a choice that comes to need more ends with `abort`.
    pub grammar_state_bytes: usize,
    /// Rows of all requests waiting for their first result: 429.
    pub queued_rows: u64,
    /// Of these, rows of one-shot requests: 429 `class_quota`. As many as there are, if absent;
    /// fewer leave room that a flood of one class cannot take from the other.
    pub queued_oneshot_rows: Option<u64>,
    /// Of these, rows of generations, each of `n` continuations one: 429 `class_quota`.
    pub queued_decode_rows: Option<u64>,
    /// Prompt tokens of all requests waiting for their first result: 429.
    pub queued_tokens: u64,
    /// Milliseconds a stream waits for its first event before it sends its headers.
    pub first_event_ms: u64,
    /// Milliseconds of silence on a stream before a comment is sent.
    pub keep_alive_comment_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 10 << 20,
            bodies_in_flight_bytes: 512 << 20,
            answers_in_flight_bytes: 512 << 20,
            json_depth: 64,
            uri_bytes: 8 << 10,
            headers: 100,
            header_bytes: 32 << 10,
            header_read_ms: 10_000,
            body_read_ms: 60_000,
            body_min_bytes_per_s: 1 << 10,
            body_min_rate_after_ms: 5_000,
            keep_alive_ms: 75_000,
            write_stall_ms: 60_000,
            unread_bytes: 1 << 20,
            connections: 4_096,
            streams_per_connection: 256,
            rows: 4_096,
            detokenize_bytes: 4 << 20,
            answer_numbers: 2 << 20,
            echo_bytes: 32 << 20,
            template_bytes: 64 << 10,
            rendered_bytes: 16 << 20,
            grammar_bytes: 64 << 10,
            grammar_ms: 2_000,
            grammar_cache_bytes: 128 << 20,
            grammar_state_bytes: 1 << 30,
            queued_rows: 16_384,
            queued_oneshot_rows: None,
            queued_decode_rows: None,
            queued_tokens: 4_194_304,
            first_event_ms: 10_000,
            keep_alive_comment_ms: 15_000,
        }
    }
}

/// The longest time that a setting may say, in milliseconds: a year. Beyond what clocks hold, an
/// addition to one would fail.
const MS_MAX: u64 = 365 * 24 * 3_600 * 1_000;
/// The largest size of anything that is held as a whole, in bytes.
const BYTES_MAX: u64 = 1 << 40;
/// More threads than that help nobody, and a system may not have them.
const THREADS_MAX: u64 = 1_024;
/// As many as the map of headers holds.
const HEADERS_MAX: u64 = 32_768;

/// A setting that no server can run with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, must be at most {max}")]
pub struct SettingError {
    /// Its table and name: `limits.headers`.
    pub field: &'static str,
    /// What was set.
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
        let checks = [
            (
                "server.worker_threads",
                size(self.worker_threads),
                THREADS_MAX,
            ),
            (
                "server.encode_threads",
                size(self.encode_threads),
                THREADS_MAX,
            ),
            ("server.inline_step_us", self.inline_step_us, MS_MAX),
            ("server.drain_delay_ms", self.drain_delay_ms, MS_MAX),
            ("server.drain_timeout_ms", self.drain_timeout_ms, MS_MAX),
            ("limits.body_bytes", limits.body_bytes, BYTES_MAX),
            (
                "limits.bodies_in_flight_bytes",
                limits.bodies_in_flight_bytes,
                BYTES_MAX,
            ),
            ("limits.uri_bytes", size(limits.uri_bytes), BYTES_MAX),
            ("limits.headers", size(limits.headers), HEADERS_MAX),
            ("limits.header_bytes", size(limits.header_bytes), BYTES_MAX),
            ("limits.header_read_ms", limits.header_read_ms, MS_MAX),
            ("limits.body_read_ms", limits.body_read_ms, MS_MAX),
            (
                "limits.body_min_rate_after_ms",
                limits.body_min_rate_after_ms,
                MS_MAX,
            ),
            ("limits.keep_alive_ms", limits.keep_alive_ms, MS_MAX),
            ("limits.write_stall_ms", limits.write_stall_ms, MS_MAX),
            ("limits.unread_bytes", size(limits.unread_bytes), BYTES_MAX),
            ("limits.connections", size(limits.connections), 1 << 30),
            ("limits.grammar_ms", limits.grammar_ms, MS_MAX),
            ("limits.first_event_ms", limits.first_event_ms, MS_MAX),
            (
                "limits.keep_alive_comment_ms",
                limits.keep_alive_comment_ms,
                MS_MAX,
            ),
        ];
        match checks.into_iter().find(|(_, value, max)| value > max) {
            Some((field, value, max)) => Err(SettingError { field, value, max }),
            None => Ok(()),
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// One thread for every four cores. On two cores, one connection: 8.1 context switches and 10.6
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

/// Milliseconds as a duration.
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
        assert_eq!((limits.rows, limits.json_depth), (3, 64));
        assert!(serde_json::from_str::<ServerConfig>(r#"{"prot":1}"#).is_err());
    }

    #[test]
    fn what_no_server_can_run_with_is_named() {
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
        check("limits", "limits.headers");
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
