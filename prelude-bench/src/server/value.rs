//! Arithmetic over the values of a run, by which the data of a study says rates, bounds and rows.

use anyhow::{Context as _, Result, bail, ensure};

/// Computes `text`: numbers, names that `value` knows, `+ - * /` and brackets.
///
/// # Errors
/// If it is no such arithmetic, or has a name without a value.
pub(super) fn compute(text: &str, value: &dyn Fn(&str) -> Option<f64>) -> Result<f64> {
    let mut reader = Reader { rest: text, value };
    let result = reader.sum();
    let result = result.with_context(|| format!("cannot compute `{text}`"))?;
    ensure!(reader.rest.is_empty(), "`{text}` ends with what is no term");
    Ok(result)
}

/// Returns the names in `text`.
#[cfg(test)]
pub(super) fn names(text: &str) -> Vec<String> {
    let seen = std::cell::RefCell::new(Vec::new());
    let value = |name: &str| {
        seen.borrow_mut().push(name.to_owned());
        Some(1.0)
    };
    compute(text, &value).unwrap();
    seen.into_inner()
}

struct Reader<'a> {
    rest: &'a str,
    value: &'a dyn Fn(&str) -> Option<f64>,
}

impl Reader<'_> {
    /// Takes one of the signs if it comes next.
    fn sign(&mut self, signs: [char; 2]) -> Option<char> {
        self.rest = self.rest.trim_start();
        let next = self.rest.chars().next().filter(|c| signs.contains(c))?;
        self.rest = self.rest[1..].trim_start();
        Some(next)
    }

    fn sum(&mut self) -> Result<f64> {
        let mut sum = self.product()?;
        while let Some(sign) = self.sign(['+', '-']) {
            let term = self.product()?;
            sum += if sign == '+' { term } else { -term };
        }
        Ok(sum)
    }

    fn product(&mut self) -> Result<f64> {
        let mut product = self.term()?;
        while let Some(sign) = self.sign(['*', '/']) {
            let term = self.term()?;
            product *= if sign == '*' { term } else { 1.0 / term };
        }
        Ok(product)
    }

    fn term(&mut self) -> Result<f64> {
        if self.sign(['(', '(']).is_some() {
            let sum = self.sum()?;
            ensure!(self.sign([')', ')']).is_some(), "a bracket is not closed");
            return Ok(sum);
        }
        let is_part = |c: char| c.is_ascii_alphanumeric() || "._".contains(c);
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word.parse() {
            Ok(number) => Ok(number),
            Err(_) => match (self.value)(word) {
                Some(value) => Ok(value),
                None => bail!("`{word}` has no value"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_bind_closer_than_sums() {
        let value = |name: &str| (name == "a.p99").then_some(3.0);
        for (text, expected) in [
            ("1 + 2 * a.p99 - 4 / 2", 5.0),
            ("(1 + 2) * (a.p99 - 1)", 6.0),
            ("8 / 2 / 2", 2.0),
        ] {
            assert_eq!(compute(text, &value).unwrap(), expected, "{text}");
        }
        for wrong in ["", "b", "(1", "1 2", "1 +"] {
            assert!(compute(wrong, &value).is_err(), "{wrong}");
        }
    }
}
