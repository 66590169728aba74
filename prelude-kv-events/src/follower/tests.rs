//! A reader against an engine whose messages are lost, repeated, late, and which restarts.

use std::collections::{BTreeMap, VecDeque};

use prelude_core::{KvEvent, StoredBlocks};
use proptest::prelude::*;

use super::*;
use crate::Format;

/// Blocks by hash, with their parents.
type Blocks = BTreeMap<u64, Option<u64>>;

/// An engine with the messages that it has sent.
struct Engine {
    blocks: Blocks,
    ring: VecDeque<(u64, Bytes)>,
    kept: usize,
    next: u64,
    /// Stands for time and for hashes: never the same twice.
    ticks: u64,
    /// True if the first message says that the cache is empty, as Prelude's does.
    says_cleared: bool,
}

impl Engine {
    fn restart(&mut self) {
        self.blocks.clear();
        self.ring.clear();
        self.next = 0;
        if self.says_cleared {
            self.send(vec![KvEvent::Cleared]);
        }
    }

    fn send(&mut self, events: Vec<KvEvent>) -> (u64, Bytes) {
        self.ticks += 1;
        let time = self.ticks as f64;
        let message = (
            self.next,
            Batch { time, events }.encode(Format::Maps).into(),
        );
        self.next += 1;
        self.ring.push_back(message.clone());
        while self.ring.len() > self.kept {
            self.ring.pop_front();
        }
        message
    }

    /// Changes the cache as `choice` says, and sends the event.
    fn change(&mut self, choice: u64) -> (u64, Bytes) {
        let pick = |from: &[u64]| {
            from.get((choice / 16) as usize % from.len().max(1))
                .copied()
        };
        let known: Vec<u64> = self.blocks.keys().copied().collect();
        let is_leaf = |hash: &&u64| !self.blocks.values().any(|parent| *parent == Some(**hash));
        let leaves: Vec<u64> = known.iter().filter(is_leaf).copied().collect();
        let event = match (choice % 16, pick(&leaves)) {
            (0, _) => {
                self.blocks.clear();
                KvEvent::Cleared
            }
            (1..8, Some(leaf)) => {
                self.blocks.remove(&leaf);
                KvEvent::Removed(vec![leaf])
            }
            _ => {
                let parent = pick(&known).filter(|_| !choice.is_multiple_of(3));
                self.ticks += 2;
                let hashes = vec![self.ticks, self.ticks + 1_000_000];
                self.blocks.insert(hashes[0], parent);
                self.blocks.insert(hashes[1], Some(hashes[0]));
                KvEvent::Stored(StoredBlocks {
                    tokens: vec![1; hashes.len()],
                    hashes,
                    parent,
                    salt: None,
                })
            }
        };
        self.send(vec![event])
    }
}

/// A reader with its knowledge.
#[derive(Default)]
struct Reader {
    follower: Follower,
    blocks: Blocks,
}

impl Reader {
    fn take(&mut self, mut step: Step, message: Option<(u64, &[u8])>, ring: Option<&Engine>) {
        // Each question is from a lower number than the one before, so there are few.
        for _ in 0..3 {
            let from = match step {
                Step::Apply(updates) => return updates.into_iter().for_each(|u| self.apply(u)),
                Step::Ask(from) => from,
            };
            step = match ring {
                None => Step::Apply(self.follower.unanswered(message)),
                Some(engine) => {
                    let found = engine.ring.iter().filter(|&&(seq, _)| seq >= from);
                    self.follower.replayed(&found.cloned().collect::<Vec<_>>())
                }
            };
        }
        panic!("the reader asks for ever");
    }

    fn apply(&mut self, update: Update) {
        let events = match update {
            Update::Reset => return self.blocks.clear(),
            Update::Disconnected(_) => return,
            Update::Events(events) => events,
        };
        for event in events {
            match event {
                KvEvent::Cleared => self.blocks.clear(),
                KvEvent::Removed(hashes) => {
                    hashes.iter().for_each(|hash| _ = self.blocks.remove(hash));
                }
                KvEvent::Stored(stored) => {
                    let mut parent = stored.parent;
                    if parent.is_none_or(|parent| self.blocks.contains_key(&parent)) {
                        for hash in stored.hashes {
                            self.blocks.insert(hash, parent);
                            parent = Some(hash);
                        }
                    }
                }
            }
        }
    }

    fn message(&mut self, (seq, payload): &(u64, Bytes), ring: Option<&Engine>) {
        let step = self.follower.message(*seq, payload);
        self.take(step, Some((*seq, payload)), ring);
    }

    fn check(&mut self, ring: Option<&Engine>) {
        let step = self.follower.check();
        self.take(step, None, ring);
    }
}

/// An event of an engine or of a message.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Delivered,
    Lost,
    Twice,
    /// The message comes after the next one that is delivered.
    Late,
    Restart,
    Reconnect,
    Check,
}

fn happens() -> impl Strategy<Value = Happens> {
    use Happens::{Check, Delivered, Late, Lost, Reconnect, Restart, Twice};
    prop_oneof![
        12 => Just(Delivered), 4 => Just(Lost), 2 => Just(Twice), 2 => Just(Late),
        1 => Just(Restart), 1 => Just(Reconnect), 1 => Just(Check),
    ]
}

/// Plays a story and returns what the engine holds and what the reader knows at its end.
fn play(
    story: &[(Happens, u64, bool)],
    kept: usize,
    says_cleared: bool,
    has_replay: bool,
) -> (Blocks, Blocks) {
    let mut engine = Engine {
        blocks: Blocks::new(),
        ring: VecDeque::new(),
        kept,
        next: 0,
        ticks: 0,
        says_cleared,
    };
    engine.restart();
    let mut reader = Reader::default();
    reader.check(Some(&engine).filter(|_| has_replay));
    let mut late = Vec::new();
    for &(happens, choice, answers) in story {
        let answers = answers && has_replay;
        match happens {
            Happens::Restart | Happens::Reconnect => {
                if matches!(happens, Happens::Restart) {
                    engine.restart();
                    // The new engine may have come as far as the old one, or further.
                    (0..choice % 12)
                        .for_each(|n| drop(engine.change(choice.rotate_left(n as u32))));
                }
                late.clear();
                reader.check(Some(&engine).filter(|_| answers));
            }
            Happens::Check if has_replay => reader.check(Some(&engine).filter(|_| answers)),
            Happens::Check | Happens::Lost => drop(engine.change(choice)),
            Happens::Late => late.push(engine.change(choice)),
            Happens::Delivered | Happens::Twice => {
                let message = engine.change(choice);
                let times = if matches!(happens, Happens::Twice) {
                    2
                } else {
                    1
                };
                for message in std::iter::repeat_n(message, times).chain(late.drain(..)) {
                    reader.message(&message, Some(&engine).filter(|_| answers));
                }
            }
        }
    }
    // In the end the network works.
    let last = engine.change(15);
    reader.message(&last, Some(&engine).filter(|_| has_replay));
    if has_replay {
        reader.check(Some(&engine));
    }
    (engine.blocks, reader.blocks)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// With a replay of all messages the reader knows the engine's blocks exactly.
    #[test]
    fn a_reader_with_full_replay_is_exact(
        story in proptest::collection::vec((happens(), any::<u64>(), any::<bool>()), 0..60),
        says_cleared in any::<bool>(),
    ) {
        let (truth, known) = play(&story, usize::MAX, says_cleared, true);
        prop_assert_eq!(known, truth);
    }

    /// With a short replay, or none, a reader never knows a block that the engine has dropped.
    #[test]
    fn a_reader_never_knows_what_is_not_there(
        story in proptest::collection::vec((happens(), any::<u64>(), any::<bool>()), 0..60),
        kept in 1usize..8,
        says_cleared in any::<bool>(),
        has_replay in any::<bool>(),
    ) {
        let (truth, known) = play(&story, kept, says_cleared, has_replay);
        for (hash, parent) in &known {
            prop_assert_eq!(truth.get(hash), Some(parent));
        }
    }
}

/// A restarted engine that has come to the same number is told from the old one.
#[test]
fn a_restart_is_seen_at_the_same_number() {
    use Happens::{Delivered, Restart};
    let story = [
        (Delivered, 15, true),
        (Restart, 1, true),
        (Delivered, 15, true),
    ];
    let (truth, known) = play(&story, 99, false, true);
    assert_eq!(known, truth);
    assert!(!truth.is_empty());
}

#[test]
fn a_message_that_cannot_be_read_resets() {
    let mut follower = Follower::default();
    assert_eq!(follower.message(0, &[1]), Step::Ask(0));
    let first = (0, Bytes::from_static(&[1]));
    let step = follower.replayed(&[first]);
    assert_eq!(step, Step::Apply(vec![Update::Reset, Update::Reset]));
    let next = Batch {
        time: 1.0,
        events: vec![KvEvent::Cleared],
    }
    .encode(Format::Arrays);
    let step = follower.message(1, &next);
    assert_eq!(
        step,
        Step::Apply(vec![Update::Events(vec![KvEvent::Cleared])])
    );
}
