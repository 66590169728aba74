use prelude_core::RequestId;

use super::*;
use crate::index::Path;

fn seconds(s: u64) -> Timestamp {
    Timestamp::ZERO.saturating_add(Duration::from_secs(s))
}

/// Parts of E2, to put requests where a test wants them.
struct Parts {
    index: Index,
    window: Window,
    rebalance: Rebalance,
    sent: u64,
}

const A: EndpointId = EndpointId(0);
const B: EndpointId = EndpointId(1);

impl Parts {
    fn new() -> Self {
        let span = Duration::from_secs(180);
        let mut parts = Self {
            index: Index::new(1000, 0),
            window: Window::new(span, 1000),
            rebalance: Rebalance::new(RebalanceConfig::default(), span),
            sent: 0,
        };
        for id in [A, B] {
            parts.index.join(id, 1000);
            parts.window.join(Timestamp::ZERO, id);
        }
        parts
    }

    /// A request for a prompt of these granules went there. Returns its last node.
    fn send(&mut self, endpoint: EndpointId, granules: &[u64]) -> NodeId {
        let hashes = granules.iter().scan(7, |hash, granule| {
            *hash = crate::random::mix(*hash ^ granule);
            Some(*hash)
        });
        let hashes: Vec<u64> = hashes.collect();
        let mut path = Path::default();
        self.index.find(&hashes, &mut path);
        let leaf = self.index.insert(&hashes, &mut path);
        let leaf = leaf.expect("it has granules");
        self.index.assign(endpoint, leaf);
        self.sent += 1;
        self.window.push(Entry {
            at: Timestamp::ZERO,
            request: Some(RequestId(self.sent)),
            endpoint,
            charged: endpoint,
            leaf: Some(leaf),
            prefill: Cost(granules.len() as u128),
            decode: Cost::ZERO,
        });
        leaf
    }

    /// The lengths of the prefixes that could leave an endpoint, cheapest first.
    fn movable(&self, now: Timestamp, from: EndpointId) -> Vec<usize> {
        let prefixes = self
            .rebalance
            .prefixes(now, from, &self.index, &self.window);
        let lens = prefixes.iter().map(|&(_, id)| self.index.granules(id));
        lens.map(|(before, own)| before + own).collect()
    }
}

#[test]
fn prefixes_move_that_are_long_shared_and_not_agents() {
    let mut parts = Parts::new();
    // A document and three questions, and a document with one.
    for question in 0..3 {
        parts.send(A, &[1, 1, 1, 1, 100 + question]);
    }
    parts.send(A, &[2, 2, 2, 2, 2, 200]);
    assert_eq!(parts.movable(seconds(0), A), [4]);
    assert!(parts.movable(seconds(0), B).is_empty());
    // What grows step by step stays, once it has grown far.
    for steps in 0..4 {
        let prompt: Vec<u64> = (0..3 + steps).map(|n| 300 + n).collect();
        parts.send(A, &prompt);
        let own = parts.movable(seconds(0), A).contains(&3);
        assert_eq!(own, steps > 0, "{steps} steps");
    }
    parts.send(A, &[300, 301, 302, 303, 304, 305, 306]);
    assert_eq!(parts.movable(seconds(0), A), [4]);
}

#[test]
fn what_has_moved_stays_for_a_while() {
    let mut parts = Parts::new();
    parts.send(A, &[1, 1, 1, 1]);
    let document = parts.send(A, &[1, 1, 1, 1]);
    let Parts {
        rebalance, index, ..
    } = &mut parts;
    rebalance.put(seconds(10), document, &[B], index);
    assert!(parts.movable(seconds(39), A).is_empty());
    assert_eq!(parts.movable(seconds(40), A), [4]);
}

#[test]
fn copies_that_are_hardly_used_end_after_a_window() {
    let mut parts = Parts::new();
    let document = parts.send(A, &[1, 1, 1, 1]);
    for _ in 0..30 {
        parts.send(A, &[1, 1, 1, 1]);
    }
    let members = |parts: &Parts| {
        let redirect = parts.index.redirect(document);
        redirect.map_or(0, |redirect| redirect.members.len())
    };
    let Parts {
        rebalance, index, ..
    } = &mut parts;
    rebalance.put(seconds(0), document, &[A, B], index);
    rebalance.end_overrides(seconds(1), index);
    rebalance.end_overrides(seconds(180), index);
    assert_eq!(members(&parts), 2);
    // Two of 33 are enough to begin anew.
    parts.send(B, &[1, 1, 1, 1]);
    parts.send(B, &[1, 1, 1, 1]);
    let Parts {
        rebalance, index, ..
    } = &mut parts;
    rebalance.end_overrides(seconds(182), index);
    assert_eq!(members(&parts), 2);
    for _ in 0..30 {
        parts.send(A, &[1, 1, 1, 1]);
    }
    let Parts {
        rebalance, index, ..
    } = &mut parts;
    rebalance.end_overrides(seconds(200), index);
    rebalance.end_overrides(seconds(379), index);
    assert_eq!(members(&parts), 2);
    let Parts {
        rebalance, index, ..
    } = &mut parts;
    rebalance.end_overrides(seconds(380), index);
    assert_eq!(members(&parts), 1);
}
