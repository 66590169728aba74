//! `fasttoken check`

use crate::text_sources::Texts;
use crate::{Outcome, TokenizerFile};
use clap::Args;

/// Compare with the reference crate on your own texts.
///
/// Encodes each text with this crate and with `tokenizers` 0.23, and compares ids, byte offsets
/// and decoded text. Shows the first difference in its context and ends with exit code 3,
/// or reports how much was compared.
///
/// Needs a build with the reference: cargo install fasttoken --features reference
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[command(flatten)]
    tokenizer: TokenizerFile,
    #[command(flatten)]
    texts: Texts,
    /// Cut files into texts of about this many bytes, at ends of lines where possible.
    #[arg(
        short,
        long,
        value_name = "BYTES",
        default_value_t = 16_384,
        conflicts_with = "lines"
    )]
    document_bytes: usize,
    /// Compare with the special tokens of the file's template.
    #[arg(short, long)]
    special: bool,
}

#[cfg(not(feature = "reference"))]
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let Arguments { tokenizer, .. } = arguments;
    anyhow::bail!(
        "cannot check {}: this program was built without the reference crate; \
         build it with `cargo install fasttoken --features reference`",
        tokenizer.path().display()
    );
}

#[cfg(feature = "reference")]
pub(crate) use compare::run;

#[cfg(feature = "reference")]
mod compare {
    use super::{Arguments, Outcome};
    use crate::progress;
    use crate::text_sources::{Source, documents};
    use anyhow::anyhow;
    use fasttoken::Tokenizer;
    use std::io::Write as _;
    use tokenizers::Tokenizer as Reference;

    /// Ids shown before and after the first that differs.
    const IDS_AROUND: usize = 4;
    /// Bytes of text shown before the place of a difference.
    const BYTES_BEFORE: usize = 60;

    pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
        let ours = arguments.tokenizer.load()?;
        let path = arguments.tokenizer.path();
        let mut reference = Reference::from_file(&path)
            .map_err(|problem| anyhow!("the reference cannot use {}: {problem}", path.display()))?;
        // The ids of `encode` are neither truncated nor padded.
        reference
            .with_truncation(None)
            .map_err(|problem| anyhow!("{problem}"))?
            .with_padding(None);
        let sources = arguments.texts.read()?;
        let bytes = sources.iter().map(|source| source.text.len() as u64).sum();
        let bar = progress::bytes(bytes, "comparing");
        let mut out = std::io::stdout().lock();
        let (mut texts, mut ids) = (0u64, 0u64);
        for source in &sources {
            for text in parts(arguments, source) {
                match compare(&ours, &reference, text, arguments.special)? {
                    Ok(count) => ids += count as u64,
                    Err(difference) => {
                        bar.finish_and_clear();
                        let at = text.as_ptr().addr() - source.text.as_ptr().addr();
                        writeln!(out, "{}, text at byte {at}: {difference}", source.name)?;
                        return Ok(Outcome::Different);
                    }
                }
                texts += 1;
                bar.inc(text.len() as u64);
            }
        }
        bar.finish_and_clear();
        writeln!(
            out,
            "equal: {texts} texts, {bytes} bytes, {ids} ids; ids, offsets, decoded text"
        )?;
        Ok(Outcome::Done)
    }

    fn parts<'s>(arguments: &Arguments, source: &'s Source) -> Vec<&'s str> {
        let whole = arguments.texts.of(source);
        if whole.len() == 1 {
            documents(whole[0], arguments.document_bytes.max(1))
        } else {
            whole
        }
    }

    /// Returns the number of ids, or the first difference.
    fn compare(
        ours: &Tokenizer,
        reference: &Reference,
        text: &str,
        special: bool,
    ) -> anyhow::Result<Result<usize, String>> {
        let theirs = reference
            .encode(text, special)
            .map_err(|e| anyhow!("{e}"))?;
        let encoding = ours.encode_with_offsets(text, special);
        let fast = ours.encode(text, special);
        let (ids, offsets) = (theirs.get_ids(), theirs.get_offsets());
        for (name, found) in [("ids", &fast), ("ids with offsets", &encoding.ids)] {
            if found != ids {
                let n = first_difference(found, ids);
                return Ok(Err(describe(ours, text, name, n, found, ids, offsets)));
            }
        }
        if encoding.offsets != offsets {
            let n = first_difference(&encoding.offsets, offsets);
            let (found, due) = (encoding.offsets.get(n), offsets.get(n));
            let difference = describe(ours, text, "offsets", n, &encoding.ids, ids, offsets);
            return Ok(Err(format!(
                "{difference}\n  offsets here {found:?}, reference {due:?}"
            )));
        }
        let decoded = reference.decode(ids, false).map_err(|e| anyhow!("{e}"))?;
        let found = ours.decode(ids, false);
        if found != decoded {
            let n = first_difference(found.as_bytes(), decoded.as_bytes());
            return Ok(Err(format!(
                "decoded text differs at byte {n}\n  here      {:?}\n  reference {:?}",
                excerpt(&found, n),
                excerpt(&decoded, n)
            )));
        }
        Ok(Ok(ids.len()))
    }

    fn first_difference<T: PartialEq>(a: &[T], b: &[T]) -> usize {
        let same = a.iter().zip(b).take_while(|(a, b)| a == b);
        same.count()
    }

    fn describe(
        tokenizer: &Tokenizer,
        text: &str,
        name: &str,
        n: usize,
        found: &[u32],
        due: &[u32],
        offsets: &[(usize, usize)],
    ) -> String {
        let around = |ids: &[u32]| {
            let range =
                n.saturating_sub(IDS_AROUND).min(ids.len())..(n + IDS_AROUND).min(ids.len());
            let token = |id: &u32| {
                let token = tokenizer.id_to_token(*id).unwrap_or_default();
                format!("{id} {token:?}")
            };
            ids[range].iter().map(token).collect::<Vec<_>>().join(", ")
        };
        let at = offsets.get(n).map_or(text.len(), |(start, _)| *start);
        format!(
            "{name} differ at number {n}, byte {at}\n  text      {:?}\n  here      {}\n  reference {}",
            excerpt(text, at),
            around(found),
            around(due)
        )
    }

    /// Returns some text before and after byte `at`.
    fn excerpt(text: &str, at: usize) -> &str {
        let near = |mut at: usize| {
            at = at.min(text.len());
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            at
        };
        &text[near(at.saturating_sub(BYTES_BEFORE))..near(at + BYTES_BEFORE)]
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizer.json");

        #[test]
        fn differences_are_found_and_shown() {
            let json = std::fs::read_to_string(DEMO).unwrap();
            let ours = Tokenizer::from_bytes(json.as_bytes()).unwrap();
            let same = Reference::from_bytes(&json).unwrap();
            let text = "Where is my card?";
            let ids = ours.encode(text, false).len();
            assert_eq!(compare(&ours, &same, text, false).unwrap(), Ok(ids));
            // Another split pattern gives other ids.
            let other = json.replacen(r"|\\p{N}|", r"|[a-z]|\\p{N}|", 1);
            let other = other.replacen(r"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", r"\\p{L}", 1);
            let other = Reference::from_bytes(&other).unwrap();
            let difference = compare(&ours, &other, text, false).unwrap().unwrap_err();
            assert!(difference.contains("ids differ at number"), "{difference}");
            assert!(difference.contains("Where is my card?"), "{difference}");
        }

        #[test]
        fn excerpts_are_whole_characters() {
            let text = "漢".repeat(100);
            for at in 0..=text.len() {
                assert!(excerpt(&text, at).len() <= 2 * BYTES_BEFORE + 2);
            }
        }
    }
}
