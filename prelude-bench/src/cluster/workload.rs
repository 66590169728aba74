//! The workloads of the measurement, as requests that are sent once each.

use anyhow::Result;
use fasttoken::Tokenizer;

use super::Config;
use crate::{
    load::Job,
    replay::{Shape, requests::of as requests_of},
    server::{bodies::Bodies, folders},
    sim::{Kind, Preset, Setting, Workload, hit_ceiling, recurring_tokens},
};

/// Tokens of a KV block.
pub(super) const BLOCK: usize = 16;
/// Tokens that a prompt has beside its state and that belong to the shared part: the template, the
/// case's number, and the end of the state's last message.
const BESIDE_STATE: usize = 40;
/// The share of the states of decisions that the cache of an engine holds, if none is asked for.
const STATES_CACHED: f64 = 0.6;
/// Fewest KV blocks of an engine: a few prompts must fit while they are computed.
const LEAST_BLOCKS: usize = 128;
/// Prompts of the longest kind that must fit an engine.
const LONGEST_AT_ONCE: usize = 3;
/// Tokens of the longest prompt of a paper's workload, which must fit the demo model's context.
const LONGEST: u32 = 3_900;

/// A workload: the kind of requests that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Task {
    /// Typed decisions of one question each about shared states.
    Decisions,
    /// Tools: system part, tool, question (Preble).
    Toolbench,
    /// An embodied agent: an instruction, then each step extends the last (Preble).
    Agent,
    /// Programming: one demonstration for all, a problem, several samples of each (Preble).
    Programming,
    /// Questions about videos (Preble).
    Video,
    /// Questions about long documents (Preble).
    Loogle,
}

/// The requests of a seed, and the cache that they are for.
pub(super) struct Requests {
    pub(super) jobs: Vec<Job>,
    /// The share of prompt tokens that one cache without bounds would have, if that is known.
    pub(super) most_hits: Option<f64>,
    /// The KV blocks of an engine.
    pub(super) kv_blocks: usize,
    /// A description for the report.
    pub(super) about: String,
}

impl Task {
    /// Returns the name in reports and on the command line.
    pub(super) const fn name(self) -> &'static str {
        match self.kind() {
            Some(kind) => kind.name(),
            None => "decisions",
        }
    }

    /// Returns the paper's workload, if it is one.
    const fn kind(self) -> Option<Kind> {
        Some(match self {
            Self::Decisions => return None,
            Self::Toolbench => Kind::Toolbench,
            Self::Agent => Kind::Agent,
            Self::Programming => Kind::Programming,
            Self::Video => Kind::Video,
            Self::Loogle => Kind::Loogle,
        })
    }

    /// Returns the requests of a seed.
    #[expect(clippy::cast_precision_loss, reason = "numbers of tokens")]
    pub(super) fn requests(
        self,
        config: &Config,
        tokenizer: &Tokenizer,
        seed: u64,
    ) -> Result<Requests> {
        let Some(kind) = self.kind() else {
            return Ok(decisions(config, tokenizer, seed));
        };
        let setting = Setting {
            engines: u32::try_from(config.engines)?,
            seed,
            ..Setting::default()
        };
        let mut workload = kind.generate(&setting)?;
        let share = fit(&mut workload);
        let recurring = recurring_tokens(&workload, BLOCK);
        let (held, whose) = match config.cached_share {
            Some(part) => (part * recurring as f64, "as asked for"),
            None => {
                let held = Preset::Mistral7bA6000.kv_tokens();
                (share * held as f64, "as in the paper")
            }
        };
        let least = (LONGEST as usize * LONGEST_AT_ONCE).div_ceil(BLOCK);
        let kv_blocks = blocks(held).max(least);
        let shape = Shape::one_token(folders::VOCABULARY);
        let requests = requests_of(&workload, &shape)?;
        let tokens: usize = requests.iter().map(|r| r.prompt_tokens as usize).sum();
        let about = format!(
            "{} requests for one token, lengths {share:.2} of the paper's: {} tokens on average; \
             {recurring} tokens are asked for more than once, of which a cache has room for \
             {:.0} %, {whose}",
            requests.len(),
            tokens / requests.len(),
            100.0 * (kv_blocks * BLOCK) as f64 / recurring as f64,
        );
        let job = |request: crate::replay::Request| Job {
            path: "/v1/completions",
            body: request.body,
        };
        Ok(Requests {
            jobs: requests.into_iter().map(job).collect(),
            most_hits: Some(hit_ceiling(&workload, BLOCK)),
            kv_blocks,
            about,
        })
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of tokens")]
fn decisions(config: &Config, tokenizer: &Tokenizer, seed: u64) -> Requests {
    let cached_share = config.cached_share.unwrap_or(STATES_CACHED);
    let kinds = (config.states, config.questions);
    let state = (config.tokens + BESIDE_STATE).div_ceil(BLOCK);
    Requests {
        jobs: Bodies::of_demo(tokenizer).decide_mixed(seed, kinds, config.tokens),
        most_hits: None,
        kv_blocks: blocks(cached_share * (config.states * state * BLOCK) as f64).max(LEAST_BLOCKS),
        about: format!(
            "{} states of {} tokens x {} questions; a cache holds {:.0} % of the states",
            config.states,
            config.tokens,
            config.questions,
            100.0 * cached_share,
        ),
    }
}

/// Shortens all prompts by one factor so that the longest fits the demo model, and returns it.
fn fit(workload: &mut Workload) -> f64 {
    let lengths = workload.arrivals.iter().map(|a| a.prompt.len());
    let longest = lengths.max().unwrap_or(1).max(1);
    let share = (f64::from(LONGEST) / f64::from(longest)).min(1.0);
    for arrival in &mut workload.arrivals {
        arrival.prompt = arrival.prompt.scaled(share);
    }
    share
}

/// Returns the blocks that hold so many tokens.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a number of blocks, within the bounds that are checked"
)]
fn blocks(tokens: f64) -> usize {
    (tokens / BLOCK as f64).ceil() as usize
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::{cluster::tests::config, server::bodies::tokenizer};

    #[test]
    fn caches_hold_their_share_of_the_states() {
        let tokenizer = tokenizer().unwrap();
        let blocks = |config: &Config| {
            let requests = Task::Decisions.requests(config, &tokenizer, 1).unwrap();
            (requests.jobs.len(), requests.kv_blocks)
        };
        // 440 tokens take 28 blocks.
        assert_eq!(blocks(&config()), (2_000, 840));
        let few = Config {
            states: 2,
            ..config()
        };
        assert_eq!(blocks(&few), (80, LEAST_BLOCKS));
    }

    #[test]
    fn every_workload_fits_the_demo_model_and_seeds_differ() {
        let tokenizer = tokenizer().unwrap();
        let config = config();
        for &task in Task::value_variants() {
            let [one, again, other] =
                [1, 1, 2].map(|seed| task.requests(&config, &tokenizer, seed).unwrap());
            assert!(one.jobs.len() >= 200, "{}", task.name());
            let bodies = |of: &Requests| of.jobs.iter().map(|j| j.body.clone()).collect::<Vec<_>>();
            assert_eq!(bodies(&one), bodies(&again), "{}", task.name());
            assert_ne!(bodies(&one), bodies(&other), "{}", task.name());
            if task == Task::Decisions {
                continue;
            }
            let lengths = bodies(&one).into_iter().map(|body| {
                let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(body["max_tokens"], 1);
                body["prompt"].as_array().unwrap().len()
            });
            let longest = lengths.max().unwrap();
            let most = LONGEST as usize;
            assert!(
                (most / 2..=most + 8).contains(&longest),
                "{}: {longest}",
                task.name()
            );
            assert!(one.kv_blocks * BLOCK >= LONGEST_AT_ONCE * most);
        }
    }
}
