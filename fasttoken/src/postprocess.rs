//! What is put around one text or a pair of texts.

use crate::error::Error;
use crate::json::Component;
use serde::Deserialize;
use std::collections::HashMap;

/// Templates for one text and for two.
#[derive(Debug)]
pub(crate) struct PostProcessor {
    pub(crate) single: Vec<Piece>,
    pub(crate) pair: Vec<Piece>,
    /// `add_prefix_space` of each `ByteLevel` that trims offsets, in order.
    pub(crate) trims: Vec<bool>,
}

/// One part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The ids of the first text.
    A,
    /// The ids of the second text.
    B,
    /// Ids that are only there when special tokens are asked for.
    Special(Vec<u32>),
}

#[derive(Deserialize)]
struct TemplateJson {
    single: Vec<PieceJson>,
    pair: Vec<PieceJson>,
    special_tokens: HashMap<String, SpecialTokenJson>,
}

#[derive(Deserialize)]
enum PieceJson {
    Sequence { id: SequenceJson },
    SpecialToken { id: String },
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

impl PostProcessor {
    pub(crate) fn load(component: Option<&Component>, path: &str) -> Result<Self, Error> {
        let mut this = Self {
            single: vec![Piece::A],
            pair: vec![Piece::A, Piece::B],
            trims: Vec::new(),
        };
        if let Some(component) = component {
            this.add(component, path, &mut false)?;
        }
        Ok(this)
    }

    /// Adds one processor or a sequence of them; `templated` once there is a template.
    fn add(
        &mut self,
        component: &Component,
        path: &str,
        templated: &mut bool,
    ) -> Result<(), Error> {
        match component.kind(path)? {
            // Moves offsets only.
            "ByteLevel" => {
                if component.bool("trim_offsets", path)? {
                    self.trims.push(component.bool("add_prefix_space", path)?);
                }
                Ok(())
            }
            "TemplateProcessing" if *templated => {
                Err(Error::unsupported(path, "a second TemplateProcessing"))
            }
            "TemplateProcessing" => {
                *templated = true;
                self.set_template(component, path)
            }
            "Sequence" => {
                for (part, path) in component.parts("processors", path)? {
                    self.add(&part, &path, templated)?;
                }
                Ok(())
            }
            other => Err(Error::unsupported(
                path,
                format!(
                    "post-processor {other} (supported: ByteLevel, TemplateProcessing, Sequence)"
                ),
            )),
        }
    }

    fn set_template(&mut self, component: &Component, path: &str) -> Result<(), Error> {
        let template: TemplateJson = component
            .read()
            .map_err(|problem| Error::invalid(path, problem.to_string()))?;
        let resolve = |pieces: Vec<PieceJson>, name: &str| {
            pieces
                .into_iter()
                .map(|piece| match piece {
                    PieceJson::Sequence {
                        id: SequenceJson::A,
                    } => Ok(Piece::A),
                    PieceJson::Sequence {
                        id: SequenceJson::B,
                    } if name == "pair" => Ok(Piece::B),
                    PieceJson::Sequence { .. } => Err(Error::invalid(
                        format!("{path}.{name}"),
                        "the template for one text uses a second one",
                    )),
                    PieceJson::SpecialToken { id } => template
                        .special_tokens
                        .get(&id)
                        .map(|token| Piece::Special(token.ids.clone()))
                        .ok_or_else(|| {
                            Error::invalid(
                                format!("{path}.{name}"),
                                format!("special token {id:?} is not in special_tokens"),
                            )
                        }),
                })
                .collect::<Result<Vec<_>, _>>()
        };
        self.single = resolve(template.single, "single")?;
        self.pair = resolve(template.pair, "pair")?;
        Ok(())
    }
}
