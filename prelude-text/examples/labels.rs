//! Labels of several tokens behind a prompt: how many rows a model computes for them, and how its
//! scores become probabilities.
//!
//! `cargo run -p prelude-text --example labels`
#![expect(clippy::print_stdout, reason = "an example that prints")]

use prelude_core::LabelScores;
use prelude_text::label_trie::{LabelTrie, RowScores};

fn main() {
    // "card arrival", "card lost", "refund" as ids of tokens; the first two begin alike.
    let labels = [&[1, 2][..], &[1, 3], &[4]];
    let trie = LabelTrie::new(&labels).expect("three labels are few");
    println!("{} rows, {} tokens", trie.num_rows(), trie.num_tokens());

    // The logits that a model gave: of 1 and 4 behind the prompt, of 2 and 3 behind 1.
    let row = |logits: [f32; 2]| {
        RowScores::Followers(LabelScores {
            logits: logits.to_vec(),
            log_sum_exp: None,
        })
    };
    let found = trie.probabilities(&[row([2.0, 1.0]), row([0.0, 3.0])], 1.0);
    for (label, probability) in ["card arrival", "card lost", "refund"].iter().zip(&found) {
        println!("{probability:.3} {label}");
    }
    assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    assert!(found[1] > found[2] && found[2] > found[0]);
}
