//! Prompts longer than a step, and the shares of the two classes.

use super::*;
use crate::PolicyConfig;

#[test]
fn a_long_prompt_runs_alone_in_one_step_or_else_in_chunks() {
    let check = |others: u64, max_step_tokens, expected: &[usize]| {
        let capacity = Capacity {
            max_step_tokens,
            ..CAPACITY
        };
        let config = SchedulerConfig {
            max_batch_tokens: Some(20),
            ..SchedulerConfig::default()
        };
        let mut rig = Rig::new(config, capacity);
        rig.submit(classify(0, prompt(1, 50)));
        (0..others).for_each(|id| rig.submit(classify(id + 1, prompt(9, 1))));
        let tokens: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
        assert_eq!(
            tokens, expected,
            "{others} others, {max_step_tokens} tokens a step"
        );
        assert_eq!(rig.usage(0).computed_tokens, 50);
    };
    check(0, 128, &[50]);
    check(1, 128, &[20, 20, 11]);
    check(0, 40, &[20, 20, 10]);
}

/// Returns the steps after which each of these prompts, all there at once, is answered: a step has
/// so many tokens, a chunk 4.
fn answered_after(policy: PolicyConfig, step_tokens: u32, prompts: &[u32]) -> Vec<usize> {
    let config = SchedulerConfig {
        max_batch_tokens: Some(step_tokens),
        prefill_chunk_tokens: 4,
        policy,
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, CAPACITY);
    for (id, &len) in (0..).zip(prompts) {
        rig.submit(generate(id, prompt(id as u32 + 1, len), 1, 1));
    }
    let mut after = vec![0; prompts.len()];
    for step in 1..100 {
        if after.iter().all(|step| *step > 0) {
            break;
        }
        rig.now = rig.now.saturating_add(Duration::from_millis(1));
        rig.step();
        for (id, after) in (0..).zip(&mut after) {
            if *after == 0 && rig.outcome(id).is_some() {
                *after = step;
            }
        }
    }
    after
}

#[test]
fn prompts_in_turns_get_a_chunk_each() {
    let check = |step_tokens, prompts: &[u32], fcfs: &[usize], turns: &[usize]| {
        assert_eq!(
            answered_after(PolicyConfig::Fcfs, step_tokens, prompts),
            fcfs,
            "fcfs"
        );
        assert_eq!(
            answered_after(PolicyConfig::RoundRobin, step_tokens, prompts),
            turns,
            "turns"
        );
    };
    // Long ones first: those of one chunk wait for one chunk of each, not for all of them.
    check(
        8,
        &[24, 24, 24, 4, 4],
        &[6, 6, 12, 7, 8],
        &[8, 10, 10, 2, 3],
    );
    // A step may be one chunk.
    check(4, &[12, 1, 2], &[3, 4, 4], &[4, 2, 2]);
    // A prompt that is alone is computed as usual.
    check(8, &[24], &[1], &[1]);
    // Equal ones end together.
    check(8, &[12, 12], &[3, 3], &[3, 3]);
}

#[test]
fn scored_prompts_come_in_pieces_in_order() {
    let mut rig = Rig::small(16);
    let head = Head::PromptLogprobs {
        positions: 5..40,
        top: 0,
    };
    rig.submit(request(0, prompt(1, 40), head));
    rig.submit(classify(1, prompt(2, 3)));
    rig.drain();
    let mut scored = Vec::new();
    for event in &rig.events {
        if let Event::Output {
            output:
                RowOutput::Logprobs {
                    first_position,
                    entries,
                },
            ..
        } = event
        {
            scored.push((*first_position, entries.len()));
        }
    }
    assert_eq!(scored, [(5, 9), (14, 16), (30, 10)]);
}

#[test]
fn mean_pooling_is_never_split_nor_cached() {
    let mut rig = Rig::small(16);
    rig.submit(generate(0, prompt(2, 4), 20, 1));
    rig.step();
    rig.submit(mean(1, prompt(1, 40)));
    rig.submit(mean(2, prompt(1, 40)));
    let sizes: Vec<usize> = (0..4).map(|_| rig.step().num_tokens()).collect();
    // Long steps alternate with steps for those who run.
    assert_eq!(sizes, [40, 1, 40, 1]);
    assert_eq!(
        (rig.usage(1).computed_tokens, rig.usage(2).computed_tokens),
        (40, 40)
    );
    let too_long = rig.scheduler.submit(rig.now, mean(3, prompt(1, 128)));
    assert_eq!(too_long, Ok(()), "as long as a step");
    let capacity = Capacity {
        max_step_tokens: 64,
        ..CAPACITY
    };
    let error = Rig::new(SchedulerConfig::default(), capacity)
        .scheduler
        .submit(Timestamp::ZERO, mean(3, prompt(1, 65)))
        .unwrap_err();
    assert_eq!(
        error,
        Reject::TooLongToPool {
            row: 0,
            prompt: 65,
            limit: 64
        }
    );
}

#[test]
fn long_rows_do_not_keep_a_generation_from_starting() {
    let mut rig = Rig::small(16);
    for id in 0..8 {
        rig.submit(mean(id, prompt(1, 40)));
    }
    rig.step();
    // Nothing runs now, but something waits to.
    rig.submit(generate(9, prompt(2, 4), 2, 1));
    let sizes: Vec<usize> = (0..3).map(|_| rig.step().num_tokens()).collect();
    assert_eq!(sizes, [4, 40, 1], "shared steps come in between");
    assert_eq!(rig.outcome(9), Some(&Outcome::Done));
    rig.drain();
}

#[test]
fn a_small_share_of_a_small_step_is_a_share() {
    let config = SchedulerConfig {
        max_batch_tokens: Some(16),
        oneshot_share_percent: 1,
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, CAPACITY);
    rig.submit(classify(0, prompt(1, 60)));
    // A prompt to be computed waits at every step.
    let mut id = 1;
    while rig.outcome(0).is_none() {
        assert!(id < 400, "the chunked row never ends");
        while rig.scheduler.stats().waiting_decode_seqs < 2 {
            rig.submit(generate(id, prompt(2 + id as u32 % 50, 40), 2, 1));
            id += 1;
        }
        rig.step();
    }
    rig.drain();
}
