//! A small seeded generator, so that a seed means the same on every machine and in every version.

/// splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// Returns a generator; equal seeds give equal numbers.
    #[must_use]
    pub(crate) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns a number below 2^64.
    pub(crate) const fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state, 0)
    }

    /// Returns a number in `low..=high`. (The bias of the remainder does not matter here.).
    pub(crate) const fn in_range(&mut self, low: u32, high: u32) -> u32 {
        let span = (high - low) as u64 + 1;
        low + (self.next_u64() % span) as u32
    }

    /// Returns true once in `n` times.
    pub(crate) const fn one_in(&mut self, n: u64) -> bool {
        self.next_u64().is_multiple_of(n)
    }

    /// Returns an exponentially distributed number with this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        // 53 bits, never 0.
        let uniform = ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        -mean * uniform.ln()
    }

    /// Returns one of the items.
    ///
    /// # Panics
    /// If there are none.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[(self.next_u64() % items.len() as u64) as usize]
    }
}

/// Returns a good hash of two words.
#[must_use]
pub(super) const fn mix(a: u64, b: u64) -> u64 {
    let mut h = a ^ b.wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(31);
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}
