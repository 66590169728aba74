//! Recorded outputs of the reference implementation: `golden/` in the sources, carried along.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use prelude_core::RowOutput;
use prelude_models::{
    Checkpoint,
    conformance::golden::{Allowed, Golden, GoldenComparison, GoldenPrompt},
};

use crate::{
    batches::{Forest, count, rows},
    reference::{Compared, Text, compare_texts, generate},
    session::Session,
};

/// Returns the names of the models that were carried along, sorted.
///
/// # Errors
/// If there is none.
pub(crate) fn names(home: &Path) -> Result<Vec<String>> {
    let folder = home.join("golden");
    let entries = fs::read_dir(&folder).with_context(|| format!("no {}", folder.display()))?;
    let mut names: Vec<_> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| has_kernels(home, name))
        .collect();
    names.sort();
    ensure!(!names.is_empty(), "{} is empty", folder.display());
    Ok(names)
}

/// Returns false for the models whose heads no kernel takes: encoders so small that they have fewer
/// than 8 numbers for each, or no multiple of it. What is no model is left in, to be said by name.
fn has_kernels(home: &Path, name: &str) -> bool {
    let checkpoint = Checkpoint::open(&home.join("golden").join(name).join("model"));
    checkpoint.map_or(true, |checkpoint| {
        checkpoint.config().head_dim.is_multiple_of(8)
    })
}

/// Language models whose greedy texts were recorded; the trained one is first.
pub(crate) const TEXTS: [&str; 2] = ["demo-lm", "rand-untied-sharded"];

/// Returns prompts of at most `longest` tokens and their recorded continuations, up to an end token and
/// to `tokens` tokens; at most `texts` of them.
fn recorded_texts(
    golden: &Golden,
    longest: usize,
    texts: usize,
    tokens: usize,
) -> Result<Vec<(Vec<u32>, Text)>> {
    let (ids, _) = golden.i32("f32.greedy").context("no greedy")?;
    let margins = golden.f32("f32.greedy_margin");
    let (margins, _) = margins.context("no greedy_margin")?;
    let of = golden.document()["greedy_prompts"].as_array();
    let of = of.context("no greedy_prompts")?;
    ensure!(!of.is_empty() && ids.len() == margins.len(), "greedy texts");
    let width = ids.len() / of.len();
    let prompts = golden.prompts();
    let mut found = Vec::new();
    for (i, prompt) in of.iter().enumerate() {
        let index = prompt.as_u64().context("greedy_prompts")?;
        let prompt = &prompts
            .get(usize::try_from(index)?)
            .context("greedy_prompts names a prompt that is not there")?
            .tokens;
        let row = i * width..(i + 1) * width;
        let pairs = ids[row.clone()].iter().zip(&margins[row]).take(tokens);
        let text: Text = pairs
            .map_while(|(&id, &lead)| Some((u32::try_from(id).ok()?, lead)))
            .collect();
        if prompt.len() <= longest && !text.is_empty() && found.len() < texts {
            found.push((prompt.clone(), text));
        }
    }
    Ok(found)
}

/// Compares greedy continuations with those of the reference in f32, each token behind the
/// reference's own words: of at most `texts` prompts of at most `longest` tokens, the first
/// `tokens` of each. A token has to be the same if it leads by more than two logits may be off.
///
/// # Errors
/// If a token that leads differs, or if none leads, so that nothing was compared.
pub(crate) fn check_texts(
    session: &mut Session,
    name: &str,
    longest: usize,
    texts: usize,
    tokens: usize,
) -> Result<String> {
    let folder = session.home.join("golden").join(name);
    let golden = Golden::open(&folder)?;
    let checkpoint = Checkpoint::open(&folder.join("model"))?;
    let recorded = recorded_texts(&golden, longest, texts, tokens)?;
    let room = recorded
        .iter()
        .map(|(prompt, text)| prompt.len() + text.len());
    let room = count(room.max().context("no text to compare with")?);
    let mut executor = session.executor(&checkpoint, |config| {
        config.num_blocks = Some(room / 16 + 2);
        config.max_step_tokens = room.max(64);
        config.max_context_len = Some(room.max(64));
        config.chunk_tokens = 128;
        config.logits_rows_max = 16;
    })?;
    let (mut got, mut exact) = (Vec::new(), Vec::new());
    for (prompt, text) in recorded {
        session.beat(|| format!("text {} of {name}", got.len()))?;
        got.push(generate(&mut executor, &prompt, text.len(), &text)?);
        exact.push(text);
    }
    let off = golden.allowed("last_logit_top20");
    let off = off.context("golden.json says nothing of logits in bf16")?;
    match compare_texts(&got, &exact, (2.0 * off.max) as f32)? {
        Compared::Right(text) => Ok(format!("{text}; against the recorded reference")),
        Compared::Nothing(reason) => bail!("{reason}"),
    }
}

/// The arithmetic and the order of sums of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mode {
    pub(crate) deterministic: bool,
    pub(crate) fp8: bool,
}

/// The trained model of the bundle, which is also compared in fp8.
pub(crate) const IN_FP8: &str = "demo-lm";

/// Most times the reference's own error in bf16 that answers in fp8 may be off: e4m3 has 4 bits less.
const FP8_TIMES: f64 = 16.0;

/// Checks one model's prompts of at most `longest` tokens, in steps of at most `step` tokens, `most`
/// tokens in all.
pub(crate) fn check(
    session: &mut Session,
    name: &str,
    longest: usize,
    step: usize,
    most: usize,
    mode: Mode,
) -> Result<String> {
    let folder = session.home.join("golden").join(name);
    let golden = Golden::open(&folder)?;
    let checkpoint = Checkpoint::open(&folder.join("model"))?;
    let mut executor = session.executor(&checkpoint, |config| {
        config.num_blocks = Some(64);
        config.max_step_tokens = count(step);
        let made_for = checkpoint.config().max_position_embeddings;
        config.max_context_len = Some(2048.min(count(longest.max(64).min(made_for))));
        config.chunk_tokens = 128;
        config.logits_rows_max = 128;
        config.deterministic = mode.deterministic;
        config.fp8 = mode.fp8;
    })?;
    let mut comparison = GoldenComparison::new(&golden);
    let (mut forest, mut asked, mut room) = (Forest::default(), Vec::new(), most);
    for prompt in golden.prompts() {
        let len = prompt.tokens.len();
        if len > longest || len > room {
            continue;
        }
        room -= len;
        if forest.tokens() + len > step {
            let answers = rows(&mut executor, std::mem::take(&mut forest))?;
            add(&mut comparison, &asked, &answers)?;
            asked.clear();
        }
        let root = forest.root(&prompt.tokens);
        forest.read(root, comparison.outputs(&prompt.tokens, false));
        asked.push(prompt);
    }
    let answers = rows(&mut executor, forest)?;
    add(&mut comparison, &asked, &answers)?;
    verdict(&golden, &comparison, mode)
}

/// Compares the answers to prompts.
fn add(
    comparison: &mut GoldenComparison<'_>,
    asked: &[GoldenPrompt],
    mut answers: &[RowOutput],
) -> Result<()> {
    for prompt in asked {
        let outputs = comparison.outputs(&prompt.tokens, false).len();
        let of_prompt = answers.split_off(..outputs);
        comparison.add(prompt, of_prompt.context("fewer answers than outputs")?)?;
    }
    ensure!(answers.is_empty(), "more answers than outputs");
    Ok(())
}

/// Describes the array that is closest to its bounds, if even that array is within them.
fn verdict(golden: &Golden, comparison: &GoldenComparison<'_>, mode: Mode) -> Result<String> {
    let checked = comparison.check(|array| match mode.fp8 {
        false => golden.allowed(array),
        true => {
            let (max, mean) = golden.bf16_error(array)?;
            Some(Allowed {
                max: FP8_TIMES * max,
                mean: FP8_TIMES * mean,
            })
        }
    })?;
    let numbers: usize = checked.iter().map(|(_, seen, _)| seen.count).sum();
    let shares = checked.iter().map(|(array, seen, allowed)| {
        let share = (seen.max / allowed.max).max(seen.mean() / allowed.mean);
        (share, array)
    });
    let closest = shares.max_by(|a, b| a.0.total_cmp(&b.0));
    let (share, array) = closest.context("nothing was compared")?;
    Ok(format!(
        "{numbers} numbers of {} arrays; closest to its limit is {array} at {:.0} %",
        checked.len(),
        100.0 * share
    ))
}
