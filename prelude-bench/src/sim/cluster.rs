//! Several engines, and who sends which request where.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    ops::Range,
    time::Duration,
};

use anyhow::{Result, ensure};
use prelude_core::Timestamp;
use prelude_sched::ConfigError;

use super::{Arrival, Engine, EngineConfig, Record, Workload, serves::Serves};

/// Sends requests to engines.
///
/// It is called in the order in which things happen. Each request is routed once, and then either
/// finished or refused once, so a router may keep books by the index of a request.
pub trait Route {
    /// Returns the engine for a request that comes now, below the number of engines; `tokens` is
    /// its prompt spelled out. `request` is its index in the workload.
    ///
    /// # Errors
    /// If there is none: the simulation ends then.
    fn route(
        &mut self,
        now: Timestamp,
        request: usize,
        arrival: &Arrival,
        tokens: &[u32],
    ) -> Result<usize>;

    /// Notes that an engine is done with a request.
    fn finished(&mut self, now: Timestamp, engine: usize, record: &Record);

    /// Notes that an engine does not take a request and never will: as if the request had not been
    /// routed.
    fn refused(&mut self, now: Timestamp, engine: usize, request: usize);
}

/// The outcome of a workload.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// Requests that were answered, in the order in which they ended.
    pub records: Vec<Record>,
    /// Requests that fit no engine.
    pub refused: usize,
    /// The busy time of each engine.
    pub busy: Vec<Duration>,
    /// The time at which the last request ended.
    pub end: Timestamp,
    /// Steps of all engines.
    pub steps: u64,
    /// The number of times that a generation lost its blocks to an older one.
    pub preemptions: u64,
}

/// An event of the simulation. Events of the same time happen in the order in which they were
/// scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    /// A step of an engine ends, or the engine wants to be asked again for one.
    Engine(usize),
}

/// Happenings by time, and by the order in which they were added.
#[derive(Debug, Default)]
struct Queue {
    heap: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    added: u64,
}

impl Queue {
    fn add(&mut self, at: Timestamp, happening: Event) {
        self.heap.push(Reverse((at, self.added, happening)));
        self.added += 1;
    }

    fn pop(&mut self) -> Option<(Timestamp, Event)> {
        let Reverse((at, _, happening)) = self.heap.pop()?;
        Some((at, happening))
    }

    fn next_at(&self) -> Option<Timestamp> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }
}

/// Runs a workload on `engines` engines of a kind until all of it is done. `done` is called for
/// each request that ends.
///
/// Requests that come at the same time are all there before an engine starts a step.
///
/// # Errors
/// If an engine cannot be built, fails a request, or a router names one that does not exist.
pub fn run(
    workload: &Workload,
    engines: usize,
    config: &EngineConfig,
    route: &mut dyn Route,
    done: impl FnMut(),
) -> Result<Served> {
    ensure!(engines > 0, "a cluster has at least one engine");
    let slowdown = |at| if at == 0 { config.slow_first } else { 1.0 };
    let built: Result<Vec<_>, _> = (0..engines)
        .map(|at| Ok::<_, ConfigError>(Engine::new(config)?.slowed(slowdown(at))))
        .collect();
    drive(workload, built?, route, done)
}

/// Runs a workload on engines that are there, as [`run`] does.
///
/// # Errors
/// If an engine fails a request, or a router names one that does not exist.
pub(super) fn drive(
    workload: &Workload,
    mut engines: Vec<impl Serves>,
    route: &mut dyn Route,
    mut done: impl FnMut(),
) -> Result<Served> {
    let mut queue = Queue::default();
    let mut unsent = send_first(workload, &mut queue);
    let mut run = Served::default();
    // Engines to which something happened at this time.
    let mut touched = BTreeSet::new();
    while let Some((now, happening)) = queue.pop() {
        // In a closed loop the client of a request that ends sends the next one.
        let mut ended = |queue: &mut Queue| {
            done();
            if let Some(request) = unsent.next() {
                queue.add(now, Event::Arrival(request));
            }
        };
        match happening {
            Event::Arrival(request) => {
                let arrival = &workload.arrivals[request];
                let mut tokens = Vec::new();
                arrival.prompt.tokens(&mut tokens);
                let to = route.route(now, request, arrival, &tokens)?;
                ensure!(to < engines.len(), "there is no engine {to} to route to");
                if engines[to].submit(now, request, arrival, tokens) {
                    touched.insert(to);
                } else {
                    route.refused(now, to, request);
                    run.refused += 1;
                    ended(&mut queue);
                }
            }
            Event::Engine(engine) => {
                let before = run.records.len();
                engines[engine].finish(now, &mut run.records)?;
                for record in &run.records[before..] {
                    route.finished(now, engine, record);
                    ended(&mut queue);
                }
                if run.records.len() > before {
                    run.end = now;
                }
                touched.insert(engine);
            }
        }
        if queue.next_at() == Some(now) {
            continue;
        }
        while let Some(engine) = touched.pop_first() {
            if let Some(next) = engines[engine].start(now) {
                queue.add(next, Event::Engine(engine));
            }
        }
    }
    let answered = run.records.len() + run.refused;
    assert_eq!(answered, workload.arrivals.len(), "requests were lost");
    for engine in &engines {
        let (steps, preemptions) = engine.steps_and_preemptions();
        run.busy.push(engine.busy());
        run.steps += steps;
        run.preemptions += preemptions;
    }
    Ok(run)
}

/// Adds the arrivals that depend on no answer, and returns the requests of a closed loop that are
/// sent later.
fn send_first(workload: &Workload, queue: &mut Queue) -> Range<usize> {
    let all = workload.arrivals.len();
    let Some(clients) = workload.clients else {
        for (i, arrival) in workload.arrivals.iter().enumerate() {
            queue.add(arrival.at, Event::Arrival(i));
        }
        return all..all;
    };
    let first = clients.min(all);
    for i in 0..first {
        queue.add(Timestamp::ZERO, Event::Arrival(i));
    }
    first..all
}

#[cfg(test)]
mod tests {
    use prelude_sched::PolicyConfig;

    use super::*;
    use crate::sim::{Kind, Order, Preset, Prompt, Setting, hit_ceiling};

    /// One engine after another.
    #[derive(Clone, Debug)]
    struct RoundRobin {
        engines: usize,
        next: usize,
    }

    impl RoundRobin {
        const fn new(engines: usize) -> Self {
            Self { engines, next: 0 }
        }
    }

    impl Route for RoundRobin {
        fn route(&mut self, _: Timestamp, _: usize, _: &Arrival, _: &[u32]) -> Result<usize> {
            let engine = self.next;
            self.next = (engine + 1) % self.engines;
            Ok(engine)
        }

        fn finished(&mut self, _: Timestamp, _: usize, _: &Record) {}

        fn refused(&mut self, _: Timestamp, _: usize, _: usize) {}
    }

    fn config(policy: PolicyConfig) -> EngineConfig {
        EngineConfig::new(Preset::Mistral7bA6000, policy)
    }

    fn round_robin(workload: &Workload, engines: usize, config: &EngineConfig) -> Served {
        run(
            workload,
            engines,
            config,
            &mut RoundRobin::new(engines),
            || (),
        )
        .unwrap()
    }

    fn hits(run: &Served) -> u64 {
        run.records.iter().map(|r| r.cached_tokens).sum()
    }

    /// Returns a few hundred requests of a workload.
    fn few(kind: Kind, order: Order, seed: u64) -> Workload {
        let setting = Setting {
            requests: (kind != Kind::Posts).then_some(200),
            prefixes: Some(8),
            order,
            seed,
            ..Setting::default()
        };
        let mut workload = kind.generate(&setting).unwrap();
        workload.arrivals.truncate(200);
        workload
    }

    #[test]
    fn no_run_has_more_hits_than_an_infinite_cache() {
        let policies = [
            PolicyConfig::Fcfs,
            PolicyConfig::Srjf,
            PolicyConfig::Groups,
            PolicyConfig::Laps,
            PolicyConfig::RoundRobin,
        ];
        for policy in policies {
            let kinds = [
                Kind::Toolbench,
                Kind::Agent,
                Kind::Programming,
                Kind::Video,
                Kind::Posts,
                Kind::Conversation,
            ];
            for kind in kinds {
                let workload = few(kind, Order::Shuffled, 1);
                for engines in [1, 3] {
                    let run = round_robin(&workload, engines, &config(policy));
                    let share = hits(&run) as f64 / workload.prompt_tokens() as f64;
                    let ceiling = hit_ceiling(&workload, 16);
                    assert!(share <= ceiling, "{kind:?}: {share} above {ceiling}");
                    // One engine with room for everything comes near.
                    let roomy = kind == Kind::Toolbench && engines == 1;
                    assert!(!roomy || share > 0.9 * ceiling, "{share} of {ceiling}");
                }
            }
        }
    }

    #[test]
    fn a_run_repeats() {
        let workload = few(Kind::Toolbench, Order::Windowed, 3);
        let once = round_robin(&workload, 3, &config(PolicyConfig::Groups));
        let again = round_robin(&workload, 3, &config(PolicyConfig::Groups));
        assert_eq!(once.records, again.records);
        assert_eq!((once.end, once.busy), (again.end, again.busy));
        assert_eq!(once.records.len(), 200);
    }

    #[test]
    fn round_robin_gives_each_engine_as_many() {
        struct Count(RoundRobin, Vec<(usize, usize)>);
        impl Route for Count {
            fn route(
                &mut self,
                now: Timestamp,
                i: usize,
                a: &Arrival,
                tokens: &[u32],
            ) -> Result<usize> {
                assert_eq!((now, a.prompt.len() as usize), (a.at, tokens.len()));
                let engine = self.0.route(now, i, a, tokens)?;
                self.1[engine].0 += 1;
                Ok(engine)
            }
            fn finished(&mut self, _: Timestamp, engine: usize, _: &Record) {
                self.1[engine].1 += 1;
            }
            fn refused(&mut self, _: Timestamp, _: usize, _: usize) {
                panic!("everything fits");
            }
        }
        let workload = few(Kind::Toolbench, Order::Shuffled, 1);
        let mut count = Count(RoundRobin::new(4), vec![(0, 0); 4]);
        let mut ended = 0;
        run(
            &workload,
            4,
            &config(PolicyConfig::Fcfs),
            &mut count,
            || ended += 1,
        )
        .unwrap();
        assert_eq!(count.1, [(50, 50); 4]);
        assert_eq!(ended, 200);
    }

    #[test]
    fn requests_of_one_moment_start_together() {
        let mut workload = few(Kind::Posts, Order::Grouped, 1);
        workload.arrivals.truncate(10);
        for (i, arrival) in workload.arrivals.iter_mut().enumerate() {
            arrival.at = Timestamp::ZERO;
            // 40 tokens each: ten fit into one step.
            arrival.prompt = Prompt::new([crate::sim::Run {
                stream: i as u64,
                start: 0,
                len: 40,
            }]);
        }
        let run = round_robin(&workload, 1, &config(PolicyConfig::Fcfs));
        assert_eq!(run.steps, 1);
        assert!(run.records.iter().all(|r| r.queue == Duration::ZERO));
    }

    #[test]
    fn a_client_waits_for_its_answer() {
        let workload = few(Kind::Toolbench, Order::Shuffled, 1).in_closed_loop(3);
        let mut run = round_robin(&workload, 1, &config(PolicyConfig::Fcfs));
        assert_eq!(run.records.len(), 200);
        // Requests that end later than another one begins were there with it.
        run.records.sort_by_key(|r| r.request);
        let spans: Vec<_> = { run.records.iter() }
            .map(|r| (r.arrival, r.arrival.saturating_add(r.latency)))
            .collect();
        for (begin, _) in &spans {
            let there = spans.iter().filter(|(b, e)| b <= begin && begin < e);
            assert!(there.count() <= 3, "more requests than clients");
        }
        assert!(spans.is_sorted_by_key(|(begin, _)| *begin));
        // With as many clients as requests, all are there from the beginning.
        let all = few(Kind::Toolbench, Order::Shuffled, 1).in_closed_loop(1000);
        let run = round_robin(&all, 1, &config(PolicyConfig::Fcfs));
        assert!(run.records.iter().all(|r| r.arrival == Timestamp::ZERO));
    }

    #[test]
    fn requests_that_fit_no_engine_are_counted() {
        let mut small = config(PolicyConfig::Fcfs);
        small.kv_tokens = 2048;
        let workload = few(Kind::Toolbench, Order::Shuffled, 1);
        let long = workload.arrivals.iter();
        let long = long
            .filter(|a| a.prompt.len() + a.output_tokens > 2048)
            .count();
        let run = round_robin(&workload, 2, &small);
        assert!(long > 10 && long < 190);
        // The last generated token needs no room.
        assert!(run.refused.abs_diff(long) <= 2, "{} of {long}", run.refused);
    }

    #[test]
    fn a_router_that_names_no_engine_is_an_error() {
        struct Astray;
        impl Route for Astray {
            fn route(&mut self, _: Timestamp, _: usize, _: &Arrival, _: &[u32]) -> Result<usize> {
                Ok(7)
            }
            fn finished(&mut self, _: Timestamp, _: usize, _: &Record) {}
            fn refused(&mut self, _: Timestamp, _: usize, _: usize) {}
        }
        let workload = few(Kind::Toolbench, Order::Shuffled, 1);
        let error = run(
            &workload,
            2,
            &config(PolicyConfig::Fcfs),
            &mut Astray,
            || (),
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "there is no engine 7 to route to"
        );
    }

    #[test]
    fn ties_go_by_the_order_of_scheduling() {
        let mut queue = Queue::default();
        let at = Timestamp::from_nanos;
        queue.add(at(5), Event::Engine(1));
        queue.add(at(5), Event::Arrival(0));
        queue.add(at(3), Event::Arrival(9));
        let order: Vec<Event> = std::iter::from_fn(|| queue.pop()).map(|(_, h)| h).collect();
        let expected = [Event::Arrival(9), Event::Engine(1), Event::Arrival(0)];
        assert_eq!(order, expected);
    }

    #[test]
    fn the_first_engine_of_a_cluster_can_be_slow() {
        let workload = few(Kind::Toolbench, Order::Shuffled, 1);
        let busy = |slow_first| {
            let config = EngineConfig {
                slow_first,
                ..config(PolicyConfig::Fcfs)
            };
            round_robin(&workload, 2, &config).busy
        };
        let (as_it_is, slow) = (busy(1.0), busy(3.0));
        // Not three times as long: more requests share a step.
        assert!(slow[0] > as_it_is[0], "{slow:?} {as_it_is:?}");
        assert_eq!(slow[1], as_it_is[1]);
    }
}
