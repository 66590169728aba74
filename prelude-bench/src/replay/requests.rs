//! Requests made of a trace.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use bytes::Bytes;
use serde_json::json;

use crate::sim::Workload;

/// The form of the requests that are made of a trace.
#[derive(Clone, Debug, clap::Args)]
pub struct Shape {
    /// The model's name, if the server needs one.
    #[arg(long)]
    pub model: Option<String>,
    /// The factor by which the requests arrive faster than recorded.
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Lengths of prompts and outputs, as a share of those recorded.
    #[arg(long, default_value_t = 1.0)]
    pub lengths: f64,
    /// Cut prompts to this many tokens.
    #[arg(long, default_value_t = 8_192)]
    pub max_prompt: u32,
    /// Cut outputs to this many tokens.
    #[arg(long, default_value_t = 512)]
    pub max_output: u32,
    /// Token ids of prompts are below this; at most the model's vocabulary.
    #[arg(long, default_value_t = 4_000)]
    pub vocab_size: u32,
    /// Leave out requests that arrive later than this, such as 90s or 10m.
    #[arg(long = "for", value_parser = duration, default_value = "60s")]
    pub within: Duration,
    /// Send at most this many requests.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    pub limit: usize,
}

/// Reads `90s`, `10m` or `500ms`.
fn duration(text: &str) -> Result<Duration> {
    let at = text.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(at.unwrap_or(text.len()));
    let number: f64 = number.parse()?;
    let seconds = match unit {
        "ms" => number / 1_000.0,
        "s" => number,
        "m" => number * 60.0,
        "h" => number * 3_600.0,
        _ => bail!("a time is a number and ms, s, m or h, such as 90s"),
    };
    Ok(Duration::try_from_secs_f64(seconds)?)
}

impl Shape {
    /// Returns the shape of all requests, as long as they are, with one token of answer.
    pub(crate) const fn one_token(vocab_size: u32) -> Self {
        Self {
            model: None,
            speed: 1.0,
            lengths: 1.0,
            max_prompt: u32::MAX,
            max_output: 1,
            vocab_size,
            within: Duration::MAX,
            limit: usize::MAX,
        }
    }
}

/// A request of a replay.
#[derive(Clone, Debug)]
pub struct Request {
    /// The time from the start of the replay to the request's arrival.
    pub at: Duration,
    /// The JSON body for `/v1/completions`.
    pub body: Bytes,
    /// The tokens of the prompt.
    pub prompt_tokens: u32,
    /// The most tokens that may be generated.
    pub output_tokens: u32,
}

/// Makes requests of a workload, in the order of their arrival.
pub(crate) fn of(workload: &Workload, shape: &Shape) -> Result<Vec<Request>> {
    ensure!(shape.speed > 0.0, "the speed must be above 0");
    ensure!(shape.lengths > 0.0, "the share of lengths must be above 0");
    ensure!(shape.vocab_size > 1, "a vocabulary has at least 2 tokens");
    let scaled = |tokens: u32, max: u32| {
        let scaled = (f64::from(tokens) * shape.lengths).round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is clamped to a u32"
        )]
        let scaled = scaled.clamp(1.0, f64::from(max.max(1))) as u32;
        scaled
    };
    let mut tokens = Vec::new();
    let requests: Vec<Request> = { workload.arrivals.iter() }
        .map(|arrival| {
            let at = Duration::from_nanos(arrival.at.as_nanos()).div_f64(shape.speed);
            (at, arrival)
        })
        .take_while(|(at, _)| *at <= shape.within)
        .take(shape.limit)
        .map(|(at, arrival)| {
            let prompt_tokens = scaled(arrival.prompt.len(), shape.max_prompt);
            let output_tokens = scaled(arrival.output_tokens, shape.max_output);
            tokens.clear();
            arrival.prompt.tokens(&mut tokens);
            // From the front, so that what prompts share stays shared.
            tokens.truncate(prompt_tokens as usize);
            let ids: Vec<u32> = tokens.iter().map(|id| id % shape.vocab_size).collect();
            let mut body = json!({
                "prompt": ids,
                "max_tokens": output_tokens,
                "temperature": 0,
                "ignore_eos": true,
                "stream": true,
                "stream_options": { "include_usage": true },
            });
            if let Some(model) = &shape.model {
                body["model"] = json!(model);
            }
            Request {
                at,
                body: body.to_string().into(),
                prompt_tokens,
                output_tokens,
            }
        })
        .collect();
    ensure!(
        !requests.is_empty(),
        "no request of {} arrives within {:?}",
        workload.name,
        shape.within
    );
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use prelude_core::Timestamp;
    use serde_json::Value;

    use super::*;
    use crate::sim::{Arrival, Prompt, Run};

    fn workload() -> Workload {
        let arrival = |ms: u64, runs: Vec<Run>| Arrival {
            at: Timestamp::from_nanos(ms * 1_000_000),
            prompt: Prompt::new(runs),
            output_tokens: 9,
            key: 0,
            user: 0,
            root: 0,
        };
        let run = |stream, len| Run {
            stream,
            start: 0,
            len,
        };
        let arrivals = vec![
            arrival(0, vec![run(1, 100), run(2, 20)]),
            arrival(500, vec![run(1, 100), run(3, 50)]),
            arrival(4_000, vec![run(4, 10)]),
        ];
        Workload::new("two", arrivals)
    }

    fn shape() -> Shape {
        Shape {
            model: Some("m".to_owned()),
            speed: 2.0,
            lengths: 1.0,
            max_prompt: 1_000,
            max_output: 4,
            vocab_size: 500,
            within: Duration::from_secs(1),
            limit: 10,
        }
    }

    #[test]
    fn arrivals_and_lengths_are_scaled_and_prefixes_stay_shared() {
        let requests = of(&workload(), &shape()).unwrap();
        let seen: Vec<_> = { requests.iter() }
            .map(|r| (r.at.as_millis(), r.prompt_tokens, r.output_tokens))
            .collect();
        assert_eq!(seen, [(0, 120, 4), (250, 150, 4)]);
        let bodies: Vec<Value> = { requests.iter() }
            .map(|r| serde_json::from_slice(&r.body).unwrap())
            .collect();
        let ids = |i: usize| bodies[i]["prompt"].as_array().unwrap();
        assert_eq!((ids(0).len(), ids(1).len()), (120, 150));
        assert_eq!(ids(0)[..100], ids(1)[..100]);
        assert_ne!(ids(0)[100..110], ids(1)[100..110]);
        assert!(ids(0).iter().all(|id| id.as_u64().unwrap() < 500));
        assert_eq!(bodies[0]["model"], "m");
        let half = Shape {
            lengths: 0.5,
            limit: 1,
            ..shape()
        };
        let requests = of(&workload(), &half).unwrap();
        assert_eq!((requests.len(), requests[0].prompt_tokens), (1, 60));
    }

    #[test]
    fn requests_that_cannot_be_sent_are_refused() {
        let check = |shape: Shape, expected: &str| {
            let error = of(&workload(), &shape).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(
            Shape {
                speed: 0.0,
                ..shape()
            },
            "speed",
        );
        check(
            Shape {
                lengths: -1.0,
                ..shape()
            },
            "lengths",
        );
        check(
            Shape {
                vocab_size: 1,
                ..shape()
            },
            "vocabulary",
        );
        check(
            Shape {
                limit: 0,
                ..shape()
            },
            "no request of two",
        );
    }
}
