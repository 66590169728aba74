//! A running part: its target, its deadline and its results.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    ops::RangeInclusive,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use prelude_exec_cuda::{
    CudaConfig, CudaExecutor, Error, info,
    measure::{Facts, Target, Times},
};
use prelude_kernels::emu::{Build, Library, Schedule};
use prelude_measure::stats::Spread;
use prelude_models::Checkpoint;
use serde::Deserialize;

use crate::{
    Common,
    results::{Better, Goal, Outcome, Report, Run, State, Verdict},
};

/// The reason why times are not results where there is no GPU.
const NO_TIMES: &str = "emulated: its time says nothing";

/// Results of part `env` that are the bounds of the others.
pub(crate) const CEILING_FLOPS: &str = "product 8192³, bf16";
pub(crate) const CEILING_SUSTAINED: &str = "product 8192³, bf16, sustained 2 s";
pub(crate) const CEILING_BYTES: &str = "copy, device to device";

/// Bounds of `--seconds`, the time that one part may take: a part fits into ten minutes with the
/// 30 s in which one that hangs is ended.
pub(crate) const SECONDS: RangeInclusive<u64> = 5..=565;
/// The share of a part that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// A run on a GPU.
    Full,
    /// A run on a GPU, under a tool that makes it slow.
    Small,
    /// A run without a GPU.
    Smoke,
}

/// The machine's ceilings, as far as part `env` measured them: another GPU's ceilings would be
/// bounds of nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ceilings {
    /// bf16 products, FLOP/s.
    pub(crate) flops: Option<f64>,
    /// bf16 products one after another until the clocks have settled, FLOP/s.
    pub(crate) sustained: Option<f64>,
    /// Copies, bytes read and written a second.
    pub(crate) bytes: Option<f64>,
}

/// A part that is running.
pub(crate) struct Session {
    pub(crate) size: Size,
    pub(crate) config: CudaConfig,
    pub(crate) target: Target,
    /// The folder with images, kernel sources and golden models.
    pub(crate) home: PathBuf,
    pub(crate) out: PathBuf,
    pub(crate) models: PathBuf,
    pub(crate) common: Common,
    pub(crate) ceilings: Ceilings,
    report: Report,
    emulation: Option<Arc<prelude_kernels::emu::Device>>,
    deadline: Instant,
    skipped_for_time: bool,
}

/// The content of `bundle.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Bundle {
    commit: String,
    build: String,
}

/// Returns the folder with what was carried along.
pub(crate) fn home(given: Option<&Path>) -> Result<PathBuf> {
    match given {
        Some(home) => Ok(home.to_owned()),
        None => {
            let program = env::current_exe().context("this program has no path")?;
            let folder = program.parent().context("this program is in no folder")?;
            Ok(folder.to_owned())
        }
    }
}

/// Returns the settings of executors: images from the bundle, libraries from where they usually
/// lie.
pub(crate) fn configure(common: &Common, home: &Path) -> CudaConfig {
    let named = env::var_os("PRELUDE_CUDA_LIBS").unwrap_or_default();
    let mut fallback_dirs = python_packages();
    fallback_dirs.extend(toolkits());
    CudaConfig {
        device: common.device,
        library_dirs: env::split_paths(&named).collect(),
        fallback_dirs,
        image_dir: Some(home.join("images"))
            .filter(|dir| dir.join(prelude_kernels::MANIFEST).exists()),
        cache_dir: Some(models_folder(common).join("kernel-cache")),
        fp8_blocks_by_library: true,
        ..CudaConfig::default()
    }
}

/// Returns the folders `/usr/local/cuda*`, the newest name first.
fn toolkits() -> Vec<PathBuf> {
    let entries = fs::read_dir("/usr/local").into_iter().flatten().flatten();
    let is_toolkit = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("cuda");
    let mut found: Vec<PathBuf> = entries.filter(is_toolkit).map(|e| e.path()).collect();
    found.sort_by(|a, b| b.cmp(a));
    found
}

/// Returns the folders in which the active Python keeps packages, torch's libraries among them.
fn python_packages() -> Vec<PathBuf> {
    let ask = "import site,sysconfig; print('\\n'.join([sysconfig.get_path('platlib')]\
               +site.getsitepackages()+[site.getusersitepackages()]))";
    let output = Command::new("python3").args(["-I", "-c", ask]).output();
    let Ok(output) = output else { return vec![] };
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    lines.lines().map(PathBuf::from).collect()
}

fn models_folder(common: &Common) -> PathBuf {
    let beside = || {
        let mut name = common.out.file_name().unwrap_or_default().to_owned();
        name.push("-models");
        common.out.with_file_name(name)
    };
    common.models.clone().unwrap_or_else(beside)
}

/// Opens what runs kernels. Where no image fits and this machine has a compiler, kernels are
/// compiled with it; the second value says so.
fn open_target(
    common: &Common,
    home: &Path,
    config: &mut CudaConfig,
) -> Result<(
    Target,
    Option<Arc<prelude_kernels::emu::Device>>,
    Option<String>,
)> {
    if common.smoke {
        let build = Build {
            sources: home.join("kernels"),
            cache: common
                .emu_cache
                .clone()
                .unwrap_or_else(|| models_folder(common).join("emulation")),
            ..Build::default()
        };
        let library = Library::build(&build).context("the emulation cannot be built")?;
        let device = Arc::new(library.device(Schedule::WarpGreedy));
        return Ok((Target::emulated(Arc::clone(&device)), Some(device), None));
    }
    let target = Target::gpu(config)?;
    match target.load_kernels() {
        Ok(()) => Ok((target, None, None)),
        Err(Error::KernelImageMissing { name, hint }) => {
            let folder = models_folder(common).join("images");
            let note = format!("the bundle's images do not load here ({hint}); compiled with nvcc");
            config.image_dir = Some(folder.clone());
            // An earlier part may have compiled them.
            if folder.join(prelude_kernels::MANIFEST).exists() {
                let target = Target::gpu(config)?;
                if target.load_kernels().is_ok() {
                    return Ok((target, None, Some(note)));
                }
            }
            crate::nvcc::compile(home, &folder, &target)
                .with_context(|| format!("no image of {name} loads ({hint})"))?;
            let target = Target::gpu(config)?;
            target.load_kernels()?;
            Ok((target, None, Some(note)))
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns the description of a run, before its first part.
pub(crate) fn describe(common: &Common) -> Result<Run> {
    let home = home(common.home.as_deref())?;
    let bundle: Bundle = match fs::read(home.join("bundle.json")) {
        Ok(text) => serde_json::from_slice(&text).context("bundle.json")?,
        Err(_) => Bundle::default(),
    };
    let config = configure(common, &home);
    // Found here, a missing GPU is one clear message and not one a part.
    let facts: Option<Facts> = match common.smoke {
        true => None,
        false => Target::gpu(&config)?.facts(),
    };
    let device = facts.as_ref().map(|f| {
        let (major, minor) = f.compute_capability;
        format!(
            "{}, compute capability {major}.{minor}, {} multiprocessors, {} MiB",
            f.name,
            f.multiprocessors,
            f.total_bytes >> 20
        )
    });
    let command: Vec<_> = env::args().skip(1).collect();
    Ok(Run {
        commit: bundle.commit,
        build: bundle.build,
        date: jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string(),
        target: if common.smoke { "emulated" } else { "gpu" }.to_owned(),
        device,
        driver: facts.map(|f| f.driver),
        libraries: match common.smoke {
            true => vec![],
            false => info(&config),
        },
        command: command.join(" "),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        clocks_before: None,
        clocks_after: None,
        clocks: BTreeMap::new(),
    })
}

/// Returns clocks, temperature and power, where the tool for it is.
pub(crate) fn clocks() -> Option<String> {
    let fields = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active";
    let query = [
        format!("--query-gpu={fields}"),
        "--format=csv,noheader".to_owned(),
    ];
    let output = Command::new("nvidia-smi").args(query).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// Returns the options for the process of one part.
pub(crate) fn arguments(name: &str, seconds: u64, common: &Common) -> Vec<OsString> {
    let mut list: Vec<OsString> = vec!["part".into(), name.into(), "--out".into()];
    list.push(common.out.clone().into());
    list.push("--seconds".into());
    list.push(seconds.to_string().into());
    list.push("--device".into());
    list.push(common.device.to_string().into());
    for (flag, set) in [("--smoke", common.smoke), ("--small", common.small)] {
        list.extend(set.then(|| flag.into()));
    }
    let paths = [
        ("--home", &common.home),
        ("--models", &common.models),
        ("--emu-cache", &common.emu_cache),
    ];
    for (flag, path) in paths {
        if let Some(path) = path {
            list.push(flag.into());
            list.push(path.clone().into());
        }
    }
    list
}

impl Session {
    pub(crate) fn open(name: &str, common: &Common) -> Result<Self> {
        let home = home(common.home.as_deref())?;
        let mut config = configure(common, &home);
        let deadline = Instant::now() + Duration::from_secs(common.seconds);
        let mut report = Report::begin(&common.out, name)?;
        let opened = open_target(common, &home, &mut config);
        let (target, emulation, note) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let why = format!("{error:#}");
                report.add(Outcome::new("the part itself", Verdict::Fail).because(&*why))?;
                report.end(State::Broken, Some(why.clone()))?;
                bail!(why);
            }
        };
        let ceilings = ceilings(report.results());
        let mut this = Self {
            size: match (common.smoke, common.small) {
                (true, _) => Size::Smoke,
                (false, true) => Size::Small,
                (false, false) => Size::Full,
            },
            config,
            target,
            home,
            out: common.out.clone(),
            models: models_folder(common),
            common: common.clone(),
            ceilings,
            report,
            emulation,
            deadline,
            skipped_for_time: false,
        };
        if let Some(note) = note {
            this.note("images", note)?;
        }
        Ok(this)
    }

    pub(crate) fn is_smoke(&self) -> bool {
        self.size == Size::Smoke
    }

    /// Returns `smoke` in a smoke run, else `full`.
    pub(crate) fn pick<T>(&self, full: T, smoke: T) -> T {
        if self.is_smoke() { smoke } else { full }
    }

    /// Returns an executor of a checkpoint on the target.
    pub(crate) fn executor(
        &self,
        checkpoint: &Checkpoint,
        change: impl FnOnce(&mut CudaConfig),
    ) -> Result<CudaExecutor> {
        let mut config = self.config.clone();
        if self.emulation.is_some() {
            config.graph_start_ms = 0;
        }
        change(&mut config);
        Ok(match &self.emulation {
            Some(device) => CudaExecutor::emulated(checkpoint, &config, Arc::clone(device))?,
            None => CudaExecutor::new(checkpoint, config)?,
        })
    }

    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Returns true if there is time for something that takes `seconds`; writes down a SKIP where
    /// not.
    pub(crate) fn has_time(&mut self, name: &str, seconds: f64) -> Result<bool> {
        // On the emulation only the deadline itself counts: estimates are a GPU's.
        let needed = if self.is_smoke() { 0.0 } else { seconds };
        if self.left().as_secs_f64() > needed {
            return Ok(true);
        }
        self.out_of_time(name)?;
        Ok(false)
    }

    /// Says SKIP for want of time.
    pub(crate) fn out_of_time(&mut self, name: &str) -> Result<()> {
        self.skipped_for_time = true;
        self.skip(name, "no time left")
    }

    /// Takes what this part measured itself.
    pub(crate) fn look_for_ceilings(&mut self) {
        self.ceilings = ceilings(self.report.results());
    }

    /// Says where this part's bounds, and goals that are shares of them, come from.
    pub(crate) fn say_ceilings(&mut self) -> Result<()> {
        let said = |value: Option<f64>, unit| match value {
            Some(value) => format!("{:.2} {unit}", value * 1e-12),
            None => "none".to_owned(),
        };
        let Ceilings {
            flops,
            sustained,
            bytes,
        } = self.ceilings;
        let text = format!(
            "measured by part env: products {}, sustained {}, copies {}",
            said(flops, "TFLOP/s"),
            said(sustained, "TFLOP/s"),
            said(bytes, "TB/s")
        );
        match (flops, bytes) {
            (Some(_), Some(_)) => self.note("ceilings", text),
            _ => self.skip(
                "ceilings",
                format!("{text}; no bounds or shares without them"),
            ),
        }
    }

    pub(crate) fn log(&self, line: &str) -> Result<()> {
        self.report.log(line)
    }

    /// Says that long work goes on, if nothing was said for a while: a part that says nothing is
    /// taken for hung.
    pub(crate) fn beat(&self, line: impl FnOnce() -> String) -> Result<()> {
        self.report.beat(line)
    }

    pub(crate) fn add(&mut self, outcome: Outcome) -> Result<()> {
        self.report.add(outcome)
    }

    pub(crate) fn pass(&mut self, name: &str, reason: impl Into<String>) -> Result<()> {
        self.add(Outcome::new(name, Verdict::Pass).because(reason))
    }

    pub(crate) fn fail(&mut self, name: &str, reason: impl Into<String>) -> Result<()> {
        self.add(Outcome::new(name, Verdict::Fail).because(reason))
    }

    pub(crate) fn skip(&mut self, name: &str, reason: impl Into<String>) -> Result<()> {
        self.add(Outcome::new(name, Verdict::Skip).because(reason))
    }

    pub(crate) fn note(&mut self, name: &str, reason: impl Into<String>) -> Result<()> {
        self.add(Outcome::new(name, Verdict::Note).because(reason))
    }

    /// Notes PASS or FAIL by what `check` finds, with its text. A panic is a FAIL too.
    pub(crate) fn check(
        &mut self,
        name: &str,
        check: impl FnOnce(&mut Self) -> Result<String>,
    ) -> Result<()> {
        match self.caught(name, check)? {
            Some(text) => self.pass(name, text),
            None => Ok(()),
        }
    }

    /// Does what [`Self::check`] does if there are so many seconds for it; a SKIP where not.
    pub(crate) fn check_within(
        &mut self,
        name: &str,
        seconds: f64,
        check: impl FnOnce(&mut Self) -> Result<String>,
    ) -> Result<()> {
        match self.has_time(name, seconds)? {
            true => self.check(name, check),
            false => Ok(()),
        }
    }

    /// Runs what measures and writes its own results; an error of it is one FAIL and not the end.
    pub(crate) fn attempt(
        &mut self,
        name: &str,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.caught(name, body).map(drop)
    }

    /// Does what [`Self::attempt`] does if there are so many seconds for it; a SKIP where not.
    pub(crate) fn attempt_within(
        &mut self,
        name: &str,
        seconds: f64,
        body: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        match self.has_time(name, seconds)? {
            true => self.attempt(name, body),
            false => Ok(()),
        }
    }

    /// Returns what `body` does; an error or a panic of it is a FAIL.
    fn caught<T>(
        &mut self,
        name: &str,
        body: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<Option<T>> {
        let why = match catch_unwind(AssertUnwindSafe(|| body(self))) {
            Ok(Ok(done)) => return Ok(Some(done)),
            Ok(Err(error)) => format!("{error:#}"),
            Err(panic) => said(panic.as_ref()),
        };
        self.fail(name, why)?;
        Ok(None)
    }

    /// Writes a figure down that was repeated. Where there is no GPU it is none.
    pub(crate) fn figure(&mut self, figure: Figure<'_>) -> Result<()> {
        self.timed(figure.outcome())
    }

    /// Writes a figure of time down. Where there is no GPU it is none.
    pub(crate) fn timed(&mut self, mut outcome: Outcome) -> Result<()> {
        if !self.target.is_gpu() && outcome.value.is_some_and(f64::is_finite) {
            let detail = outcome.detail;
            outcome = Outcome::new(outcome.name, Verdict::Skip).because(NO_TIMES);
            outcome.detail = detail;
        }
        self.add(outcome)
    }

    pub(crate) fn run(&mut self) -> &mut Run {
        self.report.run()
    }

    /// Returns the figure of this name that a part found in this run or before, on this device.
    pub(crate) fn found(&self, part: &str, name: &str) -> Option<f64> {
        let mut results = self.report.results().iter();
        results.find(|r| r.part == part && r.name == name)?.value
    }

    pub(crate) fn end(self) -> Result<bool> {
        let part = self.report.results().iter().rev();
        let wrong = part.filter(|r| r.verdict == Verdict::Fail).count();
        let state = match self.skipped_for_time {
            true => State::OutOfTime,
            false => State::Done,
        };
        self.report.end(state, None)?;
        Ok(wrong == 0)
    }

    pub(crate) fn broken(self, why: &str) -> Result<()> {
        self.report.end(State::Broken, Some(why.to_owned()))
    }
}

/// Returns the message of a panic.
pub(crate) fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

/// Returns the ceilings that part `env` measured on this device, in this run or before.
fn ceilings(results: &[Outcome]) -> Ceilings {
    let found = |name: &str| {
        let mut results = results.iter();
        let found =
            results.find(|r| r.part == "env" && r.name == name && r.verdict != Verdict::Skip);
        found.and_then(|r| r.value).map(|v| v * 1e12)
    };
    Ceilings {
        flops: found(CEILING_FLOPS),
        sustained: found(CEILING_SUSTAINED),
        bytes: found(CEILING_BYTES),
    }
}

impl Ceilings {
    /// Adds to a rate per second the rate that sustained products allow, each of `flops`, and the
    /// percent of it.
    pub(crate) fn share(self, outcome: &mut Outcome, flops: f64) {
        let bound = self.sustained.map(|sustained| sustained / flops);
        outcome.bound = bound;
        outcome.percent = bound
            .zip(outcome.value)
            .map(|(bound, value)| 100.0 * value / bound);
    }

    /// Returns the least seconds for some work, if both ceilings are known.
    pub(crate) fn bound_s(self, flops: f64, bytes: f64) -> Option<f64> {
        Some((flops / self.flops?).max(bytes / self.bytes?))
    }
}

/// A figure out of repeated seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figure<'a> {
    pub(crate) name: &'a str,
    /// Seconds of each repetition.
    pub(crate) seconds: &'a [f64],
    /// The work of one repetition; the figure is a rate in tera-units then, else microseconds or
    /// milliseconds.
    pub(crate) work: Option<Work>,
    /// Least seconds that the ceilings allow.
    pub(crate) bound_s: Option<f64>,
    /// True for times in milliseconds instead of microseconds.
    pub(crate) ms: bool,
    pub(crate) goal: Option<Goal>,
    pub(crate) detail: bool,
    pub(crate) reason: String,
    /// True if the GPU waited for the host: there is no figure then.
    pub(crate) is_host_bound: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Flops(f64),
    Bytes(f64),
}

pub(crate) const fn at_least(must: f64) -> Option<Goal> {
    Some(Goal {
        must,
        better: Better::Higher,
    })
}

pub(crate) const fn at_most(must: f64) -> Option<Goal> {
    Some(Goal {
        must,
        better: Better::Lower,
    })
}

impl<'a> Figure<'a> {
    /// Makes a figure of wall times, in milliseconds.
    pub(crate) fn wall(name: &'a str, seconds: &'a [f64], goal: Option<Goal>) -> Self {
        Self {
            name,
            seconds,
            ms: true,
            goal,
            ..Self::default()
        }
    }

    /// Makes a figure of times on the GPU.
    pub(crate) fn of(name: &'a str, times: &'a Times) -> Self {
        Self {
            name,
            seconds: &times.seconds,
            is_host_bound: times.is_host_bound,
            ..Self::default()
        }
    }

    fn outcome(&self) -> Outcome {
        let spread = Spread::of(self.seconds);
        let middle = spread.median;
        if self.is_host_bound {
            let why = format!(
                "the host was too slow to time the GPU alone: {:.1} us as seen",
                1e6 * middle
            );
            let mut outcome = Outcome::new(self.name, Verdict::Skip).because(why);
            outcome.detail = self.detail;
            return outcome;
        }
        let (scale, unit) = match (self.work, self.ms) {
            (Some(Work::Flops(n)), _) => (n * 1e-12, "TFLOP/s"),
            (Some(Work::Bytes(n)), _) => (n * 1e-12, "TB/s"),
            (None, true) => (1e3, "ms"),
            (None, false) => (1e6, "us"),
        };
        let value = |seconds: f64| match self.work {
            Some(_) => scale / seconds,
            None => scale * seconds,
        };
        let mut outcome = Outcome::figure(self.name, (value(middle), unit), self.goal)
            .because(self.reason.clone());
        outcome.bound = self.bound_s.map(value);
        outcome.percent = self.bound_s.map(|bound| 100.0 * bound / middle);
        outcome.repetitions = Some(self.seconds.len());
        outcome.spread = (self.seconds.len() > 1).then(|| spread.relative());
        outcome.detail = self.detail;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ceilings come from part `env` alone; without a measurement there is none.
    #[test]
    fn ceilings_are_measured_or_none() {
        let outcome = |part: &str, name: &str, verdict, value| {
            let mut outcome = Outcome::new(name, verdict);
            part.clone_into(&mut outcome.part);
            outcome.value = value;
            outcome
        };
        let bytes = outcome("env", CEILING_BYTES, Verdict::Note, Some(2.0));
        let flops = outcome("env", CEILING_FLOPS, Verdict::Note, Some(100.0));
        let none = ceilings(&[]);
        assert!(none.flops.is_none() && none.bytes.is_none());
        let other = outcome("gemm", CEILING_FLOPS, Verdict::Note, Some(9.0));
        let skipped = outcome("env", CEILING_FLOPS, Verdict::Skip, None);
        let half = ceilings(&[bytes.clone(), other, skipped]);
        assert!(half.flops.is_none() && half.bound_s(1.0, 1.0).is_none());
        let both = ceilings(&[bytes, flops]);
        assert_eq!(both.bound_s(200e12, 2e12), Some(2.0));
        assert_eq!(both.bound_s(100e12, 6e12), Some(3.0));
    }

    #[test]
    fn figures_are_medians_in_their_units() {
        let figure = Figure {
            name: "f",
            seconds: &[2e-3, 1e-3, 4e-3],
            work: Some(Work::Flops(4e12 * 2e-3)),
            bound_s: Some(1e-3),
            goal: at_least(5.0),
            ..Figure::default()
        };
        let outcome = figure.outcome();
        assert!((outcome.value.unwrap() - 4.0).abs() < 1e-9);
        assert!((outcome.bound.unwrap() - 8.0).abs() < 1e-9);
        assert!((outcome.percent.unwrap() - 50.0).abs() < 1e-9);
        assert!((outcome.spread.unwrap() - 1.5).abs() < 1e-9);
        assert_eq!(outcome.verdict, Verdict::Miss);
        let time = Figure {
            work: None,
            goal: at_most(2000.0),
            ..figure
        };
        let outcome = time.outcome();
        assert!((outcome.value.unwrap() - 2000.0).abs() < 1e-6);
        assert_eq!((outcome.verdict, &*outcome.unit), (Verdict::Pass, "us"));
        let host_bound = Figure {
            is_host_bound: true,
            ..time
        };
        let outcome = host_bound.outcome();
        assert_eq!((outcome.verdict, outcome.value), (Verdict::Skip, None));
    }
}
