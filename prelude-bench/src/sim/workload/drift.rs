//! Drifting popularity: documents asked about by Zipf's law, whose ranks are drawn anew again and
//! again.
//!
//! Of our own. What was placed for one ranking is out of balance under the next one, while all that
//! a router remembers is of the last one.

use super::{
    Arrival, Builder, Setting,
    draw::{poisson, seconds},
    shared_prefix::{Prefixes, Shape},
};
use prelude_core::Timestamp;

/// The seconds for which documents keep their ranks.
const PERIOD_S: f64 = 120.0;
/// The exponent of Zipf's law.
const EXPONENT: f64 = 1.1;

/// Returns `requests` arrivals about `documents`, at this rate.
pub(super) fn arrivals(
    documents: u32,
    requests: u32,
    rate: f64,
    build: &mut Builder,
) -> Vec<Arrival> {
    let prefixes = Prefixes::new(Shape::LOOGLE, documents.max(1), build);
    let cumulated: Vec<f64> = (1..=prefixes.portions.len())
        .scan(0.0, |sum, rank| {
            *sum += (rank as f64).powf(-EXPONENT);
            Some(*sum)
        })
        .collect();
    let all = cumulated.last().copied().unwrap_or_default();
    let mut ranks: Vec<usize> = (0..prefixes.portions.len()).collect();
    let mut periods = 0;
    // The times come first: they decide which ranking holds.
    let mut arrivals = vec![prefixes.request(prefixes.portions[0], build); requests as usize];
    poisson(&mut arrivals, rate, &mut build.random);
    for arrival in &mut arrivals {
        let at = arrival.at;
        while at.saturating_since(Timestamp::ZERO) >= seconds(PERIOD_S) * periods {
            build.random.shuffle(&mut ranks);
            periods += 1;
        }
        let drawn = build.random.uniform() * all;
        let rank = cumulated.partition_point(|&sum| sum < drawn);
        let document = ranks[rank.min(ranks.len() - 1)];
        *arrival = prefixes.request(prefixes.portions[document], build);
        arrival.at = at;
    }
    arrivals
}

/// Returns the number of requests that come in five periods.
pub(super) fn requests(setting: &Setting, rate: f64) -> u32 {
    let in_time = || (rate * 5.0 * PERIOD_S).round() as u32;
    setting.requests.unwrap_or_else(in_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_popular_document_is_another_one_in_each_period() {
        let mut build = Builder::new(1);
        let arrivals = arrivals(30, 24_000, 40.0, &mut build);
        let mut firsts = Vec::new();
        for period in 0..5 {
            let begin = Timestamp::ZERO.saturating_add(seconds(PERIOD_S) * period);
            let end = begin.saturating_add(seconds(PERIOD_S));
            let within = arrivals.iter().filter(|a| a.at >= begin && a.at < end);
            let mut counts = [0_u32; 30];
            for arrival in within {
                counts[arrival.key as usize] += 1;
            }
            let all: u32 = counts.iter().sum();
            let first = (0..30).max_by_key(|&key| counts[key]).unwrap();
            // By Zipf's law the first of thirty has 1 / sum(rank^-1.1), 29 %.
            let share = f64::from(counts[first]) / f64::from(all);
            assert!((share - 0.29).abs() < 0.03, "{share}");
            firsts.push(first);
        }
        firsts.dedup();
        assert!(firsts.len() >= 4, "{firsts:?}");
    }
}
