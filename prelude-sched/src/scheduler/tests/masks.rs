//! Rows whose next tokens a constraint still works out.

use super::*;

/// A constraint that any text fulfils; its masks are ready when the test says so.
#[derive(Clone, Debug)]
struct Anything {
    due_us: Arc<AtomicU64>,
    set: TokenSet,
    taken: Arc<AtomicU64>,
}

impl Anything {
    fn new() -> Self {
        Self {
            due_us: Arc::default(),
            set: TokenSet::all(CAPACITY.vocab_size),
            taken: Arc::default(),
        }
    }

    fn set_near(&self, near: bool) {
        self.set_due_ms(if near { 0 } else { 3_600_000 });
    }

    fn set_due_ms(&self, ms: u64) {
        self.due_us.store(1_000 * ms, Ordering::Relaxed);
    }

    fn constrain(&self, mut request: Request) -> Request {
        for row in &mut request.rows {
            if let Head::Generate(generate) = &mut row.head {
                generate.constraint = Some(Arc::new(self.clone()));
            }
        }
        request
    }
}

impl Constraint for Anything {
    fn start(&self) -> Box<dyn Matcher> {
        Box::new(self.clone())
    }
}

impl Matcher for Anything {
    fn next(&mut self) -> Arc<dyn TokenMask> {
        Arc::new(self.clone())
    }

    fn take(&mut self, _: TokenId) -> MatchState {
        self.taken.fetch_add(1, Ordering::Relaxed);
        MatchState::Open
    }
}

impl TokenMask for Anything {
    fn wait(&self) -> Option<&TokenSet> {
        Some(&self.set)
    }

    fn due_in(&self) -> Duration {
        Duration::from_micros(self.due_us.load(Ordering::Relaxed))
    }
}

pub(super) fn decode_rows(batch: &ForwardBatch) -> usize {
    batch.parts().2.rows.len()
}

#[test]
fn a_step_goes_without_rows_whose_tokens_are_far_from_known() {
    let mut rig = Rig::small(128);
    let mask = Anything::new();
    rig.submit(mask.constrain(generate(1, prompt(1, 8), 6, 3)));
    rig.submit(generate(2, prompt(2, 8), 12, 1));
    rig.step();
    // The choices found the prompt in the cache, if they were not in the first step.
    while !rig.step().parts().1.rows.is_empty() {}
    assert_eq!(decode_rows(&rig.step()), 4);
    mask.set_near(false);
    let before = rig.tokens(1, 0).len();
    for _ in 0..4 {
        assert_eq!(decode_rows(&rig.step()), 1, "the free one goes on alone");
    }
    assert_eq!(rig.tokens(1, 0).len(), before);
    mask.set_near(true);
    assert_eq!(decode_rows(&rig.step()), 4);
    rig.drain();
    // Sitting out changes nothing of what is said.
    let mut undisturbed = Rig::small(128);
    undisturbed.submit(Anything::new().constrain(generate(1, prompt(1, 8), 6, 3)));
    undisturbed.drain();
    for choice in 0..3 {
        assert_eq!(rig.tokens(1, choice), undisturbed.tokens(1, choice));
    }
}

#[test]
fn alone_rows_wait_for_the_oldest_and_no_longer() {
    let mut rig = Rig::small(128);
    // Older first.
    let masks = [10, 5, 20].map(|due| (due, Anything::new()));
    for (id, (_, mask)) in (1..).zip(&masks) {
        rig.submit(mask.constrain(generate(id, prompt(id as u32, 8), 6, 1)));
    }
    assert_eq!(rig.step().parts().1.rows.len(), 3);
    for (due, mask) in &masks {
        mask.set_due_ms(*due);
    }
    let said = |rig: &Rig| [1, 2, 3].map(|id| rig.tokens(id, 0).len());
    assert_eq!(decode_rows(&rig.step()), 2);
    assert_eq!(said(&rig), [2, 2, 1]);
    masks[1].1.set_due_ms(11);
    assert_eq!(decode_rows(&rig.step()), 1);
    assert_eq!(said(&rig), [3, 2, 1]);
    rig.drain();
    assert_eq!(said(&rig), [6, 6, 6]);
}

/// One whole step that takes `ms`.
fn step_of(rig: &mut Rig, ms: u64) -> ForwardBatch {
    let batch = rig.start().expect("something waits");
    rig.now = Timestamp::from_nanos(rig.now.as_nanos() + ms * 1_000_000);
    rig.finish_step();
    batch
}

#[test]
fn a_step_counts_on_masks_that_it_hides() {
    let mut rig = Rig::small(128);
    let mask = Anything::new();
    rig.submit(mask.constrain(generate(1, prompt(1, 8), 30, 3)));
    rig.submit(generate(2, prompt(2, 8), 60, 1));
    step_of(&mut rig, 100);
    while !step_of(&mut rig, 100).parts().1.rows.is_empty() {}
    // Every mask is queued when a step is planned, and far before that step is over.
    mask.set_due_ms(60);
    for _ in 0..10 {
        assert_eq!(decode_rows(&step_of(&mut rig, 100)), 4);
    }
    mask.set_due_ms(90);
    assert_eq!(decode_rows(&step_of(&mut rig, 100)), 1);
    // After one short step, masks have no longer than that.
    step_of(&mut rig, 20);
    mask.set_due_ms(60);
    assert_eq!(decode_rows(&step_of(&mut rig, 20)), 1);
    mask.set_due_ms(15);
    assert_eq!(decode_rows(&step_of(&mut rig, 20)), 4);
    rig.drain();
}

#[test]
fn rows_without_company_share_the_steps_that_hide_their_masks() {
    let mut rig = Rig::small(128);
    let mask = Anything::new();
    rig.submit(mask.constrain(generate(1, prompt(1, 8), 20, 3)));
    step_of(&mut rig, 100);
    while !step_of(&mut rig, 100).parts().1.rows.is_empty() {}
    mask.set_due_ms(60);
    for _ in 0..10 {
        assert_eq!(decode_rows(&step_of(&mut rig, 100)), 3);
    }
    rig.drain();
}

fn masks(batch: &ForwardBatch) -> usize {
    let (_, prefill, decode) = batch.parts();
    let first = prefill.rows.iter().filter_map(|row| match &row.head {
        OutputHead::Sample(head) => head.mask.as_ref(),
        _ => None,
    });
    let later = decode
        .rows
        .iter()
        .filter_map(|row| row.sample.mask.as_ref());
    first.chain(later).count()
}

#[test]
fn who_resumes_is_sampled_when_its_tokens_are_known() {
    let capacity = Capacity {
        num_blocks: 12,
        max_context_len: 48,
        ..CAPACITY
    };
    let mask = Anything::new();
    let constrained = || mask.constrain(generate(2, prompt(2, 8), 30, 1));
    // What is left in the cache or not, in whole steps or in chunks of at most five tokens.
    for (enable_prefix_caching, prefill_chunk_tokens) in
        [(false, 512), (true, 512), (false, 5), (true, 5)]
    {
        let config = SchedulerConfig {
            enable_prefix_caching,
            prefill_chunk_tokens,
            ..SchedulerConfig::default()
        };
        let mut undisturbed = Rig::new(config.clone(), capacity);
        undisturbed.submit(constrained());
        undisturbed.drain();
        let mut rig = Rig::new(config, capacity);
        rig.submit(generate(0, prompt(0, 8), 20, 1));
        rig.submit(generate(1, prompt(1, 8), 12, 1));
        rig.submit(constrained());
        while rig.scheduler.stats().preemptions == 0 {
            rig.step();
        }
        mask.set_near(false);
        let mut resumed = 0;
        while rig.outcome(0).is_none() {
            let batch = rig.step();
            assert_eq!(masks(&batch), 0, "the others do not wait for it");
            resumed += batch.parts().1.tokens.len();
        }
        assert!(resumed > 0, "all but its last token is computed meanwhile");
        // No other request is there.
        let batch = rig.step();
        assert_eq!((masks(&batch), batch.num_tokens()), (1, 1));
        mask.set_near(true);
        rig.drain();
        assert_eq!(rig.tokens(2, 0), undisturbed.tokens(2, 0));
    }
}

#[test]
fn who_sits_out_loses_patience_and_is_waited_for() {
    let mut rig = Rig::small(128);
    let mask = Anything::new();
    rig.submit(mask.constrain(generate(1, prompt(1, 8), 6, 2)));
    rig.submit(generate(2, prompt(2, 8), 40, 1));
    rig.step();
    while !rig.step().parts().1.rows.is_empty() {}
    mask.set_near(false);
    assert_eq!(decode_rows(&rig.step()), 1);
    let patience = u64::from(SchedulerConfig::default().mask_patience_ms);
    rig.now = Timestamp::from_nanos(rig.now.as_nanos() + patience * 1_000_000);
    let before = rig.tokens(1, 0).len();
    // One of the two in each step, each with its own patience.
    assert_eq!(decode_rows(&rig.step()), 2);
    assert_eq!(decode_rows(&rig.step()), 2);
    assert_eq!(decode_rows(&rig.step()), 1);
    let after = (rig.tokens(1, 0).len(), rig.tokens(1, 1).len());
    assert_eq!(after.0, before + 1);
    mask.set_near(true);
    rig.drain();
    assert_eq!(rig.outcome(1), Some(&Outcome::Done));
}

#[test]
fn equal_draws_walk_a_constraint_once() {
    let mut rig = Rig::small(128);
    let mask = Anything {
        set: TokenSet::from_ids(0..4, CAPACITY.vocab_size),
        ..Anything::new()
    };
    let constraint: Arc<dyn Constraint> = Arc::new(mask.clone());
    let mut request = generate(1, prompt(1, 8), 1, 64);
    // Two rows under one constraint.
    request.rows.push(request.rows[0].clone());
    for row in &mut request.rows {
        if let Head::Generate(generate) = &mut row.head {
            generate.constraint = Some(Arc::clone(&constraint));
        }
    }
    rig.submit(request);
    rig.drain();
    let mut drawn = Vec::new();
    for event in &rig.events {
        if let Event::Token { token, .. } = event {
            drawn.push(token.token);
        }
    }
    assert_eq!(drawn.len(), 128);
    drawn.sort_unstable();
    drawn.dedup();
    assert!(drawn.len() <= 4, "{drawn:?}");
    assert_eq!(mask.taken.load(Ordering::Relaxed), drawn.len() as u64);
}
