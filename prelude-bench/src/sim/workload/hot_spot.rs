//! A hot spot: documents asked about evenly, until everybody asks about one of them.
//!
//! Of our own. Short runs without it never get to what a router does about an engine that is too
//! popular: traffic that was even has to become uneven while the router remembers the even part.

use super::{
    Arrival, Builder, Setting,
    draw::{poisson, seconds},
    shared_prefix::{Prefixes, Shape},
};
use prelude_core::Timestamp;

/// The second at which the hot spot begins.
const BEGIN_S: f64 = 120.0;
/// The part of the traffic that the hot document takes from then on.
const HOT: f64 = 0.4;

/// Returns `requests` arrivals about `documents`, at this rate; the first document is the hot one.
pub(super) fn arrivals(
    documents: u32,
    requests: u32,
    rate: f64,
    build: &mut Builder,
) -> Vec<Arrival> {
    let prefixes = Prefixes::new(Shape::LOOGLE, documents.max(1), build);
    let begin = Timestamp::ZERO.saturating_add(seconds(BEGIN_S));
    // The times come first: they decide what is asked about.
    let mut arrivals = vec![prefixes.request(prefixes.portions[0], build); requests as usize];
    poisson(&mut arrivals, rate, &mut build.random);
    for arrival in &mut arrivals {
        let hot = arrival.at >= begin && build.random.uniform() <= HOT;
        let among = prefixes.portions.len();
        let portion = if hot { 0 } else { build.random.below(among) };
        let at = arrival.at;
        *arrival = prefixes.request(prefixes.portions[portion], build);
        arrival.at = at;
    }
    arrivals
}

/// Returns the number of requests that come in eight minutes: two before the hot spot, and six in
/// it, twice as long as E2 remembers.
pub(super) fn requests(setting: &Setting, rate: f64) -> u32 {
    let in_time = || (rate * 480.0).round() as u32;
    setting.requests.unwrap_or_else(in_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_document_takes_two_fifths_from_then_on() {
        let mut build = Builder::new(1);
        let arrivals = arrivals(40, 20_000, 40.0, &mut build);
        let begin = Timestamp::from_nanos(120_000_000_000);
        let share = |part: &[Arrival]| {
            let hot = part.iter().filter(|a| a.key == 0).count();
            hot as f64 / part.len() as f64
        };
        let split = arrivals.partition_point(|a| a.at < begin);
        let (before, after) = arrivals.split_at(split);
        assert!(before.len() > 4000 && after.len() > 10_000);
        assert!((share(before) - 1.0 / 40.0).abs() < 0.01);
        // Two fifths, and its part of the rest.
        let expected = 0.4 + 0.6 / 40.0;
        assert!((share(after) - expected).abs() < 0.015);
    }
}
