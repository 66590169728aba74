//! Work that goes on: decode rows and further chunks, oldest first. The oldest can take blocks
//! from all others, so it always gets on; the youngest lose theirs first.

use std::ops::Range;

use prelude_core::{
    Attention, BlockSpan, DecodeRow, OutputHead, OutputRow, Residency, Segment, SegmentIdx, SeqId,
};
use prelude_kv::Reclaim;

use super::Scheduler;
use crate::{
    Event,
    forest::push_blocks,
    length::length_of,
    row,
    sequence::{Job, SeqState, SeqTag},
    step::{Draft, RowTag},
};

impl Scheduler {
    /// Plans one row for every generation, and chunks for unfinished prompts within each class's
    /// room. Work that the step has already stays. `may_preempt` is true only if the step is empty,
    /// since a preemption would take the blocks of rows that it has.
    pub(super) fn plan_running(
        &mut self,
        draft: &mut Draft,
        oneshot_room: u32,
        prefill_room: u32,
        may_preempt: bool,
        events: &mut Vec<Event>,
    ) {
        let ids: Vec<SeqId> = self.running.values().copied().collect();
        for id in ids {
            let seq = &self.seqs[&id];
            if seq.planned_in == Some(draft.id) {
                continue;
            }
            draft.left_over |= matches!(seq.state, SeqState::Prefilling { .. });
            match seq.state {
                SeqState::Decoding if seq.can_decode(self.capacity.pipeline_depth) => {
                    self.plan_decode_row(draft, id, may_preempt, events);
                }
                SeqState::Prefilling { next }
                    if next < seq.chunk_limit() && !draft.paused.contains(&id) =>
                {
                    let left = if seq.is_decode() {
                        prefill_room.saturating_sub(draft.prefill_tokens())
                    } else {
                        oneshot_room.saturating_sub(draft.oneshot_tokens())
                    };
                    let left = left.min(draft.left());
                    // A row's last chunk can do without blocks.
                    let chunk = left.min(draft.chunk_tokens);
                    let is_last = !seq.is_decode() && chunk >= seq.len() - next;
                    if left > 0 && !is_last && !self.has_block_for(id, next, may_preempt, events) {
                        self.starve(draft);
                    } else if left > 0 {
                        self.plan_chunk(draft, id, left);
                    }
                }
                // The sequence was preempted just now by an older one, or its step is in flight, or
                // it sits out, or it is paused.
                SeqState::Waiting | SeqState::Decoding | SeqState::Prefilling { .. } => {}
            }
        }
    }

    fn plan_decode_row(
        &mut self,
        draft: &mut Draft,
        id: SeqId,
        may_preempt: bool,
        events: &mut Vec<Event>,
    ) {
        let seq = &self.seqs[&id];
        let position = seq.decode_position();
        let is_there = seq.blocks.len() > (position / self.capacity.block_size) as usize;
        if !is_there && !self.has_block_for(id, position, may_preempt, events) {
            draft.left_over = true;
            self.starve(draft);
            return;
        }
        let seq = self.seqs.get_mut(&id).expect("a running sequence is live");
        let Job::Decode(generate) = &seq.job else {
            unreachable!("only generations decode");
        };
        let batch = &mut draft.decode;
        let blocks = BlockSpan {
            start: length_of(batch.block_ids.len()),
            len: position / self.capacity.block_size + 1,
        };
        batch
            .block_ids
            .extend_from_slice(&seq.blocks[..blocks.len as usize]);
        batch.rows.push(DecodeRow {
            seq: id,
            token: seq.decode_source(),
            context_len: position,
            blocks,
            sample: seq.sample_head(generate),
        });
        seq.in_flight += 1;
        seq.last_step = draft.id;
        seq.planned_in = Some(draft.id);
        draft.record.decode.push(SeqTag {
            seq: id,
            epoch: seq.epoch,
        });
        self.counters.decode_tokens += 1;
    }

    /// Makes sure that a sequence has the block of a position, whatever it takes: a free block, a
    /// cached one, one of a younger sequence.
    fn has_block_for(
        &mut self,
        id: SeqId,
        position: u32,
        may_preempt: bool,
        events: &mut Vec<Event>,
    ) -> bool {
        let needed = (position / self.capacity.block_size) as usize + 1;
        loop {
            let seq = self.seqs.get_mut(&id).expect("a running sequence is live");
            if seq.blocks.len() >= needed {
                return true;
            }
            if let Some(block) = self.cache.allocate(Reclaim::Evict) {
                seq.blocks.push(block);
                continue;
            }
            let seniority = seq.seniority;
            let youngest = self.running.last_key_value().map(|(&s, &id)| (s, id));
            match youngest.filter(|&(s, _)| may_preempt && s > seniority) {
                Some((_, victim)) => self.preempt(victim, events),
                None => return false,
            }
        }
    }

    /// Takes all blocks from a sequence. It is computed again later, tokens so far included.
    fn preempt(&mut self, id: SeqId, events: &mut Vec<Event>) {
        let seq = self.seqs.get_mut(&id).expect("a running sequence is live");
        let mut written = 0;
        if self.config.enable_prefix_caching {
            written = seq.publish_all(&mut self.cache, &mut self.leaders);
        }
        let planned = seq.len() - seq.unplanned();
        seq.vacate(&mut self.cache, &mut self.leaders);
        // All tokens of the sequence have to be computed again.
        self.unplanned += u64::from(planned);
        self.running.remove(&seq.seniority);
        self.preempted.insert(seq.seniority, id);
        let decode = u32::from(seq.is_decode());
        self.running_decode -= decode;
        self.preempted_decode += decode;
        self.counters.preemptions += 1;
        let request = seq.request;
        events.push(Event::Preempted { request });
        self.note_written(request, written);
    }

    /// Plans a prompt's next chunk of at most `most` tokens; none if only its last token is left
    /// and it sits out. The sequence has the block of the first position; the chunk is as long as
    /// there are blocks to be had without preemption.
    pub(super) fn plan_chunk(&mut self, draft: &mut Draft, id: SeqId, most: u32) {
        let block_size = self.capacity.block_size;
        let seq = self.seqs.get_mut(&id).expect("a running sequence is live");
        let SeqState::Prefilling { next } = seq.state else {
            unreachable!("only prompts are chunked");
        };
        let target = seq.len();
        let limit = seq.chunk_limit();
        if next == limit {
            return;
        }
        let want = limit.min(next.saturating_add(most.min(draft.chunk_tokens)));
        // K/V of a row's last chunk are of use to later requests only.
        let last_of_row = want == target && !seq.is_decode();
        let reclaim = if last_of_row {
            Reclaim::Never
        } else {
            Reclaim::Evict
        };
        let may_take = !last_of_row || self.config.enable_prefix_caching;
        let blocks = if last_of_row {
            want / block_size
        } else {
            want.div_ceil(block_size)
        };
        while may_take && seq.blocks.len() < blocks as usize {
            match self.cache.allocate(reclaim) {
                Some(block) => seq.blocks.push(block),
                None => break,
            }
        }
        let covered = length_of(seq.blocks.len()).saturating_mul(block_size);
        let end = if last_of_row { want } else { want.min(covered) };
        seq.state = SeqState::Prefilling { next: end };
        self.unplanned -= u64::from(end - next);
        seq.advanced = draft.now;
        seq.planned_in = Some(draft.id);
        let tag = SeqTag {
            seq: id,
            epoch: seq.epoch,
        };
        draft.record.chunks.push((tag, end));
        let request = seq.request;

        self.push_segment(draft, id, next..end);
        self.push_chunk_row(draft, id, tag, next..end);
        let live = self
            .requests
            .get_mut(&request)
            .expect("a sequence's request is live");
        live.usage.computed_tokens += u64::from(end - next);
        self.mark_started(draft.now, request);
    }

    fn push_segment(&mut self, draft: &mut Draft, id: SeqId, computed: Range<u32>) {
        let block_size = self.capacity.block_size;
        let seq = &self.seqs[&id];
        let (batch, counter) = if seq.is_decode() {
            (&mut draft.prefill, &mut self.counters.prefill_tokens)
        } else {
            (&mut draft.oneshot, &mut self.counters.oneshot_tokens)
        };
        *counter += u64::from(computed.end - computed.start);
        let context = computed.start.div_ceil(block_size) as usize;
        let cached = push_blocks(batch, &seq.blocks[..context]);
        let first = (computed.start / block_size) as usize;
        let last = seq
            .blocks
            .len()
            .min(computed.end.div_ceil(block_size) as usize);
        let kept = push_blocks(batch, seq.blocks.get(first..last).unwrap_or_default());
        let tokens = length_of(batch.tokens.len());
        let positions = computed.start as usize..computed.end as usize;
        seq.tokens_into(&positions, &mut batch.tokens);
        batch.segments.push(Segment {
            tokens: tokens..length_of(batch.tokens.len()),
            parent: None,
            context_len: computed.start,
            cached,
            residency: if kept.len > 0 {
                Residency::Keep(kept)
            } else {
                Residency::Transient
            },
        });
    }

    /// Adds what is read off a chunk: a generation's next token, or (a piece of) a row's answer.
    fn push_chunk_row(&mut self, draft: &mut Draft, id: SeqId, tag: SeqTag, computed: Range<u32>) {
        let seq = &self.seqs[&id];
        match &seq.job {
            Job::Decode(generate) => {
                if computed.end == seq.len() {
                    let head = OutputHead::Sample(seq.sample_head(generate));
                    let segment = SegmentIdx(length_of(draft.prefill.segments.len() - 1));
                    let positions = computed.end - 1..computed.end;
                    draft.prefill.rows.push(OutputRow {
                        segment,
                        positions,
                        head,
                    });
                    draft.record.prefill.push(tag);
                }
            }
            Job::Chunked { needed } => {
                let live = &self.requests[&seq.request];
                // Positions that were answered before a preemption are not answered again.
                let fresh = computed.start.max(*needed)..computed.end;
                if let Some((positions, head)) =
                    row::output_of(live.head(seq.row), &seq.prompt, &fresh, Attention::Causal)
                {
                    let segment = SegmentIdx(length_of(draft.oneshot.segments.len() - 1));
                    draft.oneshot.rows.push(OutputRow {
                        segment,
                        positions,
                        head,
                    });
                    draft.record.oneshot.push(RowTag::Chunk(tag));
                }
            }
        }
    }
}
