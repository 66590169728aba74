//! Requests per second where there is next to nothing to compute: what is left is the server.
//!
//! Rivals have no model that computes nothing. They get the demo model, of four megabytes, and
//! prompts of one token; ours is measured with that too, and with nothing at all.

use anyhow::Result;
use prelude_server::{ServerConfig, demo};

use super::{
    Session, noop,
    report::Row,
    rival::Serve,
    turns::{Case, Figure, Rivals},
    versus::{tokenizer, workload},
};
use crate::process::Process;

const CONNECTIONS: usize = 64;

/// Measures our rates beside those of rivals; returns nothing if there are no rivals.
pub(super) fn measure(session: &mut Session<'_>) -> Result<Vec<Row>> {
    if session.rivals.is_empty() {
        return Ok(Vec::new());
    }
    let tokenizer = tokenizer()?;
    let make = workload(&tokenizer);
    let completion = "POST /v1/completions, one word, one token";
    let kinds = [
        (completion, make.complete_a_word(), demo::LM, Serve::Lm),
        (
            "POST /classify, one word",
            make.classify_a_word(),
            demo::CLASSIFIER,
            Serve::Classifier,
        ),
    ];
    let mut rows = Vec::new();
    for (what, jobs, files, serve) in kinds {
        let idle = noop::Here::serve(ServerConfig::default(), vec![noop::idle(&files)?])?;
        let nothing = idle.address.to_string();
        let demo = Process::prelude(&session.config.program)?;
        let ours = [("no-op model", &*nothing), ("demo model", &*demo.address)];
        let case = Case::closed(what, jobs, CONNECTIONS, Figure::Rate);
        let rivals = Rivals::start(session, serve);
        rows.extend(rivals.beside(session, &ours, &case)?);
    }
    Ok(rows)
}
