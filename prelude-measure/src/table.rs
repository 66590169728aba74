//! Tables for people: aligned text and Markdown.

use serde_json::Value;

/// A table. Cells hold text; [`number`] writes figures alike everywhere.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Titles, and true for columns that are aligned to the right.
    columns: Vec<(String, bool)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table of columns with the given titles. A title that begins with `>` is of a column
    /// aligned to the right, as figures are.
    #[must_use]
    pub fn new<S: AsRef<str>>(titles: impl IntoIterator<Item = S>) -> Self {
        let column = |title: S| match title.as_ref().strip_prefix('>') {
            Some(title) => (title.to_owned(), true),
            None => (title.as_ref().to_owned(), false),
        };
        Self {
            columns: titles.into_iter().map(column).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Cells that are left out at its end are empty.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Returns the number of rows.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns true if there is no row.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the table with aligned columns, two spaces apart; without titles if all are empty.
    #[must_use]
    pub fn text(&self) -> String {
        let widths = self.widths();
        let titles: Vec<String> = self.titles().map(str::to_owned).collect();
        let has_titles = titles.iter().any(|title| !title.is_empty());
        let lines = has_titles.then_some(&titles).into_iter().chain(&self.rows);
        lines
            .map(|cells| {
                let cells = self.aligned(cells, &widths);
                format!("{}\n", cells.join("  ").trim_end())
            })
            .collect()
    }

    /// Returns the table as Markdown, whose source is aligned too.
    #[must_use]
    pub fn markdown(&self) -> String {
        let escape = |cell: &str| cell.replace('|', "\\|");
        let escaped = Self {
            columns: { self.columns.iter() }
                .map(|(title, right)| (escape(title), *right))
                .collect(),
            rows: { self.rows.iter() }
                .map(|row| row.iter().map(|cell| escape(cell)).collect())
                .collect(),
        };
        let widths: Vec<usize> = escaped.widths().into_iter().map(|w| w.max(3)).collect();
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let titles: Vec<String> = escaped.titles().map(str::to_owned).collect();
        let rules: Vec<String> = { escaped.columns.iter().zip(&widths) }
            .map(|((_, right), width)| {
                let dashes = "-".repeat(width - usize::from(*right));
                if *right { dashes + ":" } else { dashes }
            })
            .collect();
        let mut text = line(&escaped.aligned(&titles, &widths)) + &line(&rules);
        for row in &escaped.rows {
            text += &line(&escaped.aligned(row, &widths));
        }
        text
    }

    /// Returns an object for each row, whose fields have the titles of the columns. Cells that are
    /// numbers are numbers.
    #[must_use]
    pub fn json(&self) -> Value {
        let value = |cell: &String| match cell.parse::<f64>() {
            Ok(number) if number.is_finite() => Value::from(number),
            _ => Value::from(cell.as_str()),
        };
        let object = |row: &Vec<String>| {
            let fields = self.titles().map(str::to_owned).zip(row.iter().map(value));
            Value::Object(fields.collect())
        };
        self.rows.iter().map(object).collect()
    }

    fn titles(&self) -> impl Iterator<Item = &str> {
        self.columns.iter().map(|(title, _)| title.as_str())
    }

    fn widths(&self) -> Vec<usize> {
        let width = |(at, title): (usize, &str)| {
            let cells = self.rows.iter().map(|row| row[at].chars().count());
            cells.chain([title.chars().count()]).max().unwrap_or(0)
        };
        self.titles().enumerate().map(width).collect()
    }

    fn aligned(&self, cells: &[String], widths: &[usize]) -> Vec<String> {
        let columns = self.columns.iter().zip(widths);
        let aligned = cells.iter().zip(columns);
        aligned
            .map(|(cell, ((_, right), &width))| match right {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            })
            .collect()
    }
}

/// Writes a number with three to four digits that count.
#[must_use]
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude == 0.0 {
        "0".to_owned()
    } else if !(1e-3..1e6).contains(&magnitude) {
        format!("{value:.2e}")
    } else if magnitude >= 1000.0 {
        format!("{value:.0}")
    } else if magnitude >= 100.0 {
        format!("{value:.1}")
    } else if magnitude >= 1.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Table {
        let mut table = Table::new(["case", ">µs", "note"]);
        table.row(["short", "1", "a|b"]);
        table.row(["a longer é name", "1234.5"]);
        table
    }

    #[test]
    fn text_is_aligned() {
        let expected = "case                 µs  note\n\
                        short                 1  a|b\n\
                        a longer é name  1234.5\n";
        assert_eq!(example().text(), expected);
    }

    #[test]
    fn markdown_is_aligned_and_escaped() {
        let expected = "| case            |     µs | note |\n\
                        | --------------- | -----: | ---- |\n\
                        | short           |      1 | a\\|b |\n\
                        | a longer é name | 1234.5 |      |\n";
        assert_eq!(example().markdown(), expected);
    }

    #[test]
    fn json_has_an_object_for_each_row() {
        let json = example().json();
        assert_eq!(json[0]["µs"], 1.0);
        assert_eq!(json[0]["note"], "a|b");
        assert_eq!(json[1]["note"], "");
    }

    #[test]
    fn titles_may_be_left_out() {
        let mut table = Table::new(["", ">"]);
        table.row(["a", "12"]);
        table.row(["bc", "3"]);
        assert_eq!(
            (table.text().as_str(), table.len()),
            ("a   12\nbc   3\n", 2)
        );
        assert!(!table.is_empty());
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
}
