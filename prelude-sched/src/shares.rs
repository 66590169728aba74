//! The shares of device time of the two execution classes.
//!
//! While both classes have work, one-shot work may take `oneshot_share_percent` of the device's
//! time, and generations, prompts and decoding together, take the rest. Time and not tokens: a
//! decision of 700 tokens takes as long as dozens of steps that decode.
//!
//! ```text
//! lead = (100 - share) · time of one-shot work - share · time of generations     [hundredths of ns]
//!
//! lead > 0    one-shot work is ahead: it sits steps out until generations have had their share
//! lead <= 0   one-shot work joins, for as long as a slice takes and what it is behind
//! ```
//!
//! A class takes what the other does not use, and no claim comes from it: while one-shot work does
//! not wait, the lead falls to zero at most, and while generations do not, it rises to zero at
//! most. A lead that is there stays: chats that end and go on a moment later have what they are
//! owed. They often find a step of one-shot work that began in between: its time counts from their
//! arrival on.

use std::time::Duration;

use prelude_core::Timestamp;

/// The work of a step, as far as its time is attributed to classes by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClassWork {
    /// Generations that decode.
    pub(crate) decode_rows: u64,
    /// Prompt tokens of generations.
    pub(crate) prefill_tokens: u64,
    /// Tokens of one-shot work, in chunks too.
    pub(crate) oneshot_tokens: u64,
}

impl ClassWork {
    /// Returns the prompt tokens of both classes.
    pub(crate) const fn prompt_tokens(self) -> u64 {
        self.prefill_tokens + self.oneshot_tokens
    }
}

/// The classes that have work which is not in a step in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) oneshot: bool,
    pub(crate) generations: bool,
}

/// A step of one-shot work at whose end no generation waited.
#[derive(Clone, Copy, Debug)]
struct Alone {
    end: Timestamp,
    took: Duration,
    /// The lead that the step would have added if a generation had waited.
    uncounted: i64,
}

/// The lead of one-shot work over its share, and the times of steps by which that is reckoned.
#[derive(Debug)]
pub(crate) struct DeviceShares {
    /// The share of one-shot work in percent, in 1..=99.
    percent: i64,
    /// See the module; at most the time of a step above zero.
    lead: i64,
    /// The latest step, if no generation waited when it ended.
    alone: Option<Alone>,
    /// Seconds of a prompt token of late; `None` until a step with one has ended.
    token_seconds: Option<f64>,
    /// Seconds of late of steps that only decode, by the logarithm of their rows.
    decode_seconds: [Option<f64>; Self::ROW_CLASSES],
}

impl DeviceShares {
    const ROW_CLASSES: usize = 16;

    /// The weight of the latest step in a moving average.
    const WEIGHT: f64 = 0.25;

    pub(crate) fn new(oneshot_share_percent: u32) -> Self {
        Self {
            percent: i64::from(oneshot_share_percent),
            lead: 0,
            alone: None,
            token_seconds: None,
            decode_seconds: [None; Self::ROW_CLASSES],
        }
    }

    /// Returns whether one-shot work has had more than its share, so that it sits steps out while
    /// generations have work.
    pub(crate) const fn is_ahead(&self) -> bool {
        self.lead > 0
    }

    /// Returns the prompt tokens that take about `time`; `None` before a step has shown it.
    pub(crate) fn tokens_in(&self, time: Duration) -> Option<u32> {
        let seconds = self.token_seconds?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast from a float saturates, and times are not negative"
        )]
        let tokens = (time.as_secs_f64() / seconds) as u32;
        Some(tokens.max(1))
    }

    /// Returns the time for which one-shot work may join a step: a slice, and what it is behind.
    pub(crate) fn oneshot_time(&self, slice: Duration) -> Duration {
        let behind = self.lead.min(0).unsigned_abs() / (100 - self.percent).unsigned_abs();
        slice.saturating_add(Duration::from_nanos(behind))
    }

    /// Notes a step that took `took` until `end`; no `work` stands for a slice, which is one-shot
    /// work alone.
    pub(crate) fn note(
        &mut self,
        work: Option<ClassWork>,
        end: Timestamp,
        took: Duration,
        waiting: Waiting,
    ) {
        let oneshot = work.map_or(took, |work| self.oneshot_part(work, took));
        if let Some(work) = work {
            self.learn(work, took);
        }
        let hundredths = |time: Duration, percent: i64| {
            i64::try_from(time.as_nanos()).map_or(i64::MAX, |ns| ns.saturating_mul(percent))
        };
        let rise = hundredths(oneshot, 100 - self.percent);
        let fall = hundredths(took.saturating_sub(oneshot), self.percent);
        let before = self.lead;
        self.lead = before.saturating_add(rise).saturating_sub(fall);
        if !waiting.oneshot {
            self.lead = self.lead.max(before.min(0));
        }
        self.alone = None;
        if !waiting.generations {
            let counted = self.lead.min(before.max(0));
            self.alone = Some(Alone {
                end,
                took,
                uncounted: self.lead - counted,
            });
            self.lead = counted;
        }
    }

    /// Notes that a generation arrived at `arrival`. If that was while the latest step of one-shot
    /// work ran, the rest of that step counts for the lead.
    pub(crate) fn generation_arrived(&mut self, arrival: Timestamp) {
        let Some(step) = self.alone.take() else {
            return;
        };
        let waited = step.end.saturating_since(arrival).min(step.took);
        let part = waited.as_secs_f64() / step.took.as_secs_f64().max(f64::MIN_POSITIVE);
        #[expect(clippy::cast_possible_truncation, reason = "a part of what was an i64")]
        let owed = (step.uncounted as f64 * part) as i64;
        self.lead = self.lead.saturating_add(owed);
    }

    /// Returns the part of a step's time that one-shot work took: its part of the prompt tokens, of
    /// the time that decoding alone would not have taken.
    fn oneshot_part(&self, work: ClassWork, took: Duration) -> Duration {
        if work.oneshot_tokens == 0 {
            return Duration::ZERO;
        }
        let (prompts, tokens) = match self.decode_time(work.decode_rows) {
            Some(seconds) => (took.as_secs_f64() - seconds, work.prompt_tokens()),
            // No such step has run: a decode row counts as a token.
            None => (took.as_secs_f64(), work.prompt_tokens() + work.decode_rows),
        };
        let part = prompts.max(0.0) * work.oneshot_tokens as f64 / tokens as f64;
        Duration::from_secs_f64(part).min(took)
    }

    /// Returns the seconds of a step that only decodes so many rows, or the nearest number of rows
    /// of which one is known; `None` if none is.
    fn decode_time(&self, rows: u64) -> Option<f64> {
        let Some(class) = row_class(rows) else {
            return Some(0.0);
        };
        let known = |class: usize| self.decode_seconds.get(class).copied().flatten();
        let below = (0..=class).rev().find_map(known);
        below.or_else(|| (class..Self::ROW_CLASSES).find_map(known))
    }

    fn learn(&mut self, work: ClassWork, took: Duration) {
        let average = |old: Option<f64>, new: f64| {
            Some(old.map_or(new, |old| old + Self::WEIGHT * (new - old)))
        };
        let seconds = took.as_secs_f64();
        if work.prompt_tokens() == 0 {
            if let Some(class) = row_class(work.decode_rows) {
                let known = &mut self.decode_seconds[class];
                *known = average(*known, seconds);
            }
            return;
        }
        let of_prompts = seconds - self.decode_time(work.decode_rows).unwrap_or(0.0);
        if of_prompts > 0.0 {
            let each = of_prompts / work.prompt_tokens() as f64;
            self.token_seconds = average(self.token_seconds, each);
        }
    }
}

/// Returns the logarithm of a number of rows, `None` of none.
fn row_class(rows: u64) -> Option<usize> {
    let class = rows.checked_ilog2()? as usize;
    Some(class.min(DeviceShares::ROW_CLASSES - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(20);
    const END: Timestamp = Timestamp::from_nanos(1_000_000_000);

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    const BOTH: Waiting = Waiting {
        oneshot: true,
        generations: true,
    };
    const ONESHOT: Waiting = Waiting {
        oneshot: true,
        generations: false,
    };
    const GENERATIONS: Waiting = Waiting {
        oneshot: false,
        generations: true,
    };

    const fn step(decode_rows: u64, prefill_tokens: u64, oneshot_tokens: u64) -> ClassWork {
        ClassWork {
            decode_rows,
            prefill_tokens,
            oneshot_tokens,
        }
    }

    /// Runs a device on which a decode step takes 2 ms and a prompt token 0.1 ms, with generations
    /// and one-shot rows of so many tokens that never end. Returns one-shot work's share of the
    /// time, and the longest step.
    fn share_of(percent: u32, row: u64) -> (f64, Duration) {
        let mut shares = DeviceShares::new(percent);
        let (mut oneshot_time, mut all, mut longest) = (Duration::ZERO, Duration::ZERO, ms(0));
        for _ in 0..20_000 {
            let mut tokens = 0;
            if !shares.is_ahead() {
                let most = shares.tokens_in(shares.oneshot_time(SLICE)).unwrap_or(1);
                while tokens < u64::from(most) {
                    tokens += row;
                }
            }
            let of_row = Duration::from_micros(100 * tokens);
            let took = ms(2) + of_row;
            shares.note(Some(step(8, 0, tokens)), END, took, BOTH);
            oneshot_time += of_row;
            all += took;
            longest = longest.max(took);
            // One step's time above zero at most.
            assert!(shares.lead <= (100 - i64::from(percent)) * longest.as_nanos() as i64);
        }
        (oneshot_time.as_secs_f64() / all.as_secs_f64(), longest)
    }

    #[test]
    fn each_class_has_its_share_of_the_time() {
        for percent in [1, 25, 50, 75, 99] {
            for row in [1, 64, 700] {
                let (share, longest) = share_of(percent, row);
                let wanted = f64::from(percent) / 100.0;
                assert!(
                    (share - wanted).abs() < 0.02,
                    "{share} of {percent} %, rows of {row}"
                );
                // A slice, a row, and what one-shot work is behind after a step that decodes.
                let most = ms(2) + SLICE + Duration::from_micros(100 * row) + ms(200);
                assert!(longest <= most, "{longest:?} with rows of {row}");
            }
        }
    }

    #[test]
    fn a_class_that_does_not_wait_gets_no_claim_and_owes_nothing() {
        let mut shares = DeviceShares::new(50);
        // Only generations: what one-shot work could have had is gone.
        shares.note(Some(step(8, 0, 0)), END, ms(500), GENERATIONS);
        assert_eq!(shares.oneshot_time(SLICE), SLICE);
        assert!(!shares.is_ahead());
        // Only one-shot work.
        shares.note(Some(step(0, 0, 100)), END, ms(500), ONESHOT);
        assert!(!shares.is_ahead());
        // Both: it waits until generations have had as much.
        shares.note(Some(step(0, 0, 100)), END, ms(10), BOTH);
        assert!(shares.is_ahead());
        shares.note(Some(step(8, 0, 0)), END, ms(9), BOTH);
        assert!(shares.is_ahead());
        // Chats end, and go on after a step without them.
        shares.note(Some(step(0, 0, 100)), END, ms(20), ONESHOT);
        assert!(shares.is_ahead());
        shares.note(Some(step(8, 0, 0)), END, ms(2), BOTH);
        assert!(!shares.is_ahead());
        assert_eq!(shares.oneshot_time(SLICE), SLICE + ms(1));
        // Only one-shot work again: it had its part.
        shares.note(Some(step(0, 0, 100)), END, ms(9), ONESHOT);
        assert_eq!(shares.oneshot_time(SLICE), SLICE);
        // It ended while it was ahead: that is worked off before more of it comes.
        shares.note(Some(step(0, 0, 100)), END, ms(30), GENERATIONS);
        assert!(shares.is_ahead());
        shares.note(Some(step(8, 0, 0)), END, ms(100), GENERATIONS);
        assert_eq!(shares.oneshot_time(SLICE), SLICE);
    }

    #[test]
    fn a_step_counts_from_the_arrival_of_a_generation_on() {
        let owed_after = |before_end: u64, steps: u64| {
            let mut shares = DeviceShares::new(50);
            shares.note(Some(step(0, 0, 100)), END, ms(80), ONESHOT);
            let arrival = Timestamp::from_nanos(END.as_nanos() - before_end * 1_000_000);
            // Others that came later change nothing.
            shares.generation_arrived(arrival);
            shares.generation_arrived(arrival);
            for _ in 0..steps {
                assert!(shares.is_ahead());
                shares.note(Some(step(8, 0, 0)), END, ms(10), BOTH);
            }
            assert!(!shares.is_ahead(), "{before_end} ms before its end");
        };
        owed_after(0, 0);
        owed_after(30, 3);
        owed_after(80, 8);
        // Longer than the step ran.
        owed_after(500, 8);
    }

    #[test]
    fn time_is_attributed_by_what_decoding_takes_alone() {
        let mut shares = DeviceShares::new(50);
        // Nothing is known: a decode row counts as a token.
        assert_eq!(shares.oneshot_part(step(10, 0, 30), ms(40)), ms(30));
        shares.note(Some(step(8, 0, 0)), END, ms(4), BOTH);
        assert_eq!(shares.oneshot_part(step(10, 0, 30), ms(40)), ms(36));
        assert_eq!(shares.oneshot_part(step(10, 30, 10), ms(40)), ms(9));
        assert_eq!(shares.oneshot_part(step(1, 0, 30), ms(40)), ms(36));
        assert_eq!(shares.oneshot_part(step(0, 30, 10), ms(40)), ms(10));
        assert_eq!(shares.oneshot_part(step(8, 0, 0), ms(40)), ms(0));
        // It took less than decoding does otherwise.
        assert_eq!(shares.oneshot_part(step(8, 0, 1), ms(3)), ms(0));
    }

    #[test]
    fn tokens_follow_the_time_of_steps() {
        let mut shares = DeviceShares::new(50);
        assert_eq!(shares.tokens_in(SLICE), None);
        shares.note(Some(step(8, 0, 0)), END, ms(4), BOTH);
        assert_eq!(shares.tokens_in(SLICE), None);
        shares.note(Some(step(8, 50, 50)), END, ms(54), BOTH);
        assert_eq!(shares.tokens_in(SLICE), Some(40));
        assert_eq!(shares.tokens_in(Duration::from_nanos(1)), Some(1));
    }
}
