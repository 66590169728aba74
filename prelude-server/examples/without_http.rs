//! fasttoken and an engine, and no server: a judge for a program of one's own.
//!
//! ```sh
//! cargo run -p prelude-server --example without_http -- prelude-server/demo/demo-lm
//! ```
#![expect(clippy::print_stdout, reason = "an example")]

use std::{path::PathBuf, sync::Arc};

use fasttoken::Tokenizer;
use prelude_core::{Head, Normalise, PromptTree, RowOutput, RowSpec, TokenId};
use prelude_engine::{CollectedRow, EngineConfig, RequestSpec, ScheduledEngine};
use prelude_exec_cpu::{ComputePool, CpuConfig, CpuExecutor};
use prelude_models::Checkpoint;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1);
    let folder = PathBuf::from(folder.ok_or("usage: without_http MODEL_FOLDER")?);
    let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
    let checkpoint = Checkpoint::open(&folder)?;
    let pool = Arc::new(ComputePool::for_machine());
    let executor = CpuExecutor::new(&checkpoint, CpuConfig::default(), pool)?;
    let engine = ScheduledEngine::spawn("judge", EngineConfig::default(), Box::new(executor))?;

    // One message, three claims about it. The message is computed once.
    let claims = ["card_arrival", "exchange_rate", "terminate_account"];
    let prompts: Vec<Vec<TokenId>> = claims
        .iter()
        .map(|claim| {
            let prompt = format!(
                "<|im_start|>user\nWhere is my card?\nIs the intent {claim}?<|im_end|>\n\
                 <|im_start|>assistant\n<think>\n\n</think>\n\n"
            );
            tokenizer.encode(&prompt, false)
        })
        .collect();
    let label = |text: &str| match tokenizer.encode(text, false)[..] {
        [id] => Ok(id),
        _ => Err(format!("{text:?} is not one token")),
    };
    let labels: Arc<[TokenId]> = Arc::from([label("yes")?, label("no")?]);
    let (tree, ends) = PromptTree::from_prompts(&prompts)?;
    let row = |node| RowSpec {
        node,
        head: Head::LabelScores {
            labels: Arc::clone(&labels),
            normalise: Normalise::OverLabels,
        },
    };
    let request = RequestSpec::new(tree, ends.into_iter().map(row).collect());
    let answer = engine.handle().submit(request)?.blocking_collect()?;

    let mut likely = Vec::new();
    for (claim, row) in claims.iter().zip(&answer.rows) {
        let CollectedRow::Output(RowOutput::LabelScores(scores)) = row else {
            return Err("the engine answered something else".into());
        };
        let probability = 1.0 / (1.0 + (scores.logits[1] - scores.logits[0]).exp());
        println!("{claim}: {probability:.3}");
        likely.push(probability > 0.5);
    }
    let usage = answer.usage;
    println!(
        "{} prompt tokens, {} computed",
        usage.prompt_tokens, usage.computed_tokens
    );
    assert_eq!(likely, [true, false, false]);
    assert!(usage.computed_tokens < usage.prompt_tokens);
    Ok(())
}
