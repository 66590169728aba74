//! The requests that servers are sent: messages of a bank's customers, all different, seeded.
//!
//! Bodies are serialised before anything is timed, and enough of them that no server sees one
//! twice within a run, unless it is faster than anybody thought: the report says so then.

use bytes::Bytes;
use prelude_text::Tokenizer;
use serde_json::{Map, json};

use crate::{
    load::{Job, Jobs, NUMBER},
    random::Random,
};

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
fn questions(count: usize) -> Map<String, serde_json::Value> {
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

/// Makes requests of the demo models.
pub(crate) struct Workload<'t> {
    pub(crate) tokenizer: &'t Tokenizer,
    /// The served names.
    pub(crate) lm: &'t str,
    pub(crate) classifier: &'t str,
}

impl Workload<'_> {
    fn jobs(
        seed: u64,
        count: usize,
        path: &'static str,
        body: impl FnMut(&mut Random) -> serde_json::Value,
    ) -> Jobs {
        Jobs::new(Self::list(seed, count, path, body))
    }

    fn list(
        seed: u64,
        count: usize,
        path: &'static str,
        mut body: impl FnMut(&mut Random) -> serde_json::Value,
    ) -> Vec<Job> {
        let mut random = Random::new(seed << 32);
        let job = |_| Job {
            path,
            body: Bytes::from(body(&mut random).to_string()),
        };
        (0..count).map(job).collect()
    }

    /// Returns requests for one-token answers of the chat template.
    pub(super) fn chat(&self, count: usize) -> Jobs {
        Self::jobs(1, count, "/v1/chat/completions", |random| {
            self.turn(&format!("{}\nWhich topic?", message(random)), 1)
        })
    }

    /// Returns the same prompts, rendered by the client.
    pub(super) fn completion(&self, count: usize) -> Jobs {
        Self::jobs(2, count, "/v1/completions", |random| {
            let prompt = format!(
                "<|im_start|>user\n{}\nWhich topic?<|im_end|>\n<|im_start|>assistant\n<think>\n\n\
                 </think>\n\n",
                message(random)
            );
            json!({"model": self.lm, "prompt": prompt, "max_tokens": 1, "temperature": 0})
        })
    }

    /// Returns requests for one-token answers to prompts of `tokens` token ids each, which share
    /// nothing.
    pub(super) fn ids(&self, count: usize, tokens: usize) -> Jobs {
        Self::jobs(11, count, "/v1/completions", |random| {
            json!({"model": self.lm, "prompt": ids(random, tokens), "max_tokens": 1,
                "temperature": 0})
        })
    }

    /// Returns requests of `prompts` prompts each, which begin with the same `shared` fresh token ids
    /// and have `own` more: one token and its log-probability for each prompt.
    pub(super) fn forest(
        &self,
        count: usize,
        prompts: usize,
        (shared, own): (usize, usize),
    ) -> Jobs {
        Self::jobs(12, count, "/v1/completions", |random| {
            let shared = ids(random, shared);
            let prompt = |_| [shared.clone(), ids(random, own)].concat();
            let prompts: Vec<_> = (0..prompts).map(prompt).collect();
            json!({"model": self.lm, "prompt": prompts, "max_tokens": 1, "temperature": 0,
                "logprobs": 1})
        })
    }

    /// Returns one message to embed.
    pub(super) fn embed(&self, count: usize) -> Jobs {
        Self::jobs(
            8,
            count,
            "/v1/embeddings",
            |random| json!({"model": self.lm, "input": message(random)}),
        )
    }

    /// Returns one message to classify.
    pub(super) fn classify(&self, count: usize) -> Jobs {
        Self::jobs(
            3,
            count,
            "/classify",
            |random| json!({"model": self.classifier, "input": message(random)}),
        )
    }

    /// Returns requests for decisions: `ask` yes/no questions about a fresh state of `tokens` tokens.
    pub(super) fn decide(&self, count: usize, tokens: usize, ask: usize) -> Jobs {
        let questions = questions(ask);
        Self::jobs(4 + ask as u64, count, "/v1/systemone", |random| {
            let state = state(random, self.tokenizer, tokens);
            json!({"model": self.lm, "state": state, "questions": questions})
        })
    }

    /// Builds the requests of [`Self::decide`] with states that begin with the request's number, so
    /// that any number of them is new.
    pub(super) fn decide_for_ever(&self, tokens: usize, ask: usize) -> Jobs {
        let questions = questions(ask);
        let jobs = Self::list(5, STATES, "/v1/systemone", |random| {
            let state = state(random, self.tokenizer, tokens);
            let state = format!("Case {NUMBER}. {state}");
            json!({"model": self.lm, "state": state, "questions": questions})
        });
        Jobs::numbered(jobs, 1)
    }

    /// Returns requests for streamed chats about a fresh message, with answers of exactly `tokens`
    /// tokens.
    pub(super) fn stream(&self, tokens: u32) -> Jobs {
        let jobs = Self::list(9, STATES, "/v1/chat/completions", |random| {
            let content = format!("Case {NUMBER}. {}", message(random));
            let mut body = self.turn(&content, tokens);
            body["ignore_eos"] = json!(true);
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
            body
        });
        Jobs::numbered(jobs, 1)
    }

    /// Chats of one token about a fresh state of `tokens` tokens: decisions that every server with
    /// OpenAI's interface can make.
    pub(super) fn chat_about_a_state(&self, tokens: usize) -> Jobs {
        let jobs = Self::list(10, STATES, "/v1/chat/completions", |random| {
            let state = state(random, self.tokenizer, tokens);
            self.turn(&format!("Case {NUMBER}. {state}\nWhich topic?"), 1)
        });
        Jobs::numbered(jobs, 1)
    }

    /// Returns the body of a chat of one turn.
    fn turn(&self, content: &str, max_tokens: u32) -> serde_json::Value {
        json!({"model": self.lm, "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens, "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": false}})
    }

    /// Returns one word each, and one token for an answer.
    pub(super) fn complete_a_word(&self) -> Jobs {
        Self::jobs(6, 100, "/v1/completions", |random| {
            let word = random.pick(WORDS);
            json!({"model": self.lm, "prompt": word, "max_tokens": 1, "temperature": 0})
        })
    }

    /// Returns one word each.
    pub(super) fn classify_a_word(&self) -> Jobs {
        Self::jobs(7, 100, "/classify", |random| {
            let word = random.pick(WORDS);
            json!({"model": self.classifier, "input": word})
        })
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
        let questions = questions(ask);
        let mut jobs = Vec::new();
        for case in 0..states {
            let state = state(&mut random, self.tokenizer, tokens);
            let state = format!("Case {seed}.{case}. {state}");
            for (name, question) in &questions {
                let body = json!({"model": self.lm, "state": state, "questions": {name: question}});
                jobs.push(Job {
                    path: "/v1/systemone",
                    body: Bytes::from(body.to_string()),
                });
            }
        }
        random.shuffle(&mut jobs);
        jobs
    }

    /// Returns the same questions one by one: `ask` requests in a row about each state.
    pub(super) fn decide_apart(&self, tokens: usize, ask: usize) -> Jobs {
        const ABOUT: usize = 60;
        let questions: Vec<_> = questions(ask).into_iter().collect();
        let mut about = String::new();
        let mut asked = 0;
        let jobs = Self::list(1000 + ask as u64, ABOUT * ask, "/v1/systemone", |random| {
            if asked % ask == 0 {
                let state = state(random, self.tokenizer, tokens);
                about = format!("Case {NUMBER}. {state}");
            }
            let (name, question) = &questions[asked % ask];
            asked += 1;
            json!({"model": self.lm, "state": about, "questions": {name: question}})
        });
        Jobs::numbered(jobs, ask)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use prelude_server::{assets::Assets, demo};
    use serde_json::Value;

    use super::*;

    #[test]
    fn requests_are_fresh_the_same_in_every_run_and_as_long_as_said() {
        let assets = Assets::embedded(&demo::LM).unwrap();
        let workload = Workload {
            tokenizer: &assets.tokenizer,
            lm: "lm",
            classifier: "cls",
        };
        let bodies = |jobs: &Jobs| -> Vec<Value> {
            jobs.first(usize::MAX)
                .iter()
                .map(|job| serde_json::from_slice(&job.body).unwrap())
                .collect()
        };
        let chats = bodies(&workload.chat(500));
        let distinct: HashSet<_> = chats.iter().map(Value::to_string).collect();
        assert!(distinct.len() > 490, "{}", distinct.len());
        assert_eq!(chats, bodies(&workload.chat(500)));
        for body in bodies(&workload.decide(20, 500, 16)) {
            let tokens = assets
                .tokenizer
                .count(body["state"].as_str().unwrap(), false);
            assert!((500..560).contains(&tokens), "{tokens}");
            assert_eq!(body["questions"].as_object().unwrap().len(), 16);
        }
        let forest = &bodies(&workload.forest(3, 5, (20, 4)))[2]["prompt"];
        let prompts: Vec<Vec<u32>> = serde_json::from_value(forest.clone()).unwrap();
        assert_eq!(prompts.len(), 5);
        for prompt in &prompts[1..] {
            assert_eq!((prompt.len(), &prompt[..20]), (24, &prompts[0][..20]));
            assert_ne!(prompt[20..], prompts[0][20..]);
        }
        for word in WORDS {
            assert_eq!(assets.tokenizer.count(word, false), 1, "{word}");
        }
        let numbered = workload.decide_for_ever(100, 1);
        let text = String::from_utf8(numbered.first(1)[0].body.to_vec()).unwrap();
        assert!(text.contains("Case 00000000. "), "{text}");
        let about = &bodies(&workload.chat_about_a_state(700))[0];
        let content = about["messages"][0]["content"].as_str().unwrap();
        let tokens = assets.tokenizer.count(content, false);
        assert!((700..780).contains(&tokens), "{tokens}");
        let chat = &bodies(&workload.stream(64))[0];
        let asked = (&chat["max_tokens"], &chat["ignore_eos"], &chat["stream"]);
        assert_eq!(asked, (&json!(64), &json!(true), &json!(true)));
        let apart = bodies(&workload.decide_apart(100, 50));
        assert_eq!(apart.len(), 60 * 50);
        assert_eq!(apart[0]["state"], apart[49]["state"]);
        assert_ne!(apart[49]["state"], apart[50]["state"]);
        let asked: HashSet<_> = apart[..50]
            .iter()
            .map(|b| b["questions"].to_string())
            .collect();
        assert_eq!(asked.len(), 50);
        mixed_decisions_are_all_there(&workload);
    }

    fn mixed_decisions_are_all_there(workload: &Workload<'_>) {
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
