//! System One's answers.

use std::{borrow::Cow, collections::BTreeMap};

use prelude_text::decide::{Answer, Criteria, formats::Cut};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    endpoint::Reply,
    tasks::decide::{Decided, NamedQuestion, Questionnaire},
    wire::Entries,
};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SystemOneDecision")]
pub(crate) struct Response<'a> {
    model: &'a str,
    answers: Entries<'a, AnswerBody<'a>>,
    usage: Usage,
    x_prelude: Extension<'a>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SystemOneUsage")]
pub(super) struct Usage {
    input_tokens: u64,
    output_tokens: u64,
}

impl Usage {
    pub(super) const fn of(decided: &Decided) -> Self {
        Self {
            input_tokens: decided.tokens,
            output_tokens: 0,
        }
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SystemOneExtension")]
struct Extension<'a> {
    prompt_format: &'a str,
    diagnostics: Entries<'a, DiagnosticsBody>,
    /// What the model's format left out of the state, by question: nothing if a question is not here.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<Entries<'a, CutBody>>,
    /// The tree of the prompts, if the request's `x_prelude.forest` asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    forest: Option<ForestBody<'a>>,
}

/// The prompts of all questions as they are computed: each run of tokens once.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Forest")]
struct ForestBody<'a> {
    /// A parent comes before its children. All `tokens` together are `usage.input_tokens`.
    nodes: Vec<NodeBody>,
    /// The nodes of each question behind which its labels are scored.
    questions: Entries<'a, &'a [u32]>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ForestNode")]
struct NodeBody {
    /// The node whose tokens come before; null if this one begins the prompt.
    parent: Option<u32>,
    /// The node's own tokens.
    tokens: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Truncated")]
struct CutBody {
    /// Tokens of the state.
    state_tokens: usize,
    /// Tokens of it that the model read.
    used: usize,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Diagnostics")]
struct DiagnosticsBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    label_mass: Option<f64>,
    margin: f64,
}

#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
#[schemars(rename = "SystemOneAnswer")]
enum AnswerBody<'a> {
    Noul {
        noul: f64,
    },
    Choice {
        choice: &'a str,
        probabilities: Entries<'a, f64>,
        confidence: f64,
    },
    Score {
        score: f64,
        #[schemars(with = "BTreeMap<String, serde_json::Value>")]
        legend: Entries<'a, &'a RawValue>,
        probabilities: Entries<'a, f64>,
        confidence: f64,
    },
}

/// Returns the answers in the order of the questions.
pub(super) fn reply(model: &str, questionnaire: &Questionnaire<'_>, decided: &Decided) -> Reply {
    let answers = || questionnaire.questions.iter().zip(&decided.answers);
    let id = |named: &NamedQuestion<'_>| {
        let name = named.name.as_deref();
        let name = name.expect("System One's questions are named");
        Cow::Owned(name.to_owned())
    };
    let bodies = answers().map(|(named, (answer, _))| (id(named), body(named, answer)));
    let diagnostics = answers().map(|(named, (_, diagnostics))| {
        let body = DiagnosticsBody {
            label_mass: diagnostics.label_mass,
            margin: diagnostics.margin,
        };
        (id(named), body)
    });
    let forest = decided.forest.as_ref().map(|forest| ForestBody {
        nodes: { forest.nodes.iter() }
            .map(|&(parent, tokens)| NodeBody { parent, tokens })
            .collect(),
        questions: {
            let ends = forest.ends.iter().map(|nodes| &**nodes);
            let ids = questionnaire.questions.iter().map(id);
            Entries(ids.zip(ends).collect())
        },
    });
    let cuts = decided.cuts.iter().map(|(index, cut)| {
        let Cut { state_tokens, used } = *cut;
        let body = CutBody { state_tokens, used };
        (id(&questionnaire.questions[*index]), body)
    });
    Reply::json(&Response {
        model,
        answers: Entries(bodies.collect()),
        usage: Usage::of(decided),
        x_prelude: Extension {
            prompt_format: &decided.prompt_format,
            diagnostics: Entries(diagnostics.collect()),
            truncated: (!decided.cuts.is_empty()).then(|| Entries(cuts.collect())),
            forest,
        },
    })
}

fn body<'a>(named: &'a NamedQuestion<'_>, answer: &Answer) -> AnswerBody<'a> {
    let numbered = |index: usize| Cow::Owned(index.to_string());
    match (&named.question.criteria, answer) {
        (
            Criteria::Choice(options),
            Answer::Choice {
                choice,
                probabilities,
                confidence,
            },
        ) => AnswerBody::Choice {
            choice: &options[*choice].name,
            probabilities: Entries(
                options
                    .iter()
                    .zip(probabilities)
                    .map(|(o, p)| (Cow::Borrowed(&*o.name), *p))
                    .collect(),
            ),
            confidence: *confidence,
        },
        (
            Criteria::Score(_),
            Answer::Score {
                score,
                probabilities,
                confidence,
            },
        ) => AnswerBody::Score {
            score: *score,
            legend: Entries(
                { named.values.iter().enumerate() }
                    .map(|(i, level)| (numbered(i), *level))
                    .collect(),
            ),
            probabilities: Entries(
                { probabilities.iter().enumerate() }
                    .map(|(i, p)| (numbered(i), *p))
                    .collect(),
            ),
            confidence: *confidence,
        },
        (Criteria::Noul { .. }, Answer::Noul { noul }) => AnswerBody::Noul { noul: *noul },
        _ => unreachable!("the answer was made from these criteria"),
    }
}
