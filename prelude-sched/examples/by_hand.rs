//! Drives a scheduler by hand: 20 answers to one question are judged while a chat goes on. The
//! "executor" answers without computing anything.
#![expect(clippy::print_stdout, reason = "an example")]

use std::sync::Arc;

use prelude_core::{
    Capacity, ForwardBatch, Generate, Head, OneShotBatch, OutputHead, PromptTree, Request,
    RequestId, RowOutput, RowSpec, SampledToken, SamplingParams, StepId, StepOutput, Timestamp,
};
use prelude_sched::{Event, Scheduler, SchedulerConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let capacity = Capacity {
        block_size: 16,
        num_blocks: 128,
        max_step_tokens: 512,
        full_step_tokens: 2048,
        max_context_len: 1024,
        vocab_size: 50_000,
        pipeline_depth: 1,
        passes: None,
        attention: prelude_core::Attention::Causal,
        host_blocks: 0,
    };
    let mut scheduler = Scheduler::new(SchedulerConfig::default(), capacity)?;
    let mut now = Timestamp::ZERO;

    let question: Vec<u32> = (0..100).collect();
    let answers: Vec<Vec<u32>> = (0..20)
        .map(|a| [&question[..], &[1000 + a; 5]].concat())
        .collect();
    let (tree, nodes) = PromptTree::from_prompts(&answers)?;
    let rows = nodes
        .into_iter()
        .map(|node| RowSpec {
            node,
            head: Head::Classify,
        })
        .collect();
    scheduler.submit(now, Request::new(RequestId(1), tree, rows, now))?;

    let tree = PromptTree::single((5000..5040).collect());
    let sampling = Arc::new(SamplingParams::default());
    let chat = Generate {
        max_tokens: 5,
        n: 1,
        sampling,
        top_logprobs: None,
        constraint: None,
    };
    let rows = vec![RowSpec {
        node: tree.last_node(),
        head: Head::Generate(chat),
    }];
    scheduler.submit(now, Request::new(RequestId(2), tree, rows, now))?;

    let mut events = Vec::new();
    while let Some((step, batch)) = scheduler.next_batch(now, &mut events) {
        println!(
            "step {step}: {} tokens, {} rows",
            batch.num_tokens(),
            batch.num_rows()
        );
        now = now.saturating_add(std::time::Duration::from_millis(10));
        scheduler.complete(now, step, Ok(answer(step, &batch)), &mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Token { request, token, .. } => {
                    println!("  request {request}: token {}", token.token)
                }
                Event::Finished {
                    request,
                    outcome,
                    usage,
                } => {
                    let (prompt, computed) = (usage.prompt_tokens, usage.computed_tokens);
                    println!(
                        "  request {request}: {outcome:?}, {computed} of {prompt} prompt tokens computed"
                    );
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn answer(step: StepId, batch: &ForwardBatch) -> StepOutput {
    let sampled = || {
        RowOutput::Sampled(vec![SampledToken {
            token: 42,
            logprob: None,
            top: Vec::new(),
        }])
    };
    let rows = |part: &OneShotBatch| {
        let one = |head: &OutputHead| match head {
            OutputHead::Classify => RowOutput::Classes(vec![0.2, 0.8]),
            _ => sampled(),
        };
        part.rows.iter().map(|row| one(&row.head)).collect()
    };
    let (oneshot, prefill, decode) = batch.parts();
    let decode = decode.rows.iter().map(|_| sampled()).collect();
    StepOutput {
        step,
        oneshot: rows(oneshot),
        prefill: rows(prefill),
        decode,
    }
}
