//! Two ways to sort, timed in turns, as a table and as a dated record.
//!
//! `cargo run --release -p prelude-measure --example two_ways`
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::{hint::black_box, time::Duration};

use prelude_measure::{
    clock::{Rounds, in_turns},
    random::Random,
    record::{Better, Record, Row},
    stats::Spread,
};

fn main() {
    let mut random = Random::new(1);
    let numbers: Vec<u64> = (0..10_000).map(|_| random.next()).collect();
    let rounds = Rounds {
        count: 5,
        time: Duration::from_millis(20),
    };
    let mut stable = || black_box(&mut numbers.clone()).sort();
    let mut unstable = || black_box(&mut numbers.clone()).sort_unstable();
    let times = in_turns(rounds, &mut [&mut stable, &mut unstable]);
    let rows = ["sort", "sort_unstable"].into_iter().zip(times);
    let row = |(name, seconds): (&str, Vec<f64>)| {
        let micros: Vec<f64> = seconds.iter().map(|s| s * 1e6).collect();
        Row::measured(name, "µs", Spread::of(&micros), Better::Lower)
    };
    let record = Record::new("two-ways", rows.map(row).collect());
    println!("{}", record.table().text());
    assert_eq!(record.rows.len(), 2);
}
