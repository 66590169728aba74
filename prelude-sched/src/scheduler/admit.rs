//! Admission of sequences: generations in the policy's order, and those that were preempted
//! before any of them.

use prelude_core::{Head, RequestId, SeqId};
use prelude_kv::BlockHash;

use super::{Scheduler, shortage::BlockUse};
use crate::{
    Plan,
    leader::Held,
    sequence::{Job, Sequence},
    step::Draft,
};

/// The outcome of an attempt to admit a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// The sequence holds its prefix, and its first chunk is planned.
    Admitted,
    /// Another prompt computes the next block of the sequence's prefix.
    Deferred,
    /// The sequence's prompt does not fit the blocks that are left.
    Blocked,
}

impl Scheduler {
    /// Admits generations with at most `room` tokens of first chunks.
    pub(super) fn plan_admissions(&mut self, draft: &mut Draft, plan: &Plan, room: u32) {
        let end = draft.prefill_tokens().saturating_add(room);
        if self.resume_preempted(draft, end) {
            self.admit_new(draft, plan, end);
        }
    }

    /// Takes up preempted sequences, oldest first, chunked rows among them. Returns whether none
    /// of the generations is left over, so that new ones may follow.
    fn resume_preempted(&mut self, draft: &mut Draft, end: u32) -> bool {
        let ids: Vec<SeqId> = self.preempted.values().copied().collect();
        for id in ids {
            if draft.starved {
                break;
            }
            let mut seq = self.seqs.remove(&id).expect("a preempted sequence is live");
            let left = if seq.is_decode() {
                end.saturating_sub(draft.prefill_tokens()).min(draft.left())
            } else {
                let oneshot_left = draft.enough_tokens.saturating_sub(draft.oneshot_tokens());
                draft.left().min(oneshot_left)
            };
            let slots = !seq.is_decode() || self.running_decode < self.max_seqs;
            let waiting = seq.unplanned();
            let mut outcome = Admission::Deferred;
            if left > 0 && slots {
                let mut held = seq.held;
                outcome = self.hold_prefix(draft, &mut seq, &mut held);
                seq.held = held;
            }
            let (seniority, decode) = (seq.seniority, u32::from(seq.is_decode()));
            self.seqs.insert(id, seq);
            match outcome {
                Admission::Admitted => {
                    self.unplanned -= u64::from(waiting);
                    self.preempted.remove(&seniority);
                    self.preempted_decode -= decode;
                    self.start(draft, id, left);
                }
                Admission::Deferred => {}
                Admission::Blocked => {
                    self.take_kept_from_passes();
                    draft.starved = true;
                }
            }
        }
        !draft.starved && self.preempted_decode == 0
    }

    fn admit_new(&mut self, draft: &mut Draft, plan: &Plan, end: u32) {
        for grant in &plan.decode {
            let Some(live) = self.requests.get(&grant.request) else {
                continue;
            };
            let key = self.decode.placed(live.key);
            let reason = self.refuse_blocks(draft, key, BlockUse::Generation);
            if reason.is_some() {
                break;
            }
            let granted_end = draft.prefill_tokens().saturating_add(grant.tokens).min(end);
            let outcome = self.admit_choices(draft, grant.request, granted_end);
            self.requeue(grant.request);
            if outcome == Admission::Blocked {
                self.wait_for_blocks(key, BlockUse::Generation, None);
                break;
            }
        }
    }

    /// Admits choices of one request until something stands in the way.
    fn admit_choices(&mut self, draft: &mut Draft, id: RequestId, end: u32) -> Admission {
        loop {
            let left = end.saturating_sub(draft.prefill_tokens()).min(draft.left());
            if left == 0 || self.running_decode >= self.max_seqs {
                return Admission::Deferred;
            }
            let live = self
                .requests
                .get_mut(&id)
                .expect("a request that waits is live");
            let Some(mut waiting) = live.decode.pop_front() else {
                return Admission::Admitted;
            };
            let prompt = live.whole_prompt(waiting.row);
            let Head::Generate(generate) = live.head(waiting.row) else {
                unreachable!("only generations wait here");
            };
            let job = Job::Decode(generate.clone());
            let (row, choice, salt) = (waiting.row, waiting.next, live.prompts.salt.clone());
            let mut seq = Sequence::new(id, row, choice, job, salt, prompt, self.next_seq);
            let outcome = self.hold_prefix(draft, &mut seq, &mut waiting.held);
            if outcome == Admission::Admitted {
                waiting.next += 1;
                let live = self
                    .requests
                    .get_mut(&id)
                    .expect("a request that waits is live");
                live.waiting_choices -= 1;
                // Each choice of the request has a patience of its own.
                waiting.held = Held::default();
            }
            if waiting.next < waiting.n {
                let live = self
                    .requests
                    .get_mut(&id)
                    .expect("a request that waits is live");
                live.decode.push_front(waiting);
            }
            if outcome != Admission::Admitted {
                return outcome;
            }
            self.enlist(draft, seq, left);
        }
    }

    /// Makes a newly admitted sequence one of the living, and plans its first chunk.
    pub(super) fn enlist(&mut self, draft: &mut Draft, mut seq: Sequence, left: u32) {
        seq.start_constraint(draft.now);
        let id = SeqId(self.next_seq);
        self.next_seq += 1;
        let live = self
            .requests
            .get_mut(&seq.request)
            .expect("a request that is being admitted is live");
        live.seqs.insert(id);
        self.short_of_blocks.remove(&live.key.age());
        if seq.choice == 0 {
            live.usage.cached_tokens += u64::from(seq.computed);
        }
        // The request's tokens now wait as tokens of the sequence.
        self.queued_uncached -= live.take_up(u64::from(seq.unplanned()));
        self.seqs.insert(id, seq);
        self.start(draft, id, left);
    }

    fn start(&mut self, draft: &mut Draft, id: SeqId, left: u32) {
        let seq = self.seqs.get_mut(&id).expect("it was admitted just now");
        seq.advanced = draft.now;
        self.unplanned += u64::from(seq.unplanned());
        self.running.insert(seq.seniority, id);
        self.running_decode += u32::from(seq.is_decode());
        self.plan_chunk(draft, id, left);
    }

    /// Matches a sequence's prompt with the cache and, if nothing stands in the way, lets it hold
    /// what was found. The blocks it still needs for its prompt are there, but not taken yet.
    pub(super) fn hold_prefix(
        &mut self,
        draft: &Draft,
        seq: &mut Sequence,
        held: &mut Held,
    ) -> Admission {
        let tokens = seq.target_tokens();
        let limit = seq.match_limit();
        let block_size = self.cache.block_size();
        let caching = self.config.enable_prefix_caching;
        let most = if caching { limit as usize } else { 0 };
        let salt = seq.salt.clone();
        let mut found = self.cache.match_prefix(salt.as_ref(), &tokens, most);
        let known = found.blocks().len();
        let is_overdue = self.is_overdue(seq);
        let end = (known + 1) * block_size;
        let next = (caching && end <= limit as usize)
            .then(|| found.hash().then(&tokens[known * block_size..end]));
        let is_stored = next.is_some_and(|next| self.cache.is_stored(next));
        if !is_overdue && !is_stored && self.is_led(draft, next, held) {
            self.cache.release_all(found.into_blocks());
            return Admission::Deferred;
        }
        // Beside others, leave each a block to grow into: admitting what is preempted at once
        // helps no sequence.
        let spare = if self.running.is_empty() {
            0
        } else {
            self.running.len() + 1
        };
        let needed = tokens.len().div_ceil(block_size) - known;
        if needed + spare > self.cache.available_blocks() as usize {
            if is_overdue || seq.was_admitted() {
                self.lacks_blocks(needed + spare);
            }
            self.cache.release_all(found.into_blocks());
            return Admission::Blocked;
        }
        // Blocks that the sequence needs may be loaded as well as computed.
        let known = known + (self.cache).load_behind(&mut found, salt.as_ref(), &tokens, most);
        self.counters.prefix_query_tokens += tokens.len() as u64;
        self.counters.prefix_hit_tokens += (known * block_size) as u64;
        self.cache.count_use(found.blocks());
        let hash = found.hash();
        seq.admit(
            found.into_blocks(),
            hash,
            &tokens,
            block_size,
            caching,
            &mut self.leaders,
        );
        Admission::Admitted
    }

    /// Returns whether a prompt is to wait for another that computes the block behind its cached
    /// prefix, whose hash is `next`, if that may come from the cache at all.
    pub(super) fn is_led(
        &mut self,
        draft: &Draft,
        next: Option<BlockHash>,
        held: &mut Held,
    ) -> bool {
        let Some(next) = next.filter(|_| draft.may_defer) else {
            return false;
        };
        let wait = self.leaders.contains(next) && held.hold(next, draft.id, self.config.defer_max);
        self.counters.deferrals += u64::from(wait);
        wait
    }
}
