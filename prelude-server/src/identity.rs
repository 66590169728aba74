//! API keys, request ids, answer ids and seeds.

use std::{
    fmt::Write as _,
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// API keys, kept as SHA-256 digests. Without keys every client is admitted.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<[u8; 32]>);

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}

impl ApiKeys {
    /// Keeps the digests of `keys`; the keys themselves are not kept.
    pub fn new<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self(keys.into_iter().map(|k| digest(k.as_ref())).collect())
    }

    /// Reads a key file: one key per line, blank lines and `#` comments skipped.
    #[must_use]
    pub fn from_lines(text: &str) -> Self {
        let lines = text.lines().map(str::trim);
        Self::new(lines.filter(|line| !line.is_empty() && !line.starts_with('#')))
    }

    /// Returns whether no key is configured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a request with this key is admitted. Compares it with all keys, so that the
    /// time does not tell which one matches.
    pub(crate) fn admits(&self, presented: Option<&[u8]>) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let Some(presented) = presented else {
            return false;
        };
        let presented = digest(presented);
        let equal = |key: &[u8; 32]| key.ct_eq(&presented);
        let found = self.0.iter().map(equal);
        found.fold(Choice::from(0), |any, one| any | one).into()
    }
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Makes ids of 128 random bits in hex.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    high: RandomState,
    low: RandomState,
    count: AtomicU64,
    /// The number of seeds so far. Ids are counted apart, because a seed must not depend on them.
    seeds: AtomicU64,
    /// The process's seed, from which the seeds of requests follow.
    seed: Option<u64>,
}

impl Ids {
    /// Returns an id: `prefix` and 32 hex digits, such as `cmpl-5b0c..`.
    pub(crate) fn next(&self, prefix: &str) -> String {
        // Two keyed hashes of a counter: unpredictable without the process's random keys, and
        // no system call per request.
        let n = self.count.fetch_add(1, Ordering::Relaxed);
        let (high, low) = (self.high.hash_one(n), self.low.hash_one(n));
        let mut id = String::with_capacity(prefix.len() + 32);
        // Writing to a string cannot fail.
        let _ = write!(id, "{prefix}{high:016x}{low:016x}");
        id
    }

    /// Makes ids and seeds; the seeds follow from `seed` if there is one.
    pub(crate) fn new(seed: Option<u64>) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Returns a seed for a request that names none. A seeded process that gets the same requests in
    /// the same order gives the same seeds in every run.
    pub(crate) fn seed(&self) -> u64 {
        match self.seed {
            None => {
                let n = self.count.fetch_add(1, Ordering::Relaxed);
                self.low.hash_one(n)
            }
            Some(seed) => {
                let n = self.seeds.fetch_add(1, Ordering::Relaxed);
                mix(seed ^ mix(n))
            }
        }
    }
}

/// Spreads every bit over all others (Steele et al., `SplitMix`, OOPSLA 2014).
const fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns whether a client's request id may be echoed and logged: 1 to 128 letters, digits and
/// `._:-`.
pub(crate) fn is_request_id(id: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
    (1..=128).contains(&id.len()) && id.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_keys_are_admitted() {
        let keys = ApiKeys::from_lines("# mine\n\nabc\n def \n");
        let check = |key: Option<&str>, expected| {
            assert_eq!(keys.admits(key.map(str::as_bytes)), expected, "{key:?}");
        };
        check(Some("abc"), true);
        check(Some("def"), true);
        check(Some("ab"), false);
        check(Some("# mine"), false);
        check(Some(""), false);
        check(None, false);
        assert!(ApiKeys::default().admits(None));
        assert_eq!(format!("{keys:?}"), "ApiKeys(2)");
    }

    #[test]
    fn request_ids_are_accepted_or_refused() {
        let check = |id: &str, expected| assert_eq!(is_request_id(id), expected, "{id:?}");
        check("a.B_9:-", true);
        check(&"x".repeat(128), true);
        check(&"x".repeat(129), false);
        check("", false);
        check("a b", false);
        check("a\r\nb", false);
        check("é", false);
    }

    #[test]
    fn seeds_of_a_seeded_process_repeat() {
        let seeds = |seed, ids_between: bool| -> Vec<u64> {
            let ids = Ids::new(seed);
            let next = |_| {
                if ids_between {
                    ids.next("req-");
                }
                ids.seed()
            };
            (0..4).map(next).collect()
        };
        assert_eq!(seeds(Some(1), false), seeds(Some(1), true));
        assert_ne!(seeds(Some(1), false), seeds(Some(2), false));
        assert_ne!(seeds(None, false), seeds(None, false));
    }

    #[test]
    fn answer_ids_differ() {
        let ids = Ids::default();
        let (a, b) = (ids.next("cmpl-"), ids.next("cmpl-"));
        assert_eq!(a.len(), 5 + 32);
        assert_ne!(a, b);
    }
}
