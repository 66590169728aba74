//! Length-aware prefill under the real scheduler.

use super::*;
use crate::{LapsConfig, PolicyConfig};

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Prompts of up to 8 tokens are short, long ones get on by 16; steps take 5 ms and 1 ms a token.
fn rig(laps: LapsConfig) -> Rig {
    let config = SchedulerConfig {
        policy: PolicyConfig::Laps,
        max_batch_tokens: Some(64),
        enable_prefix_caching: false,
        laps,
        ..SchedulerConfig::default()
    };
    Rig::new(config, CAPACITY)
}

fn small() -> LapsConfig {
    LapsConfig {
        boundary_tokens: 8,
        chunk_tokens: 16,
        batch_tokens: 24,
        share_floor_percent: 50,
        ttft_target_ms: 0,
        max_window_us: 0,
        ..LapsConfig::default()
    }
}

impl Rig {
    fn classify_now(&mut self, id: u64, tokens: u32) {
        let mut request = classify(id, prompt(id as u32, tokens));
        request.arrival = self.now;
        self.submit(request);
    }

    /// A step that takes its time; its prompt tokens.
    fn timed_step(&mut self) -> Option<usize> {
        let batch = self.start()?;
        let tokens = batch.num_tokens();
        self.now = self.now.saturating_add(ms(5 + tokens as u64));
        self.finish_step();
        Some(tokens)
    }
}

#[test]
fn steps_have_work_of_one_class() {
    let mut rig = rig(small());
    for (id, tokens) in [(0, 40), (1, 4), (2, 40), (3, 5), (4, 8), (5, 9)] {
        rig.classify_now(id, tokens);
    }
    let mut sizes = Vec::new();
    while let Some(tokens) = rig.timed_step() {
        sizes.push(tokens);
    }
    // The short together, then the long, one by one and by chunks.
    assert_eq!(sizes, [17, 16, 16, 8, 16, 16, 8, 9]);
    assert_eq!(rig.order(), [1, 3, 4, 0, 2, 5]);
}

#[test]
fn a_lone_long_prompt_runs_in_a_step_of_its_own() {
    let mut rig = rig(small());
    rig.classify_now(0, 100);
    assert_eq!(rig.timed_step(), Some(100));
    assert_eq!(rig.outcome(0), Some(&Outcome::Done));
    // Beside another by chunks, and alone again.
    rig.classify_now(1, 40);
    rig.classify_now(2, 100);
    let sizes: Vec<usize> = std::iter::from_fn(|| rig.timed_step()).collect();
    assert_eq!(sizes, [16, 16, 8, 100]);
}

/// Short requests that come with every step and fill it, beside a long one: it gets its half.
#[test]
fn a_long_prompt_gets_its_share() {
    let mut rig = rig(small());
    rig.classify_now(0, 96);
    let mut used = [0, 0];
    for id in (1..).step_by(3) {
        (id..id + 3).for_each(|id| rig.classify_now(id, 8));
        let before = rig.now;
        rig.start().expect("something waits");
        let long = rig.scheduler.stats().running_oneshot_rows == 0;
        rig.now = rig.now.saturating_add(if long { ms(21) } else { ms(29) });
        rig.finish_step();
        used[usize::from(long)] += rig.now.saturating_since(before).as_millis();
        if rig.outcome(0).is_some() {
            break;
        }
        assert!(id < 100, "the long prompt starves");
    }
    assert!(used[1] >= 5 * 21, "{used:?}");
    assert!(used[0].abs_diff(used[1]) <= 50, "{used:?}");
}

#[test]
fn a_deadline_about_to_be_missed_goes_before_the_turn() {
    let first = |due_ms: u64| {
        let mut rig = rig(LapsConfig {
            slack_us: 5_000,
            ..small()
        });
        // Learns that a step of either class takes about 20 ms.
        for (id, tokens) in [(10, 8), (11, 16)] {
            rig.classify_now(id, tokens);
            rig.timed_step();
        }
        rig.events.clear();
        rig.classify_now(0, 4);
        let mut long = classify(1, prompt(1, 12));
        (long.arrival, long.deadline) = (rig.now, Some(rig.now.saturating_add(ms(due_ms))));
        rig.submit(long);
        while rig.timed_step().is_some() {}
        rig.order()[0]
    };
    assert_eq!(first(500), 0);
    assert_eq!(first(25), 1);
    // Lost in any case, so the others need not suffer for it.
    assert_eq!(first(3), 0);
}

/// Requests come every 2 ms and a launch takes 10.
#[test]
fn short_requests_wait_for_each_other() {
    let mut rig = rig(LapsConfig {
        ttft_target_ms: 400,
        max_window_us: 10_000,
        ..small()
    });
    for id in 0..8 {
        rig.classify_now(id, 1);
        rig.now = rig.now.saturating_add(ms(2));
    }
    // Together: next time for two.
    assert_eq!(rig.timed_step(), Some(8));
    rig.now = rig.now.saturating_add(ms(1));
    rig.classify_now(10, 1);
    assert_eq!(rig.timed_step(), None);
    let until = rig.scheduler.next_deadline().expect("it is asked again");
    assert!(rig.now < until && until <= rig.now.saturating_add(ms(10)));
    rig.now = rig.now.saturating_add(ms(1));
    rig.classify_now(11, 1);
    assert_eq!(rig.timed_step(), Some(2));
    // No request came: alone, and next time for one.
    rig.classify_now(12, 1);
    assert_eq!(rig.timed_step(), None);
    rig.now = rig.scheduler.next_deadline().expect("it is asked again");
    assert_eq!(rig.timed_step(), Some(1));
    rig.classify_now(13, 1);
    assert_eq!(rig.timed_step(), Some(1));
    // Long work does not wait for short work.
    rig.classify_now(14, 1);
    rig.classify_now(15, 20);
    assert_eq!(rig.timed_step(), Some(1));
    rig.drain();
}

/// Requests without a deadline fill a step of 24 tokens, or go when the first has waited for 20 ms.
#[test]
fn offline_work_gathers_until_a_step_is_full() {
    let mut rig = rig(LapsConfig {
        max_window_us: 10_000,
        ..small()
    });
    for id in 0..3 {
        rig.classify_now(id, 8);
        if id < 2 {
            assert_eq!(rig.timed_step(), None);
        }
    }
    assert_eq!(rig.timed_step(), Some(24));
    let came = rig.now;
    rig.classify_now(3, 8);
    for waited in [10, 20] {
        assert_eq!(rig.timed_step(), None);
        rig.now = rig.scheduler.next_deadline().expect("it is asked again");
        assert_eq!(rig.now, came.saturating_add(ms(waited)));
    }
    assert_eq!(rig.timed_step(), Some(8));
    // Long work does not wait for short work.
    rig.classify_now(4, 40);
    rig.classify_now(5, 8);
    assert_eq!(rig.timed_step(), Some(8));
    rig.drain();
}

/// Long generations wait for the only slot, and long rows come with every step: an overdue short
/// request has the turn all the same, since none of the overdue generations can start.
#[test]
fn an_overdue_generation_without_a_slot_holds_up_no_other_class() {
    let config = SchedulerConfig {
        policy: PolicyConfig::Laps,
        max_num_seqs: 1,
        max_wait_ms: 50,
        enable_prefix_caching: false,
        laps: small(),
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, CAPACITY);
    rig.submit(generate(0, prompt(0, 4), 100, 1));
    rig.timed_step();
    let mut long = generate(1, prompt(1, 20), 5, 1);
    long.arrival = rig.now;
    rig.submit(long);
    rig.now = rig.now.saturating_add(ms(51));
    rig.classify_now(2, 4);
    for id in 3..20 {
        rig.classify_now(id, 16);
        rig.timed_step();
    }
    assert_eq!(rig.outcome(1), None, "no slot is free");
    assert_eq!(rig.outcome(2), Some(&Outcome::Done));
}

#[test]
fn generations_decode_in_every_step() {
    let mut rig = rig(small());
    rig.submit(generate(0, prompt(1, 4), 20, 1));
    rig.timed_step();
    rig.classify_now(1, 40);
    let mut long = generate(2, prompt(2, 40), 2, 1);
    long.arrival = rig.now;
    rig.submit(long);
    for id in 3..9 {
        rig.classify_now(id, 8);
        let batch = rig.step();
        let (oneshot, prefill, decode) = batch.parts();
        assert!(!decode.rows.is_empty(), "{batch:?}");
        let prompts = oneshot.segments.iter().chain(&prefill.segments);
        let tokens: Vec<u32> = prompts.map(prelude_core::Segment::len).collect();
        let long = tokens.iter().filter(|&&n| n > 8).count();
        assert!(long == 0 || (long == 1 && tokens.len() == 1), "{tokens:?}");
    }
    rig.drain();
}
