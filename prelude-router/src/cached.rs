//! The index of cached prefixes, and what it says of the prompt that a policy decides on.

use crate::{
    config::RouterConfig,
    endpoint::{EndpointId, EndpointSpec, Fleet},
    index::{Index, Path},
    policy::{Choice, Query},
};

/// A prefix index, and the cached prefixes of the prompt that was looked up last.
#[derive(Debug)]
pub(crate) struct Cached {
    pub(crate) index: Index,
    pub(crate) path: Path,
    pub(crate) granule_tokens: u32,
    /// The tokens by position of the endpoint.
    tokens: Vec<u32>,
}

impl Cached {
    pub(crate) fn new(config: &RouterConfig) -> Self {
        Self {
            index: Index::new(config.max_nodes as usize, config.seed),
            path: Path::default(),
            granule_tokens: config.granule_tokens,
            tokens: Vec::new(),
        }
    }

    /// Looks up how many tokens of a prompt each endpoint has cached.
    pub(crate) fn look(&mut self, fleet: &Fleet, query: &Query<'_>) {
        self.index.find(query.granules, &mut self.path);
        self.tokens.clear();
        self.tokens.resize(fleet.endpoints().len(), 0);
        self.index.held(&self.path, |endpoint, cached| {
            if let Some(at) = fleet.position(endpoint) {
                self.tokens[at] = cached * self.granule_tokens;
            }
        });
    }

    /// Returns the number of tokens of the prompt that the endpoint at a position has cached.
    pub(crate) fn tokens(&self, at: usize) -> u32 {
        self.tokens[at]
    }

    /// Notes that the prompt goes to the endpoint that a policy chose.
    pub(crate) fn take_in(&mut self, fleet: &Fleet, query: &Query<'_>, choice: &Choice) {
        if let Some(leaf) = self.index.insert(query.granules, &mut self.path) {
            self.index.hold(fleet.endpoints()[choice.at].id(), leaf);
        }
    }

    /// Forgets what was least lately used of an endpoint's cache, down to so many tokens.
    pub(crate) fn trim(&mut self, endpoint: EndpointId, most_tokens: u64) {
        let most = most_tokens / u64::from(self.granule_tokens);
        self.index.trim(endpoint, most);
    }

    /// Returns the tokens that an endpoint's cache is thought to hold.
    pub(crate) fn resident(&self, endpoint: EndpointId) -> u64 {
        self.index.resident(endpoint) * u64::from(self.granule_tokens)
    }

    /// Adds the last endpoint of the fleet, and remembers so many tokens of its prompts.
    pub(crate) fn joined(&mut self, fleet: &Fleet, tokens: impl FnOnce(&EndpointSpec) -> u64) {
        if let Some(endpoint) = fleet.endpoints().last() {
            let capacity = tokens(endpoint.spec()) / u64::from(self.granule_tokens);
            self.index.join(endpoint.id(), capacity);
        }
    }
}
