//! A request from its first step to its end: started, requeued, late, over.

use std::time::Duration;

use prelude_core::{RequestId, SeqId, Timestamp};

use super::Scheduler;
use crate::{Event, Outcome, length::length_of, request::Reserved};

impl Scheduler {
    /// Drops requests whose deadline passed before they started.
    pub(super) fn expire(&mut self, now: Timestamp, events: &mut Vec<Event>) {
        while let Some(&(deadline, id)) = self.deadlines.first() {
            if deadline > now {
                break;
            }
            self.counters.deadline_expirations += 1;
            self.finish(now, id, Outcome::DeadlineExpired, events);
        }
    }

    /// Gives the first turn to the request that has waited longest, once that is too long: to one
    /// at a time in each queue, so that many of them delay others by one each step at most.
    pub(super) fn promote(&mut self, now: Timestamp) {
        let max_wait = Duration::from_millis(u64::from(self.config.max_wait_ms));
        if max_wait.is_zero() {
            return;
        }
        for queue in [&mut self.oneshot, &mut self.decode] {
            if let Some(promoted) = queue.promote(now, max_wait)
                && let Some(watch) = &mut self.watch
            {
                watch.touch(promoted);
            }
        }
    }

    /// Notes that some of a request was planned.
    pub(super) fn mark_started(&mut self, now: Timestamp, id: RequestId) {
        let live = self
            .requests
            .get_mut(&id)
            .expect("only live requests are planned");
        if live.started.is_none() {
            live.started = Some(now);
            if let Some(deadline) = live.expires {
                self.deadlines.remove(&(deadline, id));
            }
        }
    }

    /// Brings the queues up to date with what of a request still waits.
    pub(super) fn requeue(&mut self, id: RequestId) {
        if let Some(watch) = &mut self.watch {
            watch.touch(id);
        }
        self.enqueue(id);
    }

    /// Does what [`Self::requeue`] does, for a request of which the policy has not heard.
    pub(super) fn enqueue(&mut self, id: RequestId) {
        let live = self.requests.get_mut(&id).expect("only live requests wait");
        let rows = length_of(live.oneshot.len());
        let choices = live.waiting_choices;
        self.oneshot.set(live.key, live.waiting(id, rows));
        self.decode.set(live.key, live.waiting(id, choices));
        if rows == 0 && choices == 0 {
            self.short_of_blocks.remove(&live.key.age());
            let reserved = live.reserved.take();
            self.unreserve(reserved);
        }
    }

    pub(super) fn unreserve(&mut self, reserved: Option<Reserved>) {
        let reserved = reserved.unwrap_or_default();
        self.queued_rows -= reserved.rows;
        self.queued_tokens -= reserved.tokens;
        self.queued_uncached -= reserved.uncached;
    }

    /// Ends a request: takes it out of everything and frees what it holds, once.
    pub(super) fn finish(
        &mut self,
        now: Timestamp,
        id: RequestId,
        outcome: Outcome,
        events: &mut Vec<Event>,
    ) -> bool {
        let Some(live) = self.requests.remove(&id) else {
            return false;
        };
        let live = *live;
        self.abandon_passes(id);
        if let Some(watch) = &mut self.watch {
            watch.end(live.serial, id);
            if self.oneshot.get(live.key).is_some() || self.decode.get(live.key).is_some() {
                self.withdrawn.insert(id);
            }
        }
        self.oneshot.remove(&live.key);
        self.decode.remove(&live.key);
        self.short_of_blocks.remove(&live.key.age());
        if let Some(deadline) = live.expires {
            self.deadlines.remove(&(deadline, id));
        }
        self.unreserve(live.reserved);
        // After a failure, what is in the blocks is not to be trusted.
        let publish = !matches!(outcome, Outcome::Failed(_));
        let mut usage = live.usage;
        for seq in live.seqs {
            let (written, made) = self.remove_sequence(seq, publish);
            usage.cache_write_tokens += written;
            usage.output_tokens += made;
        }
        let arrival = live.key.arrival;
        usage.queue_time = live.started.unwrap_or(now).saturating_since(arrival);
        usage.exec_time = live
            .started
            .map_or_else(Default::default, |s| now.saturating_since(s));
        events.push(Event::Finished {
            request: id,
            outcome,
            usage,
        });
        true
    }

    /// Takes a sequence out of everything. Returns the tokens that this put into the cache, and
    /// those that the sequence has generated.
    pub(super) fn remove_sequence(&mut self, id: SeqId, publish: bool) -> (u64, u64) {
        let mut seq = self
            .seqs
            .remove(&id)
            .expect("a live request's sequences are live");
        self.unplanned -= u64::from(seq.unplanned());
        let decode = u32::from(seq.is_decode());
        if self.running.remove(&seq.seniority).is_some() {
            self.running_decode -= decode;
        } else if self.preempted.remove(&seq.seniority).is_some() {
            self.preempted_decode -= decode;
        }
        let mut written = 0;
        if publish && self.config.enable_prefix_caching {
            written = seq.publish(&mut self.cache, &mut self.leaders);
        }
        seq.vacate(&mut self.cache, &mut self.leaders);
        (written, seq.output.len() as u64)
    }

    /// Notes what a live request has put into the cache.
    pub(super) fn note_written(&mut self, request: RequestId, tokens: u64) {
        if let Some(live) = self.requests.get_mut(&request) {
            live.usage.cache_write_tokens += tokens;
        }
    }
}
