//! The part of a Granite's `config.json` that other decoders do not have.

use crate::{Error, family::Family, json::Fields};

/// The factors that a Granite has and a Llama does not.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GraniteConfig {
    /// Factor on rows of the embedding matrix.
    pub embedding_multiplier: f64,
    /// Factor on the products of queries and keys.
    pub attention_multiplier: f64,
    /// Factor on what each half of a layer adds.
    pub residual_multiplier: f64,
    /// Divisor of the logits: a power of two, so that division is exact in every element type.
    pub logits_scaling: f64,
}

/// Largest factor that a file may name; the smallest is its inverse.
const FACTOR_MAX: f64 = 1e6;

impl GraniteConfig {
    /// Reads the factors of a Granite; `None` of another family.
    pub(super) fn of(fields: &Fields<'_>, family: Family) -> Result<Option<Self>, Error> {
        if family != Family::Granite {
            return Ok(None);
        }
        let factor = |name| {
            let is_factor = |x: f64| (1.0 / FACTOR_MAX..=FACTOR_MAX).contains(&x);
            // The default is that of transformers.
            Ok(fields.number(name, "above 0", is_factor)?.unwrap_or(1.0))
        };
        let logits_scaling: f64 = factor("logits_scaling")?;
        if logits_scaling.log2().fract() != 0.0 {
            let what = format!("`logits_scaling` of {logits_scaling}, which is no power of two");
            return Err(fields.unsupported(what));
        }
        Ok(Some(Self {
            embedding_multiplier: factor("embedding_multiplier")?,
            attention_multiplier: factor("attention_multiplier")?,
            residual_multiplier: factor("residual_multiplier")?,
            logits_scaling,
        }))
    }

    /// Returns the factor on rows of the embedding matrix where hidden states are divided by the
    /// residual multiplier: then each half of a layer adds its result as it is.
    #[must_use]
    pub fn embed_scale(&self) -> f32 {
        (self.embedding_multiplier / self.residual_multiplier) as f32
    }

    /// Returns the epsilon of norms of hidden states that are divided by the residual multiplier:
    /// with it the norms are those of the states themselves.
    #[must_use]
    pub fn eps(&self, eps: f32) -> f32 {
        (f64::from(eps) / (self.residual_multiplier * self.residual_multiplier)) as f32
    }
}
