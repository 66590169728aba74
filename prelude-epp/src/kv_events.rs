//! KV events of engines: how much their caches hold, and when they start anew.
//!
//! A prefix key leaves out what a server's template adds, so it is not the beginning of the tokens
//! that an engine caches, with a tokenizer or without. Events therefore do not say *which* keys are
//! cached; they say how many tokens are, and when all of them are gone. The router keeps what was
//! used last, as engines do, up to that.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use prelude_core::KvEvent;
use prelude_kv_events::{Address, Subscriber, SubscriberConfig, Update};
use tokio::{task::AbortHandle, time::sleep};

use crate::{log, picker::Picker};

/// Time between looks at the engines that there are.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time without a message after which a subscriber asks whether it has missed the last ones.
const CHECK_EVERY: Duration = Duration::from_secs(5);
/// Upper bound of the blocks that are remembered of an engine: some 100 MB.
const MAX_BLOCKS: usize = 1 << 21;

/// The ports of all engines' events, at the address of each engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvEventPorts {
    /// The port of the PUB socket.
    pub events: u16,
    /// The port of the ROUTER socket, which replays. Without it each lost message, and each lost
    /// connection, makes the picker forget what an engine has cached.
    pub replay: Option<u16>,
}

/// Follows the events of all engines of a picker for as long as it is polled.
pub async fn follow_kv_events(picker: Arc<Picker>, ports: KvEventPorts) {
    let mut followed: BTreeMap<SocketAddr, Following> = BTreeMap::new();
    loop {
        let members = picker.members().into_iter();
        let members: BTreeSet<SocketAddr> = members.map(|member| member.address).collect();
        followed.retain(|address, _| members.contains(address));
        for &address in &members {
            { followed.entry(address) }
                .or_insert_with(|| Following::start(Arc::clone(&picker), address, ports));
        }
        sleep(LOOK_EVERY).await;
    }
}

/// A task that follows one engine, and ends with this.
struct Following(AbortHandle);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Following {
    fn start(picker: Arc<Picker>, address: SocketAddr, ports: KvEventPorts) -> Self {
        let socket = |port| Address::new(address.ip().to_string(), port);
        let subscriber = Subscriber::new(SubscriberConfig {
            endpoint: socket(ports.events),
            replay_endpoint: ports.replay.map(socket),
            topic: String::new(),
            check_every: CHECK_EVERY,
        });
        let mut cache = CacheSize::default();
        let mut was_connected = true;
        let task = subscriber.run(move |update| {
            match &update {
                // The loss is logged once, until there is a connection again.
                Update::Disconnected(error) if was_connected => {
                    log::line(format_args!(
                        "endpoint {address} sends no KV events: {error}"
                    ));
                    was_connected = false;
                }
                Update::Disconnected(_) => {}
                Update::Reset | Update::Events(_) => was_connected = true,
            }
            if let Some(tokens) = cache.apply(update) {
                picker.cache_holds(address, tokens);
            }
        });
        Self(tokio::spawn(task).abort_handle())
    }
}

/// The tokens that an engine's cache holds, by its events.
#[derive(Debug, Default)]
struct CacheSize {
    /// Blocks by hash, with their tokens.
    blocks: BTreeMap<u64, u32>,
    tokens: u64,
    /// True if all blocks are known: the events go back to an empty cache.
    is_whole: bool,
}

impl CacheSize {
    /// Applies an update. Returns how many tokens the cache holds, if that has become less than was
    /// thought or may have.
    fn apply(&mut self, update: Update) -> Option<u64> {
        match update {
            Update::Disconnected(_) => None,
            Update::Reset => {
                self.clear();
                self.is_whole = false;
                // The engine may have been started anew.
                Some(0)
            }
            Update::Events(events) => {
                let mut has_less = false;
                for event in events {
                    has_less |= self.event(event);
                }
                (has_less && self.is_whole).then_some(self.tokens)
            }
        }
    }

    /// Applies an event. Returns true if something was dropped.
    fn event(&mut self, event: KvEvent) -> bool {
        match event {
            KvEvent::Stored(stored) => {
                let tokens = u32::try_from(stored.block_size()).unwrap_or(u32::MAX);
                for hash in stored.hashes {
                    if self.blocks.len() == MAX_BLOCKS {
                        self.is_whole = false;
                        break;
                    }
                    let known = self.blocks.insert(hash, tokens);
                    self.tokens -= u64::from(known.unwrap_or(0));
                    self.tokens += u64::from(tokens);
                }
                false
            }
            KvEvent::Removed(hashes) => {
                let removed = hashes.iter().filter_map(|hash| self.blocks.remove(hash));
                self.tokens -= removed.map(u64::from).sum::<u64>();
                true
            }
            KvEvent::Cleared => {
                self.clear();
                self.is_whole = true;
                true
            }
        }
    }

    fn clear(&mut self) {
        self.blocks.clear();
        self.tokens = 0;
    }
}

#[cfg(test)]
mod tests {
    use prelude_core::StoredBlocks;

    use super::*;

    fn stored(hashes: &[u64]) -> KvEvent {
        KvEvent::Stored(StoredBlocks {
            hashes: hashes.to_vec(),
            parent: None,
            tokens: vec![7; 16 * hashes.len()],
            salt: None,
        })
    }

    #[test]
    fn a_size_is_known_from_an_empty_cache_on() {
        let mut size = CacheSize::default();
        let mut apply = |events: Vec<KvEvent>| size.apply(Update::Events(events));
        let removed = |hash| KvEvent::Removed(vec![hash]);
        // What was before the first message is not known.
        assert_eq!(apply(vec![stored(&[1, 2]), removed(1)]), None);
        assert_eq!(apply(vec![KvEvent::Cleared]), Some(0));
        assert_eq!(
            apply(vec![stored(&[1, 2, 3]), stored(&[3])]),
            None,
            "it has more"
        );
        assert_eq!(apply(vec![removed(2), removed(9)]), Some(32));
        assert_eq!(apply(vec![KvEvent::Cleared, stored(&[4])]), Some(16));
        assert_eq!(size.apply(Update::Reset), Some(0));
        assert_eq!(size.apply(Update::Events(vec![removed(4)])), None);
    }

    #[test]
    fn a_block_that_changes_its_size_counts_once() {
        let mut size = CacheSize::default();
        size.apply(Update::Events(vec![KvEvent::Cleared, stored(&[1])]));
        let KvEvent::Stored(mut smaller) = stored(&[1]) else {
            return;
        };
        smaller.tokens.truncate(4);
        size.apply(Update::Events(vec![KvEvent::Stored(smaller)]));
        assert_eq!(size.tokens, 4);
    }
}
