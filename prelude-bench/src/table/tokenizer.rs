//! Text to ids: fasttoken against Hugging Face `tokenizers` 0.23 (feature `rivals`).

use anyhow::{Context as _, Result};
use fasttoken::Tokenizer;
use prelude_measure::{
    clock::{Rounds, in_turns},
    record::{Better, Row},
    stats::{Spread, median},
};
use prelude_server::demo;

/// English and code that is at hand wherever this program can be built.
const TEXTS: &[&str] = &[
    include_str!("../../README.md"),
    include_str!("../sched/world.rs"),
    include_str!("../cluster/mod.rs"),
    include_str!("../load/tally.rs"),
];

pub(super) fn measure(rounds: Rounds) -> Result<Vec<Row>> {
    let ours = Tokenizer::from_bytes(demo::LM.tokenizer).context("the demo tokenizer")?;
    let bulk: String = TEXTS.concat();
    let message = "I still have not received my new card, I ordered over a week ago.";
    let mut rows = Vec::new();
    for (name, text) in [
        ("bulk English and code", &*bulk),
        ("one message of 65 bytes", message),
    ] {
        rows.extend(encode(rounds, name, text, &ours)?);
    }
    let ids = ours.encode(&bulk, false);
    let mut decode = || {
        std::hint::black_box(ours.decode(&ids, false));
    };
    let mut copied = Vec::new();
    let mut copy = || copy(&bulk, &mut copied);
    let seconds = in_turns(rounds, &mut [&mut decode, &mut copy]);
    let decode = rate("fasttoken decode, bulk", &seconds[0], bulk.len());
    let decode = decode.bound(limit(&bulk, &seconds[1]));
    rows.push(decode.note("limit: a copy of the text"));
    Ok(rows)
}

fn copy(text: &str, to: &mut Vec<u8>) {
    to.clear();
    to.extend_from_slice(std::hint::black_box(text.as_bytes()));
    std::hint::black_box(to);
}

/// Returns the megabytes of a text that one thread copies in a second.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
fn limit(text: &str, seconds: &[f64]) -> f64 {
    text.len() as f64 / median(seconds) / 1e6
}

/// Measures encoding, beside the time in which one thread copies the text.
fn encode(rounds: Rounds, name: &str, text: &str, ours: &Tokenizer) -> Result<Vec<Row>> {
    let (mut ids, mut copied) = (Vec::new(), Vec::new());
    let mut encode = || {
        ids.clear();
        ours.encode_into(text, true, &mut ids);
    };
    let mut copy = || copy(text, &mut copied);
    let expected = ours.encode(text, true);
    let mut rival = rival(text, &expected)?;
    let mut works: Vec<&mut dyn FnMut()> = vec![&mut encode, &mut copy];
    works.extend(rival.as_mut().map(|rival| rival as &mut dyn FnMut()));
    let seconds = in_turns(rounds, &mut works);
    let [ours, copy, theirs @ ..] = seconds.as_slice() else {
        anyhow::bail!("two pieces of work have times");
    };
    let ours = rate(&format!("fasttoken encode, {name}"), ours, text.len());
    let ours = ours.bound(limit(text, copy));
    let Some(theirs) = theirs.first() else {
        return Ok(vec![ours.note("limit: a copy of the text")]);
    };
    let theirs = rate(
        &format!("tokenizers 0.23 encode, {name}"),
        theirs,
        text.len(),
    );
    let rival = "tokenizers 0.23, one thread each; limit: a copy of the text";
    Ok(vec![super::against(ours, &theirs, rival), theirs])
}

#[expect(clippy::cast_precision_loss, reason = "texts are far below 2^52 bytes")]
fn rate(name: &str, seconds: &[f64], bytes: usize) -> Row {
    let rates: Vec<f64> = seconds.iter().map(|s| bytes as f64 / s / 1e6).collect();
    Row::measured(name, "MB/s", Spread::of(&rates), Better::Higher)
}

/// Returns the rival's encoding of a text, whose ids must be ours.
#[cfg(feature = "rivals")]
fn rival(text: &str, expected: &[u32]) -> Result<Option<impl FnMut()>> {
    let error = |e| anyhow::anyhow!("{e}");
    let rival = tokenizers::Tokenizer::from_bytes(demo::LM.tokenizer).map_err(error)?;
    let found = rival.encode_fast(text, true).map_err(error)?;
    anyhow::ensure!(found.get_ids() == expected, "the tokenizers disagree");
    let text = text.to_owned();
    Ok(Some(move || {
        // It has just succeeded on this very text.
        let _ = std::hint::black_box(rival.encode_fast(&*text, true));
    }))
}

#[cfg(not(feature = "rivals"))]
#[expect(clippy::unnecessary_wraps, reason = "as with the rival")]
const fn rival(_text: &str, _expected: &[u32]) -> Result<Option<fn()>> {
    Ok(None)
}
