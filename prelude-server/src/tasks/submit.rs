//! The common part of all inference endpoints: fields, the way to the engine, and back.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, Instant},
};

use prelude_core::{ExecutionClass, Head, OnDeadline, PromptTree, RowSpec};
use prelude_engine::{Answer, AnswerError, Collected, RequestSpec, Usage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    admission::{Cost, Stage, time_for},
    endpoint::{Call, Reply, unix_seconds},
    error::ApiError,
    identity::is_request_id,
    log, reject,
    served_model::{ServedModel, Task},
    wire::{Int, Text},
};

/// Longest deadline a client may name, in milliseconds: a day.
const SLO_MAX_MS: i64 = 86_400_000;

/// Fields of every inference request, as clients write them.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Common")]
pub(crate) struct CommonFields<'a> {
    /// A served name; the first model that serves the route if absent.
    #[serde(borrow)]
    pub(crate) model: Option<Text<'a>>,
    /// Lower runs first. Below 0 only as far as `limits.best_priority` or the client's key allows.
    priority: Option<i64>,
    /// Requests with different salts share no cache: 1 to 128 characters, none of `@ / \ NUL`.
    #[schemars(length(min = 1, max = 128))]
    cache_salt: Option<Text<'a>>,
    /// Milliseconds from the arrival of the headers to the first token of a generation, or to the
    /// whole answer of a one-shot request.
    slo_ttft_ms: Option<Int<1, SLO_MAX_MS>>,
    /// The fate of a request whose deadline passes before it begins.
    on_deadline: Option<Late>,
    /// The request's id, unless the header `X-Request-Id` names one.
    request_id: Option<Text<'a>>,
}

/// The fate of a late request.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "OnDeadline")]
enum Late {
    Drop,
    Finish,
}

/// The fields of every inference request beside its input, checked.
#[derive(Debug)]
pub(crate) struct Common<'a> {
    /// The model's served name.
    pub(crate) model: Option<Cow<'a, str>>,
    /// Requests of a lower priority number run first.
    pub(crate) priority: i64,
    /// Requests with different salts share no cached prefix.
    pub(crate) cache_salt: Option<Arc<str>>,
    /// The fate of a request whose deadline passes before it begins.
    pub(crate) on_deadline: OnDeadline,
    /// The time from the arrival of the headers to when the first result is due.
    pub(crate) slo: Option<Duration>,
}

impl<'a> Common<'a> {
    /// Checks the common fields, and names the call by `request_id`.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn new(call: &Call, fields: CommonFields<'a>) -> Result<Self, ApiError> {
        if let Some(Text(id)) = fields.request_id.filter(|id| is_request_id(&id.0)) {
            // A header's id stays.
            let _ = call.named.set(id.into_owned());
        }
        let (client, config) = (&call.client, &call.app.config);
        let best = client.best_priority.unwrap_or(config.limits.best_priority);
        let of_key = client.cache_salt.as_ref();
        let slo = fields.slo_ttft_ms;
        let slo = slo.map(|ms| Duration::from_millis(ms.get().unsigned_abs()));
        Ok(Self {
            model: fields.model.map(|name| name.0),
            priority: priority(best, fields.priority)?,
            cache_salt: cache_salt(of_key, config.require_cache_salt, fields.cache_salt)?,
            on_deadline: match fields.on_deadline {
                None | Some(Late::Drop) => OnDeadline::Drop,
                Some(Late::Finish) => OnDeadline::Finish,
            },
            slo: match (slo, call.slo) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
        })
    }
}

/// A request for a model's work: what every task is given beside its own fields.
pub(crate) struct Ask<'a> {
    pub(crate) call: &'a Arc<Call>,
    pub(crate) model: &'a Arc<ServedModel>,
    pub(crate) common: Common<'a>,
}

impl<'a> Ask<'a> {
    /// Checks the common fields and finds the model that serves a task.
    ///
    /// # Errors
    /// 400 naming the field; 404 `model_not_found`, 400 `unsupported_task`, 503 `loading`.
    pub(crate) fn new(
        call: &'a Arc<Call>,
        fields: CommonFields<'a>,
        task: Task,
    ) -> Result<Self, ApiError> {
        Self::of(call, fields, |name| call.app.model_for(name, task))
    }

    /// Checks the common fields, names the call by `request_id`, and lets `choose` find the model of
    /// a name.
    ///
    /// # Errors
    /// 400 naming the field; those of `choose`.
    pub(crate) fn of(
        call: &'a Arc<Call>,
        fields: CommonFields<'a>,
        choose: impl FnOnce(Option<&str>) -> Result<&'a Arc<ServedModel>, ApiError>,
    ) -> Result<Self, ApiError> {
        let common = Common::new(call, fields)?;
        let model = choose(common.model.as_deref())?;
        Ok(Self {
            call,
            model,
            common,
        })
    }
}

/// Returns the priority of a request: as asked, or the one nearest to 0 that its client may name,
/// whose `best` this is.
fn priority(best: i64, asked: Option<i64>) -> Result<i64, ApiError> {
    let priority = asked.unwrap_or_else(|| best.max(0));
    if priority < best {
        let must = format!(
            "be at least {best} for this client; `limits.best_priority`, or `KEY priority=N` in the \
             key file, lets clients go before others"
        );
        return Err(ApiError::invalid_value("priority", must));
    }
    Ok(priority)
}

/// Returns the salt of a request's cache: its own below that of its client's key.
fn cache_salt(
    of_key: Option<&Arc<str>>,
    is_required: bool,
    salt: Option<Text<'_>>,
) -> Result<Option<Arc<str>>, ApiError> {
    let Some(Text(salt)) = salt else {
        return match is_required {
            true => Err(ApiError::missing_field("cache_salt")),
            false => Ok(of_key.cloned()),
        };
    };
    let chars = salt.chars().count();
    if !(1..=128).contains(&chars) || salt.contains(['@', '/', '\\', '\0']) {
        let must = "be 1 to 128 characters, none of them `@`, `/`, `\\` or NUL";
        return Err(ApiError::invalid_value("cache_salt", must));
    }
    Ok(Some(match of_key {
        None => Arc::from(&*salt),
        // No salt of a request has a slash, so none reaches another key's cache.
        Some(key) => format!("{key}/{salt}").into(),
    }))
}

/// Admits a request and sends it to the model's engine. `prompt_tokens` counts each prompt once. A
/// request that is alone and short is computed before this returns.
///
/// # Errors
/// 400 if no queue could hold it; 429 if the queue is full, the engine is busy or the deadline has
/// passed; 503 if the engine is gone.
pub(crate) async fn submit(
    ask: &Ask<'_>,
    tree: PromptTree,
    rows: Vec<RowSpec>,
    prompt_tokens: u64,
) -> Result<Answer, ApiError> {
    let (call, model, common) = (ask.call, ask.model, &ask.common);
    let class = ExecutionClass::of(&rows);
    call.reservation.admit(Cost {
        rows: Some(rows.len() as u64),
        tokens: Some(tree.distinct_tokens() as u64),
        class: Some(class),
    })?;
    call.note(|seen| {
        seen.model = call.app.place_of(model);
        seen.class = Some(class);
        seen.prompt_tokens = prompt_tokens;
        seen.submitted = call.app.traces.now();
    });
    if call.app.config.log_prompts {
        let id = call.named.get().unwrap_or(&call.request_id);
        log_prompt(id, model, &tree, &rows);
    }
    // A constraint's masks are made on other threads, which a step waits for.
    let is_constrained =
        |row: &RowSpec| matches!(&row.head, Head::Generate(g) if g.constraint.is_some());
    let may_be_inline = class == ExecutionClass::OneShot && !rows.iter().any(is_constrained);
    let mut spec = RequestSpec::new(tree, rows);
    spec.priority = common.priority;
    spec.cache_salt.clone_from(&common.cache_salt);
    spec.on_deadline = common.on_deadline;
    if let Some(slo) = common.slo {
        spec.deadline = match (time_left(call.arrival, model, slo), common.on_deadline) {
            (Ok(left), _) => Some(left),
            (Err(error), OnDeadline::Drop) => {
                if error.status() == 429 {
                    call.app.metrics.deadline_missed();
                }
                return Err(error);
            }
            // A deadline that cannot be met must not go before those that can.
            (Err(_), OnDeadline::Finish) => None,
        };
    }
    let of_lone_client = || {
        let is_lone = call.app.in_flight.is_lone_client();
        is_lone.then_some(Duration::from_micros(call.app.config.inline_step_us))
    };
    let inline = may_be_inline.then(|| call.inline.or_else(of_lone_client));
    let answer = match inline.flatten() {
        Some(limit) => model.engine.submit_inline(spec, limit),
        None => model.engine.submit(spec),
    };
    let answer = answer.map_err(|e| reject::of_submit(&e))?;
    call.reservation.reach(Stage::Submitted(class));
    Ok(answer)
}

/// Characters of a prompt that the log may have.
const LOGGED_CHARS: usize = 256;

/// Writes the beginning of the first prompt to the log, as the model gets it.
fn log_prompt(id: &str, model: &ServedModel, tree: &PromptTree, rows: &[RowSpec]) {
    let Some(first) = rows.first() else {
        return;
    };
    let mut ids = tree.prompt(first.node);
    // A character has no more tokens than bytes.
    ids.truncate(4 * LOGGED_CHARS);
    let text = model.tokenizer.decode(&ids, false);
    let text: String = text.chars().take(LOGGED_CHARS).collect();
    let (tokens, prompts) = (tree.prompt_len(first.node), rows.len());
    // The text is escaped, so it stays one line.
    log::line(format_args!(
        "prompt id={id} rows={prompts} tokens={tokens} text={text:?}"
    ));
}

/// Returns the time left of a deadline, if the deadline can be met by all that is known.
///
/// # Errors
/// 400 `deadline_infeasible` if an idle engine could not meet it, 429 `deadline_unmeetable` if
/// what waits already takes longer, 429 `deadline_expired`.
fn time_left(arrival: Instant, model: &ServedModel, slo: Duration) -> Result<Duration, ApiError> {
    // Half of the fastest tiny step: one may yet be faster than all before it, and a refusal that
    // is wrong is worse than an answer that is late.
    let least = model.engine.fastest_step().map(|fastest| fastest / 2);
    if let Some(least) = least.filter(|&least| slo < least) {
        return Err(ApiError::deadline_infeasible(slo, least));
    }
    // The deadline counts from the headers; parsing and encoding have used some of it.
    let left = slo.checked_sub(arrival.elapsed());
    let left = left.ok_or_else(ApiError::deadline_expired)?;
    // The engine has not got this request yet, so all of these tokens are of others.
    let ahead = model.engine.tokens_ahead();
    let wait = time_for(ahead, model.engine.prompt_tokens_per_second());
    if wait > left {
        return Err(ApiError::deadline_unmeetable(wait, left));
    }
    Ok(left)
}

/// Waits for a whole answer.
///
/// # Errors
/// The engine's refusal or failure, as a status.
pub(crate) async fn collect(call: &Call, answer: Answer) -> Result<Collected, ApiError> {
    let collected = answer.collect().await;
    call.reservation.reach(Stage::Started);
    match collected {
        Ok(collected) => {
            call.note(|seen| seen.usage = Some(collected.usage));
            Ok(collected)
        }
        Err(AnswerError::Rejected(reject)) => Err(reject::of_reject(&reject, call)),
        Err(AnswerError::DeadlineExpired) => Err(call.late()),
        Err(AnswerError::EngineStopped) => Err(ApiError::engine_dead()),
        Err(AnswerError::Failed(why)) => Err(call.failed(&why)),
        Err(_) => Err(ApiError::internal(&call.request_id)),
    }
}

/// Token counts as OpenAI's clients read them.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Usage")]
pub(crate) struct UsageBody {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) total_tokens: u64,
    pub(crate) prompt_tokens_details: PromptTokensDetails,
}

/// The sources of prompt tokens.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub(crate) struct PromptTokensDetails {
    pub(crate) cached_tokens: u64,
}

impl UsageBody {
    /// Returns the usage: each prompt counted once, and what the engine knows of the cache, if it
    /// has said so.
    pub(crate) fn new(prompt_tokens: u64, completion_tokens: u64, usage: Option<&Usage>) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokensDetails {
                // A prompt read by two rows of one request is counted by the engine twice.
                cached_tokens: usage.map_or(0, |u| u.cached_tokens.min(prompt_tokens)),
            },
        }
    }
}

/// A list of results as OpenAI's clients read it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ListOf{T}")]
pub(crate) struct ListBody<'a, T> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    data: Vec<T>,
    usage: UsageBody,
}

impl<'a, T: Serialize> ListBody<'a, T> {
    /// Writes the answer of a model.
    pub(crate) fn reply(
        id: String,
        model: &'a ServedModel,
        data: Vec<T>,
        usage: UsageBody,
    ) -> Reply {
        Reply::json(&Self {
            id,
            object: "list",
            created: unix_seconds(),
            model: &model.name,
            data,
            usage,
        })
    }
}
