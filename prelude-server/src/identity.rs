//! API keys, request ids, answer ids and seeds.

use std::{
    fmt::Write as _,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

/// API keys, kept as SHA-256 digests, each with what it allows. Without keys every client is
/// admitted.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<Key>);

/// A key that is never kept itself.
#[derive(Clone)]
struct Key {
    digest: [u8; 32],
    client: Client,
}

/// The rights of a client, by its key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    /// Lowest priority that the client may name, if its key says so; the server's otherwise.
    pub(crate) best_priority: Option<i64>,
    /// The salt of the key's own cache. Set where there are several keys.
    pub(crate) cache_salt: Option<Arc<str>>,
}

impl Client {
    /// Returns a client with all rights: the process itself.
    pub(crate) const fn own() -> Self {
        Self {
            best_priority: Some(i64::MIN),
            cache_salt: None,
        }
    }
}

/// A line of a key file that cannot be read. The key is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: `priority=` must be followed by an integer, as in `KEY priority=-10`")]
pub struct KeyLineError {
    /// The number of the line, from 1 on.
    pub line: usize,
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiKeys({})", self.0.len())
    }
}

impl ApiKeys {
    /// Keeps the digests of `keys`; the keys themselves are not kept.
    pub fn new<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = K>) -> Self {
        Self::with_priorities(keys.into_iter().map(|key| (key, None)))
    }

    /// Keeps the digests of keys, each with the lowest priority that it allows.
    fn with_priorities<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = (K, Option<i64>)>) -> Self {
        let key = |(key, best_priority): (K, _)| Key {
            digest: Sha256::digest(key.as_ref()).into(),
            client: Client {
                best_priority,
                cache_salt: None,
            },
        };
        let mut keys: Vec<Key> = keys.into_iter().map(key).collect();
        if keys.len() > 1 {
            for key in &mut keys {
                key.client.cache_salt = Some(salt_of(&key.digest));
            }
        }
        Self(keys)
    }

    /// Reads a key file: one key per line, blank lines and `#` comments skipped. `priority=N` behind
    /// a key is the lowest priority that it allows.
    ///
    /// # Errors
    /// The first line whose priority is no integer.
    pub fn from_lines(text: &str) -> Result<Self, KeyLineError> {
        let mut keys = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let right = line.rsplit_once(char::is_whitespace);
            let right =
                right.and_then(|(key, right)| Some((key, right.strip_prefix("priority=")?)));
            keys.push(match right {
                None => (line, None),
                Some((key, priority)) => {
                    let priority = priority
                        .parse()
                        .map_err(|_| KeyLineError { line: at + 1 })?;
                    (key.trim_end(), Some(priority))
                }
            });
        }
        Ok(Self::with_priorities(keys))
    }

    /// Returns whether no key is configured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the rights of a request with this key; `None` if it is not admitted. Compares the key
    /// with all keys, so that the time does not tell which one matches.
    pub(crate) fn client(&self, presented: Option<&[u8]>) -> Option<Client> {
        if self.0.is_empty() {
            return Some(Client::default());
        }
        let presented: [u8; 32] = Sha256::digest(presented?).into();
        let mut found = u64::MAX;
        for (at, key) in (0_u64..).zip(&self.0) {
            found.conditional_assign(&at, key.digest.ct_eq(&presented));
        }
        let key = self.0.get(usize::try_from(found).ok()?)?;
        Some(key.client.clone())
    }
}

/// Returns the salt of a key's cache: the same in every process, so that engines behind one gateway
/// agree, and of no use to find the key by, since it is a digest of the key's digest.
fn salt_of(digest: &[u8; 32]) -> Arc<str> {
    let mut hash = Sha256::new_with_prefix(b"prelude cache salt");
    hash.update(digest);
    let mut salt = String::with_capacity(32);
    for byte in &hash.finalize()[..16] {
        // Writing to a string cannot fail.
        let _ = write!(salt, "{byte:02x}");
    }
    salt.into()
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
        let keys = ApiKeys::from_lines("# mine\n\nabc\n def \n").unwrap();
        let check = |key: Option<&str>, expected| {
            let client = keys.client(key.map(str::as_bytes));
            assert_eq!(client.is_some(), expected, "{key:?}");
        };
        check(Some("abc"), true);
        check(Some("def"), true);
        check(Some("ab"), false);
        check(Some("# mine"), false);
        check(Some(""), false);
        check(None, false);
        assert!(ApiKeys::default().client(None).is_some());
        assert_eq!(format!("{keys:?}"), "ApiKeys(2)");
    }

    #[test]
    fn a_key_may_have_a_priority() {
        let check = |line: &str, key: &str, expected: Result<Option<i64>, usize>| {
            let keys = ApiKeys::from_lines(&format!("# mine\n{line}\n")).map_err(|e| e.line);
            let found = keys.map(|keys| keys.client(Some(key.as_bytes())).unwrap().best_priority);
            assert_eq!(found, expected, "{line}");
        };
        check("abc priority=-10", "abc", Ok(Some(-10)));
        check("two words\t priority=3", "two words", Ok(Some(3)));
        check("two words", "two words", Ok(None));
        check("priority=7", "priority=7", Ok(None));
        check("abc priority=best", "", Err(2));
        check("abc priority=", "", Err(2));
    }

    #[test]
    fn several_keys_have_salts_of_their_own() {
        let salt =
            |keys: &ApiKeys, key: &str| keys.client(Some(key.as_bytes())).unwrap().cache_salt;
        let two = ApiKeys::new(["abc", "def"]);
        let (first, second) = (salt(&two, "abc").unwrap(), salt(&two, "def").unwrap());
        assert_ne!(first, second);
        assert_eq!(first.len(), 32);
        // Behind one gateway, and after the keys were read again.
        assert_eq!(salt(&ApiKeys::new(["ghi", "abc"]), "abc"), Some(first));
        assert_eq!(salt(&ApiKeys::new(["abc"]), "abc"), None);
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
