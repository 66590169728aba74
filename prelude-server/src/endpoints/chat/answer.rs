//! A chat on its way to an answer.

use std::borrow::Cow;

use prelude_text::output::OutputPart;

use super::body::{Body, CallBody, ChoiceBody, ChunkBody, FunctionBody, Message, State};
use crate::{
    endpoint::Reply,
    sse::Events,
    tasks::{
        generate::{ChatLogprobs, Choice, PromptLogprobs, Readiness, Run, Speaker},
        submit::UsageBody,
    },
};

/// A request on its way to an answer.
pub(super) struct Chat {
    pub(super) id: String,
    pub(super) created: u64,
    /// True if tokens are reported with their log-probabilities.
    pub(super) logprobs: bool,
    /// The rendered prompt, if it is wanted.
    pub(super) prompt_text: Option<String>,
    pub(super) run: Run,
}

impl Chat {
    fn state(&self, index: usize) -> State<'_> {
        let choice = &self.run.choices[index];
        let finish = choice.finish.as_ref();
        State {
            logprobs: self.logprobs.then(|| ChatLogprobs {
                printer: self.run.printer(),
                records: &choice.tokens,
            }),
            finish_reason: finish.map(|f| match &choice.pieces {
                Some(pieces) if pieces.calls > 0 && f.reason == "stop" => "tool_calls",
                _ => f.reason,
            }),
            stop_reason: finish.and_then(|f| f.stop.as_ref()),
            token_ids: self.run.params.return_token_ids.then_some(&*choice.ids),
        }
    }

    /// Returns the part of a choice that is certain and has not been sent: the whole message, or a
    /// piece of it.
    fn said<'a>(&'a self, choice: &'a Choice, is_whole: bool) -> Message<'a> {
        let Some(pieces) = &choice.pieces else {
            let text = (is_whole || !choice.text.is_empty()).then_some(&*choice.text);
            return Message {
                content: text.map(|text| Some(Cow::Borrowed(text))),
                ..Message::default()
            };
        };
        let mut message = Message::default();
        let first_call = pieces.calls as usize
            - pieces
                .out
                .iter()
                .filter(|p| matches!(p, OutputPart::Call(_)))
                .count();
        for piece in &pieces.out {
            match piece {
                OutputPart::Reasoning(text) => {
                    message.reasoning = Some(text);
                    message.reasoning_content = Some(text);
                }
                OutputPart::Content(text) => match &mut message.content {
                    Some(Some(said)) => said.to_mut().push_str(text),
                    content => *content = Some(Some(Cow::Borrowed(text))),
                },
                OutputPart::Call(call) => {
                    let index = first_call + message.tool_calls.len();
                    message.tool_calls.push(CallBody {
                        index: (!is_whole).then_some(index),
                        id: self.run.call.app.ids.next("call_"),
                        r#type: "function",
                        function: FunctionBody {
                            name: &call.name,
                            arguments: &call.arguments,
                        },
                    });
                }
            }
        }
        if is_whole {
            // An answer of calls alone has no content; an answer of nothing at all has an empty
            // one.
            let none = (message.tool_calls.is_empty()).then_some(Cow::Borrowed(""));
            message.content.get_or_insert(none);
        }
        message
    }

    /// Returns the prompt's log-probabilities, if they were asked for.
    fn prompt_logprobs(&self) -> Option<PromptLogprobs<'_>> {
        let prompt = self.run.prompt_of(0);
        self.run.params.prompt_logprobs.map(|top| PromptLogprobs {
            printer: self.run.printer(),
            prompt_len: prompt.ids.len(),
            first: prompt.positions.start as usize,
            scored: &prompt.scored,
            top,
        })
    }

    /// Shows the prompt, as far as that is wanted.
    fn show_prompt<'a, C>(&'a self, body: &mut Body<'a, C>) {
        let ids = &self.run.prompt_of(0).ids;
        body.prompt_token_ids = self.run.params.return_token_ids.then_some(&**ids);
        body.prompt_text = self.prompt_text.as_deref();
    }

    fn body<C>(&self, object: &'static str, choices: Vec<C>) -> Body<'_, C> {
        Body {
            id: &self.id,
            object,
            created: self.created,
            model: &self.run.model.name,
            choices,
            usage: None,
            prompt_logprobs: None,
            prompt_token_ids: None,
            prompt_text: None,
            system_fingerprint: &self.run.model.fingerprint,
        }
    }
}

const CHUNK: &str = "chat.completion.chunk";

impl Speaker for Chat {
    fn run(&self) -> &Run {
        &self.run
    }

    fn run_mut(&mut self) -> &mut Run {
        &mut self.run
    }

    fn whole(&self) -> Reply {
        let run = &self.run;
        let choices = run.choices.iter().enumerate().map(|(index, choice)| {
            let mut message = self.said(choice, true);
            message.role = Some("assistant");
            ChoiceBody {
                index,
                message,
                state: self.state(index),
            }
        });
        let mut body = self.body("chat.completion", choices.collect());
        body.usage = Some(Some(run.usage_body()));
        body.prompt_logprobs = Some(self.prompt_logprobs());
        self.show_prompt(&mut body);
        Reply::json(&body)
    }

    fn push_chunk(
        &self,
        index: usize,
        is_first: bool,
        usage: Option<Option<UsageBody>>,
        events: &mut Events,
    ) {
        let mut delta = self.said(&self.run.choices[index], false);
        if is_first {
            delta.role = Some("assistant");
            delta.content.get_or_insert(Some(Cow::Borrowed("")));
        }
        let chunk = ChunkBody {
            index,
            delta,
            state: self.state(index),
        };
        let mut body = self.body(CHUNK, vec![chunk]);
        body.usage = usage;
        if is_first && index == 0 {
            body.prompt_logprobs = self.prompt_logprobs().map(Some);
            self.show_prompt(&mut body);
        }
        events.push(&body);
    }

    fn push_usage(&self, events: &mut Events) {
        let mut body = self.body(CHUNK, Vec::<ChunkBody<'_>>::new());
        body.usage = Some(Some(self.run.usage_body()));
        events.push(&body);
    }

    /// Returns when a choice's text goes out: its first chunk has the prompt's scores, so it waits
    /// for them.
    fn readiness(&self, index: usize) -> Readiness {
        match self.run.prompt_of(index).is_scored() {
            true => Readiness::WithText,
            false => Readiness::Wait,
        }
    }
}
