//! The work of long prompts that are computed in slices, and how large a slice is.

use std::time::Duration;

/// The work of a pass, in layer tokens: each token counts once for each layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) tokens: u32,
    pub(crate) layers: u32,
    /// Layer tokens that slices have been planned for.
    pub(crate) planned: u64,
}

impl Work {
    /// Returns the layer tokens of the whole pass.
    pub(crate) const fn total(&self) -> u64 {
        self.tokens as u64 * self.layers as u64
    }

    /// Returns the layer tokens that no slice has been planned for.
    pub(crate) const fn left(&self) -> u64 {
        self.total() - self.planned
    }

    /// Returns the tokens of the pass that have about as much work as is left.
    pub(crate) const fn tokens_left(&self) -> u64 {
        self.left().div_ceil(self.layers as u64)
    }

    /// Returns the size of the next `layer_tokens` of work.
    fn next(&self, layer_tokens: u64) -> SliceSize {
        let context = self.context_until(self.planned + layer_tokens);
        SliceSize {
            layer_tokens: layer_tokens as f64,
            context: context - self.context_until(self.planned),
        }
    }

    /// Returns the size of the next `layer_tokens` of work, if their time tells that of others: not
    /// where the pass begins, since that slice embeds the tokens, nor in the last layer, of which
    /// few tokens are computed to the end.
    pub(crate) fn next_usual(&self, layer_tokens: u64) -> Option<SliceSize> {
        let before_last = self.total() - u64::from(self.tokens);
        let is_in_last = self.layers > 1 && self.planned + layer_tokens > before_last;
        (self.planned > 0 && !is_in_last).then(|| self.next(layer_tokens))
    }

    /// Returns the sum of the contexts of the first layer tokens: a token attends to those before it.
    fn context_until(&self, layer_tokens: u64) -> f64 {
        let triangle = |n: u64| n as f64 * (n as f64 + 1.0) / 2.0;
        let tokens = u64::from(self.tokens);
        let (layers, rest) = (layer_tokens / tokens, layer_tokens % tokens);
        layers as f64 * triangle(tokens) + triangle(rest)
    }
}

/// The size of a slice, as far as its time depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SliceSize {
    layer_tokens: f64,
    /// The tokens that these layer tokens attend to, summed.
    context: f64,
}

/// The time of slices by their size, fitted to the slices that ran: `a · layer tokens + b · context`
/// by least squares, in which a slice counts less the longer ago it ran.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SliceTimes {
    nn: f64,
    nc: f64,
    cc: f64,
    nt: f64,
    ct: f64,
    /// The time of slices as a ratio to what was expected of them, of late; at least 1.
    error: f64,
    /// The layer tokens of the slice that ran last.
    last: f64,
    /// The largest context of a slice that ran.
    context: f64,
}

impl SliceTimes {
    /// Weight of the slices before, when another one has run.
    const DECAY: f64 = 0.8;

    /// A slice is at most so many times as large as the one before, since where a layer begins,
    /// contexts are short, and what is fitted to long ones says little of them; and it has at most
    /// so many times the context of any before, since the times of short ones say nothing of it.
    const GROWTH: f64 = 4.0;

    /// Layer tokens that every slice has, and the first ones alone: fewer would have more to launch
    /// than to compute.
    const LEAST: u64 = 16;

    /// Notes a slice that ran.
    pub(crate) fn note(&mut self, size: SliceSize, took: Duration) {
        let (n, c, t) = (size.layer_tokens, size.context, took.as_secs_f64());
        // The latest error corrects the estimate before the sums have caught up with a device that
        // becomes slower.
        let expected = self.seconds(size);
        self.error = match expected > 0.0 {
            true => f64::midpoint(self.error, t / expected).max(1.0),
            false => 1.0,
        };
        for (sum, term) in [
            (&mut self.nn, n * n),
            (&mut self.nc, n * c),
            (&mut self.cc, c * c),
            (&mut self.nt, n * t),
            (&mut self.ct, c * t),
        ] {
            *sum = *sum * Self::DECAY + term;
        }
        self.last = size.layer_tokens;
        self.context = self.context.max(size.context);
    }

    /// Returns the seconds of a layer token and those of a token of its context.
    fn fitted(&self) -> (f64, f64) {
        let determinant = self.nn * self.cc - self.nc * self.nc;
        // Slices of one size tell nothing of their parts.
        if determinant > 1e-6 * self.nn * self.cc {
            let a = (self.nt * self.cc - self.ct * self.nc) / determinant;
            let b = (self.ct * self.nn - self.nt * self.nc) / determinant;
            if a >= 0.0 && b >= 0.0 {
                return (a, b);
            }
            if a < 0.0 {
                return (0.0, self.ct / self.cc);
            }
        }
        (self.nt / self.nn, 0.0)
    }

    /// Returns the fitted seconds of a slice; 0 if none has run.
    fn seconds(&self, size: SliceSize) -> f64 {
        if self.nn == 0.0 {
            return 0.0;
        }
        let (a, b) = self.fitted();
        a * size.layer_tokens + b * size.context
    }

    /// Returns the layer tokens of the next slice of a pass, which is to take `time`: at least 1,
    /// at most what is left.
    pub(crate) fn choose(&self, work: &Work, time: Duration) -> u64 {
        let left = work.left();
        let most = match self.last > 0.0 {
            true => self.last * Self::GROWTH,
            false => Self::LEAST as f64,
        };
        let fits = |layer_tokens: u64| {
            let size = work.next(layer_tokens);
            size.layer_tokens <= most
                && (self.context == 0.0 || size.context <= self.context * Self::GROWTH)
                && self.seconds(size) * self.error <= time.as_secs_f64()
        };
        // The largest number that fits, since larger slices take longer.
        let (mut fitting, mut too_large) = (0, left + 1);
        while fitting + 1 < too_large {
            let middle = fitting + (too_large - fitting) / 2;
            if fits(middle) {
                fitting = middle;
            } else {
                too_large = middle;
            }
        }
        let chosen = fitting.max(Self::LEAST).min(u64::from(u32::MAX));
        // A rest of a quarter is not worth a slice of its own.
        if chosen + chosen / 4 >= left {
            left
        } else {
            chosen
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(20);

    /// Runs a pass on a device whose slices take a time by their size, and returns their times.
    fn run(tokens: u32, layers: u32, times: &mut SliceTimes, device: (f64, f64)) -> Vec<f64> {
        let mut work = Work {
            tokens,
            layers,
            planned: 0,
        };
        let mut took = Vec::new();
        while work.left() > 0 {
            let layer_tokens = times.choose(&work, SLICE);
            let size = work.next(layer_tokens);
            // The first slice of a pass also embeds its tokens, and the last layer computes little.
            let extra = if work.planned == 0 { 50e-3 } else { 30e-6 };
            let is_last = work.planned >= work.total() - u64::from(tokens);
            let share = if is_last && layers > 1 { 0.1 } else { 1.0 };
            let noise = 1.0 + 0.15 * (took.len() as f64 * 2.3).sin();
            let seconds = share * noise * (device.0 * size.layer_tokens + device.1 * size.context);
            if let Some(size) = work.next_usual(layer_tokens) {
                times.note(size, Duration::from_secs_f64(extra + seconds));
            }
            took.push(seconds);
            work.planned += layer_tokens;
        }
        assert_eq!(work.planned, work.total());
        took
    }

    #[test]
    fn slices_take_the_time_that_is_set_whatever_the_context() {
        // A small model over 60,000 tokens, of which attention takes nine tenths; and 28 layers of
        // a larger one over 3,500.
        for (tokens, layers, device) in [(60_000, 4, (4e-6, 3e-9)), (3_500, 28, (60e-6, 10e-9))] {
            let mut times = SliceTimes::default();
            for pass in 0..2 {
                let took = run(tokens, layers, &mut times, device);
                let longest = took.iter().copied().fold(0.0, f64::max);
                assert!(
                    longest < 1.7 * SLICE.as_secs_f64(),
                    "{longest} in pass {pass}"
                );
                let all: f64 = took.iter().sum();
                let fewest = all / SLICE.as_secs_f64();
                let slices = took.len() as f64;
                assert!(slices < 2.0 * fewest + 40.0, "{slices} slices for {fewest}");
            }
        }
    }

    #[test]
    fn a_device_that_becomes_slower_gets_smaller_slices() {
        let mut times = SliceTimes::default();
        run(10_000, 4, &mut times, (4e-6, 1e-9));
        let took = run(10_000, 4, &mut times, (40e-6, 10e-9));
        let long = took.iter().filter(|&&t| t > 1.5 * SLICE.as_secs_f64());
        assert!(long.count() <= 12, "{took:?}");
        assert!(*took.last().unwrap() < 1.5 * SLICE.as_secs_f64());
    }

    #[test]
    fn short_and_slow_passes_end() {
        let mut times = SliceTimes::default();
        assert_eq!(run(1, 1, &mut times, (1.0, 0.0)), [1.0]);
        // Each slice has the least work, which takes too long.
        assert_eq!(run(64, 1, &mut times, (1.0, 0.0)).len(), 4);
        assert_eq!(run(200, 1, &mut times, (1.0, 0.0)).len(), 13);
    }
}
