//! The cores of a server and of its load generator, which must not share them: a generator that
//! sends three times the load would take the server's time, and the report would blame the server.

use anyhow::Result;

/// Cores of the server and of the generator, disjoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    pub(super) server: Vec<usize>,
    pub(super) generator: Vec<usize>,
}

impl Cores {
    /// Assigns the last of this thread's cores to the generator and the others to the server.
    /// Returns `None` if there is only one core, or if the system cannot tell.
    pub(super) fn apart() -> Option<Self> {
        Self::split(system::cores()?)
    }

    fn split(mut cores: Vec<usize>) -> Option<Self> {
        let last = cores.pop()?;
        (!cores.is_empty()).then(|| Self {
            server: cores,
            generator: vec![last],
        })
    }

    /// Runs `start`, which starts a process, on the server's cores, and goes on on the
    /// generator's.
    pub(super) fn part<T>(&self, start: impl FnOnce() -> Result<T>) -> Result<(T, Back)> {
        let all = [&self.server[..], &self.generator].concat();
        system::stay_on(&self.server)?;
        let started = start();
        let back = Back(all);
        // A new thread or process has the cores of the thread that starts it.
        system::stay_on(&self.generator)?;
        Ok((started?, back))
    }
}

/// Returns this thread's cores in `parts` parts of the same size, or `None` if there are fewer cores
/// than parts, or if the system cannot tell.
pub(crate) fn shares(parts: usize) -> Option<Vec<Vec<usize>>> {
    share(&system::cores()?, parts)
}

fn share(cores: &[usize], parts: usize) -> Option<Vec<Vec<usize>>> {
    let size = cores.len().checked_div(parts)?;
    (size > 0).then(|| cores.chunks(size).take(parts).map(<[_]>::to_vec).collect())
}

/// Runs `start`, which starts a process, on these cores. This thread then has all of its own again.
pub(crate) fn within<T>(cores: &[usize], start: impl FnOnce() -> Result<T>) -> Result<T> {
    let _back = Back(system::cores().unwrap_or_default());
    system::stay_on(cores)?;
    start()
}

/// Gives this thread all of its cores back when dropped.
pub(super) struct Back(Vec<usize>);

impl Drop for Back {
    fn drop(&mut self) {
        // Nothing is lost but time if the system does not let us.
        let _ = system::stay_on(&self.0);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use anyhow::{Context as _, Result};
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    pub(super) fn cores() -> Option<Vec<usize>> {
        let set = sched_getaffinity(None).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|&c| set.is_set(c)).collect())
    }

    pub(super) fn stay_on(cores: &[usize]) -> Result<()> {
        let mut set = CpuSet::new();
        cores.iter().for_each(|&core| set.set(core));
        sched_setaffinity(None, &set).context("this thread's cores")
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use anyhow::Result;

    pub(super) fn cores() -> Option<Vec<usize>> {
        None
    }

    pub(super) fn stay_on(_: &[usize]) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_core_is_the_generators() {
        let cores = Cores::split(vec![0, 2, 5]).unwrap();
        assert_eq!((cores.server, cores.generator), (vec![0, 2], vec![5]));
        assert_eq!(Cores::split(vec![3]), None);
        assert_eq!(Cores::split(Vec::new()), None);
    }

    #[test]
    fn shares_are_equal_and_apart() {
        let parts = share(&[0, 2, 5, 6, 7], 2).unwrap();
        assert_eq!(parts, [vec![0, 2], vec![5, 6]]);
        assert_eq!(share(&[3], 1), Some(vec![vec![3]]));
        assert_eq!((share(&[3], 2), share(&[3], 0)), (None, None));
    }

    #[test]
    fn a_process_starts_within_its_cores() {
        let run = || {
            let Some(before) = system::cores() else {
                return;
            };
            let last = [*before.last().unwrap()];
            let seen = within(&last, || Ok(system::cores())).unwrap();
            assert_eq!(seen, Some(last.to_vec()));
            assert_eq!(system::cores(), Some(before));
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    }

    #[test]
    fn a_thread_gets_its_cores_back() {
        // New threads have affinities of their own, so no other thread changes.
        let run = || {
            let Some(cores) = Cores::apart() else {
                return;
            };
            let before = system::cores();
            let (seen, back) = cores.part(|| Ok(system::cores())).unwrap();
            assert_eq!(seen, Some(cores.server));
            assert_eq!(system::cores(), Some(cores.generator));
            drop(back);
            assert_eq!(system::cores(), before);
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap());
    }
}
