//! Times that a client alone, or one of four, waits for: whole answers, first tokens, tokens.

use anyhow::{Context as _, Result};
use prelude_bench::{load::seconds, process::Process};
use serde_json::json;

use super::{
    loads::{each_once, times},
    requests::{Words, add, completions, streamed},
};
use crate::session::{Session, at_most};

pub(super) fn measure(
    session: &mut Session,
    name: &str,
    server: &Process,
    words: &Words,
) -> Result<()> {
    let (input, requests) = session.pick((128, 200), (12, 3));
    let label = format!("{name}: {input}/1 at 1, p50");
    if session.has_time(&label, 3.0)? {
        let jobs = completions(1, requests, (input, 0, 1), &json!({}));
        let whole = each_once(session, &server.address, jobs, 1)?;
        let rest = format!("; {:.1} req/s", whole.per_second);
        times(
            session,
            &label,
            &whole.tally.seconds(200),
            at_most(2.0),
            (&rest, false),
        )?;
    }
    let mut streams = streamed();
    add(&mut streams, &words.sayable());
    let label = format!("{name}: {input}/1 at 1, first token");
    if session.has_time(&label, 3.0)? {
        let jobs = completions(2, requests, (input, 0, 1), &streams);
        let one = each_once(session, &server.address, jobs, 1)?;
        let first = one.tally.streams.context("nothing was streamed")?.first;
        times(
            session,
            &label,
            &seconds(&first),
            at_most(1.4),
            ("; streamed", false),
        )?;
    }
    let (output, requests, connections) = session.pick((32, 400, 4), (4, 4, 2));
    let label = format!("{name}: {input}/{output} at {connections}, p50");
    if session.has_time(&label, 8.0)? {
        let jobs = completions(3, requests, (input, 0, output), &streams);
        let many = each_once(session, &server.address, jobs, connections)?;
        let rest = format!("; {:.1} req/s, streamed", many.per_second);
        times(
            session,
            &label,
            &many.tally.seconds(200),
            None,
            (&rest, false),
        )?;
        let streams = many.tally.streams.context("nothing was streamed")?;
        let label = format!("{name}: {input}/{output} at {connections}");
        let first = seconds(&streams.first);
        times(
            session,
            &format!("{label}, first token"),
            &first,
            None,
            ("", false),
        )?;
        let each = seconds(&streams.each);
        let rest = "; (last − first) / tokens between";
        times(
            session,
            &format!("{label}, a token"),
            &each,
            at_most(1.2),
            (rest, false),
        )?;
    }
    Ok(())
}
