//! Typed decisions by a decision model: the prompt of its format, hidden states where its head reads,
//! and the head.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    iter,
};

use prelude_core::{RowOutput, TokenId};
use prelude_models::QuestionType;
use prelude_text::decide::{
    Answer, Criteria, Diagnostics, Question,
    formats::{Cut, Part, Piece, Refusal, Row},
};
use serde_json::json;

use super::{Decided, Forest, NamedQuestion, Plan, Questionnaire, SharedPrompts, TextOrJson};
use crate::{
    admission::{Growth, Printed},
    config::Truncate,
    decider::Decider,
    error::ApiError,
    tasks::{
        place::check_length,
        prepared::{Expected, Prepared, prepare},
        prompts::{Escaping, prompt},
        submit::Ask,
    },
};

/// Texts that are longer are encoded once for all questions in which they are alike.
const SHORT_BYTES: usize = 64;

/// Refuses what would change the format's prompt.
fn check(decider: &Decider, questionnaire: &Questionnaire<'_>) -> Result<(), ApiError> {
    let options = &questionnaire.options;
    options.check_format(decider.format())?;
    ApiError::refuse_given(&[
        ("instructions", questionnaire.instructions.is_some()),
        ("/x_prelude/labels", options.labels.is_some()),
    ])
}

/// Returns the answer to a question from the states that the head reads in each order of the options.
fn answer(
    decider: &Decider,
    named: &NamedQuestion<'_>,
    orders: &[Vec<Vec<f32>>],
    factor: f64,
) -> (Answer, Diagnostics) {
    let criteria = &named.question.criteria;
    let n = criteria.labels().count();
    let kind = question_type(criteria);
    let mut probabilities = vec![0.0; n];
    let share = 1.0 / orders.len() as f64;
    for (turn, states) in orders.iter().enumerate() {
        let first = turn * n / orders.len();
        let turned = decider.decision.probabilities(kind, (n, factor), states);
        for (place, p) in turned.into_iter().enumerate() {
            probabilities[(place + first) % n] += p * share;
        }
    }
    let diagnostics = Diagnostics::new(&probabilities, None);
    let answer = match criteria {
        // Every format has no first.
        Criteria::Noul { .. } => Answer::noul(&probabilities[1..]),
        Criteria::Choice(_) => Answer::choice(probabilities),
        Criteria::Score(_) => Answer::score(probabilities),
    };
    (answer, diagnostics)
}

const fn question_type(criteria: &Criteria) -> QuestionType {
    match criteria {
        Criteria::Noul { .. } => QuestionType::Noul,
        Criteria::Choice(_) => QuestionType::Choice,
        Criteria::Score(_) => QuestionType::Score,
    }
}

/// Asks all questions as one request.
///
/// # Errors
/// 400 for what the format has no place for; the refusals and failures of admission, scheduler and
/// engine.
pub(super) async fn decide(
    ask: &Ask<'_>,
    questionnaire: &Questionnaire<'_>,
    decider: &Decider,
    bytes: usize,
) -> Result<Decided, ApiError> {
    check(decider, questionnaire)?;
    let Ask { call, model, .. } = ask;
    let orders =
        { questionnaire.questions.iter() }.map(|named| Plan::turns(named, &questionnaire.options));
    let orders: Vec<usize> = orders.collect();
    let prompts = orders.iter().sum();
    let expected = Expected {
        prompts,
        rows: prompts as u64,
        bytes: bytes + prompts * 512,
    };
    let room = &call.reservation;
    let prepared = prepare(ask, expected, || {
        let numbers = { questionnaire.questions.iter() }
            .map(|named| named.question.criteria.labels().count() as u64);
        room.grow(Growth::Numbers(numbers.sum(), Printed::Decimal))?;
        let escaping = questionnaire.escaping(ask)?;
        let rows = rows(&escaping, questionnaire, decider)?;
        if call.app.config.decide.truncate == Truncate::Refuse
            && let Some(Cut { state_tokens, used }) = rows.iter().find_map(|row| row.cut)
        {
            let message = format!(
                "the state has {state_tokens} tokens, and the model's row has room for {used} of them \
                 beside the question. Shorten it: this server cuts no state"
            );
            let error = ApiError::new(400, "context_length_exceeded", message);
            return Err(error.with_param(questionnaire.state_field));
        }
        let states = rows.iter().map(|row| row.reads.len()).sum::<usize>();
        let numbers = (states * decider.hidden) as u64;
        room.grow(Growth::Numbers(numbers, Printed::State))?;
        let indices = orders.iter().enumerate();
        let indices = indices.flat_map(|(index, orders)| iter::repeat_n(index, *orders));
        let cuts = indices.zip(&rows);
        let cuts = cuts
            .filter_map(|(index, row)| Some((index, row.cut?)))
            .collect::<BTreeMap<_, _>>();
        let prompts = rows
            .into_iter()
            .map(|row| (row.tokens, row.reads))
            .collect();
        let prepared = Prepared::with_states(model, questionnaire.state_field, prompts)?;
        let forest = { questionnaire.options.forest }
            .then(|| Forest::of(&prepared, &orders, room))
            .transpose()?;
        Ok((prepared, cuts, forest))
    });
    let states = |output| match output {
        RowOutput::Tokens { rows, .. } => Some(rows),
        _ => None,
    };
    let (prepared, cuts, forest) = prepared.await?;
    let computed = prepared.compute(ask, states).await?;
    call.note_cut(!cuts.is_empty());
    let factor = questionnaire.options.temperature.unwrap_or(1.0);
    let mut rest = &computed.outputs[..];
    let answers = || {
        let answered = questionnaire.questions.iter().zip(&orders);
        let answer = |(named, orders): (_, &usize)| {
            let (states, behind) = rest.split_at(*orders);
            rest = behind;
            answer(decider, named, states, factor)
        };
        answered.map(answer).collect()
    };
    Ok(Decided {
        prompt_format: decider.format().to_owned(),
        answers: call.write(0, answers).await,
        tokens: computed.tokens,
        usage: computed.cost,
        forest,
        cuts,
    })
}

/// Returns the error for a question that the format cannot ask.
fn refused(named: &NamedQuestion<'_>, refusal: Refusal) -> ApiError {
    let Refusal { part, must } = refusal;
    let question = named
        .pointer
        .rsplit_once('/')
        .map_or("", |(question, _)| question);
    let pointer = match part {
        Part::Criteria => named.pointer.clone(),
        Part::Instructions => format!("{question}/instructions"),
    };
    ApiError::invalid_value(pointer, must)
}

/// Returns the pieces of a question's prompt.
fn pieces_of<'q>(
    decider: &'q Decider,
    state: &'q TextOrJson,
    named: &NamedQuestion<'_>,
    question: &'q Question,
) -> Result<Vec<Piece<'q>>, ApiError> {
    let pieces = decider.prompt.pieces(state, question);
    pieces.map_err(|refusal| refused(named, refusal))
}

/// Makes the prompts of all questions, from the pieces of one question at a time: those of all together
/// would hold the state once for each.
pub(crate) fn rows(
    escaping: &Escaping<'_>,
    questionnaire: &Questionnaire<'_>,
    decider: &Decider,
) -> Result<Vec<Row>, ApiError> {
    let state = &questionnaire.state;
    let asked = || {
        { questionnaire.questions.iter() }
            .flat_map(|named| turned(named, &questionnaire.options).map(move |of| (named, of)))
    };
    let is_cut = decider.prompt.row_tokens().is_some();
    let mut firsts = match is_cut {
        // Texts that are cut may be longer than the context.
        true => {
            let again = Growth::Reread(state.as_str().len(), asked().count() - 1);
            escaping.room.grow(again)?;
            SharedPrompts::default()
        }
        // The first texts of all questions often begin with the state.
        false => {
            let firsts = asked().map(|(named, question)| {
                let pieces = pieces_of(decider, state, named, &question)?;
                let mut texts = pieces.iter().filter_map(|piece| text(escaping, piece));
                texts.next().unwrap_or_else(|| Ok(String::new()))
            });
            escaping.encode_all((questionnaire.state_field, 1), firsts)?
        }
    }
    .into_prompts();
    let mut known: HashMap<String, Vec<TokenId>> = HashMap::new();
    let mut rows = Vec::new();
    for (named, question) in asked() {
        let pieces = &pieces_of(decider, state, named, &question)?;
        let mut texts: Vec<Vec<TokenId>> = firsts.next().into_iter().collect();
        let all = pieces.iter().filter_map(|piece| text(escaping, piece));
        for text in all.skip(texts.len()) {
            let text = text?;
            texts.push(match known.get(&text) {
                Some(ids) => ids.clone(),
                None if text.len() < SHORT_BYTES => escaping.encode_part(&text),
                None => {
                    let ids = escaping.encode_part(&text);
                    known.insert(text, ids.clone());
                    ids
                }
            });
        }
        let row = Row::of(&*decider.prompt, state, pieces, texts);
        let mut row = row.map_err(|refusal| refused(named, refusal))?;
        if let Some(step) = decider.type_step {
            let kind = question_type(&named.question.criteria) as u32;
            row.tokens.iter_mut().for_each(|id| *id += kind * step);
        }
        check_length(
            questionnaire.state_field,
            row.tokens.len(),
            0,
            escaping.model,
        )?;
        escaping.room.grow(Growth::Tokens(row.tokens.len()))?;
        rows.push(row);
    }
    Ok(rows)
}

/// Returns a question with its options in each order in which it is asked.
fn turned<'q>(
    named: &'q NamedQuestion<'_>,
    options: &super::Options,
) -> impl Iterator<Item = Cow<'q, Question>> {
    let turns = Plan::turns(named, options);
    (0..turns).map(move |turn| {
        let mut question = Cow::Borrowed(&named.question);
        if turn > 0
            && let Criteria::Choice(options) = &mut question.to_mut().criteria
        {
            let n = options.len();
            options.rotate_left(turn * n / turns);
        }
        question
    })
}

/// Returns the text of a piece that has one, with special tokens of people's texts marked.
fn text(escaping: &Escaping<'_>, piece: &Piece<'_>) -> Option<Result<String, ApiError>> {
    match piece {
        Piece::Text(text) => Some(Ok(escaping.text(text).into_owned())),
        Piece::Chat { system, user } => {
            let system = json!({"role": "system", "content": system});
            let user = json!({"role": "user", "content": escaping.text(user)});
            Some(prompt(escaping.model, &[system, user]))
        }
        Piece::Token(_) | Piece::Read => None,
    }
}
