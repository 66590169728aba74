//! The comparison of a paper's figure with ours.

/// A figure of a paper beside ours.
pub(super) struct Claim {
    /// The number of the table, figure or section.
    place: String,
    /// The quantity, with its unit.
    what: String,
    /// The reason for a difference, printed only where there is one.
    why: String,
    /// The range that the paper prints, or one number twice.
    printed: (f64, f64),
    ours: (f64, f64),
}

impl Claim {
    /// Compares the range of our figures with what the paper prints.
    pub(super) fn new(
        [place, what, why]: [String; 3],
        printed: (f64, f64),
        ours: impl IntoIterator<Item = f64>,
    ) -> Self {
        let ours = ours.into_iter().filter(|value| value.is_finite());
        let range = (f64::INFINITY, f64::NEG_INFINITY);
        let ours = ours.fold(range, |(low, high), value| {
            (low.min(value), high.max(value))
        });
        Self {
            place,
            what,
            why,
            printed,
            ours,
        }
    }

    /// Returns the cells of its row: place, quantity, the paper's figure, ours, and the verdict.
    pub(super) fn row(&self) -> Vec<String> {
        vec![
            self.place.clone(),
            self.what.clone(),
            span(self.printed),
            span(self.ours),
            self.verdict(),
        ]
    }

    /// Tells whether our range and the paper's, which is rounded, meet; and if not, why.
    fn verdict(&self) -> String {
        /// The part by which a printed figure may be rounded.
        const ROUNDED: f64 = 0.05;
        let differs = |word: &str| format!("{word}: {}", self.why);
        if self.ours.0 > self.printed.1 * (1.0 + ROUNDED) {
            differs("more")
        } else if self.ours.1 < self.printed.0 * (1.0 - ROUNDED) {
            differs("less")
        } else {
            "meets".to_owned()
        }
    }
}

/// Writes a range, or one number if its ends look the same.
fn span((low, high): (f64, f64)) -> String {
    let (low, high) = (number(low), number(high));
    match low == high {
        true => low,
        false => format!("{low} to {high}"),
    }
}

/// Writes a number with three significant digits, and whole ones as such.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_told_where_ranges_do_not_meet() {
        let check = |ours: &[f64], shown: &str, verdict: &str| {
            let texts = ["Figure 3", "a ratio", "it is another device"].map(str::to_owned);
            let claim = Claim::new(texts, (2.0, 10.0), ours.iter().copied());
            let expected = ["Figure 3", "a ratio", "2 to 10", shown, verdict];
            assert_eq!(claim.row(), expected);
        };
        check(&[3.0, 1.0], "1 to 3", "meets");
        check(&[1.95], "1.95", "meets");
        check(&[1.0, 1.5], "1 to 1.50", "less: it is another device");
        check(&[120.0, f64::NAN], "120", "more: it is another device");
    }
}
