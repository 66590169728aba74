use prelude_core::{RequestId, ServiceTime};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    EndpointSpec, Finish, Pick, PolicyConfig, Prefix, Prompt, Root, RouteRequest, Router,
    RouterConfig,
};

const GRANULE: u32 = 4;
/// One millisecond for each uncached token, so that costs are easy to add.
const SERVICE: ServiceTime = ServiceTime {
    floor_ms: 0.0,
    base_ms: 0.0,
    per_token_ms: 1.0,
    per_pair_ms: 0.0,
    decode_ms: 1.0,
    per_cached_ms: 0.0,
};

fn ms(ms: u64) -> Timestamp {
    Timestamp::from_nanos(ms * 1_000_000)
}

/// A router in which prompts of at most 20 uncached tokens are short.
struct World {
    router: Router,
    ids: Vec<EndpointId>,
    next: u64,
}

impl World {
    fn new(config: LapsConfig, labels: &[Option<Pool>]) -> Self {
        let config = RouterConfig {
            policy: PolicyConfig::Laps(LapsConfig {
                short_tokens: 20,
                ..config
            }),
            granule_tokens: GRANULE,
            fit: None,
            ..RouterConfig::default()
        };
        let mut world = Self {
            router: Router::new(config).expect("a good config"),
            ids: Vec::new(),
            next: 0,
        };
        for &label in labels {
            world.join(0, label);
        }
        world
    }

    fn of(endpoints: usize) -> Self {
        Self::new(LapsConfig::default(), &vec![None; endpoints])
    }

    fn join(&mut self, at: u64, pool: Option<Pool>) {
        let spec = EndpointSpec {
            kv_capacity_tokens: 4000,
            service: SERVICE,
            pool,
        };
        let id = self.router.join(ms(at), spec).expect("a good spec");
        self.ids.push(id);
    }

    /// Routes a prompt and returns the request's number with its pick.
    fn route(&mut self, at: u64, prompt: &[u32], due: Option<u64>) -> (u64, Pick) {
        let prefix = Prefix::new(Root(1), Prompt::Tokens(prompt), GRANULE);
        self.next += 1;
        let request = RouteRequest {
            id: RequestId(self.next),
            prefix: &prefix,
            max_output_tokens: Some(1),
            user: None,
            sheddable: false,
            subset: None,
            deadline: due.map(ms),
        };
        let pick = self.router.route(ms(at), &request).expect("an endpoint");
        (self.next, pick)
    }

    /// Routes a new prompt of so many tokens, and returns its endpoint.
    fn fresh(&mut self, at: u64, tokens: usize) -> EndpointId {
        let stream = u32::try_from(self.next).expect("few requests") + 1000;
        self.route(at, &vec![stream; tokens], None).1.endpoint
    }

    fn finish(&mut self, at: u64, request: u64) {
        let request = RequestId(request);
        assert!(self.router.finished(ms(at), request, Finish::default()));
    }

    fn pool(&self, id: EndpointId) -> Pool {
        self.router.pool(id).expect("it is in a pool")
    }

    /// The number of endpoints in the pool for short requests.
    fn short(&self) -> usize {
        let pools = self.ids.iter().map(|&id| self.pool(id));
        pools.filter(|pool| *pool == Pool::Short).count()
    }
}

#[test]
fn endpoints_join_the_smaller_pool_or_the_one_of_their_label() {
    let world = World::of(5);
    assert_eq!(world.short(), 3);
    let world = World::new(
        LapsConfig::default(),
        &[Some(Pool::Long), Some(Pool::Long), None],
    );
    assert_eq!(world.short(), 1);
    let router = Router::new(RouterConfig::default()).expect("a good config");
    assert_eq!(router.pool(EndpointId(0)), None, "E2 has no pools");
}

#[test]
fn requests_go_to_the_pool_of_their_uncached_length() {
    let mut world = World::of(4);
    for at in 0..10 {
        let short = world.fresh(at, 20);
        assert_eq!(world.pool(short), Pool::Short);
    }
    let mut world = World::of(4);
    let long = world.fresh(0, 100);
    assert_eq!(world.pool(long), Pool::Long);
}

#[test]
fn a_short_turn_goes_to_the_history_that_only_the_other_pool_caches() {
    // The work that the endpoint with the history gets beside it, when the turn is due, and the
    // pool that the turn goes to.
    let check = |work: usize, due: Option<u64>, expected| {
        let mut world = World::of(2);
        let mut turn: Vec<u32> = vec![7; 100];
        let (_, history) = world.route(0, &turn, None);
        assert_eq!(world.pool(history.endpoint), Pool::Long);
        if work > 0 {
            assert_eq!(world.fresh(0, work), history.endpoint);
        }
        turn.extend([8; 12]);
        let (request, pick) = world.route(0, &turn, due);
        assert_eq!(world.pool(pick.endpoint), expected, "{work} {due:?}");
        let cached = if expected == Pool::Long { 100 } else { 0 };
        assert_eq!(pick.cached_tokens, cached);
        // From then on its own pool caches it, too, if it went there.
        world.finish(1, request);
        let (_, again) = world.route(2, &turn, due);
        assert_eq!(again.endpoint, pick.endpoint);
        assert_eq!((again.cached_tokens, again.reason), (112, Reason::Cached));
    };
    check(0, None, Pool::Long);
    check(200, None, Pool::Long);
    // Late there, and in time in its own pool.
    check(300, None, Pool::Short);
    check(300, Some(500), Pool::Long);
    // Late in both.
    check(0, Some(50), Pool::Short);
}

#[test]
fn an_only_endpoint_serves_both_pools() {
    let mut world = World::of(1);
    let only = world.ids[0];
    assert_eq!([world.fresh(0, 10), world.fresh(0, 200)], [only, only]);
}

#[test]
fn a_request_leaves_a_pool_that_would_miss_its_deadline() {
    let mut world = World::of(2);
    // The endpoint for short requests has 200 ms to do.
    for _ in 0..10 {
        world.fresh(0, 20);
    }
    let in_time = world.route(0, &[1; 16], Some(220)).1;
    assert_eq!(world.pool(in_time.endpoint), Pool::Short);
    let rescued = world.route(0, &[2; 16], Some(100)).1;
    assert_eq!(
        (world.pool(rescued.endpoint), rescued.reason),
        (Pool::Long, Reason::Backlog)
    );
    // Too late everywhere: it stays in its own pool.
    let lost = world.route(0, &[3; 16], Some(10)).1;
    assert_eq!(world.pool(lost.endpoint), Pool::Short);
}

#[test]
fn late_answers_move_an_endpoint_and_the_labelled_stay() {
    let labels = [Some(Pool::Short), None, Some(Pool::Long), None];
    let mut world = World::new(LapsConfig::default(), &labels);
    assert_eq!(world.short(), 2);
    // Long requests come late, short ones do not come at all.
    let mut at = 0;
    while at <= 12_000 {
        let stream = u32::try_from(at).expect("small") + 1;
        let (request, _) = world.route(at, &[stream; 30], None);
        world.finish(at + 500, request);
        at += 600;
    }
    assert_eq!(world.short(), 1, "the labelled endpoint stays");
    assert_eq!(world.pool(world.ids[0]), Pool::Short);
    assert_eq!(world.pool(world.ids[1]), Pool::Long);
}

#[test]
fn answers_in_time_and_unequal_lengths_of_outputs_move_nothing() {
    let mut world = World::of(4);
    for n in 0..40u64 {
        let stream = u32::try_from(n).expect("small") + 1;
        let (request, _) = world.route(n * 600, &[stream; 30], None);
        // The first token came in time, the last one a minute later.
        let finish = Finish {
            first_token: Some(Duration::from_millis(40)),
            ..Finish::default()
        };
        let end = ms(n * 600 + 60_000);
        assert!(world.router.finished(end, RequestId(request), finish));
    }
    assert_eq!(world.short(), 2);
}

#[test]
fn a_pool_without_a_healthy_endpoint_gets_one() {
    let mut world = World::of(4);
    for id in world.ids.clone() {
        if world.pool(id) == Pool::Short {
            world.router.set_healthy(id, false).expect("it is there");
        }
    }
    let first = world.fresh(0, 10);
    assert_eq!(world.pool(first), Pool::Long, "others serve until then");
    world.fresh(1_000, 10);
    let moved = world.fresh(1_001, 10);
    assert_eq!(world.pool(moved), Pool::Short);
}

/// Something that happens to the router.
#[derive(Clone, Copy, Debug)]
enum Step {
    Route {
        tokens: usize,
        stream: u32,
        due_ms: u64,
    },
    Finish,
    Join(Option<Pool>),
    Leave(usize),
    Health(usize, bool),
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let pool = prop_oneof![Just(None), Just(Some(Pool::Short)), Just(Some(Pool::Long))];
    let route = (1..200usize, 0..9u32, 1..2_000u64);
    let route = route.prop_map(|(tokens, stream, due_ms)| Step::Route {
        tokens,
        stream,
        due_ms,
    });
    let step = prop_oneof![
        20 => route,
        15 => Just(Step::Finish),
        2 => pool.prop_map(Step::Join),
        1 => (0..9usize).prop_map(Step::Leave),
        2 => (0..9usize, any::<bool>()).prop_map(|(at, is_healthy)| Step::Health(at, is_healthy)),
    ];
    vec((0..900u64, step), 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever happens: every request gets a healthy endpoint if there is one, an endpoint is
    /// moved alone and a cool-down after the one before, labels hold, and the pool that gives an
    /// endpoint keeps a healthy one.
    #[test]
    fn pools_hold_their_rules(endpoints in 0..7usize, steps in steps()) {
        let config = LapsConfig { cool_down_ms: 3_000, hysteresis: 0.0, ..LapsConfig::default() };
        let mut world = World::new(config, &vec![None; endpoints]);
        let mut bound: Vec<(EndpointId, Pool)> = Vec::new();
        let (mut now, mut last_move) = (0, None::<u64>);
        let mut open = std::collections::VecDeque::new();
        for (wait, step) in steps {
            now += wait;
            let before: Vec<_> = world.ids.iter().map(|&id| (id, world.pool(id))).collect();
            match step {
                Step::Route { tokens, stream, due_ms } => {
                    let healthy = world.router.fleet().endpoints().iter().any(|e| e.is_healthy());
                    if !healthy {
                        continue;
                    }
                    let (request, pick) = world.route(now, &vec![stream; tokens], Some(now + due_ms));
                    let picked = world.router.fleet().get(pick.endpoint);
                    prop_assert!(picked.is_some_and(|e| e.is_healthy()));
                    open.push_back((request, pick.endpoint));
                }
                Step::Finish => {
                    if let Some((request, _)) = open.pop_front() {
                        world.finish(now, request);
                    }
                    continue;
                }
                Step::Join(label) => {
                    world.join(now, label);
                    bound.extend(world.ids.last().copied().zip(label));
                    continue;
                }
                Step::Leave(at) => {
                    if at < world.ids.len() {
                        let id = world.ids.remove(at);
                        open.retain(|(_, endpoint)| *endpoint != id);
                        bound.retain(|(other, _)| *other != id);
                        world.router.leave(id).expect("it is there");
                    }
                    continue;
                }
                Step::Health(at, is_healthy) => {
                    if let Some(&id) = world.ids.get(at) {
                        world.router.set_healthy(id, is_healthy).expect("it is there");
                    }
                    continue;
                }
            }
            let moved: Vec<_> = before.iter().filter(|(id, pool)| world.pool(*id) != *pool).collect();
            prop_assert!(moved.len() <= 1, "{:?} moved at once", moved);
            for (id, pool) in &bound {
                prop_assert_eq!(world.pool(*id), *pool);
            }
            if let [(_, giver)] = moved[..] {
                prop_assert!(last_move.is_none_or(|last| now - last >= 3_000));
                last_move = Some(now);
                let fleet = world.router.fleet();
                let left = fleet.endpoints().iter();
                let left = left.filter(|e| e.is_healthy() && world.pool(e.id()) == *giver);
                prop_assert!(left.count() >= 1, "{:?} has no endpoint left", giver);
            }
        }
    }
}
