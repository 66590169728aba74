//! Groups by how much of a prompt is cached: those who gain most from the cache come first, and
//! none is forgotten.

use std::collections::{BTreeMap, BTreeSet};

use prelude_core::{RequestId, Timestamp};

use super::{
    Plan, PromptSize, QueueView, SchedulerPolicy, StepBudget, Waiting,
    places::{Orders, Places},
};
use crate::Turn;

/// The number of groups.
pub(crate) const GROUPS: u32 = 10;

/// Requests by priority, then in ten groups by the share of their next prompt that the prefix cache
/// holds *now*: group 10 is cached whole, group 1 below a fifth (the priority groups of
/// Preble's local scheduler). One-shot requests and
/// generations are ordered apart, in the same way.
///
/// Of the places that a step has, group `g` gets a part in proportion to `g`, rounded by largest
/// remainder; what a group cannot use goes to the highest that can. Inside a group it is first
/// come, first served. A step that has room for fewer than it has places takes them in the same
/// proportion. Any group gets the first place at least once in ten steps that start requests of its
/// class, so none starves; between priorities it is [`Turn`] that sees to that.
#[derive(Debug, Default)]
pub struct Groups {
    oneshot: Line,
    decode: Line,
}

impl Groups {
    /// Returns a policy without waiting requests.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// Returns the group of a prompt of which so much is cached.
pub(crate) fn group_of(prompt: PromptSize) -> u32 {
    let tenths = u64::from(GROUPS) * u64::from(prompt.cached) / u64::from(prompt.tokens);
    u32::try_from(tenths)
        .expect("a prompt has no more cached tokens than tokens")
        .max(1)
}

/// Requests of one class.
#[derive(Debug, Default)]
struct Line {
    places: Places<Place, Levels>,
    /// True if a step has started any of the requests since the last plan.
    has_started: bool,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    waiting: Waiting,
    group: u32,
}

/// The groups of each turn and priority.
#[derive(Debug, Default)]
struct Levels(BTreeMap<(Turn, i64), Level>);

impl Levels {
    fn group_mut(&mut self, place: &Place) -> &mut Group {
        let Waiting { turn, priority, .. } = place.waiting;
        let level = self.0.entry((turn, priority)).or_default();
        level.entry(place.group).or_default()
    }
}

impl Orders<Place> for Levels {
    fn insert(&mut self, request: RequestId, place: &Place) {
        let at = (place.waiting.arrival, request);
        self.group_mut(place).line.insert(at);
    }

    fn remove(&mut self, request: RequestId, place: &Place) {
        let at = (place.waiting.arrival, request);
        self.group_mut(place).line.remove(&at);
    }
}

/// The groups of one priority, by number.
type Level = BTreeMap<u32, Group>;

#[derive(Debug, Default)]
struct Group {
    /// The members in order of arrival.
    line: BTreeSet<(Timestamp, RequestId)>,
    /// Steps that started requests of this class since the last step that started one of the
    /// group's.
    passed_over: u32,
    has_started: bool,
}

impl Line {
    /// Notes that a request waits in a group now, or that it waits no more; it was `withdrawn` if
    /// it ended before all of it had started.
    fn set(&mut self, request: RequestId, now: Option<(Waiting, u32)>, withdrawn: bool) {
        let before = self.places.take(request);
        // A request with fewer rows waiting than before, or none, has started some.
        let has_started = |before: &Place| now.is_none_or(|(w, _)| w.rows < before.waiting.rows);
        if let Some(before) = before.filter(|before| !withdrawn && has_started(before)) {
            self.places.orders_mut().group_mut(&before).has_started = true;
            self.has_started = true;
        }
        if let Some((waiting, group)) = now {
            self.places.put(request, Place { waiting, group });
        }
    }

    /// Notes who was passed over by the last step, and forgets who is gone.
    fn settle(&mut self) {
        let stepped = std::mem::take(&mut self.has_started);
        self.places.orders_mut().0.retain(|_, level| {
            level.retain(|_, group| !group.line.is_empty());
            for group in level.values_mut() {
                let started = std::mem::take(&mut group.has_started);
                group.passed_over = match (stepped, started) {
                    (true, true) => 0,
                    (true, false) => group.passed_over + 1,
                    (false, _) => group.passed_over,
                };
            }
            !level.is_empty()
        });
    }

    /// Returns the first `places` requests in line.
    fn first(&self, places: usize) -> Vec<RequestId> {
        let mut line = Vec::new();
        for level in self.places.orders().0.values() {
            let left = places - line.len();
            if left == 0 {
                break;
            }
            line.extend(first_of(level, left));
        }
        line
    }
}

/// Returns the first `places` of one priority: each group's part of them, woven into each other.
fn first_of(level: &Level, places: usize) -> Vec<RequestId> {
    let sizes: BTreeMap<u32, usize> = level.iter().map(|(&g, of)| (g, of.line.len())).collect();
    let parts = parts(&sizes, places);
    let urgent = urgent(level);
    let mut line: Vec<_> = level
        .iter()
        .flat_map(|(&number, group)| {
            let mine = group.line.iter().take(parts[&number]).enumerate();
            // The middle of the k-th of so many equal stretches as the group has weight.
            mine.map(move |(k, &(_, request))| {
                let is_first = Some(number) == urgent && k == 0;
                let at = (2 * k as u64 + 1) * 5_040 / u64::from(number);
                (!is_first, at, u32::MAX - number, request)
            })
        })
        .collect();
    // The urgent group may have no part in so few places.
    if let Some(number) = urgent.filter(|number| parts[number] == 0) {
        let &(_, request) = level[&number]
            .line
            .first()
            .expect("a level has only groups with members");
        line.push((false, 0, 0, request));
    }
    line.sort_unstable();
    line.truncate(places);
    line.into_iter().map(|(.., request)| request).collect()
}

/// Splits `places` over groups of these sizes, by largest remainder in proportion to the groups'
/// numbers; what a group cannot use goes to the highest that can.
pub(crate) fn parts(sizes: &BTreeMap<u32, usize>, places: usize) -> BTreeMap<u32, usize> {
    let weight: usize = sizes.keys().map(|&g| g as usize).sum();
    let share = |g: u32| places * g as usize;
    let parts = sizes.keys().map(|&g| (g, share(g) / weight));
    let mut parts: BTreeMap<u32, usize> = parts.collect();
    let mut remainders: Vec<_> = sizes.keys().map(|&g| (share(g) % weight, g)).collect();
    remainders.sort_unstable();
    let given: usize = parts.values().sum();
    for (_, g) in remainders.into_iter().rev().take(places - given) {
        *parts
            .get_mut(&g)
            .expect("every group with a remainder has a part") += 1;
    }
    let mut left = 0;
    for (g, part) in &mut parts {
        left += part.saturating_sub(sizes[g]);
        *part = (*part).min(sizes[g]);
    }
    for (g, part) in parts.iter_mut().rev() {
        let more = left.min(sizes[g] - *part);
        (*part, left) = (*part + more, left - more);
    }
    parts
}

/// Returns the group whose ten steps end first, if one of the groups would otherwise not get its
/// place in time: each step gives one for sure, so the k-th to end must have more than k steps
/// left.
fn urgent(level: &Level) -> Option<u32> {
    let left = |group: &Group| (GROUPS - 1).saturating_sub(group.passed_over);
    let mut ends: Vec<(u32, u32)> = level.iter().map(|(&g, of)| (left(of), g)).collect();
    ends.sort_unstable();
    let is_tight = |(k, &(left, _)): (usize, &(u32, u32))| left as usize <= k;
    let (_, first) = ends.first()?;
    ends.iter().enumerate().any(is_tight).then_some(*first)
}

impl SchedulerPolicy for Groups {
    fn plan(&mut self, view: &QueueView<'_>, budget: StepBudget) -> Plan {
        for &(request, change) in view.changed() {
            let of = |waiting: Option<Waiting>| {
                let group = change.map(|change| group_of(change.cost.prompt));
                waiting.zip(group)
            };
            let withdrawn = view.withdrawn().contains(&request);
            let before = self.oneshot.places.get(request).is_some();
            let oneshot = change.and_then(|change| change.oneshot);
            if before || oneshot.is_some() {
                self.oneshot.set(request, of(oneshot), withdrawn);
            }
            let before = self.decode.places.get(request).is_some();
            let decode = change.and_then(|change| change.decode);
            if before || decode.is_some() {
                self.decode.set(request, of(decode), withdrawn);
            }
        }
        let grants = |line: &mut Line, places: u32| {
            line.settle();
            let first = line.first(places as usize).into_iter();
            first.map(|request| budget.grant(request)).collect()
        };
        Plan {
            oneshot: grants(&mut self.oneshot, budget.rows),
            decode: grants(&mut self.decode, budget.seqs),
            ..Plan::default()
        }
    }

    fn follows_costs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_tenths() {
        let check = |cached, tokens, expected| {
            assert_eq!(group_of(PromptSize { tokens, cached }), expected);
        };
        // The paper's examples.
        check(63, 100, 6);
        check(100, 100, 10);
        check(0, 100, 1);
        check(19, 100, 1);
        check(20, 100, 2);
        check(u32::MAX, u32::MAX, 10);
    }

    /// Each step starts a request of group 9, and one of group 1 is aborted before it starts.
    #[test]
    fn an_abort_is_no_turn() {
        let waiting = |id: u64| Waiting {
            request: RequestId(id),
            turn: Turn::Usual,
            priority: 0,
            arrival: Timestamp::from_nanos(id),
            deadline: None,
            rows: 1,
        };
        let mut line = Line::default();
        line.set(RequestId(0), Some((waiting(0), 1)), false);
        for id in 1..20 {
            line.set(RequestId(id), Some((waiting(id), 9)), false);
            line.set(RequestId(100 + id), Some((waiting(100 + id), 1)), false);
        }
        let first = |id| {
            line.set(RequestId(id), None, false);
            line.set(RequestId(100 + id), None, true);
            line.settle();
            line.first(1)[0]
        };
        let turn = (1..20).map(first).position(|id| id == RequestId(0));
        assert_eq!(turn, Some(8), "once in ten steps");
    }

    #[test]
    fn places_are_split_by_weight() {
        let full = |groups: &[u32]| groups.iter().map(|&g| (g, 100)).collect();
        let check = |sizes: &BTreeMap<u32, usize>, places, expected: &[usize]| {
            let parts: Vec<usize> = parts(sizes, places).into_values().collect();
            assert_eq!(parts, expected, "{sizes:?}, {places}");
        };
        let all: Vec<u32> = (1..=10).collect();
        check(&full(&all), 55, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
        check(&full(&[1, 10]), 11, &[1, 10]);
        check(&full(&[2, 3]), 1, &[0, 1]);
        check(&full(&[2, 3]), 2, &[1, 1]);
        check(&full(&[7]), 4, &[4]);
        // What a group does not have goes to the highest that has.
        check(&BTreeMap::from([(1, 9), (5, 9), (10, 2)]), 12, &[1, 9, 2]);
        check(&BTreeMap::from([(1, 3), (10, 1)]), 9, &[3, 1]);
    }
}
