//! The state of an admitted request: the work of it that is still to be done.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use ahash::AHashMap;
use prelude_core::{
    ExecutionClass, Head, NodeIdx, OnDeadline, Request, RequestId, RowSpec, SeqId, Timestamp,
    TokenId,
};
use prelude_kv::{BlockHash, KvCache};

use crate::{
    Turn, Usage, Waiting,
    leader::Held,
    prompts::{Found, Prompt, Prompts},
    queue::{QueueKey, due},
    row,
};

/// An admitted request that has not finished.
#[derive(Debug)]
pub(crate) struct RequestState {
    /// Unique, unlike the caller's id, which may come back after the request has finished.
    pub(crate) serial: u64,
    pub(crate) key: QueueKey,
    pub(crate) deadline: Option<Timestamp>,
    /// The deadline, if the request is dropped when it passes.
    pub(crate) expires: Option<Timestamp>,
    pub(crate) prompts: Prompts,
    pub(crate) rows: Vec<RowSpec>,
    /// The one-shot rows not yet planned.
    pub(crate) oneshot: VecDeque<WaitingRow>,
    /// Generations not yet admitted.
    pub(crate) decode: VecDeque<WaitingChoices>,
    /// Choices in `decode`.
    pub(crate) waiting_choices: u32,
    /// Admitted sequences and chunked rows.
    pub(crate) seqs: BTreeSet<SeqId>,
    /// Rows, and choices of `Decode` generations, without their last answer.
    pub(crate) unanswered: u64,
    /// The request's part of the queue's bounds while it waits.
    pub(crate) reserved: Option<Reserved>,
    pub(crate) started: Option<Timestamp>,
    pub(crate) usage: Usage,
}

/// Live requests. For lookups, and for what does not depend on an order: a step looks up each
/// sequence and its request several times. Boxed, so that a table that grows moves little.
pub(crate) type Requests = AHashMap<RequestId, Box<RequestState>>;

/// A request's part of the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserved {
    pub(crate) rows: u64,
    pub(crate) tokens: u64,
    /// The number of `tokens` that the prefix cache does not have, as far as that was looked up: when
    /// the request came and, until it begins, whenever the policy is told of its cost. Less those that
    /// sequences and steps have taken up.
    pub(crate) uncached: u64,
}

/// Returns the time at which a request is dropped unless it has started.
pub(crate) fn expires(request: &Request) -> Option<Timestamp> {
    let drops = request.on_deadline == OnDeadline::Drop;
    request.deadline.filter(|_| drops)
}

/// A one-shot row that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingRow {
    pub(crate) row: u32,
    pub(crate) held: Held,
    /// True if a step had no room for its output: it shares the next with no other one-shot row.
    pub(crate) is_lone: bool,
}

/// Choices `next..n` of a generation that wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingChoices {
    pub(crate) row: u32,
    pub(crate) next: u32,
    pub(crate) n: u32,
    pub(crate) held: Held,
}

impl RequestState {
    /// Notes that steps or sequences took up `tokens` of the request. Returns the number of them
    /// that `reserved` counted.
    pub(crate) fn take_up(&mut self, tokens: u64) -> u64 {
        let Some(reserved) = &mut self.reserved else {
            return 0;
        };
        let counted = reserved.uncached.min(tokens);
        reserved.uncached -= counted;
        counted
    }

    pub(crate) fn new(serial: u64, request: Request, block_size: usize) -> Self {
        let mut oneshot = VecDeque::new();
        let mut decode = VecDeque::new();
        let mut unanswered = 0;
        let mut waiting_choices: u32 = 0;
        for (row, spec) in (0..).zip(&request.rows) {
            let held = Held::default();
            match &spec.head {
                Head::Generate(g) if spec.head.class() == ExecutionClass::Decode => {
                    unanswered += u64::from(g.n);
                    // The queue's bound on rows is a u32.
                    waiting_choices = waiting_choices.saturating_add(g.n);
                    decode.push_back(WaitingChoices {
                        row,
                        next: 0,
                        n: g.n,
                        held,
                    });
                }
                _ => {
                    unanswered += 1;
                    oneshot.push_back(WaitingRow {
                        row,
                        held,
                        is_lone: false,
                    });
                }
            }
        }
        let (priority, arrival) = (request.priority, request.arrival);
        let usage = Usage {
            prompt_tokens: request.prompt_tokens(),
            ..Usage::default()
        };
        Self {
            serial,
            key: QueueKey {
                turn: Turn::Usual,
                priority,
                due: due(arrival, request.deadline),
                arrival,
                serial,
            },
            deadline: request.deadline,
            expires: expires(&request),
            prompts: Prompts::new(serial, request.cache_salt, request.tree, block_size),
            rows: request.rows,
            oneshot,
            decode,
            waiting_choices,
            seqs: BTreeSet::new(),
            unanswered,
            reserved: None,
            started: None,
            usage,
        }
    }

    /// Returns the number of rows of a request as the queue counts them: choices one by one.
    pub(crate) fn queue_rows(request: &Request) -> u64 {
        let choices = |row: &RowSpec| match &row.head {
            Head::Generate(g) => u64::from(g.n),
            _ => 1,
        };
        request.rows.iter().map(choices).sum()
    }

    /// Returns the row that is to start next: one-shot rows come first.
    pub(crate) fn next_row(&self) -> Option<u32> {
        let oneshot = self.oneshot.front().map(|w| w.row);
        oneshot.or_else(|| self.decode.front().map(|w| w.row))
    }

    pub(crate) fn head(&self, row: u32) -> &Head {
        &self.rows[row as usize].head
    }

    pub(crate) fn prompt_len(&self, row: u32) -> u32 {
        self.prompts.tree.prompt_len(self.node(row))
    }

    pub(crate) fn node(&self, row: u32) -> NodeIdx {
        self.rows[row as usize].node
    }

    /// Returns the whole prompt of a row in one piece.
    pub(crate) fn whole_prompt(&mut self, row: u32) -> Arc<[TokenId]> {
        self.prompts.whole(self.node(row))
    }

    /// Returns the hashes of the prefixes of a row's prompt, block by block. O(blocks) when asked
    /// of another prompt than before; each node of the tree is hashed once.
    pub(crate) fn hashes(&mut self, row: u32) -> Arc<[BlockHash]> {
        self.prompts.hashes(self.node(row))
    }

    /// Returns the number of blocks of a row's prompt that the cache has and the row may read.
    pub(crate) fn find_prompt(&mut self, row: u32, cache: &KvCache, last: &mut Found) -> u32 {
        let most = self.first_needed(row);
        self.prompts.find(self.node(row), most, cache, last)
    }

    /// Returns a row's prompt, of which [`Self::find_prompt`] found so many blocks.
    pub(crate) fn prompt(&self, row: u32, cached: u32) -> Prompt<'_> {
        self.prompts.prompt(self.node(row), cached)
    }

    /// Returns the first position of a row's prompt that has to be computed.
    pub(crate) fn first_needed(&self, row: u32) -> u32 {
        row::first_needed(self.head(row), self.prompt_len(row))
    }

    pub(crate) fn waiting(&self, request: RequestId, rows: u32) -> Waiting {
        Waiting {
            request,
            turn: Turn::Usual,
            priority: self.key.priority,
            arrival: self.key.arrival,
            deadline: self.deadline,
            rows,
        }
    }
}
