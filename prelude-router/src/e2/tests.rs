use prelude_core::{RequestId, ServiceTime};
use proptest::prelude::*;

use super::*;
use crate::{EndpointSpec, Finish, Pick, PolicyConfig, Prefix, Prompt, Root, RouteRequest, Router};

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
            pool: None,
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
            deadline: None,
        };
        let pick = self.router.route(seconds(at), &request);
        (pick.expect("somebody is there"), request.id)
    }
}

/// The paper's load, and no prompt leaves the endpoint that caches it.
fn still() -> E2Config {
    E2Config {
        load: E2Load::Window,
        leave_ratio: None,
        ..E2Config::default()
    }
}

/// Caches are small, and a prefix that is asked for again would go anywhere, to push out others there.
#[test]
fn a_prefix_returns_to_where_it_was_though_evicted() {
    let ask_again = |at| {
        let mut world = World::new(E2Config::default(), 4, 4);
        let first = world.ask(0, &[1, 2, 3]);
        for n in 1..=40 {
            world.ask(n, &[10 * n as u32, 10 * n as u32 + 1, 10 * n as u32 + 2]);
        }
        (world.ask(at, &[1, 2, 3, 9]), first.endpoint)
    };
    let (again, first) = ask_again(50);
    assert_eq!(
        (again.reason, again.endpoint, again.cached_tokens),
        (Reason::Cached, first, 0)
    );
    // After the window the router has forgotten it.
    let (late, _) = ask_again(250);
    assert_eq!((late.reason, late.cached_tokens), (Reason::LeastCost, 0));
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
        assert_eq!(world.ask(1, &[2; 10]).endpoint, second);
    }
    // As much load at both; 30 ms more at the first.
    assert_eq!(world.begin(1, &[1; 8], Some(30)).0.endpoint, first);
    // Two granules go: there of what was asked for once, here of what was asked for 22 times.
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
fn the_load_is_what_is_under_way() {
    let mut world = World::new(E2Config::default(), 2, 1000);
    let (first, long) = world.begin(0, &[1; 10], Some(1));
    let (second, _) = world.begin(1, &[2; 4], Some(1));
    assert_ne!(first.endpoint, second.endpoint);
    assert_eq!(world.ask(2, &[3; 2]).endpoint, second.endpoint);
    world.router.finished(seconds(3), long, Finish::default());
    assert_eq!(world.ask(4, &[4; 2]).endpoint, first.endpoint);
}

#[test]
fn a_prompt_leaves_the_endpoint_that_caches_it_where_waiting_costs_far_more() {
    let mut world = World::new(E2Config::default(), 2, 1000);
    let home = world.ask(0, &[1, 2, 3, 4]).endpoint;
    // Nine questions of one granule each wait; the document and a question are five granules.
    for n in 0..9 {
        let (pick, _) = world.begin(1, &[1, 2, 3, 4, 10 + n], Some(1));
        assert_eq!((pick.endpoint, pick.reason), (home, Reason::Cached), "{n}");
    }
    // Ten are as many as twice five, and no more than that.
    let (pick, _) = world.begin(2, &[1, 2, 3, 4, 30], Some(1));
    assert_eq!((pick.endpoint, pick.reason), (home, Reason::Cached));
    let (pick, _) = world.begin(2, &[1, 2, 3, 4, 31], Some(1));
    assert_eq!(pick.reason, Reason::Backlog);
    assert_ne!(pick.endpoint, home);
    // Both have it now, and the one with less to do gets more.
    let (next, _) = world.begin(2, &[1, 2, 3, 4, 32], Some(1));
    assert_eq!(next.endpoint, pick.endpoint);
    assert_eq!(next.reason, Reason::Cached);
}

#[test]
fn a_hot_document_is_copied_to_as_many_endpoints_as_it_needs() {
    let mut world = World::new(E2Config::default(), 4, 1000);
    world.ask(0, &[1; 20]);
    let mut counts = [0; 4];
    for n in 0..400 {
        let mut granules = vec![1; 20];
        granules.push(100 + n);
        let (pick, _) = world.begin(1, &granules, Some(1));
        counts[pick.endpoint.0 as usize] += 1;
    }
    assert!(counts.iter().all(|count| *count > 60), "{counts:?}");
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

/// The endpoints that E2 may send a prompt to, from the whole history and without evictions.
#[derive(Default)]
struct Naive {
    /// The time, endpoint, granules and cost of each request.
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

    /// The positions that may be chosen by such costs if a prompt leaves an endpoint that has
    /// something to do, and costs more than twice as much as another one.
    fn choices_by(
        &self,
        endpoints: usize,
        granules: &[u32],
        cost: impl Fn(usize) -> u64,
        is_idle: impl Fn(usize) -> bool,
    ) -> Vec<usize> {
        let least = |some: &mut dyn Iterator<Item = usize>| {
            let some: Vec<_> = some.collect();
            let least = some.iter().map(|&at| cost(at)).min();
            { some.into_iter() }
                .filter(|&at| Some(cost(at)) == least)
                .collect::<Vec<_>>()
        };
        let known = (0..endpoints)
            .map(|at| self.cached(at, granules))
            .max()
            .unwrap_or(0);
        if granules.len() - known >= known {
            return least(&mut (0..endpoints));
        }
        let mut choices = Vec::new();
        for holder in least(&mut (0..endpoints).filter(|&at| self.cached(at, granules) == known)) {
            let others = least(&mut (0..endpoints).filter(|&at| at != holder));
            match others.first() {
                Some(&other) if !is_idle(holder) && cost(holder) > 2 * cost(other) => {
                    choices.extend(others);
                }
                _ => choices.push(holder),
            }
        }
        choices
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

    #[test]
    fn weighs_what_is_under_way_as_a_naive_one_does(
        endpoints in 1..5usize,
        asks in prop::collection::vec((prop::collection::vec(0..3u32, 1..8), 0..12usize), 1..80),
    ) {
        let mut world = World::new(E2Config::default(), endpoints, 10_000);
        let mut naive = Naive::default();
        let mut under_way: Vec<(RequestId, usize, u64)> = Vec::new();
        for (granules, ends) in asks {
            if ends < under_way.len() {
                let (id, ..) = under_way.swap_remove(ends);
                world.router.finished(seconds(0), id, Finish::default());
            }
            let cost = |at: usize| {
                let own = under_way.iter().filter(|(_, of, _)| *of == at);
                let missing = granules.len() - naive.cached(at, &granules);
                own.map(|(.., cost)| cost).sum::<u64>() + missing as u64
            };
            let is_idle = |at: usize| under_way.iter().all(|(_, of, _)| *of != at);
            let choices = naive.choices_by(endpoints, &granules, cost, is_idle);
            let (pick, id) = world.begin(0, &granules, Some(1));
            let at = pick.endpoint.0 as usize;
            prop_assert!(choices.contains(&at), "{} of {:?} for {:?}", at, choices, granules);
            let missing = (granules.len() - naive.cached(at, &granules)) as u64;
            under_way.push((id, at, missing));
            naive.history.push((0, at, granules, missing));
        }
    }
}
