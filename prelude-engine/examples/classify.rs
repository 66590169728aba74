//! Scores the next token of a prompt without HTTP: a checkpoint, an executor, an engine.
//!
//! ```sh
//! cargo run -p prelude-engine --example classify -- prelude-server/demo/demo-lm 660 319 281
//! ```
#![expect(clippy::print_stdout, reason = "an example")]

use std::{path::PathBuf, sync::Arc};

use prelude_core::{Head, Normalise, PromptTree, RowOutput, RowSpec, TokenId};
use prelude_engine::{CollectedRow, EngineConfig, RequestSpec, ScheduledEngine};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuExecutor};
use prelude_models::Checkpoint;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let folder = PathBuf::from(
        args.next()
            .ok_or("usage: classify MODEL_FOLDER TOKEN_ID...")?,
    );
    let prompt = args
        .map(|a| a.parse())
        .collect::<Result<Vec<TokenId>, _>>()?;

    // The executor computes, on a device.
    let checkpoint = Checkpoint::open(&folder)?;
    let pool = Arc::new(ComputePool::for_machine());
    let executor = CpuExecutor::new(&checkpoint, CpuConfig::default(), pool)?;

    // The engine's thread runs the scheduler, which decides.
    let engine = ScheduledEngine::spawn("example", EngineConfig::default(), Box::new(executor))?;

    // Two prompts that differ in their last token; what they share is computed once.
    let mut other = prompt.clone();
    if let Some(last) = other.last_mut() {
        *last ^= 1;
    }
    let (tree, ends) = PromptTree::from_prompts(&[prompt, other])?;
    let labels: Arc<[TokenId]> = Arc::from([1, 2, 3]);
    let row = |node| {
        let labels = Arc::clone(&labels);
        RowSpec {
            node,
            head: Head::LabelScores {
                labels,
                normalise: Normalise::OverVocab,
            },
        }
    };
    let rows = ends.into_iter().map(row).collect();

    let answer = engine
        .handle()
        .submit(RequestSpec::new(tree, rows))?
        .blocking_collect()?;
    for row in &answer.rows {
        if let CollectedRow::Output(RowOutput::LabelScores(scores)) = row {
            let lse = scores.log_sum_exp.unwrap_or_default();
            let probabilities: Vec<f32> = scores.logits.iter().map(|l| (l - lse).exp()).collect();
            println!("p(next token is 1, 2, 3) = {probabilities:?}");
        }
    }
    let usage = answer.usage;
    println!(
        "{} prompt tokens, {} computed",
        usage.prompt_tokens, usage.computed_tokens
    );
    Ok(())
}
