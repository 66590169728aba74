//! The events of every accepted request so far, checked against those that it must get.

use std::collections::BTreeMap;

use prelude_core::{ExecutionClass, Head, Request, RequestId, RowOutput, SampledToken, Timestamp};

use super::{Answer, Twin, executor::NO_ROOM};
use crate::{Event, FinishReason, Outcome};

/// Accounts of live requests.
#[derive(Debug)]
pub(super) struct Ledger {
    twin: Twin,
    accounts: BTreeMap<RequestId, Account>,
    pub(super) finished: Finished,
    /// True if steps have room for some outputs only, so that rows are computed again.
    pub(super) computes_again: bool,
}

/// The number of requests, by their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Finished {
    pub(super) done: u64,
    pub(super) aborted: u64,
    pub(super) failed: u64,
    pub(super) expired: u64,
}

#[derive(Debug)]
struct Account {
    request: Request,
    rows: Vec<RowAccount>,
    preempted: bool,
}

#[derive(Debug, Default)]
struct RowAccount {
    choices: Vec<(Vec<SampledToken>, Option<FinishReason>)>,
    output: Option<RowOutput>,
    /// Choices (or the row) that failed.
    failures: u32,
    /// True if it failed because its step had no room for its output, as a chunk or when it was
    /// computed alone.
    had_no_room: bool,
}

impl Ledger {
    pub(super) fn new(twin: Twin) -> Self {
        Self {
            twin,
            accounts: BTreeMap::new(),
            finished: Finished::default(),
            computes_again: false,
        }
    }

    pub(super) fn open(&mut self, request: Request) {
        let row = |spec: &prelude_core::RowSpec| match &spec.head {
            Head::Generate(g) => RowAccount {
                choices: vec![(Vec::new(), None); g.n as usize],
                ..RowAccount::default()
            },
            _ => RowAccount::default(),
        };
        let rows = request.rows.iter().map(row).collect();
        let account = Account {
            rows,
            preempted: false,
            request,
        };
        let before = self.accounts.insert(account.request.id, account);
        assert!(before.is_none(), "a live id was accepted twice");
    }

    pub(super) fn live(&self) -> usize {
        self.accounts.len()
    }

    pub(super) fn live_ids(&self) -> impl Iterator<Item = RequestId> {
        self.accounts.keys().copied()
    }

    pub(super) fn record(&mut self, now: Timestamp, event: Event) {
        let id = event.request();
        let account = self.accounts.get_mut(&id);
        let account =
            account.unwrap_or_else(|| panic!("{event:?} about a request that is not live"));
        match event {
            Event::Token {
                row, choice, token, ..
            } => {
                let (tokens, end) = &mut account.rows[row as usize].choices[choice as usize];
                assert_eq!(*end, None, "a token after the end");
                tokens.push(token);
            }
            Event::RowFinished {
                row,
                choice,
                reason,
                ..
            } => {
                let (_, end) = &mut account.rows[row as usize].choices[choice as usize];
                assert_eq!(*end, None, "a choice ended twice");
                *end = Some(reason);
            }
            Event::Output { row, output, .. } => account.take_output(row, output),
            Event::Preempted { .. } => account.preempted = true,
            Event::Finished { outcome, usage, .. } => {
                let account = self.accounts.remove(&id).expect("it was found just now");
                account.check_usage(&usage, self.computes_again);
                match outcome {
                    Outcome::Done => {
                        self.finished.done += 1;
                        account.check_whole(&self.twin);
                    }
                    Outcome::Aborted => self.finished.aborted += 1,
                    Outcome::Failed(_) => self.finished.failed += 1,
                    Outcome::DeadlineExpired => {
                        self.finished.expired += 1;
                        let due = account.request.deadline.expect("only deadlines expire");
                        assert!(due <= now, "expired before its deadline");
                        account.check_untouched();
                    }
                }
                account.check_partial(&self.twin);
            }
        }
    }
}

impl Account {
    fn take_output(&mut self, row: u32, output: RowOutput) {
        let account = &mut self.rows[row as usize];
        if let RowOutput::Failed(why) = output {
            account.failures += 1;
            account.had_no_room |= why == NO_ROOM;
            if !matches!(self.request.rows[row as usize].head, Head::Generate(_)) {
                account.output = Some(output);
            }
            return;
        }
        match (&mut account.output, output) {
            (
                Some(RowOutput::Logprobs {
                    first_position,
                    entries,
                }),
                RowOutput::Logprobs {
                    first_position: next,
                    entries: more,
                },
            ) => {
                assert_eq!(
                    *first_position as usize + entries.len(),
                    next as usize,
                    "pieces in order"
                );
                entries.extend(more);
            }
            (
                Some(RowOutput::Tokens {
                    first_position,
                    rows,
                }),
                RowOutput::Tokens {
                    first_position: next,
                    rows: more,
                },
            ) => {
                // Behind one another, unless some positions alone are read.
                let end = *first_position as usize + rows.len();
                assert!(end <= next as usize, "pieces in order");
                rows.extend(more);
            }
            (Some(_), output) => panic!("a second answer to row {row}: {output:?}"),
            (empty, output) => *empty = Some(output),
        }
    }

    /// Checks that a request that is done got exactly what it gets alone.
    fn check_whole(&self, twin: &Twin) {
        for (row, (account, answer)) in self
            .rows
            .iter()
            .zip(twin.answers(&self.request))
            .enumerate()
        {
            if account.had_no_room {
                assert_eq!(account.failures, 1, "row {row}");
                continue;
            }
            match answer {
                Answer::Choices(choices) => {
                    let failed = choices.iter().filter(|(_, end)| end.is_none()).count();
                    if account.failures > 0 && failed > account.failures as usize {
                        // A row of several draws fails as a whole.
                        assert_eq!(account.failures, 1, "row {row}");
                    } else {
                        assert_eq!(failed, account.failures as usize, "row {row}");
                    }
                    assert_eq!(account.choices, choices, "row {row} of {:?}", self.request);
                }
                Answer::Output(RowOutput::Failed(_)) | Answer::Output(_)
                    if account.failures > 0 =>
                {
                    assert_eq!(account.failures, 1, "row {row}");
                }
                Answer::Output(output) => {
                    assert_eq!(
                        account.output.as_ref(),
                        Some(&output),
                        "row {row} of {:?}",
                        self.request
                    );
                }
            }
        }
    }

    /// Checks that a request that ended early got a beginning of what it gets alone.
    fn check_partial(&self, twin: &Twin) {
        if self
            .rows
            .iter()
            .all(|r| r.choices.iter().all(|(tokens, _)| tokens.is_empty()))
        {
            return;
        }
        for (account, answer) in self.rows.iter().zip(twin.answers(&self.request)) {
            if let Answer::Choices(choices) = answer {
                for ((got, _), (all, _)) in account.choices.iter().zip(choices) {
                    assert!(all.starts_with(got), "{got:?} is no beginning of {all:?}");
                }
            }
        }
    }

    fn check_untouched(&self) {
        let touched =
            |r: &RowAccount| r.output.is_some() || r.choices.iter().any(|c| !c.0.is_empty());
        assert!(
            !self.rows.iter().any(touched),
            "an expired request had started"
        );
    }

    fn check_usage(&self, usage: &crate::Usage, computes_again: bool) {
        assert_eq!(usage.prompt_tokens, self.request.prompt_tokens());
        let made: usize = self
            .rows
            .iter()
            .flat_map(|r| &r.choices)
            .map(|(tokens, _)| tokens.len())
            .sum();
        assert_eq!(usage.output_tokens, made as u64);
        if self.request.class() == ExecutionClass::OneShot && !self.preempted {
            assert!(usage.cached_tokens + usage.computed_tokens <= usage.prompt_tokens);
            // A row that is computed again finds in the cache what it wrote there itself.
            assert!(computes_again || usage.cache_write_tokens <= usage.computed_tokens);
        }
    }
}
