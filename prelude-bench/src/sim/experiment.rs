//! An experiment: one workload, one kind of engine, one router, and several seeds.

use anyhow::{Result, ensure};
use prelude_router::{
    CacheAwareConfig, E2Config, E2Load, LapsConfig, PolicyConfig, PrefixHashConfig,
    UserStickyConfig,
};
use serde::{Deserialize, Serialize};

use super::{EngineConfig, Figures, Kind, Report, Routed, Served, Setting, Workload, run as serve};

/// A router of requests to engines: a policy of `prelude-router` with its defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Router {
    /// Preble's E2: the engine that caches the prompt, or the engine with the lowest cost.
    E2,
    /// E2 whose prompts never leave the engine that caches them.
    E2Stay,
    /// E2 with the paper's load, that of the last three minutes, in place of the work under way.
    E2Window,
    /// Both parts of E2 at once: the paper's E2 without its moving and copying of prefixes.
    E2Still,
    /// One engine after another.
    RoundRobin,
    /// The engine with the fewest requests in progress.
    LeastOutstanding,
    /// An engine by a hash of the first tokens of the prompt.
    PrefixHash,
    /// The longest prefix that went there, unless queues differ too much: SGLang's and vLLM's
    /// routers, with the settings of their command lines (0.3, 64, 1.5).
    CacheAware,
    /// The routers of [`Self::CacheAware`] with the settings of their libraries (0.5, 32, 1.1),
    /// which look at queues sooner.
    CacheAwareTight,
    /// The least outstanding work and uncached prefill: Dynamo, Mooncake.
    MinCost,
    /// Each user is bound to one engine.
    UserSticky,
    /// LAPS's pools: prompts with few uncached tokens to some engines, all others to the rest.
    Laps,
}

impl Router {
    /// Returns the name in reports and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::E2 => "e2",
            Self::E2Still => "e2-still",
            Self::E2Stay => "e2-stay",
            Self::E2Window => "e2-window",
            Self::RoundRobin => "round-robin",
            Self::LeastOutstanding => "least-outstanding",
            Self::PrefixHash => "prefix-hash",
            Self::CacheAware => "cache-aware",
            Self::CacheAwareTight => "cache-aware-tight",
            Self::MinCost => "min-cost",
            Self::UserSticky => "user-sticky",
            Self::Laps => "laps",
        }
    }

    fn policy(self) -> PolicyConfig {
        match self {
            Self::E2 => PolicyConfig::E2(E2Config::default()),
            Self::E2Stay => PolicyConfig::E2(E2Config {
                leave_ratio: None,
                ..E2Config::default()
            }),
            Self::E2Window => PolicyConfig::E2(E2Config {
                load: E2Load::Window,
                ..E2Config::default()
            }),
            Self::E2Still => PolicyConfig::E2(E2Config {
                load: E2Load::Window,
                leave_ratio: None,
                ..E2Config::default()
            }),
            Self::RoundRobin => PolicyConfig::RoundRobin,
            Self::LeastOutstanding => PolicyConfig::LeastOutstanding,
            Self::PrefixHash => PolicyConfig::PrefixHash(PrefixHashConfig::default()),
            Self::CacheAware => PolicyConfig::CacheAware(CacheAwareConfig::default()),
            Self::CacheAwareTight => PolicyConfig::CacheAware(CacheAwareConfig {
                match_ratio: 0.5,
                balance_abs: 32,
                balance_rel: 1.1,
                ..CacheAwareConfig::default()
            }),
            Self::MinCost => PolicyConfig::MinCost,
            Self::UserSticky => PolicyConfig::UserSticky(UserStickyConfig::default()),
            Self::Laps => PolicyConfig::Laps(LapsConfig::default()),
        }
    }
}

/// The source of requests.
#[derive(Clone, Debug)]
pub enum Source {
    /// A workload of the papers, made anew with each of so many seeds, from the setting's on.
    Seeded {
        /// The kind of workload.
        kind: Kind,
        /// The size of the workload, with its first seed.
        setting: Setting,
        /// The number of runs, each with the next seed.
        seeds: u64,
    },
    /// A trace, which is run once: nothing here is random but workloads.
    Trace(Workload),
}

/// The description of a simulation.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The requests.
    pub source: Source,
    /// The number of engines.
    pub engines: usize,
    /// The configuration of each engine.
    pub config: EngineConfig,
    /// The router of requests.
    pub router: Router,
    /// The name of the engines' policy.
    pub policy: &'static str,
    /// The part by which each service time that the router believes is off, at least 0 and below
    /// 1. Without it, routers know the simulator's own.
    pub time_error: f64,
}

/// The progress of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A run begins, with so many requests.
    Run(usize),
    /// A request of it has ended.
    Request,
}

impl Experiment {
    /// Runs the experiment.
    ///
    /// # Errors
    /// If the workload or an engine cannot be made as asked for.
    pub fn run(&self, mut progress: impl FnMut(Progress)) -> Result<Report> {
        let (mut runs, mut name) = (Vec::new(), String::new());
        let order = match &self.source {
            Source::Seeded {
                kind,
                setting,
                seeds,
            } => {
                ensure!(*seeds > 0, "there must be at least one seed");
                for i in 0..*seeds {
                    let seed = setting.seed.wrapping_add(i);
                    let setting = Setting {
                        seed,
                        ..setting.clone()
                    };
                    let workload = kind.generate(&setting)?;
                    runs.push(self.once(Some(seed), &workload, &mut progress)?);
                    name = workload.name;
                }
                Some(setting.order.name())
            }
            Source::Trace(workload) => {
                runs.push(self.once(None, workload, &mut progress)?);
                name.clone_from(&workload.name);
                None
            }
        };
        Ok(Report {
            workload: name,
            order,
            preset: self.config.model.name(),
            route: self.router.name(),
            policy: self.policy,
            time_error: self.time_error,
            engines: self.engines,
            kv_tokens: self.config.kv_tokens,
            host_tokens: Some(self.config.host_tokens).filter(|&tokens| tokens > 0),
            block_size: self.config.block_size,
            runs,
        })
    }

    fn once(
        &self,
        seed: Option<u64>,
        workload: &Workload,
        progress: &mut impl FnMut(Progress),
    ) -> Result<Figures> {
        let served = self.serve(seed, workload, progress)?;
        let block_size = self.config.block_size;
        Ok(Figures::new(seed, workload, &served, block_size))
    }

    /// Runs a workload once, in place of the experiment's own, and returns what became of each
    /// request. The seed is the router's.
    ///
    /// # Errors
    /// If an engine or the router cannot be made as asked for.
    pub fn serve(
        &self,
        seed: Option<u64>,
        workload: &Workload,
        mut progress: impl FnMut(Progress),
    ) -> Result<Served> {
        progress(Progress::Run(workload.arrivals.len()));
        let policy = self.router.policy();
        let error = self.time_error;
        let seed_of_route = seed.unwrap_or(0);
        let mut route = Routed::new(policy, self.engines, &self.config, seed_of_route, error)?;
        let done = || progress(Progress::Request);
        serve(workload, self.engines, &self.config, &mut route, done)
    }
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use prelude_sched::PolicyConfig;

    use super::{Router, *};
    use crate::sim::Preset;

    fn experiment(source: Source) -> Experiment {
        Experiment {
            source,
            engines: 2,
            config: EngineConfig::new(Preset::Mistral7bA6000, PolicyConfig::Fcfs),
            router: Router::RoundRobin,
            policy: "fcfs",
            time_error: 0.0,
        }
    }

    fn setting() -> Setting {
        Setting {
            requests: Some(100),
            prefixes: Some(10),
            seed: 7,
            ..Setting::default()
        }
    }

    #[test]
    fn each_seed_is_a_run_of_its_own() {
        let seeded = |seeds| Source::Seeded {
            kind: Kind::Toolbench,
            setting: setting(),
            seeds,
        };
        let mut seen = Vec::new();
        let report = experiment(seeded(3)).run(|p| seen.push(p)).unwrap();
        let seeds: Vec<_> = report.runs.iter().map(|r| r.seed).collect();
        assert_eq!(seeds, [Some(7), Some(8), Some(9)]);
        assert_ne!(report.runs[0].latency, report.runs[1].latency);
        assert_eq!(report.order, Some("shuffled"));
        let count = |p| seen.iter().filter(|q| **q == p).count();
        assert_eq!(
            (count(Progress::Run(100)), count(Progress::Request)),
            (3, 300)
        );
        let error = experiment(seeded(0)).run(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), "there must be at least one seed");
    }

    #[test]
    fn every_router_runs_before_every_policy() {
        let policies = [
            PolicyConfig::Fcfs,
            PolicyConfig::Srjf,
            PolicyConfig::Groups,
            PolicyConfig::Laps,
            PolicyConfig::RoundRobin,
            PolicyConfig::Auto,
        ];
        // Conversations come one by one and at once: LAPS waits for more short requests.
        for (kind, rate) in [
            (Kind::Toolbench, 20.0),
            (Kind::Conversation, 3.0),
            (Kind::Conversation, 60.0),
        ] {
            // In turns, whatever engines have to do: only their order of requests differs.
            let mut in_turns = Vec::new();
            for policy in policies {
                for &router in Router::value_variants() {
                    let mut experiment = experiment(Source::Seeded {
                        kind,
                        setting: Setting {
                            rate: Some(rate),
                            ..setting()
                        },
                        seeds: 1,
                    });
                    experiment.config = EngineConfig::new(Preset::Mistral7bA6000, policy);
                    experiment.router = router;
                    let report = experiment.run(|_| ()).unwrap();
                    let run = &report.runs[0];
                    assert_eq!((run.requests, run.refused), (100, 0));
                    if router == Router::RoundRobin {
                        in_turns.push((policy, run.latency));
                    }
                }
            }
            // With few requests there is nothing to order.
            for (i, (policy, latency)) in in_turns.iter().enumerate().filter(|_| rate > 50.0) {
                for (other, same) in &in_turns[..i] {
                    assert_ne!(latency, same, "{policy:?} and {other:?}");
                }
            }
        }
    }

    #[test]
    fn a_trace_is_run_once() {
        let workload = Kind::Toolbench.generate(&setting()).unwrap();
        let report = experiment(Source::Trace(workload)).run(|_| ()).unwrap();
        let [run] = &report.runs[..] else {
            panic!("{report:?}")
        };
        assert_eq!((run.seed, run.requests, report.order), (None, 100, None));
    }
}
