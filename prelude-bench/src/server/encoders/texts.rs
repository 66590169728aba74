//! Texts of an exact number of tokens, in a list that requests are made of and in a file that
//! libraries read.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use fasttoken::Tokenizer;
use serde_json::json;

use super::models::Task;
use crate::random::Random;

/// Different texts of a length.
const DISTINCT: usize = 512;

/// Words for texts. One has a single token in every vocabulary, so that any length is met.
const WORDS: [&str; 16] = [
    "a", "the", "card", "is", "in", "river", "and", "queue", "was", "sent", "two", "answer", "of",
    "long", "text", "rain",
];

/// The query of every pair.
const QUERY: &str = "the card";

/// Texts of one length.
pub(super) struct Texts {
    pub(super) task: Task,
    /// Tokens of a text, or of a pair, with those that the tokenizer adds.
    pub(super) tokens: usize,
    /// The query, which embedders do not read, and the text.
    pub(super) pairs: Vec<[String; 2]>,
    /// The same as JSON.
    pub(super) file: PathBuf,
}

impl Texts {
    /// Makes texts for a model's tokenizer, the same in every run.
    pub(super) fn make(model: &Path, task: Task, tokens: usize) -> Result<Self> {
        let path = model.join("tokenizer.json");
        let tokenizer = Tokenizer::from_file(&path);
        let tokenizer = tokenizer.with_context(|| path.display().to_string())?;
        let mut random = Random::far(tokens as u64);
        let pairs = (0..DISTINCT).map(|_| {
            let text = text(&mut random, tokens, |text| match task {
                Task::Embed => tokenizer.count(text, true),
                Task::Rank => tokenizer.count((QUERY, text), true),
            })?;
            Ok([QUERY.to_owned(), text])
        });
        let pairs = pairs.collect::<Result<Vec<_>>>()?;
        let file = model.join(format!("texts-{tokens}.json"));
        fs::write(&file, json!(pairs).to_string())
            .with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self {
            task,
            tokens,
            pairs,
            file,
        })
    }
}

/// Returns a text of random words that `count` finds `tokens` tokens in.
fn text(random: &mut Random, tokens: usize, count: impl Fn(&str) -> usize) -> Result<String> {
    let mut text = String::new();
    let mut have = count(&text);
    ensure!(
        have < tokens,
        "{have} tokens without a text, not below {tokens}"
    );
    while have < tokens {
        let blank = if text.is_empty() { "" } else { " " };
        let mut fits = |word: &str| {
            let longer = format!("{text}{blank}{word}");
            let found = count(&longer);
            (found <= tokens).then(|| {
                text = longer;
                have = found;
            })
        };
        // Where the word is too long for the rest, the first that is not.
        if fits(random.pick(&WORDS)).is_none() {
            let fitting = WORDS.iter().find_map(|word| fits(word));
            fitting.with_context(|| format!("no word fits behind {text:?}"))?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_tokens_that_are_asked_for() {
        for (task, golden) in [
            (Task::Embed, "rand-bert-embed"),
            (Task::Rank, "rand-xlmr-rank"),
            (Task::Embed, "rand-modernbert-embed"),
        ] {
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden");
            let from = from.join(golden).join("model/tokenizer.json");
            let name = format!("prelude-texts-{golden}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::copy(from, folder.join("tokenizer.json")).unwrap();
            let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).unwrap();
            let unknown = *tokenizer.encode("\u{4e00}", false).last().unwrap();
            for tokens in [16, 128, 512] {
                let texts = Texts::make(&folder, task, tokens).unwrap();
                assert_eq!(texts.pairs.len(), DISTINCT);
                for [query, text] in &texts.pairs {
                    let ids = match task {
                        Task::Embed => tokenizer.encode(&**text, true),
                        Task::Rank => tokenizer.encode((&**query, &**text), true),
                    };
                    assert_eq!(ids.len(), tokens, "{text}");
                    assert!(!ids.contains(&unknown), "{text}");
                }
                let first = &texts.pairs[0][1];
                assert!(texts.pairs.iter().any(|[_, text]| text != first));
            }
            fs::remove_dir_all(&folder).unwrap();
        }
    }
}
