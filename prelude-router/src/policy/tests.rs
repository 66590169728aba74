use prelude_core::{RequestId, Timestamp};

use crate::{
    CacheAwareConfig, EndpointId, EndpointSpec, Finish, Pick, PolicyConfig, Prefix,
    PrefixHashConfig, Prompt, Reason, Root, RouteRequest, Router, RouterConfig, ServiceTime,
    UserStickyConfig,
};

const NOW: Timestamp = Timestamp::ZERO;
/// Anybody's short prompt.
const ANY: (u64, &[u32]) = (0, &[1]);

/// A router over endpoints with room for 1,000 granules of 4 tokens.
fn router(policy: PolicyConfig, endpoints: usize) -> Router {
    let config = RouterConfig {
        policy,
        granule_tokens: 4,
        ..RouterConfig::default()
    };
    let mut router = Router::new(config).expect("a good config");
    for _ in 0..endpoints {
        let spec = EndpointSpec {
            kv_capacity_tokens: 4000,
            service: ServiceTime::default(),
        };
        router.join(NOW, spec).expect("a good spec");
    }
    router
}

/// Routes a request that does not end.
fn begin(router: &mut Router, id: u64, user: u64, tokens: &[u32]) -> Pick {
    let prefix = Prefix::new(Root(1), Prompt::Tokens(tokens), 4);
    let request = RouteRequest {
        id: RequestId(id),
        prefix: &prefix,
        max_output_tokens: None,
        user: Some(user),
        sheddable: false,
        subset: None,
    };
    router.route(NOW, &request).expect("somebody is there")
}

fn endpoints(router: &mut Router, asks: &[(u64, &[u32])]) -> Vec<u32> {
    let first = router.fleet().in_flight() as u64;
    let asks = (first..).zip(asks);
    asks.map(|(id, (user, tokens))| begin(router, id, *user, tokens).endpoint.0)
        .collect()
}

#[test]
fn round_robin_passes_over_whom_it_may_not_take() {
    let mut router = router(PolicyConfig::RoundRobin, 3);
    assert_eq!(endpoints(&mut router, &[ANY; 4]), [0, 1, 2, 0]);
    router
        .set_healthy(EndpointId(1), false)
        .expect("it is there");
    assert_eq!(endpoints(&mut router, &[ANY; 3]), [2, 0, 2]);
    router.leave(EndpointId(2)).expect("it is there");
    for id in 100..102 {
        assert_eq!(begin(&mut router, id, 0, &[1]).endpoint, EndpointId(0));
    }
}

#[test]
fn least_outstanding_counts_what_is_under_way() {
    let mut router = router(PolicyConfig::LeastOutstanding, 2);
    assert_eq!(
        endpoints(&mut router, &[(0, &[1; 9]), (0, &[1; 2]), (0, &[1])]),
        [0, 1, 1]
    );
    router.finished(NOW, RequestId(1), Finish::default());
    router.finished(NOW, RequestId(2), Finish::default());
    assert_eq!(begin(&mut router, 9, 0, &[1]).endpoint, EndpointId(1));
}

#[test]
fn users_stay_where_they_are() {
    let config = UserStickyConfig { max_users: 2 };
    let mut router = router(PolicyConfig::UserSticky(config), 3);
    let asks = [7, 8, 7, 8, 9, 8].map(|user| (user, &[1][..]));
    assert_eq!(endpoints(&mut router, &asks), [0, 1, 0, 1, 2, 1]);
    // The one who came first is forgotten, and comes anew.
    assert_eq!(begin(&mut router, 99, 7, &[1]).endpoint, EndpointId(0));
    router
        .set_healthy(EndpointId(2), false)
        .expect("it is there");
    assert_ne!(begin(&mut router, 100, 9, &[1]).endpoint, EndpointId(2));
}

#[test]
fn a_ring_sends_equal_beginnings_to_one_and_bounds_its_load() {
    let config = PrefixHashConfig {
        tokens: 8,
        ..PrefixHashConfig::default()
    };
    let mut router = router(PolicyConfig::PrefixHash(config), 4);
    let mut homes = Vec::new();
    for n in 0..40 {
        let mut prompt = vec![n; 8];
        let first = begin(&mut router, 1, 0, &prompt).endpoint;
        router.finished(NOW, RequestId(1), Finish::default());
        // What comes after the beginning makes no difference.
        prompt.push(7);
        assert_eq!(begin(&mut router, 1, 0, &prompt).endpoint, first);
        router.finished(NOW, RequestId(1), Finish::default());
        homes.push(first);
    }
    for endpoint in 0..4 {
        let own = homes.iter().filter(|home| home.0 == endpoint).count();
        assert!((2..=20).contains(&own), "{own} of 40 at {endpoint}");
    }
    // One that leaves moves its own only.
    router.leave(EndpointId(3)).expect("it is there");
    for (n, home) in (0..).zip(&homes) {
        let now = begin(&mut router, 1, 0, &[n; 8]).endpoint;
        router.finished(NOW, RequestId(1), Finish::default());
        assert!(now == *home || home.0 == 3);
    }
    // Forty at once that are alike: each gets at most 1.25 times the mean.
    for id in 0..40 {
        begin(&mut router, id, 0, &[5; 8]);
    }
    for endpoint in router.fleet().endpoints() {
        assert!(endpoint.outstanding().requests <= 17);
    }
}

#[test]
fn cache_aware_takes_the_longest_match_the_smallest_cache_or_the_shortest_queue() {
    let config = CacheAwareConfig {
        balance_abs: 3,
        ..CacheAwareConfig::default()
    };
    let mut router = router(PolicyConfig::CacheAware(config), 2);
    let prompt = |n: u32, len: usize| vec![n; len];
    let first = begin(&mut router, 0, 0, &prompt(1, 40));
    assert_eq!(
        (first.endpoint, first.reason),
        (EndpointId(0), Reason::LeastCost)
    );
    let second = begin(&mut router, 1, 0, &prompt(2, 8));
    assert_eq!(second.endpoint, EndpointId(1), "whose cache holds nothing");
    let third = begin(&mut router, 2, 0, &prompt(3, 8));
    assert_eq!(third.endpoint, EndpointId(1), "whose cache holds less");
    for id in 3..6 {
        let again = begin(&mut router, id, 0, &prompt(1, 40));
        assert_eq!((again.endpoint, again.cached_tokens), (EndpointId(0), 40));
        assert_eq!(again.reason, Reason::Cached);
    }
    for id in [1, 2] {
        router.finished(NOW, RequestId(id), Finish::default());
    }
    // Four are under way at one, none at the other.
    let balanced = begin(&mut router, 9, 0, &prompt(1, 40));
    assert_eq!(
        (balanced.endpoint, balanced.reason),
        (EndpointId(1), Reason::Backlog)
    );
}

#[test]
fn min_cost_weighs_what_is_cached_against_what_is_under_way() {
    let mut router = router(PolicyConfig::MinCost, 2);
    // 4.68 + 0.12 * 400 + ... = 53 ms.
    let long = vec![1; 400];
    assert_eq!(begin(&mut router, 0, 0, &long).endpoint, EndpointId(0));
    // There it would wait as long as computing it takes elsewhere; of equals the first.
    let again = begin(&mut router, 1, 0, &long);
    assert_eq!((again.endpoint, again.cached_tokens), (EndpointId(0), 400));
    // Another long one makes waiting dearer than computing.
    let other = vec![2; 500];
    assert_eq!(begin(&mut router, 2, 0, &other).endpoint, EndpointId(1));
    assert_eq!(begin(&mut router, 3, 0, &long).endpoint, EndpointId(0));
    let mut busy = vec![1; 400];
    busy.extend([3; 400]);
    assert_eq!(begin(&mut router, 4, 0, &busy).endpoint, EndpointId(0));
    assert_eq!(begin(&mut router, 5, 0, &long).endpoint, EndpointId(0));
    // Computing it where nothing is under way is done sooner than waiting.
    router.finished(NOW, RequestId(2), Finish::default());
    assert_eq!(begin(&mut router, 6, 0, &long).endpoint, EndpointId(1));
}
