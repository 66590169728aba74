//! Clocks, power and memory of a GPU while a part works: `nvidia-smi`, ten times a second.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// The time between two samples, in milliseconds.
const EVERY_MS: u32 = 100;
/// Samples that are kept: more than the longest part has.
const SAMPLES_MAX: usize = 6_000;
/// Bytes that are read at most.
const BYTES_MAX: u64 = 1 << 20;
/// The columns that nvidia-smi is asked for, in this order.
const FIELDS: &str = "clocks.sm,power.draw,memory.used,clocks_event_reasons.active";
/// Reasons for which a clock is held back, by their bits, as NVIDIA's library of management has them.
const REASONS: [(u64, &str); 8] = [
    (0x1, "idle"),
    (0x2, "set by applications"),
    (0x4, "power cap"),
    (0x8, "hardware slowdown"),
    (0x10, "sync boost"),
    (0x20, "heat"),
    (0x40, "hardware heat"),
    (0x80, "power brake"),
];

/// Samples of a GPU's clock, power and reasons for a lower clock, a number of each kind for each sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Series {
    pub(crate) every_ms: u32,
    pub(crate) sm_mhz: Vec<u32>,
    pub(crate) power_w: Vec<u32>,
    pub(crate) memory_mib: Vec<u32>,
    /// Bits of the reasons for which the clock was held back.
    pub(crate) reasons: Vec<u64>,
}

/// A running `nvidia-smi`. It is ended when dropped.
pub(crate) struct Sampler {
    child: Child,
    series: Arc<Mutex<Series>>,
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // Nothing is left to do if it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sampler {
    /// Starts to look at a GPU.
    ///
    /// # Errors
    /// If there is no `nvidia-smi`.
    pub(crate) fn start(device: u32) -> Result<Self> {
        let mut child = Command::new("nvidia-smi")
            .arg(format!("--query-gpu={FIELDS}"))
            .args(["--format=csv,noheader,nounits", "-i", &device.to_string()])
            .args(["-lms", &EVERY_MS.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("nvidia-smi cannot be started")?;
        let output = child.stdout.take().context("its output is piped")?;
        let series = Arc::new(Mutex::new(Series {
            every_ms: EVERY_MS,
            ..Series::default()
        }));
        let to = Arc::clone(&series);
        thread::spawn(move || read(output, &to));
        Ok(Self { child, series })
    }

    /// Returns what was seen so far.
    pub(crate) fn seen(&self) -> Series {
        let series = self.series.lock();
        series.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn read(output: ChildStdout, to: &Mutex<Series>) {
    for line in BufReader::new(output.take(BYTES_MAX)).lines() {
        let Ok(line) = line else { return };
        let mut series = to.lock().unwrap_or_else(PoisonError::into_inner);
        if series.sm_mhz.len() >= SAMPLES_MAX {
            return;
        }
        series.add(&line);
    }
}

impl Series {
    /// Adds a line as `nvidia-smi` prints it. One with something that is no number is passed over.
    fn add(&mut self, line: &str) {
        let Some((mhz, watts, mib, reasons)) = parse(line) else {
            return;
        };
        self.sm_mhz.push(mhz);
        self.power_w.push(watts);
        self.memory_mib.push(mib);
        self.reasons.push(reasons);
    }

    /// Returns the places of the samples in which the GPU worked: those of more than half of the
    /// largest power.
    fn busy(&self) -> Vec<usize> {
        let most = self.power_w.iter().max().copied().unwrap_or(0);
        let worked = |&i: &usize| 2 * self.power_w[i] > most;
        (0..self.power_w.len()).filter(worked).collect()
    }

    /// Returns a line about the samples in which the GPU worked, if there are any.
    pub(crate) fn summary(&self) -> Option<String> {
        let busy = self.busy();
        if busy.is_empty() {
            return None;
        }
        let of = |values: &[u32]| {
            let mut values: Vec<u32> = busy.iter().map(|&i| values[i]).collect();
            values.sort_unstable();
            (
                values[0],
                values[values.len() / 2],
                values[values.len() - 1],
            )
        };
        let ((low, mhz, high), (_, watts, most)) = (of(&self.sm_mhz), of(&self.power_w));
        let memory = self.memory_mib.iter().max().copied().unwrap_or(0);
        let held: Vec<String> = REASONS
            .iter()
            .filter_map(|&(bit, name)| {
                let seen = busy.iter().filter(|&&i| self.reasons[i] & bit != 0).count();
                let percent = 100 * seen / busy.len();
                (seen > 0).then(|| format!("{name} {percent} %"))
            })
            .collect();
        let held = match held.is_empty() {
            true => "nothing".to_owned(),
            false => held.join(", "),
        };
        Some(format!(
            "median {mhz} MHz ({low} to {high}), {watts} W (at most {most}), held back by {held}; \
             {} of {} samples at work; at most {memory} MiB",
            busy.len(),
            self.power_w.len()
        ))
    }
}

/// Reads a line: MHz, watts, MiB and bits of reasons.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float turns into the nearest number that there is"
)]
fn parse(line: &str) -> Option<(u32, u32, u32, u64)> {
    let mut fields = line.split(',').map(str::trim);
    let mut number = || fields.next()?.parse::<f64>().ok();
    let (mhz, watts, mib) = (number()?, number()?, number()?);
    let reasons = fields.next()?.strip_prefix("0x")?;
    let reasons = u64::from_str_radix(reasons, 16).ok()?;
    Some((mhz as u32, watts.round() as u32, mib as u32, reasons))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_medians_of_the_time_at_work() {
        let mut series = Series::default();
        assert_eq!(series.summary(), None);
        series.add("1980, 111.05, 4, 0x0000000000000001");
        for (mhz, watts) in [(1500, 690), (1400, 700), (1600, 680)] {
            series.add(&format!("{mhz}, {watts}.4, 70000, 0x0000000000000004"));
        }
        for bad in ["", "[N/A], 1, 2, 0x0", "1, 2, 3", "1, 2, 3, 4"] {
            series.add(bad);
        }
        assert_eq!(series.sm_mhz, [1980, 1500, 1400, 1600]);
        let expected = "median 1500 MHz (1400 to 1600), 690 W (at most 700), held back by power \
                        cap 100 %; 3 of 4 samples at work; at most 70000 MiB";
        assert_eq!(series.summary().as_deref(), Some(expected));
    }
}
