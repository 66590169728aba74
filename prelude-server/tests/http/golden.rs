//! Values over HTTP against those of the reference implementation (`golden/README.md`; the files in
//! `tests/data` are links to them, which a package replaces by their contents).

use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::support::TestServer;

const JSON: &str = include_str!("../data/demo-lm.json");
const ARRAYS: &[u8] = include_bytes!("../data/demo-lm.safetensors");

struct Golden {
    tensors: SafeTensors<'static>,
}

impl Golden {
    fn new() -> Self {
        Self {
            tensors: SafeTensors::deserialize(ARRAYS).unwrap(),
        }
    }

    fn words(&self, name: &str, dtype: Dtype) -> impl Iterator<Item = [u8; 4]> {
        let tensor = self.tensors.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), dtype);
        let words = tensor.data().as_chunks::<4>().0.to_vec();
        words.into_iter()
    }

    fn ints(&self, name: &str) -> Vec<i32> {
        self.words(name, Dtype::I32)
            .map(i32::from_le_bytes)
            .collect()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name, Dtype::F32)
            .map(f32::from_le_bytes)
            .collect()
    }

    fn prompts(&self) -> Vec<Vec<i32>> {
        let (tokens, offsets) = (self.ints("tokens"), self.ints("offsets"));
        let range = |w: &[i32]| usize::try_from(w[0]).unwrap()..usize::try_from(w[1]).unwrap();
        offsets
            .windows(2)
            .map(|w| tokens[range(w)].to_vec())
            .collect()
    }
}

/// Returns the largest and the mean difference that bfloat16 may make.
fn tolerance() -> (f64, f64) {
    let document: Value = serde_json::from_str(JSON).unwrap();
    let stated = &document["tolerances"]["f32 against bf16"]["logprob"];
    let value = |name| stated[name].as_f64().unwrap();
    (2.0 * value("max"), 1.5 * value("mean"))
}

#[test]
fn prompt_logprobs_are_the_references() {
    let golden = Golden::new();
    let expected = golden.floats("f32.logprob");
    let prompts = golden.prompts();
    let server = TestServer::demo();
    let body = json!({"prompt": prompts, "max_tokens": 0, "prompt_logprobs": 0});
    let answer = server.post("/v1/completions", &body.to_string());
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    let (max, mean) = tolerance();
    let (mut at, mut sum, mut count) = (0, 0.0, 0.0);
    for (choice, prompt) in answer["choices"].as_array().unwrap().iter().zip(&prompts) {
        for (position, id) in prompt.iter().enumerate() {
            let entry = &choice["prompt_logprobs"][position];
            if position == 0 {
                assert_eq!(*entry, Value::Null);
            } else {
                let found = entry[id.to_string()]["logprob"].as_f64().unwrap();
                let difference = (found - f64::from(expected[at])).abs();
                assert!(difference <= max, "{found} for {} at {at}", expected[at]);
                sum += difference;
                count += 1.0;
            }
            at += 1;
        }
    }
    assert_eq!(at, expected.len());
    assert!(sum / count <= mean, "{}", sum / count);
    assert_eq!(
        answer["usage"]["prompt_tokens"].as_u64(),
        Some(expected.len() as u64)
    );
}

#[test]
fn greedy_texts_are_the_references() {
    let golden = Golden::new();
    let document: Value = serde_json::from_str(JSON).unwrap();
    let prompts = golden.prompts();
    let (greedy, margins) = (
        golden.ints("f32.greedy"),
        golden.floats("f32.greedy_margin"),
    );
    let continued: Vec<usize> = serde_json::from_value(document["greedy_prompts"].clone()).unwrap();
    let continued: Vec<&Vec<i32>> = continued.iter().map(|&p| &prompts[p]).collect();
    let server = TestServer::demo();
    let body = json!({"prompt": continued, "max_tokens": 32, "temperature": 0,
        "return_token_ids": true});
    let answer = server.post("/v1/completions", &body.to_string()).json();
    let (max, _) = tolerance();
    let mut compared = 0;
    for (row, choice) in answer["choices"].as_array().unwrap().iter().enumerate() {
        let found: Vec<i32> = serde_json::from_value(choice["token_ids"].clone()).unwrap();
        let expected = &greedy[row * 32..][..32];
        let expected: Vec<i32> = expected.iter().copied().take_while(|&id| id >= 0).collect();
        // Up to the first place where two tokens are as good as equal.
        let close = |m: &f32| f64::from(*m) < max;
        let sure = margins[row * 32..][..expected.len()].iter().position(close);
        let sure = sure.unwrap_or(expected.len());
        assert_eq!(
            found[..sure.min(found.len())],
            expected[..sure],
            "prompt {row}"
        );
        compared += sure;
    }
    assert!(compared > 60, "{compared} tokens compared");
}
