//! Prompts of 512 tokens at several numbers of connections, with a shared beginning, one of 32,000,
//! and servers with other settings.

use anyhow::Result;
use prelude_bench::process::Process;
use serde_json::json;

use super::{
    super::{Layer, checkpoint},
    loads::{Saturated, Span, each_once, rate, times},
    requests::completions,
    server::{DEEP, Options, answers, engine, said, start},
};
use crate::{
    results::Outcome,
    session::{Session, at_most},
};

/// Bytes of GPU memory that a prompt of 32,000 tokens may need beside weights and KV blocks.
const LONG_GB: f64 = 0.7;
/// Percent of the time that the GPU may be idle at saturation.
const IDLE_PERCENT: f64 = 3.0;

pub(super) fn measure(session: &mut Session, name: &str) -> Result<()> {
    checkpoint(session, name, None)?;
    let arguments = ["--max-model-len", session.pick("32768", "512")];
    let options = Options {
        arguments: &arguments,
        ..Options::default()
    };
    let server = start(session, name, options)?;
    engine(session, name, &server)?;
    let input = session.pick(512, 20);
    answers(session, &server.address, input)?;
    session.attempt(&format!("{name}: saturated"), |s| {
        saturated(s, name, &server)
    })?;
    session.attempt(&format!("{name}: one long prompt"), |s| {
        long(s, name, &server)
    })?;
    server.stop()?;
    let connections = session.pick(64, 3);
    let label = format!("{name}: {input}/1 at {connections}, pipeline_depth 2");
    if !session.has_time(&label, 20.0)? {
        return Ok(());
    }
    if session.is_smoke() {
        return session.skip(&label, "not walked through: the server is on the CPU");
    }
    let options = Options {
        log: "-deep",
        arguments: &[],
        settings: &DEEP,
    };
    session.attempt(&label, |session| {
        let server = start(session, name, options)?;
        answers(session, &server.address, input)?;
        at(session, &label, name, &server, (connections, 0))?;
        server.stop()
    })
}

/// Measures closed loops at several numbers of connections, and one whose prompts share their
/// beginning.
fn saturated(session: &mut Session, name: &str, server: &Process) -> Result<()> {
    let input = session.pick(512, 20);
    let (mut alone, mut best) = (f64::NAN, f64::NAN);
    for &connections in session.pick(&[1, 4, 16, 64, 96][..], &[1, 3]) {
        let label = format!("{name}: {input}/1 at {connections}");
        let found = at(session, &label, name, server, (connections, 0))?;
        let Some(found) = found else { continue };
        if connections == 1 {
            alone = found;
        }
        best = best.max(found);
    }
    let flops = Some(Layer::of(name)?.prompt_flops(input));
    let found = [("alone", alone, 110.0), ("saturated", best, 170.0)];
    for (what, value, must) in found {
        let label = format!("{name}: {input}/1 {what}");
        if value.is_finite() {
            let reason = "bound: sustained products";
            rate(
                session,
                &label,
                (value, "req/s"),
                (Some(must), flops),
                reason,
            )?;
        }
    }
    let shared = session.pick(100, 8);
    let label = format!("{name}: {input}/1, {shared} shared");
    at(session, &label, name, server, (session.pick(64, 3), shared))?;
    Ok(())
}

/// Measures prompts that share their first tokens, over a number of connections, in requests a
/// second.
fn at(
    session: &mut Session,
    label: &str,
    name: &str,
    server: &Process,
    (connections, shared): (usize, usize),
) -> Result<Option<f64>> {
    let span = Span::of(session, 1200, 2500);
    let input = session.pick(512, 20);
    let layer = Layer::of(name)?;
    // What is cached is not computed.
    let flops = layer.prompt_flops(input) - layer.prompt_flops(shared);
    // Fresh in every row: none begins as one of another row does, as far as it is not to.
    let seed = label
        .bytes()
        .fold(7, |seed, byte| 31 * seed % 65_521 + u64::from(byte));
    let jobs = completions(
        seed,
        session.pick(1_200, 12),
        (input, shared, 1),
        &json!({}),
    );
    let row = Saturated {
        name: label,
        jobs,
        connections,
        items: (1.0, "req/s"),
        must: (shared > 0).then_some(195.0),
        flops: Some(flops),
        reason: "",
        // Full steps, and nothing that they share.
        idle_must: (shared == 0 && connections >= session.pick(64, 3)).then_some(IDLE_PERCENT),
    };
    row.measure(session, server, span)
}

/// Measures one prompt of 32,000 tokens, and the memory that it needs.
fn long(session: &mut Session, name: &str, server: &Process) -> Result<()> {
    let (input, count) = session.pick((32_000, 2), (200, 1));
    let label = format!("{name}: {input}/1 at 1, p50");
    if session.has_time(&label, 8.0)? {
        let jobs = completions(31, count, (input, 0, 1), &json!({}));
        let found = each_once(session, &server.address, jobs, 1)?;
        times(
            session,
            &label,
            &found.tally.seconds(200),
            None,
            ("", false),
        )?;
    }
    let label = format!("{name}: memory for {input} tokens beside weights and KV");
    if session.is_smoke() {
        return session.skip(&label, "the server is on the CPU");
    }
    let plan = said(server, "activations ").unwrap_or_default();
    let Some(bytes) = working_bytes(plan) else {
        return session.skip(&label, "the server did not say what memory it took");
    };
    let outcome = Outcome::figure(label, (1e-9 * bytes, "GB"), at_most(LONG_GB));
    session.timed(outcome.because(format!("planned at start, and nothing more: {plan}")))
}

/// Reads the memory of activations and of passes from the line in which a server says what it took:
/// `activations B, passes of N tokens B`, in MiB.
fn working_bytes(plan: &str) -> Option<f64> {
    let mib = |begin: &str| {
        let rest = &plan[plan.find(begin)? + begin.len()..];
        let item = rest.split([',', ';']).next()?;
        item.split_whitespace().last()?.parse::<f64>().ok()
    };
    Some(1_048_576.0 * (mib("activations ")? + mib("passes of ")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_long_prompt_is_read() {
        let plan = "weights 8056, 4000 KV blocks of 16 tokens 9000, activations 300, passes of \
                    32768 tokens 288, buffers 900; 0 MiB of host memory";
        assert_eq!(working_bytes(plan), Some(588.0 * 1_048_576.0));
        assert_eq!(working_bytes(""), None);
    }
}
