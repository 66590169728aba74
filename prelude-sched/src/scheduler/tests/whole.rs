//! Models whose attention sees whole prompts: nothing is shared, kept, cached or cut.

use super::*;
use crate::sim::{Answer, Random, Twin};

const WHOLE: Capacity = Capacity {
    num_blocks: 1,
    attention: Attention::Full,
    ..CAPACITY
};

fn rig(max_batch_tokens: u32) -> Rig {
    let config = SchedulerConfig {
        max_batch_tokens: Some(max_batch_tokens),
        ..SchedulerConfig::default()
    };
    Rig::new(config, WHOLE)
}

/// A request of random prompts over few tokens, most of which share their beginnings.
fn random_request(id: u64, random: &mut Random) -> Request {
    let prompts: Vec<Vec<u32>> = (0..random.in_range(1, 6))
        .map(|_| {
            let len = random.in_range(1, 40);
            (0..len).map(|_| random.in_range(0, 1)).collect()
        })
        .collect();
    let (tree, ends) = PromptTree::from_prompts(&prompts).unwrap();
    let embed = |pooling| Head::Embed {
        pooling,
        normalise: true,
        dimensions: None,
    };
    let heads = [
        Head::Classify,
        embed(Pooling::First),
        embed(Pooling::Mean),
        embed(Pooling::Last),
        Head::Tokens(TokenHead::Classify),
    ];
    let rows = ends.into_iter().map(|node| RowSpec {
        node,
        head: random.pick(&heads).clone(),
    });
    let rows = rows.collect();
    Request::new(RequestId(id), tree, rows, Timestamp::from_nanos(id))
}

/// Every segment is one row's whole prompt, and the answers are those of each row alone. That a
/// segment shares nothing is part of `ForwardBatch::validate`, which the executor calls.
#[test]
fn each_row_is_computed_whole_and_alone() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let mut rig = rig(*random.pick(&[4, 50, 128]));
        let twin = Twin {
            vocab_size: WHOLE.vocab_size,
            attention: Attention::Full,
        };
        let requests: Vec<Request> = (0..8).map(|id| random_request(id, &mut random)).collect();
        for request in &requests {
            rig.submit(request.clone());
        }
        let batches = rig.drain();
        let tokens: usize = batches.iter().map(ForwardBatch::num_tokens).sum();
        let expected: u64 = requests.iter().map(Request::prompt_tokens).sum();
        assert_eq!(tokens as u64, expected, "seed {seed}");
        for batch in &batches {
            let (oneshot, prefill, decode) = batch.parts();
            assert!(prefill.is_empty() && decode.rows.is_empty(), "seed {seed}");
            assert_eq!(oneshot.segments.len(), oneshot.rows.len(), "seed {seed}");
        }
        for request in &requests {
            let id = request.id;
            assert_eq!(rig.outcome(id.0), Some(&Outcome::Done), "seed {seed}");
            for (row, answer) in twin.answers(request).into_iter().enumerate() {
                let got = rig.events.iter().find_map(|event| match event {
                    Event::Output {
                        request,
                        row: of,
                        output,
                        ..
                    } if *request == id && *of as usize == row => Some(output.clone()),
                    _ => None,
                });
                assert_eq!(got.map(Answer::Output), Some(answer), "seed {seed}");
            }
        }
    }
}

#[test]
fn requests_for_whole_attention_that_cannot_be_served_are_refused() {
    let mut rig = rig(128);
    let mut refused = |request| rig.scheduler.submit(Timestamp::ZERO, request).unwrap_err();
    assert_eq!(
        refused(generate(1, prompt(1, 4), 3, 1)),
        Reject::GeneratesNothing { row: 0 }
    );
    let capacity = Capacity {
        max_context_len: 256,
        ..WHOLE
    };
    let mut short = Rig::new(SchedulerConfig::default(), capacity);
    let long = classify(2, prompt(1, 129));
    let error = short.scheduler.submit(short.now, long).unwrap_err();
    let (row, prompt, limit) = (0, 129, 128);
    assert_eq!(error, Reject::TooLongToPool { row, prompt, limit });
}
