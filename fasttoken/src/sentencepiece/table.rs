//! A frozen hash table from small keys to two numbers, filled at load.

/// What can be a key: one value never is.
pub(super) trait Key: Copy + Eq {
    const FREE: Self;
    fn hash(self) -> u64;
}

// Odd, and without structure: the fractional parts of pi and e.
const K0: u64 = 0x243F_6A88_85A3_08D3;
const K1: u64 = 0xB7E1_5162_8AED_2A6B;

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

impl Key for u64 {
    const FREE: Self = Self::MAX;

    #[inline]
    fn hash(self) -> u64 {
        fold(self ^ K0, K1)
    }
}

/// Open addressing. Look-ups never insert, so the longest probe is fixed by the file.
#[derive(Debug)]
pub(super) struct Table<K> {
    slots: Vec<(K, (u32, u32))>,
}

impl<K: Key> Table<K> {
    pub(super) fn with_capacity(entries: usize) -> Self {
        let slots = (entries + entries / 2 + 1).next_power_of_two();
        Self {
            slots: vec![(K::FREE, (0, 0)); slots],
        }
    }

    /// Sets the value of `key`, of which at most as many as the capacity may be added.
    pub(super) fn insert(&mut self, key: K, value: (u32, u32)) {
        let mut at = self.start(key);
        while self.slots[at].0 != K::FREE && self.slots[at].0 != key {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = (key, value);
    }

    #[inline]
    pub(super) fn get(&self, key: K) -> Option<(u32, u32)> {
        let mut at = self.start(key);
        loop {
            let (found, value) = self.slots[at];
            if found == key {
                return Some(value);
            }
            if found == K::FREE {
                return None;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }

    #[inline]
    fn start(&self, key: K) -> usize {
        key.hash() as usize & (self.slots.len() - 1)
    }
}
