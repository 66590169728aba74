//! The time that steps take on the device, and the time between them.

use prelude_core::DeviceTime;

use crate::{
    Error,
    memory::{event::Point, space::Space},
};

/// The two ends of a step.
#[derive(Debug)]
pub(super) struct Ends {
    /// The point in front of all that the step queued.
    pub(super) start: Point,
    /// The point behind all that the step queued.
    pub(super) end: Point,
}

/// Points for the steps that are outstanding, and the sums of their times.
#[derive(Debug)]
pub(super) struct DeviceClock {
    pub(super) spare: Vec<Ends>,
    /// The times of the latest step that was collected.
    latest: Option<Ends>,
    time: DeviceTime,
}

impl DeviceClock {
    /// Returns a clock for steps of which so many are outstanding.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn new(space: &Space, depth: u32) -> Result<Self, Error> {
        let ends = |_| {
            Ok(Ends {
                start: space.point()?,
                end: space.point()?,
            })
        };
        Ok(Self {
            // One more pair of ends than outstanding steps: that of the latest collected step is
            // kept.
            spare: (0..=depth).map(ends).collect::<Result<_, Error>>()?,
            latest: None,
            time: DeviceTime::default(),
        })
    }

    pub(super) const fn time(&self) -> DeviceTime {
        self.time
    }

    /// Begins a step in the stream; the ends of one that fails go back to `spare`.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Panics
    /// If more steps are outstanding than it is for.
    pub(super) fn begin(&mut self) -> Result<Ends, Error> {
        let ends = self
            .spare
            .last()
            .expect("there are ends for each step, and one more");
        ends.start.record()?;
        Ok(self.spare.pop().expect("`last` returned these ends"))
    }

    /// Adds a step that has ended, and the time since the one before it. What the driver does not say
    /// counts as none.
    pub(super) fn add(&mut self, ends: Ends) {
        let busy = ends.end.since(&ends.start);
        self.time.busy += busy.unwrap_or_default();
        if let Some(latest) = &self.latest {
            let idle = ends.start.since(&latest.end);
            self.time.idle += idle.unwrap_or_default();
        }
        self.spare.extend(self.latest.replace(ends));
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        sync::{Arc, Mutex},
        time::Duration,
    };

    use prelude_core::{DecodeBatch, Executor as _, ForwardBatch, StepId};

    use super::*;
    use crate::{
        CudaConfig, CudaExecutor,
        testing::{checkpoint, small},
    };

    /// Steps count from their beginning to their end, and what is between two of them is idle, also
    /// where the second is queued while the first one runs.
    #[test]
    fn the_time_of_the_device_is_in_steps_or_between_them() {
        for depth in [1, 2] {
            let config = CudaConfig {
                pipeline_depth: depth,
                ..small()
            };
            let model = checkpoint("demo-lm");
            let (mut executor, _) = CudaExecutor::recording(&model, &config).unwrap();
            let times = Arc::new(Mutex::new(vec![100, 110, 112, 121, 126, 128]));
            let point = || Point::Played(Arc::clone(&times), Cell::new(0));
            let ends = |_| Ends {
                start: point(),
                end: point(),
            };
            executor.clock.spare = (0..=depth).map(ends).collect();
            assert_eq!(executor.device_time(), DeviceTime::default());
            for step in 0..4 {
                if step < 3 {
                    let empty = ForwardBatch::Decode(DecodeBatch::EMPTY);
                    executor.submit(StepId(step), empty).unwrap();
                }
                // The second of two steps is submitted before the first one is collected.
                let behind = u64::from(depth) - 1;
                if let Some(ended) = step.checked_sub(behind).filter(|&ended| ended < 3) {
                    executor.collect(StepId(ended)).unwrap();
                }
            }
            let expected = DeviceTime {
                busy: Duration::from_millis(10 + 9 + 2),
                idle: Duration::from_millis(2 + 5),
            };
            assert_eq!(executor.device_time(), expected);
            assert!(times.lock().unwrap().is_empty());
            assert_eq!(executor.clock.spare.len(), depth as usize);
        }
    }
}
