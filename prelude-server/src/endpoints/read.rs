//! Rows that read prompts and generate nothing: the way of classification, scores, embeddings and
//! decisions through the engine.

use prelude_core::{Head, NodeIdx, PromptTree, RowOutput, RowSpec, TokenId, TreeError};
use prelude_engine::{CollectedRow, Usage};
use prelude_text::label_trie::RowScores;

use super::{
    input::check_length,
    submit::{Common, collect, submit},
};
use crate::{endpoint::Call, error::ApiError, served_model::ServedModel};

/// Computes `rows`, none of which generates, and returns their outputs in order. `prompt_tokens`
/// is what the caller is told: each whole prompt once, whatever is shared and however many rows
/// read it.
///
/// # Errors
/// Whatever admission, scheduler or engine refuse or fail with.
pub(crate) async fn read_rows(
    call: &Call,
    model: &ServedModel,
    common: &Common<'_>,
    tree: PromptTree,
    rows: Vec<RowSpec>,
    prompt_tokens: u64,
) -> Result<(Vec<RowOutput>, Usage), ApiError> {
    debug_assert!(!rows.iter().any(|r| matches!(r.head, Head::Generate(_))));
    call.reservation.set_rows(rows.len() as u64)?;
    call.reservation.set_tokens(tree.distinct_tokens() as u64)?;
    let answer = submit(call, model, common, tree, rows, prompt_tokens).await?;
    let collected = collect(call, answer).await?;
    let output = |row| match row {
        CollectedRow::Output(output) => Ok(output),
        CollectedRow::Generated(_) => Err(mismatch(call)),
    };
    let outputs = collected.rows.into_iter().map(output);
    Ok((outputs.collect::<Result<_, _>>()?, collected.usage))
}

/// The engine answered with another kind of output than was asked for: a bug.
pub(crate) fn mismatch(call: &Call) -> ApiError {
    ApiError::internal(&call.request_id)
}

/// The scores of the rows of label tries.
///
/// # Errors
/// 500 if one of them is something else.
pub(crate) fn trie_scores(
    call: &Call,
    outputs: Vec<RowOutput>,
) -> Result<Vec<RowScores>, ApiError> {
    let score = |output| match output {
        RowOutput::LabelScores(scores) => Ok(RowScores::Followers(scores)),
        RowOutput::Logprobs { entries, .. } => {
            let log = entries.iter().map(|entry| f64::from(entry.logprob));
            Ok(RowScores::Run(log.collect()))
        }
        _ => Err(mismatch(call)),
    };
    outputs.into_iter().map(score).collect()
}

/// Prompts as a tree, the node at which each ends, and the sum of their lengths. Each must fit
/// the model's context with `extra` tokens behind it.
///
/// # Errors
/// 400 naming `field`.
pub(crate) fn tree(
    model: &ServedModel,
    field: &'static str,
    prompts: &[Vec<TokenId>],
) -> Result<(PromptTree, Vec<NodeIdx>, u64), ApiError> {
    for prompt in prompts {
        check_length(field, prompt.len(), 0, model)?;
    }
    let total = prompts.iter().map(|p| p.len() as u64).sum();
    let (tree, ends) = PromptTree::from_prompts(prompts).map_err(|e| of_tree(field, &e))?;
    Ok((tree, ends, total))
}

/// A prompt that no tree can hold.
pub(crate) fn of_tree(field: &'static str, error: &TreeError) -> ApiError {
    let must = match error {
        TreeError::EmptyNode { .. } => "not be empty: it has no tokens",
        _ => "have fewer than 2^32 tokens",
    };
    ApiError::invalid_value(field, must)
}
