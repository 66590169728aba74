//! Pieces of work timed in turns.

use std::time::{Duration, Instant};

/// The number and the length of rounds.
#[derive(Clone, Copy, Debug)]
pub struct Rounds {
    /// Rounds of each piece of work.
    pub count: usize,
    /// Time for one round of one piece of work.
    pub time: Duration,
}

/// Calls each of `works` in turn, round after round, and returns for each the seconds per call of
/// every round. Turns make them share whatever else the machine does meanwhile.
pub fn in_turns(rounds: Rounds, works: &mut [&mut dyn FnMut()]) -> Vec<Vec<f64>> {
    let calls: Vec<u32> = works
        .iter_mut()
        .map(|work| calls_per_round(rounds.time, work))
        .collect();
    let mut seconds = vec![Vec::new(); works.len()];
    for _ in 0..rounds.count.max(1) {
        for ((work, &calls), seconds) in works.iter_mut().zip(&calls).zip(&mut seconds) {
            let start = Instant::now();
            for _ in 0..calls {
                work();
            }
            seconds.push(start.elapsed().as_secs_f64() / f64::from(calls));
        }
    }
    seconds
}

/// Returns how many calls fill the time of a round, after one call that warms up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 1..1e6"
)]
fn calls_per_round(time: Duration, work: &mut dyn FnMut()) -> u32 {
    work();
    let start = Instant::now();
    work();
    let once = start.elapsed().as_secs_f64().max(1e-7);
    (time.as_secs_f64() / once).clamp(1.0, 1e6) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken() {
        let (mut a, mut b) = (0, 0);
        let rounds = Rounds {
            count: 3,
            time: Duration::ZERO,
        };
        let seconds = in_turns(rounds, &mut [&mut || a += 1, &mut || b += 1]);
        assert_eq!((seconds.len(), seconds[0].len()), (2, 3));
        assert_eq!((a, b), (5, 5));
    }
}
