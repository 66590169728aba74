//! Shares of device time between decisions and chats that would each take all of it.

use super::*;

/// The decode tokens, the decisions and the longest time between two tokens of the chats, in a
/// simulated second of `chats` generations and decisions of 60 tokens. A step takes 2 ms, a token
/// of a prompt 1 ms more.
fn second(oneshot_share_percent: u32, chats: u64, decisions: bool) -> (u64, usize, Duration) {
    let config = SchedulerConfig {
        oneshot_share_percent,
        slice_ms: Some(5),
        enable_prefix_caching: false,
        ..SchedulerConfig::default()
    };
    let capacity = Capacity {
        num_blocks: 1024,
        max_context_len: 1024,
        ..CAPACITY
    };
    let mut rig = Rig::new(config, capacity);
    let (mut next, mut longest, mut last) = (0, Duration::ZERO, Timestamp::ZERO);
    let mut tokens = 0;
    while rig.now < Timestamp::ZERO.saturating_add(Duration::from_secs(1)) {
        let stats = rig.scheduler.stats();
        if stats.running_decode_seqs + stats.waiting_decode_seqs < chats {
            rig.submit(generate(next, prompt(next as u32, 4), 500, 1));
        } else if decisions && stats.waiting_oneshot_rows < 4 {
            rig.submit(classify(next, prompt(next as u32, 60)));
        } else {
            let batch = rig.start().expect("there is work");
            let rows = match &batch {
                ForwardBatch::Decode(decode) | ForwardBatch::Mixed { decode, .. } => {
                    decode.rows.len()
                }
                _ => 0,
            };
            let prompts = batch.num_tokens() - rows;
            rig.now = rig
                .now
                .saturating_add(Duration::from_millis(2 + prompts as u64));
            rig.finish_step();
            tokens += rows as u64;
            if rows > 0 {
                // The first steps show how long a token takes.
                let is_known = last > Timestamp::ZERO.saturating_add(Duration::from_millis(300));
                let took = rig.now.saturating_since(last);
                longest = longest.max(if is_known { took } else { Duration::ZERO });
                last = rig.now;
            }
            continue;
        }
        next += 1;
    }
    let generations = rig.events.iter().filter(|event| {
        matches!(event, Event::Finished { request, .. } if rig.tokens(request.0, 0).len() > 1)
    });
    let answered = rig.order().len() - generations.count();
    (tokens, answered, longest)
}

#[test]
fn decisions_and_chats_share_the_time_and_not_the_tokens() {
    let (alone, ..) = second(50, 8, false);
    let (_, decisions_alone, _) = second(50, 0, true);
    for percent in [20, 50, 80] {
        let (tokens, answered, longest) = second(percent, 8, true);
        let share = f64::from(percent) / 100.0;
        let kept = tokens as f64 / alone as f64;
        assert!(
            (kept - (1.0 - share)).abs() < 0.1,
            "chats keep {kept} beside {percent} %"
        );
        let had = answered as f64 / decisions_alone as f64;
        assert!(
            (had - share).abs() < 0.1,
            "decisions have {had} of {percent} %"
        );
        // A chat waits for one decision, or as many as were due.
        assert!(
            longest <= Duration::from_millis(2 + 2 * 60 + 5),
            "{longest:?}"
        );
    }
}

#[test]
fn a_class_has_all_the_time_that_the_other_does_not_want() {
    // One decision every now and then is answered at once.
    let mut rig = Rig::small(64);
    rig.submit(generate(0, prompt(1, 4), 100, 1));
    for id in 1..5 {
        for _ in 0..20 {
            rig.start().expect("a chat goes on");
            rig.now = rig.now.saturating_add(Duration::from_millis(2));
            rig.finish_step();
        }
        rig.submit(classify(id, prompt(7 + id as u32, 30)));
        rig.start().expect("both go on");
        rig.now = rig.now.saturating_add(Duration::from_millis(30));
        rig.finish_step();
        assert_eq!(rig.outcome(id), Some(&Outcome::Done), "decision {id}");
    }
}

/// Eight chats of 64 tokens that all end together and go on a millisecond later, when a step of
/// decisions has begun, beside as many decisions as there is time for.
#[test]
fn chats_that_end_together_keep_their_share() {
    let config = SchedulerConfig {
        slice_ms: Some(20),
        enable_prefix_caching: false,
        ..SchedulerConfig::default()
    };
    let capacity = Capacity {
        num_blocks: 1024,
        max_context_len: 1024,
        ..CAPACITY
    };
    let mut rig = Rig::new(config, capacity);
    let (mut next, mut come_at) = (0, Timestamp::ZERO);
    let (mut of_chats, mut all) = (Duration::ZERO, Duration::ZERO);
    while all < Duration::from_secs(4) {
        let stats = rig.scheduler.stats();
        if stats.running_decode_seqs + stats.waiting_decode_seqs == 0 && come_at <= rig.now {
            for _ in 0..8 {
                let mut chat = generate(next, prompt(next as u32, 4), 64, 1);
                chat.arrival = come_at;
                rig.submit(chat);
                next += 1;
            }
        }
        while rig.scheduler.stats().waiting_oneshot_rows < 8 {
            rig.submit(classify(next, prompt(next as u32, 10)));
            next += 1;
        }
        let batch = rig.start().expect("there is work");
        let (rows, own) = match &batch {
            ForwardBatch::Decode(decode) => (decode.rows.len(), 0),
            ForwardBatch::Mixed {
                decode, prefill, ..
            } => (decode.rows.len(), prefill.tokens.len()),
            _ => (0, 0),
        };
        let ms = |count: usize| Duration::from_millis(count as u64);
        let decoding = ms(if rows > 0 { 2 } else { 0 });
        let prompts = ms(batch.num_tokens() - rows);
        rig.now = rig.now.saturating_add(prompts).saturating_add(decoding);
        rig.finish_step();
        if rows + own > 0 {
            come_at = rig.now.saturating_add(ms(1));
        }
        of_chats += decoding + ms(own);
        all += prompts + decoding;
    }
    let share = of_chats.as_secs_f64() / all.as_secs_f64();
    assert!(
        (0.45..0.52).contains(&share),
        "chats had {share} of the time"
    );
}
