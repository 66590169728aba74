//! Workloads of the papers, as lists of arrivals that a seed determines.
//!
//! Sources: Preble (Srivatsa et al., ICLR 2025), table 1 and §4.1, for the five workloads with
//! shared prefixes; `PrefillOnly` (Du et al., SOSP 2025), §7.1; LAPS for conversations. The papers
//! give moments and no lists, so the lists here are made to have those moments: *reconstructed*,
//! not replayed. [`super::trace`] replays.

mod agent;
mod conversation;
mod draw;
mod drift;
mod hot_spot;
mod kind;
mod mixed;
mod order;
mod prefill_only;
mod shared_prefix;

use prelude_core::Timestamp;

use super::Prompt;
use crate::random::Random;

pub use draw::Moments;
pub use kind::{Kind, Setting};
pub use mixed::Gaps;
pub use order::Order;

/// A request and when it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The arrival time.
    pub at: Timestamp,
    /// The prompt.
    pub prompt: Prompt,
    /// Tokens that it generates, at least 1: known to the modelled engine, which needs them, and
    /// not for routers to look at.
    pub output_tokens: u32,
    /// The number of its *key portion*, the shared prefix of its kind: the tool, the video, the
    /// profile. A request without a shared prefix has a number of its own.
    pub key: u32,
    /// The number of its user. In a workload without users, each request has a user of its own.
    pub user: u32,
    /// Prompts with different roots have nothing in common.
    pub root: u32,
}

/// Arrivals, sorted by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The name in reports.
    pub name: String,
    /// The requests.
    pub arrivals: Vec<Arrival>,
    /// The number of first requests that only warm caches: their times are in no figure.
    pub warm_up: usize,
    /// A closed loop: the number of clients, each of which sends the next request of the list when
    /// its last one is answered. Arrival times do not count then. `None`: requests arrive when the
    /// list says.
    pub clients: Option<usize>,
}

impl Workload {
    /// Returns a workload of these arrivals, which it sorts; those that come at once stay in order.
    #[must_use]
    pub fn new(name: impl Into<String>, mut arrivals: Vec<Arrival>) -> Self {
        arrivals.sort_by_key(|arrival| arrival.at);
        Self {
            name: name.into(),
            arrivals,
            warm_up: 0,
            clients: None,
        }
    }

    /// Returns the same requests in a closed loop of so many clients.
    #[must_use]
    pub fn in_closed_loop(mut self, clients: usize) -> Self {
        self.name = format!("{}, closed loop of {clients}", self.name);
        self.clients = Some(clients);
        self
    }

    /// Returns the number of requests per second, from the first to the last.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let (Some(first), Some(last)) = (self.arrivals.first(), self.arrivals.last()) else {
            return 0.0;
        };
        let seconds = last.at.saturating_since(first.at).as_secs_f64();
        // Gaps, not requests.
        (self.arrivals.len() - 1) as f64 / seconds.max(f64::MIN_POSITIVE)
    }

    /// Returns the number of tokens of all prompts.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        let lens = self.arrivals.iter().map(|a| u64::from(a.prompt.len()));
        lens.sum()
    }

    /// Returns the same requests in the same order, faster or slower: as many per second as `rate`
    /// on average.
    #[must_use]
    pub fn at_rate(mut self, rate: f64) -> Self {
        let factor = self.rate() / rate;
        for arrival in &mut self.arrivals {
            let scaled = arrival.at.as_nanos() as f64 * factor;
            arrival.at = Timestamp::from_nanos(scaled as u64);
        }
        self
    }
}

/// The random numbers and counters of a generator, separate for each part of a mixture.
#[derive(Debug)]
struct Builder {
    random: Random,
    streams: u64,
    keys: u32,
    roots: u32,
}

impl Builder {
    fn new(seed: u64) -> Self {
        let mut random = Random::far(seed);
        Self {
            // Seeds differ in what prompts hold, too.
            streams: random.next() >> 16 << 16,
            random,
            keys: 0,
            roots: 0,
        }
    }

    /// Returns a token stream that no other prompt has.
    const fn stream(&mut self) -> u64 {
        self.streams += 1;
        self.streams
    }

    const fn key(&mut self) -> u32 {
        self.keys += 1;
        self.keys - 1
    }

    const fn root(&mut self) -> u32 {
        self.roots += 1;
        self.roots - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_sorted_and_knows_its_rate() {
        let at = |ms: u64| Arrival {
            at: Timestamp::from_nanos(ms * 1_000_000),
            prompt: Prompt::default(),
            output_tokens: 1,
            key: 0,
            user: 0,
            root: 0,
        };
        let workload = Workload::new("w", vec![at(2000), at(0), at(1000)]);
        assert!(workload.arrivals.is_sorted_by_key(|a| a.at));
        assert!((workload.rate() - 1.0).abs() < 1e-9);
        let faster = workload.at_rate(4.0);
        assert!((faster.rate() - 4.0).abs() < 1e-9);
        assert_eq!(faster.arrivals[2].at.as_nanos(), 500_000_000);
    }
}
