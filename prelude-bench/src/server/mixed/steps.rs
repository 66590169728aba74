//! The time of a server's steps, by what was in them.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result};
use prelude_server::demo;

use crate::{load::Load, process::metrics};

/// Seconds of the steps of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps([f64; 3]);

impl Steps {
    /// The classes that are in the steps of each share.
    pub(super) const OF: [&str; 3] = ["decisions alone", "chat alone", "both"];

    /// Returns the shares of the steps' time.
    pub(super) fn shares(self) -> [f64; 3] {
        let all: f64 = self.0.iter().sum();
        self.0.map(|seconds| seconds / all)
    }

    /// Runs `work`, and reads the steps' time at the beginning and at the end of the load's counted
    /// time.
    pub(super) fn during<T>(
        address: &str,
        load: Load,
        work: impl FnOnce() -> T,
    ) -> Result<(T, Self)> {
        let after = |time: Duration| {
            thread::sleep(time);
            Self::read(address)
        };
        let watch = || Ok::<_, anyhow::Error>((after(load.warm_up)?, after(load.time)?));
        let (result, watched) = thread::scope(|scope| {
            let watch = scope.spawn(watch);
            (work(), watch.join())
        });
        let watched = watched.map_err(|_| ()).ok();
        let (from, to) = watched.context("the thread that reads metrics ended")??;
        let mut seconds = to.0;
        for (to, from) in seconds.iter_mut().zip(from.0) {
            *to -= from;
        }
        Ok((result, Self(seconds)))
    }

    fn read(address: &str) -> Result<Self> {
        let names = ["oneshot", "slice", "decode", "mixed"].map(|kind| {
            let model = demo::LM.name;
            format!("prelude:step_seconds_sum{{model_name=\"{model}\",kind=\"{kind}\"")
        });
        let [oneshot, slices, decode, mixed] = metrics(address, names.each_ref().map(|n| &**n))?;
        Ok(Self([oneshot + slices, decode, mixed]))
    }
}
