//! The instance-pressure controller of LAPS (§3.2, algorithm 2).
//!
//! After each control period it compares the pressures of the two pools and says which pool gets
//! one more endpoint. At most one endpoint moves in a cool-down period, so that the effect of a
//! move shows before the next one.

use std::time::Duration;

use prelude_core::Timestamp;

use super::Pool;
use crate::config::LapsConfig;

/// The weight of an endpoint's backlog in its pressure, `α`.
const BACKLOG_WEIGHT: f64 = 1.0;
/// The weight of the share of late answers, `β`.
const LATE_WEIGHT: f64 = 1.0;
/// The weight of the share of busy time, `γ`: an endpoint that computes is worth more than one that
/// only has a queue.
const BUSY_WEIGHT: f64 = 0.5;

/// The state of an endpoint over the last control period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Signals {
    /// The work under way in parts of the target of first tokens, `q`.
    pub(super) backlog: f64,
    /// The share of the answers of the period that came after their deadline, `e`.
    pub(super) late_share: f64,
    /// The share of the period that the answered requests took of the endpoint's time, `u`.
    pub(super) busy_share: f64,
}

impl Signals {
    /// Returns the pressure of the endpoint, `ψ`.
    fn pressure(&self) -> f64 {
        BACKLOG_WEIGHT * self.backlog + LATE_WEIGHT * self.late_share
            - BUSY_WEIGHT * self.busy_share
    }
}

/// The endpoints of a pool that take part in a decision.
#[derive(Clone, Debug, Default)]
pub(super) struct PoolState {
    /// The signals of each healthy endpoint of the pool.
    pub(super) signals: Vec<Signals>,
    /// The number of those endpoints that may leave the pool.
    pub(super) movable: usize,
}

impl PoolState {
    /// Returns the 90th percentile of the endpoints' pressures, at least 0. A pool without a
    /// healthy endpoint has infinite pressure.
    fn pressure(&self) -> f64 {
        let mut all: Vec<f64> = self.signals.iter().map(Signals::pressure).collect();
        all.sort_by(f64::total_cmp);
        let rank = (all.len() * 9).div_ceil(10);
        match rank.checked_sub(1).and_then(|at| all.get(at)) {
            // Below 0 an endpoint is busy and has no queue: there is no pressure to compare.
            Some(pressure) => pressure.max(0.0),
            None => f64::INFINITY,
        }
    }

    /// Returns whether the pool can do without one of its endpoints.
    fn may_give(&self, min_endpoints: u32) -> bool {
        self.movable > 0 && self.signals.len() > min_endpoints as usize
    }
}

/// Decides when an endpoint moves from one pool to the other.
#[derive(Debug)]
pub(super) struct Controller {
    period: Duration,
    cool_down: Duration,
    hysteresis: f64,
    min_endpoints: u32,
    /// The beginning of the control period, once there is one.
    began: Option<Timestamp>,
    last_move: Option<Timestamp>,
}

impl Controller {
    pub(super) fn new(config: &LapsConfig) -> Self {
        Self {
            period: Duration::from_millis(config.period_ms),
            cool_down: Duration::from_millis(config.cool_down_ms),
            hysteresis: config.hysteresis,
            min_endpoints: config.min_endpoints,
            began: None,
            last_move: None,
        }
    }

    /// Returns the length of the control period that ends now, if one does: the caller then asks
    /// [`Self::decide`].
    pub(super) fn period_ends(&mut self, now: Timestamp) -> Option<Duration> {
        let length = now.saturating_since(*self.began.get_or_insert(now));
        if length < self.period {
            return None;
        }
        self.began = Some(now);
        Some(length)
    }

    /// Returns the pool that gets an endpoint of the other pool now, if one does.
    pub(super) fn decide(
        &mut self,
        now: Timestamp,
        short: &PoolState,
        long: &PoolState,
    ) -> Option<Pool> {
        let cools = |last| now.saturating_since(last) < self.cool_down;
        if self.last_move.is_some_and(cools) {
            return None;
        }
        let (of_short, of_long) = (short.pressure(), long.pressure());
        let exceeds = |more: f64, less: f64| more > (1.0 + self.hysteresis) * less;
        let receiver = if exceeds(of_short, of_long) && long.may_give(self.min_endpoints) {
            Pool::Short
        } else if exceeds(of_long, of_short) && short.may_give(self.min_endpoints) {
            Pool::Long
        } else {
            return None;
        };
        self.last_move = Some(now);
        Some(receiver)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller() -> Controller {
        Controller::new(&LapsConfig::default())
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    /// Returns a pool of endpoints with these backlogs, all of which may move.
    fn pool(backlogs: &[f64]) -> PoolState {
        let signals = backlogs.iter().map(|&backlog| Signals {
            backlog,
            ..Signals::default()
        });
        PoolState {
            signals: signals.collect(),
            movable: backlogs.len(),
        }
    }

    #[test]
    fn pressure_is_the_weighted_sum_and_its_90th_percentile() {
        let signals = Signals {
            backlog: 2.0,
            late_share: 0.5,
            busy_share: 0.8,
        };
        assert!((signals.pressure() - 2.1).abs() < 1e-12);
        // The ninth of ten, so that one straggler does not count.
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert!((pool(&ten).pressure() - 9.0).abs() < 1e-12);
        assert!((pool(&[3.0, 1.0]).pressure() - 3.0).abs() < 1e-12);
        assert_eq!(pool(&[]).pressure(), f64::INFINITY);
        let busy = Signals {
            busy_share: 1.0,
            ..Signals::default()
        };
        let state = PoolState {
            signals: vec![busy],
            movable: 1,
        };
        assert_eq!(state.pressure(), 0.0);
    }

    #[test]
    fn a_difference_within_the_hysteresis_moves_nothing() {
        let check = |short: &[f64], long: &[f64], expected| {
            let found = controller().decide(at(0), &pool(short), &pool(long));
            assert_eq!(found, expected, "{short:?} {long:?}");
        };
        check(&[1.2, 1.2], &[1.0, 1.0], None);
        check(&[1.21, 1.21], &[1.0, 1.0], Some(Pool::Short));
        check(&[1.0, 1.0], &[1.21, 1.21], Some(Pool::Long));
        check(&[0.0, 0.0], &[0.0, 0.0], None);
    }

    #[test]
    fn a_pool_keeps_its_least_number_of_endpoints() {
        let (one, two) = (pool(&[0.0]), pool(&[5.0, 5.0]));
        assert_eq!(controller().decide(at(0), &two, &one), None);
        // A pool without a healthy endpoint gets one, whatever the other's pressure.
        let none = pool(&[]);
        assert_eq!(controller().decide(at(0), &none, &two), Some(Pool::Short));
        assert_eq!(controller().decide(at(0), &two, &none), Some(Pool::Long));
        assert_eq!(controller().decide(at(0), &none, &one), None);
        // Endpoints that are bound to their pool do not move.
        let bound = PoolState {
            movable: 0,
            ..pool(&[0.0, 0.0])
        };
        assert_eq!(controller().decide(at(0), &two, &bound), None);
    }

    #[test]
    fn moves_are_a_cool_down_apart_and_periods_do_not_overlap() {
        let mut controller = controller();
        let (calm, pressed) = (pool(&[0.0, 0.0, 0.0]), pool(&[9.0]));
        let mut moves = Vec::new();
        let mut lengths = Vec::new();
        for ms in (0..25_000).step_by(300) {
            if let Some(length) = controller.period_ends(at(ms)) {
                lengths.push(length.as_millis());
                if controller.decide(at(ms), &pressed, &calm).is_some() {
                    moves.push(ms);
                }
            }
        }
        // A period ends with the first call after it.
        assert!(lengths.iter().all(|ms| *ms == 1200), "{lengths:?}");
        assert_eq!(moves, [1200, 12_000, 22_800]);
    }
}
