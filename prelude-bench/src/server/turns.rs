//! Measurements of one kind of request after another, asked of us and of rivals in turns, round
//! after round.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Config, Session, closed,
    report::{Row, Unit},
    rival::{Rival, Serve},
};
use crate::{
    load::{Arrivals, Jobs, Load, Tally, check, run as load},
    process::Process,
};

/// The value of a tally that is reported.
#[derive(Clone, Copy)]
pub(super) enum Figure {
    Median,
    Rate,
}

/// A kind of request.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) jobs: Arc<Jobs>,
    pub(super) connections: usize,
    pub(super) arrivals: Arrivals,
    pub(super) figure: Figure,
    /// The target factor by which Prelude is better than a rival.
    pub(super) target: Option<f64>,
}

impl Case {
    /// Returns a closed loop over so many connections.
    pub(super) fn closed(name: &str, jobs: Jobs, connections: usize, figure: Figure) -> Self {
        let crowd = match connections {
            1 => "one connection".to_owned(),
            n => format!("{n} connections"),
        };
        Self {
            name: format!("{name}, {crowd}"),
            jobs: Arc::new(jobs),
            connections,
            arrivals: Arrivals::Closed,
            figure,
            target: None,
        }
    }

    pub(super) fn aiming(mut self, target: f64) -> Self {
        self.target = Some(target);
        self
    }

    pub(super) const fn unit(&self) -> Unit {
        match self.figure {
            Figure::Median => Unit::Millis,
            Figure::Rate => Unit::PerSecond,
        }
    }

    /// Measures one round, in milliseconds or requests per second.
    fn ask(&self, address: &str, time: Duration) -> Result<f64> {
        let plan = Load {
            arrivals: self.arrivals,
            ..closed(self.connections, time)
        };
        let tally: Tally = load(address, &self.jobs, plan)?;
        ensure!(
            tally.failures() == 0 && tally.count(429) == 0 && tally.count(200) > 0,
            "{}: not every request was answered 200: {:?}",
            self.name,
            tally.by_status.keys()
        );
        Ok(match self.figure {
            Figure::Median => tally.quantile(200, 0.5) * 1e3,
            Figure::Rate => tally.per_second(),
        })
    }
}

/// A server of ours: how reports call it, if there are several, and where it listens.
pub(super) type Ours<'a> = (&'a str, &'a str);

/// Rivals that run.
pub(super) struct Rivals(Vec<(Rival, Process)>);

impl Rivals {
    /// Starts all that can serve this; who cannot is noted.
    pub(super) fn start(session: &mut Session<'_>, serve: Serve) -> Self {
        let mut servers = Vec::new();
        for rival in session.rivals.clone() {
            let title = rival.title();
            if let Some(why) = rival.cannot(serve) {
                session.skip(title, why);
                continue;
            }
            let starting = format!("starting {title} (may take a minute)");
            session.bar.says(&starting);
            match rival.start(session.config, serve) {
                Ok(server) => servers.push((rival, server)),
                Err(why) => session.skip(&format!("{title} did not start"), &format!("{why:#}")),
            }
        }
        Self(servers)
    }

    /// Returns each rival and its server.
    pub(super) fn servers(&self) -> impl Iterator<Item = (Rival, &Process)> {
        self.0.iter().map(|(rival, server)| (*rival, server))
    }

    /// Asks `ours` and the rivals in turns: a row for each of ours, rivals beside each. A rival
    /// that cannot answer this kind of request sits it out, and that is noted.
    pub(super) fn beside(
        &self,
        session: &mut Session<'_>,
        ours: &[Ours<'_>],
        case: &Case,
    ) -> Result<Vec<Row>> {
        let Config { rounds, time, .. } = *session.config;
        for (name, address) in ours {
            check(address, &case.jobs.first(2)).with_context(|| format!("prelude {name}"))?;
        }
        let mut theirs: Vec<(Rival, &str, Vec<f64>)> = Vec::new();
        for (rival, server) in &self.0 {
            match check(&server.address, &case.jobs.first(2)) {
                Ok(()) => theirs.push((*rival, &server.address, Vec::new())),
                Err(why) => session.skip(rival.title(), &format!("{}: {why:#}", case.name)),
            }
        }
        let mut mine = vec![Vec::new(); ours.len()];
        for round in 0..rounds {
            let what = format!("{}: round {}", case.name, round + 1);
            session.bar.says(&what);
            for ((_, address), values) in ours.iter().zip(&mut mine) {
                values.push(case.ask(address, time)?);
            }
            for (rival, address, values) in &mut theirs {
                let value = case.ask(address, time);
                values.push(value.with_context(|| rival.title())?);
            }
        }
        let row = |((name, _), values): (&Ours<'_>, Vec<f64>)| {
            let name = match *name {
                "" => case.name.clone(),
                name => format!("{}, {name}", case.name),
            };
            let mut row = Row::new(name, case.unit(), values);
            if case.jobs.taken() > case.jobs.distinct() {
                let distinct = case.jobs.distinct();
                row = row.noting(format!("requests came again after {distinct}"));
            }
            for (rival, _, values) in &theirs {
                let target = case.target.filter(|_| rival.is_aimed_at());
                row.against(rival.title(), values, target);
            }
            row
        };
        Ok(ours.iter().zip(mine).map(row).collect())
    }

    /// Returns the start-up time of each server.
    pub(super) fn starts(&self, config: &Config) -> impl Iterator<Item = Row> {
        self.0.iter().map(|(rival, server)| {
            let seconds = server.ready_after.as_secs_f64();
            let name = format!("{}, from start to healthy", rival.title());
            let row = Row::new(name, Unit::Seconds, vec![seconds]);
            match rival.version(config) {
                Some(version) => row.noting(version),
                None => row,
            }
        })
    }
}
