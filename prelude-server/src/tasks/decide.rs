//! Typed decisions, whatever dialect asks: one state, many questions, one engine request.

use std::{borrow::Cow, collections::BTreeMap, iter, sync::Arc};

use prelude_engine::Usage;
use prelude_text::{
    decide::{
        Answer, AskWording, Calibration, ChoiceLabels, Criteria, Diagnostics, LabelKind,
        PROMPT_FORMAT, Question, TextOrJson, formats::Cut,
    },
    label_trie::{LabelTrie, RowScores, below_max, rows_behind},
    shared_prefix::SharedPrompts,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, value::RawValue};

mod checkpoint;
mod guideline;

#[cfg(test)]
pub(crate) use checkpoint::rows;

use super::{
    guards::Guard,
    prepared::{Expected, Prepared, prepare, trie_scores},
    prompts::{Escaping, label_trie, normalised, prompt, user_turn},
    submit::Ask,
};
use crate::{
    admission::{Cost, Growth, Printed, Reservation},
    error::ApiError,
    served_model::ServedModel,
    wire::{Int, Text},
};

/// Most questions of a request.
pub(crate) const QUESTIONS_MAX: usize = 256;
/// Most options of a choice.
pub(crate) const OPTIONS_MAX: usize = 255;
/// Most levels of a score: each is answered by one digit.
pub(crate) const LEVELS_MAX: usize = 10;

/// A state and the questions about it, read and checked.
#[derive(Debug)]
pub(crate) struct Questionnaire<'a> {
    /// The field in which the state came, for errors.
    pub(crate) state_field: &'static str,
    pub(crate) state: TextOrJson,
    pub(crate) instructions: Option<TextOrJson>,
    pub(crate) questions: Vec<NamedQuestion<'a>>,
    pub(crate) options: Options,
    /// True if special tokens in all texts are plain text.
    pub(crate) escapes: Option<bool>,
}

impl Questionnaire<'_> {
    fn escaping<'m>(&self, ask: &Ask<'m>) -> Result<Escaping<'m>, ApiError> {
        let texts = || {
            // The state once, however many questions are asked about it.
            let turns = { self.questions.iter() }
                .map(|named| named.question.user_turn("", 0, ChoiceLabels::Text).into());
            let around = [Some(&self.state), self.instructions.as_ref()];
            let around = around.into_iter().flatten();
            let around = around.map(|text| Cow::Borrowed(text.as_str()));
            turns.chain(around).collect()
        };
        Escaping::new(ask, self.escapes, texts)
    }
}

/// A question under the name the client gave it.
#[derive(Debug)]
pub(crate) struct NamedQuestion<'a> {
    /// The client's name of the question, which the model never sees.
    pub(crate) name: Option<Cow<'a, str>>,
    /// The JSON pointer of the possible answers, for errors.
    pub(crate) pointer: String,
    pub(crate) question: Question,
    /// The values by which the client wants to be told of the answers, in their order, where these
    /// are others than the names that the model reads.
    pub(crate) values: Vec<&'a RawValue>,
}

/// The options of decisions, as clients write them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct DecideFields<'a> {
    #[serde(borrow)]
    pub(crate) x_prelude: Option<OptionFields<'a>>,
    /// Special tokens in people's texts are plain text.
    pub(crate) escape_special_tokens: Option<bool>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "DecideOptions")]
pub(crate) struct OptionFields<'a> {
    /// The format that the model is asked in, which answers name: `prelude-decide-1`, or that of a decision
    /// model.
    #[serde(borrow)]
    prompt_format: Option<Text<'a>>,
    /// `code`: options by letters and numbers; `text`: by their names.
    labels: Option<LabelsBy>,
    /// Rotations of the label assignment that a choice is averaged over.
    permutations: Option<Int<1, 8>>,
    /// Divides the labels' logits.
    temperature: Option<f64>,
    /// True if the answer is to have the tree of the prompts (`/v1/systemone`).
    forest: Option<bool>,
}

#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum LabelsBy {
    Code,
    Text,
}

/// The options of decisions, checked.
#[derive(Debug)]
pub(crate) struct Options {
    /// The format in which the client means to ask.
    prompt_format: Option<String>,
    /// Most prompts of a choice, over whose answers the mean is taken.
    permutations: usize,
    /// Divides the labels' logits, or log-probabilities of names; by default the calibration's.
    temperature: Option<f64>,
    /// The labels by which choices are answered, if the request names them.
    labels: Option<ChoiceLabels>,
    /// True if the answer has the tree of the prompts.
    pub(crate) forest: bool,
}

impl Options {
    /// Checks `x_prelude`.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn new(fields: Option<OptionFields<'_>>) -> Result<Self, ApiError> {
        let fields = fields.unwrap_or_default();
        if fields
            .temperature
            .is_some_and(|t| !(t > 0.0 && t.is_finite()))
        {
            return Err(ApiError::invalid_value(
                "/x_prelude/temperature",
                "be above 0",
            ));
        }
        Ok(Self {
            prompt_format: fields.prompt_format.map(|format| format.0.into_owned()),
            permutations: fields.permutations.map_or(1, Int::count) as usize,
            temperature: fields.temperature,
            labels: fields.labels.map(|labels| match labels {
                LabelsBy::Code => ChoiceLabels::Code,
                LabelsBy::Text => ChoiceLabels::Text,
            }),
            forest: fields.forest.unwrap_or(false),
        })
    }

    /// Refuses what a wording of the operator's has no place for.
    fn check_wording(
        &self,
        wording: &AskWording,
        questionnaire: &Questionnaire<'_>,
    ) -> Result<(), ApiError> {
        self.check_format(wording.name())?;
        let has_instructions = questionnaire.instructions.is_some() && wording.has_system();
        ApiError::refuse_given(&[
            ("instructions", has_instructions),
            ("/x_prelude/labels", self.labels.is_some()),
        ])?;
        let most = wording.options_max();
        for named in &questionnaire.questions {
            if let Criteria::Choice(options) = &named.question.criteria
                && options.len() > most
            {
                let must =
                    format!("have at most {most} options: this model was asked with no more");
                return Err(ApiError::invalid_value(named.pointer.clone(), must));
            }
        }
        Ok(())
    }

    /// Returns the labels by which choices are answered.
    fn labels(&self) -> ChoiceLabels {
        self.labels.unwrap_or_default()
    }

    /// Checks that a model is asked in `format`.
    fn check_format(&self, format: &str) -> Result<(), ApiError> {
        match &self.prompt_format {
            Some(asked) if asked != format => {
                let must = format!("be {format:?}, in which this model is asked");
                Err(ApiError::invalid_value("/x_prelude/prompt_format", must))
            }
            _ => Ok(()),
        }
    }

    fn temperature(&self, criteria: &Criteria, calibration: &Calibration) -> f64 {
        self.temperature
            .unwrap_or_else(|| calibration.temperature(criteria))
    }
}

/// The answers, and what they cost.
#[derive(Debug)]
pub(crate) struct Decided {
    /// The format in which the model was asked.
    pub(crate) prompt_format: String,
    /// The answers, in the order of the questions.
    pub(crate) answers: Vec<(Answer, Diagnostics)>,
    /// Distinct tokens of the prompts: the state once, however many questions.
    pub(crate) tokens: u64,
    pub(crate) usage: Usage,
    /// The tree of the prompts, if the request asks for it.
    pub(crate) forest: Option<Forest>,
    /// What was left out of the state for a question, by its index: the format of some models cuts.
    pub(crate) cuts: BTreeMap<usize, Cut>,
}

/// The tree of a request's prompts, each run of tokens once.
#[derive(Debug)]
pub(crate) struct Forest {
    /// The parent of each node, which comes before it, and the number of its own tokens.
    pub(crate) nodes: Vec<(Option<u32>, u64)>,
    /// The nodes of each question at whose ends its labels are scored, in ascending order.
    pub(crate) ends: Vec<Vec<u32>>,
}

impl Forest {
    /// Describes the prompts of a request, with so many rows for each question.
    ///
    /// # Errors
    /// 400 and 429 if there is no room for its numbers.
    fn of(prepared: &Prepared, rows: &[usize], room: &Reservation) -> Result<Self, ApiError> {
        let numbers = 2 * prepared.nodes().len() + rows.iter().sum::<usize>();
        room.grow(Growth::Numbers(numbers as u64, Printed::Decimal))?;
        let mut of_rows = prepared.row_nodes();
        let ends = rows.iter().map(|rows| {
            let mut nodes: Vec<u32> = of_rows.by_ref().take(*rows).collect();
            nodes.sort_unstable();
            nodes.dedup();
            nodes
        });
        let ends = ends.collect();
        Ok(Self {
            nodes: prepared.nodes().collect(),
            ends,
        })
    }
}

/// Asks all questions as one request. `bytes` is about how much text there is.
///
/// # Errors
/// The refusals and failures of admission, scheduler and engine.
pub(crate) async fn decide(
    ask: &Ask<'_>,
    questionnaire: &Questionnaire<'_>,
    bytes: usize,
) -> Result<Decided, ApiError> {
    let Ask { call, model, .. } = ask;
    if let Some(decider) = model.decider() {
        return checkpoint::decide(ask, questionnaire, decider, bytes).await;
    }
    let wording = wording(model);
    match wording {
        None => questionnaire.options.check_format(PROMPT_FORMAT)?,
        Some(wording) => questionnaire
            .options
            .check_wording(wording, questionnaire)?,
    }
    if let Some(Guard::Guidelines(form)) = Guard::of(model)? {
        return guideline::decide(ask, questionnaire, form).await;
    }
    let prompts = || {
        { questionnaire.questions.iter() }.map(|named| Plan::turns(named, &questionnaire.options))
    };
    let names = || {
        { questionnaire.questions.iter() }
            .map(|named| Plan::name_bytes(named, &questionnaire.options))
    };
    let rows = { questionnaire.questions.iter() }.zip(prompts().zip(names()));
    let rows = rows.map(|(named, (turns, names))| {
        let labels = named.question.criteria.labels().count();
        (turns as u64).saturating_mul(rows_behind(labels, names))
    });
    let expected = Expected {
        prompts: prompts().sum(),
        rows: rows.fold(0, u64::saturating_add),
        bytes: bytes + names().sum::<usize>() + prompts().sum::<usize>() * 512,
    };
    let prepared = prepare(ask, expected, || {
        let escaping = questionnaire.escaping(ask)?;
        // What has no room is refused before its prompts are encoded.
        let plans = Plan::all(questionnaire, ask, &escaping)?;
        let prompts = encode(&escaping, questionnaire, &plans)?;
        let tries =
            { plans.iter() }.flat_map(|plan| iter::repeat_n(&*plan.trie, plan.rotations.len()));
        let prepared =
            Prepared::with_labels(model, (questionnaire.state_field, 1), prompts, tries)?;
        let rows: Vec<usize> = plans.iter().map(Plan::num_rows).collect();
        let forest = { questionnaire.options.forest }
            .then(|| Forest::of(&prepared, &rows, escaping.room))
            .transpose()?;
        Ok((prepared.counting_distinct_tokens(), plans, forest))
    });
    let (prepared, plans, forest) = prepared.await?;
    let computed = prepared.compute(ask, trie_scores).await?;
    let mut scores = computed.outputs.into_iter();
    let answers: Vec<_> = { questionnaire.questions.iter().zip(&plans) }
        .map(|(named, plan)| {
            let scores: Vec<_> = scores.by_ref().take(plan.num_rows()).collect();
            plan.answer(named, &scores)
        })
        .collect();
    let masses = answers.iter().filter_map(|(_, d)| d.label_mass);
    call.app.metrics.label_masses(&model.name, masses);
    Ok(Decided {
        prompt_format: wording.map_or(PROMPT_FORMAT, AskWording::name).to_owned(),
        answers,
        tokens: computed.tokens,
        usage: computed.cost,
        forest,
        cuts: BTreeMap::new(),
    })
}

/// Returns the operator's wording of questions to a model, if there is one.
fn wording(model: &ServedModel) -> Option<&AskWording> {
    model.words().and_then(|words| words.wording.as_deref())
}

/// Returns the labels by which a model answers a question with one of its codes.
fn labels_of(model: &ServedModel, criteria: &Criteria) -> LabelKind {
    wording(model).map_or_else(|| criteria.labels(), |wording| wording.labels(criteria))
}

/// The tries of codes that a request has needed so far: most of its questions are of few kinds.
#[derive(Default)]
struct CodeTries(Vec<(LabelKind, Arc<LabelTrie>)>);

impl CodeTries {
    fn of(&mut self, model: &ServedModel, kind: LabelKind) -> Arc<LabelTrie> {
        if let Some((_, trie)) = self.0.iter().find(|(known, _)| *known == kind) {
            return Arc::clone(trie);
        }
        let labels = model.words().and_then(|words| words.labels.as_ref());
        let labels = labels.expect("a model that serves decisions has labels");
        let trie = Arc::new(labels.trie(kind));
        self.0.push((kind, Arc::clone(&trie)));
        trie
    }
}

/// The prompts of one question and the labels behind them.
struct Plan {
    trie: Arc<LabelTrie>,
    /// The numbers of places by which the list of options is turned, one prompt for each.
    rotations: Vec<usize>,
    temperature: f64,
    labels: ChoiceLabels,
    /// True if the first option of a yes/no question is no.
    has_no_first: bool,
}

impl Plan {
    /// Returns the number of prompts of a question. Yes/no and the digits of a scale mean what they
    /// say; only a choice's list can be turned.
    fn turns(named: &NamedQuestion<'_>, options: &Options) -> usize {
        let criteria = &named.question.criteria;
        match criteria {
            Criteria::Choice(_) => options.permutations.min(criteria.labels().count()),
            _ => 1,
        }
    }

    /// Returns the bytes of the options' names, where they are what is answered.
    fn name_bytes(named: &NamedQuestion<'_>, options: &Options) -> usize {
        match (&named.question.criteria, options.labels()) {
            (Criteria::Choice(choices), ChoiceLabels::Text) => {
                choices.iter().map(|option| option.name.len()).sum()
            }
            _ => 0,
        }
    }

    /// Plans all questions. As soon as a question's rows are known there must be room for them.
    fn all(
        questionnaire: &Questionnaire<'_>,
        ask: &Ask<'_>,
        escaping: &Escaping<'_>,
    ) -> Result<Vec<Self>, ApiError> {
        let mut plans = Vec::with_capacity(questionnaire.questions.len());
        let mut tries = CodeTries::default();
        let (mut rows, mut numbers) = (0, 0);
        for named in &questionnaire.questions {
            let plan = Self::new(named, &questionnaire.options, ask, escaping, &mut tries)?;
            rows += plan.num_rows();
            numbers += named.question.criteria.labels().count();
            plans.push(plan);
            escaping.room.admit(Cost::of_rows(rows as u64))?;
        }
        let numbers = Growth::Numbers(numbers as u64, Printed::Decimal);
        escaping.room.grow(numbers)?;
        Ok(plans)
    }

    fn new(
        named: &NamedQuestion<'_>,
        options: &Options,
        ask: &Ask<'_>,
        escaping: &Escaping<'_>,
        tries: &mut CodeTries,
    ) -> Result<Self, ApiError> {
        let model = escaping.model;
        let criteria = &named.question.criteria;
        let count = criteria.labels().count();
        let rotations = Self::turns(named, options);
        let labelled = match criteria {
            Criteria::Choice(_) => options.labels(),
            _ => ChoiceLabels::Code,
        };
        let trie = match (criteria, labelled) {
            (Criteria::Choice(choices), ChoiceLabels::Text) => {
                let names = choices.iter().map(|o| escaping.text(&o.name));
                let names: Vec<Cow<'_, str>> = names.collect();
                // What stands before the generation prompt does not change the names' tokens.
                let trie = label_trie(escaping, user_turn(model, "")?, &names, false);
                Arc::new(trie.map_err(|e| e.with_param(named.pointer.clone()))?)
            }
            _ => tries.of(model, labels_of(model, criteria)),
        };
        let calibration = model.words().and_then(|words| words.calibration.as_ref());
        let calibration = calibration.unwrap_or(&ask.call.app.config.decide.calibration);
        Ok(Self {
            trie,
            rotations: (0..rotations).map(|r| r * count / rotations).collect(),
            temperature: options.temperature(criteria, calibration),
            labels: labelled,
            has_no_first: wording(model).is_some_and(|wording| !wording.has_yes_first()),
        })
    }

    fn num_rows(&self) -> usize {
        self.rotations.len() * self.trie.num_rows()
    }

    fn answer(&self, named: &NamedQuestion<'_>, scores: &[RowScores]) -> (Answer, Diagnostics) {
        let count = named.question.criteria.labels().count();
        let mut probabilities = vec![0.0; count];
        let mut mass = Some(0.0);
        let share = 1.0 / self.rotations.len() as f64;
        for (scores, rotation) in scores.chunks(self.trie.num_rows()).zip(&self.rotations) {
            match self.labels {
                ChoiceLabels::Code => {
                    let of_labels = self.trie.probabilities(scores, self.temperature);
                    for (label, p) in of_labels.into_iter().enumerate() {
                        probabilities[(label + rotation) % count] += p * share;
                    }
                    // The root's row: what the model would say first.
                    let first = self.trie.mass(scores);
                    mass = mass.zip(first).map(|(sum, m)| sum + m * share);
                }
                ChoiceLabels::Text => {
                    // A name is the option's own, wherever the list is turned.
                    let log = self.trie.log_probabilities(scores);
                    let said: f64 = log.iter().map(|l| l.exp()).sum();
                    mass = mass.map(|sum| sum + said.min(1.0) * share);
                    let scaled = below_max(&log, self.temperature);
                    for (option, p) in normalised(&scaled).into_iter().enumerate() {
                        probabilities[option] += p * share;
                    }
                }
            }
        }
        let diagnostics = Diagnostics::new(&probabilities, mass);
        let answer = match named.question.criteria {
            Criteria::Noul { .. } => Answer::noul(&probabilities[usize::from(self.has_no_first)..]),
            Criteria::Choice(_) => Answer::choice(probabilities),
            Criteria::Score(_) => Answer::score(probabilities),
        };
        (answer, diagnostics)
    }
}

/// Encodes the prompts of all questions in order, each with its rotations.
fn encode(
    escaping: &Escaping<'_>,
    questionnaire: &Questionnaire<'_>,
    plans: &[Plan],
) -> Result<SharedPrompts, ApiError> {
    let system = questionnaire
        .instructions
        .as_ref()
        .map(|text| escaping.text(text.as_str()));
    let turns = questionnaire
        .questions
        .iter()
        .zip(plans)
        .flat_map(|(named, plan)| {
            let system = &system;
            let turn = move |&rotation| {
                if let Some(wording) = wording(escaping.model) {
                    return worded(escaping, wording, questionnaire, (named, rotation));
                }
                let labels = questionnaire.options.labels();
                let user = named
                    .question
                    .user_turn(questionnaire.state.as_str(), rotation, labels);
                // The user turn's own words have no special tokens, so escaping changes the
                // caller's text alone.
                let user = json!({"role": "user", "content": escaping.text(&user)});
                let system =
                    { system.iter() }.map(|text| json!({"role": "system", "content": text}));
                prompt(escaping.model, &system.chain([user]).collect::<Vec<_>>())
            };
            plan.rotations.iter().map(turn)
        });
    escaping.encode_all((questionnaire.state_field, 1), turns)
}

/// Renders the prompt of a question in the operator's wording.
fn worded(
    escaping: &Escaping<'_>,
    wording: &AskWording,
    questionnaire: &Questionnaire<'_>,
    (named, rotation): (&NamedQuestion<'_>, usize),
) -> Result<String, ApiError> {
    let turns = wording.turns(&questionnaire.state, &named.question, rotation);
    let (system, user) = turns.map_err(|e| ApiError::template(e.to_string()))?;
    let asked = questionnaire.instructions.as_ref();
    let asked = asked.map(|text| escaping.text(text.as_str()).into_owned());
    let system = system.or(asked);
    let system = { system.iter() }.map(|text| json!({"role": "system", "content": text}));
    let user = json!({"role": "user", "content": escaping.text(&user)});
    prompt(escaping.model, &system.chain([user]).collect::<Vec<_>>())
}
