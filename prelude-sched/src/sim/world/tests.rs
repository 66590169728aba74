use super::*;

/// Seeds `from..from + 50`, 2,000 steps each. Four of these run side by side.
fn check(from: u64) {
    let mut total = SchedulerStats::default();
    let (mut done, mut long_steps, mut later_chunks, mut run_ahead_rows) = (0, 0, 0, 0);
    let (mut idle_waits, mut gatherings) = (0, 0);
    for seed in from..from + 50 {
        let summary = simulate(seed, 2000);
        done += summary.done;
        long_steps += summary.long_steps;
        later_chunks += summary.later_chunks;
        run_ahead_rows += summary.run_ahead_rows;
        idle_waits += summary.idle_waits;
        gatherings += summary.gatherings;
        total.preemptions += summary.stats.preemptions;
        total.prefix_hit_tokens += summary.stats.prefix_hit_tokens;
        total.shared_tokens += summary.stats.shared_tokens;
        total.deferrals += summary.stats.deferrals;
        total.srjf_recalibrations += summary.stats.srjf_recalibrations;
        total.evicted_blocks += summary.stats.evicted_blocks;
        total.deadline_expirations += summary.stats.deadline_expirations;
    }
    // The worlds are of use only if these things happen in them.
    assert!(done > 10_000, "{done} requests");
    assert!(long_steps > 100, "{long_steps} long steps");
    assert!(later_chunks > 1000, "{later_chunks} later chunks");
    assert!(run_ahead_rows > 1000, "{run_ahead_rows} rows ahead");
    assert!(idle_waits > 50, "{idle_waits} waits");
    assert!(gatherings > 50, "{gatherings} gatherings");
    assert!(total.preemptions > 100, "{total:?}");
    assert!(total.prefix_hit_tokens > 10_000, "{total:?}");
    assert!(total.shared_tokens > 10_000, "{total:?}");
    assert!(total.deferrals > 1000, "{total:?}");
    assert!(total.srjf_recalibrations > 100, "{total:?}");
    assert!(total.evicted_blocks > 1000, "{total:?}");
    assert!(total.deadline_expirations > 10, "{total:?}");
}

#[test]
fn seeds_0_to_49() {
    check(0);
}

#[test]
fn seeds_50_to_99() {
    check(50);
}

#[test]
fn seeds_100_to_149() {
    check(100);
}

#[test]
fn seeds_150_to_199() {
    check(150);
}

#[test]
fn a_seed_repeats_itself() {
    for seed in 0..8 {
        assert_eq!(simulate(seed, 500), simulate(seed, 500));
    }
    assert_ne!(simulate(1, 500).digest, simulate(2, 500).digest);
}
