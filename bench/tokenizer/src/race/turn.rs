//! The turn of one engine in a round, at work that can be repeated.

use anyhow::Result;

use crate::{
    process::Process,
    protocol::{Cost, Order},
};

/// The work of an engine in its turn.
pub(super) struct Turn<F> {
    /// The order to do the work so many times over.
    pub(super) order: F,
    /// Selects the time that counts.
    pub(super) seconds: fn(Cost) -> f64,
    /// The target seconds of a turn of repeated work; new work is done only once.
    pub(super) repeat_s: Option<f64>,
}

impl<F: Fn(u32) -> Order> Turn<F> {
    /// Returns the seconds for the work done once. Returns `None` in round 0, which prepares each
    /// engine and finds the number of times that the engine repeats the work.
    pub(super) fn take(
        &self,
        round: usize,
        process: &mut Process,
        passes: &mut u32,
    ) -> Result<Option<f64>> {
        if round == 0 {
            *passes = self.ready(process)?;
            return Ok(None);
        }
        if self.repeat_s.is_some() {
            // Warm text is text that this engine has just seen: after the turns of other engines,
            // the processor's caches have lost it.
            process.obey(&(self.order)(1))?;
        }
        self.timed(process, *passes).map(Some)
    }

    fn ready(&self, process: &mut Process) -> Result<u32> {
        let cold = self.timed(process, 1)?;
        let Some(turn_s) = self.repeat_s else {
            return Ok(1);
        };
        // The first time says little about later ones.
        let warm = self.timed(process, repeats(cold, turn_s / 10.0))?;
        Ok(repeats(warm, turn_s))
    }

    fn timed(&self, process: &mut Process, passes: u32) -> Result<f64> {
        let cost = process.obey(&(self.order)(passes))?;
        Ok((self.seconds)(cost) / f64::from(passes))
    }
}

fn repeats(seconds: f64, turn_s: f64) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped to 1..1e6"
    )]
    let repeats = (turn_s / seconds.max(1e-9)).clamp(1.0, 1e6) as u32;
    repeats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_repeated_for_a_turns_time() {
        assert_eq!(repeats(0.01, 0.2), 20);
        assert_eq!(repeats(0.5, 0.2), 1);
        assert_eq!(repeats(0.0, 0.2), 1_000_000);
    }
}
