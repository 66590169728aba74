//! The task of `/classify`, `/pooling` and `/v1/moderations`: classes of texts, from a classification
//! head, or from a language model and a list of labels.

use std::{borrow::Cow, sync::Arc};

use prelude_core::{Head, TokenHead};
use prelude_models::ClassActivation;
use prelude_text::label_trie::{LabelTrie, RowScores, softmax};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    input::{Given, Inputs, Texts},
    prepared::{Computed, Outputs, Unit, vectors},
    prompts::{Answers, Escaping, TEXT, label_trie, normalised, split_template, user_turn},
    submit::Ask,
};
use crate::{
    admission::{Growth, Printed},
    app::App,
    error::ApiError,
    served_model::{ServedModel, Task},
    wire::{Text, check_count, one_of},
};

/// Most labels a language model is asked to choose from.
pub(crate) const LABELS_MAX: usize = 1_024;

/// The labels that a language model chooses from.
#[derive(Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct LabelFields<'a> {
    /// 2 to 1,024 names for a language model to choose from.
    pub(crate) labels: Option<Vec<String>>,
    /// Text around each input, with `{{ text }}` in it once and no other tag (with `labels`).
    #[serde(borrow)]
    template: Option<Text<'a>>,
}

/// Other names of `use_activation` where classes are asked for.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
pub(crate) struct ActivationFields {
    /// Older vLLM's name of `use_activation`.
    activation: Option<bool>,
    /// Older vLLM's name of `use_activation`.
    softmax: Option<bool>,
    /// Pipelines' name: `none`, or the activation that the model's classes have.
    function_to_apply: Option<Function>,
}

/// The functions of pipelines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "FunctionToApply")]
pub(crate) enum Function {
    None,
    Sigmoid,
    Softmax,
}

impl Function {
    /// Returns true if classes of the model are probabilities by this function.
    ///
    /// # Errors
    /// 400 if the model has another activation.
    pub(crate) fn is_applied(self, model: &ServedModel) -> Result<bool, ApiError> {
        let own = match model.class_activation() {
            _ if model.has_vocabulary() => Self::Softmax,
            ClassActivation::Softmax => Self::Softmax,
            ClassActivation::Sigmoid => Self::Sigmoid,
            ClassActivation::Identity => Self::None,
        };
        match self {
            Self::None => Ok(false),
            _ if self == own => Ok(true),
            _ => {
                let name = match own {
                    Self::None => "no activation",
                    Self::Sigmoid => "a sigmoid",
                    Self::Softmax => "a softmax",
                };
                let must = format!("be \"none\" or what the model's classes have: {name}");
                Err(ApiError::invalid_value("function_to_apply", must))
            }
        }
    }
}

impl ActivationFields {
    /// Returns true if classes are probabilities, under whichever name that is asked for.
    ///
    /// # Errors
    /// 400 if it is asked for twice, or the model has another activation.
    pub(crate) fn wanted(
        self,
        model: &ServedModel,
        use_activation: Option<bool>,
    ) -> Result<bool, ApiError> {
        let function = self.function_to_apply.map(|f| f.is_applied(model));
        let wanted = one_of([
            ("use_activation", use_activation),
            ("activation", self.activation),
            ("softmax", self.softmax),
            ("function_to_apply", function.transpose()?),
        ])?;
        Ok(wanted.is_none_or(|(_, is_wanted)| is_wanted))
    }

    /// Refuses these fields where no classes are asked for.
    ///
    /// # Errors
    /// 400 `unsupported_parameter`.
    pub(crate) fn check_unused(self) -> Result<(), ApiError> {
        ApiError::refuse_given(&[
            ("activation", self.activation.is_some()),
            ("softmax", self.softmax.is_some()),
            ("function_to_apply", self.function_to_apply.is_some()),
        ])
    }
}

/// Returns the model of this name. Without a name the first model that can use the labels is
/// meant, or without labels the first that has classes of its own.
///
/// # Errors
/// 404 `model_not_found`, 400 `unsupported_task`, 503 `loading`.
pub(crate) fn model<'a>(
    app: &'a App,
    name: Option<&str>,
    has_labels: bool,
) -> Result<&'a Arc<ServedModel>, ApiError> {
    let can = |model: &ServedModel| model.has_vocabulary() == has_labels;
    app.model_of(name, Task::Classify, can)
}

/// Classifies inputs; to probabilities if the `activation` is true, else to logits. Returns the names
/// of the classes, and for each input its numbers in their order, or those of each of its tokens.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn classify<'m>(
    ask: &Ask<'m>,
    fields: LabelFields<'_>,
    (inputs, activation): (Given<'_>, bool),
    unit: Unit,
) -> Result<(Cow<'m, [String]>, Computed<Vec<Vec<f64>>>), ApiError> {
    let model = ask.model;
    if model.has_vocabulary() {
        return by_labels(ask, fields, inputs, activation).await;
    }
    let given = [
        ("labels", fields.labels.is_some()),
        ("template", fields.template.is_some()),
    ];
    if let Some((name, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        let must = "be left out: this model has classes of its own";
        return Err(ApiError::invalid_value(name, must));
    }
    let labels = model.class_names();
    let outputs = Outputs {
        head: match unit {
            Unit::Texts => Head::Classify,
            Unit::Tokens => Head::Tokens(TokenHead::Classify),
        },
        unit,
        width: u32::try_from(labels.len()).unwrap_or(u32::MAX),
        printed: Printed::Decimal,
    };
    let activation = match activation {
        true => model.class_activation(),
        false => ClassActivation::Identity,
    };
    let probs = |output| {
        let logits = vectors(output)?.into_iter();
        Some(logits.map(|of| activated(activation, &of)).collect())
    };
    let nothing_before = |_: &Inputs<'_>| Ok(String::new());
    let computed = inputs.compute(ask, nothing_before, outputs, probs).await?;
    Ok((Cow::Borrowed(labels), computed))
}

/// Returns the numbers that answers show for the logits of a classification head.
pub(crate) fn activated(activation: ClassActivation, logits: &[f32]) -> Vec<f64> {
    let each = logits.iter().map(|&logit| f64::from(logit));
    match activation {
        ClassActivation::Softmax => softmax(logits),
        ClassActivation::Sigmoid => each.map(sigmoid).collect(),
        ClassActivation::Identity => each.collect(),
    }
}

/// Returns numbers in the precision in which answers print classes and cosines.
#[expect(
    clippy::cast_possible_truncation,
    reason = "written in f32's precision"
)]
pub(crate) fn in_f32(numbers: &[f64]) -> Vec<f32> {
    numbers.iter().map(|&number| number as f32).collect()
}

/// Returns the logistic function of `x`.
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

async fn by_labels<'m>(
    ask: &Ask<'m>,
    fields: LabelFields<'_>,
    inputs: Given<'_>,
    activation: bool,
) -> Result<(Cow<'m, [String]>, Computed<Vec<Vec<f64>>>), ApiError> {
    let Ask { call, model, .. } = ask;
    let Texts {
        texts,
        escapes,
        truncation,
    } = inputs.texts(ask)?;
    let labels = checked(fields.labels)?;
    let template = fields.template.as_ref().map_or(TEXT, |text| &text.0);
    let (before, after) = split_template(template)?;
    let all = || {
        let all = texts.iter().map(|text| &**text).chain([template]);
        all.chain(labels.iter().map(String::as_str)).collect()
    };
    let escaping = Escaping::new(ask, escapes, all)?;
    let named: Vec<Cow<'_, str>> = labels.iter().map(|label| escaping.text(label)).collect();
    let turn = |text: &str| user_turn(model, &[before, &escaping.text(text), after].concat());
    let count = |text: &str| Ok(escaping.count(&turn(text)?));
    let mut within = None;
    let prompts = texts.iter().map(|text| {
        let Some(truncation) = truncation else {
            return turn(text);
        };
        let within = match within {
            Some(within) => within,
            None => {
                // Where a text is cut is learned from the whole prompt, for each text anew.
                let again = Growth::Reread(template.len(), texts.len() - 1);
                escaping.room.grow(again)?;
                // The context also holds the labels behind each text.
                let trie = label_trie(&escaping, turn("")?, &named, false)?;
                let limit = model.max_model_len as usize;
                *within.insert(truncation.within(limit.saturating_sub(trie.depth())))
            }
        };
        let cut = within.fit(model, "input", text, count)?;
        call.note_cut(matches!(cut, Cow::Owned(_)));
        turn(&cut)
    });
    let asked = Answers {
        escaping,
        field: "input",
        texts: texts.len(),
        answers: &named,
        open: false,
        prompts: texts.len(),
        bytes: texts.iter().map(|t| t.len() + template.len()).sum(),
        distinct: false,
    };
    let probs = |trie: &LabelTrie, scores: &[RowScores]| {
        let log = trie.log_probabilities(scores);
        vec![if activation { normalised(&log) } else { log }]
    };
    let computed = asked.behind(ask, prompts, probs).await?;
    Ok((Cow::Owned(labels), computed))
}

fn checked(labels: Option<Vec<String>>) -> Result<Vec<String>, ApiError> {
    let labels = labels.ok_or_else(|| ApiError::missing_field("labels"))?;
    check_count("labels", labels.len(), 2..=LABELS_MAX, "entries")?;
    let mut sorted: Vec<&String> = labels.iter().collect();
    sorted.sort_unstable();
    if sorted[0].is_empty() || sorted.windows(2).any(|w| w[0] == w[1]) {
        let must = "have distinct entries, none of them empty";
        return Err(ApiError::invalid_value("labels", must));
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_activated() {
        let check = |activation, logits: &[f32], expected: &[f64]| {
            assert_eq!(activated(activation, logits), expected);
        };
        check(ClassActivation::Sigmoid, &[0.0], &[0.5]);
        check(
            ClassActivation::Sigmoid,
            &[0.0, 1e9, -1e9],
            &[0.5, 1.0, 0.0],
        );
        check(ClassActivation::Softmax, &[1.0, 1.0], &[0.5, 0.5]);
        check(ClassActivation::Identity, &[1.0, -2.0], &[1.0, -2.0]);
    }
}
