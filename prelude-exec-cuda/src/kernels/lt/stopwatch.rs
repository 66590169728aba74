//! Times of single pieces of work, by the GPU's clock.

use std::time::{Duration, Instant};

use super::tune::Stopwatch;
use crate::{Error, timing::Stream};

/// Copies that keep the stream busy while the first work is queued, at first and at most: the number
/// doubles until they take long enough.
const COPIES: [usize; 2] = [1, 256];

/// A clock that is read by a stream.
#[derive(Debug)]
pub(crate) struct StreamWatch<S> {
    stream: S,
    copies: usize,
    start: Instant,
}

impl<S: Stream> StreamWatch<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self {
            stream,
            copies: COPIES[0],
            start: Instant::now(),
        }
    }

    /// Times one run; returns `None` if the GPU began some work before the host had queued all of it.
    fn run(
        &mut self,
        count: usize,
        queue: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Option<Vec<f64>>, Error> {
        self.stream.fill(self.copies)?;
        let mut points = vec![self.stream.mark()?];
        let mut is_ahead = true;
        for i in 0..count {
            queue(i)?;
            points.push(self.stream.mark()?);
            is_ahead &= !self.stream.has_passed(&points[i])?;
        }
        self.stream.wait()?;
        if !is_ahead {
            return Ok(None);
        }
        let pairs = points.windows(2);
        let seconds = pairs.map(|pair| self.stream.between(&pair[0], &pair[1]));
        seconds.collect::<Result<_, _>>().map(Some)
    }
}

impl<S: Stream> Stopwatch for StreamWatch<S> {
    fn wait(&mut self) -> Result<(), Error> {
        self.stream.wait()
    }

    fn times(
        &mut self,
        count: usize,
        queue: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Option<Vec<f64>>, Error> {
        loop {
            let times = match self.run(count, queue) {
                Ok(times) => times,
                Err(error) => {
                    // Nothing of what was queued may run into what comes next.
                    self.stream.wait()?;
                    return Err(error);
                }
            };
            if times.is_some() || self.copies >= COPIES[1] {
                return Ok(times);
            }
            self.copies *= 2;
        }
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A GPU and its host with clocks of their own: a launch takes the host's time, a kernel the
    /// GPU's, which begins it no sooner than it is launched.
    #[derive(Debug, Default)]
    struct Played {
        host_s: f64,
        gpu_s: f64,
    }

    const LAUNCH_S: f64 = 5e-6;
    const COPY_S: f64 = 40e-6;

    impl Played {
        fn queue(&mut self, seconds: f64) {
            self.host_s += LAUNCH_S;
            self.gpu_s = self.gpu_s.max(self.host_s) + seconds;
        }
    }

    impl Stream for std::rc::Rc<std::cell::RefCell<Played>> {
        type Point = f64;

        fn fill(&mut self, copies: usize) -> Result<(), Error> {
            (0..copies).for_each(|_| self.borrow_mut().queue(COPY_S));
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

    /// However much longer launches take than kernels do, and in whatever mixture they come.
    #[test]
    fn times_are_the_gpus() {
        let kernels = [1e-6, 3e-3, 2e-6, 2e-6, 80e-6, 1e-6];
        let played = std::rc::Rc::new(std::cell::RefCell::new(Played::default()));
        let mut watch = StreamWatch::new(std::rc::Rc::clone(&played));
        for _ in 0..2 {
            let queue = &mut |i: usize| {
                played.borrow_mut().queue(kernels[i % kernels.len()]);
                Ok(())
            };
            let times = watch.times(60, queue).unwrap().unwrap();
            for (i, seconds) in times.iter().enumerate() {
                let expected = kernels[i % kernels.len()];
                assert!((seconds / expected - 1.0).abs() < 1e-6, "{i}: {seconds}");
            }
        }
    }

    #[test]
    fn times_of_a_host_that_is_too_slow_are_none() {
        let played = std::rc::Rc::new(std::cell::RefCell::new(Played::default()));
        let mut watch = StreamWatch::new(std::rc::Rc::clone(&played));
        let queue = &mut |_: usize| {
            let mut played = played.borrow_mut();
            played.host_s += 20e-3;
            played.queue(1e-6);
            Ok(())
        };
        assert_eq!(watch.times(8, queue).unwrap(), None);
    }

    #[test]
    fn a_failed_measurement_waits_for_the_gpu() {
        let played = std::rc::Rc::new(std::cell::RefCell::new(Played::default()));
        let mut watch = StreamWatch::new(std::rc::Rc::clone(&played));
        let queue = &mut |i: usize| {
            played.borrow_mut().queue(1e-3);
            match i {
                3 => Err(Error::launch("cublasLtMatmul", "refused")),
                _ => Ok(()),
            }
        };
        watch.times(8, queue).unwrap_err();
        let played = played.borrow();
        assert!(played.host_s >= played.gpu_s);
    }
}
