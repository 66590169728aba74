//! The kinds of workloads, and their sizes.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::{
    Arrival, Builder, Gaps, Order, Workload, agent, conversation,
    draw::poisson,
    drift, hot_spot, mixed, prefill_only,
    shared_prefix::{Prefixes, Shape},
};

/// A workload of the papers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Tools: system part, tool, question (Preble).
    Toolbench,
    /// An embodied agent: an instruction, then each step extends the last (Preble).
    Agent,
    /// Programming: one demonstration for all, a problem, several samples of each (Preble).
    Programming,
    /// Video QA: a video and a short question (Preble).
    Video,
    /// LooGLE: a long document and a question (Preble).
    Loogle,
    /// Tools whose popularity follows Zipf's law, at a high rate (Preble's ablation).
    Zipf,
    /// Tools and videos at once, in bursts like Azure's (Preble).
    Mixed,
    /// Documents, of which one takes 40 % of the traffic after 120 s (Prelude's own).
    HotSpot,
    /// Documents by Zipf's law, whose ranks are drawn anew every 120 s (Prelude's own).
    Drift,
    /// Post recommendation: 50 posts for each of 20 users (PrefillOnly).
    Posts,
    /// Credit verification: 60 long histories without shared prefixes (PrefillOnly).
    Credit,
    /// Turns of conversations with the lengths of LMSYS, half of which continue one of a few
    /// cached histories (LAPS).
    Conversation,
}

/// The size and the order of a workload.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Engines that it is for: the authors' numbers are for two, and grow with the engines.
    /// (`PrefillOnly`'s numbers of users and requests do not.)
    pub engines: u32,
    /// Requests per second; the middle of the authors' range by default.
    pub rate: Option<f64>,
    /// The number of requests; by default the paper's, or as many as arrive in its time.
    pub requests: Option<u32>,
    /// The number of tools, tasks, problems, videos, documents or conversations; by default the
    /// paper's.
    pub prefixes: Option<u32>,
    /// The order of key portions.
    pub order: Order,
    /// Gaps of [`Kind::Mixed`].
    pub gaps: Gaps,
    /// The number of clients of a closed loop, which replaces the rate; `None`: an open loop.
    pub clients: Option<usize>,
    /// The seed, which makes the same list each time.
    pub seed: u64,
}

impl Default for Setting {
    fn default() -> Self {
        Self {
            engines: 2,
            rate: None,
            requests: None,
            prefixes: None,
            order: Order::Shuffled,
            gaps: Gaps::default(),
            clients: None,
            seed: 0,
        }
    }
}

/// The size for two engines.
struct Amount {
    prefixes: u32,
    rate: f64,
    requests: u32,
}

impl Kind {
    /// Returns the name in reports and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Toolbench => "toolbench",
            Self::Agent => "agent",
            Self::Programming => "programming",
            Self::Video => "video",
            Self::Loogle => "loogle",
            Self::Zipf => "zipf",
            Self::Mixed => "mixed",
            Self::HotSpot => "hot-spot",
            Self::Drift => "drift",
            Self::Posts => "posts",
            Self::Credit => "credit",
            Self::Conversation => "conversation",
        }
    }

    /// Returns the middle of the authors' configurations; 300 s of it where they give no number of
    /// requests. Conversations and the rates of `PrefillOnly`'s are ours: its rates are in terms of
    /// what an engine sustains.
    const fn amount(self) -> Amount {
        let (prefixes, rate, requests) = match self {
            Self::Toolbench => (240, 6.0, 1800),
            Self::Agent => (215, 6.0, 1800),
            Self::Programming => (130, 2.0, 600),
            // 8.6 requests a video.
            Self::Video => (100, 6.0, 860),
            // 18 a document: 560 s.
            Self::Loogle => (24, 0.77, 432),
            Self::Zipf => (320, 18.0, 5400),
            Self::Mixed => (350, 8.0, 4500),
            Self::HotSpot => (24, 0.77, 370),
            // What the caches of two engines hold, at a rate that keeps them busy.
            Self::Drift => (8, 4.5, 2700),
            Self::Posts => (prefill_only::POST_USERS, 8.0, 1000),
            Self::Credit => (prefill_only::CREDIT_USERS, 0.1, 60),
            // One engine caches 32 histories with room to spare.
            Self::Conversation => (64, 6.0, 6000),
        };
        Amount {
            prefixes,
            rate,
            requests,
        }
    }

    /// Returns the rate of the authors' configurations, for so many engines.
    #[must_use]
    pub fn rate(self, engines: u32) -> f64 {
        self.amount().rate * f64::from(engines) / 2.0
    }

    /// Makes a workload.
    ///
    /// # Errors
    /// If there is nothing to make, or what is asked for is fixed by the workload.
    pub fn generate(self, setting: &Setting) -> Result<Workload> {
        self.check(setting)?;
        let workload = self.open(setting)?;
        Ok(match setting.clients {
            Some(clients) => workload.in_closed_loop(clients),
            None => workload,
        })
    }

    /// Makes the workload with arrivals in an open loop.
    fn open(self, setting: &Setting) -> Result<Workload> {
        let scale = f64::from(setting.engines) / 2.0;
        let scaled = |count: u32| ((f64::from(count) * scale).round() as u32).max(1);
        let amount = self.amount();
        let rate = setting.rate.unwrap_or_else(|| self.rate(setting.engines));
        let prefixes = setting.prefixes.unwrap_or_else(|| scaled(amount.prefixes));
        let requests = setting.requests.unwrap_or_else(|| scaled(amount.requests));
        let build = &mut Builder::new(setting.seed);
        let groups = match self {
            Self::Toolbench => shared(Shape::TOOLBENCH, prefixes, requests, build),
            Self::Programming => shared(Shape::PROGRAMMING, prefixes, requests, build),
            Self::Video => shared(Shape::VIDEO, prefixes, requests, build),
            Self::Loogle => shared(Shape::LOOGLE, prefixes, requests, build),
            Self::Zipf => shared(Shape::ZIPF, prefixes, requests, build),
            Self::Agent => agent::groups(prefixes, requests, build),
            Self::Mixed => {
                let arrivals = mixed::arrivals(scale, setting.order, &setting.gaps, build);
                let workload = self.named(arrivals);
                return Ok(match setting.rate {
                    Some(rate) => workload.at_rate(rate),
                    None => workload,
                });
            }
            Self::Conversation => {
                return Ok(conversation::workload(prefixes, requests, rate, build));
            }
            Self::HotSpot => {
                let requests = hot_spot::requests(setting, rate);
                let arrivals = hot_spot::arrivals(prefixes, requests, rate, build);
                return Ok(self.named(arrivals));
            }
            Self::Drift => {
                let requests = drift::requests(setting, rate);
                return Ok(self.named(drift::arrivals(prefixes, requests, rate, build)));
            }
            Self::Posts => {
                let users = setting.prefixes.unwrap_or(amount.prefixes);
                let arrivals = prefill_only::posts(users, setting.order, rate, build);
                return Ok(self.named(arrivals));
            }
            Self::Credit => {
                let users = setting.prefixes.unwrap_or(amount.prefixes);
                return Ok(self.named(prefill_only::credit(users, rate, build)));
            }
        };
        let mut arrivals = setting.order.line_up(groups, &mut build.random);
        poisson(&mut arrivals, rate, &mut build.random);
        Ok(self.named(arrivals))
    }

    /// Returns true if each request has a key portion drawn for it, so that there is no order to
    /// choose.
    const fn is_unordered(self) -> bool {
        matches!(
            self,
            Self::HotSpot | Self::Drift | Self::Credit | Self::Conversation
        )
    }

    fn check(self, setting: &Setting) -> Result<()> {
        ensure!(setting.engines > 0, "engines must be at least 1");
        if let Some(rate) = setting.rate {
            let fine = rate.is_finite() && rate > 0.0;
            ensure!(fine, "the rate must be above 0, not {rate}");
        }
        ensure!(setting.clients != Some(0), "clients must be at least 1");
        for (what, count) in [
            ("requests", setting.requests),
            ("prefixes", setting.prefixes),
        ] {
            ensure!(count != Some(0), "{what} must be at least 1");
        }
        let instead = match self {
            Self::Mixed => Some("--engines"),
            Self::Posts | Self::Credit => Some("--prefixes"),
            _ => None,
        };
        if let (Some(instead), Some(_)) = (instead, setting.requests) {
            let name = self.name();
            bail!("{name} takes no --requests, its paper gives their number: set {instead}");
        }
        let unordered = self.is_unordered();
        ensure!(
            !unordered || setting.order == Order::Shuffled,
            "{} has no order but {}: each request has a key portion drawn for it",
            self.name(),
            Order::Shuffled.name()
        );
        ensure!(
            self != Self::Mixed || setting.prefixes.is_none(),
            "mixed takes no --prefixes, its paper gives each engine's number: set --engines"
        );
        Ok(())
    }

    /// Numbers the users of workloads that know none.
    fn named(self, mut arrivals: Vec<Arrival>) -> Workload {
        arrivals.sort_by_key(|arrival| arrival.at);
        let knows_users = matches!(self, Self::Posts | Self::Credit);
        if !knows_users {
            for (user, arrival) in (0..).zip(&mut arrivals) {
                arrival.user = user;
            }
        }
        Workload::new(self.name(), arrivals)
    }
}

fn shared(shape: Shape, prefixes: u32, requests: u32, build: &mut Builder) -> Vec<Vec<Arrival>> {
    Prefixes::new(shape, prefixes, build).groups(requests, build)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    const ORDERS: [Order; 3] = [Order::Grouped, Order::Windowed, Order::Shuffled];

    #[test]
    fn a_seed_makes_one_list_and_it_is_sorted() {
        for &kind in Kind::value_variants() {
            for order in ORDERS
                .into_iter()
                .skip(if kind.is_unordered() { 2 } else { 0 })
            {
                let make = |seed| {
                    let setting = Setting {
                        seed,
                        order,
                        ..Setting::default()
                    };
                    kind.generate(&setting).unwrap()
                };
                let workload = make(1);
                assert_eq!(workload, make(1), "{kind:?} {order:?}");
                assert_ne!(workload, make(2), "{kind:?} {order:?}");
                let arrivals = &workload.arrivals;
                assert!(arrivals.is_sorted_by_key(|a| a.at));
                assert!(arrivals.iter().all(|a| a.output_tokens > 0));
                assert!(arrivals.iter().all(|a| !a.prompt.is_empty()));
            }
        }
    }

    #[test]
    fn prompts_share_nothing_across_seeds() {
        let first = |seed| {
            let setting = Setting {
                seed,
                ..Setting::default()
            };
            Kind::Toolbench
                .generate(&setting)
                .unwrap()
                .arrivals
                .swap_remove(0)
        };
        assert_eq!(first(1).prompt.shared_with(&first(2).prompt), 0);
    }

    #[test]
    fn requests_come_at_the_rate_asked_for_and_grow_with_the_engines() {
        for &kind in Kind::value_variants() {
            let check = |rate: Option<f64>, engines, expected: f64| {
                let setting = Setting {
                    rate,
                    engines,
                    ..Setting::default()
                };
                let got = kind.generate(&setting).unwrap().rate();
                // Of 60 requests at least: a Poisson process is off by 13 % or less two times in
                // three.
                assert!((got / expected - 1.0).abs() < 0.4, "{kind:?}: {got}");
            };
            check(Some(3.0), 2, 3.0);
            let amount = kind.amount();
            if kind != Kind::Mixed {
                check(None, 2, amount.rate);
                check(None, 8, amount.rate * 4.0);
            }
        }
        let count = |engines| {
            let setting = Setting {
                engines,
                ..Setting::default()
            };
            Kind::Toolbench.generate(&setting).unwrap().arrivals.len()
        };
        assert_eq!((count(2), count(4)), (1800, 3600));
    }

    #[test]
    fn workloads_that_cannot_be_made_say_why() {
        let check = |kind: Kind, change: fn(&mut Setting), expected: &str| {
            let mut setting = Setting::default();
            change(&mut setting);
            let error = kind.generate(&setting).unwrap_err().to_string();
            assert_eq!(error, expected);
        };
        check(Kind::Agent, |s| s.engines = 0, "engines must be at least 1");
        check(
            Kind::Agent,
            |s| s.rate = Some(-1.0),
            "the rate must be above 0, not -1",
        );
        check(
            Kind::Video,
            |s| s.clients = Some(0),
            "clients must be at least 1",
        );
        check(
            Kind::Video,
            |s| s.prefixes = Some(0),
            "prefixes must be at least 1",
        );
        check(
            Kind::Posts,
            |s| s.requests = Some(10),
            "posts takes no --requests, its paper gives their number: set --prefixes",
        );
        check(
            Kind::HotSpot,
            |s| s.order = Order::Grouped,
            "hot-spot has no order but shuffled: each request has a key portion drawn for it",
        );
        check(
            Kind::Mixed,
            |s| s.prefixes = Some(10),
            "mixed takes no --prefixes, its paper gives each engine's number: set --engines",
        );
    }
}
