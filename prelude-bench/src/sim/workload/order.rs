//! The order of requests of different key portions, which matters, and which no paper gives.

use serde::{Deserialize, Serialize};

use super::Arrival;
use crate::random::Random;

/// The number of key portions in a window of [`Order::Windowed`].
const WINDOW: usize = 20;

/// The order of requests with different key portions. Those with one key portion keep theirs, so
/// that an agent's steps and a conversation's turns never come before what they continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// One key portion after another: the kindest to a cache.
    Grouped,
    /// Shuffled within each 20 key portions.
    Windowed,
    /// All requests are shuffled.
    Shuffled,
}

impl Order {
    /// Returns the name in reports and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grouped => "grouped",
            Self::Windowed => "windowed",
            Self::Shuffled => "shuffled",
        }
    }

    /// Returns all requests of the groups, one for each key portion, in this order. The first group
    /// is random.
    pub(super) fn line_up(
        self,
        mut groups: Vec<Vec<Arrival>>,
        random: &mut Random,
    ) -> Vec<Arrival> {
        random.shuffle(&mut groups);
        let window = match self {
            Self::Grouped => 1,
            Self::Windowed => WINDOW,
            Self::Shuffled => groups.len().max(1),
        };
        let mut line = Vec::with_capacity(groups.iter().map(Vec::len).sum());
        for groups in groups.chunks_mut(window) {
            // Whose turn it is; each turn takes the group's next.
            let mut turns: Vec<usize> = Vec::new();
            for (i, group) in groups.iter().enumerate() {
                turns.extend(std::iter::repeat_n(i, group.len()));
            }
            random.shuffle(&mut turns);
            let mut next: Vec<_> = groups.iter_mut().map(|g| g.drain(..)).collect();
            line.extend(turns.into_iter().filter_map(|i| next[i].next()));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use prelude_core::Timestamp;

    use super::*;
    use crate::sim::Prompt;

    /// Returns 50 groups of 10 arrivals, numbered within the group by `user`.
    fn groups() -> Vec<Vec<Arrival>> {
        let arrival = |key, user| Arrival {
            at: Timestamp::ZERO,
            prompt: Prompt::default(),
            output_tokens: 1,
            key,
            user,
            root: 0,
        };
        let group = |key| (0..10).map(|user| arrival(key, user)).collect();
        (0..50).map(group).collect()
    }

    fn line(order: Order) -> Vec<Arrival> {
        order.line_up(groups(), &mut Random::far(1))
    }

    /// Returns how many times the key changes from one request to the next.
    fn changes(line: &[Arrival]) -> usize {
        line.windows(2).filter(|w| w[0].key != w[1].key).count()
    }

    #[test]
    fn nothing_is_lost_and_groups_keep_their_order() {
        for order in [Order::Grouped, Order::Windowed, Order::Shuffled] {
            let line = line(order);
            assert_eq!(line.len(), 500);
            for key in 0..50 {
                let users = line.iter().filter(|a| a.key == key).map(|a| a.user);
                assert!(users.eq(0..10), "{order:?} {key}");
            }
        }
    }

    #[test]
    fn orders_differ_in_how_far_they_mix() {
        assert_eq!(changes(&line(Order::Grouped)), 49);
        let windowed = line(Order::Windowed);
        assert!(changes(&windowed) > 400);
        // The first window has 20 keys, which do not return after it.
        let early: Vec<u32> = windowed[..200].iter().map(|a| a.key).collect();
        assert!(windowed[200..].iter().all(|a| !early.contains(&a.key)));
        let shuffled = line(Order::Shuffled);
        let mut early: Vec<u32> = shuffled[..200].iter().map(|a| a.key).collect();
        early.sort_unstable();
        early.dedup();
        assert!(early.len() > 40);
    }
}
