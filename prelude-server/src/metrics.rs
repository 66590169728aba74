//! Counters of the edge. The engine keeps its own; `endpoints/metrics.rs` prints both.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use prelude_engine::Histogram;

/// Seconds, from ten microseconds to ten seconds.
const SECONDS: &[f64] = &[
    0.00001, 0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0,
];

/// Counts, from 1 to the most a request may ask for.
const COUNTS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
    32768.0, 131_072.0,
];

/// Shares of a whole, finer towards its end.
const SHARES: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0];

/// Counters of the edge. Labels come from fixed sets, never from a request.
#[derive(Debug)]
pub(crate) struct EdgeMetrics(Mutex<Counters>);

/// The counters of [`EdgeMetrics`].
#[derive(Clone, Debug)]
pub(crate) struct Counters {
    /// Requests by route and status; 499 for clients that left.
    pub(crate) requests: BTreeMap<(&'static str, u16), u64>,
    /// Refusals by reason.
    pub(crate) rejects: BTreeMap<&'static str, u64>,
    /// Unknown request fields, by route.
    pub(crate) unknown_fields: BTreeMap<&'static str, u64>,
    /// Seconds spent encoding, waiting for a thread included.
    pub(crate) encode_seconds: Histogram,
    /// Requests answered or dropped after their deadline.
    pub(crate) deadlines_missed: u64,
    /// Constraints that were compiled already.
    pub(crate) grammar_cache_hits: u64,
    /// Parameters of generations, by the served model's name.
    pub(crate) generations: BTreeMap<String, Asked>,
    /// Probability that the model says any of a question's labels, by the served model's name.
    pub(crate) label_mass: BTreeMap<String, Histogram>,
}

/// Parameters of one model's generations.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// `n`.
    pub(crate) n: Histogram,
    /// `max_tokens`.
    pub(crate) max_tokens: Histogram,
}

impl Default for EdgeMetrics {
    fn default() -> Self {
        Self(Mutex::new(Counters {
            requests: BTreeMap::new(),
            rejects: BTreeMap::new(),
            unknown_fields: BTreeMap::new(),
            encode_seconds: Histogram::new(SECONDS),
            deadlines_missed: 0,
            grammar_cache_hits: 0,
            generations: BTreeMap::new(),
            label_mass: BTreeMap::new(),
        }))
    }
}

impl EdgeMetrics {
    fn lock(&self) -> MutexGuard<'_, Counters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all counters as of now.
    pub(crate) fn snapshot(&self) -> Counters {
        self.lock().clone()
    }

    pub(crate) fn request(&self, route: &'static str, code: u16) {
        *self.lock().requests.entry((route, code)).or_default() += 1;
    }

    pub(crate) fn reject(&self, reason: &'static str) {
        *self.lock().rejects.entry(reason).or_default() += 1;
    }

    pub(crate) fn unknown_fields(&self, route: &'static str, fields: u64) {
        *self.lock().unknown_fields.entry(route).or_default() += fields;
    }

    pub(crate) fn encoded(&self, seconds: f64) {
        self.lock().encode_seconds.observe(seconds);
    }

    pub(crate) fn deadline_missed(&self) {
        self.lock().deadlines_missed += 1;
    }

    #[cfg_attr(
        not(feature = "llguidance"),
        expect(dead_code, reason = "of grammars alone")
    )]
    pub(crate) fn grammar_cache_hit(&self) {
        self.lock().grammar_cache_hits += 1;
    }

    /// Notes the probability mass of the labels, for the model served as `model`.
    pub(crate) fn label_masses(&self, model: &str, masses: impl Iterator<Item = f64>) {
        let mut counters = self.lock();
        // The name is copied for a model's first request only.
        if !counters.label_mass.contains_key(model) {
            let histogram = Histogram::new(SHARES);
            counters.label_mass.insert(model.to_owned(), histogram);
        }
        if let Some(histogram) = counters.label_mass.get_mut(model) {
            masses.for_each(|mass| histogram.observe(mass));
        }
    }

    /// Notes a prompt to be continued by the model served as `model`.
    pub(crate) fn generation(&self, model: &str, n: u32, max_tokens: u32) {
        let mut counters = self.lock();
        // The name is copied for a model's first request only.
        if !counters.generations.contains_key(model) {
            let asked = Asked {
                n: Histogram::new(COUNTS),
                max_tokens: Histogram::new(COUNTS),
            };
            counters.generations.insert(model.to_owned(), asked);
        }
        if let Some(asked) = counters.generations.get_mut(model) {
            asked.n.observe(f64::from(n));
            asked.max_tokens.observe(f64::from(max_tokens));
        }
    }
}
