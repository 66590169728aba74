//! Decision models: a backbone, and beside it what makes a distribution over the options of a typed
//! question of its hidden states.
//!
//! A format is a file of this folder: it knows the files by which a checkpoint of the format is
//! recognised and what they say. Which text such a model reads is not known here: the format's prompt
//! is a file of `prelude_text::decide`. A format does not know its backbone either: any body that
//! Prelude computes will do.
//!
//! | file | format |
//! | --- | --- |
//! | `laya` | a number at each option's marker, behind an encoder with layers of its own |
//! | `codes` | a row of a matrix for each code that names an option: pplx-decider, d3 |
//! | `kev` | a pointer from the question to the ends of its options, in a pickle |
//! | `decision2` | a pointer and an MLP over the ends of segments: Decision 2.0 |

mod codes;
mod decision2;
mod document;
mod head;
mod kev;
mod laya;
mod manifest;
mod pickle;
mod tensors;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use prelude_core::{Attention, TokenId};

use crate::{Error, ModelConfig};

pub use head::{DecisionHead, LayerNorm, Linear};
pub(crate) use tensors::{HeadTensors, NamedTensor, Parse, widened};

/// The type of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionType {
    /// One of several options.
    Choice,
    /// A level of a scale.
    Score,
    /// Yes or no.
    Noul,
}

/// A format of decision models, with the settings of its prompt that a checkpoint brings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum DecisionFormat {
    /// A marker before each option, behind the question and before the state.
    Laya {
        /// Most tokens of a prompt; what is longer is cut.
        max_tokens: usize,
        /// Most tokens of the question and its options.
        head_tokens: usize,
    },
    /// A chat in which a code names each option.
    Codes {
        /// The wording.
        wording: CodeWording,
        /// The codes, and the token of each.
        codes: Vec<(String, TokenId)>,
    },
    /// The options between marks behind the question.
    Kev,
    /// Segments that are tokenised apart.
    Decision2,
}

/// The wording of a prompt with codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeWording {
    /// pplx-decider.
    Pplx,
    /// d3.
    D3,
}

impl DecisionFormat {
    /// Returns the format's name in answers.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Laya { .. } => "laya",
            Self::Codes { wording, .. } => match wording {
                CodeWording::Pplx => "pplx",
                CodeWording::D3 => "d3",
            },
            Self::Kev => "kev",
            Self::Decision2 => "decision2",
        }
    }
}

/// The format, the head and the calibration that a decision model has beside its backbone.
#[derive(Debug)]
pub struct Decision {
    pub(crate) format: DecisionFormat,
    pub(crate) head: DecisionHead,
    pub(crate) temperatures: Temperatures,
    /// Numbers added to the logits of a score's levels, by the number of levels.
    pub(crate) score_offsets: BTreeMap<usize, Vec<f32>>,
    /// Most tokens of a prompt by the files of the format.
    pub(crate) max_tokens: Option<usize>,
}

impl Decision {
    /// Returns the format.
    #[must_use]
    pub const fn format(&self) -> &DecisionFormat {
        &self.format
    }

    /// Returns the head.
    #[must_use]
    pub const fn head(&self) -> &DecisionHead {
        &self.head
    }

    /// Returns the most tokens of a prompt, if the format's files say it.
    #[must_use]
    pub const fn max_tokens(&self) -> Option<usize> {
        self.max_tokens
    }

    /// Returns bytes that differ wherever two decision models on one backbone answer differently.
    #[must_use]
    pub fn signature(&self) -> Vec<u8> {
        let (format, temperatures) = (&self.format, &self.temperatures);
        let offsets = &self.score_offsets;
        let mut bytes = format!("{format:?} {temperatures:?} {offsets:?}").into_bytes();
        for tensor in self.head.tensors() {
            bytes.extend_from_slice(bytemuck::cast_slice(tensor));
        }
        bytes
    }

    /// Returns the probabilities of the `n` options of a question from the hidden states that the head
    /// reads ([`DecisionHead::logits`]). The checkpoint's temperature is multiplied by `factor`.
    #[must_use]
    pub fn probabilities(
        &self,
        question: QuestionType,
        (n, factor): (usize, f64),
        states: &[Vec<f32>],
    ) -> Vec<f64> {
        let mut logits = self.head.logits(n, states);
        if question == QuestionType::Score
            && let Some(offsets) = self.score_offsets.get(&n)
        {
            let added = logits.iter_mut().zip(offsets);
            added.for_each(|(logit, offset)| *logit += offset);
        }
        // A product that is too small for a number would divide by 0.
        let temperature = self.temperatures.of(question, n) * factor;
        softmax(&logits, temperature.max(f64::MIN_POSITIVE))
    }
}

/// Returns the softmax of logits divided by a temperature.
fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |&z: &f32| (f64::from(z - max) / temperature).exp();
    let weights: Vec<f64> = logits.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// Temperatures by type of question and, for some, by the number of options.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Temperatures {
    /// Temperatures of choices, scores and nouls, in this order.
    by_type: [f64; 3],
    /// For each type the temperatures of 2, 3 to 5, 6 to 10 and more options, where a file has such.
    by_count: [[Option<f64>; 4]; 3],
}

impl Temperatures {
    const fn all(temperature: f64) -> Self {
        Self::by_type([temperature; 3])
    }

    const fn by_type(by_type: [f64; 3]) -> Self {
        Self {
            by_type,
            by_count: [[None; 4]; 3],
        }
    }

    fn of(&self, question: QuestionType, n: usize) -> f64 {
        let bucket = match n {
            0..=2 => 0,
            3..=5 => 1,
            6..=10 => 2,
            _ => 3,
        };
        let index = question as usize;
        self.by_count[index][bucket].unwrap_or(self.by_type[index])
    }
}

/// The files of a decision checkpoint, before any weight is read.
#[derive(Debug)]
pub(crate) struct DecisionFiles {
    kind: Kind,
    /// The folder of `config.json` and the weights' names, and of the weights themselves.
    pub(crate) config: PathBuf,
    pub(crate) weights: PathBuf,
    /// The folder of the tokenizer.
    pub(crate) tokenizer: PathBuf,
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Laya,
    Codes,
    Kev,
    Decision2,
}

/// A format as its files show it.
struct Marks {
    kind: Kind,
    title: &'static str,
    /// The file that marks the format.
    marker: &'static str,
    /// A file without which the marker says too little, if there is one.
    config: Option<&'static str>,
    /// All files of the format that others read otherwise.
    files: &'static [&'static str],
}

const MARKS: [Marks; 4] = [
    Marks {
        kind: Kind::Laya,
        title: "a Laya",
        marker: laya::CONFIG,
        config: None,
        files: &[laya::CONFIG],
    },
    Marks {
        kind: Kind::Codes,
        title: "a code readout",
        marker: codes::HEAD,
        config: Some(codes::CONFIG),
        files: &[codes::HEAD, codes::CONFIG],
    },
    Marks {
        kind: Kind::Kev,
        title: "a Kev",
        marker: kev::HEAD,
        config: None,
        files: &[kev::HEAD],
    },
    Marks {
        kind: Kind::Decision2,
        title: "a Decision 2.0",
        marker: decision2::HEAD,
        config: Some(decision2::CONFIG),
        files: &[
            decision2::HEAD,
            decision2::CONFIG,
            decision2::CALIBRATION,
            decision2::SCORE_BIAS,
        ],
    },
];

/// Files by which their authors' code decides, none of them served, and the meaning of each.
const REFUSED: [(&str, &str); 17] = [
    ("joint_head_config.json", "the head of a Clef"),
    ("joint_head.safetensors", "the head of a Clef"),
    ("option_marker.pt", "the option markers of a Von"),
    ("slot_head.pt", "the pointer head of a Strands"),
    ("strands_decider_config.json", "the format of a Strands"),
    ("hobson_config.json", "the format of a Strands"),
    ("head.safetensors", "a head"),
    ("answer_codes.json", "the answer codes of a decision model"),
    ("temperatures.json", "the calibration of a decision model"),
    ("lev_release.json", "the format of a lev"),
    ("serve_config.json", "the format of an H2O-Lightning"),
    ("schema_config.json", "the format of a nimble"),
    ("jevk5_config.json", "the format of a JevK5"),
    ("decider_config.json", "the format of a decision model"),
    ("readout_config.json", "the format of a decision model"),
    (
        decision2::CALIBRATION,
        "the calibration of a decision model",
    ),
    (decision2::SCORE_BIAS, "the calibration of a decision model"),
];

/// Returns what is wrong with the files of a folder by which decision models decide, by their names:
/// `None` if there are none, or they are those of one format that is served. Neither is any weight read
/// nor a file opened.
#[must_use]
pub fn refused_files(has: impl Fn(&str) -> bool) -> Option<String> {
    let marked: Vec<&Marks> = MARKS.iter().filter(|of| has(of.marker)).collect();
    if let [first, second, ..] = marked[..] {
        return Some(format!(
            "has {}, by which it is {}, and {}, by which it is {}: move what is not meant out of \
             the folder",
            first.marker, first.title, second.marker, second.title
        ));
    }
    if let [
        Marks {
            marker,
            config: Some(config),
            ..
        },
    ] = marked[..]
        && !has(config)
    {
        return Some(format!(
            "has {marker}, the head of a decision model, but not {config}, which says how it is asked"
        ));
    }
    let own = marked.first().map_or(&[][..], |of| of.files);
    let is_other = |file: &str| has(file) && !own.contains(&file);
    if marked.is_empty() && is_other(codes::CONFIG) {
        return Some(format!(
            "has {}, the format of a decision model, but not its head ({} or {})",
            codes::CONFIG,
            codes::HEAD,
            decision2::HEAD
        ));
    }
    let (file, meaning) = REFUSED.iter().find(|(file, _)| is_other(file))?;
    Some(format!(
        "has {file}, {meaning}, which is not served: without it the model would answer as another \
         one"
    ))
}

impl DecisionFiles {
    /// Finds the files of a decision checkpoint in a folder; `None` if it holds no such.
    ///
    /// # Errors
    /// [`Error::Decision`] for files of no format that is served, and of several.
    pub(crate) fn find(folder: &Path) -> Result<Option<Self>, Error> {
        let has = |file: &str| folder.join(file).exists();
        if let Some(what) = refused_files(has) {
            return Err(wrong(&folder.display().to_string(), what));
        }
        let Some(marks) = MARKS.iter().find(|of| has(of.marker)) else {
            return Ok(None);
        };
        let mut files = Self {
            kind: marks.kind,
            config: folder.to_owned(),
            weights: folder.to_owned(),
            tokenizer: folder.to_owned(),
            folder: folder.to_owned(),
        };
        match marks.kind {
            Kind::Laya => {
                files.config = folder.join("encoder");
                if folder.join("tokenizer").is_dir() {
                    files.tokenizer = folder.join("tokenizer");
                }
            }
            Kind::Decision2 => {
                files.config = decision2::backbone(folder)?;
                files.weights.clone_from(&files.config);
            }
            Kind::Codes | Kind::Kev => {}
        }
        Ok(Some(files))
    }

    /// Checks that the files may lie beside an adapter, whose base is elsewhere.
    ///
    /// # Errors
    /// [`Error::Decision`] for a format whose backbone lies beside its head.
    pub(crate) fn check_beside_adapter(&self) -> Result<(), Error> {
        match self.kind {
            Kind::Kev | Kind::Codes => Ok(()),
            Kind::Laya | Kind::Decision2 => {
                let what = "has an adapter beside a decision model whose format has none";
                Err(wrong(&self.folder.display().to_string(), what))
            }
        }
    }

    /// Returns true if a tensor beside the backbone's is the head's, or none that answers need.
    pub(crate) fn is_of_head(&self, tensor: &str) -> bool {
        self.kind == Kind::Laya && laya::is_of_head(tensor)
    }

    /// Returns the name of a tensor of the weights as definitions know it.
    pub(crate) fn renamed(&self, tensor: &str) -> String {
        match self.kind {
            Kind::Laya => laya::renamed(tensor),
            _ => tensor.to_owned(),
        }
    }

    /// Reads what the files say. `config` is changed where the format says more of the backbone, and
    /// `of_weights` are the tensors beside the backbone's in its files; `parse` reads those of other files.
    ///
    /// # Errors
    /// [`Error::Decision`], [`Error::Field`] and others of reading, naming the file.
    pub(crate) fn read(
        &self,
        config: &mut ModelConfig,
        of_weights: HeadTensors,
        parse: Parse,
    ) -> Result<Decision, Error> {
        let folder = &self.folder;
        manifest::verify(folder)?;
        match self.kind {
            Kind::Laya => laya::read(folder, config, of_weights),
            Kind::Codes => codes::read(folder, config, parse),
            Kind::Kev => kev::read(folder, config),
            Kind::Decision2 => decision2::read(folder, config, parse),
        }
    }
}

/// Makes every token of a row see all others.
fn look_ahead(config: &mut ModelConfig) {
    config.attention = Attention::Full;
}

/// Returns the error that a file `what`.
pub(crate) fn wrong(file: &str, what: impl Into<String>) -> Error {
    Error::Decision {
        file: file.to_owned(),
        what: what.into(),
    }
}

#[cfg(test)]
mod tests;
