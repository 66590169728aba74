//! The requests that servers are sent: messages of a bank's customers, all different, seeded.
//!
//! Bodies are serialised before anything is timed, and enough of them that no server sees one
//! twice within a run, unless it is faster than anybody thought: the report says so then.

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use fasttoken::Tokenizer;
use prelude_measure::random::{Random, mix};
use prelude_server::demo;
use serde_json::{Map, Value, json};

use super::{hostile, texts};

use crate::load::{Job, Jobs, NUMBER};

const THINGS: &[&str] = &[
    "card",
    "transfer",
    "top-up",
    "refund",
    "payment",
    "PIN",
    "passcode",
    "account",
    "cheque",
    "direct debit",
    "statement",
    "exchange",
];
/// Words of one token each.
const WORDS: &[&str] = &["card", "transfer", "payment", "account", "exchange", "cash"];
const TROUBLES: &[&str] = &[
    "has not arrived",
    "was declined",
    "is pending",
    "was charged twice",
    "is missing",
    "looks wrong",
    "was reverted",
    "is blocked",
    "has expired",
    "was not recognised",
];
/// Bodies that differ by more than their number: enough that lengths vary.
const STATES: usize = 500;
const ASKS: &[&str] = &[
    "What is happening?",
    "Can you help?",
    "Please check it.",
    "What should I do now?",
    "How long will it take?",
    "Is that normal?",
    "I need it today.",
    "Who can tell me more?",
];

/// Returns a message of some twenty tokens that is hardly ever repeated.
fn message(random: &mut Random) -> String {
    format!(
        "My {} of {} from {} days ago {}. {}",
        random.pick(THINGS),
        1 + random.below(9_999),
        2 + random.below(60),
        random.pick(TROUBLES),
        random.pick(ASKS),
    )
}

/// Messages of `tokens` tokens together, or up to a message more.
fn state(random: &mut Random, tokenizer: &Tokenizer, tokens: usize) -> String {
    let mut text = String::new();
    let mut have = 0;
    while have < tokens {
        let next = message(random);
        // Tokens do not reach over the blank between two messages.
        have += tokenizer.count(&next, false);
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&next);
    }
    text
}

/// Returns token ids of the demo model, special ones left out.
fn ids(random: &mut Random, count: usize) -> Vec<usize> {
    (0..count).map(|_| 10 + random.below(3_990)).collect()
}

/// Returns different yes/no questions, the same ones in every request: at most 120.
fn questions(count: usize) -> Map<String, Value> {
    let pairs = THINGS
        .iter()
        .flat_map(|thing| TROUBLES.iter().map(move |trouble| (thing, trouble)));
    let question = |(i, (thing, trouble))| {
        let asked = format!("Does a {thing} come up that {trouble}?");
        (
            format!("q{i}"),
            json!({"type": "noul", "instructions": asked}),
        )
    };
    pairs.take(count).enumerate().map(question).collect()
}

/// Different bodies of short requests, of those with long texts, and of those that have numbers.
const DISTINCT: usize = 200_000;
const DISTINCT_STATES: usize = 6_000;
/// States of requests that ask one question after the other about each.
const ABOUT: usize = 60;

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";
const DECISION: &str = "/v1/systemone";

const EMBEDDING: &str = "/v1/embeddings";
const CLASS: &str = "/classify";

/// The path, the number, the likeness and the bodies of a kind of requests.
type Kind<'a> = (
    &'static str,
    usize,
    usize,
    Box<dyn Fn(&mut Random) -> Value + 'a>,
);

/// Returns the tokenizer of the demo language model.
pub(crate) fn tokenizer() -> Result<Tokenizer> {
    Tokenizer::from_bytes(demo::LM.tokenizer).context("the demo model's tokenizer")
}

/// Makes requests of one server.
pub(crate) struct Bodies<'t> {
    pub(crate) tokenizer: &'t Tokenizer,
    /// The served name of the language model or the encoder.
    pub(crate) lm: &'t str,
    /// The path of reranking, and the field of the texts there.
    pub(crate) rerank: [&'static str; 2],
}

impl<'t> Bodies<'t> {
    /// Makes requests of the demo models, as Prelude is asked.
    pub(crate) const fn of_demo(tokenizer: &'t Tokenizer) -> Self {
        Self {
            tokenizer,
            lm: demo::LM.name,
            rerank: ["/rerank", "documents"],
        }
    }

    /// Returns the requests that `kind` says, a word and its numbers; `count` of them, each of which
    /// is handed out once, if there is a count. Bodies of another `seed` are different ones.
    pub(super) fn make(&self, kind: &str, count: Option<usize>, seed: u64) -> Result<Jobs> {
        let mut words = kind.split(' ');
        let word = words.next().unwrap_or_default();
        let numbers: Vec<usize> = words.clone().filter_map(|word| word.parse().ok()).collect();
        // What one kind says is no other's prefix.
        let mix_in = |seed: u64, byte: u8| mix(seed ^ u64::from(byte));
        let mut random = Random::far(kind.bytes().fold(seed, mix_in));
        let (jobs, alike) = match (word, &*numbers) {
            ("hostile", []) => (hostile::bodies(self.lm), 1),
            ("swollen", []) => (hostile::swollen(words.next().unwrap_or_default()), 0),
            ("embed" | "rank", &[tokens]) => (texts::jobs(self, word, tokens)?, 0),
            ("decide_apart", &[tokens, asked]) => (self.apart(&mut random, tokens, asked), asked),
            _ => {
                let (path, most, alike, body) = self.kind(word, &numbers)?;
                let count = count.filter(|_| alike == 0).unwrap_or(most);
                let jobs = (0..count).map(|_| job(path, body(&mut random).to_string()));
                (jobs.collect(), alike)
            }
        };
        Ok(match (count, alike) {
            (Some(count), _) => Jobs::once(jobs.into_iter().cycle().take(count).collect()),
            (None, 0) => Jobs::new(jobs),
            (None, alike) => Jobs::numbered(jobs, alike),
        })
    }

    /// Returns the path of a kind of requests, how many different ones there are, how many in a row
    /// have the same number (0 if they have none), and what makes a body.
    fn kind<'a>(&'a self, word: &str, numbers: &[usize]) -> Result<Kind<'a>> {
        Ok(match (word, numbers) {
            ("chat", []) => (CHAT, DISTINCT, 0, Box::new(|r| self.chat(&message(r)))),
            ("completion", []) => (COMPLETION, DISTINCT, 0, Box::new(|r| self.rendered(r))),
            ("complete_word", []) => {
                let body = |r: &mut Random| self.complete(json!(r.pick(WORDS)));
                (COMPLETION, STATES, 0, Box::new(body))
            }
            ("ids", &[tokens]) => {
                let most = (20_000_000 / tokens).clamp(1, DISTINCT / 10);
                let body = move |r: &mut Random| self.complete(json!(ids(r, tokens)));
                (COMPLETION, most, 0, Box::new(body))
            }
            ("forest", &[prompts, shared, own]) => {
                let body = move |r: &mut Random| self.forest(r, prompts, (shared, own));
                (COMPLETION, DISTINCT_STATES / 10, 0, Box::new(body))
            }
            ("embed", []) => {
                let body = |r: &mut Random| json!({"model": self.lm, "input": message(r)});
                (EMBEDDING, DISTINCT, 0, Box::new(body))
            }
            ("classify", []) => (CLASS, DISTINCT, 0, Box::new(|r| class(&message(r)))),
            ("classify_word", []) => (CLASS, STATES, 0, Box::new(|r| class(r.pick(WORDS)))),
            ("decide", &[tokens, asked]) => {
                let state = move |r: &mut Random| state(r, self.tokenizer, tokens);
                let questions = questions(asked);
                let body = move |r: &mut Random| self.decide(&state(r), &questions);
                (DECISION, DISTINCT_STATES, 0, Box::new(body))
            }
            ("decide_new", &[tokens, asked]) => {
                let questions = questions(asked);
                let body =
                    move |r: &mut Random| self.decide(&self.new_state(r, tokens), &questions);
                (DECISION, STATES, 1, Box::new(body))
            }
            ("stream", &[tokens]) => {
                let body = move |r: &mut Random| self.stream(&message(r), tokens);
                (CHAT, STATES, 1, Box::new(body))
            }
            ("chat_about", &[tokens]) => {
                let body = move |r: &mut Random| self.chat(&self.new_state(r, tokens));
                (CHAT, STATES, 1, Box::new(body))
            }
            _ => bail!("no requests are called `{word}` with {numbers:?}"),
        })
    }

    /// A state that begins with the request's number, so that any number of them is new.
    fn new_state(&self, random: &mut Random, tokens: usize) -> String {
        format!("Case {NUMBER}. {}", state(random, self.tokenizer, tokens))
    }

    /// Asks for one token of the chat template.
    fn chat(&self, content: &str) -> Value {
        let content = format!("{content}\nWhich topic?");
        json!({"model": self.lm, "messages": [{"role": "user", "content": content}],
            "max_tokens": 1, "temperature": 0, "chat_template_kwargs": {"enable_thinking": false}})
    }

    /// Asks for a stream of exactly so many tokens.
    fn stream(&self, message: &str, tokens: usize) -> Value {
        json!({"model": self.lm, "max_tokens": tokens, "temperature": 0, "ignore_eos": true,
            "messages": [{"role": "user", "content": format!("Case {NUMBER}. {message}")}],
            "stream": true, "stream_options": {"include_usage": true},
            "chat_template_kwargs": {"enable_thinking": false}})
    }

    /// Asks for one token of a chat's prompt that the client rendered.
    fn rendered(&self, random: &mut Random) -> Value {
        self.complete(json!(format!(
            "<|im_start|>user\n{}\nWhich topic?<|im_end|>\n<|im_start|>assistant\n<think>\n\n\
             </think>\n\n",
            message(random)
        )))
    }

    fn complete(&self, prompt: Value) -> Value {
        json!({"model": self.lm, "prompt": prompt, "max_tokens": 1, "temperature": 0})
    }

    /// Asks for one token and its log-probability of each prompt; all begin with the same fresh ids.
    fn forest(&self, random: &mut Random, prompts: usize, (shared, own): (usize, usize)) -> Value {
        let shared = ids(random, shared);
        let prompt = |_| [shared.clone(), ids(random, own)].concat();
        let prompts: Vec<_> = (0..prompts).map(prompt).collect();
        let mut body = self.complete(json!(prompts));
        body["logprobs"] = json!(1);
        body
    }

    fn decide(&self, state: &str, questions: &Map<String, Value>) -> Value {
        json!({"model": self.lm, "state": state, "questions": questions})
    }

    /// Returns decisions of one question each, `asked` in a row about each state.
    fn apart(&self, random: &mut Random, tokens: usize, asked: usize) -> Vec<Job> {
        let states = (0..ABOUT).map(|_| self.new_state(random, tokens));
        let jobs = states.flat_map(|state| self.one_by_one(&state, asked));
        jobs.collect()
    }

    fn one_by_one(&self, state: &str, asked: usize) -> Vec<Job> {
        let questions = questions(asked).into_iter();
        let jobs = questions.map(|question| {
            let body = self.decide(state, &Map::from_iter([question]));
            job(DECISION, body.to_string())
        });
        jobs.collect()
    }

    /// Returns decisions of one question each: `ask` about each of `states` fresh states of `tokens`
    /// tokens. Those of all states are mixed as the seed says.
    pub(crate) fn decide_mixed(
        &self,
        seed: u64,
        (states, ask): (usize, usize),
        tokens: usize,
    ) -> Vec<Job> {
        let mut random = Random::far(seed);
        let mut jobs = Vec::new();
        for case in 0..states {
            let state = state(&mut random, self.tokenizer, tokens);
            jobs.extend(self.one_by_one(&format!("Case {seed}.{case}. {state}"), ask));
        }
        random.shuffle(&mut jobs);
        jobs
    }
}

fn class(text: &str) -> Value {
    json!({"model": demo::CLASSIFIER.name, "input": text})
}

/// Returns a request.
pub(super) fn job(path: &'static str, body: String) -> Job {
    let body = Bytes::from(body);
    Job { path, body }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, ops::Range};

    use super::*;

    #[test]
    fn requests_are_fresh_the_same_in_every_run_and_as_long_as_said() {
        let tokenizer = tokenizer().unwrap();
        let make = Bodies::of_demo(&tokenizer);
        let bodies = |kind: &str, count: Option<usize>, seed| -> Vec<Value> {
            let jobs = make.make(kind, count, seed).unwrap();
            let jobs = jobs.first(count.unwrap_or(usize::MAX));
            jobs.iter()
                .map(|job| serde_json::from_slice(&job.body).unwrap())
                .collect()
        };
        let chats = bodies("chat", Some(500), 0);
        let distinct: HashSet<_> = chats.iter().map(Value::to_string).collect();
        assert!(distinct.len() > 490, "{}", distinct.len());
        assert_eq!(chats, bodies("chat", Some(500), 0));
        assert_ne!(chats[0], bodies("chat", Some(500), 1)[0]);
        let content = |body: &Value| body["messages"][0]["content"].as_str().unwrap().to_owned();
        let rendered = bodies("completion", Some(9), 0)[0]["prompt"].to_string();
        assert!(
            !rendered.contains(content(&chats[0]).lines().next().unwrap()),
            "{rendered}"
        );
        let tokens = |text: &str, expected: Range<usize>| {
            let tokens = tokenizer.count(text, false);
            assert!(expected.contains(&tokens), "{tokens}");
        };
        for body in bodies("decide 500 16", Some(20), 0) {
            tokens(body["state"].as_str().unwrap(), 500..560);
            assert_eq!(body["questions"].as_object().unwrap().len(), 16);
        }
        let forest = &bodies("forest 5 20 4", Some(3), 0)[2]["prompt"];
        let prompts: Vec<Vec<u32>> = serde_json::from_value(forest.clone()).unwrap();
        assert_eq!(prompts.len(), 5);
        for prompt in &prompts[1..] {
            assert_eq!((prompt.len(), &prompt[..20]), (24, &prompts[0][..20]));
            assert_ne!(prompt[20..], prompts[0][20..]);
        }
        for word in WORDS {
            assert_eq!(tokenizer.count(word, false), 1, "{word}");
        }
        let numbered = bodies("decide_new 100 1", None, 0)[0]["state"].to_string();
        assert!(numbered.contains("Case 00000000. "), "{numbered}");
        tokens(&content(&bodies("chat_about 700", None, 0)[0]), 700..780);
        let chat = &bodies("stream 64", None, 0)[0];
        let asked = (&chat["max_tokens"], &chat["ignore_eos"], &chat["stream"]);
        assert_eq!(asked, (&json!(64), &json!(true), &json!(true)));
        let apart = bodies("decide_apart 100 50", None, 0);
        assert_eq!(apart.len(), 60 * 50);
        assert_eq!(apart[0]["state"], apart[49]["state"]);
        assert_ne!(apart[49]["state"], apart[50]["state"]);
        let asked = apart[..50].iter().map(|body| body["questions"].to_string());
        assert_eq!(asked.collect::<HashSet<_>>().len(), 50);
        assert!(make.make("chats", None, 0).is_err());
    }

    #[test]
    fn mixed_decisions_are_all_there() {
        let tokenizer = tokenizer().unwrap();
        let workload = Bodies::of_demo(&tokenizer);
        let bodies = |seed| -> Vec<String> {
            let jobs = workload.decide_mixed(seed, (5, 4), 100);
            let text = |job: &Job| String::from_utf8(job.body.to_vec()).unwrap();
            jobs.iter().map(text).collect()
        };
        let (first, other) = (bodies(1), bodies(2));
        assert_eq!(first, bodies(1));
        let distinct: HashSet<_> = first.iter().chain(&other).collect();
        assert_eq!(distinct.len(), 2 * 5 * 4, "each question once, seeds apart");
        let state = |body: &String| -> String {
            let body: Value = serde_json::from_str(body).unwrap();
            body["state"].as_str().unwrap().to_owned()
        };
        let states: Vec<_> = first.iter().map(state).collect();
        assert_eq!(states.iter().collect::<HashSet<_>>().len(), 5);
        let switches = states.windows(2).filter(|pair| pair[0] != pair[1]);
        assert!(switches.count() > 5, "states come in a row: {states:?}");
        let tokens = workload.tokenizer.count(&states[0], false);
        assert!((100..150).contains(&tokens), "{tokens}");
    }
}
