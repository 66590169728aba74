//! Text to ids: fasttoken against Hugging Face `tokenizers` 0.23 (feature `rivals`).

use anyhow::{Context as _, Result};
use fasttoken::Tokenizer;
use prelude_server::demo;

use super::{Row, TableConfig, in_turns, row};

/// English and code that is at hand wherever this program can be built.
const TEXTS: &[&str] = &[
    include_str!("../../README.md"),
    include_str!("mod.rs"),
    include_str!("http.rs"),
    include_str!("forward.rs"),
];

pub(super) fn measure(config: TableConfig) -> Result<Vec<Row>> {
    let json = demo::LM.tokenizer;
    let ours = Tokenizer::from_bytes(json).context("the demo tokenizer")?;
    let bulk: String = TEXTS.concat();
    let message = "I still have not received my new card, I ordered over a week ago.";
    let mut rows = Vec::new();
    for (name, text) in [
        ("bulk English and code", &*bulk),
        ("one message of 65 bytes", message),
    ] {
        rows.extend(compare(config, name, text, &ours, json)?);
    }
    let ids = ours.encode(&bulk, false);
    let mut decode = || {
        std::hint::black_box(ours.decode(&ids, false));
    };
    let seconds = in_turns(config, &mut [&mut decode]).remove(0);
    rows.push(row(
        "fasttoken decode, bulk",
        "MB/s",
        megabytes(&seconds, bulk.len()),
    ));
    Ok(rows)
}

#[expect(clippy::cast_precision_loss, reason = "texts are far below 2^52 bytes")]
fn megabytes(seconds: &[f64], bytes: usize) -> Vec<f64> {
    seconds.iter().map(|s| bytes as f64 / s / 1e6).collect()
}

#[cfg(feature = "rivals")]
fn compare(
    config: TableConfig,
    name: &str,
    text: &str,
    ours: &Tokenizer,
    json: &[u8],
) -> Result<Vec<Row>> {
    let rival: tokenizers::Tokenizer =
        tokenizers::Tokenizer::from_bytes(json).map_err(|e| anyhow::anyhow!("{e}"))?;
    let expected = rival
        .encode_fast(text, true)
        .map_err(|e| anyhow::anyhow!("{e}"))?;
    anyhow::ensure!(
        ours.encode(text, true) == expected.get_ids(),
        "the tokenizers disagree"
    );
    let mut ids = Vec::new();
    let mut encode = || {
        ids.clear();
        ours.encode_into(text, true, &mut ids);
    };
    let mut theirs = || {
        // Checked above to succeed on this very text.
        let _ = std::hint::black_box(rival.encode_fast(text, true));
    };
    let mut seconds = in_turns(config, &mut [&mut encode, &mut theirs]);
    let theirs = seconds.pop().unwrap_or_default();
    let ours = seconds.pop().unwrap_or_default();
    let theirs = row(
        format!("tokenizers 0.23 encode, {name}"),
        "MB/s",
        megabytes(&theirs, text.len()),
    );
    let ours = row(
        format!("fasttoken encode, {name}"),
        "MB/s",
        megabytes(&ours, text.len()),
    );
    let ratio = ours.value / theirs.value;
    Ok(vec![
        ours.against("tokenizers 0.23, one thread each", ratio),
        theirs,
    ])
}

#[cfg(not(feature = "rivals"))]
fn compare(
    config: TableConfig,
    name: &str,
    text: &str,
    ours: &Tokenizer,
    _json: &[u8],
) -> Result<Vec<Row>> {
    let mut ids = Vec::new();
    let mut encode = || {
        ids.clear();
        ours.encode_into(text, true, &mut ids);
    };
    let seconds = in_turns(config, &mut [&mut encode]).remove(0);
    Ok(vec![row(
        format!("fasttoken encode, {name}"),
        "MB/s",
        megabytes(&seconds, text.len()),
    )])
}
