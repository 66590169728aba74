//! Histograms with fixed buckets, in the form that Prometheus reads.

/// Counts of observations at or below each bound, their number and their sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// The number of observations at or below each bound and above the bound before it;
    /// observations above all bounds are only in `count`.
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

/// Seconds, from a tenth of a millisecond to a minute.
pub(crate) const SECONDS: &[f64] = &[
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0, 30.0, 60.0,
];

/// Tokens, from 1 to 131,072.
pub(crate) const TOKENS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0,
    16384.0, 32768.0, 65536.0, 131_072.0,
];

impl Histogram {
    /// Returns an empty histogram with these upper bounds, ascending.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len()],
            count: 0,
            sum: 0.0,
        }
    }

    /// Adds one observation.
    pub fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.count += 1;
        self.sum += value;
    }

    /// Returns pairs of an upper bound and the number of observations at or below it.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.bounds
            .iter()
            .zip(&self.counts)
            .scan(0, |total, (&bound, &count)| {
                *total += count;
                Some((bound, *total))
            })
    }

    /// Returns the number of observations.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of observations.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_closed_above() {
        let mut h = Histogram::new(&[1.0, 2.0]);
        for v in [0.5, 1.0, 1.5, 9.0] {
            h.observe(v);
        }
        assert_eq!(h.cumulative().collect::<Vec<_>>(), [(1.0, 2), (2.0, 3)]);
        assert_eq!((h.count(), h.sum()), (4, 12.0));
    }
}
