//! Chats alone and with decisions beside them.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use prelude_bench::{
    load::{Arrivals, Load, Tally, latency_at, run, run_all, seconds},
    process::Process,
};

use super::{
    decisions::{SHAPE, TINY},
    loads::{Measured, Span, rate, times},
    requests::{Words, decisions},
};
use crate::{
    results::Outcome,
    session::{Session, at_least},
};

/// Connections of decisions: more than are in use unless the server falls behind.
const CROWD: usize = 256;

/// Chats in a closed loop and decisions in an open one.
struct Mix<'a> {
    name: &'a str,
    server: &'a Process,
    words: &'a Words,
    span: Span,
    /// Decisions a second that the server can do alone.
    capacity: f64,
    /// Decisions a second that come.
    offered: f64,
}

/// Measures chats in a number of streams, alone and with as many decisions beside them as are half
/// of `capacity`, which is what the server can do of them alone.
pub(super) fn measure(
    session: &mut Session,
    name: &str,
    server: &Process,
    words: &Words,
    capacity: f64,
) -> Result<()> {
    let span = Span::of(session, 700, 3000);
    let mix = Mix {
        name,
        server,
        words,
        span,
        capacity,
        // A walk without a GPU has a rate too, of no meaning.
        offered: session.pick(0.5 * capacity, 20.0),
    };
    let label = format!("{name}: decisions at half capacity, alone");
    if !session.has_time(&label, span.seconds() + 2.0)? {
        return Ok(());
    }
    let jobs = Arc::new(mix.decisions(session, 21));
    let tally = run(&server.address, &jobs, mix.open())?;
    let alone = Measured::new(tally, &jobs)?;
    let rest = format!("; {:.1} of {:.1} a second", alone.per_second, mix.offered);
    times(
        session,
        &label,
        &alone.tally.seconds(200),
        None,
        (&rest, false),
    )?;
    for streams in session.pick([16, 64], [2, 3]) {
        let label = format!("{name}: chat at {streams}");
        if session.has_time(&label, 2.0 * span.seconds() + 4.0)? {
            session.attempt(&label, |session| mix.chats(session, streams))?;
        }
    }
    Ok(())
}

impl Mix<'_> {
    fn open(&self) -> Load {
        let arrivals = Arrivals::Open {
            per_second: self.offered,
            seed: 5,
        };
        self.span.load(CROWD, arrivals)
    }

    fn decisions(&self, session: &Session, seed: u64) -> prelude_bench::load::Jobs {
        let count = (1.3 * self.offered * self.span.seconds()) as usize + 20;
        decisions(seed, count, session.pick(SHAPE, TINY), 1)
    }

    fn chats(&self, session: &mut Session, streams: usize) -> Result<()> {
        let shape = session.pick((128, 128), (6, 4));
        // 2 ms a token at least.
        let count = session.pick(streams * 30, 4 * streams);
        let seed = 100 + streams as u64;
        let load = self.span.load(streams, Arrivals::Closed);
        let chats = Arc::new(self.words.chats(seed, count, shape));
        let tally = run(&self.server.address, &chats, load)?;
        let alone = Measured::new(tally, &chats)?;
        let label = format!("{}: chat at {streams}", self.name);
        let before = chat_rows(session, &label, "alone", &alone.tally)?;
        let chats = Arc::new(self.words.chats(seed + 1, count, shape));
        let asked = Arc::new(self.decisions(session, seed));
        let loads = [(&chats, load), (&asked, self.open())];
        let tallies = run_all(&self.server.address, &loads)?;
        let [chat, decided] = <[Tally; 2]>::try_from(tallies)
            .ok()
            .context("a tally each")?;
        let chat = Measured::with_refusals(chat, &chats)?;
        let decided = Measured::with_refusals(decided, &asked)?;
        let after = chat_rows(session, &label, "beside decisions", &chat.tally)?;
        let kept = Outcome::figure(
            format!("{label}: tokens/s kept beside decisions"),
            // Without a GPU no token may have come in so short a time.
            (session.pick(after / before, 1.0), "of alone"),
            at_least(0.9),
        );
        session.timed(kept.because("G1: chats beside decisions at half their capacity"))?;
        let both = after / before + decided.per_second / self.capacity;
        let both = Outcome::figure(
            format!("{label}: chats and decisions, shares of what each does alone"),
            (session.pick(both, 1.0), "together"),
            at_least(1.0),
        );
        session.timed(both.because("1: as if they took turns"))?;
        let label = format!("{}: decisions beside chat at {streams}", self.name);
        let rest = format!(
            "; {:.1} of {:.1} a second, {} refused",
            decided.per_second,
            self.offered,
            decided.tally.count(429)
        );
        times(
            session,
            &label,
            &decided.tally.seconds(200),
            None,
            (&rest, false),
        )
    }
}

/// Writes chats down; tokens a second.
fn chat_rows(session: &mut Session, label: &str, company: &str, tally: &Tally) -> Result<f64> {
    let streams = tally.streams.as_ref().context("nothing was streamed")?;
    let value = tally.window.tokens_per_second();
    let ms = |latencies, fraction| 1e3 * latency_at(latencies, fraction);
    let reason = format!(
        "first token p50 {:.1}, p99 {:.1} ms; a token p50 {:.2} ms; gaps p99 {:.2} ms",
        ms(&streams.first, 0.5),
        ms(&streams.first, 0.99),
        ms(&streams.each, 0.5),
        ms(&streams.gaps, 0.99)
    );
    let name = format!("{label}, {company}");
    rate(session, &name, (value, "tok/s"), (None, None), reason)?;
    let of = [("first token", &streams.first), ("a token", &streams.each)];
    for (what, latencies) in of {
        let name = format!("{name}, {what}");
        times(session, &name, &seconds(latencies), None, ("", true))?;
    }
    Ok(value)
}
