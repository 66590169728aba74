//! A recorder: which steps of mixed traffic run as graphs, by their shapes alone.
//!
//! Requests come from a seed, steps have what a scheduler would put into them, and the engine is
//! never idle: the hardest case for captures, which wait for a step's end then.

use std::{collections::VecDeque, sync::Arc};

use prelude_kernels::families::Tile;

use crate::{
    Recording,
    graph::{GraphStats, Graphs, StepMode},
    kernels::launch::{Graph, Launcher},
    memory::space::Space,
    plan::{StepCounts, StepShape},
    testing::say,
};

/// Steps of each kind of traffic that are counted, and steps before them.
const STEPS: u64 = 30_000;
const WARM_UP: u64 = 10_000;
/// Most tokens of a step that is padded.
const TOKENS_MAX: usize = 1024;

/// Pseudo-random numbers of a seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number of `from..=to`.
    fn within(&mut self, from: u64, to: u64) -> usize {
        usize::try_from(from + self.next() % (to - from + 1)).unwrap()
    }

    fn percent(&mut self, percent: usize) -> bool {
        self.within(1, 100) <= percent
    }

    /// Returns the length of a prompt: short ones are more frequent, from 8 to 511 tokens.
    fn prompt(&mut self) -> usize {
        let power = 1 << self.within(3, 8);
        self.within(power, 2 * power - 1)
    }
}

/// The contents of a step: tokens to compute of each prompt and whether blocks of it are cached, and the
/// context of each decode row, of which the first tokens may be the same for all.
#[derive(Default)]
struct Step {
    prompts: Vec<(usize, bool)>,
    contexts: Vec<usize>,
    shared: usize,
}

impl Step {
    fn tokens(&self) -> usize {
        let prompts = self.prompts.iter().map(|(tokens, _)| tokens);
        prompts.sum::<usize>() + self.contexts.len()
    }

    fn counts(&self, group: usize) -> StepCounts {
        let queries = 64 / group;
        let tiles = self.prompts.iter().map(|(n, _)| n.div_ceil(queries));
        let spans = self
            .prompts
            .iter()
            .map(|&(_, cached)| 1 + usize::from(cached));
        StepCounts {
            tokens: self.tokens(),
            outputs: self.prompts.len() + self.contexts.len(),
            tile_rows: Tile::ROWS,
            tiles: tiles.sum(),
            decode: self.contexts.len(),
            keys: u32::try_from(self.contexts.iter().max().map_or(0, |n| n + 1)).unwrap(),
            items: self.items(group),
            spans: spans.sum(),
        }
    }

    fn splits(&self) -> usize {
        self.contexts.iter().map(|n| n / 256 + 1).sum()
    }

    /// Returns the number of items of the decode rows, as a plan has them.
    fn items(&self, group: usize) -> usize {
        let (rows, shared) = (self.contexts.len(), self.shared / 256);
        let together = shared * rows.div_ceil(32 / group);
        let items = self.splits() - shared * rows + together;
        match rows > 1 && shared > 0 && 4 * items <= 3 * self.splits() {
            true => items,
            false => 0,
        }
    }

    /// Returns the number of tiles, and of splits of decode rows, that have something to do.
    fn blocks(&self, group: usize) -> usize {
        let counts = self.counts(group);
        let decode = match counts.items {
            0 => self.splits(),
            items => items,
        };
        counts.tiles + decode
    }
}

/// A source of steps.
trait Traffic {
    fn step(&mut self, random: &mut Random) -> Step;
}

/// Classifications of one kind: one to eight in a step.
struct Classifications;

impl Traffic for Classifications {
    fn step(&mut self, random: &mut Random) -> Step {
        let many = random.within(1, 8).min(random.within(1, 8));
        Step {
            prompts: (0..many).map(|_| (random.prompt() / 2 + 4, true)).collect(),
            ..Step::default()
        }
    }
}

/// Classifications beside 16 to 32 chats that come and go.
struct Chats {
    /// Context now, and tokens left.
    live: Vec<(usize, usize)>,
    /// Tokens that all chats begin with, in the same blocks.
    shared: usize,
}

impl Traffic for Chats {
    fn step(&mut self, random: &mut Random) -> Step {
        let mut step = Step {
            prompts: Vec::new(),
            contexts: self.live.iter().map(|chat| chat.0).collect(),
            shared: self.shared,
        };
        for chat in &mut self.live {
            (chat.0, chat.1) = (chat.0 + 1, chat.1 - 1);
        }
        self.live.retain(|chat| chat.1 > 0);
        let most = random.within(16, 32);
        if self.live.len() < 16 || (self.live.len() < most && random.percent(10)) {
            let (new, cached) = (random.prompt(), random.percent(50));
            let before = if cached { random.within(100, 1500) } else { 0 };
            step.prompts.push((new, cached));
            let before = self.shared + before;
            self.live.push((before + new, random.within(20, 400)));
        }
        if random.percent(50) {
            let many = if random.percent(80) {
                1
            } else {
                random.within(2, 4)
            };
            step.prompts
                .extend((0..many).map(|_| (random.prompt(), true)));
        }
        step
    }
}

/// Mixes that have nothing to do with each other: 0 to 4 prompts and 0 to 32 rows.
struct Mixes;

impl Traffic for Mixes {
    fn step(&mut self, random: &mut Random) -> Step {
        let (prompts, rows) = (random.within(0, 4), random.within(0, 32));
        let rows = rows.max(usize::from(prompts == 0));
        Step {
            prompts: (0..prompts)
                .map(|_| (random.prompt(), random.percent(50)))
                .collect(),
            contexts: (0..rows).map(|_| random.within(20, 3000)).collect(),
            shared: 0,
        }
    }
}

/// The blocks of attention that a step's graph launches, and those of them that have work, for each
/// key-value head.
#[derive(Default)]
struct Blocks {
    launched: usize,
    used: usize,
    /// Tokens of all steps, and of these the padding: what fuller steps could save at most.
    tokens: usize,
    padding: usize,
}

/// Runs steps of one kind of traffic and returns what became of those after the first ones.
fn record(traffic: &mut dyn Traffic, group: usize, seed: u64) -> (GraphStats, Blocks) {
    let mut random = Random(seed);
    let mut graphs = Graphs::new(512 << 20, VecDeque::new());
    let space = Space::Virtual(Arc::new(Recording::default()));
    let mut launcher = Launcher::Record(Arc::new(Recording::default()), None);
    let mut before = GraphStats::default();
    let mut blocks = Blocks::default();
    for i in 0..WARM_UP + STEPS {
        if i == WARM_UP {
            before = graphs.stats();
        }
        let step = traffic.step(&mut random);
        let own = StepShape::of(&step.counts(group), group);
        if own.tokens > TOKENS_MAX {
            // Computing takes longer than launching.
            continue;
        }
        if let StepMode::Replay(shape) = graphs.mode(Some(own), step.tokens()) {
            graphs.replay(shape, &mut launcher).unwrap();
            blocks.launched += shape.blocks();
            blocks.used += step.blocks(group);
            blocks.tokens += shape.tokens;
            blocks.padding += shape.tokens - step.tokens();
        }
        if let Some(wanted) = graphs.wanted(false) {
            let queue = || Ok((Graph::Record(0), Vec::new()));
            graphs.capture(wanted.shape, &space, queue).unwrap();
        }
    }
    let mut stats = graphs.stats();
    stats.replays -= before.replays;
    stats.eager -= before.eager;
    stats.captures -= before.captures;
    (stats, blocks)
}

/// At most one step in 200 runs kernel by kernel, and at most one in 500 has a capture behind it.
#[test]
fn mixed_traffic_runs_as_graphs() {
    // Heads that share a key-value head: of Qwen3-0.6B, and of Qwen3-4B.
    for group in [2, 4] {
        let chats = |shared| Chats {
            shared,
            live: Vec::new(),
        };
        let kinds: [(&str, Box<dyn Traffic>); 4] = [
            ("classifications", Box::new(Classifications)),
            ("classifications and chats", Box::new(chats(0))),
            ("the same over one prompt", Box::new(chats(1100))),
            ("independent mixes", Box::new(Mixes)),
        ];
        for (name, mut traffic) in kinds {
            let (stats, blocks) = record(traffic.as_mut(), group, 7);
            let steps = stats.replays + stats.eager;
            assert!(steps > 20_000, "{steps}");
            let share = |n: u64| 100.0 * n as f64 / steps as f64;
            let (eager, captures) = (share(stats.eager), share(stats.captures));
            let each = |n: usize| n as f64 / (STEPS + WARM_UP) as f64;
            say(&format!(
                "{name}, {group} heads: {eager:.2} % eager, {captures:.2} % captures, {} graphs; {:.1} \
                 blocks of attention, {:.1} with work; {:.1} % of tokens are padding",
                stats.kept,
                each(blocks.launched),
                each(blocks.used),
                100.0 * blocks.padding as f64 / blocks.tokens as f64,
            ));
            assert!(eager <= 0.5, "{name}: {eager} % run kernel by kernel");
            assert!(
                captures <= 0.2,
                "{name}: {captures} % are followed by captures"
            );
        }
    }
}
