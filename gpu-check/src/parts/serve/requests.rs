//! Bodies of requests, all different, seeded: ids for generations, ids and texts for decisions.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use prelude_bench::load::{Job, Jobs};
use serde_json::{Map, Value, json};

use super::{super::tokenizer, server::MODEL};
use crate::{
    batches::{mix, tokens},
    session::Session,
};

/// Ids of prompts are below this: those that the tokenizer has too.
pub(in crate::parts) const IDS: u32 = 4000;
/// Words of which texts are made.
const WORDS: usize = 512;
/// Words of which streamed answers are made. A model with random weights says mostly ids that its
/// tokenizer has no text for, and a token without text is no event of a stream.
const ANSWER_WORDS: usize = 64;
/// Two ids whose probabilities are asked for.
const LABELS: [u32; 2] = [706, 696];

/// Returns the body of a request for `output` tokens behind a prompt of ids.
pub(in crate::parts) fn completion(prompt: &[u32], output: usize) -> Value {
    json!({
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": output,
        "temperature": 0,
        "ignore_eos": true,
    })
}

/// Returns `count` requests for `output` tokens behind `input` ids, the first `shared` of which are
/// the same in all. `more` is added to each body.
pub(in crate::parts) fn completions(
    seed: u64,
    count: usize,
    (input, shared, output): (usize, usize, usize),
    more: &Value,
) -> Jobs {
    let prefix = tokens(seed ^ 0xffff, shared, IDS);
    let job = |i: u64| {
        let own = tokens((seed << 20) + i, input - shared, IDS);
        let mut body = completion(&[&prefix[..], &own].concat(), output);
        add(&mut body, more);
        job("/v1/completions", &body)
    };
    Jobs::once((0..count as u64).map(job).collect())
}

/// Returns what streams a completion or a chat, with its usage at the end.
pub(in crate::parts) fn streamed() -> Value {
    json!({"stream": true, "stream_options": {"include_usage": true}})
}

pub(in crate::parts) fn add(body: &mut Value, more: &Value) {
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
}

/// Returns `count` requests with `items` decisions each: `own` ids of an item behind `shared` fresh
/// ids that its items have in common.
pub(super) fn decisions(
    seed: u64,
    count: usize,
    (shared, own): (usize, usize),
    items: usize,
) -> Jobs {
    let job = |i: u64| {
        let draw = |j: u64, len| tokens((seed << 20) + i * 64 + j, len, IDS);
        let list: Vec<_> = (1..=items as u64).map(|j| draw(j, own)).collect();
        job(
            "/v1/score",
            &json!({
                "model": MODEL,
                "query": draw(0, shared),
                "items": list,
                "label_token_ids": LABELS,
                "apply_softmax": true,
            }),
        )
    };
    Jobs::once((0..count as u64).map(job).collect())
}

/// Returns `count` inputs of `len` ids to embed.
pub(super) fn embeddings(seed: u64, count: usize, len: usize) -> Jobs {
    let job = |i: u64| {
        let input = tokens((seed << 20) + i, len, IDS);
        // As OpenAI's own client asks.
        let body = json!({"model": MODEL, "input": [input], "encoding_format": "base64"});
        job("/v1/embeddings", &body)
    };
    Jobs::once((0..count as u64).map(job).collect())
}

fn job(path: &'static str, body: &Value) -> Job {
    Job {
        path,
        body: body.to_string().into(),
    }
}

/// Words that are one token each of the tokenizer that made models have.
pub(in crate::parts) struct Words {
    /// A space and letters.
    texts: Vec<String>,
    ids: Vec<u32>,
}

impl Words {
    pub(in crate::parts) fn open(session: &Session) -> Result<Self> {
        let path = tokenizer(session).join("tokenizer.json");
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let file: Value = serde_json::from_slice(&text)?;
        let vocabulary = file["model"]["vocab"].as_object();
        Self::of(vocabulary.context("the tokenizer has a vocabulary")?)
    }

    fn of(vocabulary: &Map<String, Value>) -> Result<Self> {
        let mut words: Vec<(u32, String)> = Vec::new();
        for (token, id) in vocabulary {
            let word = token.strip_prefix('Ġ').filter(|word| word.len() > 3);
            let word = word.filter(|word| word.bytes().all(|b| b.is_ascii_lowercase()));
            if let (Some(word), Some(id)) = (word, id.as_u64()) {
                words.push((u32::try_from(id)?, format!(" {word}")));
            }
        }
        words.sort();
        words.truncate(WORDS);
        ensure!(words.len() > ANSWER_WORDS, "{} words", words.len());
        let (ids, texts) = words.into_iter().unzip();
        Ok(Self { texts, ids })
    }

    /// Returns a text of `len` words.
    fn text(&self, seed: u64, len: usize) -> String {
        let word = |i: u64| {
            let at = mix(seed.wrapping_mul(0x1_0000_0000).wrapping_add(i));
            &*self.texts[(at % self.texts.len() as u64) as usize]
        };
        (0..len as u64).map(word).collect()
    }

    /// Returns what makes every token of an answer one with text.
    pub(in crate::parts) fn sayable(&self) -> Value {
        json!({"allowed_token_ids": self.ids[..ANSWER_WORDS]})
    }

    /// Returns `count` streamed chats about `input` words, with answers of exactly `output` tokens.
    pub(in crate::parts) fn chats(
        &self,
        seed: u64,
        count: usize,
        (input, output): (usize, usize),
    ) -> Jobs {
        let chat = |i: u64| {
            let content = self.text((seed << 20) + i, input);
            let mut body = json!({
                "model": MODEL,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": output,
                "temperature": 0,
                "ignore_eos": true,
            });
            add(&mut body, &streamed());
            add(&mut body, &self.sayable());
            job("/v1/chat/completions", &body)
        };
        Jobs::once((0..count as u64).map(chat).collect())
    }

    /// Returns `count` states of `state` words with `ask` questions about each, of `own` words.
    pub(super) fn questions(
        &self,
        seed: u64,
        count: usize,
        (state, own): (usize, usize),
        ask: usize,
    ) -> Jobs {
        let body = |i: u64| {
            let text = |j: u64, len| self.text((seed << 20) + i * 64 + j, len);
            let question = |j: u64| {
                let instructions = text(j, own);
                (
                    format!("q{j}"),
                    json!({"type": "noul", "instructions": instructions}),
                )
            };
            let questions: Map<_, _> = (1..=ask as u64).map(question).collect();
            job(
                "/v1/systemone",
                &json!({"model": MODEL, "state": text(0, state), "questions": questions}),
            )
        };
        Jobs::once((0..count as u64).map(body).collect())
    }

    /// Returns `count` queries of 12 words with `documents` documents of `len` words each.
    pub(super) fn rankings(&self, seed: u64, count: usize, documents: usize, len: usize) -> Jobs {
        let body = |i: u64| {
            let text = |j: u64, len| self.text((seed << 20) + i * 1024 + j, len);
            let list: Vec<_> = (1..=documents as u64).map(|j| text(j, len)).collect();
            job(
                "/v1/rerank",
                &json!({"model": MODEL, "query": text(0, 12), "documents": list}),
            )
        };
        Jobs::once((0..count as u64).map(body).collect())
    }

    /// Returns `count` texts of `len` words to label with one of four words.
    pub(super) fn labelled(&self, seed: u64, count: usize, len: usize) -> Jobs {
        let labels: Vec<&str> = self.texts[..4].iter().map(|word| word.trim()).collect();
        let body = |i: u64| {
            let text = self.text((seed << 20) + i, len);
            let body = json!({"model": MODEL, "input": text, "labels": labels});
            job("/classify", &body)
        };
        Jobs::once((0..count as u64).map(body).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies(jobs: &Jobs) -> Vec<Value> {
        let jobs = jobs.first(usize::MAX);
        let body = |job: &Job| serde_json::from_slice(&job.body).unwrap();
        jobs.iter().map(body).collect()
    }

    #[test]
    fn prompts_share_what_they_are_told_to() {
        let jobs = bodies(&completions(1, 3, (20, 8, 2), &streamed()));
        let prompt =
            |i: usize| -> Vec<u32> { serde_json::from_value(jobs[i]["prompt"].clone()).unwrap() };
        assert_eq!((prompt(0).len(), &prompt(0)[..8]), (20, &prompt(2)[..8]));
        assert_ne!(prompt(0)[8..], prompt(2)[8..]);
        assert_eq!(jobs[1]["stream"], true);
        let jobs = bodies(&decisions(1, 2, (12, 5), 3));
        assert_ne!(jobs[0]["query"], jobs[1]["query"]);
        let items = jobs[0]["items"].as_array().unwrap();
        assert_eq!(items.len(), 3);
        assert_ne!(items[0], items[1]);
    }

    #[test]
    fn words_are_tokens_with_text() {
        let mut vocabulary = Map::new();
        for i in 0..100_u32 {
            let letters = [b'a' + (i / 26) as u8, b'a' + (i % 26) as u8];
            let word = std::str::from_utf8(&letters).unwrap();
            vocabulary.insert(format!("Ġxx{word}"), json!(300 + i));
            vocabulary.insert(format!("Ġ{word}9"), json!(1000 + i));
        }
        let words = Words::of(&vocabulary).unwrap();
        assert_eq!((words.ids.len(), words.ids[99]), (100, 399));
        assert_eq!(words.text(7, 12).split(' ').count(), 13);
        assert_ne!(words.text(7, 12), words.text(8, 12));
        let chat = &bodies(&words.chats(1, 1, (5, 9)))[0];
        assert_eq!(chat["allowed_token_ids"].as_array().unwrap().len(), 64);
        assert_eq!(
            bodies(&words.rankings(1, 1, 4, 5))[0]["documents"]
                .as_array()
                .unwrap()
                .len(),
            4
        );
        assert_eq!(
            bodies(&words.questions(1, 1, (9, 5), 3))[0]["questions"]
                .as_object()
                .unwrap()
                .len(),
            3
        );
        vocabulary.clear();
        assert!(Words::of(&vocabulary).is_err());
    }
}
