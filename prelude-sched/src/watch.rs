//! Watches the prefix cache for changes that concern waiting requests.
//!
//! A request's cached prefix changes when the block behind it is published, or when its own last
//! block is evicted: eviction takes leaves first. So each request is watched by two hashes at most,
//! and a step's publications and evictions name just those whose order may have changed.
//!
//! Thousands may wait for one block, and many may come at once. So a hash that has changed is put
//! in line as a whole, and a plan looks at no more requests of that line, and at no more newcomers,
//! than [`Watch::new`] is told: what a request costs may be known to the policy that much later, in
//! the order of the changes. One look costs O(log prompt), since the request keeps the hashes of
//! its prefixes and what is cached has no gaps.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ahash::{AHashMap, AHashSet, RandomState};
use prelude_core::{RequestId, StepWork};
use prelude_kv::{BlockHash, KvCache};

use crate::{PromptSize, Waiting, length::length_of, request::RequestState};

/// A change of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The request's one-shot rows that wait, if there are any.
    pub oneshot: Option<Waiting>,
    /// The request's generations that wait to be admitted, if there are any.
    pub decode: Option<Waiting>,
    /// The cost of the request now.
    pub cost: Cost,
}

/// The cost of a waiting request now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The number of tokens that have to be computed for the request, at least 1: the tokens of its
    /// prompts that no step has taken up, less the cached prefix of its next row. Once the request
    /// has begun, the prefix that was cached before counts instead.
    ///
    /// What host memory has counts as not cached: a token takes about as long to load as to compute.
    pub tokens: u64,
    /// The cached prefix of the request's next row, if there is one. Requests with the same one
    /// share it.
    pub prefix: Option<BlockHash>,
    /// The prompt of the request's next row.
    pub prompt: PromptSize,
}

impl Cost {
    /// Returns the work that computing the tokens is. Where several rows wait, each of their tokens
    /// counts as one of the next row's: behind the same cached prefix, and of a prompt as long.
    #[must_use]
    pub fn work(&self) -> StepWork {
        let tokens = u32::try_from(self.tokens).unwrap_or(u32::MAX);
        let uncached = self.prompt.tokens.saturating_sub(self.prompt.cached);
        let of_row = uncached.clamp(1, tokens.max(1));
        let row = StepWork::prompt(of_row, self.prompt.cached.saturating_add(of_row));
        let rows = f64::from(tokens) / f64::from(of_row);
        StepWork {
            tokens: row.tokens * rows,
            pairs: row.pairs * rows,
            ..row
        }
    }
}

/// The cached prefix of a request's next row, and the block hashes whose publication or eviction
/// changes its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    /// Blocks of the prefix that is cached.
    blocks: usize,
    /// The hash of that prefix, unless it is empty: its last block is evicted before all others.
    last: Option<BlockHash>,
    /// The hash of the prefix that is a block longer, if one may be cached.
    next: Option<BlockHash>,
}

impl Edge {
    /// Returns the hashes whose publication or eviction changes the edge.
    fn hashes(&self) -> impl Iterator<Item = BlockHash> {
        self.last.into_iter().chain(self.next)
    }
}

/// The requests watched.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Most newcomers, and most others whose prefix may have changed, of one plan.
    most: usize,
    /// Costs that the policy was told last, of requests that wait. For lookups only.
    told: AHashMap<RequestId, (Cost, Edge)>,
    /// The watchers of a block; the map is for lookups only.
    by_hash: AHashMap<BlockHash, Watchers>,
    /// Requests that went on or ended: the next plan is told of all of them.
    touched: BTreeSet<RequestId>,
    /// Requests that no plan was told of, by number of submission.
    arrived: BTreeMap<u64, RequestId>,
    /// Hashes that came or went, and the first of their watchers that was not looked at since.
    stale: VecDeque<(BlockHash, RequestId)>,
    /// The hashes in `stale` of which no watcher was looked at. For lookups only.
    untouched: AHashSet<BlockHash>,
}

impl Watch {
    /// Returns a watch of no requests. A plan looks at no more than `most` newcomers and at no more
    /// than so many others whose prefix may have changed.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            most,
            told: AHashMap::with_hasher(RandomState::with_seeds(17, 18, 19, 20)),
            by_hash: AHashMap::with_hasher(RandomState::with_seeds(21, 22, 23, 24)),
            touched: BTreeSet::new(),
            arrived: BTreeMap::new(),
            stale: VecDeque::new(),
            untouched: AHashSet::with_hasher(RandomState::with_seeds(25, 26, 27, 28)),
        }
    }

    #[cfg(test)]
    pub(crate) const fn limit(&mut self, most: usize) {
        self.most = most;
    }

    /// Notes a new request.
    pub(crate) fn arrive(&mut self, serial: u64, request: RequestId) {
        self.arrived.insert(serial, request);
    }

    /// Notes that a request is over.
    pub(crate) fn end(&mut self, serial: u64, request: RequestId) {
        self.arrived.remove(&serial);
        self.touched.insert(request);
    }

    /// Notes that something of the request itself has changed.
    pub(crate) fn touch(&mut self, request: RequestId) {
        self.touched.insert(request);
    }

    /// Returns the cost of a request that the policy was told last.
    pub(crate) fn told(&self, request: RequestId) -> Option<Cost> {
        self.told.get(&request).map(|&(cost, _)| cost)
    }

    /// Returns whether a later plan is told of requests that this one was not told of.
    pub(crate) fn is_behind(&self) -> bool {
        !self.arrived.is_empty() || !self.stale.is_empty()
    }

    /// Brings up to date what the cache's changes and those of requests concern, as far as one plan
    /// goes, and returns which requests that were. `cost` is [`cost_of`] a request that waits, near
    /// so many cached blocks.
    pub(crate) fn update(
        &mut self,
        cache: &mut KvCache,
        mut cost: impl FnMut(&KvCache, RequestId, usize) -> Option<(Cost, Edge)>,
    ) -> Vec<(RequestId, Option<Cost>)> {
        for hash in cache.take_changes() {
            if self.by_hash.contains_key(&hash) && self.untouched.insert(hash) {
                self.stale.push_back((hash, RequestId(0)));
            }
        }
        let mut changes = Vec::new();
        for request in std::mem::take(&mut self.touched) {
            changes.push((request, self.look(cache, request, &mut cost)));
        }
        let mut again = Vec::new();
        for _ in 0..self.most.min(self.arrived.len()) {
            again.extend(self.arrived.pop_first().map(|(_, request)| request));
        }
        self.take_stale(&mut again);
        for request in again {
            let before = self.told(request);
            let now = self.look(cache, request, &mut cost);
            if now != before {
                changes.push((request, now));
            }
        }
        changes
    }

    /// Takes the next requests whose prefix may have changed.
    fn take_stale(&mut self, requests: &mut Vec<RequestId>) {
        let mut left = self.most;
        while let Some((hash, from)) = self.stale.front_mut() {
            let before = requests.len();
            self.untouched.remove(hash);
            if let Some(watchers) = self.by_hash.get(hash) {
                watchers.take(*from, left, requests);
            }
            left -= requests.len() - before;
            if left == 0 {
                // If that was the last of all requests, the next plan sees that.
                if let Some(&RequestId(last)) = requests[before..].last() {
                    *from = RequestId(last.saturating_add(1));
                }
                break;
            }
            self.stale.pop_front();
        }
    }

    fn look(
        &mut self,
        cache: &KvCache,
        request: RequestId,
        cost: &mut impl FnMut(&KvCache, RequestId, usize) -> Option<(Cost, Edge)>,
    ) -> Option<Cost> {
        let before = self.told.get(&request).map(|&(_, edge)| edge);
        let near = before.map_or(0, |edge| edge.blocks);
        let now = cost(cache, request, near);
        let edge = now.map(|(_, edge)| edge);
        if edge != before {
            before.iter().flat_map(Edge::hashes).for_each(|hash| {
                let is_empty = self
                    .by_hash
                    .get_mut(&hash)
                    .is_some_and(|w| w.remove(request));
                if is_empty {
                    self.by_hash.remove(&hash);
                }
            });
            edge.iter().flat_map(Edge::hashes).for_each(|hash| {
                let watchers = self.by_hash.entry(hash);
                watchers
                    .and_modify(|watchers| watchers.insert(request))
                    .or_insert(Watchers::One(request));
            });
        }
        match now {
            Some(now) => self.told.insert(request, now),
            None => self.told.remove(&request),
        };
        now.map(|(cost, _)| cost)
    }

    /// Checks what the policy was told of requests of which no change is outstanding against
    /// `cost`, which works it out from nothing.
    #[cfg(test)]
    pub(crate) fn check(&self, cache: &KvCache, cost: impl Fn(RequestId) -> Option<Cost>) {
        let is_stale =
            |hash| self.stale.iter().any(|&(of, _)| of == hash) || cache.changes().contains(&hash);
        for (&request, (told, edge)) in &self.told {
            if !self.touched.contains(&request) && !edge.hashes().any(is_stale) {
                assert_eq!(Some(*told), cost(request), "what request {request} costs");
            }
            let is_in = |hash| self.by_hash[&hash].contains(request);
            assert!(edge.hashes().all(is_in), "request {request} is not watched");
        }
        let watched: usize = self
            .told
            .values()
            .map(|(_, edge)| edge.hashes().count())
            .sum();
        let listed: usize = self.by_hash.values().map(Watchers::len).sum();
        assert_eq!(watched, listed, "somebody is watched who does not wait");
    }
}

/// The requests that a hash concerns. Most hashes concern one.
#[derive(Debug)]
enum Watchers {
    One(RequestId),
    Many(BTreeSet<RequestId>),
}

impl Watchers {
    fn insert(&mut self, request: RequestId) {
        match self {
            Self::One(other) => *self = Self::Many(BTreeSet::from([*other, request])),
            Self::Many(requests) => {
                requests.insert(request);
            }
        }
    }

    /// Takes a request out and returns whether none is left.
    fn remove(&mut self, request: RequestId) -> bool {
        match self {
            Self::One(_) => true,
            Self::Many(requests) => {
                requests.remove(&request);
                requests.is_empty()
            }
        }
    }

    /// Appends the first `most` requests from `from` on to `requests`.
    fn take(&self, from: RequestId, most: usize, requests: &mut Vec<RequestId>) {
        match self {
            Self::One(request) => requests.extend((*request >= from).then_some(*request)),
            Self::Many(all) => requests.extend(all.range(from..).take(most)),
        }
    }

    #[cfg(test)]
    fn contains(&self, request: RequestId) -> bool {
        match self {
            Self::One(other) => *other == request,
            Self::Many(requests) => requests.contains(&request),
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(requests) => requests.len(),
        }
    }
}

/// Returns the cost of a waiting request now, near so many cached blocks; `None` if none of its rows
/// waits.
pub(crate) fn cost_now(
    live: &mut RequestState,
    cache: &KvCache,
    near: usize,
) -> Option<(Cost, Edge)> {
    let row = live.next_row()?;
    let hashes = live.hashes(row);
    let block_size = cache.block_size();
    let most = live.first_needed(row) as usize / block_size;
    let hashes = &hashes[..hashes.len().min(most)];
    let blocks = cache.cached_blocks_near(hashes, near);
    Some(cost_of(live, row, hashes, blocks, block_size))
}

/// Returns the cost of a waiting request now, of whose next row `blocks` blocks are cached, of
/// those that may be; `hashes` are the hashes of their prefixes.
pub(crate) fn cost_of(
    live: &RequestState,
    row: u32,
    hashes: &[BlockHash],
    blocks: usize,
    block_size: usize,
) -> (Cost, Edge) {
    let edge = Edge {
        blocks,
        last: blocks.checked_sub(1).map(|last| hashes[last]),
        next: hashes.get(blocks).copied(),
    };
    let cached = blocks * block_size;
    let reserved = live.reserved.unwrap_or_default();
    let left = match live.started {
        None => reserved.tokens.saturating_sub(cached as u64),
        Some(_) => reserved.uncached,
    };
    let cost = Cost {
        tokens: left.max(1),
        prefix: edge.last,
        prompt: PromptSize {
            tokens: live.prompt_len(row),
            cached: length_of(cached),
        },
    };
    (cost, edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_waiting_rows_are_as_much_work_as_so_many_of_the_next_one() {
        let cost = |tokens| Cost {
            tokens,
            prefix: None,
            prompt: PromptSize {
                tokens: 110,
                cached: 100,
            },
        };
        let (one, three) = (cost(10).work(), cost(30).work());
        assert_eq!(one, StepWork::prompt(10, 110));
        assert_eq!((three.tokens, three.pairs), (30.0, 3.0 * one.pairs));
        assert_eq!(three.cached, one.cached, "the prefix is shared");
    }
}
