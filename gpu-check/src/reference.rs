//! The reference for large models: `transformers` where this machine has it, else the CPU
//! executor. Both in f32, and in bf16 to see what error is to be expected of it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use prelude_core::{Executor, OutputHead, Pooling, RowOutput};
use prelude_models::conformance::golden::{Allowed, Differences};
use safetensors::SafeTensors;
use serde_json::json;

use crate::{
    batches::{Forest, Generation, Wanted, count, embed, rows, sampled, scores, step},
    process,
    same::spread,
};

/// Labels whose logits are compared, spread over the vocabulary.
const LABELS: u32 = 64;

/// Says that the work goes on.
pub(crate) type Beat<'a> = &'a dyn Fn(&str) -> Result<()>;

/// The prompts of a comparison, and their continuations.
#[derive(Clone, Debug)]
pub(crate) struct Questions {
    pub(crate) prompts: Vec<Vec<u32>>,
    pub(crate) vocab: u32,
    /// The number of prompts that are continued, and the number of tokens by which they are.
    pub(crate) continued: usize,
    pub(crate) tokens: usize,
}

/// A model's answer to one prompt.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    /// Logits of the labels, after the whole prompt.
    logits: Vec<f32>,
    lse: f32,
    /// Log-probabilities of each token but the first.
    logprobs: Vec<f32>,
    ranks: Vec<u32>,
    last: Vec<f32>,
    mean: Vec<f32>,
}

/// Greedy text, and how far each token led over the next.
pub(crate) type Text = Vec<(u32, f32)>;

#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) prompts: Vec<Answer>,
    pub(crate) texts: Vec<Text>,
}

impl Questions {
    fn labels(&self) -> Vec<u32> {
        let stride = self.vocab / LABELS;
        (0..LABELS)
            .map(|i| i * stride + i % stride.max(1))
            .collect()
    }

    fn wanted(&self, tokens: &[u32]) -> Vec<Wanted> {
        let len = count(tokens.len());
        let mut rows = vec![
            (len - 1..len, scores(&self.labels())),
            (len - 1..len, embed(Pooling::Last)),
            (0..len, embed(Pooling::Mean)),
        ];
        if len > 1 {
            let targets = tokens[1..].to_vec();
            rows.push((0..len - 1, OutputHead::Logprobs { targets, top: 0 }));
        }
        rows
    }

    /// Asks an executor, one prompt a step. `along`: texts whose tokens are taken as the past of
    /// what comes next, whatever the executor would have said.
    pub(crate) fn ask(
        &self,
        executor: &mut dyn Executor,
        along: &[Text],
        beat: Beat<'_>,
    ) -> Result<Answers> {
        let mut answers = Answers::default();
        for tokens in &self.prompts {
            beat(&format!("a prompt of {} tokens", tokens.len()))?;
            let forest = Forest::prompt(tokens, self.wanted(tokens));
            answers.prompts.push(read(rows(executor, forest)?)?);
        }
        for (i, tokens) in self.prompts.iter().take(self.continued).enumerate() {
            beat(&format!("text {i}"))?;
            let along = along.get(i).map_or(&[][..], Vec::as_slice);
            let text = generate(executor, tokens, self.tokens, along);
            answers
                .texts
                .push(text.with_context(|| format!("text {i}"))?);
        }
        Ok(answers)
    }
}

fn read(rows: Vec<RowOutput>) -> Result<Answer> {
    let mut answer = Answer::default();
    for (i, row) in rows.into_iter().enumerate() {
        match (i, row) {
            (0, RowOutput::LabelScores(scores)) => {
                answer.lse = scores.log_sum_exp.context("scores without their sum")?;
                answer.logits = scores.logits;
            }
            (1, RowOutput::Embedding(v)) => answer.last = v,
            (2, RowOutput::Embedding(v)) => answer.mean = v,
            (3, RowOutput::Logprobs { entries, .. }) => {
                answer.logprobs = entries.iter().map(|e| e.logprob).collect();
                answer.ranks = entries.iter().map(|e| e.rank).collect();
            }
            (_, other) => bail!("an unexpected answer: {other:?}"),
        }
    }
    Ok(answer)
}

/// Generates one token a step behind a prompt kept in blocks, and returns what the executor says at
/// each step, behind its own words or behind those of `along`.
pub(crate) fn generate(
    executor: &mut dyn Executor,
    prompt: &[u32],
    tokens: usize,
    along: &[(u32, f32)],
) -> Result<Text> {
    let prompts = [prompt.to_vec()];
    let (mut generation, mut outputs) = Generation::start(executor, &prompts, tokens, Some(2))?;
    let mut text = Vec::new();
    while let [row] = &outputs[..] {
        let (token, lead) = sampled(row)?;
        text.push((token, lead.context("no second token")?));
        if text.len() == tokens {
            return Ok(text);
        }
        let said = along.get(text.len() - 1);
        let said = said.map_or(token, |&(said, _)| said);
        outputs = step(executor, generation.behind([said]))?.decode;
    }
    bail!("{} rows where one was asked for", outputs.len())
}

/// The largest errors that bf16 may have.
pub(crate) enum Tolerance<'a> {
    /// The reference's own error in bf16.
    Rounded(&'a Answers),
    /// The CPU executor keeps hidden states in f32, so its bf16 says little: as far as random
    /// models of so many layers are by experience.
    Layers(usize),
}

/// Error of hidden states in bf16, relative to their size: the reference's own on the golden
/// random models of 2 to 4 layers is 1.9 to 2.6 %. Roundings add up like a random walk.
const BF16_ERROR: f64 = 0.022;
const BF16_LAYERS: f64 = 3.0;
/// Largest error over the mean one there: 7 to 19.
const BF16_LARGEST: f64 = 15.0;

/// Fewer numbers than these may be right by chance in the reference's bf16. Theirs are held against
/// the numbers that their errors come from.
const FEW: usize = 32;

/// A kind of answer: its name, its numbers, and those whose spread its errors grow with.
type AnswerKind = (
    &'static str,
    fn(&Answer) -> Vec<f32>,
    fn(&Answer) -> Vec<f32>,
);

const KINDS: [AnswerKind; 6] = [
    (
        "logits of labels, last position",
        |a| a.logits.clone(),
        |a| a.logits.clone(),
    ),
    (
        "log-sum-exp, last position",
        |a| vec![a.lse],
        |a| a.logits.clone(),
    ),
    (
        "prompt log-probabilities",
        |a| a.logprobs.clone(),
        |a| a.logits.clone(),
    ),
    // A rank changes by at most about its own size when a logit changes by 1.
    (
        "ranks, as logarithms",
        |a| a.ranks.iter().map(|&r| (r as f32).ln()).collect(),
        |a| a.logits.clone(),
    ),
    ("embeddings, last", |a| a.last.clone(), |a| a.last.clone()),
    ("embeddings, mean", |a| a.mean.clone(), |a| a.mean.clone()),
];

impl Tolerance<'_> {
    fn allowed(&self, exact: &Answers, kind: AnswerKind) -> Result<Allowed> {
        let (_, of, scale_of) = kind;
        match *self {
            Self::Rounded(rounded) => {
                let own = differences(rounded, exact, of)?;
                let (mut max, mut mean) = (own.max, own.mean());
                if own.count < FEW {
                    let like = differences(rounded, exact, scale_of)?;
                    (max, mean) = (max.max(like.max), mean.max(like.mean()));
                }
                Ok(Allowed::from_observed(max, mean))
            }
            Self::Layers(layers) => {
                let all: Vec<f32> = exact.prompts.iter().flat_map(scale_of).collect();
                ensure!(!all.is_empty(), "no answers");
                let spread = spread(&all);
                let mean = BF16_ERROR * (layers as f64 / BF16_LAYERS).max(1.0).sqrt() * spread;
                Ok(Allowed::from_observed(BF16_LARGEST * mean, mean))
            }
        }
    }
}

/// The outcome of a comparison that found nothing wrong.
#[derive(Debug)]
pub(crate) enum Compared {
    /// The answers were right; the text says their errors.
    Right(String),
    /// The reason why nothing could be compared: this is a SKIP, never a PASS.
    Nothing(String),
}

/// Returns a line for each kind of answer: how far `got` is from `exact`, and how far it may be.
pub(crate) fn compare(
    got: &Answers,
    exact: &Answers,
    tolerance: &Tolerance<'_>,
) -> Vec<(&'static str, Result<Compared>)> {
    let mut lines = Vec::new();
    for kind in KINDS {
        let line = tolerance.allowed(exact, kind).and_then(|allowed| {
            let seen = differences(got, exact, kind.1)?;
            Ok(Compared::Right(seen.check(allowed)?))
        });
        lines.push((kind.0, line));
    }
    if !exact.texts.is_empty() {
        lines.push(("greedy text", texts(got, exact)));
    }
    lines
}

fn differences(a: &Answers, b: &Answers, of: fn(&Answer) -> Vec<f32>) -> Result<Differences> {
    ensure!(a.prompts.len() == b.prompts.len(), "not as many prompts");
    let mut seen = Differences::default();
    for (a, b) in a.prompts.iter().zip(&b.prompts) {
        seen.add(&of(a), &of(b))?;
    }
    Ok(seen)
}

/// Compares greedy texts token by token, each behind the reference's own words. Logits may be off
/// by what they were seen to be after the prompts, on either side of a pair and twice that.
fn texts(got: &Answers, exact: &Answers) -> Result<Compared> {
    let off = differences(got, exact, |a| a.logits.clone())?;
    compare_texts(&got.texts, &exact.texts, (4.0 * off.max) as f32)
}

/// Compares greedy texts token by token. A token of `exact` that leads by `near` or more must be
/// the same in `got`; and most of all tokens must be, near ties or not.
pub(crate) fn compare_texts(got: &[Text], exact: &[Text], near: f32) -> Result<Compared> {
    ensure!(got.len() == exact.len(), "not as many texts");
    let (mut clear, mut same, mut all) = (0, 0, 0);
    for (t, (got, exact)) in got.iter().zip(exact).enumerate() {
        ensure!(
            got.len() == exact.len(),
            "text {t} has {} tokens",
            got.len()
        );
        for (i, (a, b)) in got.iter().zip(exact).enumerate() {
            all += 1;
            same += usize::from(a.0 == b.0);
            if b.1 < near {
                continue;
            }
            ensure!(
                a.0 == b.0,
                "text {t}, token {i}: {} and not {}, which leads by {:.3}",
                a.0,
                b.0,
                b.1
            );
            clear += 1;
        }
    }
    let text =
        format!("{same} of {all} tokens are the same, {clear} of {clear} that lead by {near:.3}");
    ensure!(2 * same > all, "{text}");
    Ok(match clear {
        0 => Compared::Nothing(format!(
            "no token leads by {near:.3}, so none has to be the same; {same} of {all} are"
        )),
        _ => Compared::Right(text),
    })
}

/// Asks `transformers` on a device, as torch names it, the questions, in f32 and in bf16. `Err`
/// with the reason where it cannot be asked.
pub(crate) fn transformers(
    script: &Path,
    model: &Path,
    device: &str,
    questions: &Questions,
    scratch: &Path,
    limit: Duration,
    beat: Beat<'_>,
) -> Result<[Answers; 2]> {
    fs::create_dir_all(scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let (request, answer) = (
        scratch.join("questions.json"),
        scratch.join("answers.safetensors"),
    );
    let text = json!({
        "model": model,
        "device": device,
        "prompts": questions.prompts,
        "labels": questions.labels(),
        "continued": questions.continued,
        "tokens": questions.tokens,
        "seconds": limit.as_secs(),
        "out": answer,
    });
    fs::write(&request, text.to_string())?;
    let _ = fs::remove_file(&answer);
    let mut command = Command::new("python3");
    command.arg(script).arg(&request);
    let log = scratch.join("parity.log");
    let said = process::logged(&mut command, "transformers", &log, limit, beat)?;
    let last = said.last_line();
    match said.status {
        Some(status) if status.success() => {}
        Some(_) => bail!("{last}"),
        None => bail!("it was not done after {} s", limit.as_secs()),
    }
    let bytes = fs::read(&answer).with_context(|| format!("no answers: {last}"))?;
    Ok([
        parse(&bytes, "float32", questions)?,
        parse(&bytes, "bfloat16", questions)?,
    ])
}

/// Reads the file that `parity.py` wrote.
fn parse(bytes: &[u8], dtype: &str, questions: &Questions) -> Result<Answers> {
    let file = SafeTensors::deserialize(bytes).context("the answers of parity.py")?;
    let words = |name: String| -> Result<Vec<[u8; 4]>> {
        let tensor = file.tensor(&name).with_context(|| format!("no {name}"))?;
        Ok(tensor.data().as_chunks::<4>().0.to_vec())
    };
    let floats = |name: String| -> Result<Vec<f32>> {
        Ok(words(name)?.into_iter().map(f32::from_le_bytes).collect())
    };
    let ids = |name: String| -> Result<Vec<u32>> {
        Ok(words(name)?.into_iter().map(u32::from_le_bytes).collect())
    };
    let mut answers = Answers::default();
    for (p, tokens) in questions.prompts.iter().enumerate() {
        let at = |what: &str| format!("{dtype}.{p}.{what}");
        let has_targets = tokens.len() > 1;
        let lse = floats(at("lse"))?;
        answers.prompts.push(Answer {
            logits: floats(at("logits"))?,
            lse: *lse.first().context("an empty lse")?,
            logprobs: if has_targets {
                floats(at("logprobs"))?
            } else {
                vec![]
            },
            ranks: if has_targets {
                ids(at("ranks"))?
            } else {
                vec![]
            },
            last: floats(at("last"))?,
            mean: floats(at("mean"))?,
        });
    }
    for t in 0..questions.continued.min(questions.prompts.len()) {
        let tokens = ids(format!("{dtype}.{t}.text"))?;
        let leads = floats(format!("{dtype}.{t}.leads"))?;
        answers.texts.push(tokens.into_iter().zip(leads).collect());
    }
    Ok(answers)
}

/// Returns the script, where the bundle has it.
pub(crate) fn script(home: &Path) -> PathBuf {
    home.join("parity.py")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(shift: f32, token: u32) -> Answers {
        let prompts = (0..3u8).map(|i| Answer {
            logits: vec![f32::from(i) + shift, 1.0],
            lse: 2.0 + shift,
            logprobs: vec![-1.0 + shift, -2.0],
            ranks: vec![1, 100 + (shift * 100.0) as u32],
            last: vec![0.6 + shift, 0.8],
            mean: vec![0.8, 0.6 + shift],
        });
        Answers {
            prompts: prompts.collect(),
            texts: vec![vec![
                (5, 9.0),
                (token, 9.0),
                (7, 0.0),
                (token, 0.0),
                (8, 9.0),
            ]],
        }
    }

    fn faults(got: &Answers) -> Vec<String> {
        let rounded = answers(0.01, 6);
        let lines = compare(got, &answers(0.0, 6), &Tolerance::Rounded(&rounded));
        let wrong = lines.into_iter().filter(|(_, line)| line.is_err());
        wrong.map(|(name, _)| name.to_owned()).collect()
    }

    #[test]
    fn answers_may_be_as_far_off_as_bf16_is_and_no_further() {
        assert_eq!(faults(&answers(0.012, 6)), Vec::<String>::new());
        let all = faults(&answers(0.7, 6));
        // All kinds of numbers.
        assert_eq!(all.len(), 6, "{all:?}");
        // One of the wrong tokens leads; where none does, there may be some.
        assert_eq!(faults(&answers(0.005, 8)), ["greedy text"]);
        let mut late = answers(0.005, 6);
        late.texts[0][3].0 = 99;
        late.texts[0][2].0 = 99;
        assert_eq!(faults(&late), Vec::<String>::new());
        // But not at most places.
        let close = |mut of: Answers| {
            of.texts[0].iter_mut().for_each(|token| token.1 = 0.0);
            of
        };
        let lines = compare(
            &close(answers(0.005, 8)),
            &close(answers(0.0, 6)),
            &Tolerance::Layers(3),
        );
        assert!(lines.iter().all(|(_, line)| line.is_ok()), "3 of 5");
        late.texts[0][4].0 = 99;
        let lines = compare(&late, &close(answers(0.0, 6)), &Tolerance::Layers(3));
        assert!(
            lines
                .iter()
                .any(|(name, line)| *name == "greedy text" && line.is_err())
        );
        let mut short = answers(0.005, 6);
        short.prompts.pop();
        // The text too: how near a tie is follows from the prompts.
        assert_eq!(faults(&short).len(), 7);
    }

    #[test]
    fn texts_in_which_no_token_leads_are_not_compared() {
        let compare = |near| compare_texts(&answers(0.0, 6).texts, &answers(0.0, 6).texts, near);
        assert!(matches!(compare(8.0), Ok(Compared::Right(_))));
        assert!(matches!(compare(9.5), Ok(Compared::Nothing(_))));
    }

    /// One log-sum-exp a prompt: how right the reference happens to be there is no bound.
    #[test]
    fn few_numbers_are_held_against_those_they_come_from() {
        let exact = answers(0.0, 6);
        let mut rounded = answers(0.01, 6);
        let mut got = answers(0.01, 6);
        for (rounded, got) in rounded.prompts.iter_mut().zip(&mut got.prompts) {
            rounded.lse = 2.0;
            got.lse = 2.005;
        }
        let check = |got: &Answers| {
            let lines = compare(got, &exact, &Tolerance::Rounded(&rounded));
            lines.into_iter().all(|(_, line)| line.is_ok())
        };
        assert!(check(&got));
        got.prompts[0].lse = 2.1;
        assert!(!check(&got));
    }

    #[test]
    fn without_a_reference_in_bf16_errors_are_held_against_spreads() {
        let exact = answers(0.0, 6);
        let wrong = |shift, layers| {
            let lines = compare(&answers(shift, 6), &exact, &Tolerance::Layers(layers));
            lines.iter().filter(|(_, line)| line.is_err()).count()
        };
        assert_eq!(wrong(0.001, 3), 0);
        assert!(wrong(0.1, 3) >= 5);
        // More layers, more roundings.
        assert!(wrong(0.02, 300) < wrong(0.02, 3));
    }
}
