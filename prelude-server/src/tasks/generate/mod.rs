//! Generation, as completions and chat share it.

mod choice;
mod logprobs;
mod params;
mod run;
mod sampling;
mod stop;
mod stream;

pub(crate) use choice::{Choice, StopReason};
pub(crate) use logprobs::{
    ChatLogprobs, CompletionLogprobs, Printer, PromptLogprobs, PromptLogprobsSchema, entries,
};
pub(crate) use params::{GenerationFields, Params, StreamOptions, logprobs};
pub(crate) use run::{Job, Report, Run};
pub(crate) use stream::{Readiness, Speaker};
