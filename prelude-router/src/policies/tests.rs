use prelude_core::{RequestId, ServiceTime, Timestamp};
use proptest::prelude::*;

use crate::{
    CacheAwareConfig, E2Config, EndpointId, EndpointSpec, Finish, Pick, PolicyConfig, Prefix,
    PrefixHashConfig, Prompt, Reason, Root, RouteRequest, Router, RouterConfig, UserStickyConfig,
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
            pool: None,
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
        deadline: None,
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
    let picks = endpoints(&mut router, &[(0, &[1; 9]), (0, &[1; 2]), (0, &[1])]);
    let other = 1 - picks[0];
    // The third finds one request at each, and fewer tokens at the other endpoint.
    assert_eq!(picks[1..], [other, other]);
    router.finished(NOW, RequestId(1), Finish::default());
    router.finished(NOW, RequestId(2), Finish::default());
    assert_eq!(begin(&mut router, 9, 0, &[1]).endpoint, EndpointId(other));
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
    assert_eq!(first.reason, Reason::LeastCost);
    let other = EndpointId(1 - first.endpoint.0);
    let second = begin(&mut router, 1, 0, &prompt(2, 8));
    assert_eq!(second.endpoint, other, "the endpoint with the empty tree");
    let third = begin(&mut router, 2, 0, &prompt(3, 8));
    assert_eq!(third.endpoint, other, "the endpoint with the smaller tree");
    for id in 3..6 {
        let again = begin(&mut router, id, 0, &prompt(1, 40));
        assert_eq!((again.endpoint, again.cached_tokens), (first.endpoint, 40));
        assert_eq!(again.reason, Reason::Cached);
    }
    for id in [1, 2] {
        router.finished(NOW, RequestId(id), Finish::default());
    }
    // Four are under way at one, none at the other.
    let balanced = begin(&mut router, 9, 0, &prompt(1, 40));
    assert_eq!(
        (balanced.endpoint, balanced.reason),
        (other, Reason::Backlog)
    );
}

#[test]
fn min_cost_weighs_what_is_cached_against_what_is_under_way() {
    let mut router = router(PolicyConfig::MinCost, 2);
    // 4.68 + 0.12 * 400 + ... = 53 ms.
    let long = vec![1; 400];
    let home = begin(&mut router, 0, 0, &long).endpoint;
    let away = EndpointId(1 - home.0);
    // There it would wait as long as computing it takes elsewhere; of equals the idle one.
    let again = begin(&mut router, 1, 0, &long);
    assert_eq!((again.endpoint, again.cached_tokens), (away, 0));
    router.finished(NOW, RequestId(1), Finish::default());
    // Another long one makes waiting dearer than computing.
    let other = vec![2; 500];
    assert_eq!(begin(&mut router, 2, 0, &other).endpoint, away);
    let again = begin(&mut router, 3, 0, &long);
    assert_eq!((again.endpoint, again.cached_tokens), (home, 400));
    let mut busy = vec![1; 400];
    busy.extend([3; 400]);
    assert_eq!(begin(&mut router, 4, 0, &busy).endpoint, home);
    // Both cache it, and there is less to do where the other long one is.
    assert_eq!(begin(&mut router, 5, 0, &long).endpoint, away);
}

/// Every policy, each as a gateway would configure it.
fn policies() -> [PolicyConfig; 7] {
    [
        PolicyConfig::E2(E2Config::default()),
        PolicyConfig::RoundRobin,
        PolicyConfig::LeastOutstanding,
        PolicyConfig::PrefixHash(PrefixHashConfig::default()),
        PolicyConfig::CacheAware(CacheAwareConfig::default()),
        PolicyConfig::MinCost,
        PolicyConfig::UserSticky(UserStickyConfig::default()),
    ]
}

/// Routes `requests` prompts of `len` tokens that share nothing, with `under_way` of them open at
/// any time, and returns how many each endpoint got.
fn spread(
    policy: PolicyConfig,
    endpoints: usize,
    requests: u64,
    len: usize,
    under_way: u64,
) -> Vec<u64> {
    let mut router = router(policy, endpoints);
    let mut counts = vec![0; endpoints];
    for id in 0..requests {
        if let Some(done) = id.checked_sub(under_way + 1) {
            router.finished(NOW, RequestId(done), Finish::default());
        }
        let first = u32::try_from(id).expect("few requests");
        let tokens = vec![first; len];
        counts[begin(&mut router, id, id, &tokens).endpoint.0 as usize] += 1;
    }
    counts
}

#[test]
fn unmatched_prompts_spread_when_caches_are_full() {
    for policy in policies() {
        // Each prompt takes a twentieth of a cache: the first 80 of 1,000 fill all four.
        let counts = spread(policy.clone(), 4, 1000, 200, 8);
        let most = counts.iter().max().expect("four endpoints");
        assert!(*most <= 400, "{policy:?}: {counts:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Requests of equal cost that share nothing: no policy has a reason to prefer an endpoint.
    #[test]
    fn no_policy_prefers_an_endpoint_without_a_reason(
        endpoints in 2..9usize,
        // A granule at the least: shorter prompts are one and the same to a hash of granules.
        len in 4..300usize,
        under_way in 0..40u64,
    ) {
        for policy in policies() {
            let requests = 200 * endpoints as u64;
            let counts = spread(policy.clone(), endpoints, requests, len, under_way);
            // A ring of 64 points each is the least even: twice the mean, and half of it.
            let fair = counts.iter().all(|count| (50..=450).contains(count));
            prop_assert!(fair, "{:?}: {:?}", policy, counts);
        }
    }
}
