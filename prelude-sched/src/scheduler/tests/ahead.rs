//! Tests of the number of tokens ahead of a new request.

use super::{masks::decode_rows, *};

#[test]
fn tokens_ahead_are_those_to_be_computed() {
    let mut rig = Rig::small(32);
    let ahead = |rig: &Rig| rig.scheduler.stats().tokens_ahead;
    let shared = prompt(1, 30);
    rig.submit(classify(1, shared.clone()));
    assert_eq!(ahead(&rig), 30);
    rig.start().unwrap();
    // In flight, it is still ahead of newcomers.
    assert_eq!(ahead(&rig), 30);
    rig.finish_step();
    assert_eq!(ahead(&rig), 0);
    // Seven blocks are cached.
    rig.submit(classify(2, [&shared[..], &prompt(2, 10)].concat()));
    assert_eq!(ahead(&rig), 40 - 28);
    let mut salted = classify(3, shared.clone());
    salted.cache_salt = Some("other".into());
    rig.submit(salted);
    rig.submit(mean(4, shared));
    assert_eq!(ahead(&rig), 12 + 30 + 30);
    rig.drain();
    assert_eq!(ahead(&rig), 0);
}

#[test]
fn tokens_ahead_are_what_the_policy_reckons_with() {
    let mut rig = Rig::small(32);
    let ahead = |rig: &Rig| rig.scheduler.stats().tokens_ahead;
    let shared = prompt(1, 28);
    for (id, own) in [(1, 0), (2, 8), (3, 26)] {
        rig.submit(classify(
            id.into(),
            [&shared[..], &prompt(id, own)].concat(),
        ));
    }
    assert_eq!(ahead(&rig), 28 + 36 + 54, "nothing is cached");
    assert_eq!(rig.step().num_tokens(), 28);
    // The next plan finds the prefix cached, of the request that it leaves behind, too.
    assert_eq!(rig.start().unwrap().num_tokens(), 8);
    assert_eq!(ahead(&rig), 8 + 26);
    rig.finish_step();
    assert_eq!(ahead(&rig), 26);
    rig.drain();
    assert_eq!(ahead(&rig), 0);
}

#[test]
fn tokens_ahead_of_a_begun_prompt_are_its_rest() {
    // A generation's prompt and a one-shot one, chunk by chunk.
    for head in ["generation", "one-shot"] {
        let mut rig = Rig::small(32);
        let long = match head {
            "generation" => generate(1, prompt(1, 100), 2, 1),
            _ => classify(1, prompt(1, 100)),
        };
        rig.submit(long);
        // Somebody else, or the one-shot prompt would get a step of its own.
        rig.submit(generate(2, prompt(2, 1), 20, 1));
        let mut ahead = 101;
        assert_eq!(rig.scheduler.stats().tokens_ahead, ahead, "{head}");
        while ahead > 0 {
            let batch = rig.start().unwrap();
            let decoded = decode_rows(&batch) as u64;
            // Decode rows belong to no prompt.
            assert_eq!(rig.scheduler.stats().tokens_ahead, ahead, "{head}");
            ahead -= batch.num_tokens() as u64 - decoded;
            rig.finish_step();
            assert_eq!(rig.scheduler.stats().tokens_ahead, ahead, "{head}");
        }
        rig.drain();
        assert_eq!(rig.scheduler.stats().tokens_ahead, 0);
    }
}

#[test]
fn tokens_ahead_of_a_begun_ranking_are_its_rest() {
    let mut rig = Rig::small(32);
    // Ten documents of ten tokens behind a query of eight.
    let query = prompt(1, 8);
    let documents: Vec<Vec<u32>> = (0..10)
        .map(|id| [&query[..], &prompt(id + 2, 10)].concat())
        .collect();
    let prompts: Vec<&[u32]> = documents.iter().map(|d| &**d).collect();
    let (tree, nodes) = PromptTree::from_prompts(&prompts).unwrap();
    let row = |node| RowSpec {
        node,
        head: Head::Classify,
    };
    let rows = nodes.into_iter().map(row).collect();
    let mut ahead = 8 + 10 * 10;
    rig.submit(Request::new(RequestId(1), tree, rows, Timestamp::ZERO));
    while ahead > 0 {
        assert_eq!(rig.scheduler.stats().tokens_ahead, ahead);
        ahead -= rig.step().num_tokens() as u64;
    }
    assert_eq!(rig.scheduler.stats().tokens_ahead, 0);
    rig.drain();
}
