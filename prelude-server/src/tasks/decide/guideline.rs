//! Typed decisions by a guard that is asked about one guideline at a time: the state is the text, and
//! each question, of yes or no, is a guideline.

use std::{borrow::Cow, collections::BTreeMap};

use prelude_text::{
    decide::{Answer, Criteria, Diagnostics, PROMPT_FORMAT},
    label_trie::below_max,
};

use super::{Decided, NamedQuestion, Questionnaire};
use crate::{
    error::ApiError,
    tasks::{
        guidelines::{About, Form, Guideline},
        judged::Judged,
        prompts::normalised,
        submit::Ask,
    },
};

/// Asks the guard about all questions as one request.
///
/// # Errors
/// 400 for what a guard cannot be asked; the refusals and failures of admission, scheduler and engine.
pub(super) async fn decide(
    ask: &Ask<'_>,
    questionnaire: &Questionnaire<'_>,
    form: &Form,
) -> Result<Decided, ApiError> {
    let Ask { call, model, .. } = ask;
    if questionnaire.instructions.is_some() {
        let must = "be left out: this guard reads a text and a guideline alone";
        return Err(ApiError::invalid_value("instructions", must));
    }
    if questionnaire.options.forest {
        let must = "be left out or false: the prompts are the guard's own";
        return Err(ApiError::invalid_value("/x_prelude/forest", must));
    }
    let guidelines = questionnaire.questions.iter().map(guideline);
    let guidelines = guidelines.collect::<Result<Vec<_>, _>>()?;
    let calibration = model.words().and_then(|words| words.calibration.as_ref());
    let calibration = calibration.unwrap_or(&call.app.config.decide.calibration);
    let criteria = Criteria::Noul {
        yes: None,
        no: None,
    };
    let temperature = questionnaire.options.temperature(&criteria, calibration);
    let judged = Judged::Texts(vec![Cow::Borrowed(questionnaire.state.as_str())]);
    let about = About {
        escaping: questionnaire.escaping(ask)?,
        field: questionnaire.state_field,
        judged: &judged,
        guidelines: &guidelines,
    };
    let asked = form
        .ask(ask, about, |trie, scores| {
            let log = trie.log_probabilities(scores);
            let said: f64 = log.iter().map(|l| l.exp()).sum();
            let probabilities = normalised(&below_max(&log, temperature));
            let diagnostics = Diagnostics::new(&probabilities, Some(said.min(1.0)));
            (Answer::noul(&probabilities), diagnostics)
        })
        .await?;
    let masses = asked.outputs.iter().filter_map(|(_, d)| d.label_mass);
    call.app.metrics.label_masses(&model.name, masses);
    Ok(Decided {
        prompt_format: PROMPT_FORMAT.to_owned(),
        answers: asked.outputs,
        tokens: asked.tokens,
        usage: asked.cost,
        forest: None,
        cuts: BTreeMap::new(),
    })
}

/// Returns the guideline that a question is.
fn guideline<'q>(named: &'q NamedQuestion<'_>) -> Result<Guideline<'q>, ApiError> {
    let Criteria::Noul { yes, no } = &named.question.criteria else {
        let must = "be those of a question of yes or no: this guard says whether a text violates a \
            guideline";
        return Err(ApiError::invalid_value(named.pointer.clone(), must));
    };
    let Some(instructions) = &named.question.instructions else {
        let must = "belong to a question with `instructions`, which are the guard's guideline";
        return Err(ApiError::invalid_value(named.pointer.clone(), must));
    };
    let meanings = [("yes", yes), ("no", no)].into_iter();
    let meanings = meanings.filter_map(|(label, meaning)| Some((label, meaning.as_ref()?)));
    let mut text = Cow::Borrowed(instructions.as_str());
    for (label, meaning) in meanings {
        text.to_mut().push_str(&format!("\n{label}: {meaning}"));
    }
    Ok(Guideline {
        name: "",
        text: Some(text),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{answer, asking, refused};

    const TEMPLATE: &str = "<|im_start|>user\nText: {{ messages[0].content }}<|im_end|>\n\
        Guideline: {{ guideline }}\nIs it violated? Yes or No.\n\n";

    #[test]
    fn questions_are_guidelines() {
        let guard = asking(TEMPLATE);
        let ask = |instructions: &str, text: &str| {
            let question = json!({"type": "predicate", "name": "q", "instructions": instructions});
            let body = json!({"input": text, "questions": [question]});
            answer(&guard, "/v1/decisions", &body)["answers"][0]["probability"]
                .as_f64()
                .unwrap()
        };
        for text in ["Where is my card?", "Hello"] {
            for guideline in ["Nobody speaks of cards.", "No word of rates."] {
                let body = json!({"input": text, "guidelines": {"x": guideline}});
                let judged = answer(&guard, "/v1/moderations", &body);
                let score = &judged["results"][0]["category_scores"]["x"];
                let difference = ask(guideline, text) - score.as_f64().unwrap();
                assert!(difference.abs() < 1e-6, "{difference}");
            }
        }
    }

    #[test]
    fn questions_that_a_guard_cannot_answer_are_refused() {
        let guard = asking(TEMPLATE);
        let check = |question: Value, more: Value, field: &str| {
            let mut body = json!({"state": "a", "questions": {"q": question}});
            let more = more.as_object().unwrap().clone();
            body.as_object_mut().unwrap().extend(more);
            let expected = (422, "invalid_value", Some(field));
            refused(&guard, "/v1/systemone", &body, expected);
        };
        let noul = || json!({"type": "noul", "instructions": "No cards."});
        let choice = json!({"type": "choice", "instructions": "x",
            "criteria": {"a": null, "b": null}});
        check(choice, json!({}), "/questions/q/criteria");
        check(json!({"type": "noul"}), json!({}), "/questions/q/criteria");
        check(
            noul(),
            json!({"x_prelude": {"forest": true}}),
            "/x_prelude/forest",
        );
    }
}
