//! The run of a study: its servers and rivals are asked for the same in turns, phase after phase and
//! round after round, and ratios are taken within a round.

#![expect(clippy::cast_precision_loss, reason = "counts of a run")]

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    path::PathBuf,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use fasttoken::Tokenizer;
use prelude_measure::{process::Output, server::Server};
use prelude_models::Checkpoint;
use prelude_server::{ServerConfig, demo};

use super::{
    Config, Session,
    bodies::{Bodies, tokenizer},
    cores::{Back, Cores},
    folders,
    noop::{self, Here},
    report::{Row, Unit},
    rival::{Rival, Running},
    scenario::{Case, Loop, Ours, Phase, Values, cases},
    texts, traces,
};
use crate::load::{Arrivals, Jobs, Load, Tally, check, latency_at, run as load, run_all};

/// Longest start of a server of ours, which may read a gigabyte, and its longest end.
const START_WITHIN: Duration = Duration::from_secs(300);
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// Longest time in which requests that are sent once begin.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two looks at metrics.
const LOOK: Duration = Duration::from_millis(3);
/// The rest before a measurement beside other engines, in which the threads of the engine before go to
/// sleep.
const REST: Duration = Duration::from_millis(250);

/// A program that answers requests.
enum Serving {
    /// In the order of dropping: the server ends before this thread gets its cores back.
    Process(Server, Option<Back>),
    Here(Here),
    Rival(Running),
}

/// A server, or a library, and what was found of it.
struct Target<'a> {
    /// The name in rows; empty for ours if there is no other of ours.
    title: String,
    /// Ours, or the rival.
    whose: Whose<'a>,
    serving: Option<Serving>,
    values: Values,
    /// The loads that it cannot answer.
    sits_out: HashSet<&'a str>,
}

#[derive(Clone, Copy)]
enum Whose<'a> {
    Ours(&'a Ours),
    Rivals(Rival),
}

/// A case in progress.
struct Run<'a> {
    config: &'a Config,
    case: &'a Case,
    /// The model's folder, unless a server has both demo models.
    folder: Option<PathBuf>,
    tokenizer: Tokenizer,
    /// Requests by their name and the path of reranking: servers of one kind share them.
    jobs: HashMap<(&'a str, &'static str), Arc<Jobs>>,
    /// Requests that were made to be sent once, which are new each time.
    made: u64,
}

/// Measures the cases of a part.
pub(super) fn measure(session: &mut Session<'_>, part: &str) -> Result<Vec<Row>> {
    let config = session.config;
    let cases = cases(part, config.overload_questions)?;
    let mut rows = Vec::new();
    // What servers of the same name found in the cases before.
    let mut found: HashMap<String, Values> = HashMap::new();
    for case in &cases {
        if case.only_beside_rivals && session.rivals.is_empty() {
            continue;
        }
        let folder = folder_of(config, &case.servers[0].model)?;
        let mut run = Run {
            config,
            case,
            tokenizer: match &folder {
                Some(folder) => {
                    let own = Checkpoint::decision_tokenizer(folder)?;
                    let own = own.as_ref().unwrap_or(folder);
                    Tokenizer::from_file(own.join("tokenizer.json"))?
                }
                None => tokenizer()?,
            },
            folder,
            jobs: HashMap::new(),
            made: 0,
        };
        let mut targets = run.targets(session, &mut found)?;
        let measured = run.rounds(session, part, &mut targets)?;
        for row in measured {
            session.bar.shows(&row);
            rows.push(row);
        }
        for target in targets {
            if let Some(Serving::Process(server, _back)) = target.serving {
                // An error if it does not end by itself.
                server.stop(STOP_WITHIN)?;
            }
            found.insert(target.title, target.values);
        }
    }
    Ok(rows)
}

/// Returns the folder of a model by its name in a study.
fn folder_of(config: &Config, model: &str) -> Result<Option<PathBuf>> {
    match model {
        "" => Ok(None),
        idle if idle.starts_with("idle ") => Ok(None),
        _ if model == demo::LM.name => Ok(Some(config.models.join(model))),
        _ => folders::make(&config.out, model).map(Some),
    }
}

impl<'a> Run<'a> {
    /// Returns ours, which start when they are asked, and the rivals that start.
    fn targets(
        &self,
        session: &mut Session<'_>,
        found: &mut HashMap<String, Values>,
    ) -> Result<Vec<Target<'a>>> {
        let mut target = |title: String, whose, serving| {
            let mut values = found.remove(&title).unwrap_or_default();
            for phase in self.case.phases.iter().flat_map(Phase::all) {
                values.forget(&phase.id);
            }
            values.forget("all");
            for (name, value) in [
                ("time", self.config.time.as_secs_f64()),
                ("overload", self.config.overload.as_secs_f64()),
                ("questions", self.config.overload_questions as f64),
            ] {
                values.set(name, value);
            }
            Target {
                title,
                whose,
                serving,
                values,
                sits_out: HashSet::new(),
            }
        };
        let mut targets = Vec::new();
        for ours in &self.case.servers {
            targets.push(target(ours.label.clone(), Whose::Ours(ours), None));
        }
        let Some(serve) = &self.case.rivals else {
            return Ok(targets);
        };
        let model = match (&self.folder, &**serve) {
            (Some(folder), _) => folder.clone(),
            (None, "classifier") => self.config.models.join(demo::CLASSIFIER.name),
            (None, _) => self.config.models.join(demo::LM.name),
        };
        for rival in session.rivals.clone() {
            session
                .bar
                .says(&format!("starting {rival:?} (may take a minute)"));
            for (title, started) in rival.start(self.config, serve, &model) {
                match started {
                    Ok(running) => {
                        let serving = Some(Serving::Rival(running));
                        targets.push(target(title, Whose::Rivals(rival), serving));
                    }
                    Err(why) => session.skip(&format!("{title}, {serve}"), &format!("{why:#}")),
                }
            }
        }
        Ok(targets)
    }

    /// Asks all in turns, and returns the rows.
    fn rounds(
        &mut self,
        session: &mut Session<'_>,
        part: &str,
        targets: &mut [Target<'a>],
    ) -> Result<Vec<Row>> {
        let case = self.case;
        let rounds = if case.once { 1 } else { session.config.rounds };
        for round in 0..rounds {
            for target in targets.iter_mut().filter(|_| case.fresh) {
                self.start(target, None)?;
            }
            for phase in &case.phases {
                for target in targets.iter_mut() {
                    let (id, title) = (&phase.id, &target.title);
                    session
                        .bar
                        .says(&format!("{part}: {id} {title}: round {}", round + 1));
                    let asked = self.ask(target, phase, round);
                    let skip = asked.with_context(|| format!("{part}: {id} {}", target.title))?;
                    if let Some(why) = skip {
                        session.skip(&format!("{}: {}", target.title, phase.body), &why);
                    }
                }
            }
        }
        let mut rows = Vec::new();
        let is_ours = |target: &&Target<'_>| matches!(target.whose, Whose::Ours(_));
        for figure in &case.rows {
            for ours in targets.iter().filter(is_ours) {
                let mut row = figure.row(&ours.title, &ours.values, rounds)?;
                for (title, rival, values) in targets.iter().filter_map(Target::of_rival) {
                    // One that sat out has no values.
                    let theirs = figure.values(values, rounds).ok();
                    let aim = Some(&figure.aim).filter(|aim| !aim.is_empty());
                    let aim = aim.filter(|_| rival.about().is_aimed_at);
                    let aim = aim.map(|aim| ours.values.compute(aim, 0)).transpose()?;
                    if let Some(theirs) = theirs.filter(|_| !figure.ours) {
                        row.against(title, &theirs, aim);
                    }
                }
                if let Some(jobs) = self.jobs_again(&figure.value) {
                    row = row.noting(format!("requests came again after {}", jobs.distinct()));
                }
                rows.push(row);
            }
        }
        rows.extend(targets.iter().filter_map(|target| self.start_row(target)));
        Ok(rows)
    }

    /// Returns the requests of the load that a value begins with, if they came more than once.
    fn jobs_again(&self, value: &str) -> Option<&Jobs> {
        let phases = self.case.phases.iter().flat_map(Phase::all);
        let of = |phase: &&Phase| {
            value
                .strip_prefix(&*phase.id)
                .is_some_and(|v| v.starts_with('.'))
        };
        let body = &phases.filter(of).last()?.body;
        let jobs = self.jobs.iter().find(|((name, _), _)| name == body)?.1;
        (jobs.taken() > jobs.distinct()).then_some(jobs)
    }

    /// Returns the row of a rival's start.
    fn start_row(&self, target: &Target<'_>) -> Option<Row> {
        let (title, rival, _) = target.of_rival()?;
        let Some(Serving::Rival(Running::Server(server))) = &target.serving else {
            return None;
        };
        let seconds = server.ready_after.as_secs_f64();
        let row = Row::one(
            format!("{title}, from start to healthy"),
            Unit::Seconds,
            seconds,
        );
        Some(match rival.version(self.config) {
            Some(version) => row.noting(version),
            None => row,
        })
    }

    /// Starts a server of ours, in place of the one that runs, with what a phase adds.
    fn start(&self, target: &mut Target<'_>, phase: Option<&Phase>) -> Result<()> {
        let Whose::Ours(ours) = target.whose else {
            return Ok(());
        };
        target.serving = None;
        if let Some(name) = ours.model.strip_prefix("idle ") {
            let files = [&demo::LM, &demo::CLASSIFIER];
            let files = files.into_iter().find(|files| files.name == name);
            let model = noop::idle(files.with_context(|| format!("no demo model {name}"))?)?;
            let here = Here::serve(ServerConfig::default(), vec![model])?;
            target.serving = Some(Serving::Here(here));
            return Ok(());
        }
        let mut command = Command::new(&self.config.program);
        command.args(["serve", "--port", "0"]).args(&ours.args);
        let mut env: Vec<_> = ours.env.iter().collect();
        if let Some(phase) = phase {
            command.args(&phase.args);
            env.extend(&phase.env);
        }
        for (name, value) in env {
            let value = target.values.compute(value, 0)?;
            command.env(name, format!("{value:.0}"));
        }
        command.args(folder_of(self.config, &ours.model)?);
        command.env("PRELUDE_SERVER__ACCESS_LOG", ours.unread.to_string());
        let output = match ours.unread {
            true => Output::Unread,
            false => Output::Lines(None),
        };
        let mut start = || Server::announced(&mut command, output, START_WITHIN);
        let cores = Cores::apart().filter(|_| ours.pinned);
        target.values.set(
            "cores",
            cores.as_ref().map_or(0, |cores| cores.server.len()) as f64,
        );
        let (server, back) = match cores {
            Some(cores) => cores
                .part(start)
                .map(|(server, back)| (server, Some(back)))?,
            None => (start()?, None),
        };
        target
            .values
            .push("ready", server.ready_after.as_secs_f64());
        target.values.set("plan", planned_mib(server.said()));
        target.serving = Some(Serving::Process(server, back));
        Ok(())
    }

    /// Asks a target what a phase says. Returns the reason why it sits that out, if it does.
    fn ask(
        &mut self,
        target: &mut Target<'a>,
        phase: &'a Phase,
        round: usize,
    ) -> Result<Option<String>> {
        let is_new = !phase.args.is_empty() || !phase.env.is_empty();
        if target.serving.is_none() || is_new {
            self.start(target, Some(phase))?;
        }
        if phase.body.starts_with("trace ") {
            traces::ask(&target.address(), phase, &mut target.values, round)?;
            return Ok(None);
        }
        let loads = self.loads(target, phase, round)?;
        if let Some(Serving::Rival(Running::Library(_))) = &target.serving {
            let [(phase, _, load)] = &*loads else {
                return Ok(Some("a library has one load at a time".to_owned()));
            };
            self.ask_library(target, phase, load)?;
            return Ok(None);
        }
        for (phase, jobs, _) in loads
            .iter()
            .filter(|(phase, ..)| round == 0 && phase.is_checked())
        {
            // Handed out, so that a server does not know the first ones that are measured.
            if let Err(why) = check(&target.address(), &jobs.hand_out(2)) {
                ensure!(target.of_rival().is_some(), "{why:#}");
                target.sits_out.insert(&phase.id);
                return Ok(Some(format!("{why:#}")));
            }
        }
        if loads
            .iter()
            .any(|(phase, ..)| target.sits_out.contains(&*phase.id))
        {
            return Ok(None);
        }
        if matches!(self.case.rivals.as_deref(), Some("embed" | "rank" | "laya")) {
            thread::sleep(REST);
        }
        let tallies = self.watched(target, &loads)?;
        for ((phase, ..), tally) in loads.iter().zip(&tallies) {
            phase.note(tally, &mut target.values, round)?;
        }
        self.look(target, phase)?;
        Ok(None)
    }

    /// Returns the loads of a phase.
    fn loads(
        &mut self,
        target: &Target<'_>,
        phase: &'a Phase,
        round: usize,
    ) -> Result<Vec<(&'a Phase, Arc<Jobs>, Load)>> {
        let phases = phase.all().filter(|phase| !phase.body.is_empty());
        let load = |phase: &'a Phase| {
            let jobs = self.jobs(target, phase)?;
            Ok((phase, jobs, phase.load(&target.values, round)?))
        };
        phases.map(load).collect()
    }

    fn jobs(&mut self, target: &Target<'_>, phase: &'a Phase) -> Result<Arc<Jobs>> {
        let mut rerank = ["/rerank", "documents"];
        if let Some([path, field]) = target
            .of_rival()
            .and_then(|(_, r, _)| r.about().rerank.as_ref())
        {
            rerank = [path, field];
        }
        let name = { self.folder.as_ref() }.and_then(|folder| folder.file_name()?.to_str());
        let bodies = Bodies {
            tokenizer: &self.tokenizer,
            lm: name.unwrap_or(demo::LM.name),
            rerank,
        };
        if phase.r#loop == Loop::Once {
            self.made += 1;
            let count = phase.count.unwrap_or(phase.over);
            return Ok(Arc::new(bodies.make(
                &phase.body,
                Some(count),
                self.made,
            )?));
        }
        let key = (&*phase.body, rerank[1]);
        let jobs = match self.jobs.entry(key) {
            Entry::Occupied(made) => Arc::clone(made.get()),
            Entry::Vacant(place) => {
                let jobs = Arc::new(bodies.make(&phase.body, None, 0)?);
                Arc::clone(place.insert(jobs))
            }
        };
        Ok(jobs)
    }

    /// Asks a library for the texts of a phase.
    fn ask_library(&self, target: &mut Target<'_>, phase: &Phase, load: &Load) -> Result<()> {
        let (Some(Serving::Rival(Running::Library(library))), Some(folder)) =
            (&mut target.serving, &self.folder)
        else {
            return Ok(());
        };
        let (task, tokens) = phase.body.split_once(' ').context("a task and tokens")?;
        let file = folder.join(format!("texts-{tokens}.json"));
        let pairs = texts::pairs(&self.tokenizer, task, tokens.parse()?)?;
        std::fs::write(&file, serde_json::to_vec(&pairs)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
        thread::sleep(REST);
        let value = library.measure(&file, load)?;
        let ms = match phase.over {
            1 => value,
            over => 1e3 * over as f64 / value,
        };
        target.values.push(&format!("{}.p50", phase.id), ms);
        Ok(())
    }

    /// Runs loads at the same time, those of a later beginning beside the others, and reads metrics
    /// meanwhile if the case asks for that.
    fn watched(
        &self,
        target: &mut Target<'_>,
        loads: &[(&Phase, Arc<Jobs>, Load)],
    ) -> Result<Vec<Tally>> {
        let Some((first, _, whole)) = loads.first() else {
            return Ok(Vec::new());
        };
        let address = target.address();
        if let (true, Some(server)) = (first.forget, target.process()) {
            server.forget_peak()?;
        }
        let is_done = AtomicBool::new(false);
        let reads = self.case.watch && target.process().is_some();
        let (tallies, seen) = thread::scope(|scope| {
            let watch =
                reads.then(|| scope.spawn(|| self.watch(&address, first, *whole, &is_done)));
            let tallies = together(&address, loads);
            is_done.store(true, Ordering::Relaxed);
            (tallies, watch.map(thread::ScopedJoinHandle::join))
        });
        let seen = seen.transpose();
        let seen = seen.map_err(|_| anyhow!("the thread that reads metrics ended"))?;
        for (name, [from, to, most]) in seen.transpose()?.unwrap_or_default() {
            target
                .values
                .push(&format!("{}.{name}.grew", first.id), to - from);
            target
                .values
                .push(&format!("{}.{name}.most", first.id), most);
        }
        tallies
    }

    /// Returns each metric at the beginning and the end of a load's counted time, and its most.
    fn watch(
        &self,
        address: &str,
        phase: &Phase,
        load: Load,
        is_done: &AtomicBool,
    ) -> Result<BTreeMap<String, [f64; 3]>> {
        let is_polled = phase.r#loop == Loop::Once;
        if !is_polled {
            thread::sleep(load.warm_up);
        }
        let mut seen = BTreeMap::new();
        loop {
            // Read once more when all is done.
            let is_last = is_done.load(Ordering::Relaxed) || (!is_polled && !seen.is_empty());
            for (name, line) in &self.case.metrics {
                let [value] = prelude_measure::server::metrics(address, [line])?;
                let of = seen.entry(name.clone()).or_insert([value; 3]);
                *of = [of[0], value, of[2].max(value)];
            }
            if is_last {
                return Ok(seen);
            }
            thread::sleep(if is_polled { LOOK } else { load.time });
        }
    }

    /// Reads a process's memory and metrics after a phase.
    fn look(&self, target: &mut Target<'_>, phase: &Phase) -> Result<()> {
        let Some(server) = target.process() else {
            return Ok(());
        };
        let mut found = vec![("peak", mebibytes(server.peak_bytes()?))];
        thread::sleep(Duration::from_secs(phase.rest));
        found.push(("held", mebibytes(server.resident_bytes()?)));
        for (name, line) in &self.case.metrics {
            found.push((name, server.metric(line)?));
        }
        for phase in phase.all() {
            for (name, value) in &found {
                target.values.push(&format!("{}.{name}", phase.id), *value);
            }
        }
        Ok(())
    }
}

impl<'a> Target<'a> {
    fn address(&self) -> String {
        match &self.serving {
            Some(Serving::Process(server, _) | Serving::Rival(Running::Server(server))) => {
                server.address.clone()
            }
            Some(Serving::Here(here)) => here.address.to_string(),
            Some(Serving::Rival(Running::Library(_))) | None => String::new(),
        }
    }

    /// Returns the process of ours.
    fn process(&self) -> Option<&Server> {
        match &self.serving {
            Some(Serving::Process(server, _)) => Some(server),
            _ => None,
        }
    }

    /// Returns the title, the rival and the values, if it is a rival.
    fn of_rival(&self) -> Option<(&str, Rival, &Values)> {
        match self.whose {
            Whose::Rivals(rival) => Some((&self.title, rival, &self.values)),
            Whose::Ours(_) => None,
        }
    }
}

impl Phase {
    /// Returns the load and those beside it.
    pub(super) fn all(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(&self.and)
    }

    /// Returns true if a server that does not answer the first requests cannot answer this load.
    fn is_checked(&self) -> bool {
        self.r#loop != Loop::Once && self.body != "hostile"
    }

    fn load(&self, values: &Values, round: usize) -> Result<Load> {
        let seconds = |text: &Option<String>, or: f64| match text {
            Some(text) => values.compute(text, round),
            None => Ok(or),
        };
        let time = seconds(&self.seconds, values.compute("time", round)?)?;
        let warm_up = seconds(&self.warm, time / 5.0)?;
        let mut load = Load {
            connections: self.over,
            arrivals: match (&self.rate, self.r#loop) {
                (Some(rate), _) => Arrivals::Open {
                    per_second: values.compute(rate, round)?,
                    // Neighbouring seeds have the same numbers but for one.
                    seed: (round as u64) << 40 | self.seed << 32,
                },
                (None, Loop::Together) => Arrivals::Together,
                (None, Loop::Closed | Loop::Once) => Arrivals::Closed,
            },
            warm_up: Duration::from_secs_f64(warm_up),
            time: Duration::from_secs_f64(time),
        };
        if self.r#loop == Loop::Once {
            (load.warm_up, load.time) = (Duration::ZERO, PATIENCE);
        }
        Ok(load)
    }

    /// Notes what came of the load, and fails if it must be answered and was not.
    fn note(&self, tally: &Tally, values: &mut Values, round: usize) -> Result<()> {
        let unanswered = tally.asked() - tally.count(200);
        let strict = self.strict.unwrap_or_else(|| self.rate.is_none());
        ensure!(
            !strict || (unanswered == 0 && tally.count(200) > 0),
            "not every request was answered 200: {tally:?}"
        );
        let streamed = tally.streams.as_ref().map_or(0, |streams| streams.tokens);
        let asked = tally.count(200) * self.tokens;
        ensure!(
            asked == 0 || streamed == asked,
            "answers have {streamed} tokens in all instead of {asked}"
        );
        let limit = match &self.limit {
            Some(limit) => values.compute(limit, round)?,
            None => 100.0,
        };
        for (name, value) in figures(tally, Duration::from_secs_f64(limit / 1e3)) {
            values.push(&format!("{}.{name}", self.id), value);
        }
        for (name, value) in [("unanswered", unanswered), ("faults", faults(tally))] {
            let before = values.compute(&format!("all.{name}"), round).unwrap_or(0.0);
            values.set(&format!("all.{name}"), before + value as f64);
        }
        let answers = tally.by_status.iter();
        let answers = answers.map(|(status, of)| format!("{status}: {}", of.len()));
        let answers = answers.collect::<Vec<_>>().join(", ");
        values
            .texts
            .insert(format!("{}.statuses", self.id), answers);
        Ok(())
    }
}

/// Returns what a load found, by its name in the data; times are in milliseconds.
fn figures(tally: &Tally, limit: Duration) -> [(&'static str, f64); 17] {
    let ms = |status, fraction| 1e3 * tally.latency_at(status, fraction);
    let streams = tally.streams.as_ref();
    let first = |at| streams.map_or(f64::NAN, |streams| 1e3 * latency_at(&streams.first, at));
    let gap = |at| streams.map_or(f64::NAN, |streams| 1e3 * latency_at(&streams.gaps, at));
    let in_time = tally.count_within(200, limit) as f64;
    [
        ("rate", tally.per_second()),
        ("asked_rate", tally.asked_per_second()),
        ("answers_rate", tally.window.answers_per_second()),
        ("tokens_rate", tally.window.tokens_per_second()),
        ("p50", ms(200, 0.5)),
        ("p99", ms(200, 0.99)),
        ("most", ms(200, 1.0)),
        ("refused_p50", ms(429, 0.5)),
        ("refused_p99", ms(429, 0.99)),
        ("first_p50", first(0.5)),
        ("first_p99", first(0.99)),
        ("gap_p50", gap(0.5)),
        ("gap_p99", gap(0.99)),
        ("in_time", in_time / tally.asked() as f64),
        ("failures", tally.failures() as f64),
        ("refused", tally.count(429) as f64),
        ("faults", faults(tally) as f64),
    ]
}

/// Returns the answers of 5xx and the broken connections.
fn faults(tally: &Tally) -> u64 {
    let failed = tally.by_status.range(500..);
    tally.broken + failed.map(|(_, of)| of.len()).sum::<u64>()
}

/// Runs loads at the same time.
fn together(address: &str, loads: &[(&Phase, Arc<Jobs>, Load)]) -> Result<Vec<Tally>> {
    let (now, later): (Vec<_>, Vec<_>) =
        { loads.iter() }.partition(|(phase, ..)| phase.after == 0.0);
    thread::scope(|scope| {
        let later = later.into_iter().map(|(phase, jobs, plan)| {
            let begin = Duration::from_secs_f64(phase.after);
            scope.spawn(move || {
                thread::sleep(begin);
                load(address, jobs, *plan)
            })
        });
        let later: Vec<_> = later.collect();
        let now: Vec<_> = now.iter().map(|(_, jobs, plan)| (jobs, *plan)).collect();
        let mut tallies = run_all(address, &now)?;
        for load in later {
            let tally = load
                .join()
                .map_err(|_| anyhow!("the thread of a load ended"))?;
            tallies.push(tally?);
        }
        Ok(tallies)
    })
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Returns the mebibytes that a server says it plans, by the lines that it wrote at its start.
fn planned_mib(said: &[String]) -> f64 {
    let plan = |line: &String| {
        let words = line.strip_prefix("memory: ")?.split(' ');
        let before = words.take_while(|word| *word != "MiB").last()?;
        before.parse::<f64>().ok()
    };
    said.iter().filter_map(plan).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::ValueEnum as _;
    use hdrhistogram::Histogram;

    use super::*;
    use crate::server::{Part, value::names};

    fn tally(counts: &[(u16, u64)], ms: u64) -> Tally {
        let mut tally = Tally::new();
        for &(status, count) in counts {
            let mut of = Histogram::new_with_max(1_000_000_000_000, 3).unwrap();
            of.record_n(ms * 1_000_000, count).unwrap();
            tally.by_status.insert(status, of);
        }
        tally.elapsed = Duration::from_secs(1);
        tally
    }

    /// Every name in the data has a value when it is asked for: a load before it found it.
    #[test]
    fn values_come_before_what_is_computed_of_them() {
        let of_loads = figures(&Tally::new(), Duration::ZERO).map(|(name, _)| name);
        let of_loads = of_loads
            .into_iter()
            .chain(["mean", "cached", "peak", "held"]);
        let of_loads: Vec<_> = of_loads.collect();
        for part in Part::value_variants() {
            let part = part.to_possible_value().unwrap();
            let base = ["time", "overload", "questions", "ready", "plan", "cores"];
            let all = ["all.unanswered", "all.faults"];
            let mut known: BTreeSet<String> =
                base.into_iter().chain(all).map(str::to_owned).collect();
            let check = |known: &BTreeSet<String>, text: &str| {
                for name in names(text) {
                    assert!(
                        known.contains(&name),
                        "{}: `{text}` has {name}",
                        part.get_name()
                    );
                }
            };
            for case in cases(part.get_name(), 16).unwrap() {
                let env = case.servers.iter().flat_map(|ours| ours.env.values());
                env.for_each(|value| check(&known, value));
                for phase in &case.phases {
                    for phase in phase.all() {
                        let given = [&phase.rate, &phase.seconds, &phase.warm, &phase.limit];
                        let given = given.into_iter().flatten().chain(phase.env.values());
                        given.for_each(|value| check(&known, value));
                    }
                    for id in phase.all().map(|phase| &phase.id) {
                        let metrics = case.metrics.keys();
                        let metrics = metrics
                            .flat_map(|m| [m.clone(), format!("{m}.grew"), format!("{m}.most")]);
                        let names = of_loads
                            .iter()
                            .map(|name| (*name).to_owned())
                            .chain(metrics);
                        known.extend(names.map(|name| format!("{id}.{name}")));
                    }
                }
                for figure in &case.rows {
                    let given = [
                        &figure.value,
                        &figure.at_most,
                        &figure.at_least,
                        &figure.aim,
                    ];
                    let given = given.into_iter().filter(|text| !text.is_empty());
                    given.for_each(|value| check(&known, value));
                    let noted = figure.note.split(['<', '>']).skip(1).step_by(2);
                    let noted = noted.filter(|text| !text.ends_with(".statuses"));
                    noted.for_each(|value| check(&known, value));
                }
            }
        }
    }

    /// Returns whether each verdict of a part's case holds for what its loads found and other values.
    fn verdicts(
        part: &str,
        case: usize,
        found: &[(&str, Tally)],
        more: &[(&str, f64)],
    ) -> Vec<bool> {
        let cases = cases(part, 16).unwrap();
        let mut values = Values::default();
        let phases: Vec<_> = cases.iter().flat_map(|case| &case.phases).collect();
        let phases: Vec<_> = phases.into_iter().flat_map(Phase::all).collect();
        for (id, tally) in found {
            let phase = phases.iter().find(|phase| phase.id == *id).unwrap();
            let phase = Phase {
                id: phase.id.clone(),
                strict: Some(false),
                ..Phase::default()
            };
            phase.note(tally, &mut values, 0).unwrap();
        }
        more.iter()
            .for_each(|(name, value)| values.set(name, *value));
        let rows = cases[case].rows.iter();
        let rows = rows.map(|figure| figure.row("", &values, 1).unwrap());
        rows.filter_map(|row| Some(row.verdict?.reached)).collect()
    }

    #[test]
    fn each_verdict_of_the_overload_can_fail() {
        let check = |crowd: &[(u16, u64)], encoded, after, expected: [bool; 8]| {
            let found = [
                ("before", tally(&[(200, 90)], 2)),
                ("crowd", tally(crowd, 2)),
                ("after", tally(&[(200, after)], 2)),
            ];
            let more = [
                ("questions", 16.0),
                ("cores", 1.0),
                ("before.encoded", 0.0),
                ("before.answered", 0.0),
                ("crowd.encoded", encoded),
                ("crowd.answered", 95.0),
                ("crowd.queued", 0.0),
            ];
            assert_eq!(verdicts("overload", 0, &found, &more), expected);
        };
        // After, asked, goodput, failures, refused, latency, tokenised, left.
        check(&[(200, 95), (429, 205)], 95.0, 110, [true; 8]);
        let bad = [true, false, false, false, true, true, false, true];
        check(&[(200, 85), (429, 105), (500, 1)], 96.0, 110, bad);
        // Nothing refused: no latency to tell, and not what was to be shown.
        let none = [true, false, true, true, false, false, true, true];
        check(&[(200, 95)], 95.0, 110, none);
        // A server that is slow ever after.
        let slow = [false, true, true, true, true, true, true, true];
        check(&[(200, 95), (429, 205)], 95.0, 60, slow);
    }

    #[test]
    fn each_verdict_beside_hostile_bodies_can_fail() {
        let check = |case, loads: [(u16, u64); 2], more: &[(&str, f64)], expected: &[bool]| {
            let [beside, attack] = loads.map(|(status, ms)| tally(&[(status, 100)], ms));
            let found = [
                ("alone", tally(&[(200, 100)], 10)),
                ("beside", beside.clone()),
                ("unread", beside),
                ("attack", attack),
            ];
            assert_eq!(verdicts("hostile", case, &found, more), expected);
        };
        let grown = |mib| [("alone.peak", 0.0), ("attack.peak", mib)];
        check(0, [(200, 15), (400, 10)], &grown(1.0), &[true; 4]);
        check(
            0,
            [(200, 30), (500, 10)],
            &grown(999.0),
            &[false, true, false, false],
        );
        check(
            0,
            [(400, 10), (400, 10)],
            &grown(0.0),
            &[false, false, true, true],
        );
        let dropped = |lines| [("unread.dropped", lines)];
        check(1, [(200, 15), (400, 10)], &dropped(9.0), &[true; 3]);
        check(
            1,
            [(200, 30), (400, 10)],
            &dropped(0.0),
            &[true, false, false],
        );
        check(
            1,
            [(503, 10), (400, 10)],
            &dropped(9.0),
            &[false, false, true],
        );
    }

    #[test]
    fn each_verdict_of_swollen_bodies_can_fail() {
        let check = |peak: f64, held: f64, status, expected| {
            let found = (0..8).map(|i| {
                (
                    ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"][i],
                    tally(&[(status, 1)], 1),
                )
            });
            let mut more = vec![("idle.held".to_owned(), 0.0)];
            for i in 0..8 {
                let of = [
                    ("peak", peak),
                    ("held", held),
                    ("kv", 0.0),
                    ("grammars", 0.0),
                    ("words", 0.0),
                ];
                more.extend(of.map(|(name, value)| (format!("s{i}.{name}"), value)));
            }
            let more: Vec<_> = more.iter().map(|(name, value)| (&**name, *value)).collect();
            let found: Vec<_> = found.collect();
            assert_eq!(verdicts("hostile", 2, &found, &more), [expected; 17]);
        };
        check(500.0, 60.0, 400, true);
        check(600.0, 70.0, 503, false);
    }

    /// Chat's rate in each open mixture, both parts of each full one, and failures.
    #[test]
    fn each_verdict_of_mixed_traffic_can_fail() {
        let check = |kept: f64, [chat, decisions]: [f64; 2], failures, expected: [bool; 10]| {
            let mut more = vec![("chat.tokens_rate".to_owned(), 1_000.0)];
            more.push(("decision.answers_rate".to_owned(), 100.0));
            more.push(("all.unanswered".to_owned(), failures));
            let mut put = |id: &str, names: &[&str], value| {
                more.extend(names.iter().map(|name| (format!("{id}.{name}"), value)));
            };
            let times = [
                "first_p50",
                "first_p99",
                "gap_p50",
                "gap_p99",
                "p50",
                "p99",
                "in_time",
            ];
            let steps = ["oneshot.grew", "slices.grew", "decode.grew", "both.grew"];
            for id in ["chat", "decision"] {
                put(id, &times, 1.0);
            }
            for of in ["70", "50", "30", "20", "10"] {
                put(
                    &format!("c{of}"),
                    &[&times[..], &["tokens_rate"]].concat(),
                    300.0,
                );
                put(
                    &format!("m{of}.c"),
                    &[&times[..], &["tokens_rate"]].concat(),
                    300.0 * kept,
                );
                put(&format!("m{of}.d"), &times, 1.0);
            }
            for of in ["10", "30", "50", "60", "80"] {
                put(&format!("d{of}"), &times, 1.0);
            }
            for of in ["f50", "f150"] {
                put(
                    &format!("{of}.c"),
                    &[&times[..], &steps, &["tokens_rate"]].concat(),
                    1_000.0 * chat,
                );
                put(
                    &format!("{of}.d"),
                    &[&times[..], &["answers_rate"]].concat(),
                    100.0 * decisions,
                );
            }
            let more: Vec<_> = more.iter().map(|(name, value)| (&**name, *value)).collect();
            assert_eq!(verdicts("mixed", 0, &[], &more), expected);
        };
        check(0.96, [0.46, 0.46], 0.0, [true; 10]);
        let mut slow = [true; 10];
        slow[..5].fill(false);
        check(0.94, [0.46, 0.46], 0.0, slow);
        let mut starved = [true; 10];
        starved[5..7].fill(false);
        check(1.0, [0.44, 0.6], 0.0, starved);
        let mut starving = [true; 10];
        starving[7..9].fill(false);
        check(1.0, [0.6, 0.44], 0.0, starving);
        let mut broken = [true; 10];
        broken[9] = false;
        check(1.0, [0.5, 0.5], 1.0, broken);
    }

    #[test]
    fn loads_that_must_be_answered_are() {
        let note = |phase: Phase, counts: &[(u16, u64)]| {
            phase.note(&tally(counts, 1), &mut Values::default(), 0)
        };
        assert!(note(Phase::default(), &[(200, 1)]).is_ok());
        for counts in [&[][..], &[(200, 1), (429, 1)], &[(500, 1)]] {
            assert!(note(Phase::default(), counts).is_err(), "{counts:?}");
        }
        let open = || Phase {
            rate: Some("1".to_owned()),
            ..Phase::default()
        };
        assert!(note(open(), &[(429, 1)]).is_ok());
        let streams = Phase {
            tokens: 64,
            ..Phase::default()
        };
        assert!(note(streams, &[(200, 1)]).is_err());
    }

    #[test]
    fn plans_are_read_off_the_log() {
        let log = [
            "memory: demo-lm: 250 MiB planned: weights 5, 16384 KV blocks of 16 tokens 192",
            "memory: b: 1024 MiB planned: weights 5",
            "ready: demo-lm (lm)",
        ];
        let log = log.map(str::to_owned);
        assert_eq!(planned_mib(&log), 1_274.0);
        assert_eq!(planned_mib(&log[2..]), 0.0);
    }
}
