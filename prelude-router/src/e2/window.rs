//! The requests of the last three minutes or so, and what they cost each endpoint.

use std::{collections::VecDeque, time::Duration};

use prelude_core::{RequestId, Timestamp};

use crate::{endpoint::EndpointId, index::NodeId, service::Cost};

/// A request of the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) at: Timestamp,
    /// The request; `None` for what an endpoint is charged with when it joins.
    pub(super) request: Option<RequestId>,
    /// The endpoint that the request went to.
    pub(super) endpoint: EndpointId,
    /// The last node of its prompt, if that has one.
    pub(super) leaf: Option<NodeId>,
    pub(super) prefill: Cost,
    pub(super) decode: Cost,
}

impl Entry {
    pub(super) fn cost(&self) -> Cost {
        self.prefill + self.decode
    }
}

/// The load of an endpoint within the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) endpoint: EndpointId,
    /// `L` of the paper.
    pub(super) sum: Cost,
    /// The part of that which is decoding.
    pub(super) decode: Cost,
    /// Requests that went there.
    pub(super) requests: u64,
}

impl Load {
    fn add(&mut self, entry: &Entry) {
        self.sum += entry.cost();
        self.decode += entry.decode;
        self.requests += u64::from(entry.request.is_some());
    }

    fn subtract(&mut self, entry: &Entry) {
        self.sum -= entry.cost();
        self.decode -= entry.decode;
        self.requests -= u64::from(entry.request.is_some());
    }

    /// Returns the share of decoding in the endpoint's load.
    pub(super) fn decode_ratio(&self) -> f64 {
        self.decode.0 as f64 / self.sum.0.max(1) as f64
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Window {
    span: Duration,
    max_entries: usize,
    entries: VecDeque<Entry>,
    /// The loads by id of the endpoint, as the fleet has them.
    loads: Vec<Load>,
}

impl Window {
    pub(super) fn new(span: Duration, max_entries: usize) -> Self {
        Self {
            span,
            max_entries,
            entries: VecDeque::new(),
            loads: Vec::new(),
        }
    }

    /// Returns the loads by id of the endpoint.
    pub(super) fn loads(&self) -> &[Load] {
        &self.loads
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    fn load(&mut self, endpoint: EndpointId) -> Option<&mut Load> {
        let at = self.loads.binary_search_by_key(&endpoint, |l| l.endpoint);
        at.ok().map(|at| &mut self.loads[at])
    }

    /// Adds an endpoint with the least load of all: it gets what is new, but not everything.
    pub(super) fn join(&mut self, now: Timestamp, endpoint: EndpointId) {
        let least = self.loads.iter().map(|l| l.sum).min().unwrap_or_default();
        self.loads.push(Load {
            endpoint,
            sum: Cost::ZERO,
            decode: Cost::ZERO,
            requests: 0,
        });
        self.push(Entry {
            at: now,
            request: None,
            endpoint,
            leaf: None,
            prefill: least,
            decode: Cost::ZERO,
        });
    }

    /// Forgets an endpoint and its requests.
    pub(super) fn leave(&mut self, endpoint: EndpointId) {
        self.entries.retain(|entry| entry.endpoint != endpoint);
        self.loads.retain(|l| l.endpoint != endpoint);
    }

    pub(super) fn push(&mut self, entry: Entry) {
        if let Some(load) = self.load(entry.endpoint) {
            load.add(&entry);
        }
        self.entries.push_back(entry);
    }

    /// Takes out the oldest request if it is too old, or one too many.
    pub(super) fn pop(&mut self, now: Timestamp) -> Option<Entry> {
        let oldest = self.entries.front()?;
        let is_over = now.saturating_since(oldest.at) >= self.span;
        if !is_over && self.entries.len() <= self.max_entries {
            return None;
        }
        let entry = self.entries.pop_front()?;
        self.take_back(&entry);
        Some(entry)
    }

    fn take_back(&mut self, entry: &Entry) {
        if let Some(load) = self.load(entry.endpoint) {
            load.subtract(entry);
        }
    }

    /// Moves a request's cost to the endpoint that it went to in place of the one that was said.
    /// Returns the entry as it was before.
    pub(super) fn serve(&mut self, request: RequestId, endpoint: EndpointId) -> Option<Entry> {
        let mut recent = self.entries.iter().enumerate().rev();
        let (at, &was) = recent.find(|(_, e)| e.request == Some(request))?;
        let entry = Entry { endpoint, ..was };
        self.take_back(&was);
        self.entries[at] = entry;
        if let Some(load) = self.load(endpoint) {
            load.add(&entry);
        }
        Some(was)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Push(u32, u128),
        Serve(u64, u32),
        Leave(u32),
        Wait(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let endpoint = 0..4u32;
        prop_oneof![
            6 => (endpoint.clone(), 1..100u128).prop_map(|(e, cost)| Step::Push(e, cost)),
            1 => (0..40u64, endpoint.clone()).prop_map(|(r, e)| Step::Serve(r, e)),
            1 => endpoint.prop_map(Step::Leave),
            2 => (0..5u64).prop_map(Step::Wait),
        ]
    }

    /// Recounts the loads.
    fn recount(window: &Window) -> Vec<Load> {
        let ids = window.loads.iter().map(|l| l.endpoint);
        let of = |endpoint| {
            let own = || window.entries().filter(|e| e.endpoint == endpoint);
            Load {
                endpoint,
                sum: own().fold(Cost::ZERO, |sum, e| sum + e.cost()),
                decode: own().fold(Cost::ZERO, |sum, e| sum + e.decode),
                requests: own().filter(|e| e.request.is_some()).count() as u64,
            }
        };
        ids.map(of).collect()
    }

    proptest! {
        #[test]
        fn loads_are_the_sums_of_the_window_and_return_to_nothing(
            steps in prop::collection::vec(step(), 1..200),
        ) {
            let second = Duration::from_secs(1);
            let mut window = Window::new(10 * second, 20);
            let mut now = Timestamp::ZERO;
            // Ids of those that have joined, by the numbers above.
            let mut ids = [0, 1, 2, 3].map(EndpointId);
            let mut next = 4;
            for id in ids {
                window.join(now, id);
            }
            for (request, step) in (0..).zip(steps) {
                match step {
                    Step::Push(endpoint, cost) => window.push(Entry {
                        at: now,
                        request: Some(RequestId(request)),
                        endpoint: ids[endpoint as usize],
                        leaf: None,
                        prefill: Cost(cost),
                        decode: Cost(cost / 3),
                    }),
                    Step::Serve(request, endpoint) => {
                        window.serve(RequestId(request), ids[endpoint as usize]);
                    }
                    Step::Leave(endpoint) => {
                        window.leave(ids[endpoint as usize]);
                        ids[endpoint as usize] = EndpointId(next);
                        window.join(now, EndpointId(next));
                        next += 1;
                    }
                    Step::Wait(seconds) => now = now.saturating_add(seconds as u32 * second),
                }
                while window.pop(now).is_some() {}
                prop_assert!(window.entries.len() <= 20);
                prop_assert_eq!(&window.loads, &recount(&window));
            }
            now = now.saturating_add(10 * second);
            while window.pop(now).is_some() {}
            for load in window.loads() {
                prop_assert_eq!((load.sum, load.decode, load.requests), (Cost::ZERO, Cost::ZERO, 0));
            }
        }
    }
}
