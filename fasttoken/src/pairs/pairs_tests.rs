//! The table against a map, and invalid tables.

use super::*;
use crate::string_table::TooManyCollisions;
use proptest::prelude::*;
use std::collections::HashMap;

fn check(rules: &[[u32; 3]], tokens: &[u32]) {
    let mut map = HashMap::new();
    for (rank, &[left, right, product]) in rules.iter().enumerate() {
        map.insert((left, right), (rank as u32, product));
    }
    let table = PairTable::new(rules).checked().expect("made just now");
    for &left in tokens {
        for &right in tokens {
            let expected = map.get(&(left, right)).copied();
            let rank = table.rank(left, right);
            assert_eq!(rank, expected.map_or(NO_RANK, |merge| merge.0));
            let product = expected.map(|merge| merge.1);
            assert_eq!(table.merged(left, right), product);
        }
    }
    let mut all: Vec<_> = table.iter().collect();
    all.sort_unstable();
    let mut expected: Vec<_> = map.iter().map(|((l, r), (n, _))| (*l, *r, *n)).collect();
    expected.sort_unstable();
    assert_eq!(all, expected);
}

proptest! {
    #[test]
    fn the_table_is_a_map(
        pairs in prop::collection::vec((0u32..6, 0u32..6), 0..60),
        shifted in any::<bool>(),
    ) {
        let product = |(rank, pair): (usize, &(u32, u32))| {
            let id = if shifted { 300 + rank as u32 } else { pair.0 };
            [pair.0, pair.1, id]
        };
        let rules: Vec<_> = pairs.iter().enumerate().map(product).collect();
        check(&rules, &[0, 1, 2, 3, 4, 5, 6, TOKEN_END - 1, TOKEN_END, u32::MAX]);
    }
}

#[test]
fn pairs_that_share_a_line_are_crowded() {
    // As many as the table for so many rules holds in one place, and one more.
    let buckets = |rules: usize| rules * 5 / (3 * SLOTS) + 1;
    let capacity = MAX_PROBED_BUCKETS * SLOTS;
    let total = 4 * capacity;
    let in_front = |&[left, right, _]: &[u32; 3]| home(hash(left, right), buckets(total)) == 3;
    let all = (0..TOKEN_END).map(|n| [n % 1000 + DENSE_TOKENS, n / 1000 + DENSE_TOKENS, n]);
    let mut rules: Vec<_> = all.clone().filter(in_front).take(capacity + 1).collect();
    assert_eq!(rules.len(), capacity + 1);
    // Others far from there make the table as large as that.
    let far = |rule: &[u32; 3]| home(hash(rule[0], rule[1]), buckets(total)) > 60;
    rules.extend(all.filter(far).take(total - rules.len()));
    assert_eq!(PairTable::build(&rules).err(), Some(TooManyCollisions));
    rules[capacity] = [1, 2, 3];
    let table = PairTable::build(&rules).expect("the pairs fit");
    for rank in [0, capacity - 1, capacity, total - 1] {
        assert_eq!(table.rank(rules[rank][0], rules[rank][1]), rank as u32);
    }
}

#[test]
fn the_square_and_the_lines_agree() {
    let near = |n: u32| n % 37 * 14;
    let far = |n: u32| TOKEN_END - 1 - n % 41;
    let rules: Vec<_> = (0..4000u32)
        .map(|n| match n % 3 {
            0 => [near(n), near(n / 37), n],
            1 => [near(n), far(n / 37), n],
            _ => [far(n), far(n / 41), n],
        })
        .collect();
    let tokens: Vec<_> = (0..41)
        .flat_map(|n| [near(n), far(n), near(n) + 1])
        .collect();
    check(&rules, &tokens);
}

#[test]
fn lines_of_no_table_are_refused() {
    let table = |slots: &[u64; SLOTS], filter: usize, dense: usize| PairTable {
        buckets: vec![PairBucket(*slots)].into(),
        filter: vec![0; filter].into(),
        dense: vec![0; dense].into(),
        products: Flat::default(),
        shift: 0,
        repeats: false,
    };
    let open = [1, FREE, FREE, FREE, FREE, FREE, FREE, FREE];
    assert!(table(&open, 2, 0).checked().is_some());
    assert!(table(&[1; SLOTS], 2, 0).checked().is_none());
    assert!(table(&open, 3, 0).checked().is_none());
    assert!(table(&open, 0, 0).checked().is_none());
    assert!(table(&open, 2, 7).checked().is_none());
}
