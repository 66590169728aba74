//! Factors and bounds between the operations of a model.

use crate::{
    Error,
    families::{Family, GemmaParts},
    json::Fields,
};

/// Factors and bounds that most families do not have.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Scales {
    /// Factor on rows of the embedding matrix. Where the halves of a layer have a factor, it is divided
    /// by that one, and hidden states are: then each half adds its result as it is.
    pub embed: f32,
    /// Factor on the products of queries and keys; by default the inverse root of a head's size.
    pub attention: Option<f32>,
    /// Bound of attention's scores, if there is one.
    pub attention_cap: Option<f32>,
    /// Bound of the logits, if there is one.
    pub logit_cap: Option<f32>,
    /// Divisor of the logits: a power of two, so that division is exact in every element type.
    pub logits: f32,
}

impl Default for Scales {
    fn default() -> Self {
        Self {
            embed: 1.0,
            attention: None,
            attention_cap: None,
            logit_cap: None,
            logits: 1.0,
        }
    }
}

/// Largest factor and bound that a file may name; the smallest factor is its inverse.
const NUMBER_MAX: f64 = 1e6;

impl Scales {
    /// Reads the factors and bounds of a model with hidden states of this width, and the factor on what
    /// each half of a layer adds.
    pub(super) fn read(
        fields: &Fields<'_>,
        family: &Family,
        hidden: usize,
    ) -> Result<(Self, f64), Error> {
        match &family.gemma {
            Some(gemma) => Ok((Self::of_gemma(fields, gemma, hidden)?, 1.0)),
            None if family.has_factors => Self::of_factors(fields),
            None => Ok((Self::default(), 1.0)),
        }
    }

    fn of_gemma(fields: &Fields<'_>, of: &GemmaParts, hidden: usize) -> Result<Self, Error> {
        const CAP: &str = "attn_logit_softcapping";
        let is_positive = |x: f64| x > 0.0 && x <= NUMBER_MAX;
        let scalar = fields.number("query_pre_attn_scalar", "above 0", is_positive)?;
        // Transformers keeps the number and does not use it.
        if of.attention_cap.is_none() && fields.get(CAP).is_some() {
            return Err(fields.unsupported(format!("`{CAP}` of a {}", of.title)));
        }
        Ok(Self {
            embed: (hidden as f64).sqrt() as f32,
            attention: Some(scalar.unwrap_or(256.0).powf(-0.5) as f32),
            attention_cap: cap(fields, CAP, of.attention_cap)?,
            logit_cap: cap(fields, "final_logit_softcapping", of.logit_cap)?,
            logits: 1.0,
        })
    }

    fn of_factors(fields: &Fields<'_>) -> Result<(Self, f64), Error> {
        let factor = |name| {
            let is_factor = |x: f64| (1.0 / NUMBER_MAX..=NUMBER_MAX).contains(&x);
            // The default is that of transformers.
            Ok(fields.number(name, "above 0", is_factor)?.unwrap_or(1.0))
        };
        let logits: f64 = factor("logits_scaling")?;
        if logits.log2().fract() != 0.0 {
            let what = format!("`logits_scaling` of {logits}, which is no power of two");
            return Err(fields.unsupported(what));
        }
        let (embed, attention) = (
            factor("embedding_multiplier")?,
            factor("attention_multiplier")?,
        );
        let residual = factor("residual_multiplier")?;
        let scales = Self {
            embed: (embed / residual) as f32,
            attention: Some(attention as f32),
            logits: logits as f32,
            ..Self::default()
        };
        Ok((scales, residual))
    }
}

/// Returns a bound: the default where the file does not have the field, none for null.
fn cap(fields: &Fields<'_>, name: &str, default: Option<f32>) -> Result<Option<f32>, Error> {
    if !fields.map.contains_key(name) {
        return Ok(default);
    }
    let is_cap = |x: f64| x > 0.0 && x <= NUMBER_MAX;
    let cap = fields.number(name, "a number above 0, or null", is_cap)?;
    Ok(cap.map(|cap| cap as f32))
}
