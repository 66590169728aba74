//! Length-aware prefill: short and long prompts take turns, and short ones wait for each other.

mod boundary;
mod config;
mod costs;
mod line;
mod shares;
mod window;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use prelude_core::{RequestId, ServiceTime, StepId, StepWork, Timestamp};

pub use self::config::LapsConfig;
use self::{
    boundary::Boundary,
    config::micros,
    costs::StepCosts,
    line::{Key, Line, Lines, Place},
    shares::Shares,
    window::{Gathered, Window},
};
use super::{
    Plan, QueueView, SchedulerPolicy, StepBudget, StepTime, Unfinished, Waiting, places::Places,
};
use crate::Turn;

/// Short prompts apart from long ones (LAPS, temporal mode on one device): what little there is to
/// compute of a short prompt would wait for all of a long one, and delays a long one little.
///
/// - A request is short if what is *not* cached of it now, or what is left of it, takes the device
///   longer to fetch than to compute: up to [`boundary_tokens`](LapsConfig::boundary_tokens), or as
///   the [time of steps](crate::SchedulerConfig::service) says. One-shot work and prompts of generations alike.
/// - A step has short work or long work. Long work gets on by one chunk of one request: one that
///   has begun is first brought to its end, and one that is alone runs as under
///   [`Fcfs`](crate::Fcfs). Short work goes together, the shortest first by powers
///   of two, until the step is [full enough](LapsConfig::batch_tokens).
/// - Whose turn it is follows from deficit round robin in device time, each class's share being
///   the part that it has of the load that comes, within a
///   [floor](LapsConfig::share_floor_percent). The paper leaves this open; with strict alternation
///   long prompts collapse near saturation.
/// - An overdue request goes first, and its class has the turn.
/// - A request that would miss its deadline if it sat the next step out goes before that. One that
///   will miss it in any case does not: as printed, a prompt that takes longer than its target
///   would always go first, and help no request.
/// - While the device has nothing else to do, short requests wait for each other: until as many are
///   there as came together of late, for an adaptive window. The device does not wait if long work
///   is there, if the next request is expected later than a launch costs, or without a deadline.
///
/// Priority comes before length within a class.
/// Generations that decode go on in every step.
///
/// Not here: the paper's spatial mode, which moves whole devices between classes, and shapes,
/// which executors choose.
#[derive(Debug)]
pub struct Laps {
    config: LapsConfig,
    boundary: Boundary,
    places: Places<Place, Lines>,
    shares: Shares,
    costs: StepCosts,
    window: Window,
    /// The latest plan, which becomes a step or not, and the plans that became steps.
    proposed: Option<(StepId, Proposal)>,
    running: BTreeMap<StepId, Proposal>,
    /// The class whose turn came to nothing in the last step for want of blocks: the other class is
    /// next.
    barren: Option<Length>,
}

/// The class of a request by how much there is to compute: little or much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Length {
    /// Prompts whose computing takes less time than a step's memory traffic.
    Short,
    /// More.
    Long,
}

impl Length {
    const fn other(self) -> Self {
        match self {
            Self::Short => Self::Long,
            Self::Long => Self::Short,
        }
    }
}

/// The class that a plan was for.
#[derive(Clone, Copy, Debug)]
struct Proposal {
    now: Timestamp,
    length: Length,
    had_work: [bool; 2],
    /// The number of short requests that waited, if the plan was for them to go.
    depth: Option<u32>,
}

/// Steps in flight that are remembered; those that fail are never reported.
const MAX_RUNNING: usize = 16;

/// The time over which the load that each class offers is averaged. Longer keeps shares steady,
/// shorter follows a change of traffic sooner.
const LOAD_WINDOW: Duration = Duration::from_secs(10);

impl Laps {
    /// Returns a policy without waiting requests. The boundary and the times that it reckons with
    /// follow from `service`, if there is one; else they are configured and learnt.
    ///
    /// # Panics
    /// If a field is out of its range, which
    /// [`SchedulerConfig::validate`](crate::SchedulerConfig::validate) says too.
    #[must_use]
    pub fn new(config: LapsConfig, service: Option<ServiceTime>) -> Self {
        let wrong = config.checks().into_iter().find(|(.., ok)| !ok);
        assert!(wrong.is_none(), "out of range: {wrong:?}");
        Self {
            boundary: Boundary::new(&config, service.as_ref()),
            costs: StepCosts::new(service),
            places: Places::default(),
            shares: Shares::new(config.share_floor_percent, LOAD_WINDOW),
            window: Window::new(&config),
            proposed: None,
            running: BTreeMap::new(),
            barren: None,
            config,
        }
    }

    fn length_of(&self, tokens: u64, context: u32) -> Length {
        if tokens <= u64::from(self.boundary.tokens(context)) {
            Length::Short
        } else {
            Length::Long
        }
    }

    fn line(&self, length: Length) -> &Line {
        &self.places.orders()[length as usize]
    }

    fn follow(&mut self, view: &QueueView<'_>) {
        for &(request, change) in view.changed() {
            let before = self.places.take(request);
            let withdrawn = view.withdrawn().contains(&request);
            if let Some(gone) = before.filter(|_| withdrawn) {
                self.shares.withdraw(view.now(), &gone.offer);
            }
            let before = before.filter(|_| !withdrawn);
            let Some(change) = change else { continue };
            let Some(waiting) = change.oneshot.or(change.decode) else {
                continue;
            };
            let tokens = change.cost.tokens;
            let length = self.length_of(tokens, change.cost.prompt.cached);
            let work = change.cost.work();
            let offer = before.map_or_else(
                || {
                    let work = self.costs.work(&work);
                    self.shares.arrive(view.now(), length, work)
                },
                |before| before.offer,
            );
            let turns = [change.oneshot, change.decode].into_iter().flatten();
            let turn = turns.map(|waiting| waiting.turn).min();
            let turn = turn.unwrap_or(waiting.turn);
            let place = Place {
                key: Key::new(&Waiting { turn, ..waiting }, length, tokens),
                length,
                tokens,
                start_by: self.start_by(waiting.arrival, waiting.deadline, &work),
                offer,
                has_rows: change.oneshot.is_some(),
                generates: change.decode.is_some(),
            };
            self.places.put(request, place);
        }
        if self.line(Length::Short).is_empty() {
            self.window.forget();
        }
    }

    /// Returns the time by which a request has to start to meet its deadline, if it has one.
    fn start_by(
        &self,
        arrival: Timestamp,
        deadline: Option<Timestamp>,
        work: &StepWork,
    ) -> Option<Timestamp> {
        let target = Duration::from_millis(u64::from(self.config.ttft_target_ms));
        let usual = (!target.is_zero()).then(|| arrival.saturating_add(target));
        let deadline = deadline.or(usual)?;
        let service = Timestamp::ZERO.saturating_add(self.costs.service(work));
        let left = deadline.saturating_since(service);
        Some(Timestamp::ZERO.saturating_add(left))
    }

    /// Notes what became of the plans for steps before this one.
    fn settle(&mut self, step: StepId) {
        let Some((id, proposal)) = self.proposed.take_if(|(id, _)| *id < step) else {
            return;
        };
        if let Some(depth) = proposal.depth {
            self.window.go(proposal.now, depth);
        }
        self.running.insert(id, proposal);
        if self.running.len() > MAX_RUNNING {
            self.running.pop_first();
        }
    }

    /// Returns whether a class has anything to take up: by itself, or a prompt to go on with.
    fn had_work(&self, view: &QueueView<'_>, budget: StepBudget) -> [bool; 2] {
        let mut had_work = [Length::Short, Length::Long].map(|length| {
            let line = self.line(length);
            line.has_rows() || (budget.seqs > 0 && !line.is_empty())
        });
        for prompt in view.unfinished() {
            had_work[self.length_of_rest(prompt) as usize] = true;
        }
        had_work
    }

    fn length_of_rest(&self, prompt: &Unfinished) -> Length {
        self.length_of(u64::from(prompt.tokens), prompt.context)
    }

    /// Returns the class whose turn it is.
    fn turn(
        &self,
        view: &QueueView<'_>,
        budget: StepBudget,
        had_work: [bool; 2],
    ) -> Option<Length> {
        match had_work {
            [false, false] => return None,
            [true, false] => return Some(Length::Short),
            [false, true] => return Some(Length::Long),
            [true, true] => {}
        }
        let turn = self
            .barren
            .map(Length::other)
            .or_else(|| self.overdue(view, budget))
            .or_else(|| self.urgent(view));
        Some(turn.unwrap_or_else(|| self.shares.next()))
    }

    /// Returns the class of the request that has been overdue for longest, of those that can start.
    fn overdue(&self, view: &QueueView<'_>, budget: StepBudget) -> Option<Length> {
        let oneshot = view.oneshot().next();
        let decode = view.decode().next().filter(|_| budget.seqs > 0);
        let overdue = [oneshot, decode].into_iter().flatten();
        let longest = overdue
            .filter(|waiting| waiting.turn == Turn::Overdue)
            .min_by_key(|waiting| waiting.arrival)?;
        Some(self.places[longest.request].length)
    }

    /// Returns the class of the first that can meet its deadline, but not if it sits out a step.
    fn urgent(&self, view: &QueueView<'_>) -> Option<Length> {
        let now = view.now();
        let rests = view.unfinished().iter().filter_map(|prompt| {
            let work = StepWork::prompt(prompt.tokens, prompt.context + prompt.tokens);
            let start_by = self.start_by(prompt.arrival, prompt.deadline, &work)?;
            (start_by >= now).then(|| (start_by, self.length_of_rest(prompt)))
        });
        let waiting = [Length::Short, Length::Long].map(|length| {
            let start_by = self.line(length).next_start(now)?;
            Some((start_by, length))
        });
        let is_urgent =
            |&(start_by, length): &(Timestamp, Length)| start_by < self.next_chance(now, length);
        let urgent = rests.chain(waiting.into_iter().flatten()).filter(is_urgent);
        urgent.min().map(|(_, length)| length)
    }

    /// Returns the time before which a class's requests need not start if this step leaves them
    /// out.
    fn next_chance(&self, now: Timestamp, length: Length) -> Timestamp {
        let slack = micros(self.config.slack_us);
        now.saturating_add(self.costs.usual(length.other()) + slack)
    }

    fn plan_short(&self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let now = view.now();
        let line = self.line(Length::Short);
        let until = now.saturating_add(micros(self.config.slack_us));
        let overdue: Vec<RequestId> = line.overdue().collect();
        let urgent = line.starts(now, until);
        let urgent = urgent.filter(|request| !overdue.contains(request));
        let first: Vec<RequestId> = overdue.iter().copied().chain(urgent).collect();
        let ahead: BTreeSet<RequestId> = first.iter().copied().collect();
        let is_other = |request: &RequestId| !ahead.contains(request);
        let grant = |request| budget.grant(request);
        let mut plan = Plan {
            enough_tokens: Some(self.config.batch_tokens),
            ..Plan::default()
        };
        let has_rows = |request: &RequestId| self.places[*request].has_rows;
        let rows = first.iter().copied().filter(has_rows);
        let rows = rows.chain(line.rows().filter(is_other));
        plan.oneshot = rows.take(budget.rows as usize).map(grant).collect();
        let generates = |request: &RequestId| self.places[*request].generates;
        let prompts = first.iter().copied().filter(generates);
        let prompts = prompts.chain(line.generating().filter(is_other));
        let mut tokens = 0;
        for request in prompts.take(budget.seqs as usize) {
            if tokens >= u64::from(self.config.batch_tokens) {
                break;
            }
            plan.decode.push(grant(request));
            tokens += self.places[request].tokens;
        }
        let rests = view.unfinished().iter();
        let short = rests.filter(|prompt| self.length_of_rest(prompt) == Length::Short);
        plan.chunks = Some(short.map(|prompt| prompt.request).collect());
        plan
    }

    fn plan_long(&self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        let tokens = self.config.chunk_tokens;
        let mut plan = Plan {
            enough_tokens: Some(tokens),
            chunk_tokens: Some(tokens),
            chunks: Some(Vec::new()),
            ..Plan::default()
        };
        let mut rests = view.unfinished().iter();
        // A prompt that has begun holds blocks, which the next request may need.
        if let Some(begun) = rests.find(|prompt| self.length_of_rest(prompt) == Length::Long) {
            plan.chunks = Some(vec![begun.request]);
        } else if let Some(place) = self.first_long(view.now(), budget) {
            // The view knows of requests that the policy has not been told the costs of yet.
            let mut waiting = view.oneshot().chain(view.decode());
            let is_lone = waiting.all(|other| other.request == place.key.request);
            if view.is_idle() && is_lone && view.unfinished().is_empty() {
                // The request delays no other, so it may run in one step and needs no blocks.
                (plan.enough_tokens, plan.chunk_tokens) = (None, None);
            }
            let grant = |granted: bool| granted.then_some(budget.grant(place.key.request));
            plan.oneshot.extend(grant(place.has_rows));
            plan.decode
                .extend(grant(place.generates && budget.seqs > 0));
        }
        plan
    }

    /// Returns the long request that goes next: one that is overdue, urgent, or the first to come.
    fn first_long(&self, now: Timestamp, budget: StepBudget) -> Option<&Place> {
        let line = self.line(Length::Long);
        let can_start = |place: &&Place| place.has_rows || budget.seqs > 0;
        let urgent = line.starts(now, self.next_chance(now, Length::Long));
        let first = match budget.seqs {
            0 => line.rows().next(),
            _ => line.first().map(|key| key.request),
        };
        let line = line.overdue().chain(urgent).chain(first);
        line.map(|request| &self.places[request]).find(can_start)
    }

    /// Returns the time until which short requests wait for more of them, if they do.
    fn wait_until(&mut self, view: &QueueView<'_>) -> Option<Timestamp> {
        let now = view.now();
        let line = self.line(Length::Short);
        let is_overdue = line.first()?.turn == Turn::Overdue;
        let is_full = line.tokens() >= u64::from(self.config.batch_tokens);
        if is_overdue || is_full || !view.unfinished().is_empty() {
            return None;
        }
        let Some(start_by) = line.first_start() else {
            return self.window.fill_until(now, line.head()?);
        };
        let gap = self.shares.gap(Length::Short);
        let launch = self.costs.launch();
        if view.is_idle() && gap.is_none_or(|gap| gap > launch) {
            return None;
        }
        let gathered = Gathered {
            depth: line.depth(),
            head: line.head()?,
            start_by,
            gap,
        };
        self.window.wait_until(now, &gathered)
    }

    #[cfg(test)]
    pub(crate) fn place_of(&self, request: RequestId) -> Option<(Length, Option<Timestamp>)> {
        let place = self.places.get(request)?;
        Some((place.length, place.start_by))
    }
}

impl SchedulerPolicy for Laps {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        self.settle(view.step());
        self.proposed = None;
        self.follow(view);
        let had_work = self.had_work(view, budget);
        let Some(length) = self.turn(view, budget, had_work) else {
            return Plan::default();
        };
        let mut proposal = Proposal {
            now: view.now(),
            length,
            had_work,
            depth: None,
        };
        let plan = match length {
            Length::Long => self.plan_long(view, budget),
            Length::Short => {
                let is_alone = !had_work[Length::Long as usize];
                let wait = is_alone.then(|| self.wait_until(view)).flatten();
                if wait.is_some() {
                    return Plan {
                        chunks: Some(Vec::new()),
                        wait_until: wait,
                        ..Plan::default()
                    };
                }
                proposal.depth = Some(self.line(Length::Short).depth());
                self.plan_short(view, budget)
            }
        };
        self.proposed = Some((view.step(), proposal));
        plan
    }

    fn completed(&mut self, step: &StepTime) {
        self.settle(StepId(step.step.0 + 1));
        let Some(proposal) = self.running.remove(&step.step) else {
            return;
        };
        self.running.retain(|&id, _| id > step.step);
        self.barren = (step.prompt_tokens == 0).then_some(proposal.length);
        let now = proposal.now.saturating_add(step.took);
        self.costs.note(proposal.length, step);
        self.shares
            .charge(now, proposal.length, proposal.had_work, step.took);
    }

    fn follows_costs(&self) -> bool {
        true
    }
}
