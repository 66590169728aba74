//! One order for everything that has tokens to compute: by the time that it takes, what has waited
//! counting against that.

mod times;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use prelude_core::{RequestId, ServiceTime, StepWork, Timestamp};
use prelude_kv::BlockHash;

use self::times::Times;
use super::{
    Plan, QueueView, SchedulerPolicy, StepBudget, StepTime, Unfinished, Waiting,
    places::{Orders, Places},
};
use crate::{Cost, Turn};

/// The policy that needs no choosing. One-shot requests, prompts of generations and prompts that have
/// begun are ordered in one way, each class within its share of the device:
///
/// 1. by priority;
/// 2. who can still meet a deadline, before who cannot any more;
/// 3. by the time from which on it yields to no request that comes later: its arrival and a hundred times
///    the time that its tokens take which are not cached *now*, or, if that is less, its arrival and
///    twice the time of all that waited when it came and twenty times its own. So short requests
///    overtake long ones, none starves, and where more comes than the device can do, what is long
///    waits about twice as long as it would in the order of arrival, and not until the crowd is gone;
/// 4. those that share the first one's cached prefix go along with it, as far as a step is not full
///    enough without them.
///
/// A prompt of a generation that has begun is put aside for better ones after each chunk; at most
/// eight prompts are under way at once, so that their blocks are bounded. Long one-shot prompts are put
/// aside at each slice, whatever the policy.
///
/// An [overdue](Turn) request goes first, with all that share its cached prefix, and takes a quarter of
/// the device's time at most: after it the next one goes first only once four times as much time has
/// passed as it took. With less, an overload in which all are overdue would be served in
/// the order of arrival, which computes shared prefixes again and again.
///
/// Times are those of a profile, or learnt from the steps that were run.
#[derive(Debug)]
pub struct Auto {
    times: Times,
    oneshot: Line,
    decode: Line,
    /// Generations that decoded in the last step.
    decoding: u32,
    /// Of generations whose prompts have begun, the time that those took that waited when they came.
    begun: BTreeMap<RequestId, Duration>,
    recalibrations: u64,
}

/// A request waits for later ones at most this many times its own time.
const PATIENCE: u32 = 100;

/// A request waits for later ones at most this many times the time of all that waited when it came, and
/// [`OWN`] times its own.
const AHEAD: u32 = 2;

/// See [`AHEAD`].
const OWN: u32 = 20;

/// One part in so many of the device's time goes to overdue requests at most.
const OVERDUE_SHARE: u64 = 4;

/// Most prompts of generations that have begun and not ended.
const ASIDE: usize = 8;

/// Returns the time from which on no request that comes goes before this one, which takes so long, as do
/// those that waited when it came.
fn due(arrival: Timestamp, takes: Duration, ahead: Duration) -> Timestamp {
    let bound = ahead * AHEAD + takes.saturating_mul(OWN);
    arrival.saturating_add(bound.min(takes.saturating_mul(PATIENCE)))
}

/// A place in the order. Unique, since ids are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    priority: i64,
    is_late: bool,
    due: Timestamp,
    arrival: Timestamp,
    request: RequestId,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    key: Key,
    /// The time that the request takes once it is its turn.
    takes: Duration,
    /// The time that those take that waited when the request came.
    ahead: Duration,
    tokens: u64,
    prefix: Option<BlockHash>,
    turn: Turn,
    /// The latest time at which the request can start and still meet its deadline.
    start_by: Option<Timestamp>,
}

impl Place {
    fn group(&self) -> Option<(i64, BlockHash)> {
        Some((self.key.priority, self.prefix?))
    }
}

/// The waiting requests of a class in the order in which they are due.
#[derive(Debug, Default)]
struct ByDue {
    all: BTreeSet<Key>,
    by_prefix: BTreeMap<(i64, BlockHash), BTreeSet<Key>>,
    /// Requests that can still meet their deadline, by the latest time at which they must start.
    starts: BTreeSet<(Timestamp, RequestId)>,
    overdue: Option<RequestId>,
    tokens: u64,
    takes: Duration,
}

impl Orders<Place> for ByDue {
    fn insert(&mut self, request: RequestId, place: &Place) {
        self.all.insert(place.key);
        self.tokens += place.tokens;
        self.takes += place.takes;
        if let Some(group) = place.group() {
            self.by_prefix.entry(group).or_default().insert(place.key);
        }
        if let Some(start_by) = place.start_by.filter(|_| !place.key.is_late) {
            self.starts.insert((start_by, request));
        }
        if place.turn == Turn::Overdue {
            self.overdue = Some(request);
        }
    }

    fn remove(&mut self, request: RequestId, place: &Place) {
        self.all.remove(&place.key);
        self.tokens -= place.tokens;
        self.takes -= place.takes;
        if let Some(group) = place.group()
            && let Some(keys) = self.by_prefix.get_mut(&group)
        {
            keys.remove(&place.key);
            if keys.is_empty() {
                self.by_prefix.remove(&group);
            }
        }
        if let Some(start_by) = place.start_by {
            self.starts.remove(&(start_by, request));
        }
        self.overdue.take_if(|overdue| *overdue == request);
    }
}

/// The waiting requests of a class.
#[derive(Debug, Default)]
struct Line {
    places: Places<Place, ByDue>,
    /// The time from which on an overdue request may go first again.
    next_overdue: Timestamp,
}

impl Line {
    /// Notes that a request waits with this cost now, or waits no more; it was `withdrawn` if it ended
    /// before all of it had started. Returns true if that moved it.
    fn set(
        &mut self,
        now: Timestamp,
        request: RequestId,
        place: Option<Place>,
        withdrawn: bool,
    ) -> bool {
        let before = self.places.take(request);
        if let Some(place) = place {
            self.places.put(request, place);
        }
        let Some(before) = before else {
            return false;
        };
        if before.turn == Turn::Overdue && !withdrawn {
            let left = place.map_or(Duration::ZERO, |place| place.takes);
            let took = before.takes.saturating_sub(left);
            let share = u32::try_from(OVERDUE_SHARE).unwrap_or(u32::MAX);
            let from = self.next_overdue.max(now);
            self.next_overdue = from.saturating_add(took.saturating_mul(share));
        }
        place.is_some_and(|place| place.key.due != before.key.due)
    }

    /// Puts those behind the others who cannot meet their deadlines any more.
    fn give_up_late(&mut self, now: Timestamp) {
        while let Some(&(start_by, request)) = self.places.orders().starts.first()
            && start_by < now
        {
            let Some(mut place) = self.places.take(request) else {
                return;
            };
            place.key.is_late = true;
            self.places.put(request, place);
        }
    }

    /// Returns the overdue request, if it may go first.
    fn overdue(&self, now: Timestamp) -> Option<&Place> {
        let orders = self.places.orders();
        let overdue = orders.overdue.filter(|_| now >= self.next_overdue)?;
        self.places.get(overdue)
    }

    /// Returns the first in line and those that go with it, then the others. A step is full enough with
    /// `enough` tokens.
    fn in_order(&self, now: Timestamp, enough: u64) -> impl Iterator<Item = &Place> {
        let (first, with) = self.ahead(now, enough).unzip();
        let with: Vec<Key> = with.unwrap_or_default();
        let goes_along = {
            let with = with.clone();
            move |key: &Key| Some(*key) == first || with.binary_search(key).is_ok()
        };
        let all = self.places.orders().all.iter().copied();
        let others = all.filter(move |key| !goes_along(key));
        let line = first.into_iter().chain(with).chain(others);
        line.map(|key| &self.places[key.request])
    }

    /// Returns the first in line, and those that go along with it, in their order.
    fn ahead(&self, now: Timestamp, enough: u64) -> Option<(Key, Vec<Key>)> {
        let orders = self.places.orders();
        let overdue = self.overdue(now);
        let usual = { orders.all.first() }.map(|key| &self.places[key.request]);
        let first = overdue.or(usual)?;
        let group = { first.group() }.and_then(|group| orders.by_prefix.get(&group));
        let others = group.into_iter().flatten();
        let mut tokens = first.tokens;
        let fits = |key: &&Key| {
            tokens += self.places[key.request].tokens;
            overdue.is_some() || tokens <= enough
        };
        let with = { others.filter(|key| **key != first.key) }.take_while(fits);
        Some((first.key, with.take(MOST_ALONG).copied().collect()))
    }
}

/// Most requests that go along with the first.
const MOST_ALONG: usize = 256;

impl Auto {
    /// Returns a policy that reckons with the times of a profile, or learns them if there is none.
    #[must_use]
    pub fn new(service: Option<ServiceTime>) -> Self {
        Self {
            times: Times::new(service),
            oneshot: Line::default(),
            decode: Line::default(),
            decoding: 0,
            begun: BTreeMap::new(),
            recalibrations: 0,
        }
    }

    /// Returns the tokens with which a step is full enough: cutting it in two would cost those who wait
    /// more, for each a start of a step, than it would gain those who are in it.
    fn enough(&self, view: &QueueView<'_>) -> u64 {
        let (oneshot, decode) = (self.oneshot.places.orders(), self.decode.places.orders());
        let rests = view.unfinished();
        let rest: u64 = rests.iter().map(|prompt| u64::from(prompt.tokens)).sum();
        let waiting = oneshot.all.len() + decode.all.len() + rests.len();
        let tokens = oneshot.tokens + decode.tokens + rest;
        self.times
            .enough(waiting as u64, tokens, self.decoding.into())
    }

    fn place(&self, waiting: &Waiting, cost: &Cost, ahead: Duration) -> Place {
        let work = cost.work();
        let takes = self.times.added(&work);
        let alone = self.times.alone(&work);
        let start_by = waiting.deadline.map(|deadline| {
            let left = deadline.saturating_since(Timestamp::ZERO.saturating_add(alone));
            Timestamp::ZERO.saturating_add(left)
        });
        Place {
            key: Key {
                priority: waiting.priority,
                is_late: false,
                due: due(waiting.arrival, takes, ahead),
                arrival: waiting.arrival,
                request: waiting.request,
            },
            takes,
            ahead,
            tokens: cost.tokens,
            prefix: cost.prefix,
            turn: waiting.turn,
            start_by,
        }
    }

    fn follow(&mut self, view: &QueueView<'_>) {
        let now = view.now();
        for &(request, change) in view.changed() {
            let withdrawn = view.withdrawn().contains(&request);
            let place = |waiting: Option<Waiting>, line: &Line| {
                let cost = change.map(|change| change.cost)?;
                let before = line.places.get(request);
                let ahead = before.map_or_else(|| self.ahead(view), |before| before.ahead);
                Some(self.place(&waiting?, &cost, ahead))
            };
            let oneshot = place(change.and_then(|change| change.oneshot), &self.oneshot);
            let decode = place(change.and_then(|change| change.decode), &self.decode);
            if decode.is_none()
                && let Some(before) = self.decode.places.get(request)
            {
                self.begun.insert(request, before.ahead);
            }
            let moved = self.oneshot.set(now, request, oneshot, withdrawn);
            self.recalibrations += u64::from(moved);
            let moved = self.decode.set(now, request, decode, withdrawn);
            self.recalibrations += u64::from(moved);
        }
        self.oneshot.give_up_late(now);
        self.decode.give_up_late(now);
        let going = |request| { view.unfinished().iter() }.any(|prompt| prompt.request == request);
        self.begun.retain(|&request, _| going(request));
    }

    /// Returns the time that all that waits takes.
    fn ahead(&self, view: &QueueView<'_>) -> Duration {
        let rests = { view.unfinished().iter() }.map(|prompt| self.times.added(&rest(prompt)));
        let (oneshot, decode) = (self.oneshot.places.orders(), self.decode.places.orders());
        oneshot.takes + decode.takes + rests.sum()
    }

    /// Returns the requests whose unfinished prompts go on: those whose turn comes before the step is
    /// full, beside the generations that wait.
    fn going(
        &self,
        view: &QueueView<'_>,
        budget: StepBudget,
        enough: u64,
    ) -> Option<Vec<RequestId>> {
        let unfinished = view.unfinished();
        if unfinished.is_empty()
            || (unfinished.len() == 1 && self.decode.places.orders().all.is_empty())
        {
            return None;
        }
        let mut rests: Vec<(Key, u32)> = { unfinished.iter() }
            .map(|prompt| {
                let work = rest(prompt);
                let waits = self.decode.places.get(prompt.request);
                let begun = self.begun.get(&prompt.request).copied();
                let ahead = waits.map(|place| place.ahead).or(begun).unwrap_or_default();
                let by = prompt
                    .deadline
                    .map_or(u64::MAX, |deadline| deadline.as_nanos());
                let ends = view.now().saturating_add(self.times.alone(&work));
                let key = Key {
                    priority: prompt.priority,
                    is_late: ends.as_nanos() > by,
                    due: due(prompt.arrival, self.times.added(&work), ahead),
                    arrival: prompt.arrival,
                    request: prompt.request,
                };
                (key, prompt.tokens)
            })
            .collect();
        rests.sort_unstable();
        let may_begin = budget.seqs > 0 && !is_full(view);
        let waiting = self.decode.in_order(view.now(), enough);
        let mut waiting = waiting
            .take(if may_begin { budget.seqs as usize } else { 0 })
            .peekable();
        let (mut left, mut going) = (enough, Vec::new());
        for (key, tokens) in rests {
            while left > 0
                && let Some(first) = waiting.next_if(|place| place.key < key)
            {
                left = left.saturating_sub(first.tokens);
            }
            // What goes on has its tokens before those that wait: it must leave them theirs.
            if left < enough && u64::from(tokens) > left {
                break;
            }
            left = left.saturating_sub(tokens.into());
            going.push(key.request);
        }
        Some(going)
    }
}

#[cfg(test)]
impl Auto {
    /// Returns the time that a waiting request takes, when it is due and when it must start; `class`: 0
    /// of one-shot requests, 1 of generations.
    pub(crate) fn place_of(
        &self,
        class: usize,
        request: RequestId,
    ) -> Option<(Duration, Timestamp, Option<Timestamp>)> {
        let line = [&self.oneshot, &self.decode][class];
        let place = line.places.get(request)?;
        Some((place.takes, place.key.due, place.start_by))
    }

    /// Returns the requests of which the policy remembers what was ahead of their prompts.
    pub(crate) fn begun(&self) -> impl Iterator<Item = RequestId> {
        self.begun.keys().copied()
    }

    /// Returns the times from which on an overdue request may go first again, by class.
    pub(crate) fn overdue_from(&self) -> [Timestamp; 2] {
        [self.oneshot.next_overdue, self.decode.next_overdue]
    }
}

/// Returns the work of a prompt that is left.
fn rest(prompt: &Unfinished) -> StepWork {
    StepWork::prompt(prompt.tokens, prompt.context + prompt.tokens)
}

/// Returns whether as many prompts of generations are under way as may be.
fn is_full(view: &QueueView<'_>) -> bool {
    let prompts = view.unfinished().iter().filter(|prompt| prompt.generates);
    prompts.count() >= ASIDE
}

impl SchedulerPolicy for Auto {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        self.follow(view);
        let enough = self.enough(view).min(budget.tokens.into());
        let now = view.now();
        let rows = self
            .oneshot
            .in_order(now, enough)
            .take(budget.rows as usize);
        let grants = rows.map(|place| budget.grant(place.key.request));
        let is_full = is_full(view);
        let prompts = self.decode.in_order(now, enough);
        // Prompts that a step computes whole hold blocks for no longer than they must.
        let prompts =
            prompts.filter(|place| !is_full || place.tokens <= u64::from(budget.tokens) / 4);
        let prompts = prompts.take(budget.seqs as usize);
        Plan {
            oneshot: grants.collect(),
            decode: prompts
                .map(|place| budget.grant(place.key.request))
                .collect(),
            enough_tokens: u32::try_from(enough).ok(),
            prefill_tokens: u32::try_from(enough).ok(),
            chunks: self.going(view, budget, enough),
            fills: true,
            ..Plan::default()
        }
    }

    fn completed(&mut self, step: &StepTime) {
        self.decoding = step.decode_rows;
        self.times.note(step);
    }

    fn follows_costs(&self) -> bool {
        true
    }

    fn recalibrations(&self) -> u64 {
        self.recalibrations
    }
}
