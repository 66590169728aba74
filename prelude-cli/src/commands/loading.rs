//! Loading the models of a process: all files first, then one plan for the memory of all of them, then
//! one model after the other.

use indicatif::ProgressBar;
use prelude_core::Profile;
use prelude_engine::ScheduledEngine;
use prelude_hub::Progress;
use prelude_server::{
    ServedModel,
    assets::Assets,
    executor::{Devices, HostMemory},
    load::{LoadOptions, Loaded, load, plan},
    memory,
};
use std::time::Duration;

use super::{
    Code, Failure,
    models::{ToServe, check_names},
    say,
};

/// Loads models in their order, after all of their files are here and their memory was planned
/// together. `limit_bytes` is the memory of the host that they may take, by default what is available;
/// `report` is told how far the download is that is under way, and that it has ended.
///
/// # Errors
/// The first failure, which names its model if there are several. Nothing is loaded before it is
/// known that all models fit.
pub(crate) fn load_all(
    models: Vec<ToServe>,
    limit_bytes: Option<u64>,
    report: &dyn Fn(Option<Progress>),
) -> Result<(Vec<ServedModel>, Vec<ScheduledEngine>), Failure> {
    let is_lone = models.len() == 1;
    let of = |failure: Failure, name: &str| match is_lone {
        true => failure,
        false => failure.of(name),
    };
    let mut opened = Vec::new();
    for mut model in models {
        let name = model.name();
        let fetched = model.source.fetched(&|progress| report(Some(progress)));
        model.source = fetched.map_err(|e| of(e, &name))?;
        report(None);
        let tokenizers = model.options.tokenizer_cache.as_deref();
        let assets = model.source.assets(tokenizers, model.options.plain);
        let assets = assets.map_err(|e| of(e.into(), &name))?;
        let name = model
            .options
            .name
            .get_or_insert_with(|| assets.name.clone());
        let name = name.clone();
        opened.push((name, model, assets));
    }
    check_names(opened.iter().flat_map(|(name, model, _)| {
        let aliases = model.aliases.iter().map(String::as_str);
        std::iter::once(&**name).chain(aliases)
    }))?;
    give_profiles(&mut opened)?;
    if !is_lone {
        let mut plans: Vec<(&str, HostMemory)> = Vec::new();
        for (name, model, assets) in &opened {
            let plan = plan(assets, &model.options, &model.devices);
            let plan = plan.map_err(|e| of(e.into(), name))?;
            plans.extend(plan.map(|plan| (&**name, plan)));
        }
        memory::check_together(&plans, limit_bytes)?;
    }
    let mut served = Vec::new();
    let mut engines = Vec::new();
    for (name, model, assets) in opened {
        let loaded = load_one(&name, assets, &model.options, &model.devices);
        let mut loaded = loaded.map_err(|e| of(e, &name))?;
        loaded.model.aliases = model.aliases;
        say(format_args!("arithmetic: {name}: {}", loaded.executor));
        say(format_args!("memory: {name}: {}", loaded.memory));
        served.push(loaded.model);
        engines.push(loaded.engine);
    }
    Ok((served, engines))
}

/// Gives each model its profile: the one in its own settings, or that of all if the profile is of this
/// model.
///
/// # Errors
/// If the profile of all models is of none of them.
fn give_profiles(opened: &mut [(String, ToServe, Assets)]) -> Result<(), Failure> {
    let is_of = |profile: &Profile, assets: &Assets| profile.model == assets.name;
    let names: Vec<String> = opened
        .iter()
        .map(|(.., assets)| assets.name.clone())
        .collect();
    for (_, model, assets) in opened {
        let Some((profile, is_own)) = model.profile.take() else {
            continue;
        };
        if !is_own && !names.contains(&profile.model) {
            let error = profile.check_source(&names.join("` or `"), &profile.executor);
            error.map_err(|e| Failure::new(Code::Usage, e))?;
        }
        // A profile of the model's own that is of another model is refused as the model is loaded.
        if is_own || is_of(&profile, assets) {
            model.options.profile = Some(profile);
        }
    }
    Ok(())
}

/// Loads a model, with a sign of life on a terminal and warnings on stderr.
///
/// # Errors
/// If it cannot be loaded.
pub(crate) fn load_one(
    name: &str,
    assets: Assets,
    options: &LoadOptions,
    devices: &Devices,
) -> Result<Loaded, Failure> {
    // Drawn on stderr, and only if that is a terminal.
    let progress = ProgressBar::new_spinner().with_message(format!("loading {name}"));
    progress.enable_steady_tick(Duration::from_millis(100));
    let loaded = load(assets, options, devices);
    progress.finish_and_clear();
    let loaded = loaded?;
    for warning in &loaded.warnings {
        say(format_args!("warning: {}: {warning}", loaded.model.name));
    }
    Ok(loaded)
}
