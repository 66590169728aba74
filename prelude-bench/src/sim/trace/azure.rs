//! Azure's traces of 2023 (Patel et al., Splitwise, ISCA 2024): wall-clock times and lengths.
//!
//! They say nothing of what prompts share, so prompts share nothing.

use anyhow::{Context as _, ensure};
use jiff::civil::DateTime;
use prelude_core::Timestamp;

use super::{Arrivals, Lines};
use crate::sim::{Arrival, Prompt, Run};

const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens";

pub(super) fn arrivals(lines: &mut Lines<'_>) -> Arrivals {
    if let Some(header) = lines.next()? {
        lines.parse(&header, |header| {
            ensure!(header.trim() == HEADER, "the first line must be {HEADER}");
            Ok(())
        })?;
    }
    let mut first = None;
    let mut arrivals: Vec<Arrival> = Vec::new();
    while let Some(line) = lines.next()? {
        let number = arrivals.len() as u32;
        let (time, prompt, output) = lines.parse(&line, row)?;
        let since = time.duration_since(*first.get_or_insert(time));
        let at = lines.parse(&line, |_| {
            let ns = u64::try_from(since.as_nanos());
            ns.context("the time is before the first request's")
        })?;
        arrivals.push(Arrival {
            at: Timestamp::from_nanos(at),
            prompt: Prompt::new([Run {
                stream: u64::from(number),
                start: 0,
                len: prompt,
            }]),
            output_tokens: output,
            key: number,
            user: number,
            root: number,
        });
    }
    Ok(arrivals)
}

/// Reads a row's time, prompt tokens and generated tokens.
fn row(line: &str) -> anyhow::Result<(DateTime, u32, u32)> {
    let fields: Vec<&str> = line.trim().split(',').collect();
    let [time, prompt, output] = fields[..] else {
        anyhow::bail!("three fields are wanted, not {}", fields.len());
    };
    let time: DateTime = time.parse().with_context(|| format!("time {time:?}"))?;
    let count = |what: &str, text: &str| -> anyhow::Result<u32> {
        let count: u32 = text.parse().with_context(|| format!("{what} {text:?}"))?;
        ensure!(count > 0, "{what} must be at least 1");
        Ok(count)
    };
    let prompt = count("ContextTokens", prompt)?;
    Ok((time, prompt, count("GeneratedTokens", output)?))
}

#[cfg(test)]
mod tests {
    use super::{super::tests::*, *};

    #[test]
    fn rows_become_requests_that_share_nothing() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n\
                    2023-11-16 23:59:59.9799600,4808,10\r\n\
                    2023-11-17 00:00:00.0319600,3180,8\r\n";
        let arrivals = from("a.csv", text, arrivals).unwrap();
        let seen: Vec<_> = arrivals
            .iter()
            .map(|a| (a.at.as_nanos(), a.prompt.len(), a.output_tokens))
            .collect();
        assert_eq!(seen, [(0, 4808, 10), (52_000_000, 3180, 8)]);
        assert_eq!(arrivals[0].prompt.shared_with(&arrivals[1].prompt), 0);
    }

    #[test]
    fn errors_name_file_and_line() {
        let check = |row: &str, expected: &str| {
            let text = format!("{HEADER}\n2023-11-16 18:17:03.5,48,10\n{row}\n");
            let error = error("a.csv", &text, arrivals);
            assert!(error.starts_with(expected), "{error}");
        };
        check("2023", "a.csv, line 3: three fields are wanted, not 1");
        check("yesterday,1,1", "a.csv, line 3: time \"yesterday\"");
        check(
            "2023-11-16 18:17:04,many,1",
            "a.csv, line 3: ContextTokens \"many\"",
        );
        check(
            "2023-11-16 18:17:04,5,0",
            "a.csv, line 3: GeneratedTokens must be at least 1",
        );
        check(
            "2023-11-16 18:17:02,5,5",
            "a.csv, line 3: the time is before",
        );
        let header = error("a.csv", "a,b\n", arrivals);
        assert!(header.starts_with("a.csv, line 1: the first line must be"));
    }
}
