//! A live request: what of it is still to be done.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use prelude_core::{
    Head, NodeIdx, OnDeadline, PromptTree, Request, RowSpec, SeqId, Timestamp, TokenId,
};
use prelude_kv::BlockHash;

use crate::{
    Turn, Usage, Waiting,
    leader::Held,
    queue::{QueueKey, due},
};

/// An admitted request that has not finished.
#[derive(Debug)]
pub(crate) struct Live {
    /// Unique, unlike the caller's id, which may come back after the request has finished.
    pub(crate) serial: u64,
    pub(crate) key: QueueKey,
    pub(crate) deadline: Option<Timestamp>,
    /// The deadline, if the request is dropped when it passes.
    pub(crate) expires: Option<Timestamp>,
    pub(crate) salt: Option<Arc<str>>,
    pub(crate) tree: PromptTree,
    pub(crate) rows: Vec<RowSpec>,
    /// One-shot rows not yet planned.
    pub(crate) oneshot: VecDeque<WaitingRow>,
    /// Generations not yet admitted.
    pub(crate) decode: VecDeque<WaitingChoices>,
    /// Choices in `decode`.
    pub(crate) waiting_choices: u32,
    /// Admitted sequences and chunked rows.
    pub(crate) seqs: BTreeSet<SeqId>,
    /// Rows, and choices of `Decode` generations, without their last answer.
    pub(crate) unanswered: u64,
    /// What the request holds of the queue's bounds while it waits.
    pub(crate) reserved: Option<Reserved>,
    pub(crate) started: Option<Timestamp>,
    pub(crate) usage: Usage,
    /// The prompt asked for last: neighbouring rows often share it.
    memo: Option<(NodeIdx, Arc<[TokenId]>)>,
    /// The hashes of a prompt's whole blocks, of the prompt whose hashes were asked for last.
    hashes: Option<(NodeIdx, Arc<[BlockHash]>)>,
}

/// A request's part of the queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reserved {
    pub(crate) rows: u64,
    pub(crate) tokens: u64,
    /// Of `tokens`, those that the prefix cache did not have when the request came, less what
    /// sequences and steps have taken up since.
    pub(crate) uncached: u64,
}

/// When a request is dropped unless it has started.
pub(crate) fn expires(request: &Request) -> Option<Timestamp> {
    let drops = request.on_deadline == OnDeadline::Drop;
    request.deadline.filter(|_| drops)
}

/// A one-shot row that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingRow {
    pub(crate) row: u32,
    pub(crate) held: Held,
}

/// Choices `next..n` of a generation that wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingChoices {
    pub(crate) row: u32,
    pub(crate) next: u32,
    pub(crate) n: u32,
    pub(crate) held: Held,
}

impl Live {
    /// Notes that `tokens` of what waited do so no longer. Returns how many of them were counted.
    pub(crate) fn take_up(&mut self, tokens: u64) -> u64 {
        let Some(reserved) = &mut self.reserved else {
            return 0;
        };
        let counted = reserved.uncached.min(tokens);
        reserved.uncached -= counted;
        counted
    }

    pub(crate) fn new(serial: u64, request: Request) -> Self {
        let mut oneshot = VecDeque::new();
        let mut decode = VecDeque::new();
        let mut unanswered = 0;
        let mut waiting_choices: u32 = 0;
        for (row, spec) in (0..).zip(&request.rows) {
            let held = Held::default();
            match &spec.head {
                Head::Generate(g) if g.max_tokens > 1 => {
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
                    oneshot.push_back(WaitingRow { row, held });
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
            salt: request.cache_salt,
            tree: request.tree,
            rows: request.rows,
            oneshot,
            decode,
            waiting_choices,
            seqs: BTreeSet::new(),
            unanswered,
            reserved: None,
            started: None,
            usage,
            memo: None,
            hashes: None,
        }
    }

    /// Rows of a request as the queue counts them: choices one by one.
    pub(crate) fn queue_rows(request: &Request) -> u64 {
        let choices = |row: &RowSpec| match &row.head {
            Head::Generate(g) => u64::from(g.n),
            _ => 1,
        };
        request.rows.iter().map(choices).sum()
    }

    /// The row that is to start next: one-shot rows come first.
    pub(crate) fn next_row(&self) -> Option<u32> {
        let oneshot = self.oneshot.front().map(|w| w.row);
        oneshot.or_else(|| self.decode.front().map(|w| w.row))
    }

    pub(crate) fn head(&self, row: u32) -> &Head {
        &self.rows[row as usize].head
    }

    pub(crate) fn prompt_len(&self, row: u32) -> u32 {
        self.tree.prompt_len(self.rows[row as usize].node)
    }

    /// The whole prompt of a row.
    pub(crate) fn prompt(&mut self, row: u32) -> Arc<[TokenId]> {
        let node = self.rows[row as usize].node;
        match &self.memo {
            Some((of, prompt)) if *of == node => prompt.clone(),
            _ => {
                let whole = &self.tree.nodes()[node.index()];
                let prompt: Arc<[TokenId]> = match whole.parent {
                    None => whole.tokens.as_slice().into(),
                    Some(_) => self.tree.prompt(node).into(),
                };
                self.memo = Some((node, prompt.clone()));
                prompt
            }
        }
    }

    /// Returns the hashes of the prefixes of a row's prompt, block by block. O(prompt) when asked of
    /// another prompt than before.
    pub(crate) fn hashes(&mut self, row: u32, block_size: usize) -> Arc<[BlockHash]> {
        let node = self.rows[row as usize].node;
        match &self.hashes {
            Some((of, hashes)) if *of == node => hashes.clone(),
            _ => {
                let root = BlockHash::root(self.salt.as_deref());
                let whole = &self.tree.nodes()[node.index()];
                let hashes: Arc<[BlockHash]> = match whole.parent {
                    None => root.blocks(&whole.tokens, block_size).collect(),
                    Some(_) => root.blocks(&self.prompt(row), block_size).collect(),
                };
                self.hashes = Some((node, hashes.clone()));
                hashes
            }
        }
    }

    pub(crate) fn waiting(&self, request: prelude_core::RequestId, rows: u32) -> Waiting {
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
