//! Do the demo models, asked over HTTP, answer as well as when they were trained?
//!
//! Every figure is recorded in the models' `training.json`, measured there with the training
//! code's own forward pass on the same 3,080 test messages of banking77. A server whose numbers
//! are right cannot miss them by more than a few messages that were near ties.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use prelude_measure::http::Client;
use serde::Deserialize;
use serde_json::{Value, json};

/// The largest difference between a figure and the recorded one. The recorded figures are of
/// bfloat16 arithmetic and differ from those of float32 by up to 0.03 points; this tolerance is six
/// messages of 3,080.
pub const TOLERANCE: f64 = 0.002;

const TOPICS: &str = include_str!("../data/topics.csv");
const JUDGE_PAIRS: &str = include_str!("../data/judge_pairs.csv");

/// Rows of the test set that the recorded figures are of.
const ROWS: usize = 3_080;
/// The step between messages that have all 77 labels scored, as when the figure was recorded.
const SCORED_STRIDE: usize = 5;
/// Answers that a figure may lose to rounding, however few there are: of 616 one is 0.16 points.
const FEWEST_LOST: f64 = 2.0;
/// Longest wait for a part of an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(600);
/// Messages per request.
const BATCH: usize = 64;
/// Messages per request where each has a trie of 77 labels: some 180 rows of the 4,096 allowed.
const LABEL_BATCH: usize = 16;

/// A figure, beside the recorded one.
#[derive(Clone, Debug)]
pub struct Measure {
    /// The name of the measured task.
    pub name: &'static str,
    /// Answers compared.
    pub answers: usize,
    /// Fraction of the answers that was right.
    pub accuracy: f64,
    /// Fraction recorded in `training.json`.
    pub recorded: f64,
    /// Wall time of all its requests, one after another.
    pub seconds: f64,
}

impl Measure {
    /// Returns true if the figure equals the recorded one within [`TOLERANCE`]; or, if a server's
    /// arithmetic `may_lose` such a fraction, if it is worse by no more, or by two answers.
    #[must_use]
    pub fn passes(&self, may_lose: Option<f64>) -> bool {
        let difference = self.accuracy - self.recorded;
        match may_lose {
            None => difference.abs() <= TOLERANCE + 1e-9,
            Some(loss) => {
                // The recorded figure has four digits.
                let grain = FEWEST_LOST / self.answers as f64 + 1e-4;
                difference >= -loss.max(grain) - 1e-9
            }
        }
    }

    /// Returns a line for the report.
    #[must_use]
    pub fn line(&self, may_lose: Option<f64>) -> String {
        format!(
            "{}  {:<34} {:>6} answers  {:6.2} %  recorded {:6.2} %  {:+.2}  {:6.1} s",
            if self.passes(may_lose) {
                "PASS"
            } else {
                "FAIL"
            },
            self.name,
            self.answers,
            100.0 * self.accuracy,
            100.0 * self.recorded,
            100.0 * (self.accuracy - self.recorded),
            self.seconds,
        )
    }
}

#[derive(Clone, Debug, Deserialize)]
struct Message {
    text: String,
    category: String,
}

#[derive(Debug, Deserialize)]
struct Topic {
    topic: String,
    intent: String,
}

#[derive(Debug, Deserialize)]
struct JudgePair {
    row: usize,
    wrong_intent: String,
}

fn rows<T: for<'de> Deserialize<'de>>(text: &str) -> Result<Vec<T>> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    Ok(reader.deserialize().collect::<Result<_, _>>()?)
}

/// Returns the test set in `folder`, or `None` if there is none.
///
/// # Errors
/// If `test.csv` is there and is not the test set of banking77.
fn messages(folder: &Path) -> Result<Option<Vec<Message>>> {
    let path = folder.join("test.csv");
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let mut messages: Vec<Message> =
        rows(&text).with_context(|| format!("reading {}", path.display()))?;
    ensure!(
        messages.len() == ROWS,
        "{} has {} rows; the test set of banking77 has {ROWS}",
        path.display(),
        messages.len()
    );
    for message in &mut messages {
        message.text = message.text.trim().to_owned();
    }
    Ok(Some(messages))
}

/// Asks the demo models at `url` about the test set in `folder` and calls `report` with each
/// figure. `None` if the test set is not there.
///
/// # Errors
/// If the server cannot be reached or refuses a request.
pub fn run(
    url: &str,
    folder: &Path,
    mut report: impl FnMut(&Measure),
) -> Result<Option<Vec<Measure>>> {
    let Some(messages) = messages(folder)? else {
        return Ok(None);
    };
    let topics: Vec<Topic> = rows(TOPICS)?;
    let pairs: Vec<JudgePair> = rows(JUDGE_PAIRS)?;
    let mut client = Client::connect_within(url, ANSWER_WITHIN)?;
    let mut measures = Vec::new();
    let mut done = |measure| {
        report(&measure);
        measures.push(measure);
    };
    done(classifier(&mut client, &messages)?);
    done(topic(&mut client, &messages, &topics)?);
    done(judge(&mut client, &messages, &pairs)?);
    done(intent(&mut client, &messages, &topics)?);
    Ok(Some(measures))
}

/// Asks about batches of messages and counts what is right of their answers, which are the
/// answer's field `list`.
fn measured<T>(
    (name, recorded): (&'static str, f64),
    client: &mut Client,
    (path, list): (&str, &str),
    batches: impl Iterator<Item = (Value, Vec<T>)>,
    right: impl Fn(&Value, &T) -> bool,
) -> Result<Measure> {
    let start = Instant::now();
    let (mut answers, mut hits) = (0, 0);
    for (body, asked) in batches {
        let answer = client.post(path, &body.to_string())?.ok()?.json()?;
        answers += asked.len();
        hits += count(&answer[list], &asked, &right);
    }
    Ok(Measure {
        name,
        answers,
        accuracy: share(hits, answers),
        recorded,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// Where messages are classified, and the field of the answer's list.
const CLASSIFY: (&str, &str) = ("/classify", "data");
/// Where words are compared as the model's next one.
const SCORE: (&str, &str) = ("/v1/score", "scores");

fn is_labelled(item: &Value, message: &Message) -> bool {
    item["label"] == message.category.as_str()
}

fn texts(messages: &[Message]) -> Vec<&str> {
    messages
        .iter()
        .map(|message| message.text.as_str())
        .collect()
}

/// Measures the classifier's 77 intents.
fn classifier(client: &mut Client, messages: &[Message]) -> Result<Measure> {
    let batches = messages.chunks(BATCH).map(|batch| {
        let body = json!({"model": "demo-classifier", "input": texts(batch)});
        (body, batch.to_vec())
    });
    let recorded = ("classifier: 77 intents", 0.8851);
    measured(recorded, client, CLASSIFY, batches, is_labelled)
}

/// Measures the language model's topic: eight words compared at the last position.
fn topic(client: &mut Client, messages: &[Message], topics: &[Topic]) -> Result<Measure> {
    let mut names: Vec<&str> = topics.iter().map(|t| t.topic.as_str()).collect();
    names.dedup();
    let of = |intent: &str| {
        let found = topics.iter().find(|t| t.intent == intent);
        found.map(|t| t.topic.as_str())
    };
    let batches = messages.chunks(BATCH).map(|batch| {
        let ask = |m: &Message| turn(&format!("{}\nWhich topic?", m.text));
        (
            score(batch.iter().map(ask).collect(), &names),
            batch.to_vec(),
        )
    });
    let recorded = ("lm: topic, one token of eight", 0.9552);
    measured(recorded, client, SCORE, batches, |scores, message| {
        largest(scores).map(|i| names[i]) == of(&message.category)
    })
}

/// Measures the language model's verdict on one right and one wrong intent of each message.
fn judge(client: &mut Client, messages: &[Message], pairs: &[JudgePair]) -> Result<Measure> {
    ensure!(
        pairs.len() == messages.len() && pairs.iter().enumerate().all(|(i, p)| p.row == i),
        "data/judge_pairs.csv does not belong to this test set"
    );
    let batches = messages.chunks(BATCH / 2).zip(pairs.chunks(BATCH / 2));
    let batches = batches.map(|(messages, pairs)| {
        let ask = |m: &Message, intent: &str| turn(&format!("{}\nIs the intent {intent}?", m.text));
        let both = messages.iter().zip(pairs);
        let items = both.flat_map(|(m, p)| [ask(m, &m.category), ask(m, &p.wrong_intent)]);
        let truths = messages.iter().flat_map(|_| [true, false]);
        (score(items.collect(), &["yes", "no"]), truths.collect())
    });
    let recorded = ("lm: judge, yes or no", 0.9459);
    measured(recorded, client, SCORE, batches, |scores, truth| {
        (largest(scores) == Some(0)) == *truth
    })
}

/// Measures the language model's intent: all 77 labels scored, each of several tokens.
fn intent(client: &mut Client, messages: &[Message], topics: &[Topic]) -> Result<Measure> {
    let mut labels: Vec<&str> = topics.iter().map(|t| t.intent.as_str()).collect();
    // As when the figure was recorded, should two labels tie.
    labels.sort_unstable();
    let some: Vec<Message> = messages.iter().step_by(SCORED_STRIDE).cloned().collect();
    let batches = some.chunks(LABEL_BATCH).map(|batch| {
        let body = json!({"model": "demo-lm", "input": texts(batch), "labels": labels});
        (body, batch.to_vec())
    });
    let recorded = ("lm: intent, 77 labels scored", 0.8766);
    measured(recorded, client, CLASSIFY, batches, is_labelled)
}

/// Returns the demo model's chat template around one user turn, with thinking off.
fn turn(user: &str) -> String {
    format!("<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
}

/// Returns a request that compares words behind each text.
fn score(items: Vec<String>, labels: &[&str]) -> Value {
    json!({
        "model": "demo-lm", "query": "", "items": items, "labels": labels, "apply_softmax": true,
    })
}

/// Counts the answers that `right` accepts. A missing answer is a wrong one.
fn count<T>(answers: &Value, asked: &[T], right: impl Fn(&Value, &T) -> bool) -> usize {
    let answers = answers.as_array().map_or(&[][..], Vec::as_slice);
    answers
        .iter()
        .zip(asked)
        .filter(|(a, t)| right(a, t))
        .count()
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand")]
fn share(right: usize, all: usize) -> f64 {
    right as f64 / all as f64
}

/// Returns the index of the largest number, the first of equals.
fn largest(numbers: &Value) -> Option<usize> {
    let numbers: Vec<f64> = numbers
        .as_array()?
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    let mut best = 0;
    for (i, number) in numbers.iter().enumerate() {
        if *number > numbers[best] {
            best = i;
        }
    }
    (!numbers.is_empty()).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_intent_has_a_topic_and_every_row_a_wrong_intent() {
        let topics: Vec<Topic> = rows(TOPICS).unwrap();
        let pairs: Vec<JudgePair> = rows(JUDGE_PAIRS).unwrap();
        let mut names: Vec<&str> = topics.iter().map(|t| t.topic.as_str()).collect();
        names.dedup();
        assert_eq!((topics.len(), names.len(), pairs.len()), (77, 8, ROWS));
        let known = |p: &JudgePair| topics.iter().any(|t| t.intent == p.wrong_intent);
        assert!(pairs.iter().all(known));
    }

    #[test]
    fn a_figure_passes_within_the_tolerance() {
        let check_of = |answers, accuracy, may_lose, expected| {
            let measure = Measure {
                name: "m",
                answers,
                accuracy,
                recorded: 0.9,
                seconds: 0.0,
            };
            let passes = measure.passes(may_lose);
            assert_eq!(passes, expected, "{}", measure.line(may_lose));
        };
        let check = |accuracy, may_lose, expected| check_of(3080, accuracy, may_lose, expected);
        check(0.902, None, true);
        check(0.8979, None, false);
        check(0.9021, None, false);
        check(1.0, None, false);
        check(0.897, Some(0.003), true);
        check(0.8969, Some(0.003), false);
        check(0.904, Some(0.003), true);
        check(f64::NAN, Some(0.003), false);
        // Two answers of 616, and three.
        check_of(616, 0.9 - 2.0 / 616.0, Some(0.003), true);
        check_of(616, 0.9 - 3.0 / 616.0, Some(0.003), false);
    }

    #[test]
    fn ties_go_to_the_first() {
        assert_eq!(largest(&json!([0.1, 0.5, 0.5])), Some(1));
        assert_eq!(largest(&json!([])), None);
        assert_eq!(largest(&json!(null)), None);
    }

    #[test]
    fn a_missing_test_set_is_no_error() {
        assert!(messages(Path::new("no-such-folder")).unwrap().is_none());
    }
}
