//! One workload of Preble's on two engines behind two routers, in virtual time.
//!
//! `cargo run --release -p prelude-bench --example simulate`
#![expect(clippy::print_stdout, reason = "an example that prints")]

use prelude_bench::sim::{EngineConfig, Experiment, Kind, Preset, Router, Setting, Source};
use prelude_sched::PolicyConfig;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for router in [Router::E2, Router::RoundRobin] {
        let experiment = Experiment {
            source: Source::Seeded {
                kind: Kind::Toolbench,
                setting: Setting {
                    requests: Some(200),
                    prefixes: Some(20),
                    ..Setting::default()
                },
                seeds: 1,
            },
            engines: 2,
            config: EngineConfig::new(Preset::Mistral7bA6000, PolicyConfig::default()),
            router,
            policy: "default",
            time_error: 0.0,
        };
        let report = experiment.run(|_| ())?;
        println!(
            "{:?}: {:.0} ms in the mean",
            router, report.runs[0].latency.mean_ms
        );
    }
    Ok(())
}
