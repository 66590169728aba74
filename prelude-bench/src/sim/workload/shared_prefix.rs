//! The workloads of Preble's table 1 whose prompts are `system + key portion + own text`.
//!
//! The table gives moments of six things, and they do not all fit together. What is kept here is
//! the length of prompts and outputs and the share of a prompt that other requests have too. The
//! rest follows:
//! - Own text is independent of the key portion's length and has the mean and deviation that the
//!   shared share leaves it; the key portion gets what is left of the prompt's moments.
//! - A share of 88 % with a deviation of 32 % is nearly a coin's: some requests share nothing.
//!   Those are `lone`, with a key portion of their own.
//! - Requests per key portion: the mean follows from the authors' numbers of prefixes and of
//!   requests (240 tools and 1,800 requests are 7.5 a tool and not 39); of the table, the
//!   deviation in terms of the mean is kept.
//! - Video QA asks in proportion to a video's length, so lengths are drawn such that they have
//!   the table's moments over *requests*; the deviation of the number of requests follows.
//! - Programming's demonstration is one for all and is the key portion of nearly everybody (that
//!   is how 126 requests per key portion have a deviation of 2,157), so it is the system part.

use super::{
    Arrival, Builder, Moments,
    draw::{LogNormal, apportion},
};
use crate::sim::{Prompt, Run};
use prelude_core::Timestamp;

/// The spread of requests over the key portions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Popularity {
    /// All key portions are as popular.
    Even,
    /// Log-normal, with this deviation in terms of the mean.
    Spread(f64),
    /// Proportionally to the length of the key portion.
    ByLength,
    /// The k-th most popular in proportion to `k^-s`.
    Zipf(f64),
}

/// A row of the table, as it is generated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shape {
    /// Tokens of a whole prompt, over requests.
    pub(super) prompt: Moments,
    /// Tokens that every prompt begins with.
    pub(super) system: u32,
    /// Tokens of its own that a prompt ends with.
    pub(super) own: Moments,
    /// Generated tokens.
    pub(super) output: Moments,
    /// The share of requests that have a key portion to themselves.
    pub(super) lone: f64,
    pub(super) popularity: Popularity,
    /// Most tokens of a prompt and its output.
    pub(super) context: u32,
}

impl Shape {
    /// 15 % of a prompt are its own; 9 % are the system part, since the key portion has 76 %.
    pub(super) const TOOLBENCH: Self = Self {
        prompt: Moments::new(1835.0, 742.0),
        system: 165,
        own: Moments::new(0.15 * 1835.0, 0.13 * 1835.0),
        output: Moments::new(43.0, 16.0),
        lone: 0.0,
        popularity: Popularity::Spread(64.0 / 39.0),
        context: 4096,
    };

    /// The ablation: popularity by Zipf's law. A fifth of the requests are of one tool, whose length
    /// weighs on the mean: it is the table's over many seeds, not in one.
    pub(super) const ZIPF: Self = Self {
        popularity: Popularity::Zipf(1.1),
        ..Self::TOOLBENCH
    };

    /// A demonstration of 78 % of a prompt; 3 % are a prompt's own.
    pub(super) const PROGRAMMING: Self = Self {
        prompt: Moments::new(3871.0, 1656.0),
        system: 3019,
        own: Moments::new(0.03 * 3871.0, 0.074 * 3871.0),
        output: Moments::new(190.0, 343.0),
        lone: 0.0,
        popularity: Popularity::Even,
        context: 32_768,
    };

    /// Questions are 1 % of a prompt, and 11 % of the requests are alone with their video: then
    /// 0.99 * 0.89 = 88 % is shared, with a deviation of 0.99 * sqrt(0.11 * 0.89) = 31 %.
    pub(super) const VIDEO: Self = Self {
        prompt: Moments::new(9865.0, 5976.0),
        system: 0,
        own: Moments::new(0.01 * 9865.0, 0.002 * 9865.0),
        output: Moments::new(4.0, 1.5),
        lone: 0.11,
        popularity: Popularity::ByLength,
        context: 32_768,
    };

    /// Questions are 4 % of a prompt, and 5 % of the requests are alone with their document:
    /// 0.96 * 0.95 = 91 %, with a deviation of 0.96 * sqrt(0.05 * 0.95) = 21 % and the questions'.
    pub(super) const LOOGLE: Self = Self {
        prompt: Moments::new(23_474.0, 6105.0),
        system: 13,
        own: Moments::new(0.04 * 23_474.0, 0.10 * 23_474.0),
        output: Moments::new(16.0, 9.9),
        lone: 0.05,
        popularity: Popularity::Spread(8.6 / 18.0),
        context: 32_768,
    };
}

/// Key portions of a shape, from which requests are made.
#[derive(Debug)]
pub(super) struct Prefixes {
    shape: Shape,
    key: LogNormal,
    /// The tokens that every prompt begins with, if the shape has any, and their root.
    system: Run,
    root: u32,
    pub(super) portions: Vec<Portion>,
}

/// A key portion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Portion {
    run: Run,
    key: u32,
    root: u32,
}

impl Prefixes {
    pub(super) fn new(shape: Shape, count: u32, build: &mut Builder) -> Self {
        let system = Run {
            stream: build.stream(),
            start: 0,
            len: shape.system,
        };
        let fixed = Moments::new(f64::from(shape.system), 0.0);
        let key = LogNormal::new(shape.prompt.less(fixed).less(shape.own));
        let mut prefixes = Self {
            shape,
            key,
            system,
            root: build.root(),
            portions: Vec::new(),
        };
        let shared = match shape.popularity {
            Popularity::ByLength => key.before_counting_by_size(),
            _ => key,
        };
        prefixes.portions = (0..count)
            .map(|_| prefixes.portion(shared, build))
            .collect();
        prefixes
    }

    fn portion(&self, length: LogNormal, build: &mut Builder) -> Portion {
        // Leaves room for the system part, and at least a 32nd of the context for the rest.
        let most = self.shape.context / 32 * 31 - self.shape.system;
        Portion {
            run: Run {
                stream: build.stream(),
                start: 0,
                len: length.tokens(&mut build.random, 1..=most),
            },
            key: build.key(),
            // What begins with a system part of their own is a tree for all.
            root: if self.shape.system > 0 {
                self.root
            } else {
                build.root()
            },
        }
    }

    /// Returns a request with this key portion and text of its own. It comes at time zero, from user 0.
    pub(super) fn request(&self, portion: Portion, build: &mut Builder) -> Arrival {
        let shape = &self.shape;
        let left = shape.context - shape.system - portion.run.len;
        let output_tokens =
            LogNormal::new(shape.output).tokens(&mut build.random, 1..=(left / 2).max(1));
        let most = left.saturating_sub(output_tokens).max(1);
        let own = Run {
            stream: build.stream(),
            start: 0,
            len: LogNormal::new(shape.own).tokens(&mut build.random, 1..=most),
        };
        Arrival {
            at: Timestamp::ZERO,
            prompt: Prompt::new([self.system, portion.run, own]),
            output_tokens,
            key: portion.key,
            user: 0,
            root: portion.root,
        }
    }

    /// Returns a request that shares no more than the system part.
    pub(super) fn lone(&self, build: &mut Builder) -> Arrival {
        let portion = self.portion(self.key, build);
        self.request(portion, build)
    }

    /// Returns `requests` arrivals, in one group for each key portion.
    pub(super) fn groups(&self, requests: u32, build: &mut Builder) -> Vec<Vec<Arrival>> {
        let lone = (f64::from(requests) * self.shape.lone).round() as u32;
        let counts = apportion(requests - lone, &self.weights(build));
        let mut groups = Vec::new();
        for (&portion, count) in self.portions.iter().zip(counts) {
            groups.push((0..count).map(|_| self.request(portion, build)).collect());
        }
        groups.extend((0..lone).map(|_| vec![self.lone(build)]));
        groups
    }

    fn weights(&self, build: &mut Builder) -> Vec<f64> {
        let portions = self.portions.iter();
        match self.shape.popularity {
            Popularity::Even => portions.map(|_| 1.0).collect(),
            Popularity::ByLength => portions.map(|p| f64::from(p.run.len)).collect(),
            Popularity::Spread(sd) => {
                let popularity = LogNormal::new(Moments::new(1.0, sd));
                portions
                    .map(|_| popularity.draw(&mut build.random))
                    .collect()
            }
            Popularity::Zipf(s) => (1..=self.portions.len())
                .map(|rank| (rank as f64).powf(-s))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Order, Workload, shared_tokens};

    /// Many of them, so that what is left of chance is small. Deviations may be off by more than
    /// means: the context's limit cuts the longest of tools and documents, and the tail of
    /// programming's is heavy.
    fn check(shape: Shape, shared: Moments, tolerance: Tolerance) {
        for seed in 1..=2 {
            let mut build = Builder::new(seed);
            let groups = Prefixes::new(shape, 1500, &mut build).groups(12_000, &mut build);
            let arrivals = Order::Shuffled.line_up(groups, &mut build.random);
            let workload = Workload::new("test", arrivals);
            let lens = |f: fn(&Arrival) -> u32| -> Vec<f64> {
                workload.arrivals.iter().map(|a| f64::from(f(a))).collect()
            };
            let prompts = lens(|a| a.prompt.len());
            near("prompt", Moments::of(&prompts), shape.prompt, tolerance);
            let outputs = Moments::of(&lens(|a| a.output_tokens));
            near("output", outputs, shape.output, tolerance);
            let shares: Vec<f64> = shared_tokens(&workload)
                .iter()
                .zip(&prompts)
                .map(|(shared, len)| f64::from(*shared) / len)
                .collect();
            let got = Moments::of(&shares);
            assert!((got.mean - shared.mean).abs() < 0.03, "share {got:?}");
            assert!((got.sd - shared.sd).abs() < 0.06, "share {got:?}");
            let room = |a: &Arrival| a.prompt.len() + a.output_tokens <= shape.context;
            assert!(workload.arrivals.iter().all(room));
        }
    }

    /// Parts of the value.
    #[derive(Clone, Copy)]
    struct Tolerance {
        mean: f64,
        sd: f64,
    }

    #[track_caller]
    fn near(what: &str, got: Moments, expected: Moments, tolerance: Tolerance) {
        let off = (got.mean / expected.mean - 1.0).abs();
        assert!(off < tolerance.mean, "{what}: {got:?}, not {expected:?}");
        let off = (got.sd / expected.sd - 1.0).abs();
        assert!(off < tolerance.sd, "{what}: {got:?}, not {expected:?}");
    }

    const fn within(mean: f64, sd: f64) -> Tolerance {
        Tolerance { mean, sd }
    }

    #[test]
    fn prompts_outputs_and_shares_are_those_of_the_table() {
        check(
            Shape::TOOLBENCH,
            Moments::new(0.85, 0.13),
            within(0.05, 0.2),
        );
        check(
            Shape::PROGRAMMING,
            Moments::new(0.97, 0.074),
            within(0.06, 0.3),
        );
        check(Shape::VIDEO, Moments::new(0.88, 0.32), within(0.06, 0.15));
        check(Shape::LOOGLE, Moments::new(0.91, 0.24), within(0.06, 0.27));
    }

    #[test]
    fn with_zipf_s_law_lengths_are_the_table_s_over_many_seeds() {
        let mean = |seed| {
            let mut build = Builder::new(seed);
            let groups = Prefixes::new(Shape::ZIPF, 320, &mut build).groups(5400, &mut build);
            let prompts: Vec<f64> = groups
                .iter()
                .flatten()
                .map(|a| f64::from(a.prompt.len()))
                .collect();
            Moments::of(&prompts).mean
        };
        let means: Vec<f64> = (1..=40).map(mean).collect();
        let got = Moments::of(&means);
        assert!((got.mean / 1835.0 - 1.0).abs() < 0.05, "{got:?}");
    }

    /// Returns the counts of requests by key portion, largest first, lone ones left out.
    fn counts(shape: Shape, portions: u32, requests: u32) -> Vec<usize> {
        let mut build = Builder::new(3);
        let groups = Prefixes::new(shape, portions, &mut build).groups(requests, &mut build);
        let mut counts: Vec<usize> = groups[..portions as usize].iter().map(Vec::len).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    }

    #[test]
    fn popularity_is_the_shape_s() {
        assert!(counts(Shape::PROGRAMMING, 100, 700).iter().all(|n| *n == 7));
        let zipf = counts(Shape::ZIPF, 320, 5400);
        let sum: f64 = (1..=320).map(|k| f64::from(k).powf(-1.1)).sum();
        assert_eq!(zipf[0], (5400.0 / sum).round() as usize);
        let spread = counts(Shape::TOOLBENCH, 2000, 78_000);
        let spread: Vec<f64> = spread.into_iter().map(|n| n as f64).collect();
        let got = Moments::of(&spread);
        assert!(
            (got.sd / got.mean / (64.0 / 39.0) - 1.0).abs() < 0.2,
            "{got:?}"
        );
    }

    #[test]
    fn requests_of_one_key_portion_share_it_and_own_text_is_own() {
        let mut build = Builder::new(4);
        let prefixes = Prefixes::new(Shape::TOOLBENCH, 2, &mut build);
        let [a, b] = [prefixes.portions[0], prefixes.portions[1]];
        let mut request = |portion| prefixes.request(portion, &mut build).prompt;
        let (first, second, other) = (request(a), request(a), request(b));
        assert_eq!(first.shared_with(&second), 165 + a.run.len);
        assert_eq!(first.shared_with(&other), 165);
    }
}
