//! Decisions, rankings, vectors and labels at saturation.

use anyhow::Result;
use prelude_bench::process::Process;

use super::{
    super::Layer,
    loads::{Saturated, Span},
    requests::{Words, decisions, embeddings},
};
use crate::session::Session;

/// Tokens that decisions about one thing have in common, and each one's own.
pub(super) const SHAPE: (usize, usize) = (120, 180);
/// The shape of decisions in a walk without a GPU.
pub(super) const TINY: (usize, usize) = (8, 12);

/// Measures all kinds. Returns the requests a second of decisions that share nothing.
pub(super) fn measure(
    session: &mut Session,
    name: &str,
    server: &Process,
    words: &Words,
) -> Result<Option<f64>> {
    let unshared = ids(session, name, server, "")?;
    texts(session, name, server, words)?;
    Ok(unshared)
}

/// Decisions by ids: with nothing in common, then ten about one thing. `behind` goes behind the names
/// of rows.
pub(super) fn ids(
    session: &mut Session,
    name: &str,
    server: &Process,
    behind: &str,
) -> Result<Option<f64>> {
    let span = Span::of(session, 700, 2500);
    let layer = Layer::of(name)?;
    let shape = session.pick(SHAPE, TINY);
    let (shared, own) = shape;
    let whole = layer.prompt_flops(shared + own);
    let label = format!("{name}: decisions, {shared}+{own} tokens, apart{behind}");
    let unshared = Saturated {
        name: &label,
        jobs: decisions(11, session.pick(12_000, 40), shape, 1),
        connections: session.pick(128, 2),
        items: (1.0, "items/s"),
        must: Some(2100.0),
        flops: Some(whole),
        reason: "every prefix new",
        idle_must: None,
    };
    let unshared = unshared.measure(session, server, span)?;
    let items = session.pick(10, 3);
    let label = format!("{name}: decisions, {shared}+{items}x{own} tokens, together{behind}");
    let repeated = (items - 1) as f64 * layer.prompt_flops(shared);
    Saturated {
        name: &label,
        jobs: decisions(12, session.pick(2_000, 20), shape, items),
        connections: session.pick(24, 2),
        items: (items as f64, "items/s"),
        must: Some(3200.0),
        flops: Some(whole - repeated / items as f64),
        reason: "each ten in one request",
        idle_must: None,
    }
    .measure(session, server, span)?;
    Ok(unshared)
}

/// Measures decisions, rankings and labels by texts, through tokenizer and template; and vectors.
fn texts(session: &mut Session, name: &str, server: &Process, words: &Words) -> Result<()> {
    let span = Span::of(session, 500, 2000);
    let ask = session.pick(10, 2);
    let (state, own) = session.pick((100, 100), (6, 4));
    let label = format!("{name}: {ask} questions of {own} words about {state}");
    Saturated {
        name: &label,
        jobs: words.questions(13, session.pick(1_500, 10), (state, own), ask),
        connections: session.pick(24, 2),
        items: (ask as f64, "items/s"),
        must: None,
        flops: None,
        reason: "/v1/systemone, texts",
        idle_must: None,
    }
    .measure(session, server, span)?;
    let (documents, len) = session.pick((100, 60), (3, 5));
    let label = format!("{name}: rerank 1 x {documents}, {len} words");
    Saturated {
        name: &label,
        jobs: words.rankings(14, session.pick(400, 10), documents, len),
        connections: session.pick(8, 2),
        items: (documents as f64, "items/s"),
        must: None,
        flops: None,
        reason: "texts",
        idle_must: None,
    }
    .measure(session, server, span)?;
    let len = session.pick(128, 8);
    let label = format!("{name}: embeddings of {len} tokens");
    Saturated {
        name: &label,
        jobs: embeddings(15, session.pick(24_000, 40), len),
        connections: session.pick(128, 2),
        items: (1.0, "items/s"),
        must: None,
        flops: Some(Layer::of(name)?.prompt_flops(len)),
        reason: "ids",
        idle_must: None,
    }
    .measure(session, server, span)?;
    let label = format!("{name}: one label of four for {len} words");
    Saturated {
        name: &label,
        jobs: words.labelled(16, session.pick(24_000, 40), len),
        connections: session.pick(128, 2),
        items: (1.0, "items/s"),
        must: None,
        flops: None,
        reason: "/classify, texts",
        idle_must: None,
    }
    .measure(session, server, span)?;
    Ok(())
}
