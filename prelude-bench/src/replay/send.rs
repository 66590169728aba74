//! Sends requests at their times and reads their streams.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use tokio::{
    sync::{Mutex, Semaphore},
    task::JoinSet,
    time::{sleep_until, timeout},
};

use super::{Progress, Request};
use crate::load::{Connection, Job, Reader};

/// The server that requests are sent to, and the number of requests at a time.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    /// `host:port`.
    pub(crate) address: String,
    pub(crate) connections: usize,
    pub(crate) timeout: Duration,
}

/// The end of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A whole stream.
    Answered,
    /// Another status than 200, with the body's beginning.
    Refused(u16, String),
    /// A broken connection, a stream that ended early or with an error, or the timeout.
    Failed(String),
}

/// A request as it went. Times count from the request's arrival.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The place of the request in the replay.
    pub request: usize,
    /// The end of the request.
    pub fate: Fate,
    /// The time until the request was on its way, late or waiting for a connection.
    pub sent: Duration,
    /// The time until the first generated text, if there was any.
    pub first: Option<Duration>,
    /// The time until the end of the answer.
    pub end: Duration,
    /// Generated tokens, as the server counts them; else the events with text.
    pub tokens: u32,
    /// Prompt tokens that came from the server's cache, if it says so.
    pub cached_tokens: Option<u32>,
}

/// The results of a replay.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub(crate) answers: Vec<Answer>,
    /// True if Ctrl-C ended the replay.
    pub(crate) is_cut: bool,
    pub(crate) elapsed: Duration,
}

/// Kept connections that are free.
type Pool = Arc<Mutex<Vec<Connection>>>;

/// Replays `requests` from now on.
pub(crate) async fn replay(
    sent: &Sent,
    requests: &[Request],
    progress: impl Fn(Progress),
) -> Result<Replayed> {
    let first = Connection::open(&sent.address).await?;
    let pool: Pool = Arc::new(Mutex::new(vec![first]));
    let seats = Arc::new(Semaphore::new(sent.connections.max(1)));
    let mut open = JoinSet::new();
    let mut answers = Vec::with_capacity(requests.len());
    let mut told = Progress {
        requests: requests.len(),
        sent: 0,
        ended: 0,
    };
    let start = Instant::now();
    let mut next = requests.iter().enumerate().peekable();
    let mut is_cut = false;
    while next.peek().is_some() || !open.is_empty() {
        progress(told);
        let due = next.peek().map(|(_, request)| start + request.at);
        tokio::select! {
            // Sending goes first: the loop is open.
            biased;
            () = async { sleep_until(due.unwrap_or(start).into()).await }, if due.is_some() => {
                let (number, request) = next.next().expect("one is due");
                let (sent, pool) = (sent.clone(), Arc::clone(&pool));
                let (seats, body) = (Arc::clone(&seats), request.body.clone());
                let arrival = start + request.at;
                open.spawn(ask(number, arrival, sent, body, pool, seats));
                told.sent += 1;
            }
            Some(answer) = open.join_next(), if !open.is_empty() => {
                answers.push(answer.context("a request's task")?);
                told.ended += 1;
            }
            _ = tokio::signal::ctrl_c() => {
                is_cut = true;
                break;
            }
        }
    }
    progress(told);
    Ok(Replayed {
        answers,
        is_cut,
        elapsed: start.elapsed(),
    })
}

async fn ask(
    request: usize,
    arrival: Instant,
    sent: Sent,
    body: Bytes,
    pool: Pool,
    seats: Arc<Semaphore>,
) -> Answer {
    let _seat = seats.acquire().await.expect("it is never closed");
    let mut answer = Answer {
        request,
        fate: Fate::Answered,
        sent: arrival.elapsed(),
        first: None,
        end: Duration::ZERO,
        tokens: 0,
        cached_tokens: None,
    };
    let mut reader = Reader::default();
    let whole = exchange(&mut reader, &sent.address, body, &pool);
    answer.fate = match timeout(sent.timeout, whole).await {
        Ok(Ok(200)) => Fate::Answered,
        Ok(Ok(status)) => Fate::Refused(status, reader.refusal()),
        Ok(Err(error)) => Fate::Failed(format!("{error:#}")),
        Err(_) => Fate::Failed(format!("no whole answer within {:?}", sent.timeout)),
    };
    answer.first = reader.texts.first().map(|text| text.at - arrival);
    answer.tokens = reader.tokens();
    answer.cached_tokens = reader.cached_tokens;
    answer.end = arrival.elapsed();
    answer
}

async fn exchange(reader: &mut Reader, address: &str, body: Bytes, pool: &Pool) -> Result<u16> {
    let kept = pool.lock().await.pop();
    let mut connection = match kept {
        Some(connection) => connection,
        None => Connection::open(address).await?,
    };
    let path = "/v1/completions";
    let status = connection.ask(Job { path, body }, reader).await?;
    pool.lock().await.push(connection);
    Ok(status)
}
