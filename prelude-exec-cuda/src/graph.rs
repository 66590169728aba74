//! The choice of steps that are captured as graphs, and of graphs that are kept.
//!
//! LAPS §3.1, by total tokens instead of length by batch: one graph serves every mix of requests
//! whose padded counts are its own, since all else is metadata that a copy overwrites before the
//! launch. Heads are launched behind the graph: they depend on what each request asks for.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::{
    Error,
    kernels::launch::{Graph, Launcher},
    memory::space::Space,
    ops::HeadCall,
    plan::StepShape,
};

/// Uses of a shape before it is captured: what comes once is not worth it.
const CAPTURE_AFTER: u32 = 2;
/// Stands for the uses of a shape whose capture failed: it is not tried again.
const REFUSED: u32 = u32::MAX;
/// Most graphs kept.
const GRAPHS_MAX: usize = 256;
/// Most shapes whose uses are counted.
const SHAPES_MAX: usize = 4096;

/// Captured graphs, by shape.
#[derive(Debug)]
pub(crate) struct Graphs {
    captured: HashMap<StepShape, Captured>,
    /// Uses of shapes that are not captured yet; [`REFUSED`] for those that could not be.
    seen: HashMap<StepShape, u32>,
    bytes_max: u64,
    /// Counts steps, to know which graph was used last.
    now: u64,
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
    /// Bytes of GPU memory that they took.
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
    /// Kernel by kernel.
    Eager,
    /// Captured, and run as what was captured.
    Capture,
    /// Run the graph that was captured before.
    Replay,
}

impl Graphs {
    /// `bytes_max`: of GPU memory for all graphs.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self {
            captured: HashMap::new(),
            seen: HashMap::new(),
            bytes_max,
            now: 0,
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
    pub(crate) fn mode(&mut self, shape: Option<StepShape>, tokens: usize) -> StepMode {
        self.now += 1;
        let Some(shape) = shape else {
            self.stats.eager += 1;
            return StepMode::Eager;
        };
        self.stats.padding += (shape.tokens - tokens) as u64;
        if self.captured.contains_key(&shape) {
            return StepMode::Replay;
        }
        if self.seen.len() >= SHAPES_MAX {
            self.seen.clear();
        }
        let uses = self.seen.entry(shape).or_default();
        if *uses == CAPTURE_AFTER {
            return StepMode::Capture;
        }
        if *uses != REFUSED {
            *uses += 1;
        }
        self.stats.eager += 1;
        StepMode::Eager
    }

    /// Runs steps of this shape kernel by kernel from here on, this one among them.
    pub(crate) fn refuse(&mut self, shape: StepShape) {
        self.seen.insert(shape, REFUSED);
        self.stats.refused += 1;
        self.stats.eager += 1;
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
    /// one that is about to run.
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

    use super::*;
    use crate::Recording;

    fn shape(tokens: usize) -> StepShape {
        StepShape::of_tokens(tokens)
    }

    fn capture(graphs: &mut Graphs, tokens: usize) {
        let space = Space::Virtual(Arc::new(Recording::default()));
        let queue = || Ok((Graph::Record(0), Vec::new()));
        graphs.capture(shape(tokens), &space, queue).unwrap();
    }

    #[test]
    fn the_third_use_is_captured_and_what_cannot_be_is_not_tried_again() {
        let mut graphs = Graphs::new(1 << 20);
        assert_eq!(graphs.mode(None, 5000), StepMode::Eager);
        let mode = |graphs: &mut Graphs| graphs.mode(Some(shape(8)), 7);
        assert_eq!(
            [0; 3].map(|_| mode(&mut graphs)),
            [StepMode::Eager, StepMode::Eager, StepMode::Capture]
        );
        graphs.refuse(shape(8));
        assert_eq!([0; 3].map(|_| mode(&mut graphs)), [StepMode::Eager; 3]);
        capture(&mut graphs, 4);
        assert_eq!(graphs.mode(Some(shape(4)), 4), StepMode::Replay);
        let stats = graphs.stats();
        assert_eq!(
            (stats.eager, stats.refused, stats.captures, stats.padding),
            (7, 1, 1, 6)
        );
    }

    #[test]
    fn the_least_recently_used_graph_goes_first() {
        let mut graphs = Graphs::new(1 << 20);
        let recording = Arc::new(Recording::default());
        let mut launcher = Launcher::Record(recording, None);
        for tokens in 1..=GRAPHS_MAX {
            graphs.mode(Some(shape(tokens)), tokens);
            capture(&mut graphs, tokens);
        }
        graphs.mode(Some(shape(1)), 1);
        graphs.replay(shape(1), &mut launcher).unwrap();
        graphs.mode(Some(shape(1000)), 1000);
        capture(&mut graphs, 1000);
        assert_eq!(graphs.stats().kept, GRAPHS_MAX as u64);
        assert!(graphs.replay(shape(1), &mut launcher).is_ok());
        assert!(graphs.replay(shape(1000), &mut launcher).is_ok());
        let gone = graphs.replay(shape(2), &mut launcher).unwrap_err();
        assert!(gone.to_string().contains("was not captured"), "{gone}");
    }
}
