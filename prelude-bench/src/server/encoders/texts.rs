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

/// The first word of every text, without a blank before it.
const FIRST: &str = "a";

/// The query of every pair.
const QUERY: &str = "the card";

/// Texts of one length.
pub(super) struct Texts {
    pub(super) task: Task,
    /// Tokens of a text, or of a pair, with those that the tokenizer adds.
    pub(super) tokens: usize,
    /// The query, which embedders do not read, and the text.
    pub(super) pairs: Vec<[String; 2]>,
    /// The file with the texts as JSON.
    pub(super) file: PathBuf,
}

impl Texts {
    /// Makes texts for a model's tokenizer, the same in every run.
    pub(super) fn make(model: &Path, task: Task, tokens: usize) -> Result<Self> {
        let path = model.join("tokenizer.json");
        let tokenizer = Tokenizer::from_file(&path);
        let tokenizer = tokenizer.with_context(|| path.display().to_string())?;
        let count = |text: &str| match task {
            Task::Embed => tokenizer.count(text, true),
            Task::Rank => tokenizer.count((QUERY, text), true),
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
