//! Measurements of what Prelude is for, over HTTP on this machine: decisions, rankings, vectors and
//! labels, chats with decisions beside them, and the papers' tables, by the program `prelude` as
//! operators start it.
//!
//! | file | |
//! | --- | --- |
//! | `server` | the program as a process |
//! | `requests` | bodies |
//! | `loads` | loads of one kind, and their rows |
//! | `idle` | the share of a load's time in which the GPU has nothing to do |
//! | `latency` | what a client alone waits for |
//! | `decisions` | decisions, rankings, vectors, labels |
//! | `mixed` | chats with decisions beside them |
//! | `large` | the larger model |

mod decisions;
mod idle;
mod large;
mod latency;
pub(super) mod loads;
mod mixed;
pub(super) mod requests;
pub(super) mod server;

use anyhow::Result;

use super::checkpoint;
use crate::session::{Figure, Session, at_most};
use requests::Words;
use server::{Options, answers, engine, start};

/// The arguments with which one model serves every kind of request.
const ALL_TASKS: [&str; 6] = [
    "--pooling",
    "last",
    "--rerank-template",
    "qwen3",
    "--max-model-len",
    "2048",
];

pub(super) fn run(session: &mut Session) -> Result<()> {
    let small = session.pick("qwen3-0.6b", "tiny-served");
    session.attempt(small, |s| small_model(s, small))?;
    let large = session.pick("qwen3-4b", "tiny-served");
    session.attempt_within(large, 40.0, |s| large::measure(s, large))
}

fn small_model(session: &mut Session, name: &str) -> Result<()> {
    checkpoint(session, name, None)?;
    let words = Words::open(session)?;
    let options = Options {
        arguments: &ALL_TASKS,
        ..Options::default()
    };
    let server = start(session, name, options)?;
    engine(session, name, &server)?;
    let ready = server.ready_after.as_secs_f64();
    let label = format!("{name}: start to ready");
    session.figure(Figure::wall(&label, &[ready], at_most(2000.0)))?;
    // Warm-up, and one answer is looked at.
    answers(session, &server.address, session.pick(128, 12))?;
    let what = |what: &str| format!("{name}: {what}");
    session.attempt(&what("latency"), |s| {
        latency::measure(s, name, &server, &words)
    })?;
    let mut capacity = None;
    session.attempt(&what("decisions"), |s| {
        capacity = decisions::measure(s, name, &server, &words)?;
        Ok(())
    })?;
    match capacity {
        Some(capacity) => session.attempt(&what("chats and decisions"), |s| {
            mixed::measure(s, name, &server, &words, capacity)
        })?,
        None => session.skip(
            &what("chats and decisions"),
            "the capacity for decisions is not known",
        )?,
    }
    server.stop()?;
    session.pass(
        &format!("{name}: served and stopped"),
        "every answer was whole",
    )?;
    deep(session, name)
}

/// Decisions by a server that queues a step behind the one that runs.
fn deep(session: &mut Session, name: &str) -> Result<()> {
    let label = format!("{name}: decisions, pipeline_depth 2");
    if !session.has_time(&label, 12.0)? {
        return Ok(());
    }
    if session.is_smoke() {
        return session.skip(&label, "not walked through: the server is on the CPU");
    }
    let options = Options {
        log: "-deep",
        arguments: &["--max-model-len", "2048"],
        settings: &server::DEEP,
    };
    session.attempt(&label, |session| {
        let server = start(session, name, options)?;
        answers(session, &server.address, 128)?;
        decisions::ids(session, name, &server, ", pipeline_depth 2")?;
        server.stop()
    })
}
