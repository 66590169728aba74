//! Fixed pieces of work whose instructions are counted by the benchmark gate: the same numbers of
//! the same calls in every run, with no clock and no randomness that is not seeded.

use std::{hint::black_box, time::Duration};

use anyhow::{Result, ensure};
use clap::ValueEnum;
use fasttoken::Tokenizer;
use prelude_sched::PolicyConfig;
use prelude_server::{ApiKeys, App, Asking, ServerConfig, demo};

use crate::{random::Random, sched, server::noop};

/// A piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Encoding a text of 20,000 words.
    Tokenizer,
    /// Scheduling steps with 1,000 waiting requests and 256 running generations.
    Step,
    /// Planning a request of 256 rows over 30,000 shared tokens, twice.
    Planning,
    /// A classification request through the server's handlers, with a model that computes nothing.
    Request,
}

/// Does a piece of work so many times.
///
/// # Errors
/// If the work fails: the program is broken.
pub fn work(part: Part, times: usize) -> Result<()> {
    match part {
        Part::Tokenizer => tokenizer(times),
        Part::Step => sched::steps(PolicyConfig::Srjf, 1_000, times),
        Part::Planning => sched::plans(30_000, 256, times),
        Part::Request => requests(times),
    }
}

fn tokenizer(times: usize) -> Result<()> {
    let tokenizer = Tokenizer::from_bytes(demo::LM.tokenizer)?;
    let mut ids = Vec::new();
    for number in 0..times {
        // Fresh words each time: known ones are looked up, not merged.
        let text = text(number as u64, 20_000);
        ids.clear();
        tokenizer.encode_into(&text, false, &mut ids);
        black_box(&ids);
    }
    Ok(())
}

/// Returns words of two to nine letters, the shorter ones from a small set.
fn text(seed: u64, words: usize) -> String {
    let mut random = Random::far(seed);
    let mut text = String::with_capacity(8 * words);
    for number in 0..words {
        let len = 2 + random.below(8);
        let letters = if len < 5 { 4 } else { 20 };
        for _ in 0..len {
            #[expect(clippy::cast_possible_truncation, reason = "below 26")]
            let letter = b'a' + random.below(letters) as u8;
            text.push(char::from(letter));
        }
        text.push(if number % 12 == 11 { '\n' } else { ' ' });
    }
    text
}

/// Runs requests whose steps run on the asking thread: how often threads wake each other depends on
/// the machine's load.
fn requests(times: usize) -> Result<()> {
    let loaded = noop::idle(&demo::CLASSIFIER)?;
    let app = App::new(ServerConfig::default(), ApiKeys::default());
    app.set_models(vec![loaded.model]);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build()?;
    runtime.block_on(async {
        for number in 0..times {
            let body = format!(r#"{{"input": "Where is my card number {number}?"}}"#);
            let asking = Asking {
                inline: Some(Duration::from_secs(60)),
                ..Asking::default()
            };
            let answered = app.answer_as(asking, "POST", "/classify", body).await;
            ensure!(answered.status == 200, "{answered:?}");
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_works() {
        for part in Part::value_variants() {
            work(*part, 1).unwrap();
        }
    }

    #[test]
    fn texts_differ_by_their_seed_alone() {
        assert_eq!(text(3, 100), text(3, 100));
        assert_ne!(text(3, 100), text(4, 100));
        assert_eq!(text(1, 50).split_whitespace().count(), 50);
    }
}
