//! The reasons for which a waiting request takes no blocks.

use super::{
    super::shortage::{BlockUse, FirstBlocked, NoBlocks},
    *,
};
use crate::{Turn, forest::Forest, queue::QueueKey, step::Draft};

fn key(serial: u64, turn: Turn) -> QueueKey {
    QueueKey {
        turn,
        priority: 0,
        due: Timestamp::ZERO,
        arrival: Timestamp::from_nanos(serial),
        serial,
    }
}

#[test]
fn work_ahead_that_lacks_blocks_is_named() {
    use BlockUse::{Chunks, Generation, Pass};
    use NoBlocks::{BehindChunks, BehindGeneration, BehindOverdue, BehindPreempted, Starved};
    // What lacks blocks or stands ahead of request 5, and the reasons by use.
    let check = |prepare: &dyn Fn(&mut Scheduler, &mut Draft), reasons: [_; 3]| {
        let mut rig = Rig::small(64);
        let mut draft = Draft::new(
            StepId(0),
            rig.now,
            Forest::new(4, CAPACITY.attention),
            (64, 64),
            true,
        );
        prepare(&mut rig.scheduler, &mut draft);
        let uses = [Generation, Chunks, Pass];
        let found = uses.map(|use_of| {
            let before = rig.scheduler.first_blocked;
            let found = rig
                .scheduler
                .refuse_blocks(&draft, key(5, Turn::Usual), use_of);
            rig.scheduler.first_blocked = before;
            found
        });
        assert_eq!(found, reasons);
    };
    check(&|_, _| (), [None; 3]);
    check(
        &|_, draft| draft.starved = true,
        [None, Some(Starved), None],
    );
    let of_generation = |serial| {
        move |scheduler: &mut Scheduler, _: &mut Draft| {
            let generation = Some(key(serial, Turn::Usual));
            scheduler.first_blocked = FirstBlocked {
                generation,
                chunks: None,
            };
        }
    };
    check(&of_generation(4), [None, Some(BehindGeneration), None]);
    check(&of_generation(6), [None; 3]);
    let of_chunks = |serial| {
        move |scheduler: &mut Scheduler, _: &mut Draft| {
            let chunks = Some(key(serial, Turn::Usual));
            scheduler.first_blocked = FirstBlocked {
                generation: None,
                chunks,
            };
        }
    };
    check(&of_chunks(4), [Some(BehindChunks), None, None]);
    check(&of_chunks(6), [None; 3]);
    check(
        &|scheduler, _| {
            scheduler
                .short_of_blocks
                .insert(key(9, Turn::Overdue).age());
        },
        [Some(BehindOverdue); 3],
    );
    check(
        &|scheduler, _| {
            scheduler.preempted.insert(0, SeqId(0));
        },
        [None, Some(BehindPreempted), None],
    );
}

#[test]
fn an_overdue_request_waits_for_older_ones_alone() {
    let mut rig = Rig::small(64);
    let draft = Draft::new(
        StepId(0),
        rig.now,
        Forest::new(4, CAPACITY.attention),
        (64, 64),
        true,
    );
    let scheduler = &mut rig.scheduler;
    scheduler
        .short_of_blocks
        .insert(key(3, Turn::Overdue).age());
    let mut refuse = |serial| {
        let key = key(serial, Turn::Overdue);
        scheduler.refuse_blocks(&draft, key, BlockUse::Generation)
    };
    assert_eq!(refuse(2), None);
    assert_eq!(refuse(4), Some(NoBlocks::BehindOverdue));
}
