//! Rows whose output has no room in their step.

use super::*;

fn failures(rig: &Rig) -> Vec<(u64, &'static str)> {
    let failed = |event: &Event| match event {
        Event::Output {
            request,
            output: RowOutput::Failed(why),
            ..
        } => Some((request.0, *why)),
        _ => None,
    };
    rig.events.iter().filter_map(failed).collect()
}

#[test]
fn a_row_without_room_is_computed_again_alone() {
    let mut rig = Rig::small(128);
    rig.executor.answers = 2;
    for id in 0..4 {
        rig.submit(classify(id, prompt(id as u32, 10)));
    }
    let first = rig.step();
    assert_eq!(first.parts().0.rows.len(), 4);
    assert_eq!(rig.order(), [0, 1]);
    // One that comes later shares no step with a row that is computed again.
    rig.submit(classify(4, prompt(4, 10)));
    let rest = rig.drain();
    let rows: Vec<usize> = rest.iter().map(|b| b.parts().0.rows.len()).collect();
    assert_eq!(rows, [1, 1, 1]);
    assert_eq!(rig.order(), [0, 1, 2, 3, 4]);
    assert_eq!(failures(&rig), []);
    assert_eq!(rig.scheduler.stats().rows_without_room, 2);
    // Its prompt counts once.
    let usage = rig.usage(2);
    assert_eq!(usage.cached_tokens + usage.computed_tokens, 10);
}

#[test]
fn a_row_that_no_step_has_room_for_fails() {
    let mut rig = Rig::small(128);
    rig.executor.answers = 0;
    rig.submit(classify(0, prompt(0, 10)));
    rig.submit(classify(1, prompt(1, 10)));
    rig.drain();
    assert_eq!(failures(&rig), [(0, "no room"), (1, "no room")]);
    assert_eq!(rig.scheduler.stats().rows_without_room, 2);
}

#[test]
fn generations_run_beside_a_row_that_is_computed_again() {
    let mut rig = Rig::small(128);
    rig.executor.answers = 1;
    rig.submit(generate(0, prompt(0, 5), 8, 1));
    rig.step();
    rig.submit(classify(1, prompt(1, 10)));
    rig.submit(classify(2, prompt(2, 10)));
    rig.step();
    let again = rig.step();
    let (oneshot, _, decode) = again.parts();
    assert_eq!((oneshot.rows.len(), decode.rows.len()), (1, 1));
    rig.drain();
    assert_eq!(failures(&rig), []);
    assert_eq!(rig.tokens(0, 0).len(), 8);
}
