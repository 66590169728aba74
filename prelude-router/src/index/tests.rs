//! The index beside a naive one, which keeps a list of requests and of cached granules.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::random::mix;

const ENDPOINTS: [EndpointId; 3] = [EndpointId(0), EndpointId(1), EndpointId(5)];

/// Chained hashes of a prompt, a granule for each number.
fn hashes(prompt: &[u8]) -> Vec<u64> {
    let chain = prompt.iter().scan(9, |hash, granule| {
        *hash = mix(*hash ^ (u64::from(*granule) + 1));
        Some(*hash)
    });
    chain.collect()
}

/// The naive twin of an index.
#[derive(Default)]
struct Twin {
    requests: VecDeque<(EndpointId, Vec<u64>, NodeId)>,
    /// For each endpoint and granule's hash: when the granule was used last, and how deep it is in its
    /// prompt.
    cached: BTreeMap<(EndpointId, u64), (u64, usize)>,
    /// The granules before a granule.
    parents: BTreeMap<u64, u64>,
    uses: u64,
}

impl Twin {
    fn take_in(&mut self, endpoint: EndpointId, hashes: &[u64], capacity: usize) {
        self.uses += 1;
        self.parents
            .extend(hashes.windows(2).map(|pair| (pair[1], pair[0])));
        for (depth, hash) in hashes.iter().take(capacity).enumerate() {
            self.cached.insert((endpoint, *hash), (self.uses, depth));
        }
        self.trim(endpoint, capacity);
    }

    fn trim(&mut self, endpoint: EndpointId, capacity: usize) {
        loop {
            let own = self.cached.iter().filter(|((of, _), _)| *of == endpoint);
            if own.clone().count() <= capacity {
                return;
            }
            // The least lately used one; of one prompt's, the last.
            let oldest = own.min_by_key(|(_, (uses, depth))| (*uses, usize::MAX - depth));
            let key = *oldest.expect("there are too many").0;
            self.cached.remove(&key);
        }
    }

    /// Forgets what a request that is gone had the cache take in for it alone.
    fn withdraw(&mut self, endpoint: EndpointId, hashes: &[u64]) {
        for hash in hashes.iter().rev() {
            let mut own = self.cached.keys().filter(|(of, _)| *of == endpoint);
            if self.window(endpoint, *hash) > 0
                || own.any(|(_, other)| self.parents.get(other) == Some(hash))
            {
                return;
            }
            self.cached.remove(&(endpoint, *hash));
        }
    }

    fn cached(&self, endpoint: EndpointId, hashes: &[u64]) -> u32 {
        let known = hashes
            .iter()
            .take_while(|h| self.cached.contains_key(&(endpoint, **h)));
        known.count() as u32
    }

    fn window(&self, endpoint: EndpointId, hash: u64) -> u32 {
        let own = self.requests.iter().filter(|(of, ..)| *of == endpoint);
        own.filter(|(_, hashes, _)| hashes.contains(&hash)).count() as u32
    }

    fn assigned(&self, endpoint: EndpointId, hashes: &[u64]) -> u32 {
        let known = hashes.iter().take_while(|h| self.window(endpoint, **h) > 0);
        known.count() as u32
    }
}

impl Index {
    /// Recounts everything.
    fn check(&self) {
        let mut ids = Vec::new();
        let mut at = self.recent.oldest;
        while at != NONE {
            ids.push(at);
            at = self.nodes[at].links.newer;
        }
        assert_eq!(
            ids.len(),
            self.nodes.len(),
            "every node is in the list, once"
        );
        assert_eq!(self.first.len(), ids.len());
        let mut resident = BTreeMap::new();
        let mut holdings = 0;
        for (place, &id) in ids.iter().enumerate() {
            let node = &self.nodes[id];
            assert_eq!(self.first.get(&node.hashes[0]), Some(&id));
            assert!(
                !node.holdings.is_empty(),
                "node {id} has no reason to be here"
            );
            assert!(node.holdings.is_sorted_by(|a, b| a.0 < b.0));
            if node.parent != NONE {
                let newer = &ids[place..];
                assert!(
                    newer.contains(&node.parent),
                    "a parent is newer than its children"
                );
                assert_eq!(self.nodes[node.parent].end(), node.start as usize);
            } else {
                assert_eq!(node.start, 0);
            }
            for &(endpoint, at) in &node.holdings {
                let holding = &self.holdings[at];
                holdings += 1;
                assert_eq!(holding.node, id);
                assert!(holding.cached > 0 || holding.window > 0);
                assert!(holding.cached as usize <= node.hashes.len());
                *resident.entry(endpoint).or_insert(0) += u64::from(holding.cached);
                if node.parent != NONE {
                    let before = &self.nodes[node.parent];
                    let above = before.holding(endpoint).expect("prefixes are held, too");
                    let above = &self.holdings[above];
                    assert!(above.window >= holding.window);
                    assert!(holding.cached == 0 || above.cached as usize == before.hashes.len());
                }
            }
        }
        assert_eq!(holdings, self.holdings.len());
        for mirror in &self.mirrors {
            let own = resident.get(&mirror.endpoint).copied().unwrap_or(0);
            assert_eq!(mirror.resident, own);
            assert!(mirror.resident <= mirror.capacity);
            let listed = self
                .evictable(mirror.endpoint)
                .map(|e| u64::from(e.granules));
            assert_eq!(listed.sum::<u64>(), own, "what is cached is in the list");
        }
    }

    fn known(&self, hashes: &[u64]) -> BTreeMap<EndpointId, (u32, u32)> {
        let mut path = Path::default();
        self.find(hashes, &mut path);
        let mut known = BTreeMap::new();
        self.held(&path, |endpoint, cached| {
            known.entry(endpoint).or_insert((0, 0)).0 = cached
        });
        for &(id, same) in &path.steps {
            let went = self.windows(NodeId(id)).filter(|(_, count)| *count > 0);
            for (endpoint, _) in went {
                known.entry(endpoint).or_insert((0, 0)).1 = self.nodes[id].start + same;
            }
        }
        known
    }

    fn put(&mut self, hashes: &[u64]) -> Option<NodeId> {
        let mut path = Path::default();
        self.find(hashes, &mut path);
        self.insert(hashes, &mut path)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Assign(usize, Vec<u8>),
    Hold(usize, Vec<u8>),
    Expire,
    Withdraw(usize),
    Leave(usize),
    Trim(usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let prompt = || prop::collection::vec(0..3u8, 0..9);
    let endpoint = 0..ENDPOINTS.len();
    prop_oneof![
        6 => (endpoint.clone(), prompt()).prop_map(|(e, p)| Step::Assign(e, p)),
        1 => (endpoint.clone(), prompt()).prop_map(|(e, p)| Step::Hold(e, p)),
        4 => Just(Step::Expire),
        1 => (0..9usize).prop_map(Step::Withdraw),
        1 => endpoint.clone().prop_map(Step::Leave),
        1 => (endpoint, 0..9u64).prop_map(|(e, most)| Step::Trim(e, most)),
    ]
}

proptest! {
    #[test]
    fn knows_what_a_naive_one_knows(
        capacity in 0..20u64,
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut index = Index::new(1000, 0);
        let mut twin = Twin::default();
        let mut prompts = vec![vec![0, 1, 2], vec![]];
        for id in ENDPOINTS {
            index.join(id, capacity);
        }
        for step in steps {
            match step {
                Step::Assign(endpoint, prompt) => {
                    let (endpoint, hashes) = (ENDPOINTS[endpoint], hashes(&prompt));
                    if let Some(leaf) = index.put(&hashes) {
                        index.assign(endpoint, leaf);
                        twin.take_in(endpoint, &hashes, capacity as usize);
                        twin.requests.push_back((endpoint, hashes, leaf));
                    }
                    prompts.push(prompt);
                }
                Step::Hold(endpoint, prompt) => {
                    let (endpoint, hashes) = (ENDPOINTS[endpoint], hashes(&prompt));
                    if let Some(leaf) = index.put(&hashes) {
                        index.hold(endpoint, leaf);
                        twin.take_in(endpoint, &hashes, capacity as usize);
                    }
                    prompts.push(prompt);
                }
                Step::Expire => {
                    if let Some((endpoint, _, leaf)) = twin.requests.pop_front() {
                        index.expire(endpoint, leaf);
                    }
                }
                Step::Withdraw(n) => {
                    let n = n % twin.requests.len().max(1);
                    if let Some((endpoint, hashes, leaf)) = twin.requests.remove(n) {
                        index.withdraw(endpoint, leaf);
                        twin.withdraw(endpoint, &hashes);
                    }
                }
                Step::Trim(endpoint, most) => {
                    let endpoint = ENDPOINTS[endpoint];
                    index.trim(endpoint, most);
                    prop_assert!(index.resident(endpoint) <= most);
                    twin.trim(endpoint, most as usize);
                }
                Step::Leave(endpoint) => {
                    let endpoint = ENDPOINTS[endpoint];
                    index.leave(endpoint);
                    index.join(endpoint, capacity);
                    twin.requests.retain(|(of, ..)| *of != endpoint);
                    twin.cached.retain(|(of, _), _| *of != endpoint);
                }
            }
            index.check();
            for prompt in &prompts {
                let hashes = hashes(prompt);
                let known = index.known(&hashes);
                for id in ENDPOINTS {
                    let is = known.get(&id).copied().unwrap_or_default();
                    let should = (twin.cached(id, &hashes), twin.assigned(id, &hashes));
                    prop_assert_eq!(is, should, "{:?} of {}", prompt, id);
                }
            }
        }
        // Window sums return to nothing, and no node stays without a holding.
        for (endpoint, _, leaf) in twin.requests.drain(..) {
            index.expire(endpoint, leaf);
        }
        index.check();
        for id in ENDPOINTS {
            index.leave(id);
        }
        prop_assert_eq!((index.nodes.len(), index.holdings.len()), (0, 0));
    }

    #[test]
    fn never_has_more_nodes_than_allowed(
        capacity in 1..20u64,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut index = Index::new(16, 0);
        let mut requests = VecDeque::new();
        for id in ENDPOINTS {
            index.join(id, capacity);
        }
        for step in steps {
            match step {
                Step::Assign(endpoint, prompt) => {
                    let endpoint = ENDPOINTS[endpoint];
                    if let Some(leaf) = index.put(&hashes(&prompt)) {
                        index.assign(endpoint, leaf);
                        requests.push_back((endpoint, leaf));
                    }
                }
                Step::Hold(endpoint, prompt) => {
                    if let Some(leaf) = index.put(&hashes(&prompt)) {
                        index.hold(ENDPOINTS[endpoint], leaf);
                    }
                }
                Step::Trim(endpoint, most) => index.trim(ENDPOINTS[endpoint], most),
                Step::Expire | Step::Withdraw(_) | Step::Leave(_) => {
                    if let Some((endpoint, leaf)) = requests.pop_front() {
                        index.expire(endpoint, leaf);
                    }
                }
            }
            index.check();
            prop_assert!(index.len() <= 16);
        }
    }
}

#[test]
fn nodes_part_and_become_one_again() {
    let mut index = Index::new(100, 0);
    let id = EndpointId(0);
    index.join(id, 6);
    let long = index.put(&hashes(&[1, 2, 3, 4])).expect("it has granules");
    index.assign(id, long);
    assert_eq!(index.len(), 1);
    let other = index.put(&hashes(&[1, 2, 7])).expect("it has granules");
    index.assign(id, other);
    assert_eq!(index.len(), 3);
    index.expire(id, other);
    // It is still cached.
    assert_eq!(index.len(), 3);
    index.check();
    // What is used now drives it out, and nothing parts the first prompt any more.
    let long = index
        .put(&hashes(&[1, 2, 3, 4, 5, 6]))
        .expect("it has granules");
    index.assign(id, long);
    index.check();
    assert_eq!(index.known(&hashes(&[1, 2, 7]))[&id], (2, 2));
    assert_eq!(index.len(), 2, "the prompt and its first four granules");
}

#[test]
fn evicts_what_was_used_least_lately_from_its_end() {
    let mut index = Index::new(100, 0);
    let id = EndpointId(0);
    index.join(id, 7);
    for prompt in [[1u8, 2, 3], [1, 2, 4], [5, 6, 7]] {
        let leaf = index.put(&hashes(&prompt)).expect("it has granules");
        index.assign(id, leaf);
    }
    assert_eq!(index.free(id), 0);
    let next: Vec<_> = index
        .evictable(id)
        .map(|e| (e.granules, e.window))
        .collect();
    assert_eq!(next, [(1, 1), (1, 1), (2, 2), (3, 1)]);
    let leaf = index.put(&hashes(&[8, 9])).expect("it has granules");
    index.assign(id, leaf);
    let cached = |prompt: &[u8]| index.known(&hashes(prompt))[&id].0;
    assert_eq!((cached(&[1, 2, 3]), cached(&[1, 2, 4])), (2, 2));
    assert_eq!((cached(&[5, 6, 7]), cached(&[8, 9])), (3, 2));
}

#[test]
fn a_prefix_that_a_new_prompt_needs_is_kept_when_room_is_short() {
    let mut index = Index::new(16, 0);
    let id = EndpointId(0);
    index.join(id, 100);
    let old = index.put(&hashes(&[100])).expect("it has granules");
    index.hold(id, old);
    let prompts = (0..14u8).map(|n| [n]);
    for prompt in prompts {
        let leaf = index.put(&hashes(&prompt)).expect("it has granules");
        index.assign(id, leaf);
    }
    // The one leaf that may go is what this one begins with.
    let longer = index.put(&hashes(&[100, 1])).expect("it has granules");
    index.assign(id, longer);
    assert_eq!((index.len(), index.dropped()), (16, 0));
    // Now none may go, and what there is no room for is not made.
    assert_eq!(index.put(&hashes(&[101])), None);
    assert_eq!((index.len(), index.dropped()), (16, 1));
}

/// A granule is not taken for another one with the same hash at another depth.
#[test]
fn equal_hashes_of_different_prefixes_are_told_apart_by_their_place() {
    let mut index = Index::new(100, 0);
    let id = EndpointId(0);
    index.join(id, 100);
    for prompt in [&[1, 2][..], &[3], &[3, 1]] {
        let leaf = index.put(prompt).expect("it has granules");
        index.assign(id, leaf);
        index.check();
    }
    let cached = |prompt: &[u64]| index.known(prompt)[&id].0;
    assert_eq!((cached(&[1, 2]), cached(&[3]), cached(&[3, 1])), (2, 1, 1));
}
