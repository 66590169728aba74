use proptest::prelude::*;

use super::*;
use crate::{
    CacheAwareConfig, Cost, E2Config, LapsConfig, PolicyConfig, PrefixHashConfig, Prompt, Root,
    UserStickyConfig,
};

fn spec() -> EndpointSpec {
    EndpointSpec {
        kv_capacity_tokens: 4096,
        service: prelude_core::ServiceTime::default(),
        pool: None,
    }
}

fn router(policy: PolicyConfig, endpoints: usize) -> Router {
    let config = RouterConfig {
        policy,
        ..RouterConfig::default()
    };
    with(config, endpoints)
}

fn with(config: RouterConfig, endpoints: usize) -> Router {
    let mut router = Router::new(config).expect("a good config");
    for _ in 0..endpoints {
        router.join(Timestamp::ZERO, spec()).expect("a good spec");
    }
    router
}

fn prefix(tokens: &[u32]) -> Prefix {
    Prefix::new(Root(1), Prompt::Tokens(tokens), 64)
}

fn request(id: u64, prefix: &Prefix) -> RouteRequest<'_> {
    RouteRequest {
        id: RequestId(id),
        prefix,
        max_output_tokens: Some(1),
        user: Some(id % 5),
        sheddable: true,
        subset: None,
        deadline: None,
    }
}

fn ms(ms: u64) -> Timestamp {
    Timestamp::from_nanos(ms * 1_000_000)
}

/// Every policy that a config can name.
fn policies() -> Vec<PolicyConfig> {
    vec![
        PolicyConfig::E2(E2Config::default()),
        PolicyConfig::RoundRobin,
        PolicyConfig::LeastOutstanding,
        PolicyConfig::PrefixHash(PrefixHashConfig::default()),
        PolicyConfig::CacheAware(CacheAwareConfig::default()),
        PolicyConfig::MinCost,
        PolicyConfig::UserSticky(UserStickyConfig { max_users: 3 }),
        PolicyConfig::Laps(LapsConfig::default()),
    ]
}

#[test]
fn a_request_without_an_eligible_endpoint_is_refused() {
    let mut router = router(PolicyConfig::default(), 0);
    let tokens = prefix(&[1, 2, 3]);
    let none = router.route(ms(0), &request(1, &tokens));
    assert_eq!(none, Err(RouteError::NoEndpoint { endpoints: 0 }));
    let a = router.join(ms(0), spec()).expect("a good spec");
    let b = router.join(ms(0), spec()).expect("a good spec");
    router.set_healthy(a, false).expect("it is there");
    let only_a = RouteRequest {
        subset: Some(&[a]),
        ..request(1, &tokens)
    };
    let none = router.route(ms(0), &only_a);
    assert_eq!(none, Err(RouteError::NoEndpoint { endpoints: 2 }));
    let pick = router
        .route(ms(0), &request(1, &tokens))
        .expect("b is there");
    assert_eq!((pick.endpoint, pick.fallbacks.len()), (b, 0));
    assert_eq!(
        router.leave(EndpointId(9)),
        Err(UnknownEndpoint(EndpointId(9)))
    );
}

#[test]
fn prompts_in_granules_of_another_size_are_refused() {
    let mut router = router(PolicyConfig::default(), 1);
    let small = Prefix::new(Root(1), Prompt::Tokens(&[1; 100]), 16);
    let refused = router.route(ms(0), &request(1, &small));
    let (granule, own) = (16, 64);
    assert_eq!(refused, Err(RouteError::Granule { granule, own }));
}

#[test]
fn a_cache_that_holds_less_is_thought_to_hold_less() {
    let with_index = [
        PolicyConfig::E2(E2Config::default()),
        PolicyConfig::CacheAware(CacheAwareConfig::default()),
        PolicyConfig::MinCost,
        PolicyConfig::Laps(LapsConfig::default()),
    ];
    for policy in with_index {
        let mut router = router(policy.clone(), 1);
        let only = router.fleet().endpoints()[0].id();
        let mut next = 0;
        let mut cached = |router: &mut Router, start: u32| {
            next += 1;
            let tokens = prefix(&(start..start + 256).collect::<Vec<_>>());
            let pick = router
                .route(ms(next), &request(next, &tokens))
                .expect("a pick");
            router.finished(ms(next), RequestId(next), Finish::default());
            pick.cached_tokens
        };
        assert_eq!(cached(&mut router, 0), 0);
        assert_eq!(cached(&mut router, 1_000), 0);
        assert_eq!(cached(&mut router, 1_000), 256, "{policy:?}");
        // The older prompt and half of the newer one are gone.
        router.cache_holds(only, 128).expect("it is there");
        assert_eq!(cached(&mut router, 1_000), 128, "{policy:?}");
        assert_eq!(cached(&mut router, 0), 0, "{policy:?}");
        router.cache_holds(only, 0).expect("it is there");
        assert_eq!(cached(&mut router, 1_000), 0, "{policy:?}");
        // A prompt that is under way is going to be stored.
        let tokens = prefix(&(5_000..5_256).collect::<Vec<_>>());
        { router.route(ms(99), &request(99, &tokens)) }.expect("a pick");
        router.cache_holds(only, 0).expect("it is there");
        assert_eq!(cached(&mut router, 5_000), 256, "{policy:?}");
    }
    let mut router = router(PolicyConfig::MinCost, 1);
    let gone = router.fleet().endpoints()[0].id();
    router.leave(gone).expect("it is there");
    assert_eq!(router.cache_holds(gone, 1), Err(UnknownEndpoint(gone)));
}

#[test]
fn requests_end_once() {
    let mut router = router(PolicyConfig::LeastOutstanding, 2);
    let tokens = prefix(&[0; 100]);
    let pick = router
        .route(ms(0), &request(1, &tokens))
        .expect("somebody is there");
    let again = router.route(ms(0), &request(1, &tokens));
    assert_eq!(again, Err(RouteError::Duplicate(RequestId(1))));
    let at = |router: &Router, id| router.fleet().get(id).expect("it is there").outstanding();
    assert_eq!(
        (
            at(&router, pick.endpoint).requests,
            at(&router, pick.endpoint).tokens
        ),
        (1, 100)
    );
    assert!(router.finished(ms(1), RequestId(1), Finish::default()));
    assert!(!router.finished(ms(1), RequestId(1), Finish::default()));
    assert_eq!(at(&router, pick.endpoint), Default::default());
}

#[test]
fn who_really_served_is_charged() {
    for policy in policies() {
        let mut router = router(policy, 2);
        let tokens = prefix(&[0; 200]);
        let pick = router
            .route(ms(0), &request(1, &tokens))
            .expect("somebody is there");
        let other = pick.fallbacks[0];
        assert!(router.served(RequestId(1), other));
        assert!(!router.served(RequestId(2), other));
        assert!(!router.served(RequestId(1), EndpointId(7)));
        let outstanding = |id| {
            router
                .fleet()
                .get(id)
                .expect("it is there")
                .outstanding()
                .requests
        };
        assert_eq!((outstanding(pick.endpoint), outstanding(other)), (0, 1));
    }
}

#[test]
fn requests_that_never_end_time_out() {
    let mut router = with(
        RouterConfig {
            policy: PolicyConfig::RoundRobin,
            request_timeout_ms: 10,
            max_in_flight: 2,
            ..RouterConfig::default()
        },
        1,
    );
    let tokens = prefix(&[0; 10]);
    for id in 0..2 {
        router
            .route(ms(0), &request(id, &tokens))
            .expect("there is room");
    }
    let full = router.route(ms(10), &request(2, &tokens));
    assert_eq!(full, Err(RouteError::TooMany { most: 2 }));
    router
        .route(ms(11), &request(2, &tokens))
        .expect("the first two are overdue");
    assert_eq!(router.fleet().in_flight(), 1);
}

#[test]
fn an_id_that_is_used_again_is_overdue_from_its_own_beginning_on() {
    let config = RouterConfig {
        request_timeout_ms: 10,
        ..RouterConfig::default()
    };
    let mut router = with(config, 1);
    let tokens = prefix(&[0; 10]);
    let end = |router: &mut Router, at, id| {
        assert!(router.finished(ms(at), RequestId(id), Finish::default()));
    };
    for (at, id) in [(12, 1), (13, 2)] {
        router
            .route(ms(at), &request(id, &tokens))
            .expect("there is room");
    }
    end(&mut router, 14, 2);
    router
        .route(ms(20), &request(2, &tokens))
        .expect("it has ended");
    end(&mut router, 21, 1);
    router
        .route(ms(24), &request(3, &tokens))
        .expect("there is room");
    assert_eq!(router.fleet().in_flight(), 2);
}

#[test]
fn only_what_may_be_shed_is_shed_and_only_if_all_are_busy() {
    let mut router = with(
        RouterConfig {
            policy: PolicyConfig::LeastOutstanding,
            shed_ms: Some(30),
            ..RouterConfig::default()
        },
        2,
    );
    let tokens = prefix(&[0; 10]);
    for id in 0..4 {
        // 22 ms each, two for each endpoint.
        router
            .route(ms(0), &request(id, &tokens))
            .expect("one has less than 30 ms to do");
    }
    let shed = router.route(ms(0), &request(4, &tokens));
    let least_ms = 44;
    assert_eq!(
        shed,
        Err(RouteError::Overloaded {
            least_ms,
            shed_ms: 30
        })
    );
    let kept = RouteRequest {
        sheddable: false,
        ..request(4, &tokens)
    };
    router.route(ms(0), &kept).expect("it must not be shed");
}

#[test]
fn costs_follow_what_requests_took() {
    let mut router = router(PolicyConfig::MinCost, 1);
    let prefixes: Vec<_> = (0..200).map(|n| prefix(&vec![7; 500 + n])).collect();
    let id = EndpointId(0);
    let service = |router: &Router| *router.fleet().get(id).expect("it is there").service();
    let said = Cost::of_prefill(&service(&router), 2000, 2000);
    for n in 0..200 {
        router
            .route(ms(n), &request(n, &prefixes[n as usize]))
            .expect("it is there");
        let took = Cost::of_prefill(&service(&router), 500 + n as u32, 500 + n as u32);
        let twice = Duration::from_nanos(2 * took.0.min(said.0) as u64);
        let finish = Finish {
            prefill: Some((twice, 0)),
            ..Finish::default()
        };
        router.finished(ms(n), RequestId(n), finish);
    }
    let now = Cost::of_prefill(&service(&router), 2000, 2000);
    assert!(now > Cost(said.0 * 3 / 2), "{now:?} after {said:?}");
    assert!(now <= Cost(said.0 * 2 + 1), "no further than the clamp");
}

#[derive(Clone, Debug)]
enum Step {
    Route {
        prompt: Vec<u8>,
        output: Option<u32>,
        subset: Option<usize>,
    },
    Finish(usize),
    Serve(usize, usize),
    Wait(u64),
    Join,
    Leave(usize),
    Health(usize, bool),
    CacheHolds(usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let prompt = prop::collection::vec(0..3u8, 0..8);
    let output = prop::option::of(0..50u32);
    let subset = prop::option::weighted(0.1, 0..4usize);
    prop_oneof![
        8 => (prompt, output, subset)
            .prop_map(|(prompt, output, subset)| Step::Route { prompt, output, subset }),
        5 => (0..20usize).prop_map(Step::Finish),
        1 => (0..20usize, 0..4usize).prop_map(|(n, e)| Step::Serve(n, e)),
        3 => (0..40_000u64).prop_map(Step::Wait),
        1 => Just(Step::Join),
        1 => (0..4usize).prop_map(Step::Leave),
        1 => (0..4usize, any::<bool>()).prop_map(|(e, h)| Step::Health(e, h)),
        1 => (0..4usize, 0..600u64).prop_map(|(e, t)| Step::CacheHolds(e, t)),
    ]
}

/// Plays `steps`, and returns every pick.
fn play(policy: &PolicyConfig, steps: &[Step]) -> Vec<Result<Pick, RouteError>> {
    let mut router = with(
        RouterConfig {
            policy: policy.clone(),
            max_nodes: 32,
            request_timeout_ms: 60_000,
            ..RouterConfig::default()
        },
        3,
    );
    let (mut now, mut next, mut open) = (0, 0, Vec::new());
    let mut picks = Vec::new();
    let id_of = |router: &Router, n: usize| {
        let endpoints = router.fleet().endpoints();
        endpoints.get(n % endpoints.len().max(1)).map(|e| e.id())
    };
    for step in steps {
        match step {
            Step::Route {
                prompt,
                output,
                subset,
            } => {
                let tokens: Vec<u32> = prompt.iter().flat_map(|&n| [u32::from(n); 64]).collect();
                let tokens = prefix(&tokens);
                next += 1;
                let only = subset.and_then(|n| id_of(&router, n)).map(|id| [id]);
                let request = RouteRequest {
                    max_output_tokens: *output,
                    subset: only.as_ref().map(|only| &only[..]),
                    ..request(next, &tokens)
                };
                let pick = router.route(ms(now), &request);
                if let Ok(pick) = &pick {
                    open.push(next);
                    let at = router
                        .fleet()
                        .get(pick.endpoint)
                        .expect("it is one of them");
                    assert!(at.is_healthy());
                    assert!(only.is_none_or(|[only]| only == pick.endpoint));
                    assert!(!pick.fallbacks.contains(&pick.endpoint));
                    assert!(pick.cached_tokens <= pick.prompt_tokens);
                }
                picks.push(pick);
            }
            Step::Finish(n) if !open.is_empty() => {
                let id = open.swap_remove(n % open.len());
                let finish = Finish {
                    output_tokens: Some(*n as u32),
                    first_token: None,
                    prefill: Some((Duration::from_millis(30 * *n as u64), *n as u32)),
                };
                router.finished(ms(now), RequestId(id), finish);
            }
            Step::Serve(n, endpoint) if !open.is_empty() => {
                if let Some(endpoint) = id_of(&router, *endpoint) {
                    router.served(RequestId(open[n % open.len()]), endpoint);
                }
            }
            Step::Finish(_) | Step::Serve(..) => {}
            Step::Wait(by) => now += by,
            Step::Join => {
                router.join(ms(now), spec()).expect("a good spec");
            }
            Step::Leave(n) => {
                if let Some(id) = id_of(&router, *n) {
                    router.leave(id).expect("it is there");
                }
            }
            Step::Health(n, healthy) => {
                if let Some(id) = id_of(&router, *n) {
                    router.set_healthy(id, *healthy).expect("it is there");
                }
            }
            Step::CacheHolds(n, tokens) => {
                if let Some(id) = id_of(&router, *n) {
                    router.cache_holds(id, *tokens).expect("it is there");
                }
            }
        }
        assert!(router.index_nodes().0 <= 32);
    }
    // Whatever happened, nothing is left once everything has ended.
    for id in open {
        router.finished(ms(now), RequestId(id), Finish::default());
    }
    assert_eq!(router.fleet().in_flight(), 0);
    for endpoint in router.fleet().endpoints() {
        assert_eq!(endpoint.outstanding(), Default::default());
    }
    picks
}

proptest! {
    #[test]
    fn the_same_calls_give_the_same_picks_and_the_books_balance(
        policy in prop::sample::select(policies()),
        steps in prop::collection::vec(step(), 1..150),
    ) {
        prop_assert_eq!(play(&policy, &steps), play(&policy, &steps));
    }
}
