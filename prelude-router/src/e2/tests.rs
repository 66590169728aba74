use prelude_core::{RequestId, ServiceTime};
use proptest::prelude::*;

use super::*;
use crate::{
    EndpointSpec, Finish, Pick, PolicyConfig, Prefix, Prompt, RebalanceConfig, Root, RouteRequest,
    Router,
};

const GRANULE: u32 = 64;

/// One millisecond a token and nothing else, so that costs can be read off.
const SERVICE: ServiceTime = ServiceTime {
    floor_ms: 0.0,
    per_cached_ms: 0.0,
    base_ms: 0.0,
    per_token_ms: 1.0,
    per_pair_ms: 0.0,
    decode_ms: 1.0,
};

fn seconds(s: u64) -> Timestamp {
    Timestamp::ZERO.saturating_add(Duration::from_secs(s))
}

/// Granules by number.
fn prompt(granules: &[u32]) -> Vec<u32> {
    granules
        .iter()
        .flat_map(|&n| [n; GRANULE as usize])
        .collect()
}

/// A router of E2 and endpoints with room for so many granules.
struct World {
    router: Router,
    next: u64,
}

impl World {
    fn new(config: E2Config, endpoints: usize, capacity: u32) -> Self {
        let config = RouterConfig {
            policy: PolicyConfig::E2(config),
            granule_tokens: GRANULE,
            ..RouterConfig::default()
        };
        let mut world = Self {
            router: Router::new(config).expect("a good config"),
            next: 0,
        };
        for _ in 0..endpoints {
            world.join(0, capacity);
        }
        world
    }

    fn join(&mut self, at: u64, capacity: u32) -> EndpointId {
        let spec = EndpointSpec {
            kv_capacity_tokens: u64::from(capacity * GRANULE),
            service: SERVICE,
        };
        self.router.join(seconds(at), spec).expect("a good spec")
    }

    /// Routes a prompt that needs no decoding, which ends at once.
    fn ask(&mut self, at: u64, granules: &[u32]) -> Pick {
        let (pick, id) = self.begin(at, granules, Some(1));
        self.router.finished(seconds(at), id, Finish::default());
        pick
    }

    fn begin(&mut self, at: u64, granules: &[u32], output: Option<u32>) -> (Pick, RequestId) {
        self.next += 1;
        let tokens = prompt(granules);
        let prefix = Prefix::new(Root(1), Prompt::Tokens(&tokens), GRANULE);
        let request = RouteRequest {
            id: RequestId(self.next),
            prefix: &prefix,
            max_output_tokens: output,
            user: None,
            sheddable: false,
            subset: None,
        };
        let pick = self.router.route(seconds(at), &request);
        (pick.expect("somebody is there"), request.id)
    }
}

fn still() -> E2Config {
    E2Config {
        rebalance: None,
        ..E2Config::default()
    }
}

#[test]
fn goes_where_more_is_cached_than_is_missing_and_else_where_least_is_to_do() {
    let mut world = World::new(still(), 2, 1000);
    let first = world.ask(0, &[1, 2, 3, 4]);
    assert_eq!((first.reason, first.cached_tokens), (Reason::LeastCost, 0));
    // Three of five are there.
    let more = world.ask(1, &[1, 2, 3, 5, 6]);
    assert_eq!(
        (more.reason, more.endpoint),
        (Reason::Cached, first.endpoint)
    );
    assert_eq!(more.cached_tokens, 3 * GRANULE);
    // Two of four: as many as are missing, so load decides.
    let half = world.ask(2, &[1, 2, 7, 8]);
    assert_eq!(half.reason, Reason::LeastCost);
    assert_ne!(half.endpoint, first.endpoint);
}

#[test]
fn the_load_is_that_of_the_window() {
    let mut world = World::new(still(), 2, 1000);
    let first = world.ask(0, &[1; 10]).endpoint;
    let second = world.ask(1, &[2; 4]).endpoint;
    assert_ne!(first, second);
    assert_eq!(world.ask(2, &[3; 5]).endpoint, second);
    // Nine against ten, and one more.
    assert_eq!(world.ask(3, &[4; 2]).endpoint, second);
    assert_eq!(world.ask(4, &[5; 2]).endpoint, first);
    // After three minutes the first ten count no longer: two there, eleven here.
    assert_eq!(world.ask(180, &[6; 3]).endpoint, first);
}

#[test]
fn evictions_count_as_often_as_what_goes_is_asked_for() {
    let mut world = World::new(still(), 2, 10);
    // Both are full: one of a prompt that all requests have and of two that none has
    // any more, the other of one thing.
    let first = world.ask(0, &[5]).endpoint;
    let second = world.ask(0, &[2; 10]).endpoint;
    assert_ne!(first, second);
    assert_eq!(world.ask(0, &[6]).endpoint, first);
    for _ in 0..21 {
        assert_eq!(world.ask(1, &[1; 8]).endpoint, first);
    }
    // As much load at both; 30 ms more at the first.
    assert_eq!(world.begin(1, &[1; 8], Some(30)).0.endpoint, first);
    // Two granules go: there of what was asked for once in 24 times, here always.
    assert_eq!(world.ask(2, &[3; 2]).endpoint, first);
}

#[test]
fn who_decodes_has_room_for_a_prefill() {
    let mut world = World::new(still(), 2, 1000);
    let mut decoding = None;
    for n in 0..8 {
        // The first prompt is long, the others are all but cached, and outputs are longer still.
        let (pick, id) = world.begin(0, &[1, 1, 1, 1, 1, 1, 1, 1, n], Some(5000));
        let endpoint = *decoding.get_or_insert(pick.endpoint);
        assert_eq!(pick.endpoint, endpoint);
        let output = Finish {
            output_tokens: Some(4000),
            ..Finish::default()
        };
        world.router.finished(seconds(0), id, output);
    }
    // None is under way: decoding that has ended leaves nothing idle.
    assert_eq!(world.ask(1, &[20; 3]).reason, Reason::LeastCost);
    for n in 0..8 {
        world.begin(2, &[1, 1, 1, 1, 1, 1, 1, 1, n], Some(5000));
    }
    let pick = world.ask(3, &[21; 3]);
    assert_eq!(Some(pick.endpoint), decoding);
    assert_eq!(pick.reason, Reason::DecodeHeavy);
}

#[test]
fn who_has_just_joined_is_not_flooded() {
    let mut world = World::new(still(), 2, 1000);
    for n in 0..20 {
        world.ask(n, &[n as u32; 3]);
    }
    let new = world.join(20, 1000);
    let own = |world: &mut World, from: u64| {
        let asks = (0..30).map(|n| world.ask(from, &[100 + from as u32 * 100 + n; 3]).endpoint);
        asks.filter(|endpoint| *endpoint == new).count()
    };
    // It begins with as much load as the least busy one, and takes a sixth at first.
    assert!(own(&mut world, 21) <= 6);
    // Later it catches up: twenty of all sixty.
    assert!((13..=17).contains(&own(&mut world, 31)));
}

#[test]
fn nothing_moves_before_there_are_enough_requests_to_tell() {
    let (_, other, places) = after_a_busy_time(100);
    assert!(
        places.iter().all(|pick| pick.endpoint != other),
        "{places:?}"
    );
}

/// Asks ninety times for three prefixes that one of two endpoints caches, and then once for each,
/// when `min_requests` for each endpoint are enough for moving some. Returns the other endpoint
/// and those last picks.
fn after_a_busy_time(min_requests: u32) -> (World, EndpointId, Vec<Pick>) {
    let rebalance = RebalanceConfig {
        min_requests,
        ..RebalanceConfig::default()
    };
    let config = E2Config {
        rebalance: Some(rebalance),
        ..E2Config::default()
    };
    let mut world = World::new(config, 2, 1000);
    // Three prefixes of which each is asked for again and again, all cached at one endpoint.
    let question = |n: u32| [n, n, n, n, 1000 + n];
    let home = world.ask(0, &[1, 1, 1, 1]).endpoint;
    let other = EndpointId(1 - home.0);
    // While the other one has more to do.
    assert_eq!(world.ask(0, &[50; 9]).endpoint, other);
    for n in [2, 3] {
        assert_eq!(world.ask(0, &[n; 4]).endpoint, home);
    }
    for round in 0..30 {
        for n in 1..4 {
            let mut granules = question(n).to_vec();
            granules[4] += 10 * round;
            world.ask(0, &granules);
        }
    }
    let places: Vec<_> = (1..4).map(|n| world.ask(10, &[n, n, n, n, 7])).collect();
    (world, other, places)
}

#[test]
fn what_makes_one_too_busy_moves_and_what_is_asked_for_later_follows() {
    let (mut world, other, places) = after_a_busy_time(2);
    let moved = places.iter().filter(|pick| pick.endpoint == other);
    // One makes 68 against 43 of 102 against 9, and another one would make 34 against 77.
    assert_eq!(moved.clone().count(), 1, "{places:?}");
    assert!(moved.clone().all(|pick| pick.reason == Reason::Redirected));
    // It stays where it is.
    for (n, pick) in (1..4).zip(&places) {
        assert_eq!(world.ask(11, &[n, n, n, n, 8]).endpoint, pick.endpoint);
    }
}

#[test]
fn what_is_too_large_to_move_is_copied_when_it_makes_others_wait() {
    let rebalance = RebalanceConfig {
        min_requests: 2,
        ..RebalanceConfig::default()
    };
    let config = E2Config {
        rebalance: Some(rebalance),
        ..E2Config::default()
    };
    let mut world = World::new(config, 2, 1000);
    let wait = |world: &mut World, at: u64, ms: u64, n: u32| {
        let (pick, id) = world.begin(at, &[1, 1, 1, 1, n], Some(1));
        let finish = Finish {
            queue: Some(Duration::from_millis(ms)),
            ..Finish::default()
        };
        world.router.finished(seconds(at), id, finish);
        pick
    };
    for n in 0..40 {
        wait(&mut world, u64::from(n), 10, 100 + n);
    }
    for n in 0..40 {
        wait(&mut world, 100 + u64::from(n), 10, 200 + n);
    }
    let calm = wait(&mut world, 141, 10, 300);
    let (home, other) = (calm.endpoint, EndpointId(1 - calm.endpoint.0));
    assert_eq!(
        calm.reason,
        Reason::Cached,
        "no request waits longer than before"
    );
    for n in 0..80 {
        assert_eq!(wait(&mut world, 150, 100, 400 + n).endpoint, home);
    }
    // The copy is where there is less to do, and both are used once there is as much.
    let copied: Vec<_> = (0..300)
        .map(|n| wait(&mut world, 152, 100, 500 + n))
        .collect();
    assert!(copied.iter().all(|pick| pick.reason == Reason::Redirected));
    assert_eq!(copied[0].endpoint, other);
    assert!(copied.iter().any(|pick| pick.endpoint == home));
    // It is not needed any more once no request asks.
    assert_eq!(wait(&mut world, 400, 10, 900).reason, Reason::Cached);
}

#[test]
fn a_hot_document_is_copied_though_all_prompts_start_alike() {
    // Two granules of instructions, a document of 20, a question; one document of nine gets 95 %
    // of the requests, and those of its endpoint wait twice as long each minute.
    for system in [&[][..], &[900, 901]] {
        let mut world = World::new(E2Config::default(), 2, 10_000);
        let mut redirected = 0;
        let mut hot = [0; 2];
        for n in 0..6000_u32 {
            let at = u64::from(n) / 10;
            let document = if n % 20 == 0 { 1 + n / 20 % 8 } else { 0 };
            let mut granules = system.to_vec();
            granules.extend([1 + document; 20]);
            granules.push(1000 + n);
            let (pick, id) = world.begin(at, &granules, Some(1));
            let queue = Duration::from_millis(10 << (at / 60));
            let queue = Some(queue).filter(|_| document == 0);
            let finish = Finish {
                queue,
                ..Finish::default()
            };
            world.router.finished(seconds(at), id, finish);
            redirected += u32::from(pick.reason == Reason::Redirected);
            if document == 0 {
                hot[pick.endpoint.0 as usize] += 1;
            }
        }
        let least = hot.iter().min().expect("two endpoints");
        assert!(*least > 1500, "{hot:?}, {redirected} redirected");
    }
}

#[test]
fn who_served_instead_has_the_prompt() {
    let mut world = World::new(still(), 2, 1000);
    let (pick, id) = world.begin(0, &[1; 4], Some(1));
    let other = EndpointId(1 - pick.endpoint.0);
    assert!(world.router.served(id, other));
    let again = world.ask(1, &[1; 4]);
    assert_eq!((again.endpoint, again.reason), (other, Reason::Cached));
}

#[test]
fn the_newest_of_nested_overrides_holds_and_the_deepest_of_older_ones() {
    let config = RouterConfig::default();
    let mut e2 = E2::new(still(), &config);
    let mut fleet = Fleet::new(0);
    for _ in 0..3 {
        let spec = EndpointSpec {
            kv_capacity_tokens: 10_000,
            service: SERVICE,
        };
        fleet.join(spec).expect("a good spec");
        e2.joined(Timestamp::ZERO, &fleet);
    }
    let granules = [1, 2, 3, 4].map(crate::random::mix);
    let query = Query {
        id: RequestId(1),
        root: Root(1),
        granules: &granules,
        granule_tokens: GRANULE,
        tokens: 4 * GRANULE,
        max_output_tokens: Some(1),
        user: None,
        eligible: &[0, 1, 2],
    };
    let send = |e2: &mut E2, len: usize| {
        let mut path = crate::index::Path::default();
        e2.cached.index.find(&granules[..len], &mut path);
        let leaf = e2
            .cached
            .index
            .insert(&granules[..len], &mut path)
            .expect("it has granules");
        e2.cached.index.assign(EndpointId(0), leaf);
        leaf
    };
    let (upper, lower) = (send(&mut e2, 2), send(&mut e2, 4));
    let redirected = |e2: &mut E2, upper_at: u64, lower_at: u64| {
        let put = |at, member| {
            Some(Box::new(Override::new(
                seconds(at),
                EndpointId(0),
                &[EndpointId(member)],
            )))
        };
        *e2.cached.index.redirect_mut(upper) = put(upper_at, 1);
        *e2.cached.index.redirect_mut(lower) = put(lower_at, 2);
        e2.pick(seconds(9), &fleet, &query).at
    };
    assert_eq!(redirected(&mut e2, 1, 2), 2);
    assert_eq!(redirected(&mut e2, 2, 1), 1);
}

/// Where E2 may send a prompt, from the whole history and without evictions.
#[derive(Default)]
struct Naive {
    /// When, where, which granules, at what cost.
    history: Vec<(u64, usize, Vec<u32>, u64)>,
}

impl Naive {
    fn cached(&self, at: usize, granules: &[u32]) -> usize {
        let own = self.history.iter().filter(|(_, of, ..)| *of == at);
        let common = own.map(|(_, _, other, _)| {
            other
                .iter()
                .zip(granules)
                .take_while(|(a, b)| a == b)
                .count()
        });
        common.max().unwrap_or(0)
    }

    fn load(&self, now: u64, at: usize) -> u64 {
        let own = self.history.iter().filter(|(_, of, ..)| *of == at);
        let recent = own.filter(|(when, ..)| now - when < 180);
        recent.map(|(.., cost)| cost).sum()
    }

    /// The positions that may be chosen.
    fn choices(&self, now: u64, endpoints: usize, granules: &[u32]) -> Vec<usize> {
        let all = || 0..endpoints;
        let known = all().map(|at| self.cached(at, granules)).max().unwrap_or(0);
        let exploits = granules.len() - known < known;
        let among = || all().filter(|&at| !exploits || self.cached(at, granules) == known);
        let cost =
            |at: usize| self.load(now, at) + (granules.len() - self.cached(at, granules)) as u64;
        let least = among().map(cost).min();
        among().filter(|&at| Some(cost(at)) == least).collect()
    }
}

proptest! {
    #[test]
    fn decides_as_a_naive_one_does(
        endpoints in 1..5usize,
        asks in prop::collection::vec((0..60u64, prop::collection::vec(0..3u32, 1..8)), 1..80),
    ) {
        let mut world = World::new(still(), endpoints, 10_000);
        let mut naive = Naive::default();
        let mut now = 0;
        for (wait, granules) in asks {
            now += wait;
            let choices = naive.choices(now, endpoints, &granules);
            let pick = world.ask(now, &granules);
            let at = pick.endpoint.0 as usize;
            prop_assert!(choices.contains(&at), "{} of {:?} for {:?}", at, choices, granules);
            let cached = naive.cached(at, &granules);
            prop_assert_eq!(pick.cached_tokens, cached as u32 * GRANULE);
            let cost = (granules.len() - cached) as u64;
            naive.history.push((now, at, granules, cost));
        }
    }
}
