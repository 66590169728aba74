//! The task of guards that are asked about one guideline at a time: whether a text violates it.
//!
//! The chat template takes the guideline as a variable and asks for an answer that begins with
//! "Yes" or "No"; the probability of "Yes" among the two is the score.

use std::{borrow::Cow, iter};

use prelude_text::{label_trie::rows_behind, template::ChatInputs};
use serde_json::{Map, Value, json};

use super::{
    budget::Budget,
    escaping::Escaping,
    input::check_length,
    labels::{label_trie, normalised},
    prepared::{Expected, Prepared, compute, trie_scores},
    submit::Common,
};
use crate::{endpoint::Call, error::ApiError, served_model::ServedModel};

/// Most guidelines of a request.
pub(crate) const GUIDELINES_MAX: usize = 64;

/// The variable of the chat template that holds a guideline.
const VARIABLE: &str = "guideline";

/// The beginnings of answers: that the text violates the guideline, and that it does not.
const ANSWERS: [&str; 2] = ["Yes", "No"];

/// Returns true if the model's chat template takes a guideline and asks for one of [`ANSWERS`].
pub(crate) fn takes_guidelines(model: &ServedModel) -> bool {
    let source = model.template.as_ref().map_or("", |of| of.source());
    let names = |name: &&str| source.contains(name);
    names(&VARIABLE) && ANSWERS.iter().all(names)
}

/// Returns for each text the probability that it violates each guideline.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn judge(
    call: &Call,
    model: &ServedModel,
    common: &Common<'_>,
    texts: &[Cow<'_, str>],
    guidelines: &[&str],
) -> Result<Vec<Vec<f64>>, ApiError> {
    let all = || {
        let texts = texts.iter().map(|text| &**text);
        texts.chain(guidelines.iter().copied()).collect()
    };
    let escaping = Escaping::new(call, model, None, all)?;
    let prompts = texts.len() * guidelines.len();
    let bytes_of = |texts: usize, times: usize| texts.saturating_mul(times);
    let text_bytes = texts.iter().map(|text| text.len()).sum();
    let guideline_bytes = guidelines.iter().map(|text| text.len()).sum();
    let answer_bytes = ANSWERS.concat().len();
    let expected = Expected {
        prompts,
        rows: rows_behind(ANSWERS.len(), answer_bytes).saturating_mul(prompts as u64),
        bytes: bytes_of(text_bytes, guidelines.len())
            .saturating_add(bytes_of(guideline_bytes, texts.len())),
    };
    let prepare = |budget: &Budget<'_>| {
        let pairs = texts
            .iter()
            .flat_map(|text| guidelines.iter().map(move |guideline| (text, guideline)));
        let mut first = None;
        let rendered = pairs.map(|(text, guideline)| {
            let prompt = prompt(model, &escaping.text(text), &escaping.text(guideline))?;
            first.get_or_insert_with(|| prompt.clone());
            Ok(prompt)
        });
        let encoded = escaping.encode_all("input", rendered, budget)?;
        for len in encoded.lens() {
            check_length("input", len, 0, model)?;
        }
        let first = first.expect("there are texts and guidelines");
        let trie = label_trie(&escaping, budget, first, &ANSWERS, true)?;
        budget.rows(prompts * trie.num_rows())?;
        budget.numbers(prompts)?;
        let tries = iter::repeat(&trie);
        Ok((Prepared::with_labels(model, "input", encoded, tries)?, trie))
    };
    let (computed, trie) = compute(call, model, common, expected, prepare, trie_scores).await?;
    let scores = computed.outputs.chunks(trie.num_rows());
    let violations: Vec<f64> = scores
        .map(|scores| normalised(&trie.log_probabilities(scores))[0])
        .collect();
    let by_text = violations.chunks(guidelines.len());
    Ok(by_text.map(<[f64]>::to_vec).collect())
}

/// A prompt about a text and a guideline, up to where the answer begins. The template ends with the
/// question, so that it opens no turn.
fn prompt(model: &ServedModel, text: &str, guideline: &str) -> Result<String, ApiError> {
    let template = model.template.as_ref();
    let template = template.expect("a model that takes guidelines has a template");
    let guideline = Value::String(guideline.to_owned());
    let inputs = ChatInputs {
        messages: &[json!({"role": "user", "content": text})],
        tools: None,
        documents: None,
        add_generation_prompt: false,
        kwargs: &Map::from_iter([(VARIABLE.to_owned(), guideline)]),
    };
    template
        .render(&inputs)
        .map_err(|e| ApiError::template(e.to_string()))
}
