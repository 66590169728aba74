//! `prelude profile`: measures a model on its executor and writes the file that all predictions
//! read.

mod measure;
mod steps;

use std::{
    fmt::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use prelude_core::{Fitted, Profile, Sample, ServiceTime, StepWork};
use prelude_server::{demo, load, profile};

use self::measure::{Measured, measure};
use super::{Code, Environment, Failure, Source, print, say};
use crate::args::ProfileArgs;

/// Measures, prints what was found, and writes the file.
pub(crate) fn run(args: &ProfileArgs, environment: &Environment) -> Result<(), Failure> {
    check_folder(&args.output)?;
    let settings = environment.settings(args.config.as_deref())?;
    let options = settings.load_options(&args.model_args);
    let (base, revision) = (&args.model_args.base, &args.model_args.revision);
    let source = match &args.model {
        Some(model) => Source::on(base.as_deref(), model, revision.as_deref())?.fetched(&|_| ())?,
        None => Source::Embedded(demo::LM),
    };
    let devices = settings.devices(args.model_args.device, &options, &source)?;
    let assets = source.assets(options.tokenizer_cache.as_deref(), options.plain)?;
    let mut opened = load::open(&assets, &options, &devices)?;
    let budget = Duration::from_secs(args.seconds);
    let measured = {
        let bar = progress(budget)?;
        let started = Instant::now();
        let tick = || bar.set_position(millis(started.elapsed().min(budget)));
        let measured = measure(
            opened.executor.as_mut(),
            assets.checkpoint.kind(),
            budget,
            &tick,
        );
        bar.finish_and_clear();
        measured?
    };
    let Measured { prefill, decode } = &measured;
    let fitted = Fitted::of(prefill, decode).map_err(|error| {
        let message = format!("{error}; give it more time with --seconds");
        Failure::new(Code::Failed, message)
    })?;
    let found = Profile {
        version: Profile::VERSION,
        model: assets.name.clone(),
        executor: opened.name.clone(),
        capacity: opened.executor.capacity(),
        service: fitted.service,
        prefill: prefill.clone(),
        decode: decode.clone(),
    };
    print(&table(&found, &fitted))?;
    write(&args.output, &found)
}

/// Checks that the file's folder is there, before anything is measured for it.
fn check_folder(file: &Path) -> Result<(), Failure> {
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    match folder {
        Some(folder) if !folder.is_dir() => {
            let (file, folder) = (file.display(), folder.display());
            let message = format!("cannot write the profile {file}: there is no folder {folder}");
            Err(Failure::new(Code::Usage, message))
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, found: &Profile) -> Result<(), Failure> {
    profile::write(path, found).map_err(|e| {
        let message = format!("cannot write the profile {}: {e}", path.display());
        Failure::new(Code::Failed, message)
    })?;
    say(format_args!(
        "wrote {path}: use it with `prelude serve --profile {path}`",
        path = path.display()
    ));
    Ok(())
}

/// Returns a bar of the time that is left, on a terminal.
fn progress(budget: Duration) -> Result<ProgressBar, Failure> {
    let bar = ProgressBar::new(millis(budget));
    let style = ProgressStyle::with_template("{elapsed_precise} {bar:30} measuring steps");
    bar.set_style(style.map_err(|e| Failure::new(Code::Failed, e))?);
    Ok(bar)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the measured steps beside what the fit says of them, and the fit.
fn table(profile: &Profile, fitted: &Fitted) -> String {
    let mut text = format!("{} on {}\n\n", profile.model, profile.executor);
    let service = &profile.service;
    let predicted = |work: StepWork| service.step_ms(&work);
    for (title, samples, work) in [
        (
            "prompts",
            &profile.prefill,
            Sample::prefill_work as fn(&Sample) -> StepWork,
        ),
        ("generations", &profile.decode, Sample::decode_work),
    ] {
        if samples.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "{title:<11} {:>7} {:>7} {:>6} {:>11} {:>11} {:>7}",
            "length", "cached", "batch", "ms", "predicted", "error"
        );
        for sample in samples {
            let ms = predicted(work(sample));
            let _ = writeln!(
                text,
                "{:<11} {:>7} {:>7} {:>6} {:>11.3} {:>11.3} {:>6.0}%",
                "",
                sample.computed,
                sample.cached,
                sample.batch,
                sample.ms,
                ms,
                100.0 * (ms / sample.ms - 1.0)
            );
        }
        text.push('\n');
    }
    let errors = Fitted::standard_errors(&profile.prefill, &profile.decode);
    coefficients(&mut text, service, &errors);
    let _ = writeln!(
        text,
        "\nThe fit explains {:.1} % of the variance of prompts' times (R²); their correlation with \
         the tokens\nto compute is {:.3}. Steps of up to {:.0} tokens wait for memory.",
        100.0 * fitted.r2,
        fitted.correlation,
        service.memory_bound_tokens(0),
    );
    text
}

fn coefficients(text: &mut String, service: &ServiceTime, errors: &ServiceTime) {
    let fields = service.fields().into_iter().zip(errors.fields());
    for ((name, value), (_, error)) in fields {
        let _ = writeln!(text, "{name:<13} {value:>11.3e} ± {error:.1e}");
    }
}
