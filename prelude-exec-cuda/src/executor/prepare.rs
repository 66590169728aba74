//! Captures of graphs, outside of steps: at start, and when the engine says that there is time.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use prelude_core::Capacity;
use prelude_kernels::families::AttnDecodeParams;

use super::CudaExecutor;
use crate::{
    CudaConfig, Error,
    graph::Wanted,
    plan::{PlanConfig, StepCounts, StepShape, padded},
};

/// Most rows of steps that do nothing but decode whose graphs are captured at start.
const START_ROWS: usize = 64;

/// Returns shapes that steps will probably have: those of a token for each of up to 64 sequences,
/// of short contexts and of longer ones, and those of one prompt. None if none are captured at start.
pub(super) fn foreseen(
    plan: PlanConfig,
    capacity: &Capacity,
    config: &CudaConfig,
) -> VecDeque<StepShape> {
    if config.graph_start_ms == 0 {
        return VecDeque::new();
    }
    let sizes = |most: usize| (1..=most).filter(|&n| padded(n) == n);
    let mut counts = Vec::new();
    if !plan.whole {
        for keys in [1, AttnDecodeParams::SPLIT_KEYS + 1] {
            if keys <= capacity.max_context_len {
                counts.extend(sizes(START_ROWS).map(|rows| decoding(plan, rows, keys)));
            }
        }
    }
    counts.extend(sizes(plan.pad_tokens).map(|tokens| prompt(plan, tokens)));
    let mut shapes = VecDeque::new();
    for counts in counts {
        let shape = StepShape::of(&counts, plan.group);
        let fits = plan.holds(&shape, capacity.max_step_tokens as usize);
        if fits && !shapes.contains(&shape) {
            shapes.push_back(shape);
        }
    }
    shapes
}

/// Returns the counts of a step of a token for each of `rows` sequences.
fn decoding(plan: PlanConfig, rows: usize, keys: u32) -> StepCounts {
    let (tiles, decode, keys) = match plan.decode_as_segments {
        true => (rows, 0, 0),
        false => (0, rows, keys),
    };
    StepCounts {
        tokens: rows,
        outputs: rows,
        tile_rows: plan.tile_rows(rows),
        tiles,
        decode,
        keys,
        items: 0,
        spans: 2 * tiles,
    }
}

/// Returns the counts of a step of a prompt of so many tokens that is read at its end.
fn prompt(plan: PlanConfig, tokens: usize) -> StepCounts {
    StepCounts {
        tokens,
        outputs: 1,
        tile_rows: plan.tile_rows(tokens),
        tiles: 1,
        ..StepCounts::default()
    }
}

impl CudaExecutor {
    /// Captures shapes that steps will probably have, for about so long.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub(super) fn prepare_start(&mut self, time: Duration) -> Result<(), Error> {
        let start = Instant::now();
        while start.elapsed() < time {
            match self.graphs.next_foreseen() {
                Some(wanted) => self.capture(wanted)?,
                None => break,
            }
        }
        Ok(())
    }

    /// Captures one shape, if there is one worth capturing. Returns true if it did.
    pub(super) fn prepare_one(&mut self, is_idle: bool) -> bool {
        // Places are found in the host's buffers of the next step.
        let depth = self.capacity.pipeline_depth as usize;
        if self.lost.is_some() || self.outstanding.len() >= depth {
            return false;
        }
        // A shape that no step had yet is run, which waits for the GPU.
        let may_run = is_idle && self.outstanding.is_empty();
        let wanted = self.graphs.wanted(is_idle).or_else(|| match may_run {
            true => self.graphs.next_foreseen(),
            false => None,
        });
        let Some(wanted) = wanted else {
            return false;
        };
        let captured = self.capture(wanted);
        // Only a lost GPU is an error here, and the next step reports it.
        let _ = self.note(captured.map_err(Into::into));
        true
    }

    /// Captures a shape; a shape that cannot be captured is remembered as such.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    fn capture(&mut self, Wanted { shape, has_run }: Wanted) -> Result<(), Error> {
        self.free_host_buffers();
        self.plan.rebuild_empty(shape);
        let ready = self.ops.lay_out(&self.plan).and_then(|()| match has_run {
            true => Ok(()),
            false => self.run_empty(),
        });
        let captured = ready.and_then(|()| self.capture_plan(shape));
        match captured {
            Err(lost @ Error::DeviceLost { .. }) => Err(lost),
            // No kernel of the shape has run. Where a driver or a library cannot be captured, steps
            // are slower and no less right.
            Err(_) => {
                self.graphs.refuse(shape);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Runs the step that was laid out, which has nothing in it, and waits for it: the driver and the
    /// library load kernels when they are first launched, which cannot be captured.
    fn run_empty(&mut self) -> Result<(), Error> {
        self.ops.send()?;
        self.ops.defer_heads();
        let queued = self.model.forward(&mut self.ops, &self.plan);
        self.ops.deferred_heads();
        // Waits, since the copy reads the host's buffer, which the next step writes.
        let waited = self.ops.space.synchronize("a step without contents");
        queued.and(waited)?;
        self.ops.lay_out(&self.plan)
    }

    /// Captures the step that was laid out.
    fn capture_plan(&mut self, shape: StepShape) -> Result<(), Error> {
        let (model, ops, plan) = (&self.model, &mut self.ops, &self.plan);
        let space = ops.space.clone();
        self.graphs.capture(shape, &space, || {
            ops.launcher.begin_capture()?;
            ops.defer_heads();
            let queued = model.forward(ops, plan);
            let heads = ops.deferred_heads();
            // The capture is ended whatever happened in it: the stream can do nothing else before.
            let graph = ops.launcher.end_capture();
            queued?;
            Ok((graph?, heads))
        })
    }
}
