//! Random traffic: when requests arrive and what they ask.

use std::{sync::Arc, time::Duration};

use prelude_core::{
    Capacity, Constraint, Generate, Head, NodeIdx, Normalise, Pooling, PromptTree, Request,
    RequestId, RowSpec, SamplingParams, Timestamp, TokenHead, TokenId,
};

use super::{Random, hops::Hops};

/// The times at which requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Arrivals {
    /// Independently, at this mean interval.
    Poisson {
        /// Mean time between two arrivals.
        interval_us: f64,
    },
    /// Many at once, then none for long.
    Bursts {
        /// Mean time between two bursts.
        interval_us: f64,
        /// Most requests in a burst.
        size: u32,
    },
    /// Requests arrive one by one at this interval, without a pause.
    Steady {
        /// Time between two arrivals.
        interval_us: f64,
    },
}

impl Arrivals {
    /// Returns the time until the next arrival, and the number of requests that arrive then.
    pub(crate) fn next(&self, random: &mut Random) -> (Duration, u32) {
        let (interval_us, count) = match *self {
            Self::Poisson { interval_us } => (random.exponential(interval_us), 1),
            Self::Bursts { interval_us, size } => {
                let count = random.in_range(1, size);
                (random.exponential(interval_us), count)
            }
            Self::Steady { interval_us } => (interval_us, 1),
        };
        let ns = (interval_us * 1000.0) as u64;
        (Duration::from_nanos(ns), count)
    }
}

/// The kinds of outputs that requests ask for.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    /// Prompts start with a piece of one of these, so that prefixes are shared.
    pub(crate) prefixes: Vec<Vec<TokenId>>,
    /// Most tokens after the shared piece.
    pub(crate) max_suffix: u32,
    /// Most output tokens.
    pub(crate) max_output: u32,
    /// Most rows, and most choices of a row.
    pub(crate) max_rows: u32,
    /// True if priorities vary.
    pub(crate) priorities: bool,
    /// The number of requests of which one has a deadline; 0: none has.
    pub(crate) deadline_every: u64,
    /// Most requests are these, if there are any.
    pub(crate) steady: Option<Steady>,
    /// The limits that ids and lengths stay within.
    pub(crate) capacity: Capacity,
}

/// Short one-shot requests over one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Steady {
    /// The tokens that all of these requests start with.
    pub(crate) prefix: Vec<TokenId>,
    /// Most tokens after the prefix, at least 1.
    pub(crate) max_suffix: u32,
    /// The number of requests of which one is of another kind.
    pub(crate) others_every: u64,
}

impl Workload {
    /// Returns a random mix for a capacity.
    #[must_use]
    pub(crate) fn random(random: &mut Random, capacity: Capacity) -> Self {
        let longest = capacity.max_context_len - 1;
        let token = |random: &mut Random| random.in_range(0, capacity.vocab_size - 1);
        let prefixes = (0..random.in_range(1, 4))
            .map(|_| {
                (0..random.in_range(1, longest))
                    .map(|_| token(random))
                    .collect()
            })
            .collect();
        Self {
            prefixes,
            max_suffix: random.in_range(1, longest.min(24)),
            max_output: random.in_range(1, 24),
            max_rows: random.in_range(1, 8),
            priorities: random.one_in(4),
            deadline_every: *random.pick(&[0, 0, 5, 20]),
            steady: None,
            capacity,
        }
    }

    /// Returns a random request. It is well formed; whether it fits is the scheduler's to say.
    pub(crate) fn request(&self, random: &mut Random, id: RequestId, now: Timestamp) -> Request {
        if let Some(steady) = &self.steady
            && !random.one_in(steady.others_every)
        {
            return self.steady_request(steady, random, id, now);
        }
        let rows = if random.one_in(2) {
            1
        } else {
            random.in_range(1, self.max_rows)
        };
        // Most rows of a request share a prefix.
        let prefix = random.pick(&self.prefixes).clone();
        let prompts: Vec<Vec<TokenId>> = (0..rows)
            .map(|_| {
                let of = if random.one_in(8) {
                    random.pick(&self.prefixes).clone()
                } else {
                    prefix.clone()
                };
                self.prompt(random, of)
            })
            .collect();
        let (tree, nodes) = if random.one_in(4) {
            self.chain(random, rows)
        } else {
            PromptTree::from_prompts(&prompts).expect("prompts are not empty")
        };
        let decodes = random.one_in(2);
        let rows = nodes
            .into_iter()
            .map(|node| RowSpec {
                node,
                head: self.head(random, tree.prompt_len(node), decodes),
            })
            .collect();
        let mut request = Request::new(id, tree, rows, now);
        if self.priorities {
            request.priority = i64::from(random.in_range(0, 2));
        }
        if self.deadline_every > 0 && random.one_in(self.deadline_every) {
            let after = Duration::from_micros(u64::from(random.in_range(0, 40_000)));
            request.deadline = Some(now.saturating_add(after));
        }
        request.cache_salt = match random.in_range(0, 9) {
            0 => Some(Arc::from("a")),
            1 => Some(Arc::from("b")),
            _ => None,
        };
        request
    }

    fn steady_request(
        &self,
        steady: &Steady,
        random: &mut Random,
        id: RequestId,
        now: Timestamp,
    ) -> Request {
        let mut tokens = steady.prefix.clone();
        for _ in 0..random.in_range(1, steady.max_suffix) {
            tokens.push(random.in_range(0, self.capacity.vocab_size - 1));
        }
        let tree = PromptTree::single(tokens);
        let row = RowSpec {
            node: tree.last_node(),
            head: Head::Classify,
        };
        Request::new(id, tree, vec![row], now)
    }

    fn prompt(&self, random: &mut Random, mut prompt: Vec<TokenId>) -> Vec<TokenId> {
        if !random.one_in(4) {
            prompt.truncate(random.in_range(1, prompt.len() as u32) as usize);
        }
        let room = self.capacity.max_context_len - 1 - prompt.len() as u32;
        let suffix = random.in_range(0, self.max_suffix.min(room));
        for _ in 0..suffix {
            prompt.push(random.in_range(0, self.capacity.vocab_size - 1));
        }
        prompt
    }

    /// Returns a tree whose nodes each continue an earlier one: rows end inside each other's
    /// prompts.
    fn chain(&self, random: &mut Random, rows: u32) -> (PromptTree, Vec<NodeIdx>) {
        let mut tree = PromptTree::new();
        let longest = self.capacity.max_context_len - 1;
        let mut nodes: Vec<NodeIdx> = Vec::new();
        for _ in 0..rows {
            let parent = if nodes.is_empty() || random.one_in(4) {
                None
            } else {
                Some(*random.pick(&nodes))
            };
            let parent = parent.filter(|&p| tree.prompt_len(p) < longest);
            let room = longest - parent.map_or(0, |p| tree.prompt_len(p));
            let len = random.in_range(1, room.min(12));
            let tokens = (0..len).map(|_| random.in_range(0, 1)).collect();
            nodes.push(
                tree.push(parent, tokens)
                    .expect("it is short and has a parent"),
            );
        }
        (tree, nodes)
    }

    fn head(&self, random: &mut Random, prompt: u32, decodes: bool) -> Head {
        let kind = random.in_range(0, if decodes { 9 } else { 5 });
        match kind {
            0 if random.one_in(2) => Head::Tokens(TokenHead::Classify),
            0 if random.one_in(2) => {
                let mut positions: Vec<u32> = (0..prompt).filter(|_| random.one_in(3)).collect();
                if positions.is_empty() {
                    positions.push(random.in_range(0, prompt - 1));
                }
                Head::States {
                    positions: positions.into(),
                }
            }
            0 => Head::Classify,
            1 => Head::LabelScores {
                labels: (0..random.in_range(1, 4)).collect(),
                normalise: *random.pick(&[Normalise::OverLabels, Normalise::OverVocab]),
            },
            2 if prompt >= 2 => {
                let start = random.in_range(1, prompt - 1);
                let end = random.in_range(start + 1, prompt);
                Head::PromptLogprobs {
                    positions: start..end,
                    top: 0,
                }
            }
            2 | 3 => Head::Embed {
                pooling: *random.pick(&[Pooling::First, Pooling::Last, Pooling::Mean]),
                normalise: false,
                dimensions: None,
            },
            4 | 5 => Head::Generate(self.generate(random, 1)),
            _ => {
                let room = self.capacity.max_context_len - prompt;
                let max_tokens = random.in_range(1, self.max_output.min(room).max(1));
                Head::Generate(self.generate(random, max_tokens))
            }
        }
    }

    fn generate(&self, random: &mut Random, max_tokens: u32) -> Generate {
        let mut sampling = SamplingParams {
            temperature: 1.0,
            seed: u64::from(random.in_range(0, 3)),
            min_tokens: random.in_range(0, 3),
            ..SamplingParams::default()
        };
        if random.one_in(2) {
            sampling.stop_token_ids = Arc::from([0, 1]);
        }
        if random.one_in(4) {
            sampling.presence_penalty = 0.5;
        }
        Generate {
            max_tokens,
            n: if random.one_in(3) {
                random.in_range(1, 4)
            } else {
                1
            },
            sampling: Arc::new(sampling),
            top_logprobs: random.one_in(4).then_some(1),
            constraint: random.one_in(4).then(|| {
                let vocab_size = self.capacity.vocab_size;
                Arc::new(Hops { vocab_size }) as Arc<dyn Constraint>
            }),
        }
    }
}
