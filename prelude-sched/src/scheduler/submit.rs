//! Accepts or refuses requests.

use prelude_core::{Attention, ExecutionClass, Head, PassCapacity, Request, Timestamp};

use super::Scheduler;
use crate::{
    Reject,
    request::{RequestState, Reserved, expires},
    row, watch,
};

impl Scheduler {
    /// Admits a request or refuses it.
    ///
    /// A generation is refused if its prompt and whole output budget need more blocks than there
    /// are: what is accepted can get all that it asked for, if need be with the pool to itself.
    ///
    /// # Errors
    /// [`Reject`]; nothing of the request remains.
    pub fn submit(&mut self, now: Timestamp, request: Request) -> Result<(), Reject> {
        request.validate(self.capacity.vocab_size, self.capacity.max_context_len)?;
        if self.requests.contains_key(&request.id) {
            return Err(Reject::DuplicateId(request.id));
        }
        for row in 0..request.rows.len() {
            self.check_fits(&request, row)?;
        }
        let expires = expires(&request);
        if let Some(deadline) = expires.filter(|&d| d <= now) {
            return Err(Reject::DeadlineUnmeetable { deadline, now });
        }
        let mut reserved = self.check_queue(&request)?;
        if request.class() == ExecutionClass::Decode {
            self.shares.generation_arrived(request.arrival);
        }
        let id = request.id;
        let mut live = RequestState::new(self.next_serial, request, self.cache.block_size());
        if self.config.enable_prefix_caching {
            live.reserved = Some(reserved);
            // Hashed here, so that no step has to hash the prompts of all requests that came since
            // the step before.
            if let Some((cost, _)) = watch::cost_now(&mut live, &self.cache, 0) {
                reserved.uncached = cost.tokens;
            }
        }
        live.reserved = Some(reserved);
        self.queued_rows += reserved.rows;
        self.queued_tokens += reserved.tokens;
        self.queued_uncached += reserved.uncached;
        if let Some(deadline) = expires {
            self.deadlines.insert((deadline, id));
        }
        if let Some(watch) = &mut self.watch {
            watch.arrive(live.serial, id);
        }
        self.next_serial += 1;
        self.requests.insert(id, Box::new(live));
        self.enqueue(id);
        Ok(())
    }

    fn check_fits(&self, request: &Request, row: usize) -> Result<(), Reject> {
        let spec = &request.rows[row];
        if self.capacity.attention == Attention::Full && matches!(spec.head, Head::Generate(_)) {
            return Err(Reject::GeneratesNothing { row });
        }
        let prompt = request.tree.prompt_len(spec.node);
        let step_tokens = self.capacity.max_step_tokens;
        let in_pass = |room: PassCapacity| row::num_outputs(&spec.head, prompt) <= room.outputs;
        let passes = self.capacity.passes.filter(|&room| in_pass(room));
        let limit = passes.map_or(step_tokens, |room| room.tokens.max(step_tokens));
        let available = u64::from(self.capacity.num_blocks);
        let attention = self.capacity.attention;
        let positions = match &spec.head {
            // The last generated token is never run, so it takes no position.
            Head::Generate(g) if spec.head.class() == ExecutionClass::Decode => {
                u64::from(prompt) + u64::from(g.max_tokens) - 1
            }
            head if row::is_whole(head, attention) && prompt > limit => {
                return Err(Reject::TooLongToPool { row, prompt, limit });
            }
            _ if prompt > limit => u64::from(prompt),
            _ => 0,
        };
        let needed = positions.div_ceil(u64::from(self.capacity.block_size));
        if needed > available {
            return Err(Reject::NeverFits {
                row,
                needed,
                available,
            });
        }
        Ok(())
    }

    /// Returns what the request takes of the queue's bounds, if it may, as if nothing were cached.
    fn check_queue(&self, request: &Request) -> Result<Reserved, Reject> {
        let rows = RequestState::queue_rows(request);
        let tokens = match self.capacity.attention {
            Attention::Causal => request.tree.distinct_tokens() as u64,
            // Each row's prompt is computed, whatever it shares with others.
            Attention::Full => request.prompt_tokens(),
        };
        let row_limit = u64::from(self.config.max_queued_rows);
        let token_limit = self.config.max_queued_tokens;
        for (what, amount, limit) in [
            ("rows", rows, row_limit),
            ("prompt tokens", tokens, token_limit),
        ] {
            if amount > limit {
                return Err(Reject::LargerThanQueue {
                    what,
                    amount,
                    limit,
                });
            }
        }
        if self.queued_rows + rows > row_limit {
            let (queued, limit) = (self.queued_rows, row_limit);
            return Err(Reject::QueueFullRows {
                rows,
                queued,
                limit,
            });
        }
        if self.queued_tokens + tokens > token_limit {
            let (queued, limit) = (self.queued_tokens, token_limit);
            return Err(Reject::QueueFullTokens {
                tokens,
                queued,
                limit,
            });
        }
        Ok(Reserved {
            rows,
            tokens,
            uncached: tokens,
        })
    }
}
