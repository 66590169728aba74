//! `fasttoken encode`

use crate::text_sources::Texts;
use crate::{Outcome, TokenizerFile, progress};
use clap::Args;
use fasttoken::{EncodeOptions, Encoding, Offsets, Tokenizer, Truncation};
use serde_json::json;
use std::io::{BufWriter, Write};

/// Encode text to ids.
///
/// Prints one line of ids per text: per file, or with --lines per line of each file.
/// With --json, one object per text with ids, tokens, offsets and masks.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    tokenizer: TokenizerFile,
    #[command(flatten)]
    texts: Texts,
    /// Put the special tokens of the file's template around each text.
    #[arg(short, long)]
    special: bool,
    /// Do not recognise added tokens: for untrusted text, which must not contain control tokens.
    #[arg(short, long, conflicts_with_all = ["special", "json", "max_tokens"])]
    plain: bool,
    /// Keep at most this many ids of each text, with special tokens.
    #[arg(short, long, value_name = "N")]
    max_tokens: Option<usize>,
    /// Print JSON objects, one per line.
    #[arg(short, long)]
    json: bool,
    /// Count offsets in characters instead of bytes; with --json.
    #[arg(short, long, requires = "json")]
    chars: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let tokenizer = arguments.tokenizer.load()?;
    let sources = arguments.texts.read()?;
    let bytes = sources.iter().map(|source| source.text.len() as u64).sum();
    let bar = progress::bytes(bytes, "encoding");
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut ids = Vec::new();
    for source in &sources {
        for text in arguments.texts.of(source) {
            if arguments.json {
                let options = options(arguments);
                let encoding = tokenizer.encode_with(text, &options)?;
                print_json(&mut out, &tokenizer, &encoding)?;
            } else {
                ids.clear();
                encode(&tokenizer, arguments, text, &mut ids)?;
                print_ids(&mut out, &ids)?;
            }
            bar.inc(text.len() as u64);
        }
    }
    out.flush()?;
    bar.finish_and_clear();
    Ok(Outcome::Done)
}

fn options(arguments: &Arguments) -> EncodeOptions {
    EncodeOptions::new()
        .add_special_tokens(arguments.special)
        .truncation(arguments.max_tokens.map(Truncation::new))
        .overflowing(false)
        .offsets(if arguments.chars {
            Offsets::Chars
        } else {
            Offsets::Bytes
        })
}

fn encode(
    tokenizer: &Tokenizer,
    arguments: &Arguments,
    text: &str,
    ids: &mut Vec<u32>,
) -> anyhow::Result<()> {
    if arguments.plain {
        tokenizer.encode_plain_into(text, ids);
    } else if arguments.max_tokens.is_some() {
        let options = options(arguments).offsets(Offsets::None);
        ids.extend(tokenizer.encode_with(text, &options)?.ids);
    } else {
        tokenizer.encode_into(text, arguments.special, ids);
    }
    Ok(())
}

fn print_ids(out: &mut impl Write, ids: &[u32]) -> std::io::Result<()> {
    for (n, id) in ids.iter().enumerate() {
        let separator = if n == 0 { "" } else { " " };
        write!(out, "{separator}{id}")?;
    }
    writeln!(out)
}

fn print_json(
    out: &mut impl Write,
    tokenizer: &Tokenizer,
    encoding: &Encoding,
) -> anyhow::Result<()> {
    let token = |id: &u32| tokenizer.id_to_token(*id);
    let object = json!({
        "ids": encoding.ids,
        "tokens": encoding.ids.iter().map(token).collect::<Vec<_>>(),
        "offsets": encoding.offsets,
        "word_ids": encoding.word_ids,
        "special_tokens_mask": encoding.special_tokens_mask,
    });
    writeln!(out, "{object}")?;
    Ok(())
}
