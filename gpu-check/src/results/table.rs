//! `table.txt`: a line for each result that a reader should see first, 120 at most.

use std::fmt::Write as _;

use prelude_measure::table::number;

use super::{Better, Document, Outcome, Verdict, part_names};

/// Lines of the table, its head included.
pub(crate) const LINES_MAX: usize = 120;
/// Characters of a line.
const WIDTH_MAX: usize = 180;

/// Returns a line of the report: `verdict part name value (bound, % of it) target reason`.
pub(crate) fn line(outcome: &Outcome) -> String {
    let verdict = outcome.verdict.word();
    let mut line = format!("{verdict} {:<10} {:<44}", outcome.part, outcome.name);
    let mut add = |text: std::fmt::Arguments<'_>| line.write_fmt(text).unwrap_or_default();
    if let Some(value) = outcome.value {
        add(format_args!(" {:>9} {:<8}", number(value), outcome.unit));
    }
    if let Some(bound) = outcome.bound {
        add(format_args!(" bound {}", number(bound)));
    }
    if let Some(percent) = outcome.percent {
        add(format_args!(" {percent:.0} %"));
    }
    if let Some(goal) = outcome.goal {
        let sign = match goal.better {
            Better::Lower => '≤',
            Better::Higher => '≥',
        };
        add(format_args!(" must {sign} {}", number(goal.must)));
    }
    if let Some(spread) = outcome.spread {
        add(format_args!(" ±{:.0} %", 50.0 * spread));
    }
    if !outcome.reason.is_empty() {
        let reason = outcome.reason.replace('\n', " | ");
        add(format_args!(" {reason}"));
    }
    let line = line.trim_end();
    match line.char_indices().nth(WIDTH_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

pub(crate) fn render(document: &Document) -> String {
    let mut lines = head(document);
    let mut parts: Vec<&String> = document.parts.keys().collect();
    let names = part_names();
    parts.sort_by_key(|part| names.iter().position(|name| name == part));
    let shown = |part: &str| -> Vec<&Outcome> {
        let of_part = document.results.iter().filter(|r| r.part == part);
        // Details are shown where they are bad news.
        let shown = of_part.filter(|r| !r.detail || matters(r));
        shown.collect()
    };
    let mut groups: Vec<(&String, Vec<&Outcome>, usize)> =
        parts.iter().map(|part| (*part, shown(part), 0)).collect();
    // A line behind each part for what was left out.
    let room = LINES_MAX.saturating_sub(lines.len() + groups.len());
    while groups.iter().map(|g| g.1.len()).sum::<usize>() > room {
        let Some((_, group, dropped)) = groups.iter_mut().max_by_key(|g| g.1.len()) else {
            break;
        };
        let last_dull = group.iter().rposition(|r| !matters(r));
        group.remove(last_dull.unwrap_or(group.len() - 1));
        *dropped += 1;
    }
    for (part, group, dropped) in groups {
        lines.extend(group.into_iter().map(line));
        if dropped > 0 {
            lines.push(format!("     {part:<10} {dropped} more in gpu.json"));
        }
    }
    lines.truncate(LINES_MAX);
    lines.join("\n") + "\n"
}

const fn matters(outcome: &Outcome) -> bool {
    matches!(outcome.verdict, Verdict::Miss | Verdict::Fail)
}

fn head(document: &Document) -> Vec<String> {
    let run = &document.run;
    let count = |verdict| {
        let with = document.results.iter().filter(|r| r.verdict == verdict);
        with.count()
    };
    let states: Vec<String> = document
        .parts
        .iter()
        .map(|(part, state)| format!("{part} {:?} {:.0} s", state.state, state.seconds))
        .collect();
    vec![
        format!(
            "{} on {}, driver {}, {}",
            run.target,
            run.device.as_deref().unwrap_or("no GPU"),
            run.driver.as_deref().unwrap_or("none"),
            run.date
        ),
        format!("commit {}, build {}", run.commit, run.build),
        format!(
            "{} PASS, {} MISS, {} FAIL, {} SKIP, {} notes",
            count(Verdict::Pass),
            count(Verdict::Miss),
            count(Verdict::Fail),
            count(Verdict::Skip),
            count(Verdict::Note)
        ),
        states.join(", "),
        String::new(),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::results::{Goal, PartState, Run, SCHEMA, State};

    fn document(results: Vec<Outcome>) -> Document {
        let parts: BTreeMap<String, PartState> = results
            .iter()
            .map(|r| {
                let state = PartState {
                    state: State::Done,
                    seconds: 1.0,
                    why: None,
                };
                (r.part.clone(), state)
            })
            .collect();
        Document {
            schema: SCHEMA,
            run: Run::default(),
            parts,
            results,
        }
    }

    fn outcome(part: &str, name: &str, verdict: Verdict) -> Outcome {
        Outcome {
            part: part.to_owned(),
            ..Outcome::new(name, verdict)
        }
    }

    #[test]
    fn a_line_has_value_bound_target_and_reason() {
        let mut o = outcome("gemm", "4096×1024, M 512", Verdict::Miss).because("slow\nindeed");
        o.value = Some(123.456);
        o.unit = "TFLOP/s".to_owned();
        o.bound = Some(788.0);
        o.percent = Some(15.67);
        o.goal = Some(Goal {
            must: 200.0,
            better: Better::Higher,
        });
        let text = line(&o);
        for part in [
            "MISS gemm",
            "123.5 TFLOP/s",
            "bound 788.0 16 %",
            "must ≥ 200.0",
            "slow | indeed",
        ] {
            assert!(text.contains(part), "{text}");
        }
        o.reason = "é".repeat(500);
        assert!(line(&o).chars().count() <= WIDTH_MAX + 1);
    }

    #[test]
    fn numbers_keep_what_counts() {
        let check = |value, expected: &str| assert_eq!(number(value), expected);
        check(0.0, "0");
        check(0.0001, "1.00e-4");
        check(0.1234, "0.1234");
        check(4.3049, "4.30");
        check(788.04, "788.0");
        check(151_936.0, "151936");
    }

    #[test]
    fn the_table_is_short_and_hides_no_failure() {
        let mut results = Vec::new();
        for i in 0..400 {
            let verdict = if i % 40 == 7 {
                Verdict::Fail
            } else {
                Verdict::Pass
            };
            results.push(outcome("kernels", &format!("case {i}"), verdict));
        }
        for i in 0..3 {
            results.push(outcome("env", &format!("env {i}"), Verdict::Note));
        }
        let mut detail = outcome("env", "a detail", Verdict::Note);
        detail.detail = true;
        results.push(detail);
        let text = render(&document(results));
        assert!(text.lines().count() <= LINES_MAX, "{text}");
        assert_eq!(text.matches("FAIL kernels").count(), 10, "{text}");
        assert!(
            text.contains("env 2") && !text.contains("a detail"),
            "{text}"
        );
        assert!(text.contains("more in gpu.json"), "{text}");
        // Even if everything is bad.
        let bad = (0..500).map(|i| outcome("gemm", &format!("{i}"), Verdict::Fail));
        assert!(render(&document(bad.collect())).lines().count() <= LINES_MAX);
    }
}
