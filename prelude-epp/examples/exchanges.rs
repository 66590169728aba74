//! Measures the picker alone over gRPC: exchanges a second on one core, and the time of a pick at a
//! given rate.
//!
//! ```sh
//! cargo run --profile dist -p prelude-epp --example exchanges -- [RATE] [BYTES]
//! ```
//!
//! The picker runs on a thread of its own. An exchange is what Envoy sends for a small POST: headers,
//! body, an empty end, the response's headers, body and end, six messages and five answers. Exchanges
//! a second on one core are exchanges divided by the seconds that the picker's thread has computed:
//! the other core makes the load. The time of a pick is from sending the body's end to the answer
//! that names the endpoint; late sending counts, so that a picker that stalls is not measured less.

#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::{
    net::SocketAddr,
    sync::{Arc, mpsc as std_mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use prelude_epp::{
    Config, Picker,
    proto::{
        BodyMode, HeaderMap, HeaderValue, HttpBody, HttpHeaders, ProcessingRequest,
        ProcessingResponse, ProtocolConfiguration, RequestPart, ResponsePart,
    },
    server::{Limits, ProstCodec, serve},
};
use rustix::time::{ClockId, clock_gettime};
use tokio::{net::TcpListener, runtime::Builder, sync::mpsc};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::{
    client::Grpc,
    transport::{Channel, Endpoint},
};

/// Connections, as of as many threads of Envoy.
const CONNECTIONS: usize = 4;
/// Exchanges of a connection at once when the rate is not given.
const AT_ONCE: usize = 16;
/// Engines.
const ENGINES: u8 = 16;
/// Time that each part is measured for, after a second of warming up.
const SECONDS: u64 = 8;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: usize| match args.next() {
        Some(text) => text
            .parse()
            .with_context(|| format!("`{text}` is no number")),
        None => Ok(default),
    };
    let (rate, bytes) = (number(2_000)?, number(600)?);
    let (send, address) = std_mpsc::channel();
    thread::Builder::new()
        .name("picker".to_owned())
        .spawn(move || serve_picker(&send))?;
    let (address, computed) = address.recv().context("the picker has not started")??;
    let client = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    client.block_on(measure(address, &computed, rate, bytes))
}

/// The time that the picker's thread has computed, asked for over a channel.
type Computed = mpsc::Sender<tokio::sync::oneshot::Sender<Duration>>;
type Started = Result<(SocketAddr, Computed)>;

/// Serves on this thread.
fn serve_picker(started: &std_mpsc::Sender<Started>) {
    let run = || -> Result<()> {
        let config = Config {
            probes: false,
            ..Config::default()
        };
        let picker = Arc::new(Picker::new(config, None)?);
        let engines = (1..=ENGINES).map(|n| (SocketAddr::from(([10, 0, 0, n], 8000)), None));
        picker.replace(0, engines)?;
        picker.set_known();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let (ask, mut asked) = mpsc::channel::<tokio::sync::oneshot::Sender<Duration>>(1);
            let _ = started.send(Ok((listener.local_addr()?, ask)));
            tokio::spawn(async move {
                while let Some(answer) = asked.recv().await {
                    let time = clock_gettime(ClockId::ThreadCPUTime);
                    let time = Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
                    let _ = answer.send(time);
                }
            });
            serve(picker, listener, Limits::default(), std::future::pending()).await;
            Ok(())
        })
    };
    if let Err(error) = run() {
        let _ = started.send(Err(error));
    }
}

async fn computed(ask: &Computed) -> Result<Duration> {
    let (send, time) = tokio::sync::oneshot::channel();
    ask.send(send).await?;
    Ok(time.await?)
}

async fn measure(address: SocketAddr, ask: &Computed, rate: usize, bytes: usize) -> Result<()> {
    let mut channels = Vec::new();
    for _ in 0..CONNECTIONS {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
        channels.push(endpoint.connect().await?);
    }
    println!("bodies of {bytes} bytes, {ENGINES} engines, {CONNECTIONS} connections");
    let all = at_once(&channels, bytes, Duration::from_secs(1)).await?;
    anyhow::ensure!(all > 0, "no exchange has ended");
    let (began, before) = (Instant::now(), computed(ask).await?);
    let exchanges = at_once(&channels, bytes, Duration::from_secs(SECONDS)).await?;
    let (wall, core) = (began.elapsed(), computed(ask).await? - before);
    let per_second = |time: Duration| exchanges as f64 / time.as_secs_f64();
    println!(
        "{:.0} exchanges/s on one core ({:.1} µs of the picker's thread each); {:.0}/s as driven, the \
         thread busy {:.0} %",
        per_second(core),
        core.as_secs_f64() * 1e6 / exchanges as f64,
        per_second(wall),
        core.as_secs_f64() * 100.0 / wall.as_secs_f64(),
    );
    let before = computed(ask).await?;
    let times = at_rate(&channels, bytes, rate, Duration::from_secs(SECONDS)).await?;
    let core = computed(ask).await? - before;
    let us = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    println!(
        "at {rate}/s: a pick takes {:.0} µs (median), {:.0} µs (P99), {:.0} µs (P99.9), {:.0} µs at \
         most; {} picks, the thread busy {:.0} %",
        us(0.5),
        us(0.99),
        us(0.999),
        us(1.0),
        times.len(),
        core.as_secs_f64() * 100.0 / SECONDS as f64,
    );
    Ok(())
}

/// Runs exchanges one after the other on many tasks, and returns how many ended.
async fn at_once(channels: &[Channel], bytes: usize, time: Duration) -> Result<usize> {
    let mut tasks = tokio::task::JoinSet::new();
    let end = Instant::now() + time;
    for (n, channel) in channels.iter().enumerate() {
        for task in 0..AT_ONCE {
            let channel = channel.clone();
            tasks.spawn(async move {
                let mut count = 0;
                while Instant::now() < end {
                    exchange(&channel, (n * AT_ONCE + task) * 1_000_003 + count, bytes).await?;
                    count += 1;
                }
                anyhow::Ok(count)
            });
        }
    }
    let mut all = 0;
    while let Some(count) = tasks.join_next().await {
        all += count??;
    }
    Ok(all)
}

/// Begins exchanges at even times, and returns the nanoseconds of their picks.
async fn at_rate(
    channels: &[Channel],
    bytes: usize,
    rate: usize,
    time: Duration,
) -> Result<Histogram<u64>> {
    let (send, mut done) = mpsc::unbounded_channel();
    let began = Instant::now();
    let count = (rate as f64 * time.as_secs_f64()) as usize;
    for n in 0..count {
        let due = began + Duration::from_secs_f64(n as f64 / rate as f64);
        // The timer's ticks are of a millisecond: those that are due within one go together.
        if let Some(wait) = due.checked_duration_since(Instant::now()) {
            tokio::time::sleep(wait).await;
        }
        let (channel, send) = (channels[n % channels.len()].clone(), send.clone());
        tokio::spawn(async move {
            let _ = send.send(exchange(&channel, n, bytes).await);
        });
    }
    drop(send);
    let mut times = Histogram::new(3)?;
    while let Some(time) = done.recv().await {
        times.record(time?.as_nanos() as u64)?;
    }
    Ok(times)
}

fn headers(list: &[(&'static str, &'static str)]) -> HttpHeaders {
    let headers = list
        .iter()
        .map(|(name, value)| HeaderValue::new(name, *value));
    HttpHeaders {
        headers: Some(HeaderMap {
            headers: headers.collect(),
        }),
        end_of_stream: false,
    }
}

fn message(part: RequestPart) -> ProcessingRequest {
    ProcessingRequest {
        request: Some(part),
        ..ProcessingRequest::default()
    }
}

/// Returns the body of a decision about one of 500 states.
fn body(n: usize, bytes: usize) -> String {
    let state = n.wrapping_mul(0x9e37_79b9) % 500;
    let state = format!("{state} {}", "where is my card? ".repeat(bytes / 18));
    serde_json::json!({"model": "m", "state": state, "questions": {n.to_string(): {}}}).to_string()
}

/// Runs an exchange, and returns the time of its pick.
async fn exchange(channel: &Channel, n: usize, bytes: usize) -> Result<Duration> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await?;
    let (send, messages) = mpsc::channel(8);
    let first = ProcessingRequest {
        protocol_config: Some(ProtocolConfiguration {
            request_body_mode: BodyMode::FullDuplexStreamed.into(),
            response_body_mode: BodyMode::FullDuplexStreamed.into(),
        }),
        ..message(RequestPart::RequestHeaders(headers(&[
            (":method", "POST"),
            (":path", "/v1/systemone"),
            (":authority", "engines.example"),
            (":scheme", "http"),
            ("content-type", "application/json"),
            ("user-agent", "exchanges"),
            ("accept", "*/*"),
            ("x-request-id", "7f0c2c40-3d3c-4dd3-9d1c-1b8e5d6a7f10"),
        ])))
    };
    let body = body(n, bytes);
    let piece = |body: String, end_of_stream| HttpBody {
        body: body.into(),
        end_of_stream,
    };
    send.send(first).await?;
    send.send(message(RequestPart::RequestBody(piece(body, false))))
        .await?;
    let began = Instant::now();
    send.send(message(RequestPart::RequestBody(piece(
        String::new(),
        true,
    ))))
    .await?;
    let path = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
    let path = http::uri::PathAndQuery::from_static(path);
    let codec = ProstCodec::<ProcessingRequest, ProcessingResponse>::default();
    let messages = tonic::Request::new(ReceiverStream::new(messages));
    let mut answers = grpc.streaming(messages, path, codec).await?.into_inner();
    let answer = answers.next().await.context("no answer")??;
    let took = began.elapsed();
    let picked = matches!(answer.response, Some(ResponsePart::RequestHeaders(_)));
    anyhow::ensure!(picked && answer.dynamic_metadata.is_some(), "{answer:?}");
    answers
        .next()
        .await
        .context("the body has not come back")??;
    let response = headers(&[(":status", "200"), ("content-type", "application/json")]);
    send.send(message(RequestPart::ResponseHeaders(response)))
        .await?;
    let said = piece("x".repeat(300), false);
    send.send(message(RequestPart::ResponseBody(said))).await?;
    send.send(message(RequestPart::ResponseBody(piece(
        String::new(),
        true,
    ))))
    .await?;
    for _ in 0..3 {
        answers.next().await.context("an answer is missing")??;
    }
    Ok(took)
}
