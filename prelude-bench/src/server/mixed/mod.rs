//! Decisions beside chat: the central claim of Prelude (goals G1 and G2, §3).
//!
//! Chats are streamed answers of 64 tokens, decisions are chats of one token about a fresh state of
//! 700 tokens: every server with OpenAI's interface answers both. Each round finds what a server can
//! do of either alone, in closed loops, and then offers shares of that in open loops: each class
//! alone, and both together. A class has the same arrivals beside the other as alone, so what
//! differs is the other's doing. Rivals get the same shares of their own capacity: the same rate
//! would overload one server and leave another idle.
//!
//! The last mixtures fill the device: chats in a closed loop take whatever decisions leave.

mod figures;
mod rows;
mod steps;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Session,
    report::Row,
    rival::Serve,
    turns::Rivals,
    versus::{tokenizer, workload},
    workload::Workload,
};
use crate::{
    load::{Arrivals, Jobs, Load, Tally, check, run as load, run_all},
    process::Process,
};
use figures::Figures;
use steps::Steps;

/// Chats at the same time in a closed loop.
const STREAMS: usize = 8;
/// Tokens of each answer of a chat.
const ANSWER_TOKENS: u32 = 64;
/// Connections that find the capacity for decisions: several steps' worth.
const BUSY: usize = 16;
/// Tokens of the state of each decision.
const STATE_TOKENS: usize = 700;
/// Connections of each class in an open loop: more than are in use unless the server falls behind.
const CROWD: usize = 128;
/// The longest time from a decision's arrival to its answer with which the answer is in time. Other
/// work waits for decisions, such as a chat for a safety filter, and a person who waits for that
/// chat does not notice a tenth of a second (Miller, *Response Time in Man-Computer Conversational
/// Transactions*, 1968).
const DEADLINE: Duration = Duration::from_millis(100);

/// The load of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Offer {
    /// A closed loop, which takes all it can get.
    Closed,
    /// An open loop, in percent of what the class alone can get.
    Percent(u32),
}

/// The loads of both classes at the same time.
#[derive(Clone, Copy, Debug)]
struct Mixture {
    chat: Offer,
    decisions: Offer,
}

impl Mixture {
    const fn open(chat: u32, decisions: u32) -> Self {
        Self {
            chat: Offer::Percent(chat),
            decisions: Offer::Percent(decisions),
        }
    }

    const fn full(decisions: u32) -> Self {
        Self {
            chat: Offer::Closed,
            decisions: Offer::Percent(decisions),
        }
    }

    /// Returns true if chats take whatever the decisions leave.
    fn is_full(self) -> bool {
        self.chat == Offer::Closed
    }
}

/// Four fifths of the device in several divisions, nine tenths once, and all of it.
const MIXTURES: [Mixture; 7] = [
    Mixture::open(70, 10),
    Mixture::open(50, 30),
    Mixture::open(30, 50),
    Mixture::open(20, 60),
    Mixture::open(10, 80),
    Mixture::full(50),
    Mixture::full(150),
];

/// A kind of request.
struct Class {
    jobs: Arc<Jobs>,
    /// Connections of its closed loop.
    busy: usize,
    /// Tokens of each answer, if they are streamed.
    streamed: Option<u32>,
    /// The seed of its arrivals, which differ from those of the other class.
    seed: u64,
}

/// The two kinds of requests.
struct Traffic {
    chat: Class,
    decisions: Class,
}

impl Traffic {
    fn new(make: &Workload<'_>) -> Self {
        Self {
            chat: Class {
                jobs: Arc::new(make.stream(ANSWER_TOKENS)),
                busy: STREAMS,
                streamed: Some(ANSWER_TOKENS),
                seed: 1,
            },
            decisions: Class {
                jobs: Arc::new(make.chat_about_a_state(STATE_TOKENS)),
                busy: BUSY,
                streamed: None,
                seed: 2,
            },
        }
    }

    fn check(&self, address: &str) -> Result<()> {
        check(address, &self.chat.jobs.first(2)).context("chat")?;
        check(address, &self.decisions.jobs.first(2)).context("decisions")
    }

    /// Measures one round of one server. `says` is told what is going on.
    fn round(&self, at: Place<'_>, mixtures: &[Mixture], says: impl Fn(&str)) -> Result<Round> {
        says("capacity");
        let mut chat = Visit::start(&self.chat, at)?;
        let mut decisions = Visit::start(&self.decisions, at)?;
        let mut mixed = Vec::new();
        for &mixture in mixtures {
            says(&mixture.to_string());
            let alone = Figures::new(
                chat.alone(mixture.chat)?,
                decisions.alone(mixture.decisions)?,
            );
            let loads = [
                (&self.chat.jobs, chat.load(mixture.chat)),
                (&self.decisions.jobs, decisions.load(mixture.decisions)),
            ];
            let together = || run_all(at.address, &loads);
            let (tallies, steps) = match mixture.is_full() && at.tells_steps {
                true => {
                    let (tallies, steps) = Steps::during(at.address, loads[0].1, together)?;
                    (tallies?, Some(steps))
                }
                false => (together()?, None),
            };
            mixed.push(Mixed {
                alone,
                beside: Figures::new(&tallies[0], &tallies[1]),
                steps,
            });
        }
        Ok(Round {
            alone: Figures::new(chat.alone(Offer::Closed)?, decisions.alone(Offer::Closed)?),
            mixed,
        })
    }
}

/// A round of a server.
#[derive(Clone, Copy)]
struct Place<'a> {
    address: &'a str,
    /// True if the server's metrics tell the time of its steps, as ours do.
    tells_steps: bool,
    round: usize,
    /// The time of one measurement.
    time: Duration,
}

/// A class on a server in a round.
struct Visit<'a> {
    class: &'a Class,
    at: Place<'a>,
    /// Requests per second in a closed loop.
    capacity: f64,
    /// The class alone, by its load.
    alone: BTreeMap<Offer, Tally>,
}

impl<'a> Visit<'a> {
    /// Finds the capacity.
    fn start(class: &'a Class, at: Place<'a>) -> Result<Self> {
        let mut visit = Self {
            class,
            at,
            capacity: 0.0,
            alone: BTreeMap::new(),
        };
        let tally = visit.alone(Offer::Closed)?;
        let refused = tally.failures() + tally.count(429);
        ensure!(refused == 0, "{refused} requests of a class alone failed");
        let capacity = match class.streamed {
            None => tally.window.answers_per_second(),
            Some(tokens) => {
                let streamed = tally.streams.as_ref().map_or(0, |streams| streams.tokens);
                let asked = tally.count(200) * u64::from(tokens);
                ensure!(
                    streamed == asked,
                    "answers have {streamed} tokens in all instead of {asked}"
                );
                tally.window.tokens_per_second() / f64::from(tokens)
            }
        };
        ensure!(capacity > 0.0, "nothing was answered within {:?}", at.time);
        visit.capacity = capacity;
        Ok(visit)
    }

    fn load(&self, offer: Offer) -> Load {
        match offer {
            Offer::Closed => super::closed(self.class.busy, self.at.time),
            Offer::Percent(percent) => Load {
                arrivals: Arrivals::Open {
                    per_second: self.capacity * f64::from(percent) / 100.0,
                    // Neighbouring seeds have the same numbers but for one.
                    seed: (self.at.round as u64) << 40 | self.class.seed << 32,
                },
                ..super::closed(CROWD, self.at.time)
            },
        }
    }

    /// Returns the class alone under this load; beyond its capacity, in its closed loop. A load is
    /// measured once.
    fn alone(&mut self, offer: Offer) -> Result<&Tally> {
        let offer = match offer {
            Offer::Percent(100..) => Offer::Closed,
            offer => offer,
        };
        if !self.alone.contains_key(&offer) {
            let tally = load(self.at.address, &self.class.jobs, self.load(offer))?;
            self.alone.insert(offer, tally);
        }
        Ok(&self.alone[&offer])
    }
}

/// The results of one round of one server.
struct Round {
    /// The figures of each class alone in its closed loop.
    alone: Figures,
    /// The mixtures, in their order.
    mixed: Vec<Mixed>,
}

/// A mixture in a round.
struct Mixed {
    /// The figures of each class alone with the same arrivals.
    alone: Figures,
    beside: Figures,
    /// The server's steps, where it tells them and the device is full.
    steps: Option<Steps>,
}

/// A server and its rounds.
struct Server<'a> {
    title: &'static str,
    address: &'a str,
    rounds: Vec<Round>,
}

/// Measures chat and decisions, alone and together.
pub(super) fn measure(session: &mut Session<'_>) -> Result<Vec<Row>> {
    let config = session.config;
    let tokenizer = tokenizer()?;
    let traffic = Traffic::new(&workload(&tokenizer));
    let ours = Process::prelude(&config.program)?;
    traffic.check(&ours.address).context("prelude")?;
    let rivals = Rivals::start(session, Serve::Lm);
    let server = |title, address| Server {
        title,
        address,
        rounds: Vec::new(),
    };
    let mut servers = vec![server("prelude", &*ours.address)];
    for (rival, process) in rivals.servers() {
        match traffic.check(&process.address) {
            Ok(()) => servers.push(server(rival.title(), &process.address)),
            Err(why) => session.skip(rival.title(), &format!("mixed: {why:#}")),
        }
    }
    for round in 0..config.rounds {
        for server in &mut servers {
            let at = Place {
                address: server.address,
                tells_steps: server.address == ours.address,
                round,
                time: config.time,
            };
            let title = server.title;
            let says = |what: &str| {
                let what = format!("mixed, {title}, {what}: round {}", round + 1);
                session.bar.says(&what);
            };
            server
                .rounds
                .push(traffic.round(at, &MIXTURES, says).context(title)?);
        }
    }
    Ok(rows::rows(&servers, &MIXTURES))
}

#[cfg(test)]
mod tests {
    use prelude_server::{ServerConfig, demo};

    use super::*;
    use crate::server::noop;

    #[test]
    fn a_server_is_measured_alone_and_with_both() {
        let models = vec![noop::demo(&demo::LM).unwrap()];
        let here = noop::Here::serve(ServerConfig::default(), models).unwrap();
        let address = here.address.to_string();
        let tokenizer = tokenizer().unwrap();
        let traffic = Traffic::new(&workload(&tokenizer));
        traffic.check(&address).unwrap();
        let mixtures = [Mixture::open(50, 30), Mixture::full(150)];
        let at = Place {
            address: &address,
            tells_steps: true,
            round: 0,
            time: Duration::from_millis(800),
        };
        let round = traffic.round(at, &mixtures, |_| {}).unwrap();
        assert!(round.alone.chat.tokens_per_second > 0.0);
        assert!(round.alone.decisions.per_second > 0.0);
        let [open, full] = &*round.mixed else {
            panic!("two mixtures");
        };
        assert_eq!((open.alone.failures, open.beside.failures), (0.0, 0.0));
        assert_eq!(full.beside.failures, 0.0);
        assert!(open.steps.is_none());
        for chat in [open.alone.chat, open.beside.chat, full.alone.chat] {
            assert!(chat.tokens_per_second > 0.0 && chat.gap_ms[0] <= chat.gap_ms[1]);
        }
        // Alone beyond its capacity is its closed loop.
        assert_eq!(
            full.alone.decisions.per_second,
            round.alone.decisions.per_second
        );
        let all: f64 = full.steps.unwrap().shares().iter().sum();
        assert!((all - 1.0).abs() < 1e-9, "{all}");
        let server = Server {
            title: "prelude",
            address: &address,
            rounds: vec![round],
        };
        let rows = rows::rows(&[server], &mixtures);
        assert!(
            rows.iter()
                .all(|row| !row.name.is_empty() && row.rivals.is_empty())
        );
    }
}
