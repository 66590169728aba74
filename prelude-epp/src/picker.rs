//! The picker: a router behind a lock, the engines by their addresses, and what is under way.

mod charge;
mod later;
mod members;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use fasttoken::Tokenizer;
use prelude_core::{BadServiceTime, RequestId, Timestamp};
use prelude_router::{
    ByteHasher, ConfigError, EndpointSpec, Finish, Pool, Prefix, Prompt, Reason, Root,
    RouteRequest, Router,
};
use tokio::sync::Notify;

pub use self::{
    charge::Charge,
    members::{Change, Member},
};
use self::{later::Later, members::Members};
use crate::{body::Body, config::Config, refusal::Refusal};

/// Upper bound of the bytes of a key that are tokenised: some 10 ms of work.
const TOKENISED_BYTES: usize = 1 << 20;

/// Decides where requests go, and knows what is under way.
///
/// Any number of threads share one. The lock is held for a pick of the router alone: prompts are
/// hashed before.
pub struct Picker {
    pub(crate) config: Config,
    tokenizer: Option<Tokenizer>,
    state: Mutex<State>,
    start: Instant,
    next_id: AtomicU64,
    buffered: AtomicUsize,
    /// True if every source of endpoints has spoken.
    is_known: AtomicBool,
    /// True if the program is about to end.
    is_draining: AtomicBool,
    /// Wakes the probes when an endpoint has joined.
    pub(crate) joined: Notify,
}

/// The state that the lock guards.
struct State {
    router: Router,
    members: Members,
    /// Requests that end unseen, and when they count as ended.
    later: Later,
}

/// The endpoints that a request may go to: addresses, or hosts with any port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subset {
    addresses: BTreeSet<SocketAddr>,
    hosts: BTreeSet<IpAddr>,
}

impl<'a> FromIterator<&'a str> for Subset {
    fn from_iter<I: IntoIterator<Item = &'a str>>(names: I) -> Self {
        let mut subset = Self::default();
        for name in names {
            if let Ok(address) = name.parse() {
                subset.addresses.insert(address);
            } else if let Ok(host) = name.trim_matches(['[', ']']).parse() {
                subset.hosts.insert(host);
            }
        }
        subset
    }
}

impl Subset {
    /// Returns whether a request may go to this address.
    #[must_use]
    pub fn contains(&self, address: SocketAddr) -> bool {
        self.addresses.contains(&address) || self.hosts.contains(&address.ip())
    }
}

/// An engine of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// The engine's address.
    pub address: SocketAddr,
    /// Tokens that its KV cache holds, if not [`Config::kv_tokens`].
    pub kv_tokens: Option<u64>,
    /// The pool that it stays in, if it is bound to one.
    pub pool: Option<Pool>,
}

impl From<(SocketAddr, Option<u64>)> for Engine {
    fn from((address, kv_tokens): (SocketAddr, Option<u64>)) -> Self {
        Self {
            address,
            kv_tokens,
            pool: None,
        }
    }
}

/// A request that must go somewhere, beside its prefix.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// Most tokens of the answer, if known.
    pub max_output_tokens: Option<u32>,
    /// The user, if known.
    pub user: Option<u64>,
    /// True if it may be refused when all endpoints have too much to do.
    pub sheddable: bool,
    /// The endpoints that it may go to, if not to all.
    pub subset: Option<&'a Subset>,
    /// The time from now within which the first token is due, if the client says so.
    pub first_token_within: Option<Duration>,
}

/// The endpoint picked for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The name of the request until it has ended.
    pub id: RequestId,
    /// The address picked and its fallbacks, with commas between them.
    pub addresses: String,
    /// Tokens of the prompt, or about as many.
    pub prompt_tokens: u32,
    /// Tokens of the prompt that are thought to be cached there.
    pub cached_tokens: u32,
    /// The reason for the choice.
    pub reason: Reason,
}

impl std::fmt::Debug for Picker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Picker")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Picker {
    /// Returns a picker without endpoints. With a tokenizer, keys are tokens, else bytes.
    ///
    /// # Errors
    /// If the router's knobs are out of their ranges.
    pub fn new(config: Config, tokenizer: Option<Tokenizer>) -> Result<Self, ConfigError> {
        let state = State {
            router: Router::new(config.router.clone())?,
            members: Members::default(),
            later: Later::default(),
        };
        Ok(Self {
            config,
            tokenizer,
            state: Mutex::new(state),
            start: Instant::now(),
            next_id: AtomicU64::new(1),
            buffered: AtomicUsize::new(0),
            is_known: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            joined: Notify::new(),
        })
    }

    /// Returns the knobs.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::ZERO.saturating_add(self.start.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic in the router leaves books that still add up for all other requests.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the prefix of a request.
    #[must_use]
    pub fn prefix(&self, body: &Body<'_>) -> Prefix {
        let granule_tokens = self.config.router.granule_tokens;
        let model = body.model().unwrap_or_default();
        let salt = body.cache_salt();
        let kind = match self.tokenizer {
            Some(_) => "tokens",
            None => "bytes",
        };
        let root = Root::new(&model, None, kind, salt.as_deref());
        match &self.tokenizer {
            None => {
                let mut hasher = ByteHasher::new(root, granule_tokens);
                body.write_key(&mut hasher);
                hasher.finish()
            }
            Some(tokenizer) => {
                let mut key = Vec::new();
                body.write_key(&mut key);
                key.truncate(TOKENISED_BYTES);
                let ids = tokenizer.encode(&String::from_utf8_lossy(&key), false);
                Prefix::new(root, Prompt::Tokens(&ids), granule_tokens)
            }
        }
    }

    /// Picks an endpoint for a request. It counts there until [`Self::finish`].
    ///
    /// # Errors
    /// [`Refusal::Route`] if it goes nowhere; nothing is counted then.
    pub fn pick(&self, prefix: &Prefix, asked: &Asked<'_>) -> Result<Picked, Refusal> {
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let now = self.now();
        let mut state = self.lock();
        let State {
            router,
            members,
            later,
        } = &mut *state;
        later.finish_due(now, router);
        let subset = asked.subset.map(|subset| members.of(subset));
        let request = RouteRequest {
            id,
            prefix,
            max_output_tokens: asked.max_output_tokens,
            user: asked.user,
            sheddable: asked.sheddable,
            subset: subset.as_deref(),
            deadline: { asked.first_token_within }.map(|within| now.saturating_add(within)),
        };
        let pick = router.route(now, &request)?;
        let ids = [pick.endpoint].into_iter().chain(pick.fallbacks);
        Ok(Picked {
            id,
            addresses: members.addresses(ids),
            prompt_tokens: pick.prompt_tokens,
            cached_tokens: pick.cached_tokens,
            reason: pick.reason,
        })
    }

    /// Charges a request to the endpoint that served it. Returns whether both are known.
    pub fn served(&self, id: RequestId, address: SocketAddr) -> bool {
        let mut state = self.lock();
        let State {
            router, members, ..
        } = &mut *state;
        { members.get(address) }.is_some_and(|endpoint| router.served(id, endpoint))
    }

    /// Notes that a request has ended, well or not. Returns whether it was under way.
    pub fn finish(&self, id: RequestId, finish: Finish) -> bool {
        let now = self.now();
        self.lock().router.finished(now, id, finish)
    }

    /// Notes that the end of a request will not be seen: it counts as ended after about the time
    /// that its answer takes.
    pub fn finish_unseen(&self, id: RequestId, max_output_tokens: Option<u32>) {
        let now = self.now();
        let mut state = self.lock();
        let State { router, later, .. } = &mut *state;
        later.finish_due(now, router);
        let decode_ms = self.config.service.decode_ms;
        later.push(now, id, max_output_tokens, decode_ms);
    }

    /// Replaces the engines of one source. The engines of all sources are in service.
    ///
    /// # Errors
    /// If the config's service time is none; nothing joins then.
    pub fn replace(
        &self,
        source: usize,
        engines: impl IntoIterator<Item = impl Into<Engine>>,
    ) -> Result<Change, BadServiceTime> {
        let now = self.now();
        let spec = |engine: Engine| EndpointSpec {
            kv_capacity_tokens: engine.kv_tokens.unwrap_or(self.config.kv_tokens),
            service: self.config.service,
            pool: engine.pool,
        };
        let engines = engines.into_iter().map(Into::into);
        let wanted = engines.map(|engine| (engine.address, spec(engine)));
        let mut state = self.lock();
        let State {
            router, members, ..
        } = &mut *state;
        members.set_source(source, wanted.collect());
        let change = members.apply(now, router, !self.config.probes)?;
        drop(state);
        if !change.joined.is_empty() {
            self.joined.notify_one();
        }
        Ok(change)
    }

    /// Notes what a probe found. An engine that comes back after it could not be reached has an
    /// empty cache: it joins anew. Returns true if its health has changed.
    pub fn set_health(&self, address: SocketAddr, health: Health) -> bool {
        let now = self.now();
        let mut state = self.lock();
        let State {
            router, members, ..
        } = &mut *state;
        members.set_health(now, router, address, health)
    }

    /// Notes how many tokens an engine's cache holds. Returns whether the engine is known.
    pub fn cache_holds(&self, address: SocketAddr, tokens: u64) -> bool {
        let mut state = self.lock();
        let State {
            router, members, ..
        } = &mut *state;
        { members.get(address) }.is_some_and(|id| router.cache_holds(id, tokens).is_ok())
    }

    /// Returns the engines and their health, in the order of their addresses.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let state = self.lock();
        state.members.list(&state.router)
    }

    /// Returns the number of requests under way.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.lock().router.fleet().in_flight()
    }

    /// Notes that every source of endpoints has spoken once.
    pub fn set_known(&self) {
        self.is_known.store(true, Ordering::Relaxed);
    }

    /// Notes that the program is about to end: health checks fail from now on.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Returns whether proxies should send exchanges here.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_known.load(Ordering::Relaxed) && !self.is_draining.load(Ordering::Relaxed)
    }

    /// Reserves room for bytes of a body.
    ///
    /// # Errors
    /// [`Refusal::BuffersFull`], and nothing is reserved.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<(), Refusal> {
        let most = self.config.max_buffered_bytes;
        let add = |held: usize| held.checked_add(bytes).filter(|held| *held <= most);
        let order = Ordering::Relaxed;
        match self.buffered.fetch_update(order, order, add) {
            Ok(_) => Ok(()),
            Err(held) => Err(Refusal::BuffersFull { held, most }),
        }
    }

    /// Gives back room for bytes of a body.
    pub(crate) fn release(&self, bytes: usize) {
        self.buffered.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes of all bodies that wait for their end.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.buffered.load(Ordering::Relaxed)
    }
}

/// The finding of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The engine answered that it takes requests.
    Up,
    /// The engine answered that it takes no requests.
    Refusing,
    /// The engine did not answer.
    Lost,
}
