//! Guards that are asked about one guideline at a time: whether a text violates it.
//!
//! The chat template takes the guideline as a variable and asks for yes or no; the probability of
//! yes among the two is the score.

use std::borrow::Cow;

use prelude_text::{
    label_trie::{LabelTrie, RowScores},
    template::ChatInputs,
};
use serde_json::{Map, Value, json};

use super::{
    judged::Judged,
    prepared::Computed,
    prompts::{Answers, Escaping, normalised},
    submit::Ask,
};
use crate::{error::ApiError, served_model::ServedModel};

/// Most guidelines of a request.
pub(crate) const GUIDELINES_MAX: usize = 64;

/// The way in which a guard is asked about a guideline.
#[derive(Debug)]
pub(crate) struct Form {
    /// Words of the chat template by which the guard is known.
    words: &'static [&'static str],
    /// Returns the template's variables for a guideline.
    variables: fn(&Guideline<'_>) -> Map<String, Value>,
    /// True if the template opens the turn of the answer only where it is asked to.
    opens_turn: bool,
    /// The beginning of every answer, which is put behind the prompt.
    begins: &'static str,
    /// The answers that the text violates the guideline, and that it does not.
    answers: [&'static str; 2],
    /// The guidelines that the model knows by name, of those that are about a text alone.
    own: &'static [&'static str],
}

/// A guideline that a text may violate.
#[derive(Debug)]
pub(crate) struct Guideline<'a> {
    /// The guideline's name in answers, and in the template if it is the model's own.
    pub(crate) name: &'a str,
    /// The guideline's words; `None` is the guideline that the model knows by this name.
    pub(crate) text: Option<Cow<'a, str>>,
}

/// The risks of Granite Guardian that are about one message.
const RISKS: [&str; 7] = [
    "harm",
    "social_bias",
    "jailbreak",
    "violence",
    "profanity",
    "sexual_content",
    "unethical_behavior",
];

/// The forms in which models are asked about a guideline. The first whose words a template has is
/// meant.
static FORMS: [Form; 3] = [
    // Granite Guardian 3.3, which may reason before it answers; asked not to, it says so.
    Form {
        words: &["guardian_config", "custom_criteria"],
        variables: |guideline| {
            let config = match &guideline.text {
                Some(text) => json!({"custom_criteria": text}),
                None => json!({"criteria_id": guideline.name}),
            };
            named([("guardian_config", config), ("think", json!(false))])
        },
        opens_turn: true,
        begins: "<think>\n</think>\n<score>",
        answers: [" yes", " no"],
        own: &RISKS,
    },
    // Granite Guardian 3.0 to 3.2.
    Form {
        words: &["guardian_config", "risk_name"],
        variables: |guideline| {
            let config = match &guideline.text {
                // The name is none that the template has words for.
                Some(text) => json!({"risk_name": "custom", "risk_definition": text}),
                None => json!({"risk_name": guideline.name}),
            };
            named([("guardian_config", config)])
        },
        opens_turn: true,
        begins: "",
        answers: ["Yes", "No"],
        own: &RISKS,
    },
    // ShieldGemma, whose template ends with the question.
    Form {
        words: &["guideline", "Yes", "No"],
        variables: |guideline| named([("guideline", json!(guideline.text))]),
        opens_turn: false,
        begins: "",
        answers: ["Yes", "No"],
        own: &[],
    },
];

fn named<const N: usize>(variables: [(&str, Value); N]) -> Map<String, Value> {
    Map::from_iter(variables.map(|(name, value)| (name.to_owned(), value)))
}

impl Form {
    /// Returns the form of the guard whose chat template this is.
    pub(crate) fn of(template: &str) -> Option<&'static Self> {
        let has_words = |form: &&Self| form.words.iter().all(|word| template.contains(word));
        FORMS.iter().find(has_words)
    }

    /// Returns the names of the guidelines that the model knows.
    pub(crate) fn own(&self, model: &ServedModel) -> impl Iterator<Item = &'static str> {
        let source = model.form.template.as_ref().map_or("", |of| of.source());
        let is_known = move |name: &&str| {
            let quoted = [format!("\"{name}\""), format!("'{name}'")];
            quoted.iter().any(|name| source.contains(name))
        };
        self.own.iter().copied().filter(is_known)
    }

    /// Returns a prompt about messages and a guideline, up to where the answer begins.
    fn prompt(
        &self,
        model: &ServedModel,
        messages: &[Value],
        guideline: &Guideline<'_>,
    ) -> Result<String, ApiError> {
        let template = model.form.template.as_ref();
        let template = template.expect("a model that takes guidelines has a template");
        let inputs = ChatInputs {
            messages,
            tools: None,
            documents: None,
            add_generation_prompt: self.opens_turn,
            kwargs: &(self.variables)(guideline),
        };
        let prompt = template.render(&inputs);
        let prompt = prompt.map_err(|e| ApiError::template(e.to_string()))?;
        if let Some(words) = &guideline.text
            && !prompt.contains(words.trim())
        {
            let what = "the chat template does not print the guideline's text";
            return Err(ApiError::template(what.to_owned()).with_param("guidelines"));
        }
        Ok(prompt + self.begins)
    }
}

/// Returns for each text the probability that it violates each guideline.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn judge(
    ask: &Ask<'_>,
    judged: &Judged<'_>,
    (form, guidelines): (&Form, &[Guideline<'_>]),
) -> Result<Vec<Vec<f64>>, ApiError> {
    let words = guidelines.iter().filter_map(|of| of.text.as_deref());
    let about = About {
        escaping: Escaping::new(ask, None, || judged.all() + &words.collect::<String>())?,
        field: "input",
        judged,
        guidelines,
    };
    let violated = form
        .ask(ask, about, |trie, scores| {
            normalised(&trie.log_probabilities(scores))[0]
        })
        .await?;
    let by_text = violated.outputs.chunks(guidelines.len());
    Ok(by_text.map(<[f64]>::to_vec).collect())
}

/// Texts, and the guidelines that each of them may violate.
pub(crate) struct About<'a, 'm> {
    pub(crate) escaping: Escaping<'m>,
    /// The field in which the texts came, for errors.
    pub(crate) field: &'static str,
    pub(crate) judged: &'a Judged<'a>,
    pub(crate) guidelines: &'a [Guideline<'a>],
}

impl Form {
    /// Asks about each guideline and each text: text by text, what `read` makes of the scores of yes
    /// and no.
    ///
    /// # Errors
    /// 400 for whatever is wrong with the request, 429, 503, 500.
    pub(crate) async fn ask<T>(
        &self,
        ask: &Ask<'_>,
        about: About<'_, '_>,
        read: impl Fn(&LabelTrie, &[RowScores]) -> T,
    ) -> Result<Computed<T>, ApiError> {
        let (judged, escaping) = (about.judged, about.escaping);
        let marked: Vec<Guideline<'_>> = about
            .guidelines
            .iter()
            .map(|of| Guideline {
                name: of.name,
                text: of.text.as_deref().map(|text| escaping.text(text)),
            })
            .collect();
        let words = about.guidelines.iter().filter_map(|of| of.text.as_deref());
        let guideline_bytes: usize = words.map(str::len).sum();
        let asked = Answers {
            escaping,
            field: about.field,
            texts: 1,
            answers: &self.answers,
            open: true,
            prompts: judged.prompts() * marked.len(),
            bytes: { judged.bytes() }
                .saturating_mul(marked.len())
                .saturating_add(guideline_bytes.saturating_mul(judged.prompts())),
            distinct: true,
        };
        let prompts = judged.turns(escaping).flat_map(|turns| {
            let marked = &marked;
            (0..marked.len()).map(move |at| {
                let prompt = self.prompt(escaping.model, &turns, &marked[at])?;
                judged.printed(prompt, &turns)
            })
        });
        asked.behind(ask, prompts, read).await
    }
}
