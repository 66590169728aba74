//! Recorded outputs of the reference implementation: `golden/` in the sources, carried along.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use prelude_core::{OutputHead, Pooling, RowOutput};
use prelude_models::Checkpoint;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::{
    batches::{Forest, Wanted, count, embed, rows, scores},
    compare::{Allowed, Differences, unit},
    reference::{Compared, Text, compare_texts, generate},
    session::Session,
};

/// Those that are carried along: of the two classifiers the smaller one.
pub(crate) const NAMES: [&str; 5] = [
    "demo-lm",
    "rand-untied-sharded",
    "rand-yarn-reward",
    "rand-embed",
    "rand-cls3",
];

/// Language models whose greedy texts were recorded; the trained one is first.
pub(crate) const TEXTS: [&str; 2] = ["demo-lm", "rand-untied-sharded"];

struct Golden {
    bytes: Vec<u8>,
    document: Value,
}

impl Golden {
    fn open(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        Ok(Self {
            bytes: read("golden.safetensors")?,
            document: serde_json::from_slice(&read("golden.json")?).context("golden.json")?,
        })
    }

    fn words<T>(&self, name: &str, read: fn([u8; 4]) -> T) -> Result<Option<Vec<T>>> {
        let file = SafeTensors::deserialize(&self.bytes)?;
        let Ok(tensor) = file.tensor(name) else {
            return Ok(None);
        };
        let words = tensor.data().as_chunks::<4>().0.iter().copied();
        Ok(Some(words.map(read).collect()))
    }

    fn f32(&self, name: &str) -> Result<Option<Vec<f32>>> {
        self.words(&format!("f32.{name}"), f32::from_le_bytes)
    }

    /// Number, index of the first token, and tokens of each prompt.
    fn prompts(&self) -> Result<Vec<(usize, usize, Vec<u32>)>> {
        let ids = |name: &str| -> Result<Vec<u32>> {
            let ids = self.words(name, u32::from_le_bytes)?;
            ids.with_context(|| format!("no {name}"))
        };
        let (tokens, offsets) = (ids("tokens")?, ids("offsets")?);
        let prompts = offsets.windows(2).enumerate().map(|(p, w)| {
            let range = w[0] as usize..w[1] as usize;
            (p, range.start, tokens[range].to_vec())
        });
        Ok(prompts.collect())
    }

    /// Prompts of at most `longest` tokens and their recorded continuations, up to an end token and
    /// to `tokens` tokens; at most `texts` of them.
    fn texts(&self, longest: usize, texts: usize, tokens: usize) -> Result<Vec<(Vec<u32>, Text)>> {
        let ids = self.words("f32.greedy", i32::from_le_bytes)?;
        let (ids, margins) = (ids.context("no greedy")?, self.f32("greedy_margin")?);
        let margins = margins.context("no greedy_margin")?;
        let of = self.document["greedy_prompts"].as_array();
        let of = of.context("no greedy_prompts")?;
        ensure!(!of.is_empty() && ids.len() == margins.len(), "greedy texts");
        let width = ids.len() / of.len();
        let prompts = self.prompts()?;
        let mut found = Vec::new();
        for (i, prompt) in of.iter().enumerate() {
            let index = prompt.as_u64().context("greedy_prompts")?;
            let (_, _, prompt) = prompts
                .get(usize::try_from(index)?)
                .context("greedy_prompts names a prompt that is not there")?;
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

    /// The reference's own difference of f32 and bf16.
    fn allowed(&self, array: &str) -> Option<Allowed> {
        let observed = &self.document["tolerances"]["f32 against bf16"][array];
        let number = |key: &str| observed[key].as_f64();
        Some(Allowed::from_observed(number("max")?, number("mean")?))
    }
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
    let recorded = golden.texts(longest, texts, tokens)?;
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

/// What a prompt is asked, in the order of [`Seen`]'s fields.
fn wants(tokens: &[u32], vocabulary: bool, classes: bool) -> Vec<Wanted> {
    let len = count(tokens.len());
    let last = len - 1..len;
    let mut rows = vec![
        (last.clone(), embed(Pooling::Last)),
        (0..len, embed(Pooling::Mean)),
    ];
    if vocabulary {
        rows.push((last, scores(&[7, 4000, 9])));
        if len > 1 {
            let targets = tokens[1..].to_vec();
            rows.push((0..len - 1, OutputHead::Logprobs { targets, top: 5 }));
        }
    } else if classes {
        rows.push((last, OutputHead::Classify));
    }
    rows
}

#[derive(Default)]
struct Seen {
    last: Differences,
    mean: Differences,
    lse: Differences,
    logprob: Differences,
    classes: Differences,
}

/// One model's prompts of at most `longest` tokens, in steps of at most `step` tokens, `most`
/// tokens in all.
pub(crate) fn check(
    session: &mut Session,
    name: &str,
    longest: usize,
    step: usize,
    most: usize,
    deterministic: bool,
) -> Result<String> {
    let folder = session.home.join("golden").join(name);
    let golden = Golden::open(&folder)?;
    let checkpoint = Checkpoint::open(&folder.join("model"))?;
    let mut executor = session.executor(&checkpoint, |config| {
        config.num_blocks = Some(64);
        config.max_step_tokens = count(step);
        config.max_context_len = Some(2048.min(count(longest.max(64))));
        config.chunk_tokens = 128;
        config.logits_rows_max = 128;
        config.deterministic = deterministic;
    })?;
    let vocabulary = golden.f32("logprob")?.is_some();
    let classes = golden.f32("cls_logits")?.is_some();
    let mut seen = Seen::default();
    let (mut forest, mut asked, mut room) = (Forest::default(), Vec::new(), most);
    for prompt in golden.prompts()? {
        let len = prompt.2.len();
        if len > longest || len > room {
            continue;
        }
        room -= len;
        if forest.tokens() + len > step {
            let answers = rows(&mut executor, std::mem::take(&mut forest))?;
            add(&golden, &asked, answers, &mut seen)?;
            asked.clear();
        }
        let root = forest.root(&prompt.2);
        forest.read(root, wants(&prompt.2, vocabulary, classes));
        asked.push(prompt);
    }
    let answers = rows(&mut executor, forest)?;
    add(&golden, &asked, answers, &mut seen)?;
    verdict(&golden, &seen)
}

/// Compares the answers to prompts.
fn add(
    golden: &Golden,
    asked: &[(usize, usize, Vec<u32>)],
    answers: Vec<RowOutput>,
    seen: &mut Seen,
) -> Result<()> {
    let array = |name: &str| -> Result<Vec<f32>> {
        golden.f32(name)?.with_context(|| format!("no {name}"))
    };
    let part = |name: &str, prompt: usize, width: usize| -> Result<Vec<f32>> {
        Ok(array(name)?[prompt * width..][..width].to_vec())
    };
    let mut prompts = asked.iter();
    let mut prompt = None;
    let mut embeddings = 0;
    for answer in answers {
        // The embedding of the last token comes first of each prompt's rows.
        if matches!(answer, RowOutput::Embedding(_)) {
            if embeddings % 2 == 0 {
                prompt = prompts.next();
            }
            embeddings += 1;
        }
        let (p, offset, _) = prompt.context("more answers than were asked for")?;
        match answer {
            RowOutput::Embedding(v) if embeddings % 2 == 1 => {
                seen.last
                    .add(&v, &unit(&part("embed_last", *p, v.len())?))?;
            }
            RowOutput::Embedding(v) => {
                seen.mean
                    .add(&v, &unit(&part("embed_mean", *p, v.len())?))?;
            }
            RowOutput::LabelScores(scores) => {
                let lse = scores.log_sum_exp.context("scores without their sum")?;
                seen.lse.add(&[lse], &part("last_lse", *p, 1)?)?;
            }
            RowOutput::Classes(logits) => {
                let expected = part("cls_logits", *p, logits.len())?;
                seen.classes.add(&logits, &expected)?;
            }
            RowOutput::Logprobs { entries, .. } => {
                let got: Vec<f32> = entries.iter().map(|e| e.logprob).collect();
                let all = array("logprob")?;
                seen.logprob.add(&got, &all[offset + 1..][..got.len()])?;
            }
            other => anyhow::bail!("an answer nobody asked for: {other:?}"),
        }
    }
    ensure!(
        prompts.next().is_none(),
        "fewer answers than were asked for"
    );
    Ok(())
}

/// The worst array, if even that is within what is allowed.
fn verdict(golden: &Golden, seen: &Seen) -> Result<String> {
    let (mut worst, mut arrays, mut numbers) = ((0.0, ""), 0, 0);
    for (array, differences) in [
        ("embed_last_normalised", seen.last),
        ("embed_mean_normalised", seen.mean),
        ("last_lse", seen.lse),
        ("logprob", seen.logprob),
        ("cls_logits", seen.classes),
    ] {
        let Some(allowed) = golden.allowed(array) else {
            ensure!(differences.count == 0, "{array} has no tolerance");
            continue;
        };
        differences
            .check(allowed)
            .with_context(|| array.to_owned())?;
        let share = (differences.max / allowed.max).max(differences.mean() / allowed.mean);
        if share >= worst.0 {
            worst = (share, array);
        }
        arrays += 1;
        numbers += differences.count;
    }
    ensure!(arrays > 0, "nothing was compared");
    let (share, array) = worst;
    Ok(format!(
        "{numbers} numbers of {arrays} arrays; closest to its limit is {array} at {:.0} %",
        100.0 * share
    ))
}
