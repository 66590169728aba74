//! Measures how many requests a second Envoy passes on with this picker, as a share of those with a
//! picker that answers without thinking.
//!
//! ```sh
//! cargo run --release -p prelude-epp --example through_envoy -- PATH_OF_ENVOY [BYTES]
//! ```
//!
//! Two Envoys with one worker thread each, two pickers, and engines that answer 300 bytes at once
//! run on this machine. Clients over 32 connections, each of which sends its next request when the
//! last is answered, load the two in turns. The picker that does not think names the first engine as
//! soon as it sees the headers, and gives every piece of a body back as it is.

#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::{
    convert::Infallible,
    env, fs,
    future::{Ready, pending, ready},
    net::SocketAddr,
    path::Path,
    pin::Pin,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Request, Response,
    client::conn::http1 as client,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prelude_epp::{
    Config, Picker,
    envoy::EnvoyConfig,
    exchange::{DESTINATION, NAMESPACE},
    proto::{
        AppendAction, BodyMutation, CommonAnswer, CommonResponse, HeaderMutation, HeaderValue,
        HeaderValueOption, HealthCheckRequest, HealthCheckResponse, HttpBody, Kind, Mutation,
        ProcessingRequest, ProcessingResponse, RequestPart, ResponsePart, ServingStatus,
        StreamedBodyResponse, Struct, TrailersAnswer,
    },
    server::{Limits, ProstCodec, serve},
};
use tokio::{
    net::{TcpListener, TcpStream},
    runtime::Builder,
    task::JoinSet,
    time::sleep,
};
use tokio_stream::{Stream, StreamExt as _};
use tonic::{
    Status, Streaming,
    server::{Grpc, StreamingService, UnaryService},
};

const ENGINES: usize = 4;
const CONNECTIONS: usize = 32;
/// Rounds of both pickers.
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_secs(3);
/// Time for Envoy to find picker and engines healthy.
const READY_WITHIN: Duration = Duration::from_secs(30);
const NAMES: [&str; 2] = ["this picker", "a picker that does not think"];

fn main() -> Result<()> {
    let mut args = env::args().skip(1);
    let usage = "name Envoy's program: through_envoy PATH_OF_ENVOY [BYTES]";
    let program = args.next().context(usage)?;
    let bytes = args.next().map_or(Ok(600), |text| text.parse());
    let bytes = bytes.context("BYTES is a number")?;
    let mut engines = Vec::new();
    for _ in 0..ENGINES {
        engines.push(in_thread(serve_engine)?);
    }
    let known = engines.clone();
    let thinks = in_thread(move |listener| think(listener, known))?;
    let first = engines[0];
    let does_not = in_thread(move |listener| answer_at_once(listener, first))?;
    let mut proxies = Vec::new();
    for picker in [thinks, does_not] {
        proxies.push(Proxy::start(Path::new(&program), picker, &engines)?);
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(&proxies, bytes))
}

/// Runs a server on a thread of its own, and returns its address.
fn in_thread<F>(serve: impl FnOnce(TcpListener) -> F + Send + 'static) -> Result<SocketAddr>
where
    F: Future<Output = Result<()>>,
{
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || {
        let served = runtime.block_on(async { serve(TcpListener::from_std(listener)?).await });
        if let Err(error) = served {
            println!("the server at {address} has failed: {error:#}");
        }
    });
    Ok(address)
}

async fn serve_engine(listener: TcpListener) -> Result<()> {
    let answer = |_: Request<hyper::body::Incoming>| {
        let body = Full::new(Bytes::from(vec![b'x'; 300]));
        ready(Ok::<_, Infallible>(Response::new(body)))
    };
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let connection = http1::Builder::new();
        let connection = connection.serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::spawn(connection);
    }
}

/// Serves the picker of this crate.
async fn think(listener: TcpListener, engines: Vec<SocketAddr>) -> Result<()> {
    let config = Config {
        probes: false,
        ..Config::default()
    };
    let picker = Arc::new(Picker::new(config, None)?);
    picker.replace(0, engines.into_iter().map(|engine| (engine, None)))?;
    picker.set_known();
    serve(picker, listener, Limits::default(), pending()).await;
    Ok(())
}

/// Serves a picker that always names the same engine.
async fn answer_at_once(listener: TcpListener, engine: SocketAddr) -> Result<()> {
    let answer = move |request: Request<hyper::body::Incoming>| async move {
        let is_health = request.uri().path() == "/grpc.health.v1.Health/Check";
        Ok::<_, Infallible>(match is_health {
            true => {
                Grpc::new(ProstCodec::default())
                    .unary(Healthy, request)
                    .await
            }
            false => {
                let mut grpc = Grpc::new(ProstCodec::default());
                grpc.streaming(AtOnce(engine), request).await
            }
        })
    };
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let connection = http2::Builder::new(TokioExecutor::new());
        let connection = connection.serve_connection(TokioIo::new(stream), service_fn(answer));
        tokio::spawn(connection);
    }
}

struct Healthy;

impl UnaryService<HealthCheckRequest> for Healthy {
    type Response = HealthCheckResponse;
    type Future = Ready<Result<tonic::Response<HealthCheckResponse>, Status>>;

    fn call(&mut self, _: tonic::Request<HealthCheckRequest>) -> Self::Future {
        let status = ServingStatus::Serving.into();
        ready(Ok(tonic::Response::new(HealthCheckResponse { status })))
    }
}

struct AtOnce(SocketAddr);

impl StreamingService<ProcessingRequest> for AtOnce {
    type Response = ProcessingResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = Result<ProcessingResponse, Status>> + Send>>;
    type Future = Ready<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<ProcessingRequest>>) -> Self::Future {
        let engine = self.0.to_string();
        let answers = { request.into_inner() }.map(move |message| Ok(answer(message?, &engine)));
        ready(Ok(tonic::Response::new(Box::pin(answers))))
    }
}

fn answer(message: ProcessingRequest, engine: &str) -> ProcessingResponse {
    let common = |response| CommonAnswer {
        response: Some(response),
    };
    let back = |piece: HttpBody| {
        common(CommonResponse {
            body_mutation: Some(BodyMutation {
                mutation: Some(Mutation::Streamed(StreamedBodyResponse {
                    body: piece.body,
                    end_of_stream: piece.end_of_stream,
                })),
            }),
            ..CommonResponse::default()
        })
    };
    let mut dynamic_metadata = None;
    let response = message.request.map(|part| match part {
        RequestPart::RequestHeaders(_) => {
            let fields = Struct::of(DESTINATION, Kind::String(engine.to_owned()));
            dynamic_metadata = Some(Struct::of(NAMESPACE, Kind::Struct(fields)));
            ResponsePart::RequestHeaders(common(CommonResponse {
                header_mutation: Some(HeaderMutation {
                    set_headers: vec![HeaderValueOption {
                        header: Some(HeaderValue::new(DESTINATION, engine.to_owned())),
                        append_action: AppendAction::OverwriteIfExistsOrAdd.into(),
                    }],
                    remove_headers: Vec::new(),
                }),
                clear_route_cache: true,
                body_mutation: None,
            }))
        }
        RequestPart::RequestBody(piece) => ResponsePart::RequestBody(back(piece)),
        RequestPart::RequestTrailers(_) => ResponsePart::RequestTrailers(TrailersAnswer {}),
        RequestPart::ResponseHeaders(_) => {
            ResponsePart::ResponseHeaders(common(CommonResponse::default()))
        }
        RequestPart::ResponseBody(piece) => ResponsePart::ResponseBody(back(piece)),
        RequestPart::ResponseTrailers(_) => ResponsePart::ResponseTrailers(TrailersAnswer {}),
    });
    ProcessingResponse {
        response,
        dynamic_metadata,
    }
}

/// An Envoy, which is killed when this is dropped.
struct Proxy {
    process: Child,
    clients: SocketAddr,
    admin: SocketAddr,
    file: std::path::PathBuf,
}

impl Proxy {
    fn start(program: &Path, picker: SocketAddr, engines: &[SocketAddr]) -> Result<Self> {
        let free = || std::net::TcpListener::bind("127.0.0.1:0")?.local_addr();
        let (clients, admin) = (free()?, free()?);
        let endpoints = { engines.iter() }.map(|engine| engine.to_string().parse());
        let config = EnvoyConfig {
            listen: clients.to_string(),
            admin: admin.to_string(),
            picker: picker.to_string(),
            endpoints: endpoints.collect::<Result<_, _>>()?,
            dns: Vec::new(),
            health_path: "/health".to_owned(),
            sees_responses: true,
        };
        let file = format!(
            "through-envoy-{}-{}.yaml",
            std::process::id(),
            clients.port()
        );
        let file = env::temp_dir().join(file);
        fs::write(&file, config.to_yaml())?;
        let process = Command::new(program)
            .arg("-c")
            .arg(&file)
            .args(["--concurrency", "1", "--disable-hot-restart"])
            .args(["--log-level", "off"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self {
            process,
            clients,
            admin,
            file,
        })
    }

    /// Returns the requests that went on with a pick and without one.
    async fn counts(&self) -> Result<[u64; 2]> {
        let path = "/stats?filter=picked.upstream_rq_total";
        let request = Request::get(path).header("host", "admin");
        let mut sender = connect(self.admin).await?;
        let answer = sender.send_request(request.body(Full::default())?).await?;
        let text = answer.into_body().collect().await?.to_bytes();
        let text = String::from_utf8(text.to_vec())?;
        let count = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map_or(Ok(0), str::parse)
        };
        let picked = count("cluster.picked.upstream_rq_total: ")?;
        Ok([picked, count("cluster.unpicked.upstream_rq_total: ")?])
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_file(&self.file);
    }
}

async fn connect(address: SocketAddr) -> Result<client::SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = client::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn measure(proxies: &[Proxy], bytes: usize) -> Result<()> {
    for proxy in proxies {
        ready_to_pick(proxy, bytes).await?;
    }
    let mut rates = [const { Vec::new() }; 2];
    for round in 0..ROUNDS {
        // The order changes from round to round.
        for at in [round % 2, 1 - round % 2] {
            let [picked, unpicked] = proxies[at].counts().await?;
            let count = load(proxies[at].clients, bytes).await?;
            let after = proxies[at].counts().await?;
            ensure!(
                after[1] == unpicked && after[0] - picked >= count,
                "{} requests of {count} went on without a pick of {}",
                after[1] - unpicked,
                NAMES[at]
            );
            rates[at].push(count as f64 / ROUND.as_secs_f64());
        }
    }
    let mut ratios: Vec<f64> = { rates[0].iter().zip(&rates[1]) }
        .map(|(a, b)| a / b)
        .collect();
    for figures in rates.iter_mut().chain([&mut ratios]) {
        figures.sort_by(f64::total_cmp);
    }
    println!("{CONNECTIONS} connections, bodies of {bytes} bytes, {ROUNDS} rounds:");
    let middle = ROUNDS / 2;
    for (name, rates) in NAMES.iter().zip(&rates) {
        println!("{name}: {:.0} requests/s", rates[middle]);
    }
    let (low, high) = (ratios[0], ratios[ROUNDS - 1]);
    println!("ratio {:.2} [{low:.2} .. {high:.2}]", ratios[middle]);
    Ok(())
}

/// Waits until Envoy passes a request on with a pick.
async fn ready_to_pick(proxy: &Proxy, bytes: usize) -> Result<()> {
    let began = Instant::now();
    loop {
        if let Ok(mut sender) = connect(proxy.clients).await {
            // What fails now is asked for again.
            let _ = ask(&mut sender, 0, bytes).await;
        }
        if proxy.counts().await.is_ok_and(|[picked, _]| picked > 0) {
            return Ok(());
        }
        let waited = began.elapsed() < READY_WITHIN;
        ensure!(waited, "no request got a pick within {READY_WITHIN:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// Sends requests over all connections for a round, and returns how many were answered.
async fn load(address: SocketAddr, bytes: usize) -> Result<u64> {
    let end = Instant::now() + ROUND;
    let mut tasks = JoinSet::new();
    for connection in 0..CONNECTIONS {
        tasks.spawn(async move {
            let mut sender = connect(address).await?;
            let mut count = 0;
            while Instant::now() < end {
                ask(&mut sender, connection * 1_000_003 + count, bytes).await?;
                count += 1;
            }
            anyhow::Ok(count as u64)
        });
    }
    let mut all = 0;
    while let Some(count) = tasks.join_next().await {
        all += count??;
    }
    Ok(all)
}

/// Asks a question about one of 500 states.
async fn ask(sender: &mut client::SendRequest<Full<Bytes>>, n: usize, bytes: usize) -> Result<()> {
    let state = n.wrapping_mul(0x9e37_79b9) % 500;
    let state = format!("{state} {}", "where is my card? ".repeat(bytes / 18));
    let body = serde_json::json!({"state": state, "questions": {n.to_string(): {}}}).to_string();
    let request = Request::post("/v1/systemone")
        .header("host", "engines")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    answer.into_body().collect().await?;
    ensure!(status.is_success(), "a request was answered with {status}");
    Ok(())
}
