//! Which waiting requests have more or less in the prefix cache than before.
//!
//! A request's cached prefix changes when the block behind it is published, or when its own last
//! block is evicted: eviction takes leaves first. So each request is watched by two hashes at most,
//! and a step's publications and evictions name just those whose order may have changed.

use std::collections::{BTreeMap, BTreeSet};

use prelude_core::{RequestId, TokenId};
use prelude_kv::{BlockHash, KvCache, PrefixEdge};

use crate::{PromptSize, Waiting, length::length_of, request::Live};

/// A waiting request of which something has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its one-shot rows that wait, if there are any.
    pub oneshot: Option<Waiting>,
    /// Its generations that wait to be admitted, if there are any.
    pub decode: Option<Waiting>,
    /// What it would cost now.
    pub cost: Cost,
}

/// What a waiting request would cost now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Tokens that have to be computed, at least 1: those of all its prompts that no step has taken
    /// up, without what is cached of the next row's. Once it has begun, what was cached when it
    /// came counts instead.
    pub tokens: u64,
    /// The cached prefix of its next row, if there is one. Requests with the same one share it.
    pub prefix: Option<BlockHash>,
    /// The prompt of its next row.
    pub prompt: PromptSize,
}

/// The requests watched.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    edges: BTreeMap<RequestId, PrefixEdge>,
    by_hash: BTreeMap<BlockHash, BTreeSet<RequestId>>,
    /// Those that came, went on, ended, or have another prefix, since they were last told.
    changed: BTreeSet<RequestId>,
}

impl Watch {
    /// Something of the request itself has changed.
    pub(crate) fn touch(&mut self, request: RequestId) {
        self.changed.insert(request);
    }

    /// Brings up to date whatever the cache's changes and those of requests concern, and says
    /// which requests that were. `cost` is [`cost_of`] one that waits.
    pub(crate) fn update(
        &mut self,
        cache: &mut KvCache,
        mut cost: impl FnMut(&KvCache, RequestId) -> Option<(Cost, PrefixEdge)>,
    ) -> Vec<(RequestId, Option<Cost>)> {
        for hash in cache.take_changes() {
            self.changed
                .extend(self.by_hash.get(&hash).into_iter().flatten());
        }
        let changed = std::mem::take(&mut self.changed);
        let tell = |request| {
            self.forget(request);
            let cost = cost(cache, request).map(|(cost, edge)| {
                self.watch(request, edge);
                cost
            });
            (request, cost)
        };
        changed.into_iter().map(tell).collect()
    }

    fn watch(&mut self, request: RequestId, edge: PrefixEdge) {
        for hash in hashes(&edge) {
            self.by_hash.entry(hash).or_default().insert(request);
        }
        self.edges.insert(request, edge);
    }

    fn forget(&mut self, request: RequestId) {
        let Some(edge) = self.edges.remove(&request) else {
            return;
        };
        for hash in hashes(&edge) {
            let Some(watchers) = self.by_hash.get_mut(&hash) else {
                continue;
            };
            watchers.remove(&request);
            if watchers.is_empty() {
                self.by_hash.remove(&hash);
            }
        }
    }
}

/// What the coming or going of changes the edge. The empty prefix is always there.
fn hashes(edge: &PrefixEdge) -> impl Iterator<Item = BlockHash> {
    let last = (edge.tokens > 0).then_some(edge.hash);
    last.into_iter().chain(edge.next)
}

/// What a waiting request would cost now, whose next row has this `prompt`. O(prompt).
pub(crate) fn cost_of(cache: &KvCache, live: &Live, prompt: &[TokenId]) -> (Cost, PrefixEdge) {
    let row = live.next_row().expect("it waits");
    let needed = crate::row::first_needed(live.head(row), live.prompt_len(row));
    let edge = cache.prefix_edge(live.salt.as_ref(), prompt, needed as usize);
    let left = if live.started.is_none() {
        live.tree.distinct_tokens() as u64 - edge.tokens as u64
    } else {
        live.reserved.map_or(0, |reserved| reserved.uncached)
    };
    let cost = Cost {
        tokens: left.max(1),
        prefix: (edge.tokens > 0).then_some(edge.hash),
        prompt: PromptSize {
            tokens: length_of(prompt.len()),
            cached: length_of(edge.tokens),
        },
    };
    (cost, edge)
}
