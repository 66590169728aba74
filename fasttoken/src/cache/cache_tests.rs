use super::*;
use crate::compare::Scalar;
use crate::short_tokens::MAX_KEY_BYTES;
use proptest::prelude::*;
use std::collections::HashMap;

fn key(n: u64) -> Key {
    Key { low: n, high: 7 }
}

fn short(cache: &Cache, owner: Owner, n: u64) -> Option<Vec<u32>> {
    let (four, tokens) = cache.short(owner, key(n), to(5))?;
    Some(four[..tokens].to_vec())
}

/// Returns the first token of each short entry of a line.
fn firsts(cache: &Cache, line: usize) -> [u32; 2] {
    cache.0[line].shorts().map(|entry| entry.tokens().0[0])
}

/// Returns a hash that selects a line.
fn to(line: u64) -> u64 {
    (line << 32).div_ceil(LINES as u64)
}

fn empty() -> Box<Cache> {
    bytemuck::zeroed_box()
}

#[test]
fn a_cache_is_a_huge_page() {
    assert_eq!(size_of::<Cache>(), 2 << 20);
}

#[test]
fn hashes_name_all_lines_alike() {
    let mut words = vec![0; LINES];
    for n in 0..16 * LINES as u64 {
        words[home(key(n).hash())] += 1;
    }
    assert!(words.iter().all(|count| (1..64).contains(count)));
    assert_eq!((home(0), home(u64::MAX)), (0, LINES - 1));
}

#[test]
fn the_latest_two_words_of_a_line_are_known() {
    let owner = Owner::new();
    let mut cache = empty();
    assert_eq!(short(&cache, owner, 1), None);
    assert!(cache.insert_short(owner, key(1), to(5), &[10]));
    assert!(cache.insert_short(owner, key(2), to(5), &[20, 21, 22]));
    assert_eq!(short(&cache, owner, 1), Some(vec![10]));
    assert_eq!(short(&cache, owner, 2), Some(vec![20, 21, 22]));
    // The newer one again: the older one stays.
    assert!(cache.insert_short(owner, key(2), to(5), &[23]));
    assert_eq!(short(&cache, owner, 2), Some(vec![23]));
    assert_eq!(short(&cache, owner, 1), Some(vec![10]));
    // A third one: the older one goes to the other line.
    assert!(cache.insert_short(owner, key(3), to(5), &[30]));
    assert_eq!(short(&cache, owner, 1), Some(vec![10]));
    assert_eq!(short(&cache, owner, 2), Some(vec![23]));
    // The older one again: it is the newer one, and counts first.
    assert!(cache.insert_short(owner, key(2), to(5), &[24]));
    assert_eq!(short(&cache, owner, 2), Some(vec![24]));
    assert_eq!(short(&cache, owner, 1), Some(vec![10]));
}

#[test]
fn a_word_that_is_driven_out_goes_to_the_other_line_once() {
    let owner = Owner::new();
    let mut cache = empty();
    let lines = |cache: &Cache| (firsts(cache, 4), firsts(cache, 5));
    let insert = |cache: &mut Cache, hash: u64, n: u32| {
        cache.insert_short(owner, key(n.into()), hash, &[n]);
    };
    for n in 1..=4 {
        insert(&mut cache, to(5), n);
    }
    assert_eq!(lines(&cache), ([1, 2], [4, 3]));
    insert(&mut cache, to(5), 5);
    assert_eq!(lines(&cache), ([1, 3], [5, 4]));
    // The other line's own words drive it out for good.
    insert(&mut cache, to(4), 6);
    assert_eq!(lines(&cache), ([6, 1], [5, 3]));
    // Found there: it changes places with the older word of its own line.
    assert!(matches!(
        cache.find_in_neighbour(owner, key(3), to(4)),
        Some(([3, ..], 1))
    ));
    assert_eq!(lines(&cache), ([3, 6], [5, 1]));
    assert!(cache.find_in_neighbour(owner, key(4), to(4)).is_none());
}

#[test]
fn words_of_one_token_go_first() {
    let owner = Owner::new();
    let insert = |cache: &mut Cache, hash: u64, n: u32, tokens: usize| {
        cache.insert_short(owner, key(n.into()), hash, &[n; SHORT_TOKENS][..tokens]);
    };
    // What the other line has, what comes there, and what it has then.
    for (newer, older, coming, after) in [
        (1, 1, 2, [10, 30]),
        (2, 1, 1, [10, 30]),
        (2, 1, 3, [10, 30]),
        (1, 3, 2, [30, 20]),
        (1, 3, 1, [10, 20]),
        (2, 2, 1, [10, 20]),
        (2, 2, 2, [10, 30]),
    ] {
        let mut cache = empty();
        insert(&mut cache, to(4), 20, older);
        insert(&mut cache, to(4), 10, newer);
        assert_eq!(firsts(&cache, 4), [10, 20]);
        insert(&mut cache, to(5), 30, coming);
        insert(&mut cache, to(5), 31, 1);
        insert(&mut cache, to(5), 32, 1);
        assert_eq!((firsts(&cache, 4), firsts(&cache, 5)), (after, [32, 31]));
    }
}

/// Returns a key whose hash selects line 5.
fn long_key(n: u8) -> LongKey {
    let mut key = LongKey::new(&[n; 20]).expect("it is short enough");
    key.hash = to(5);
    key
}

fn long(cache: &Cache, owner: Owner, n: u8) -> Option<u32> {
    cache.long(owner, long_key(n)).map(|ids| ids[0])
}

#[test]
fn a_long_word_that_is_driven_out_goes_to_the_other_line_once() {
    let owner = Owner::new();
    let mut cache = empty();
    for n in 1..=3 {
        cache.insert_long(owner, &long_key(n), &[n.into()]);
    }
    // Once more: it does not drive itself out.
    cache.insert_long(owner, &long_key(3), &[3]);
    let known = [3, 2, 1].map(|n| long(&cache, owner, n));
    assert_eq!(known, [Some(3), Some(2), None]);
}

#[test]
fn short_and_long_words_share_lines() {
    let owner = Owner::new();
    let mut cache = empty();
    cache.insert_short(owner, key(1), to(5), &[10]);
    cache.insert_short(owner, key(2), to(5), &[20, 21]);
    // Both move.
    cache.insert_long(owner, &long_key(1), &[30]);
    assert_eq!(short(&cache, owner, 1), Some(vec![10]));
    assert_eq!(short(&cache, owner, 2), Some(vec![20, 21]));
    assert_eq!(long(&cache, owner, 1), Some(30));
    // They stay where they are if a long one has their line.
    assert!(matches!(
        cache.find_in_neighbour(owner, key(1), to(5)),
        Some(([10, ..], 1))
    ));
    assert_eq!(long(&cache, owner, 1), Some(30));
    // A long word finds no room with words of several tokens.
    cache.insert_short(owner, key(3), to(5), &[40]);
    assert_eq!(short(&cache, owner, 3), Some(vec![40]));
    assert_eq!(long(&cache, owner, 1), None);
    // It does with others.
    let mut cache = empty();
    cache.insert_short(owner, key(1), to(4), &[10]);
    cache.insert_long(owner, &long_key(1), &[30]);
    cache.insert_short(owner, key(2), to(5), &[20]);
    assert_eq!(short(&cache, owner, 1), None);
    assert_eq!(short(&cache, owner, 2), Some(vec![20]));
    assert_eq!(long(&cache, owner, 1), Some(30));
}

#[test]
fn long_words_are_known_by_any_of_their_keys() {
    let owner = Owner::new();
    let mut cache = empty();
    let text: Vec<u8> = (0..70).collect();
    for start in [0, 30, 66] {
        for end in start + 1..text.len() {
            let (word, short) = (&text[start..end], Key::new(&text, start, end));
            let ids = [end as u32; LONG_TOKENS];
            let key = if short.is_none() {
                LongKey::of_long(&text, start, end)
            } else {
                LongKey::of_short(short, short.hash())
            };
            match LongKey::new(word) {
                Some(same) => {
                    assert_eq!((key.words, key.hash), (same.words, same.hash));
                    cache.insert_long(owner, &key, &ids);
                    assert_eq!(cache.long(owner, same), Some(&ids[..]));
                }
                None => assert_eq!(key.words, LongKey::NONE.words),
            }
        }
    }
    assert_eq!(cache.long(owner, LongKey::NONE), None);
    assert_eq!(cache.long(Owner::NONE, LongKey::NONE), None);
}

#[test]
fn owners_do_not_see_each_others_words() {
    let (ours, theirs) = (Owner::new(), Owner::new());
    let mut cache = empty();
    cache.insert_short(ours, key(1), to(5), &[1]);
    assert_eq!(short(&cache, theirs, 1), None);
    // The same word of another owner is another word.
    cache.insert_short(theirs, key(1), to(5), &[2]);
    assert_eq!(short(&cache, ours, 1), Some(vec![1]));
    assert_eq!(short(&cache, theirs, 1), Some(vec![2]));
    cache.insert_short(Owner::NONE, key(2), to(5), &[3]);
    assert_eq!(short(&cache, Owner::NONE, 2), None);
}

#[test]
fn entries_are_not_taken_for_those_of_the_other_kind() {
    let owner = Owner(0x1F << 20);
    let word = b"x";
    let key = Key::new(word, 0, 1);
    let bytes = [key.low.to_le_bytes(), key.high.to_le_bytes()].concat();
    let mut cache = empty();
    let unknown = |cache: &Cache| cache.short(owner, key, to(5)).is_none();
    // A word like the short entry, to its tag: one token of this owner.
    let mut like = [0; 31];
    like[..16].copy_from_slice(&bytes);
    like[28] = 1;
    let mut long = LongKey::new(&like).expect("it is short enough");
    long.hash = to(5);
    cache.insert_long(owner, &long, &[9]);
    assert!(unknown(&cache));
    // Tokens like its key.
    let ids: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
    cache.insert_long(owner, &long_key(1), &ids);
    assert!(unknown(&cache));
}

/// Looks a word up as encoding does.
fn known(cache: &mut Cache, owner: Owner, word: &[u8], hash: u64) -> Option<Vec<u32>> {
    let key = Key::new(word, 0, word.len());
    if word.len() > MAX_KEY_BYTES {
        let mut key = LongKey::of_long(word, 0, word.len());
        key.hash = hash;
        return cache.long(owner, key).map(<[u32]>::to_vec);
    }
    let (four, tokens) = cache.find_in_home::<Scalar>(&Cache::probe(owner, key, hash));
    if tokens <= SHORT_TOKENS {
        return Some(four[..tokens].to_vec());
    }
    let mut four = [0; 4];
    let table = ShortTokenTable::default();
    match cache.find_elsewhere::<Scalar>(owner, &table, key, hash, &mut four) {
        MANY_TOKENS => {
            let long = LongKey::of_short(key, hash);
            Some(cache.long(owner, long)?.to_vec())
        }
        tokens @ 0..=3 => Some(four[..usize::from(tokens)].to_vec()),
        _ => None,
    }
}

proptest! {
    /// Words may be evicted, and are never cached wrongly.
    #[test]
    fn cached_words_have_the_right_ids(
        steps in prop::collection::vec(
            (
                0usize..3,
                prop::collection::vec(prop::sample::select(vec![0u8, 1, 0x10, 0x80, 0xFF]), 1..32),
                (0u64..4).prop_map(to),
                prop::collection::vec(prop::sample::select(vec![0u32, 1, 0x18, 0x0100_0000]), 0..9),
            ),
            1..60,
        ),
    ) {
        let owners = [Owner(1), Owner(2), Owner(OWNER_END - 1)];
        let mut cache = empty();
        let mut truth: HashMap<_, Vec<u32>> = HashMap::new();
        for (owner, word, hash, ids) in steps {
            let owner = owners[owner];
            // What a word's tokens are does not change.
            let ids = truth.entry((owner.0, word.clone())).or_insert(ids).clone();
            let found = known(&mut cache, owner, &word, hash);
            prop_assert!(found.is_none_or(|found| found == ids));
            let key = Key::new(&word, 0, word.len());
            if word.len() > MAX_KEY_BYTES {
                let mut key = LongKey::of_long(&word, 0, word.len());
                key.hash = hash;
                cache.insert_long(owner, &key, &ids);
            } else if !cache.insert_short(owner, key, hash, &ids) {
                cache.insert_long(owner, &LongKey::of_short(key, hash), &ids);
            }
            let found = known(&mut cache, owner, &word, hash);
            prop_assert_eq!(found.is_some(), ids.len() <= LONG_TOKENS);
            prop_assert!(found.is_none_or(|found| found == ids));
        }
    }
}
