//! Post-processing: the tokens that are put around one text or a pair of texts.

use crate::encode_error::EncodeError;
use crate::encoding::Encoding;
use crate::error::Error;
use crate::json::Component;
use serde::Deserialize;
use std::collections::HashMap;

/// The post-processors of a file: what they add, and what they do to offsets.
#[derive(Debug)]
pub(crate) struct PostProcessor {
    /// Around one text, for callers that want ids only.
    pub(crate) single: Vec<TemplatePart>,
    /// Around two texts.
    pub(crate) pair: Vec<TemplatePart>,
    /// The processors in order; an empty list differs from a processor that does nothing, in
    /// the types of ids and in what counts as a sequence.
    steps: Vec<Step>,
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TemplatePart {
    /// The ids of the first text.
    A,
    /// The ids of the second text.
    B,
    /// Ids that are only there when special tokens are asked for.
    Special(Vec<u32>),
}

#[derive(Debug)]
enum Step {
    /// Takes blanks out of offsets, if there is `add_prefix_space` to say how.
    ByteLevel {
        trim: Option<bool>,
    },
    Template {
        /// `type_ids[n]` belongs to the `n`th piece of the template.
        single_types: Vec<u32>,
        pair_types: Vec<u32>,
    },
    Roberta {
        trim: Option<bool>,
        cls: u32,
        sep: u32,
    },
    Bert {
        cls: u32,
        sep: u32,
    },
}

#[derive(Deserialize)]
struct TemplateJson {
    single: Vec<PieceJson>,
    pair: Vec<PieceJson>,
    special_tokens: HashMap<String, SpecialTokenJson>,
}

#[derive(Deserialize)]
enum PieceJson {
    Sequence { id: SequenceJson, type_id: u32 },
    SpecialToken { id: String, type_id: u32 },
}

#[derive(Deserialize)]
enum SequenceJson {
    A,
    B,
}

#[derive(Deserialize)]
struct SpecialTokenJson {
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct BertJson {
    sep: (String, u32),
    cls: (String, u32),
}

#[derive(Deserialize)]
struct RobertaJson {
    sep: (String, u32),
    cls: (String, u32),
    trim_offsets: bool,
    add_prefix_space: bool,
}

const SUPPORTED: &str =
    "supported: ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing, Sequence";

impl PostProcessor {
    pub(crate) fn load(component: Option<&Component>, path: &str) -> Result<Self, Error> {
        let mut this = Self {
            single: vec![TemplatePart::A],
            pair: vec![TemplatePart::A, TemplatePart::B],
            steps: Vec::new(),
        };
        if let Some(component) = component {
            this.add(component, path)?;
        }
        Ok(this)
    }

    /// Adds one processor or a sequence of them.
    fn add(&mut self, component: &Component, path: &str) -> Result<(), Error> {
        let kind = component.kind(path)?;
        let adds_ids = |step: &Step| !matches!(step, Step::ByteLevel { .. });
        match kind {
            "ByteLevel" => {
                let trim = component.bool("trim_offsets", path)?;
                let add_prefix_space = component.bool("add_prefix_space", path)?;
                self.steps.push(Step::ByteLevel {
                    trim: trim.then_some(add_prefix_space),
                });
                Ok(())
            }
            "TemplateProcessing" | "RobertaProcessing" | "BertProcessing"
                if self.steps.iter().any(adds_ids) =>
            {
                Err(Error::unsupported(
                    path,
                    format!("{kind} after another processor that adds tokens"),
                ))
            }
            "TemplateProcessing" => self.add_template(component, path),
            "RobertaProcessing" => {
                let RobertaJson {
                    sep: (_, sep),
                    cls: (_, cls),
                    trim_offsets,
                    add_prefix_space,
                } = read(component, path)?;
                let special = |id| TemplatePart::Special(vec![id]);
                self.single = vec![special(cls), TemplatePart::A, special(sep)];
                self.pair = self.single.clone();
                self.pair
                    .extend([special(sep), TemplatePart::B, special(sep)]);
                let trim = trim_offsets.then_some(add_prefix_space);
                self.steps.push(Step::Roberta { trim, cls, sep });
                Ok(())
            }
            "BertProcessing" => {
                let BertJson {
                    sep: (_, sep),
                    cls: (_, cls),
                } = read(component, path)?;
                let special = |id| TemplatePart::Special(vec![id]);
                self.single = vec![special(cls), TemplatePart::A, special(sep)];
                self.pair = self.single.clone();
                self.pair.extend([TemplatePart::B, special(sep)]);
                self.steps.push(Step::Bert { cls, sep });
                Ok(())
            }
            "Sequence" => {
                for (part, path) in component.parts("processors", path)? {
                    self.add(&part, &path)?;
                }
                Ok(())
            }
            other => Err(Error::unsupported(
                path,
                format!("post-processor {other} ({SUPPORTED})"),
            )),
        }
    }

    fn add_template(&mut self, component: &Component, path: &str) -> Result<(), Error> {
        let template: TemplateJson = read(component, path)?;
        let resolve = |pieces: Vec<PieceJson>, name: &str| {
            let resolved = pieces.into_iter().map(|piece| match piece {
                PieceJson::Sequence { id, type_id } => match id {
                    SequenceJson::A => Ok((TemplatePart::A, type_id)),
                    SequenceJson::B if name == "pair" => Ok((TemplatePart::B, type_id)),
                    SequenceJson::B => Err(Error::invalid(
                        format!("{path}.{name}"),
                        "the template for one text uses a second one",
                    )),
                },
                PieceJson::SpecialToken { id, type_id } => template
                    .special_tokens
                    .get(&id)
                    .map(|token| (TemplatePart::Special(token.ids.clone()), type_id))
                    .ok_or_else(|| {
                        Error::invalid(
                            format!("{path}.{name}"),
                            format!("special token {id:?} is not in special_tokens"),
                        )
                    }),
            });
            let pieces = resolved.collect::<Result<Vec<_>, Error>>()?;
            Ok::<(Vec<_>, Vec<_>), Error>(pieces.into_iter().unzip())
        };
        let (single, single_types) = resolve(template.single, "single")?;
        let (pair, pair_types) = resolve(template.pair, "pair")?;
        (self.single, self.pair) = (single, pair);
        self.steps.push(Step::Template {
            single_types,
            pair_types,
        });
        Ok(())
    }

    fn pieces(&self, pair: bool) -> &[TemplatePart] {
        if pair { &self.pair } else { &self.single }
    }

    /// Returns the number of ids that are added around one text or two.
    pub(crate) fn added(&self, pair: bool) -> usize {
        let len = |piece: &TemplatePart| match piece {
            TemplatePart::Special(ids) => ids.len(),
            TemplatePart::A | TemplatePart::B => 0,
        };
        self.pieces(pair).iter().map(len).sum()
    }

    /// Returns true if some step needs the blanks of tokens.
    pub(crate) fn trims(&self) -> bool {
        self.steps.iter().any(|step| match step {
            Step::ByteLevel { trim } | Step::Roberta { trim, .. } => trim.is_some(),
            Step::Template { .. } | Step::Bert { .. } => false,
        })
    }

    /// Puts one text or two together.
    pub(crate) fn apply(
        &self,
        mut texts: Vec<Encoding>,
        add_special_tokens: bool,
    ) -> Result<Encoding, EncodeError> {
        self.check_overflowing(&texts)?;
        let pair = texts.len() == 2;
        if self.steps.is_empty() && !pair {
            return Ok(texts.pop().unwrap_or_default());
        }
        for (n, text) in texts.iter_mut().enumerate() {
            text.set_sequence(n);
            if !self.steps.is_empty() {
                for piece in &mut text.overflowing {
                    piece.set_sequence(n);
                }
            }
            text.type_ids.fill(n as u32);
        }
        for step in &self.steps {
            match step {
                Step::ByteLevel { trim } => {
                    trim_all(&mut texts, *trim);
                    for (n, text) in texts.iter_mut().enumerate() {
                        text.set_sequence(n);
                    }
                }
                Step::Template {
                    single_types,
                    pair_types,
                } => {
                    let types = if pair { pair_types } else { single_types };
                    texts = self.template(texts, types, add_special_tokens);
                }
                Step::Roberta { trim, cls, sep } => {
                    trim_all(&mut texts, *trim);
                    roberta(&mut texts, *cls, *sep, add_special_tokens);
                }
                Step::Bert { cls, sep } if add_special_tokens => {
                    for (n, text) in texts.iter_mut().enumerate() {
                        let before = [*cls];
                        let before = if n == 0 { &before[..] } else { &[] };
                        put_around(text, n, n as u32, before, &[*sep]);
                    }
                }
                Step::Bert { .. } => {}
            }
        }
        let mut whole = Encoding::default();
        for text in &texts {
            whole.append(text);
        }
        Ok(whole)
    }

    fn template(
        &self,
        mut texts: Vec<Encoding>,
        types: &[u32],
        add_special_tokens: bool,
    ) -> Vec<Encoding> {
        let mut parts = Vec::new();
        for (piece, &type_id) in self.pieces(texts.len() == 2).iter().zip(types) {
            let n = match piece {
                TemplatePart::Special(ids) => {
                    if add_special_tokens {
                        parts.push(Encoding::special(ids, type_id));
                    }
                    continue;
                }
                TemplatePart::A => 0,
                TemplatePart::B => 1,
            };
            // Later uses of the same text see the type of this one overwritten.
            texts[n].type_ids.fill(type_id);
            texts[n].set_sequence(n);
            parts.push(texts[n].clone());
        }
        parts
    }

    /// Bounds the memory that the combinations of overflowing pieces take.
    fn check_overflowing(&self, texts: &[Encoding]) -> Result<(), EncodeError> {
        let mut combinations = 1usize;
        for piece in self.pieces(texts.len() == 2) {
            let text = match piece {
                TemplatePart::A => texts.first(),
                TemplatePart::B => texts.get(1),
                TemplatePart::Special(_) => None,
            };
            // Each piece of one text meets each of the other, in both orders.
            let pieces = text.map_or(0, |text| text.overflowing.len());
            combinations = combinations.saturating_mul(pieces.saturating_mul(3) + 1);
        }
        if combinations == 1 {
            return Ok(());
        }
        let len = |text: &Encoding| {
            let pieces = text.overflowing.iter().map(Encoding::len).max();
            text.len().max(pieces.unwrap_or(0))
        };
        let longest: usize = texts.iter().map(len).sum();
        EncodeError::check_overflowing(combinations.saturating_mul(longest.max(1)))
    }
}

fn read<'de, T: Deserialize<'de>>(component: &'de Component, path: &str) -> Result<T, Error> {
    component
        .read()
        .map_err(|problem| Error::invalid(path, problem.to_string()))
}

fn roberta(texts: &mut [Encoding], cls: u32, sep: u32, add_special_tokens: bool) {
    for (n, text) in texts.iter_mut().enumerate() {
        text.type_ids.fill(0);
        if !add_special_tokens {
            continue;
        }
        let before = if n == 0 { cls } else { sep };
        put_around(text, n, 0, &[before], &[sep]);
    }
}

/// Puts special ids around text number `n` and each piece that overflowed from it.
fn put_around(text: &mut Encoding, n: usize, type_id: u32, before: &[u32], after: &[u32]) {
    let overflowing = std::mem::take(&mut text.overflowing);
    *text = surrounded(text, n, type_id, before, after);
    text.overflowing = overflowing
        .iter()
        .map(|piece| surrounded(piece, n, type_id, before, after))
        .collect();
}

/// Returns `text` between special ids, as text number `n`.
fn surrounded(text: &Encoding, n: usize, type_id: u32, before: &[u32], after: &[u32]) -> Encoding {
    let mut inner = text.clone();
    inner.overflowing.clear();
    inner.type_ids.fill(type_id);
    inner.set_only_sequence(n);
    let mut whole = Encoding::special(before, type_id);
    whole.append(&inner);
    whole.append(&Encoding::special(after, type_id));
    whole
}

/// Takes the blanks out of the offsets of `texts` and of what overflowed from them.
fn trim_all(texts: &mut [Encoding], trim: Option<bool>) {
    let Some(add_prefix_space) = trim else {
        return;
    };
    for text in texts {
        trim_one(text, add_prefix_space);
        for piece in &mut text.overflowing {
            trim_one(piece, add_prefix_space);
        }
    }
}

/// Counts blank characters and moves positions, be they bytes or characters, by as
/// many, as the reference does.
fn trim_one(text: &mut Encoding, add_prefix_space: bool) {
    let offsets = text.offsets.iter_mut();
    for (n, ((start, end), blanks)) in offsets.zip(&text.blanks).enumerate() {
        let (mut leading, trailing) = (blanks.0 as usize, blanks.1 as usize);
        if leading == 1 && add_prefix_space && (n == 0 || *start == 0) {
            // The space was inserted.
            leading = 0;
        }
        if leading > 0 {
            *start = (*start + leading).min(*end);
        }
        if trailing > 0 && *end >= trailing {
            *end = (*end - trailing).max(*start);
        }
    }
}
