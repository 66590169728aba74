//! The report of mixed traffic.

use std::fmt;

use prelude_sched::SchedulerConfig;

use super::{
    ANSWER_TOKENS, BUSY, DEADLINE, Mixed, Mixture, Offer, Round, STATE_TOKENS, STREAMS, Server,
    figures::Figures, steps::Steps,
};
use crate::server::report::{Row, Unit, Verdict, number};

/// Least of its rate alone that chat keeps while the device is not full.
const KEPT_MIN: f64 = 0.95;
/// Least of its configured share of the device that each class has while the device is full and
/// the class asks for as much: a tenth is for what both cost each other.
const SHARE_KEPT_MIN: f64 = 0.9;

/// A name, a unit, and the value of a measurement.
type Measure = (&'static str, Unit, fn(&Figures) -> f64);

/// The values of each mixture, each of which has its counterpart alone.
const MEASURES: [Measure; 7] = [
    ("tokens of chat", Unit::TokensPerSecond, |f| {
        f.chat.tokens_per_second
    }),
    ("time to first token, P50", Unit::Millis, |f| {
        f.chat.first_ms[0]
    }),
    ("time to first token, P99", Unit::Millis, |f| {
        f.chat.first_ms[1]
    }),
    ("time between texts, P50", Unit::Millis, |f| {
        f.chat.gap_ms[0]
    }),
    ("time between texts, P99", Unit::Millis, |f| {
        f.chat.gap_ms[1]
    }),
    ("decisions, P50", Unit::Millis, |f| f.decisions.ms[0]),
    ("decisions, P99", Unit::Millis, |f| f.decisions.ms[1]),
];

impl fmt::Display for Mixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.chat {
            Offer::Closed => write!(f, "{STREAMS} chats")?,
            Offer::Percent(percent) => write!(f, "chat {percent} %")?,
        }
        match self.decisions {
            Offer::Closed => write!(f, " + {BUSY} decisions"),
            Offer::Percent(percent) => write!(f, " + decisions {percent} %"),
        }
    }
}

/// Returns the rows of all servers, ours first.
pub(super) fn rows(servers: &[Server<'_>], mixtures: &[Mixture]) -> Vec<Row> {
    let chat = format!("mixed: chat alone, {STREAMS} streams of {ANSWER_TOKENS} tokens");
    let decisions =
        format!("mixed: decisions alone, fresh state of {STATE_TOKENS} tokens, {BUSY} connections");
    let mut rows = vec![
        row(servers, chat, Unit::TokensPerSecond, |round| {
            round.alone.chat.tokens_per_second
        }),
        row(servers, decisions, Unit::PerSecond, |round| {
            round.alone.decisions.per_second
        }),
    ];
    for (i, &mixture) in mixtures.iter().enumerate() {
        push_mixture(servers, i, mixture, &mut rows);
    }
    let failures = |round: &Round| {
        let mixed = |mixed: &Mixed| mixed.alone.failures + mixed.beside.failures;
        round.mixed.iter().map(mixed).sum()
    };
    let name = "mixed: requests refused or broken".to_owned();
    let failures = row(servers, name, Unit::Count, failures);
    // Not one in any round.
    let verdict = Verdict::at_most(failures.spread.1, 0.0);
    rows.push(failures.with(verdict));
    rows
}

/// Appends the rows of mixture number `i`.
fn push_mixture(servers: &[Server<'_>], i: usize, mixture: Mixture, rows: &mut Vec<Row>) {
    let name = |what: &str| format!("mixed, {mixture}: {what}");
    for (what, unit, value) in MEASURES {
        let alone = row(servers, String::new(), unit, |round| {
            value(&round.mixed[i].alone)
        });
        let beside = row(servers, name(what), unit, |round| {
            value(&round.mixed[i].beside)
        });
        let none = match beside.value.is_nan() {
            true => "none in the counted time; ",
            false => "",
        };
        let alone = format!("{none}alone {}", number(alone.value));
        rows.push(beside.noting(alone));
    }
    let within = format!("share of decisions within {} ms", DEADLINE.as_millis());
    rows.push(row(servers, name(&within), Unit::Ratio, |round| {
        round.mixed[i].beside.decisions.in_time
    }));
    if !mixture.is_full() {
        let what = "chat's rate, in terms of alone";
        let kept = row(servers, name(what), Unit::Ratio, |round| {
            let mixed = &round.mixed[i];
            mixed.beside.parts_of(&mixed.alone)[0]
        });
        rows.push(kept.at_least(KEPT_MIN));
        return;
    }
    push_full(servers, i, mixture, rows);
}

/// Appends the rows of mixture number `i` that only a full device has: each class's part of it.
fn push_full(servers: &[Server<'_>], i: usize, mixture: Mixture, rows: &mut Vec<Row>) {
    let name = |what: &str| format!("mixed, {mixture}: {what}");
    let parts = |round: &Round| round.mixed[i].beside.parts_of(&round.alone);
    let [chat, decisions] = least_parts(mixture);
    let of =
        |what: &str, value: &dyn Fn(&Round) -> f64| row(servers, name(what), Unit::Ratio, value);
    rows.extend([
        of("chat, in terms of its capacity", &|round| parts(round)[0]).at_least(chat),
        of("decisions, in terms of their capacity", &|round| {
            parts(round)[1]
        })
        .at_least(decisions),
        of("both together, in terms of capacity", &|round| {
            parts(round).iter().sum()
        }),
    ]);
    // Ours alone tell it.
    let ours = &servers[..1];
    for (share, steps_of) in Steps::OF.into_iter().enumerate() {
        let what = format!("share of the steps' time, {steps_of}");
        rows.push(row(ours, name(&what), Unit::Ratio, |round| {
            let steps = round.mixed[i].steps;
            steps.map_or(f64::NAN, |steps| steps.shares()[share])
        }));
    }
}

/// Returns the least parts of their capacities that chat and decisions are to have of a full
/// device, by the share that a server gives one-shot work unless told otherwise. What decisions do
/// not ask for is chat's.
fn least_parts(mixture: Mixture) -> [f64; 2] {
    let configured = SchedulerConfig::default().oneshot_share_percent;
    let decisions = match mixture.decisions {
        Offer::Closed => configured,
        Offer::Percent(percent) => percent.min(configured),
    };
    let part = |percent: u32| SHARE_KEPT_MIN * f64::from(percent) / 100.0;
    [part(100 - decisions), part(decisions)]
}

/// Returns a row of our rounds, with those of rivals beside it.
fn row(servers: &[Server<'_>], name: String, unit: Unit, value: impl Fn(&Round) -> f64) -> Row {
    let rounds = |server: &Server<'_>| server.rounds.iter().map(&value).collect::<Vec<_>>();
    let (ours, rivals) = servers.split_first().expect("ours is measured");
    let mut row = Row::new(name, unit, rounds(ours));
    for rival in rivals {
        row.against(rival.title, &rounds(rival), None);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            MIXTURES,
            figures::{Chat, Decisions},
        },
        *,
    };

    fn figures(tokens_per_second: f64, per_second: f64, failures: f64) -> Figures {
        Figures {
            chat: Chat {
                tokens_per_second,
                first_ms: [2.0, 3.0],
                gap_ms: [1.0, 4.0],
            },
            decisions: Decisions {
                per_second,
                ms: [5.0, 6.0],
                in_time: 1.0,
            },
            failures,
        }
    }

    /// Returns a server that can do 1,000 tokens or 100 decisions a second, and beside each other
    /// of what is offered: in an open loop the chat's part `kept`, and of a full device the parts
    /// `full`.
    fn server(kept: f64, full: [f64; 2], failures: f64) -> Server<'static> {
        let alone = figures(1_000.0, 100.0, 0.0);
        let mixed = |mixture: Mixture| {
            let (alone, beside) = match mixture.is_full() {
                false => (
                    figures(300.0, 30.0, 0.0),
                    figures(300.0 * kept, 30.0, failures),
                ),
                true => (alone, figures(1_000.0 * full[0], 100.0 * full[1], 0.0)),
            };
            Mixed {
                alone,
                beside,
                steps: None,
            }
        };
        let round = || Round {
            alone,
            mixed: MIXTURES.into_iter().map(mixed).collect(),
        };
        Server {
            title: "somebody",
            address: "",
            rounds: vec![round(), round()],
        }
    }

    fn verdicts(server: Server<'_>) -> Vec<bool> {
        let rows = rows(&[server], &MIXTURES);
        let verdicts = rows.iter().filter_map(|row| row.verdict.as_ref());
        verdicts.map(|verdict| verdict.reached).collect()
    }

    #[test]
    fn each_verdict_can_fail() {
        // Chat's rate in each open mixture, both parts of each full one, and failures.
        let fine = verdicts(server(0.96, [0.46, 0.46], 0.0));
        assert_eq!(fine, [true; 10]);
        let mut slow = [true; 10];
        slow[..5].fill(false);
        assert_eq!(verdicts(server(0.94, [0.46, 0.46], 0.0)), slow);
        let mut starved = [true; 10];
        (starved[5], starved[7]) = (false, false);
        assert_eq!(verdicts(server(1.0, [0.44, 0.6], 0.0)), starved);
        let mut starving = [true; 10];
        (starving[6], starving[8]) = (false, false);
        assert_eq!(verdicts(server(1.0, [0.6, 0.44], 0.0)), starving);
        let mut broken = [true; 10];
        broken[9] = false;
        assert_eq!(verdicts(server(1.0, [0.5, 0.5], 1.0)), broken);
    }

    #[test]
    fn rows_say_what_is_alone_and_what_rivals_do() {
        let mut servers = [server(1.0, [0.5, 0.6], 0.0), server(0.5, [0.25, 0.3], 0.0)];
        for round in &mut servers[0].rounds {
            round.mixed[0].beside.chat.first_ms = [f64::NAN; 2];
        }
        let rows = rows(&servers, &MIXTURES);
        let find = |name: &str| rows.iter().find(|row| row.name == name).unwrap();
        let tokens = find("mixed, chat 70 % + decisions 10 %: tokens of chat");
        assert_eq!((tokens.value, tokens.rivals[0].value), (300.0, 150.0));
        assert_eq!(tokens.rivals[0].ratio, 2.0);
        assert_eq!(tokens.note.as_deref(), Some("alone 300"));
        let first = find("mixed, chat 70 % + decisions 10 %: time to first token, P99");
        let none = "none in the counted time; alone 3.00";
        assert_eq!(first.note.as_deref(), Some(none));
        let both = find("mixed, 8 chats + decisions 150 %: both together, in terms of capacity");
        assert_eq!((both.value, both.rivals[0].value), (1.1, 0.55));
        let steps = find("mixed, 8 chats + decisions 50 %: share of the steps' time, both");
        assert!(steps.rivals.is_empty() && steps.value.is_nan());
    }

    #[test]
    fn chats_get_the_share_that_decisions_leave() {
        let check = |decisions, expected: [f64; 2]| {
            let found = least_parts(Mixture::full(decisions));
            let close = found
                .iter()
                .zip(expected)
                .all(|(a, b)| (a - b).abs() < 1e-9);
            assert!(close, "{found:?}");
        };
        check(20, [0.72, 0.18]);
        check(50, [0.45, 0.45]);
        check(150, [0.45, 0.45]);
    }
}
