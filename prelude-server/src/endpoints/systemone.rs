//! `POST /v1/systemone`: typed decisions. One state, many questions, one engine request.

mod wire;

use std::sync::Arc;

use bytes::Bytes;
use prelude_core::{LabelScores, Normalise, TokenId};
use serde_json::json;

use self::wire::{Asked, Request};
use super::{Call, Reply, classify::prompt, input::check_length, read, submit::Common};
use crate::{
    decide::{Answer, Criteria, DecideLabels, Diagnostics},
    error::ApiError,
    label_trie::{LabelTrie, label_mass},
    served_model::{ServedModel, Task},
    shared_prefix::SharedPrompts,
};

/// Names of the default model, for clients that know no other.
const ALIASES: [&str; 1] = ["jev-latest"];

/// Answers `/v1/systemone`.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    decide(call, &body).await.map_err(as_system_one)
}

async fn decide(call: &Call, body: &[u8]) -> Result<Reply, ApiError> {
    let mut fields = call.fields(body)?;
    let common = Common::take(call, &mut fields)?;
    let name = common
        .model
        .as_deref()
        .filter(|name| !ALIASES.contains(name));
    let model = call.app.model_for(name, Task::SystemOne)?;
    fields.refuse("stream", &["false"])?;
    let request = Request::take(&mut fields)?;
    call.finish(&fields)?;

    let labels = model.labels.as_ref();
    let labels = labels.expect("a model that serves decisions has labels");
    let plans: Vec<Plan> = request
        .asked
        .iter()
        .map(|a| Plan::new(a, &request, labels))
        .collect();
    let rows: usize = plans.iter().map(Plan::num_rows).sum();
    call.reservation.set_rows(rows as u64)?;

    let bytes = body.len() + plans.iter().map(|p| p.rotations.len() * 512).sum::<usize>();
    let encoded = call
        .app
        .encoder
        .run(bytes, || encode(model, &request, &plans));
    let prompts = encoded.await??;
    let of_tree = |e| read::of_tree("state", &e);
    let (mut tree, ends) = prompts.into_tree().map_err(of_tree)?;
    let mut rows = Vec::with_capacity(rows);
    let mut ends = ends.into_iter();
    for plan in &plans {
        for end in ends.by_ref().take(plan.rotations.len()) {
            let trie = &plan.trie;
            trie.graft(&mut tree, end, Normalise::OverVocab, &mut rows)
                .map_err(of_tree)?;
        }
    }
    // The state once, however many questions: what System One's clients are told they used.
    let tokens = tree.distinct_tokens() as u64;
    let (outputs, _) = read::read_rows(call, model, &common, tree, rows, tokens).await?;
    let mut scores = read::label_scores(call, outputs)?.into_iter();
    let answers: Vec<_> = request
        .asked
        .iter()
        .zip(&plans)
        .map(|(asked, plan)| {
            let scores: Vec<_> = scores.by_ref().take(plan.num_rows()).collect();
            let (answer, diagnostics) = plan.answer(asked, &scores);
            (asked, answer, diagnostics)
        })
        .collect();
    Ok(wire::reply(&model.name, &answers, tokens))
}

/// How one question is put to the model.
struct Plan {
    trie: LabelTrie,
    /// By how many places labels are moved along the options, one prompt for each.
    rotations: Vec<usize>,
    temperature: f64,
}

impl Plan {
    fn new(asked: &Asked<'_>, request: &Request<'_>, labels: &DecideLabels) -> Self {
        let kind = asked.question.criteria.labels();
        let count = kind.count();
        // Yes/no and the digits of a scale mean what they say; only a choice's labels are free.
        let rotations = match asked.question.criteria {
            Criteria::Choice(_) => request.permutations.min(count),
            _ => 1,
        };
        Self {
            trie: labels.trie(kind),
            rotations: (0..rotations).map(|r| r * count / rotations).collect(),
            temperature: request.temperature,
        }
    }

    fn num_rows(&self) -> usize {
        self.rotations.len() * self.trie.num_rows()
    }

    fn answer(&self, asked: &Asked<'_>, scores: &[LabelScores]) -> (Answer, Diagnostics) {
        let count = asked.question.criteria.labels().count();
        let mut probabilities = vec![0.0; count];
        let mut mass = Some(0.0);
        let share = 1.0 / self.rotations.len() as f64;
        for (scores, rotation) in scores.chunks(self.trie.num_rows()).zip(&self.rotations) {
            let of_labels = self.trie.probabilities(scores, self.temperature);
            for (label, p) in of_labels.into_iter().enumerate() {
                probabilities[(label + rotation) % count] += p * share;
            }
            // The root's row: what the model would say first.
            mass = mass
                .zip(label_mass(&scores[0]))
                .map(|(sum, m)| sum + m * share);
        }
        let diagnostics = Diagnostics::new(&probabilities, mass);
        let answer = match asked.question.criteria {
            Criteria::Noul { .. } => Answer::noul(&probabilities),
            Criteria::Choice(_) => Answer::choice(probabilities),
            Criteria::Score(_) => Answer::score(probabilities),
        };
        (answer, diagnostics)
    }
}

/// The prompts of all questions in order, each with its rotations.
fn encode(
    model: &ServedModel,
    request: &Request<'_>,
    plans: &[Plan],
) -> Result<SharedPrompts, ApiError> {
    let turns = request.asked.iter().zip(plans).flat_map(|(asked, plan)| {
        let turn = |&rotation| {
            let user = asked.question.user_turn(&request.state, rotation);
            let user = json!({"role": "user", "content": user});
            match &request.instructions {
                None => prompt(model, &[user]),
                Some(text) => prompt(model, &[json!({"role": "system", "content": text}), user]),
            }
        };
        plan.rotations.iter().map(turn)
    });
    let prompts = SharedPrompts::encode(turns, model.cuts, |text, out: &mut Vec<TokenId>| {
        model.tokenizer.encode_into(text, false, out);
        check_length("state", out.len(), 0, model)
    })?;
    let depths = plans
        .iter()
        .flat_map(|p| p.rotations.iter().map(|_| p.trie.depth()));
    for (len, depth) in prompts.lens().zip(depths) {
        check_length("state", len, depth as u64, model)?;
    }
    Ok(prompts)
}

/// What is 400 elsewhere and means that the request is malformed is 422 here, with a list of
/// details; a state that is too long is 413.
fn as_system_one(error: ApiError) -> ApiError {
    if error.status() != 400 {
        return error;
    }
    match error.reason() {
        "context_length_exceeded" => error.with_status(413),
        "unsupported_task"
        | "template_error"
        | "too_many_rows"
        | "larger_than_queue"
        | "deadline_infeasible" => error,
        reason => {
            let kind = match reason {
                "invalid_json" | "too_deep" => "json_invalid",
                "missing_field" => "missing",
                "invalid_type" => "type_error",
                _ => "value_error",
            };
            let fields = error.param().into_iter().flat_map(|p| p.split('/'));
            let fields = fields.filter(|f| !f.is_empty());
            let loc: Vec<String> = ["body"]
                .into_iter()
                .chain(fields)
                .map(|f| f.replace("~1", "/").replace("~0", "~"))
                .collect();
            let detail = json!([{"loc": loc, "msg": error.message(), "type": kind}]);
            error.with_status(422).with_detail(detail)
        }
    }
}
