//! Prints what a checkpoint is, and whether all its weights are numbers.
//!
//! ```sh
//! cargo run -p prelude-models --example inspect -- prelude-server/demo/demo-classifier
//! ```
#![expect(
    clippy::print_stdout,
    reason = "a command-line example prints its result"
)]

use std::{path::PathBuf, time::Instant};

use prelude_models::{Checkpoint, Error, ModelKind};

fn main() -> Result<(), Error> {
    let folder = std::env::args_os().nth(1).map_or_else(
        || {
            concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../prelude-server/demo/demo-lm"
            )
            .into()
        },
        PathBuf::from,
    );
    let checkpoint = Checkpoint::open(&folder)?;
    let config = checkpoint.config();
    println!("{}", config.architecture);
    println!(
        "{} layers, hidden {}, {} query and {} key-value heads of {}, MLP {}",
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.intermediate_size
    );
    println!(
        "vocabulary {}, context {}, end tokens {:?}",
        config.vocab_size,
        config.max_position_embeddings,
        checkpoint.generation().eos_token_ids
    );
    match checkpoint.kind() {
        ModelKind::CausalLm => println!("generates text"),
        ModelKind::SequenceClassification { labels } => println!("classifies: {labels:?}"),
        ModelKind::TokenClassification { labels } => println!("classifies tokens: {labels:?}"),
        ModelKind::Embedding { pooling, normalise } => {
            println!("embeds: pooling {pooling:?}, normalised {normalise}");
        }
    }
    let start = Instant::now();
    let mut parameters = 0;
    for name in checkpoint.names() {
        let tensor = checkpoint.read(name)?;
        let view = tensor.view();
        parameters += view.len();
        if let Some(index) = view.first_non_finite() {
            println!("{name}: element {index} is not finite");
        }
    }
    let bytes = checkpoint.weight_bytes() as f64;
    println!(
        "{parameters} parameters, {:.1} MB, checked at {:.1} GB/s",
        bytes / 1e6,
        bytes / 1e9 / start.elapsed().as_secs_f64()
    );
    Ok(())
}
