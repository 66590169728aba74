//! How much worse than the best of its rivals a value of an axis is, over many settings.

use std::collections::BTreeMap;

use super::{claim::number, page::Table};

/// A figure of one setting for each value of an axis: of each policy, say.
pub(super) struct Regret {
    /// The figure's name.
    pub(super) figure: String,
    /// The values' names, in their order, and their figures.
    pub(super) of: Vec<(String, f64)>,
}

/// A value that is at most so many times the best counts as the best.
const AS_GOOD: f64 = 1.02;

/// Returns a table with a row for each value of the axis: of each figure, in times of the best value
/// in the same setting, the geometric mean over all settings, the worst, and in how many settings it
/// was the best.
pub(super) fn table(all: &[&Regret]) -> Table {
    let mut head = vec!["policy".to_owned()];
    let mut figures: Vec<&str> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    let mut ratios: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
    for regret in all {
        if !figures.contains(&&*regret.figure) {
            figures.push(&regret.figure);
        }
        let best = { regret.of.iter() }.map(|&(_, value)| value);
        let best = best.fold(f64::INFINITY, f64::min);
        for (name, value) in &regret.of {
            if !names.contains(&&**name) {
                names.push(name);
            }
            let ratios = ratios.entry((name, &regret.figure)).or_default();
            ratios.push(value / best);
        }
    }
    for figure in &figures {
        head.extend(["mean", "worst", "best in"].map(|what| format!("{figure}: {what}")));
    }
    let row = |name: &&str| {
        let mut row = vec![(*name).to_owned()];
        for figure in &figures {
            let ratios = &ratios[&(*name, *figure)];
            let worst = ratios.iter().copied().fold(0.0, f64::max);
            let best = ratios.iter().filter(|&&ratio| ratio <= AS_GOOD).count();
            let logs = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>();
            let mean = (logs / ratios.len() as f64).exp();
            row.extend([
                number(mean),
                number(worst),
                format!("{best} of {}", ratios.len()),
            ]);
        }
        row
    };
    Table {
        caption: "In times of the best policy of each setting:".to_owned(),
        rows: names.iter().map(row).collect(),
        head,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_compared_with_the_best_of_their_setting() {
        let regret = |a, b| Regret {
            figure: "mean".to_owned(),
            of: vec![("a".to_owned(), a), ("b".to_owned(), b)],
        };
        let (first, second) = (regret(1.0, 4.0), regret(2.02, 2.0));
        let table = table(&[&first, &second]);
        assert_eq!(
            table.head[1..],
            ["mean: mean", "mean: worst", "mean: best in"]
        );
        let expected = [["a", "1.00", "1.01", "2 of 2"], ["b", "2", "4", "1 of 2"]];
        assert_eq!(table.rows, expected);
    }
}
