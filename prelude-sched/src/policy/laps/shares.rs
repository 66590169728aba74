//! Deficit round robin between the two classes, in device time.

use std::time::Duration;

use prelude_core::Timestamp;

use super::Length;

/// The device time that each class is owed.
///
/// A class's share is the part that it has of the load offered lately, within the floor. While
/// both have work, each step's time is split by the shares, and who ran pays for it: with two
/// classes what one is owed the other owes, so one number says it all.
///
/// A class without work earns nothing, but what it owes it works off while the other runs.
/// Otherwise short requests that come one by one would each take a step of their own between two
/// long ones, at the price of a launch for a few tokens, and near saturation long requests would
/// wait without end.
#[derive(Debug)]
pub(super) struct Shares {
    /// Least share of either class.
    floor: f64,
    /// The time over which loads are averaged; no class is owed more.
    window: Duration,
    /// Short and long.
    loads: [Load; 2],
    /// Nanoseconds that short work is owed by long work, or owes if negative.
    owed: f64,
}

/// The load that one class has offered: sums in which each arrival counts for less as it ages.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Nanoseconds of device time.
    work: f64,
    requests: f64,
    first: Option<Timestamp>,
    gap: Option<Duration>,
    at: Timestamp,
}

/// The load that one request offers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    length: Length,
    work: Duration,
    at: Timestamp,
}

impl Load {
    fn fade(&mut self, now: Timestamp, window: Duration) {
        let (passed, window) = (nanos(now.saturating_since(self.at)), nanos(window));
        // As exp(-passed / window) where that is near 1, and the same number on every machine.
        let left = window / (window + passed);
        self.work *= left;
        self.requests *= left;
        self.at = self.at.max(now);
    }
}

impl Shares {
    pub(super) fn new(floor_percent: u32, window: Duration) -> Self {
        Self {
            floor: f64::from(floor_percent) / 100.0,
            window,
            loads: [Load::default(); 2],
            owed: 0.0,
        }
    }

    /// Notes that a request of a class has come, which will take about so long. Returns what it
    /// offers, for [`Self::withdraw`].
    pub(super) fn arrive(&mut self, now: Timestamp, length: Length, work: Duration) -> Offer {
        let load = &mut self.loads[length as usize];
        load.fade(now, self.window);
        load.work += nanos(work);
        load.requests += 1.0;
        let seen = now.saturating_since(*load.first.get_or_insert(now));
        load.gap = (load.requests > 1.0).then(|| seen.min(self.window).div_f64(load.requests));
        Offer {
            length,
            work,
            at: now,
        }
    }

    /// Takes back what is left of the load of a request that ended before it started.
    pub(super) fn withdraw(&mut self, now: Timestamp, offer: &Offer) {
        let load = &mut self.loads[offer.length as usize];
        load.fade(now, self.window);
        let mut left = Load {
            work: nanos(offer.work),
            requests: 1.0,
            at: offer.at,
            ..Load::default()
        };
        left.fade(now, self.window);
        // Clamped to 0: loads fade a little faster than one offer does, arrival by arrival.
        load.work = (load.work - left.work).max(0.0);
        load.requests = (load.requests - left.requests).max(0.0);
    }

    /// Returns the mean time between requests of a class when the last one came; `None` until two
    /// have come. It does not grow as time passes, lest a request that waits for the next one waits
    /// ever longer.
    pub(super) const fn gap(&self, length: Length) -> Option<Duration> {
        self.loads[length as usize].gap
    }

    /// Returns the part of the device's time that a class gets while both have work.
    pub(super) fn share(&self, length: Length) -> f64 {
        let [short, long] = self.loads.map(|load| load.work);
        let all = short + long;
        let share = if all > 0.0 { short / all } else { 0.5 };
        let share = share.clamp(self.floor, 1.0 - self.floor);
        match length {
            Length::Short => share,
            Length::Long => 1.0 - share,
        }
    }

    /// Returns the class whose turn it is if both have work.
    pub(super) fn next(&self) -> Length {
        if self.owed >= 0.0 {
            Length::Short
        } else {
            Length::Long
        }
    }

    /// Notes a step of a class, planned when `had_work` said which of them had work.
    pub(super) fn charge(
        &mut self,
        now: Timestamp,
        length: Length,
        had_work: [bool; 2],
        took: Duration,
    ) {
        for load in &mut self.loads {
            load.fade(now, self.window);
        }
        let took = nanos(took);
        let part = took * self.share(Length::Short);
        self.owed += match length {
            Length::Short => part - took,
            Length::Long => part,
        };
        let [short, long] = had_work;
        let most = nanos(self.window);
        let most_owed = if short { most } else { 0.0 };
        let most_owing = if long { most } else { 0.0 };
        self.owed = self.owed.clamp(-most_owing, most_owed);
    }
}

fn nanos(time: Duration) -> f64 {
    time.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn shares_follow_the_load_and_have_a_floor() {
        let check = |short, long, expected: f64| {
            let mut shares = Shares::new(10, WINDOW);
            shares.arrive(at(0), Length::Short, ms(short));
            shares.arrive(at(0), Length::Long, ms(long));
            let got = shares.share(Length::Short);
            assert!(
                (got - expected).abs() < 1e-9,
                "{got} for {short} and {long}"
            );
            assert!((shares.share(Length::Long) - (1.0 - expected)).abs() < 1e-9);
        };
        check(30, 70, 0.3);
        check(1, 999, 0.1);
        check(999, 1, 0.9);
        check(0, 0, 0.5);
    }

    #[test]
    fn load_that_leaves_before_it_starts_is_taken_back() {
        let mut shares = Shares::new(10, WINDOW);
        let short = shares.arrive(at(0), Length::Short, ms(60));
        shares.arrive(at(0), Length::Long, ms(70));
        let gone = shares.arrive(at(0), Length::Short, ms(20));
        let share = |shares: &Shares| (shares.share(Length::Short) * 100.0).round();
        shares.withdraw(at(0), &gone);
        shares.withdraw(at(0), &short);
        assert!((shares.share(Length::Short) - 0.1).abs() < 1e-9);
        shares.arrive(at(0), Length::Short, ms(30));
        assert!((share(&shares) - 30.0).abs() < 1e-9);
    }

    #[test]
    fn old_load_counts_for_less() {
        let mut shares = Shares::new(10, WINDOW);
        shares.arrive(at(0), Length::Short, ms(100));
        shares.arrive(at(10_000), Length::Long, ms(50));
        shares.charge(at(10_000), Length::Long, [true; 2], ms(0));
        // 100 ms of ten seconds ago are 50.
        assert!((shares.share(Length::Short) - 0.5).abs() < 1e-9);
        assert_eq!(shares.gap(Length::Long), None);
        shares.arrive(at(10_000), Length::Long, ms(50));
        shares.arrive(at(10_300), Length::Long, ms(50));
        // Three requests in 300 ms, the first two a little faded.
        let gap = shares.gap(Length::Long).map(|gap| gap.as_millis());
        assert_eq!(gap, Some(101));
    }

    #[test]
    fn who_has_no_work_earns_nothing_and_works_off_what_it_owes() {
        let mut shares = Shares::new(50, WINDOW);
        shares.charge(at(0), Length::Long, [false, true], ms(80));
        assert_eq!(shares.next(), Length::Short);
        shares.charge(at(0), Length::Short, [true, true], ms(20));
        assert_eq!(shares.next(), Length::Long);
        shares.charge(at(0), Length::Long, [false, true], ms(10));
        assert_eq!(shares.next(), Length::Long);
        shares.charge(at(0), Length::Long, [false, true], ms(10));
        assert_eq!(shares.next(), Length::Short);
        // Short work may run alone.
        shares.charge(at(0), Length::Short, [true, false], ms(500));
        assert_eq!(shares.next(), Length::Short);
    }

    proptest! {
        /// While both have work, each gets its share of any stretch of time, but for one step.
        #[test]
        fn no_class_gets_less_than_the_floor(
            floor in 1_u32..=50,
            loads in prop::array::uniform2(0_u64..1_000),
            times in prop::collection::vec((1_u64..300, 1_u64..300), 1..200),
        ) {
            let mut shares = Shares::new(floor, WINDOW);
            shares.arrive(at(0), Length::Short, ms(loads[0]));
            shares.arrive(at(0), Length::Long, ms(loads[1]));
            let mut used = [0.0; 2];
            let longest = 300.0 * 1e6;
            for (short, long) in times {
                let length = shares.next();
                let took = ms(if length == Length::Short { short } else { long });
                shares.charge(at(0), length, [true; 2], took);
                used[length as usize] += nanos(took);
                let all = used[0] + used[1];
                for length in [Length::Short, Length::Long] {
                    let share = shares.share(length);
                    prop_assert!(share >= f64::from(floor) / 100.0 - 1e-9);
                    let due = share * all - longest;
                    prop_assert!(used[length as usize] >= due - 1.0, "{used:?} of {share}");
                }
            }
        }
    }
}
