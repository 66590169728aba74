//! Texts of an exact number of tokens in a model's own vocabulary, as requests and as a file that
//! libraries read.

use anyhow::{Result, ensure};
use fasttoken::Tokenizer;
use prelude_measure::random::Random;
use serde_json::json;

use super::bodies::{Bodies, job};
use crate::load::Job;

/// Different texts of a length.
const DISTINCT: usize = 512;

/// Words for texts. One has a single token in every vocabulary, so that any length is met.
const WORDS: [&str; 16] = [
    "a", "the", "card", "is", "in", "river", "and", "queue", "was", "sent", "two", "answer", "of",
    "long", "text", "rain",
];

/// The first word of every text, without a blank before it.
const FIRST: &str = "a";

/// The query of every pair.
const QUERY: &str = "the card";

/// Returns pairs of the query and a text, the same in every run: of so many `tokens`, with those that
/// the tokenizer adds, are the texts alone or, to `rank`, the pairs.
pub(super) fn pairs(tokenizer: &Tokenizer, task: &str, tokens: usize) -> Result<Vec<[String; 2]>> {
    let count = |text: &str| match task {
        "rank" => tokenizer.count((QUERY, text), true),
        _ => tokenizer.count(text, true),
    };
    let words = WORDS.map(|word| {
        let behind = count(&format!("{FIRST} {word}"));
        (word, behind - count(FIRST))
    });
    let mut random = Random::far(tokens as u64);
    let pairs = (0..DISTINCT).map(|_| {
        let text = text(&mut random, tokens, &words, count)?;
        Ok([QUERY.to_owned(), text])
    });
    pairs.collect()
}

/// Returns a request for each pair; an embedder is asked about its text, as OpenAI's clients ask.
pub(super) fn jobs(bodies: &Bodies<'_>, task: &str, tokens: usize) -> Result<Vec<Job>> {
    let [path, field] = bodies.rerank;
    let pairs = pairs(bodies.tokenizer, task, tokens)?;
    let jobs = pairs.into_iter().map(|[query, text]| match task {
        "rank" => job(
            path,
            json!({"model": bodies.lm, "query": query, field: [text]}).to_string(),
        ),
        _ => {
            let body = json!({"model": bodies.lm, "input": text, "encoding_format": "base64"});
            job("/v1/embeddings", body.to_string())
        }
    });
    Ok(jobs.collect())
}

/// Returns a text that `count` finds `tokens` tokens in, of random words with their tokens behind
/// another word.
fn text(
    random: &mut Random,
    tokens: usize,
    words: &[(&str, usize)],
    count: impl Fn(&str) -> usize,
) -> Result<String> {
    let mut text = FIRST.to_owned();
    let mut have = count(&text);
    while have < tokens {
        let fitting = words.iter().filter(|(_, more)| have + more <= tokens);
        let fitting: Vec<_> = fitting.collect();
        ensure!(!fitting.is_empty(), "no word has one token");
        let (word, more) = fitting[random.below(fitting.len())];
        text.push(' ');
        text.push_str(word);
        have += more;
    }
    let found = count(&text);
    ensure!(found == tokens, "{found} tokens, not {tokens}: {text:?}");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn texts_have_the_tokens_that_are_asked_for() {
        for (task, golden) in [
            ("embed", "rand-bert-embed"),
            ("rank", "rand-xlmr-rank"),
            ("embed", "rand-modernbert-embed"),
        ] {
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden");
            let from = from.join(golden).join("model/tokenizer.json");
            let tokenizer = Tokenizer::from_file(from).unwrap();
            let unknown = *tokenizer.encode("\u{4e00}", false).last().unwrap();
            for tokens in [16, 128, 512] {
                let pairs = pairs(&tokenizer, task, tokens).unwrap();
                assert_eq!(pairs.len(), DISTINCT);
                for [query, text] in &pairs {
                    let ids = match task {
                        "embed" => tokenizer.encode(&**text, true),
                        _ => tokenizer.encode((&**query, &**text), true),
                    };
                    assert_eq!(ids.len(), tokens, "{text}");
                    assert!(!ids.contains(&unknown), "{text}");
                }
                let first = &pairs[0][1];
                assert!(pairs.iter().any(|[_, text]| text != first));
            }
        }
    }
}
