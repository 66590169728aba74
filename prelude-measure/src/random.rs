//! Seeded randomness: the same run sends the same requests.

/// Spreads every bit over all others (Steele et al., `SplitMix`, OOPSLA 2014).
#[must_use]
pub const fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins a sequence.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a sequence that has nothing to do with those of neighbouring seeds, whose numbers
    /// are otherwise the same but for one.
    #[must_use]
    pub const fn far(seed: u64) -> Self {
        Self(mix(mix(seed)))
    }

    /// Returns the next 64 bits.
    #[expect(
        clippy::should_implement_trait,
        reason = "a sequence without an end, read by its own methods"
    )]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// Returns a number below `n`, which is small: the bias is below `n / 2^64`.
    #[expect(clippy::cast_possible_truncation, reason = "below n")]
    // Always: the gate counts the instructions of what uses it.
    #[inline(always)]
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Returns one of `from`, which is not empty.
    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// Returns a number in (0, 1], of 53 bits: never 0, so that it has a logarithm.
    pub fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Returns an exponentially distributed number.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * self.uniform().ln()
    }

    /// Returns a normally distributed number of mean 0 and variance 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Shuffles: every order is equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_moments() {
        let check = |mut draw: Box<dyn FnMut() -> f64>, mean: f64, sd: f64| {
            let numbers: Vec<f64> = (0..100_000).map(|_| draw()).collect();
            let n = numbers.len() as f64;
            let got = numbers.iter().sum::<f64>() / n;
            let variance = numbers.iter().map(|x| (x - got).powi(2)).sum::<f64>() / n;
            assert!((got - mean).abs() < 0.02, "mean {got}");
            assert!(
                (variance.sqrt() - sd).abs() < 0.02,
                "sd {}",
                variance.sqrt()
            );
        };
        let mut random = Random::far(1);
        let mut r = random.clone();
        check(Box::new(move || r.uniform()), 0.5, 1.0 / 12_f64.sqrt());
        let mut r = random.clone();
        check(Box::new(move || r.exponential(2.0)), 2.0, 2.0);
        check(Box::new(move || random.normal()), 0.0, 1.0);
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut items: Vec<u32> = (0..100).collect();
        Random::far(7).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn far_seeds_are_not_shifted() {
        let numbers = |seed| {
            let mut random = Random::far(seed);
            (0..100).map(|_| random.next()).collect::<Vec<_>>()
        };
        let (a, b) = (numbers(0), numbers(1));
        assert!(a.iter().all(|x| !b.contains(x)));
    }
}
