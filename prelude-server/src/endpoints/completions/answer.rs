//! A completion on its way to an answer.

use std::borrow::Cow;

use prelude_core::TokenId;
use schemars::JsonSchema;
use serde::Serialize;

use super::Options;
use crate::{
    endpoint::Reply,
    sse::Events,
    tasks::{
        generate::{
            CompletionLogprobs, PromptLogprobs, PromptLogprobsSchema, Readiness, Run, Speaker,
            StopReason,
        },
        submit::UsageBody,
    },
};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Completion")]
pub(crate) struct Body<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<ChoiceBody<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<UsageBody>>,
    system_fingerprint: &'a str,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CompletionChoice")]
pub(crate) struct ChoiceBody<'a> {
    index: usize,
    text: Cow<'a, str>,
    logprobs: Option<CompletionLogprobs<'a>>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "PromptLogprobsSchema")]
    prompt_logprobs: Option<Option<PromptLogprobs<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [TokenId]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [TokenId]>,
}

/// A request on its way to an answer.
pub(super) struct Completion {
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) options: Options,
    /// Text of each prompt, if it is echoed.
    pub(super) echoes: Vec<String>,
    /// Code points of each.
    pub(super) echo_chars: Vec<usize>,
    pub(super) run: Run,
}

impl Completion {
    /// Returns the unsent text of choice `index`; at its beginning with the echo.
    fn choice_body(&self, index: usize, beginning: bool) -> ChoiceBody<'_> {
        let run = &self.run;
        let choice = &run.choices[index];
        let prompt_index = index / run.params.n as usize;
        let echo = self.echoes.get(prompt_index).filter(|_| beginning);
        let start = self.echo_chars.get(prompt_index).copied().unwrap_or(0);
        let logprobs = self.options.logprobs.map(|top| {
            let mut logprobs = CompletionLogprobs::default();
            if echo.is_some() {
                let prompt = run.prompt_of(index);
                logprobs.push_prompt(self.run.printer(), &prompt.ids, &prompt.scored, top, start);
            }
            logprobs.push_generated(self.run.printer(), &choice.tokens, start);
            logprobs
        });
        let finish = choice.finish.as_ref();
        ChoiceBody {
            index,
            text: match echo {
                None => Cow::Borrowed(&*choice.text),
                Some(echo) => Cow::Owned([&**echo, &choice.text].concat()),
            },
            logprobs,
            finish_reason: finish.map(|f| f.reason),
            stop_reason: finish.and_then(|f| f.stop.as_ref()),
            prompt_logprobs: None,
            token_ids: run.params.return_token_ids.then_some(&*choice.ids),
            prompt_token_ids: None,
        }
    }

    /// Returns the log-probabilities of the prompt of choice `index`, if they were asked for.
    fn prompt_logprobs(&self, index: usize) -> Option<PromptLogprobs<'_>> {
        let prompt = self.run.prompt_of(index);
        let range = &self.run.params.prompt_logprobs_range;
        let top = self.run.params.prompt_logprobs?;
        // Scored for the echo or for the range alone.
        let first = prompt.positions.start as usize;
        let wanted = range.as_ref().map_or(first, |r| r.start.max(1) as usize);
        let skip = (wanted - first).min(prompt.scored.len());
        let end = range.as_ref().map_or(usize::MAX, |r| r.end as usize);
        let take = end.saturating_sub(first).min(prompt.scored.len());
        Some(PromptLogprobs {
            printer: self.run.printer(),
            prompt_len: prompt.ids.len(),
            first: wanted,
            scored: &prompt.scored[skip..take.max(skip)],
            top,
        })
    }

    fn body<'a>(
        &'a self,
        choices: Vec<ChoiceBody<'a>>,
        usage: Option<Option<UsageBody>>,
    ) -> Body<'a> {
        Body {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.run.model.name,
            choices,
            usage,
            system_fingerprint: &self.run.model.fingerprint,
        }
    }
}

impl Speaker for Completion {
    fn run(&self) -> &Run {
        &self.run
    }

    fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }

    fn whole(&self) -> Reply {
        let run = &self.run;
        let choices = (0..run.choices.len())
            .map(|index| {
                let mut choice = self.choice_body(index, true);
                choice.prompt_logprobs = Some(self.prompt_logprobs(index));
                if run.params.return_token_ids {
                    choice.token_ids = Some(&run.choices[index].ids);
                    choice.prompt_token_ids = Some(&run.prompt_of(index).ids);
                }
                choice
            })
            .collect();
        Reply::json(&self.body(choices, Some(Some(run.usage_body()))))
    }

    fn push_chunk(
        &self,
        index: usize,
        is_first: bool,
        usage: Option<Option<UsageBody>>,
        events: &mut Events,
    ) {
        let mut choice = self.choice_body(index, is_first);
        if is_first {
            choice.prompt_logprobs = self.prompt_logprobs(index).map(Some);
            let wants_ids = self.run.params.return_token_ids;
            choice.prompt_token_ids = wants_ids.then(|| &*self.run.prompt_of(index).ids);
        }
        events.push(&self.body(vec![choice], usage));
    }

    fn push_usage(&self, events: &mut Events) {
        events.push(&self.body(Vec::new(), Some(Some(self.run.usage_body()))));
    }

    /// Returns when a choice's text goes out: an echo at once, unless the prompt's scores go with
    /// it.
    fn readiness(&self, index: usize) -> Readiness {
        match (self.options.echo, self.run.prompt_of(index).is_scored()) {
            (_, false) => Readiness::Wait,
            (false, true) => Readiness::WithText,
            (true, true) => Readiness::Now,
        }
    }
}
