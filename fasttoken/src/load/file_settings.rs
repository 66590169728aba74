//! The settings of a `tokenizer.json` besides its vocabulary and merges.

use crate::added::AddedTokens;
use crate::encode_error::EncodeError;
use crate::error::Error;
use crate::family::Family;
use crate::json::{Component, File};
use crate::normalize::Normalizer;
use crate::padding::Padding;
use crate::postprocess::{PostProcessor, TemplatePart};
use crate::tokenizer::Tokenizer;
use crate::truncation::Truncation;
use serde::Deserialize;
use serde_json::Value;

/// Returns true if no token of a word begins or ends with what `trim_offsets` counts as blank, as in
/// MPNet's files: BERT's pre-tokenizer cuts words at blanks, and lower case has no `Ġ`.
fn words_have_no_blanks(file: &File) -> Result<bool, Error> {
    let (Some(normalizer), Some(pre_tokenizer)) = (&file.normalizer, &file.pre_tokenizer) else {
        return Ok(false);
    };
    Ok(normalizer.kind("$.normalizer")? == "BertNormalizer"
        && normalizer.bool("lowercase", "$.normalizer")?
        && pre_tokenizer.kind("$.pre_tokenizer")? == "BertPreTokenizer")
}

/// The settings of a file besides its vocabulary and merges, and besides what its model reads itself.
pub(super) struct Settings {
    pub(super) normalizer: Normalizer,
    post_processor: PostProcessor,
    truncation: Option<Truncation>,
    padding: Option<Padding>,
}

impl Settings {
    fn load(file: &File) -> Result<Self, Error> {
        check_version(file.version.as_deref())?;
        let (truncation, padding) = read_lengths(file)?;
        Ok(Self {
            normalizer: Normalizer::load(file.normalizer.as_ref(), "$.normalizer")?,
            post_processor: PostProcessor::load(file.post_processor.as_ref(), "$.post_processor")?,
            truncation,
            padding,
        })
    }

    /// Reads the settings of a file with a byte-level model.
    pub(super) fn load_for_bytes(file: &File) -> Result<Self, Error> {
        let this = Self::load(file)?;
        this.normalizer.only_forms()?;
        check_decoder(file.decoder.as_ref())?;
        Ok(this)
    }

    /// Reads the settings of a file whose model is not byte-level.
    pub(super) fn load_for_text(file: &File) -> Result<Self, Error> {
        let this = Self::load(file)?;
        if this.post_processor.trims() && !words_have_no_blanks(file)? {
            return Err(Error::unsupported(
                "$.post_processor",
                "post-processor that trims offsets, for a model without ByteLevel",
            ));
        }
        Ok(this)
    }

    pub(super) fn added_tokens(
        &self,
        file: &File,
        model_len: usize,
        model_id: impl Fn(&str) -> Option<u32>,
    ) -> Result<AddedTokens, Error> {
        AddedTokens::load(&file.added_tokens, model_len, model_id, &self.normalizer)
    }

    /// Puts the tokenizer together.
    pub(super) fn finish(self, added: AddedTokens, mut family: Family) -> Result<Tokenizer, Error> {
        if let Family::Text(model) = &mut family {
            model.prepare(&self.normalizer, &added)?;
        }
        check_template_ids(&self.post_processor, |id| family.contains(id))?;
        Ok(Tokenizer {
            normalizer: self.normalizer,
            added,
            family,
            post_processor: self.post_processor,
            truncation: self.truncation,
            padding: self.padding,
        })
    }
}

/// Reads truncation and padding.
fn read_lengths(file: &File) -> Result<(Option<Truncation>, Option<Padding>), Error> {
    let truncation = read_setting::<Truncation>(file.truncation.as_ref(), "$.truncation")?;
    let padding = read_setting::<Padding>(file.padding.as_ref(), "$.padding")?;
    if let Some(padding) = &padding {
        let refuse = |problem: EncodeError| Error::invalid("$.padding", problem.to_string());
        padding.check().map_err(refuse)?;
    }
    Ok((truncation, padding))
}

fn check_version(version: Option<&str>) -> Result<(), Error> {
    match version {
        None | Some("1.0") => Ok(()),
        Some(other) => Err(Error::unsupported(
            "$.version",
            format!("format version {other:?}"),
        )),
    }
}

fn read_setting<'de, T: Deserialize<'de>>(
    value: Option<&'de Value>,
    path: &str,
) -> Result<Option<T>, Error> {
    let read = |value: &'de Value| T::deserialize(value);
    value
        .map(read)
        .transpose()
        .map_err(|problem| Error::invalid(path, problem.to_string()))
}

fn check_decoder(decoder: Option<&Component>) -> Result<(), Error> {
    let path = "$.decoder";
    match decoder.map(|decoder| decoder.kind(path)).transpose()? {
        Some("ByteLevel") => Ok(()),
        other => Err(Error::unsupported(
            path,
            format!("decoder {} (supported: ByteLevel)", other.unwrap_or("null")),
        )),
    }
}

fn check_template_ids(
    processor: &PostProcessor,
    contains: impl Fn(u32) -> bool,
) -> Result<(), Error> {
    for piece in processor.single.iter().chain(&processor.pair) {
        if let TemplatePart::Special(ids) = piece
            && let Some(id) = ids.iter().find(|id| !contains(**id))
        {
            return Err(Error::invalid(
                "$.post_processor",
                format!("the template adds id {id}, which no token has"),
            ));
        }
    }
    Ok(())
}
