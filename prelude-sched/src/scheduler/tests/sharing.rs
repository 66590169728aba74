//! Prefixes that requests share: inside a step, over time, and not across salts.

use prelude_kv::BlockHash;

use super::*;

#[test]
fn requests_of_a_step_share_their_prefix() {
    let mut rig = Rig::small(128);
    let shared = prompt(1, 32);
    for id in 0..64 {
        rig.submit(classify(u64::from(id), suffixed(&shared, id)));
    }
    let batch = rig.step();
    assert_eq!((batch.num_tokens(), batch.num_rows()), (32 + 64, 64));
    assert!(matches!(batch, ForwardBatch::OneShot(_)));
    let usage = rig.usage(5);
    assert_eq!(
        (
            usage.prompt_tokens,
            usage.computed_tokens,
            usage.cached_tokens
        ),
        (33, 1, 0)
    );
    assert_eq!(rig.scheduler.stats().shared_tokens, 63 * 32);

    // The shared blocks are in the cache now; later rows compute their own token alone.
    rig.submit(classify(100, suffixed(&shared, 900)));
    assert_eq!(rig.step().num_tokens(), 1);
    assert_eq!(rig.usage(100).cached_tokens, 32);
}

#[test]
fn tokens_written_to_the_cache_are_counted_once() {
    let mut rig = Rig::small(128);
    let written = |rig: &Rig, id| rig.usage(id).cache_write_tokens;
    let shared = prompt(1, 32);
    // Both compute the prefix at once: the first in the step, the shorter one, is charged for it, and
    // each for whole blocks of its own.
    rig.submit(classify(1, [&shared[..], &prompt(2, 9)].concat()));
    rig.submit(classify(2, [&shared[..], &prompt(3, 4)].concat()));
    rig.step();
    assert_eq!((written(&rig, 1), written(&rig, 2)), (8, 32 + 4));
    // What is there already is not written again.
    rig.submit(classify(3, [&shared[..], &prompt(2, 9)].concat()));
    rig.step();
    assert_eq!(written(&rig, 3), 0);
    // A generation writes what it reads and, in the end, what it says.
    rig.submit(generate(4, prompt(4, 10), 7, 1));
    rig.drain();
    assert_eq!(written(&rig, 4), 16);
    let total: u64 = (1..=4).map(|id| written(&rig, id)).sum();
    assert_eq!(total, 4 * rig.scheduler.stats().cached_blocks);
}

#[test]
fn salts_share_neither_step_nor_cache() {
    let mut rig = Rig::small(128);
    let salted = |id, salt: &str| {
        let mut request = classify(id, prompt(1, 20));
        request.cache_salt = Some(Arc::from(salt));
        request
    };
    rig.submit(salted(1, "a"));
    rig.submit(salted(2, "b"));
    rig.submit(classify(3, prompt(1, 20)));
    assert_eq!(rig.step().num_tokens(), 60);
    rig.submit(salted(4, "c"));
    rig.submit(salted(5, "a"));
    assert_eq!(rig.step().num_tokens(), 20 + 4);
}

/// Two blocks with one hash, as who wants a collision finds them.
#[test]
fn blocks_whose_hashes_collide_do_not_stand_for_each_other() {
    let [a, b] = [[3_087_007_744, 0], [16_777_217, 3_036_677_715]];
    let root = BlockHash::root(None);
    assert_eq!(root.then(&a), root.then(&b));
    let capacity = Capacity {
        block_size: 2,
        vocab_size: u32::MAX,
        ..CAPACITY
    };
    let mut rig = Rig::new(SchedulerConfig::default(), capacity);
    let behind = |first: [u32; 2], id: u32| [&first[..], &prompt(id, 5)].concat();
    for (id, first) in [(0, a), (1, a), (2, b), (3, b)] {
        rig.submit(classify(id, behind(first, id as u32)));
    }
    assert_eq!(rig.step().num_tokens(), 2 * (2 + 2 * 5));
    // The first block of the two is in the cache, and what follows it; nothing follows the other.
    assert_eq!(rig.scheduler.stats().cached_blocks, 1 + 2 * 2);
    for (id, first, cached) in [(4, a, 2), (5, b, 0)] {
        rig.submit(classify(id, behind(first, id as u32)));
        rig.step();
        assert_eq!(rig.usage(id).cached_tokens, cached);
    }
}

#[test]
fn choices_share_their_prompt_once_it_is_computed() {
    let mut rig = Rig::small(128);
    rig.submit(generate(7, prompt(1, 50), 3, 4));
    let sizes: Vec<usize> = rig.drain().iter().map(ForwardBatch::num_tokens).collect();
    // The first choice computes all 50; the others find 48 of them, and go on beside it.
    assert_eq!(sizes, [50, 1 + 3 * 2, 4, 3]);
    let usage = rig.usage(7);
    assert_eq!(
        (usage.prompt_tokens, usage.computed_tokens),
        (50, 50 + 3 * 2)
    );
    assert_eq!(usage.output_tokens, 12);
    let all: Vec<Vec<u32>> = (0..4).map(|choice| rig.tokens(7, choice)).collect();
    assert!(all.iter().all(|tokens| tokens.len() == 3) && all[0] != all[1]);
}

#[test]
fn a_peer_waits_for_its_leader_but_not_for_ever() {
    let check = |defer_max, expected: &[usize]| {
        let capacity = Capacity {
            pipeline_depth: 2,
            passes: None,
            host_blocks: 0,
            ..CAPACITY
        };
        let mut rig = Rig::new(
            SchedulerConfig {
                defer_max,
                ..SchedulerConfig::default()
            },
            capacity,
        );
        rig.submit(classify(0, prompt(1, 21)));
        let first = rig.start().unwrap();
        // The same prefix, while its blocks are being computed; and something to do meanwhile.
        rig.submit(classify(1, suffixed(&prompt(1, 21), 5)));
        rig.submit(generate(2, prompt(3, 4), 9, 1));
        let second = rig.start().unwrap();
        rig.finish_step();
        rig.finish_step();
        let third = rig.step();
        let sizes = [first, second, third].map(|batch| batch.num_tokens());
        assert_eq!(sizes, expected);
    };
    check(2, &[21, 4, 1 + 2]);
    check(0, &[21, 4 + 22, 1]);
}

#[test]
fn without_a_cache_nothing_is_kept_but_the_answers() {
    let config = SchedulerConfig {
        enable_prefix_caching: false,
        ..SchedulerConfig::default()
    };
    let mut rig = Rig::new(config, CAPACITY);
    for id in 0..3 {
        rig.submit(classify(id, prompt(1, 20)));
        rig.drain();
        assert_eq!(rig.usage(id).computed_tokens, 20);
    }
    assert_eq!(rig.scheduler.stats().free_blocks, 64);
}

/// A shared prefix that leaves no room in its step for those who share it, and a cache that is
/// full of what others left: each step would compute the prefix for one row.
#[test]
fn a_prefix_that_fills_its_step_is_kept_for_those_who_wait() {
    // The first row takes the whole step, or leaves too little for a second one.
    for (budget, requests) in [(33, 20), (34, 20), (33, 1)] {
        let mut rig = Rig::small(budget);
        for id in 0..8 {
            rig.submit(classify(id, prompt(50 + id as u32, 32)));
            rig.step();
        }
        assert_eq!(rig.scheduler.stats().free_blocks, 0);
        let shared = prompt(1, 30);
        let rows: Vec<_> = (0..20)
            .map(|id| [&shared[..], &[900 + id, 7, 8]].concat())
            .collect();
        if requests == 1 {
            let (tree, ends) = PromptTree::from_prompts(&rows).unwrap();
            let row = |node| RowSpec {
                node,
                head: Head::Classify,
            };
            let rows = ends.into_iter().map(row).collect();
            rig.submit(Request::new(RequestId(100), tree, rows, rig.now));
        } else {
            for (id, row) in rows.into_iter().enumerate() {
                rig.submit(classify(100 + id as u64, row));
            }
        }
        let batches = rig.drain();
        let computed: usize = batches.iter().map(ForwardBatch::num_tokens).sum();
        // What lies behind the last whole block is computed again in each of the later steps.
        assert!(
            computed <= 33 + 19 * 3 + 2 * batches.len(),
            "{computed} in {} steps of {budget}",
            batches.len()
        );
    }
}

/// Requests that share a prefix and come one after the other, in a cache that is full of what others
/// left: the third one has the prefix kept for all later ones.
#[test]
fn a_prefix_that_returns_is_kept_in_a_full_cache() {
    let mut rig = Rig::small(64);
    for id in 0..8 {
        rig.submit(classify(id, prompt(50 + id as u32, 32)));
        rig.step();
    }
    assert_eq!(rig.scheduler.stats().free_blocks, 0);
    let shared = prompt(1, 30);
    for (id, cached) in [(100, 0), (101, 0), (102, 0), (103, 28), (104, 28)] {
        rig.submit(classify(id, suffixed(&shared, id as u32)));
        rig.drain();
        assert_eq!(rig.usage(id).cached_tokens, cached, "request {id}");
        // A prompt of its own pushes nothing out.
        rig.submit(classify(id + 100, prompt(id as u32, 32)));
        rig.drain();
    }
}

/// Blocks are for those who could read them: rows that need the hidden state of each token compute
/// it anew each time.
#[test]
fn no_block_is_kept_for_rows_that_cannot_use_it() {
    let tokens = || Head::Tokens(TokenHead::Classify);
    let scored = |positions| Head::PromptLogprobs { positions, top: 0 };
    let mean = || Head::Embed {
        pooling: Pooling::Mean,
        normalise: false,
        dimensions: None,
    };
    let check = |heads: &[Head], expected: u64| {
        for budget in [128, 16] {
            let mut rig = Rig::small(budget);
            // Something to do beside it, or a long prompt would run as one step.
            rig.submit(generate(50, prompt(9, 3), 9, 1));
            rig.step();
            for (id, head) in heads.iter().enumerate() {
                rig.submit(request(id as u64, prompt(1, 40), head.clone()));
            }
            rig.drain();
            // Of the generation, ten of its eleven known tokens are in blocks.
            let cached = rig.scheduler.stats().cached_blocks - 2;
            assert_eq!(cached, expected, "{heads:?}, {budget}");
        }
    };
    check(&[mean(), mean(), mean()], 0);
    check(&[tokens(), tokens()], 0);
    check(&[scored(1..40), scored(1..40)], 0);
    // Tokens up to the first one scored.
    check(&[scored(22..40)], 5);
    check(&[scored(9..40), scored(22..40)], 5);
    check(&[Head::Classify], 10);
    check(&[mean(), Head::Classify], 10);
}
