//! Three prompts that begin alike as one request of an engine, and what is computed of them.
//!
//! `cargo run -p prelude-core --example one_request`
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::sync::Arc;

use prelude_core::{Head, Normalise, PromptTree, Request, RequestId, RowSpec, Timestamp, TokenId};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A document of 500 tokens, and a question of 10 about it.
    let prompt = |question: TokenId| -> Vec<TokenId> { (0..500).chain([question; 10]).collect() };
    let (tree, ends) = PromptTree::from_prompts(&[prompt(600), prompt(601), prompt(602)])?;
    let labels: Arc<[TokenId]> = Arc::from([7, 8]);
    let row = |node| RowSpec {
        node,
        head: Head::LabelScores {
            labels: Arc::clone(&labels),
            normalise: Normalise::OverLabels,
        },
    };
    let computed = tree.distinct_tokens();
    let rows = ends.into_iter().map(row).collect();
    let request = Request::new(RequestId(1), tree, rows, Timestamp::ZERO);
    // A model with a context of 4,096 tokens and a vocabulary of 32,000.
    request.validate(4_096, 32_000)?;
    println!(
        "{:?}: {computed} of 1530 tokens are computed",
        request.class()
    );
    assert_eq!(computed, 530);
    Ok(())
}
