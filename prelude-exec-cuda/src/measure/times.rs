//! Seconds that the GPU itself notes, and not those in which the host hands it work.
//!
//! A kernel of a few microseconds takes less time than its launch does. So the stream is kept busy
//! with copies until everything to be measured is queued behind them; whether it was is looked at,
//! and of short kernels several run between two points in the stream.

use std::time::Instant;

use crate::{
    Error,
    memory::space::Space,
    timing::{FILL_BYTES, GpuStream, Stream},
};

/// Copies before a measurement, for as long as these are too few: about 2, 8 and 32 ms there.
const FILLS: [usize; 3] = [16, 64, 256];
/// Calls that warm up, and tell how long one takes.
const WARM_UP: usize = 3;
/// Work that takes less runs several times between two points.
const SHORT_S: f64 = 20e-6;
/// The time that short work is repeated to fill: a hundred times what points are exact to.
const SPAN_S: f64 = 100e-6;
/// Most calls of a measurement: about two launches each, a driver queues some thousand.
const CALLS_MAX: usize = 600;

/// The times of repeated work.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Seconds of each repetition; of work that follows upon itself, gaps between launches are in
    /// it.
    pub seconds: Vec<f64>,
    /// True if the GPU waited for the host: the seconds are the host's then.
    pub is_host_bound: bool,
}

/// Times `repetitions` calls of `queue` with a running number: on a GPU with some more calls to
/// warm up; elsewhere by the host's clock, which says nothing.
///
/// # Errors
/// `queue`'s, or the driver's.
pub(super) fn times(
    space: &Space,
    repetitions: usize,
    mut queue: impl FnMut(usize) -> Result<(), Error>,
) -> Result<Times, Error> {
    let Space::Cuda(context) = space else {
        let run = |i| {
            let start = Instant::now();
            queue(i)?;
            Ok(start.elapsed().as_secs_f64())
        };
        return Ok(Times {
            seconds: (0..repetitions).map(run).collect::<Result<_, Error>>()?,
            is_host_bound: false,
        });
    };
    let filler = space.alloc("filler", 2 * FILL_BYTES)?;
    on(GpuStream::new(context, &filler), repetitions, queue)
}

/// Times one run: `repetitions` times `each` calls between two points.
fn run<S: Stream>(
    stream: &mut S,
    copies: usize,
    (repetitions, each): (usize, usize),
    mut call: impl FnMut() -> Result<(), Error>,
) -> Result<Times, Error> {
    stream.fill(copies)?;
    let mut points = vec![stream.mark()?];
    for _ in 0..repetitions {
        for _ in 0..each {
            call()?;
        }
        points.push(stream.mark()?);
    }
    // Everything is queued. If the copies are not through yet, nothing of it waited for the host.
    let is_host_bound = stream.has_passed(&points[0])?;
    stream.wait()?;
    let mut seconds = Vec::with_capacity(repetitions);
    for pair in points.windows(2) {
        seconds.push(stream.between(&pair[0], &pair[1])? / each as f64);
    }
    Ok(Times {
        seconds,
        is_host_bound,
    })
}

fn on<S: Stream>(
    mut stream: S,
    repetitions: usize,
    mut queue: impl FnMut(usize) -> Result<(), Error>,
) -> Result<Times, Error> {
    let mut number = 0;
    let mut call = || {
        number += 1;
        queue(number - 1)
    };
    let rough = run(&mut stream, FILLS[0], (WARM_UP, 1), &mut call)?;
    let least = rough.seconds.iter().copied().fold(f64::MAX, f64::min);
    let shape = (repetitions, calls_between_points(least, repetitions));
    let mut times = Times::default();
    for copies in FILLS {
        times = run(&mut stream, copies, shape, &mut call)?;
        if !times.is_host_bound {
            break;
        }
    }
    Ok(times)
}

/// Returns the number of times that work of `seconds` runs between two points.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive number"
)]
fn calls_between_points(seconds: f64, repetitions: usize) -> usize {
    if seconds >= SHORT_S {
        return 1;
    }
    let most = (CALLS_MAX / repetitions.max(1)).max(1);
    let wanted = (SPAN_S / seconds.max(1e-9)).ceil() as usize;
    wanted.clamp(1, most)
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use super::*;

    /// A GPU and its host with clocks of their own: a launch takes the host's time, a kernel the
    /// GPU's, which begins it no sooner than it is launched.
    #[derive(Debug, Default)]
    struct Played {
        host_s: f64,
        gpu_s: f64,
        launch_s: f64,
        kernel_s: f64,
        /// Numbers that the work was called with.
        called: Vec<usize>,
    }

    impl Played {
        fn queue(&mut self, seconds: f64) {
            self.host_s += self.launch_s;
            self.gpu_s = self.gpu_s.max(self.host_s) + seconds;
        }
    }

    impl Stream for Rc<RefCell<Played>> {
        type Point = f64;

        fn fill(&mut self, copies: usize) -> Result<(), Error> {
            (0..copies).for_each(|_| self.borrow_mut().queue(0.13e-3));
            Ok(())
        }

        fn mark(&mut self) -> Result<f64, Error> {
            let mut this = self.borrow_mut();
            this.queue(0.0);
            Ok(this.gpu_s)
        }

        fn has_passed(&mut self, point: &f64) -> Result<bool, Error> {
            Ok(self.borrow().host_s >= *point)
        }

        fn wait(&mut self) -> Result<(), Error> {
            let mut this = self.borrow_mut();
            this.host_s = this.host_s.max(this.gpu_s);
            Ok(())
        }

        fn between(&mut self, from: &f64, to: &f64) -> Result<f64, Error> {
            Ok(to - from)
        }
    }

    fn measure(launch_s: f64, kernel_s: f64, repetitions: usize) -> (Times, Vec<usize>) {
        let played = Rc::new(RefCell::new(Played {
            launch_s,
            kernel_s,
            ..Played::default()
        }));
        let times = on(Rc::clone(&played), repetitions, |i| {
            let mut played = played.borrow_mut();
            let kernel_s = played.kernel_s;
            played.queue(kernel_s);
            played.called.push(i);
            Ok(())
        });
        let called = played.borrow().called.clone();
        (times.unwrap(), called)
    }

    /// However much longer launches take than kernels do.
    #[test]
    fn the_gpu_s_time_is_measured_and_not_the_host_s() {
        for (launch_s, kernel_s) in [(5e-6, 1e-6), (5e-6, 15e-6), (30e-6, 2e-6), (5e-6, 3e-3)] {
            let (times, called) = measure(launch_s, kernel_s, 12);
            assert!(!times.is_host_bound, "{launch_s} and {kernel_s}");
            assert_eq!(times.seconds.len(), 12);
            for seconds in times.seconds {
                assert!((seconds / kernel_s - 1.0).abs() < 1e-6, "{seconds}");
            }
            // Each call has its own number, so that what it turns over goes on.
            assert!(called.iter().copied().eq(0..called.len()));
        }
    }

    #[test]
    fn a_host_that_is_too_slow_is_said_to_be() {
        let (times, _) = measure(5e-3, 1e-6, 12);
        assert!(times.is_host_bound);
        // A slow host is waited for longer before it is given up.
        let (times, called) = measure(20e-6, 10e-6, 12);
        assert!(!times.is_host_bound);
        assert!(called.len() > WARM_UP + 12 * 10, "more than one run");
    }

    #[test]
    fn short_work_runs_several_times_between_points() {
        assert_eq!(calls_between_points(20e-6, 12), 1);
        assert_eq!(calls_between_points(19e-6, 12), 6);
        assert_eq!(calls_between_points(5e-6, 12), 20);
        assert_eq!(calls_between_points(0.0, 12), 50);
        assert_eq!(calls_between_points(1e-6, 10_000), 1);
        let (_, called) = measure(1e-6, 1e-3, 5);
        assert_eq!(called.len(), WARM_UP + 5);
    }
}
