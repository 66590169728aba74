use prelude_core::RequestId;
use proptest::prelude::*;

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
        Self::with_room(1000)
    }

    /// With room for so many nodes and requests.
    fn with_room(most: usize) -> Self {
        let span = Duration::from_secs(180);
        let mut parts = Self {
            index: Index::new(most, 0),
            window: Window::new(span, most),
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
        let prefixes = self.rebalance.prefixes(now, &self.index, &self.window);
        let of = prefixes.get(&from).into_iter().flatten();
        of.map(|&(_, id)| self.index.granules(id)).collect()
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
fn a_start_that_all_prompts_share_is_no_prefix_of_its_own() {
    let mut parts = Parts::new();
    for question in 0..3 {
        parts.send(A, &[9, 1, 1, 1, 1, 100 + question]);
        parts.send(A, &[9, 2, 2, 2, 2, 200 + question]);
    }
    assert_eq!(parts.movable(seconds(0), A), [5, 5]);
    // Prompts without a document have nothing deeper than the start.
    parts.send(A, &[9, 300]);
    parts.send(A, &[9, 301]);
    assert_eq!(parts.movable(seconds(0), A), [1, 5, 5]);
}

/// The key portion of each prompt, by comparing it with all others: nodes end where prompts part
/// or end.
fn naive_key(prompts: &[(u32, Vec<u64>)], own: &[u64]) -> Vec<u64> {
    let common = |other: &[u64]| own.iter().zip(other).take_while(|(a, b)| a == b).count();
    let ends: BTreeSet<usize> = prompts
        .iter()
        .map(|(_, p)| common(p))
        .chain([0, own.len()])
        .collect();
    let ends: Vec<usize> = ends.into_iter().collect();
    let mut nodes = ends.windows(2).rev();
    let key = nodes.find(|node| node[1] - node[0] > node[0]);
    own[..key.expect("the first node has nothing before it")[1]].to_vec()
}

proptest! {
    #[test]
    fn prefixes_are_those_of_a_naive_count(
        prompts in prop::collection::vec(
            (0..2u32, prop::collection::vec(0..3u64, 1..9)), 1..60,
        ),
    ) {
        let mut parts = Parts::new();
        parts.rebalance.config.max_chain = 100;
        let mut expected: BTreeMap<(EndpointId, Vec<u64>), (Cost, u32)> = BTreeMap::new();
        let leaves: Vec<_> = prompts.iter().map(|(e, p)| parts.send(EndpointId(*e), p)).collect();
        let mut contents = BTreeMap::new();
        for ((endpoint, prompt), leaf) in prompts.iter().zip(leaves) {
            for id in parts.index.upward(leaf) {
                contents.insert(id, prompt[..parts.index.granules(id)].to_vec());
            }
            let key = (EndpointId(*endpoint), naive_key(&prompts, prompt));
            let (cost, requests) = expected.entry(key).or_default();
            *cost += Cost(prompt.len() as u128);
            *requests += 1;
        }
        expected.retain(|_, (_, requests)| *requests >= 2);
        let mut found = BTreeMap::new();
        for (endpoint, movable) in parts.rebalance.prefixes(seconds(0), &parts.index, &parts.window) {
            prop_assert!(movable.iter().is_sorted());
            for (cost, id) in movable {
                found.insert((endpoint, contents[&id].clone()), cost);
            }
        }
        let expected: BTreeMap<_, _> = expected.into_iter().map(|(key, (cost, _))| (key, cost)).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_long_window_is_charged_by_and_by() {
    let mut parts = Parts::with_room(10_000);
    let mut fleet = Fleet::new(0);
    for _ in [A, B] {
        let spec = crate::EndpointSpec {
            kv_capacity_tokens: 64_000,
            service: prelude_core::ServiceTime::default(),
        };
        fleet.join(spec).expect("a good spec");
    }
    // Four prompts, of which half should move.
    for n in 0..1200 {
        parts.send(A, &[n % 4; 8]);
    }
    let Parts {
        rebalance,
        index,
        window,
        ..
    } = &mut parts;
    let mut passes = 0;
    let mut pass = |window: &mut Window| {
        rebalance.pass(seconds(1), &fleet, index, window);
        rebalance.charging.is_some()
    };
    while pass(window) {
        passes += 1;
        let charged = window.entries().filter(|e| e.charged == B).count() as u64;
        assert!(charged <= passes * CHARGES_PER_PICK);
    }
    assert_eq!(passes, 4);
    let sums = window.loads().iter().map(|l| l.sum);
    assert_eq!(sums.collect::<Vec<_>>(), [Cost(4800); 2]);
}

#[test]
fn what_has_moved_stays_for_a_while() {
    let mut parts = Parts::new();
    parts.send(A, &[1, 1, 1, 1]);
    let document = parts.send(A, &[1, 1, 1, 1]);
    let Parts {
        rebalance, index, ..
    } = &mut parts;
    rebalance.put(seconds(10), document, A, &[B], index);
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
    rebalance.put(seconds(0), document, A, &[A, B], index);
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
