//! Routing of each user to one endpoint; users are bound to endpoints in turn.

use std::collections::{BTreeMap, VecDeque};

use prelude_core::Timestamp;

use super::round_robin::RoundRobin;
use crate::{
    config::UserStickyConfig,
    endpoint::{EndpointId, Fleet},
    policy::{Choice, Policy, Query, by_rule},
};

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct UserSticky {
    config: UserStickyConfig,
    homes: BTreeMap<u64, EndpointId>,
    /// Users, in the order in which they came.
    came: VecDeque<u64>,
    turns: RoundRobin,
}

impl UserSticky {
    pub(super) fn new(config: UserStickyConfig) -> Self {
        Self {
            config,
            homes: BTreeMap::new(),
            came: VecDeque::new(),
            turns: RoundRobin::default(),
        }
    }

    fn remember(&mut self, user: u64, home: EndpointId) {
        if self.homes.insert(user, home).is_some() {
            return;
        }
        self.came.push_back(user);
        if self.came.len() > self.config.max_users as usize
            && let Some(first) = self.came.pop_front()
        {
            self.homes.remove(&first);
        }
    }
}

impl Policy for UserSticky {
    fn pick(&mut self, now: Timestamp, fleet: &Fleet, query: &Query<'_>) -> Choice {
        let home = query.user.and_then(|user| self.homes.get(&user));
        let at = home.and_then(|&home| fleet.position(home));
        if let Some(at) = at.filter(|at| query.eligible.contains(at)) {
            return by_rule(fleet, query, at);
        }
        let choice = self.turns.pick(now, fleet, query);
        if let Some(user) = query.user {
            self.remember(user, fleet.endpoints()[choice.at].id());
        }
        choice
    }
}
