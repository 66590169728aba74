//! The choice of steps that are captured as graphs, and of graphs that are kept.
//!
//! LAPS §3.1, by total tokens instead of length by batch: one graph serves every mix of requests
//! that its shape has room for, since all else is metadata that a copy overwrites before the launch.
//! Heads are launched behind the graph: they depend on what each request asks for.
//!
//! ```text
//! step       of a shape that is captured, or that a captured one serves: its graph
//!            of any other: kernel by kernel, and the shape is noted
//! between    one noted shape is captured, the most used first: at once while nothing waits, else
//!            one in a few steps; then, while nothing waits, one of those that are foreseen
//! ```
//!
//! So no request waits for a capture within its own step.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use crate::{
    Error,
    kernels::launch::{Graph, Launcher},
    memory::space::Space,
    ops::HeadCall,
    plan::StepShape,
};

/// Uses of a shape after which it is captured while requests wait: what comes once is not worth
/// their time.
const USES_BUSY: u32 = 2;
/// Uses of a shape after which it is captured where another graph has to go for it.
const USES_FULL: u32 = 16;
/// Steps between two captures while requests wait.
const STEPS_BETWEEN: u64 = 8;
/// Stands for the uses of a shape whose capture failed: it is not tried again.
const REFUSED: u32 = u32::MAX;
/// Most graphs kept.
const GRAPHS_MAX: usize = 512;
/// Most shapes whose uses are counted.
const SHAPES_MAX: usize = 4096;

/// Captured graphs, by shape.
#[derive(Debug)]
pub(crate) struct Graphs {
    captured: BTreeMap<StepShape, Captured>,
    /// Uses of shapes that are not captured yet; [`REFUSED`] for those that could not be.
    seen: BTreeMap<StepShape, u32>,
    /// True if a shape was seen since none was found worth a capture while requests waited, and while
    /// none did.
    is_new: [bool; 2],
    /// Shapes that no step had yet.
    foreseen: VecDeque<StepShape>,
    bytes_max: u64,
    /// Counts steps, to know which graph was used last.
    now: u64,
    /// The step behind which something was captured last.
    last_capture: u64,
    stats: GraphStats,
}

#[derive(Debug)]
struct Captured {
    graph: Graph,
    heads: Vec<HeadCall>,
    bytes: u64,
    used: u64,
}

/// Counts of captured graphs and their uses so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphStats {
    /// Graphs that are kept.
    pub kept: u64,
    /// Bytes of GPU memory that graphs took.
    pub bytes: u64,
    /// Steps that ran as a graph.
    pub replays: u64,
    /// Steps that were launched one kernel after the other.
    pub eager: u64,
    /// Captures, those of graphs that were dropped again included.
    pub captures: u64,
    /// Time of all captures.
    pub capture_time: Duration,
    /// Captures that failed. Steps of such a shape are launched kernel by kernel.
    pub refused: u64,
    /// Tokens that steps were padded by.
    pub padding: u64,
}

/// The way in which a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepMode {
    /// Kernel by kernel; padded to a shape, if there is one.
    Eager(Option<StepShape>),
    /// The graph of this shape, to which the step is padded.
    Replay(StepShape),
}

impl StepMode {
    /// Returns the shape that the step is padded to.
    pub(crate) const fn shape(self) -> Option<StepShape> {
        match self {
            Self::Eager(shape) => shape,
            Self::Replay(shape) => Some(shape),
        }
    }
}

/// A shape to be captured next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) shape: StepShape,
    /// True if steps of the shape ran, so that its kernels are loaded.
    pub(crate) has_run: bool,
}

impl Graphs {
    /// Returns a store of graphs without any: `bytes_max` bounds their GPU memory, and `foreseen` are
    /// shapes to capture before they are used, the likeliest first. `foreseen`: shapes to capture
    /// before they are used, the likeliest first.
    pub(crate) fn new(bytes_max: u64, foreseen: VecDeque<StepShape>) -> Self {
        Self {
            captured: BTreeMap::new(),
            seen: BTreeMap::new(),
            is_new: [false; 2],
            foreseen,
            bytes_max,
            now: 0,
            last_capture: 0,
            stats: GraphStats::default(),
        }
    }

    /// Counts a slice of a pass, which is launched kernel by kernel.
    pub(crate) const fn count_eager(&mut self) {
        self.stats.eager += 1;
    }

    pub(crate) const fn stats(&self) -> GraphStats {
        self.stats
    }

    /// Returns the way in which a step of this shape and of `tokens` tokens runs; `None` for one
    /// that is not padded.
    pub(crate) fn mode(&mut self, own: Option<StepShape>, tokens: usize) -> StepMode {
        self.now += 1;
        let Some(own) = own else {
            self.stats.eager += 1;
            return StepMode::Eager(None);
        };
        self.stats.padding += (own.tokens - tokens) as u64;
        if let Some(shape) = self.serving(&own) {
            return StepMode::Replay(shape);
        }
        if self.seen.len() >= SHAPES_MAX {
            self.seen.clear();
        }
        let uses = self.seen.entry(own).or_default();
        if *uses != REFUSED {
            *uses = (*uses + 1).min(REFUSED - 1);
            self.is_new = [true; 2];
        }
        self.stats.eager += 1;
        StepMode::Eager(Some(own))
    }

    /// Returns the captured shape that serves a step of the shape `own` with the fewest blocks.
    fn serving(&self, own: &StepShape) -> Option<StepShape> {
        if self.captured.contains_key(own) {
            return Some(*own);
        }
        // The range is in order of tokens, then outputs, then the rest.
        let from = StepShape {
            tile_rows: 0,
            tiles: 0,
            decode: 0,
            splits: 0,
            items: 0,
            spans: 0,
            ..*own
        };
        let alike = self.captured.range(from..).map(|(shape, _)| shape);
        let alike = alike.take_while(|s| (s.tokens, s.outputs) == (own.tokens, own.outputs));
        let serving = alike.filter(|shape| shape.serves(own));
        serving.min_by_key(|shape| shape.blocks()).copied()
    }

    /// Returns a shape that steps had and that is worth to be captured before the next step, if there
    /// is one. `is_idle`: no request waits for it.
    pub(crate) fn wanted(&mut self, is_idle: bool) -> Option<Wanted> {
        let is_soon = !is_idle && self.now < self.last_capture + STEPS_BETWEEN;
        if is_soon || !self.is_new[usize::from(is_idle)] {
            return None;
        }
        let is_full =
            self.captured.len() >= GRAPHS_MAX || self.stats.bytes >= self.bytes_max / 10 * 9;
        let enough = match (is_full, is_idle) {
            (true, _) => USES_FULL,
            (false, true) => 1,
            (false, false) => USES_BUSY,
        };
        let seen = self.seen.iter().filter(|&(_, &uses)| uses != REFUSED);
        // The first of those that are used equally often: equal calls give equal graphs.
        let most = seen.max_by_key(|&(shape, &uses)| (uses, std::cmp::Reverse(shape)));
        let enough = most.filter(|&(_, &uses)| uses >= enough);
        let wanted = enough.map(|(&shape, _)| Wanted {
            shape,
            has_run: true,
        });
        self.is_new[usize::from(is_idle)] = wanted.is_some();
        wanted
    }

    /// Returns the next of the shapes that no step had yet.
    pub(crate) fn next_foreseen(&mut self) -> Option<Wanted> {
        loop {
            let shape = self.foreseen.pop_front()?;
            let room = self.captured.len() < GRAPHS_MAX && self.stats.bytes < self.bytes_max / 2;
            let is_known = self.captured.contains_key(&shape) || self.seen.contains_key(&shape);
            if room && !is_known {
                return Some(Wanted {
                    shape,
                    has_run: false,
                });
            }
        }
    }

    /// Runs steps of this shape kernel by kernel from here on.
    pub(crate) fn refuse(&mut self, shape: StepShape) {
        self.seen.insert(shape, REFUSED);
        self.stats.refused += 1;
    }

    /// Captures what `queue` queues, which launches no heads, and keeps it for steps of this shape.
    /// `queue` gives the heads that it put off.
    ///
    /// # Errors
    /// `queue`'s, or the driver's.
    pub(crate) fn capture(
        &mut self,
        shape: StepShape,
        space: &Space,
        queue: impl FnOnce() -> Result<(Graph, Vec<HeadCall>), Error>,
    ) -> Result<(), Error> {
        self.last_capture = self.now;
        let start = Instant::now();
        let before = space.free_bytes()?;
        let (graph, heads) = queue()?;
        let after = space.free_bytes()?;
        let bytes = before.zip(after).map_or(0, |(b, a)| b.saturating_sub(a));
        self.seen.remove(&shape);
        let captured = Captured {
            graph,
            heads,
            bytes,
            used: self.now,
        };
        self.captured.insert(shape, captured);
        self.stats.captures += 1;
        self.stats.capture_time += start.elapsed();
        self.shrink(shape);
        Ok(())
    }

    /// Drops the least recently used ones while there are too many or too large ones; never the
    /// latest.
    fn shrink(&mut self, keep: StepShape) {
        loop {
            let bytes = self.captured.values().map(|c| c.bytes).sum();
            (self.stats.kept, self.stats.bytes) = (self.captured.len() as u64, bytes);
            if self.captured.len() <= GRAPHS_MAX && bytes <= self.bytes_max {
                return;
            }
            let others = self.captured.iter().filter(|(shape, _)| **shape != keep);
            let oldest = others.min_by_key(|(_, c)| c.used).map(|(shape, _)| *shape);
            let Some(oldest) = oldest else { return };
            self.captured.remove(&oldest);
        }
    }

    /// Queues the graph of a shape that was captured; the heads that belong behind it.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn replay(
        &mut self,
        shape: StepShape,
        launcher: &mut Launcher,
    ) -> Result<Vec<HeadCall>, Error> {
        let Some(captured) = self.captured.get_mut(&shape) else {
            return Err(Error::Step("its shape was not captured".to_owned()));
        };
        captured.used = self.now;
        self.stats.replays += 1;
        launcher.replay(&captured.graph)?;
        Ok(captured.heads.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prelude_kernels::families::Tile;

    use super::*;
    use crate::{Recording, plan::StepCounts};

    /// Returns the shape of a prompt of so many tokens that is read at so many positions.
    fn shape(tokens: usize, outputs: usize) -> StepShape {
        let counts = StepCounts {
            tokens,
            outputs,
            tile_rows: Tile::ROWS,
            tiles: tokens.div_ceil(32),
            ..StepCounts::default()
        };
        StepShape::of(&counts, 2)
    }

    fn graphs() -> Graphs {
        Graphs::new(1 << 20, VecDeque::new())
    }

    fn capture(graphs: &mut Graphs, shape: StepShape) {
        let space = Space::Virtual(Arc::new(Recording::default()));
        let queue = || Ok((Graph::Record(0), Vec::new()));
        graphs.capture(shape, &space, queue).unwrap();
    }

    fn wanted(graphs: &mut Graphs, is_idle: bool) -> Option<StepShape> {
        graphs.wanted(is_idle).map(|wanted| wanted.shape)
    }

    #[test]
    fn used_shapes_are_captured_between_steps() {
        let mut graphs = graphs();
        assert_eq!(graphs.mode(None, 5000), StepMode::Eager(None));
        assert_eq!(wanted(&mut graphs, true), None);
        let own = shape(8, 1);
        for _ in 0..2 {
            assert_eq!(graphs.mode(Some(own), 7), StepMode::Eager(Some(own)));
        }
        // While requests wait a shape has to be used twice, and some steps have to pass.
        assert_eq!(wanted(&mut graphs, false), None);
        for _ in 0..5 {
            graphs.mode(None, 5000);
        }
        assert_eq!(wanted(&mut graphs, false), Some(own));
        capture(&mut graphs, own);
        assert_eq!(graphs.mode(Some(own), 8), StepMode::Replay(own));
        // While none waits, once.
        let other = shape(12, 1);
        graphs.mode(Some(other), 12);
        assert_eq!(wanted(&mut graphs, false), None);
        assert_eq!(wanted(&mut graphs, true), Some(other));
        // What cannot be captured is not tried again.
        graphs.refuse(other);
        assert_eq!(wanted(&mut graphs, true), None);
        graphs.mode(Some(other), 12);
        assert_eq!(wanted(&mut graphs, true), None);
        let stats = graphs.stats();
        assert_eq!(
            (stats.eager, stats.refused, stats.captures, stats.padding),
            (10, 1, 1, 2)
        );
    }

    #[test]
    fn the_most_used_goes_first_then_what_is_foreseen() {
        let mut graphs = Graphs::new(1 << 20, [shape(1, 1), shape(8, 1), shape(2, 1)].into());
        for tokens in [16, 8, 24, 8] {
            graphs.mode(Some(shape(tokens, 1)), tokens);
        }
        let order: Vec<_> = std::iter::from_fn(|| {
            let wanted = graphs.wanted(true).or_else(|| graphs.next_foreseen())?;
            capture(&mut graphs, wanted.shape);
            Some((wanted.shape.tokens, wanted.has_run))
        })
        .collect();
        let expected = [(8, true), (16, true), (24, true), (1, false), (2, false)];
        assert_eq!(order, expected);
    }

    #[test]
    fn a_step_runs_as_the_smallest_graph_that_serves_it() {
        let mut graphs = graphs();
        let own = shape(200, 8);
        let more = |tiles| StepShape {
            tiles: own.tiles + tiles,
            ..own
        };
        capture(&mut graphs, more(40));
        assert_eq!(graphs.mode(Some(own), 200), StepMode::Replay(more(40)));
        capture(&mut graphs, more(12));
        assert_eq!(graphs.mode(Some(own), 200), StepMode::Replay(more(12)));
        assert_eq!(graphs.mode(Some(more(20)), 200), StepMode::Replay(more(40)));
        let beyond = more(41);
        assert_eq!(
            graphs.mode(Some(beyond), 200),
            StepMode::Eager(Some(beyond))
        );
        let read_more = shape(200, 9);
        assert_eq!(
            graphs.mode(Some(read_more), 200),
            StepMode::Eager(Some(read_more))
        );
    }

    #[test]
    fn the_least_recently_used_graph_goes_first() {
        let mut graphs = graphs();
        let recording = Arc::new(Recording::default());
        let mut launcher = Launcher::Record(recording, None);
        let nth = |n: usize| StepShape {
            spans: 10_000 + n,
            ..shape(8, 1)
        };
        for n in 1..=GRAPHS_MAX {
            graphs.mode(None, 1);
            capture(&mut graphs, nth(n));
        }
        graphs.mode(Some(nth(1)), 8);
        graphs.replay(nth(1), &mut launcher).unwrap();
        // Where one has to go, the new one must be used often.
        let new = shape(1000, 1);
        for _ in 0..USES_FULL {
            assert_eq!(wanted(&mut graphs, true), None);
            graphs.mode(Some(new), 1000);
        }
        assert_eq!(wanted(&mut graphs, true), Some(new));
        capture(&mut graphs, new);
        assert_eq!(graphs.stats().kept, GRAPHS_MAX as u64);
        assert!(graphs.replay(nth(1), &mut launcher).is_ok());
        assert!(graphs.replay(new, &mut launcher).is_ok());
        let gone = graphs.replay(nth(2), &mut launcher).unwrap_err();
        assert!(gone.to_string().contains("was not captured"), "{gone}");
    }
}
