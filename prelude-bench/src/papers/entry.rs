//! A table or figure of a paper as data: what is simulated, what is read off, and what the paper
//! prints. The four files beside this one hold them.
//!
//! A section has axes, and a simulation for each combination of their values; keys of a value
//! replace those of `run`. Texts may hold names of axes and keys in braces.

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use toml::{Table as Toml, Value};

use super::{
    Bench,
    claim::{Claim, number},
    page::{Section, Table},
    plot::{Axis as PlotAxis, Curve, Plot},
    regret::Regret,
    run::{Keys, Outcome},
};

/// A section of a paper's file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    /// The name in the progress bar.
    pub(super) name: String,
    title: String,
    setting: String,
    /// Texts for braces, besides axes and keys.
    #[serde(default)]
    text: Toml,
    /// Keys of all simulations ([`Keys`]). Besides, `load` multiplies `rate`, and `size` multiplies
    /// `rate` and `requests`.
    run: Toml,
    /// The `rate` at each of these values.
    #[serde(default)]
    rates: Toml,
    /// The value at which answers per second, when all requests come at once, are the `rate`.
    saturated: Option<String>,
    axes: Vec<Axis>,
    tables: Vec<TableOf>,
    #[serde(default)]
    claims: Vec<ClaimOf>,
    #[serde(default)]
    plots: Vec<PlotOf>,
    regrets: Option<Regrets>,
}

/// Figures by which each value of an axis (each policy, say) is compared with the best value, for every
/// combination of the other axes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Regrets {
    axis: String,
    figures: Vec<Measure>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Axis {
    name: String,
    /// Keys, and the value's `name`, which no other value of the section has.
    values: Vec<Toml>,
}

/// A quantity that is read off, and its name.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measure {
    text: String,
    /// A figure of [`Outcome`], or a key that is a number.
    figure: Option<String>,
    /// A text in place of a figure.
    label: Option<String>,
    /// The axis of whose values each has a column.
    each: Option<String>,
    /// Values of axes at which the figure is read.
    #[serde(default)]
    at: Vec<String>,
    /// Values at which the figure is the divisor; of several, the largest counts.
    #[serde(default)]
    over: Vec<String>,
    /// True to divide by the value before, on the last axis.
    #[serde(default)]
    over_before: bool,
    /// Values at which the figure is subtracted.
    #[serde(default)]
    minus: Vec<String>,
    /// A number added to the figure: ratios of figures that may be 0 need one.
    #[serde(default)]
    plus: f64,
    /// True for a logarithmic axis of a plot.
    #[serde(default)]
    log: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableOf {
    caption: String,
    /// The axis of whose values each has a table.
    each: Option<String>,
    /// Axes whose values have a row each.
    rows: Vec<String>,
    columns: Vec<Measure>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClaimOf {
    /// The number of the table, figure or section.
    place: String,
    /// The number that the paper prints, or both ends of a range.
    paper: Vec<f64>,
    of: Measure,
    /// Values at which it is not read.
    #[serde(default)]
    except: Vec<String>,
    /// The reason for a difference, printed only where there is one.
    why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlotOf {
    /// The axis of whose values each has a plot.
    each: Option<String>,
    /// The file's name without its ending.
    file: String,
    title: String,
    /// The name of a point's curve.
    curve: String,
    x: Measure,
    y: Measure,
    /// Values that are not plotted.
    #[serde(default)]
    except: Vec<String>,
    /// True for the share of requests answered within a time, in place of x and y.
    #[serde(default)]
    shares: bool,
}

/// Reads the sections of a paper's file. A section that is `like` an earlier one has that one's keys
/// but for its own.
///
/// # Errors
/// If the file is broken.
pub(super) fn read(text: &str) -> Result<Vec<Entry>> {
    #[derive(Deserialize)]
    struct File {
        section: Vec<Toml>,
    }
    let mut whole: Vec<Toml> = Vec::new();
    for mut section in toml::from_str::<File>(text)?.section {
        let mut all = match section.remove("like") {
            Some(like) => {
                let found = whole.iter().find(|other| other.get("name") == Some(&like));
                let found = found.with_context(|| format!("no section before is {like}"))?;
                found.clone()
            }
            None => Toml::new(),
        };
        all.extend(section);
        whole.push(all);
    }
    let entries = whole.into_iter().map(|section| Ok(section.try_into()?));
    entries.collect()
}

/// The index of a value on each axis.
type Place = Vec<usize>;

/// A simulation of a section, with its keys as they are in the file.
struct Point {
    table: Toml,
    runs: Vec<Outcome>,
}

/// The simulations of a section, in the order of [`Entry::places`].
struct Grid<'a> {
    entry: &'a Entry,
    points: Vec<Point>,
}

impl Entry {
    /// Runs the simulations, and returns their tables, plots and claims.
    pub(super) fn make(&self, bench: &Bench<'_>) -> Result<Section> {
        let mut run = self.run.clone();
        if let Some(value) = &self.saturated {
            let rate = self.all_at_once(bench, value)?;
            run.insert("rate".to_owned(), rate.into());
        }
        let point = |place: Place| {
            let table = self.table(&run, &place)?;
            let keys: Keys = table.clone().try_into()?;
            keys.check()?;
            let runs = keys.run(bench)?;
            Ok(Point { table, runs })
        };
        let points: Result<Vec<_>> = self.places().map(point).collect();
        let grid = Grid {
            entry: self,
            points: points?,
        };
        let tables = self.tables.iter().map(|table| grid.tables(table));
        let plots = self.plots.iter().map(|plot| grid.plots(plot));
        let regrets = self.regrets.iter().map(|regrets| grid.regrets(regrets));
        let claims = self.claims.iter().map(|claim| grid.claim(claim));
        Ok(Section {
            title: self.title.clone(),
            setting: fill(&fill(&self.setting, &self.text), &run),
            tables: tables.collect::<Result<Vec<_>>>()?.concat(),
            claims: claims.collect::<Result<_>>()?,
            regrets: regrets
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .flatten()
                .collect(),
            plots: { plots.collect::<Result<Vec<_>>>()?.into_iter() }
                .flatten()
                .collect(),
        })
    }

    /// Returns the answers per second at a value when all requests come together.
    fn all_at_once(&self, bench: &Bench<'_>, value: &str) -> Result<f64> {
        /// Requests per second of requests that come all at once.
        const AT_ONCE: f64 = 1e6;
        let place = self.at(&vec![0; self.axes.len()], &[value.to_owned()])?;
        let mut table = self.table(&self.run, &place)?;
        table.insert("rate".to_owned(), AT_ONCE.into());
        table.remove("seeds");
        let keys: Keys = table.try_into()?;
        let median = Outcome::over_seeds(&keys.run(bench)?, "answers_per_s");
        median.context("no figure has the name answers_per_s")
    }

    /// Returns every place, the last axis fastest.
    fn places(&self) -> impl Iterator<Item = Place> {
        let sizes: Vec<usize> = self.axes.iter().map(|axis| axis.values.len()).collect();
        (0..sizes.iter().product()).map(move |mut index| {
            let mut place: Place = { sizes.iter().rev() }
                .map(|size| {
                    let at = index % size;
                    index /= size;
                    at
                })
                .collect();
            place.reverse();
            place
        })
    }

    fn index(&self, place: &[usize]) -> usize {
        let axes = self.axes.iter().zip(place);
        axes.fold(0, |index, (axis, at)| index * axis.values.len() + at)
    }

    /// Returns the index of an axis.
    fn axis(&self, name: &str) -> Result<usize> {
        let found = self.axes.iter().position(|axis| axis.name == name);
        found.with_context(|| format!("there is no axis \"{name}\""))
    }

    /// Returns the axis and the index of the value with this name.
    fn value(&self, name: &str) -> Result<(usize, usize)> {
        let axes = self.axes.iter().enumerate();
        let mut found = axes.filter_map(|(n, axis)| {
            let at = { axis.values.iter() }.position(|value| text_of(value, "name") == name);
            at.map(|at| (n, at))
        });
        let found = found.next();
        found.with_context(|| format!("no axis has a value \"{name}\""))
    }

    /// Returns the place with these values in place of its own.
    fn at(&self, place: &[usize], values: &[String]) -> Result<Place> {
        let mut place = place.to_vec();
        for value in values {
            let (axis, at) = self.value(value)?;
            place[axis] = at;
        }
        Ok(place)
    }

    /// Returns true if the place has one of these values.
    fn has(&self, place: &[usize], values: &[String]) -> Result<bool> {
        let has = |value: &String| self.value(value).map(|(axis, at)| place[axis] == at);
        let all: Result<Vec<bool>> = values.iter().map(has).collect();
        Ok(all?.contains(&true))
    }

    /// Returns the keys of a simulation.
    fn table(&self, run: &Toml, place: &[usize]) -> Result<Toml> {
        let mut table = run.clone();
        for (axis, &at) in self.axes.iter().zip(place) {
            table.extend(axis.values[at].clone());
            if let Some(rate) = self.rates.get(&text_of(&axis.values[at], "name")) {
                table.insert("rate".to_owned(), rate.clone());
            }
        }
        table.remove("name");
        let mut factor = |key: &str| {
            let value = table.remove(key);
            let factor = value.map_or(Some(1.0), |value| value.as_float());
            factor.with_context(|| format!("`{key}` is a number with a decimal point"))
        };
        let (load, size) = (factor("load")?, factor("size")?);
        if let Some(Value::Float(rate)) = table.get_mut("rate") {
            *rate *= load * size;
        }
        if let Some(Value::Integer(requests)) = table.get_mut("requests") {
            *requests = (*requests as f64 * size) as i64;
        }
        Ok(table)
    }
}

impl Grid<'_> {
    fn point(&self, place: &[usize]) -> &Point {
        &self.points[self.entry.index(place)]
    }

    /// Writes a text, with names of values and keys at a place in its braces.
    fn text(&self, text: &str, place: &[usize]) -> String {
        let mut text = fill(text, &self.entry.text);
        for (axis, &at) in self.entry.axes.iter().zip(place) {
            let value = text_of(&axis.values[at], "name");
            text = text.replace(&format!("{{{}}}", axis.name), &value);
        }
        fill(&text, &self.point(place).table)
    }

    fn figure(&self, name: &str, place: &[usize]) -> Result<f64> {
        let point = self.point(place);
        let key = || match point.table.get(name) {
            Some(Value::Integer(key)) => Some(*key as f64),
            Some(Value::Float(key)) => Some(*key),
            _ => None,
        };
        let found = Outcome::over_seeds(&point.runs, name).or_else(key);
        found.with_context(|| format!("there is no figure and no number \"{name}\""))
    }

    /// Reads a quantity off; NaN if a request fits no engine.
    fn measure(&self, measure: &Measure, place: &[usize]) -> Result<f64> {
        let name = measure.figure.as_deref();
        let name = name.with_context(|| format!("\"{}\" needs a figure", measure.text))?;
        let place = self.entry.at(place, &measure.at)?;
        let mut value = self.figure(name, &place)? + measure.plus;
        let of = |other: &String| {
            let place = self.entry.at(&place, std::slice::from_ref(other))?;
            self.figure(name, &place)
        };
        if let Some(other) = measure.minus.first() {
            value -= of(other)?;
        }
        let over: Result<Vec<f64>> = measure.over.iter().map(of).collect();
        if let Some(over) = over?.into_iter().reduce(f64::max) {
            value /= over;
        }
        if measure.over_before {
            let mut before = place;
            if let Some(at) = before.last_mut() {
                *at = at.saturating_sub(1);
            }
            value /= self.figure(name, &before)?;
        }
        Ok(value)
    }

    fn cell(&self, measure: &Measure, place: &[usize]) -> Result<String> {
        if let Some(label) = &measure.label {
            return Ok(self.text(label, place));
        }
        Ok(match self.measure(measure, place)? {
            value if value.is_finite() => number(value),
            _ => "does not fit".to_owned(),
        })
    }

    /// Returns the places of the axis of which each value has a table or a plot: the first place
    /// alone without such an axis.
    fn each(&self, axis: Option<&str>) -> Result<Vec<Place>> {
        let mut first = vec![0; self.entry.axes.len()];
        let Some(axis) = axis else {
            return Ok(vec![first]);
        };
        let axis = self.entry.axis(axis)?;
        let values = 0..self.entry.axes[axis].values.len();
        let place = |at| {
            first[axis] = at;
            first.clone()
        };
        Ok(values.map(place).collect())
    }

    fn tables(&self, table: &TableOf) -> Result<Vec<Table>> {
        let mut columns = Vec::new();
        for column in &table.columns {
            for place in self.each(column.each.as_deref())? {
                let mut column = column.clone();
                column.text = self.text(&column.text, &place);
                if let Some(axis) = &column.each {
                    let axis = self.entry.axis(axis)?;
                    let value = &self.entry.axes[axis].values[place[axis]];
                    column.at.push(text_of(value, "name"));
                }
                columns.push(column);
            }
        }
        let axes = table.rows.iter().chain(&table.each);
        let axes: Vec<usize> = axes.map(|a| self.entry.axis(a)).collect::<Result<_>>()?;
        let mut tables = Vec::new();
        for of in self.each(table.each.as_deref())? {
            let mut rows = Vec::new();
            for place in self.entry.places() {
                let axis = table.each.as_ref().map(|axis| self.entry.axis(axis));
                let is_here = axis.transpose()?.is_none_or(|axis| place[axis] == of[axis]);
                let is_row = (0..place.len()).all(|n| place[n] == 0 || axes.contains(&n));
                if is_here && is_row {
                    let cells = columns.iter().map(|column| self.cell(column, &place));
                    rows.push(cells.collect::<Result<_>>()?);
                }
            }
            tables.push(Table {
                caption: self.text(&table.caption, &of),
                head: columns.iter().map(|column| column.text.clone()).collect(),
                rows,
            });
        }
        Ok(tables)
    }

    fn regrets(&self, regrets: &Regrets) -> Result<Vec<Regret>> {
        let axis = self.entry.axis(&regrets.axis)?;
        let values = &self.entry.axes[axis].values;
        let mut all = Vec::new();
        for figure in &regrets.figures {
            for mut place in self.entry.places().filter(|place| place[axis] == 0) {
                let mut of = Vec::new();
                for (at, value) in values.iter().enumerate() {
                    place[axis] = at;
                    of.push((text_of(value, "name"), self.measure(figure, &place)?));
                }
                let figure = figure.text.clone();
                all.push(Regret { figure, of });
            }
        }
        Ok(all)
    }

    /// Returns the places at which a quantity is read: those that have the values that it names.
    fn places_of(&self, measure: &Measure, except: &[String]) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        for place in self.entry.places() {
            if self.entry.at(&place, &measure.at)? == place && !self.entry.has(&place, except)? {
                places.push(place);
            }
        }
        Ok(places)
    }

    fn claim(&self, claim: &ClaimOf) -> Result<Claim> {
        let places = self.places_of(&claim.of, &claim.except)?;
        let ours = places.iter().map(|place| self.measure(&claim.of, place));
        let ours: Vec<f64> = ours.collect::<Result<_>>()?;
        let (Some(&low), Some(&high)) = (claim.paper.first(), claim.paper.last()) else {
            anyhow::bail!("\"{}\" needs the paper's number", claim.of.text);
        };
        ensure!(low <= high, "\"{}\": {low} is above {high}", claim.of.text);
        Ok(Claim::new(
            [&claim.place, &claim.of.text, &claim.why].map(String::clone),
            (low, high),
            ours,
        ))
    }

    fn plots(&self, plot: &PlotOf) -> Result<Vec<Plot>> {
        let axis = { plot.each.as_ref() }.map(|axis| self.entry.axis(axis));
        let axis = axis.transpose()?;
        let mut plots = Vec::new();
        for of in self.each(plot.each.as_deref())? {
            let mut curves: Vec<Curve> = Vec::new();
            for place in self.places_of(&plot.y, &plot.except)? {
                if axis.is_some_and(|axis| place[axis] != of[axis]) {
                    continue;
                }
                let points = if plot.shares {
                    let runs = &self.point(&place).runs;
                    runs.iter().flat_map(Outcome::shares).collect()
                } else {
                    let (x, y) = (&plot.x, &plot.y);
                    vec![(self.measure(x, &place)?, self.measure(y, &place)?)]
                };
                let name = self.text(&plot.curve, &place);
                match curves.iter_mut().find(|curve| curve.name == name) {
                    Some(curve) => curve.points.extend(points),
                    None => curves.push(Curve { name, points }),
                }
            }
            plots.push(Plot {
                name: self.text(&plot.file, &of),
                title: self.text(&plot.title, &of),
                x: plot.x.axis(),
                y: plot.y.axis(),
                curves,
            });
        }
        Ok(plots)
    }
}

impl Measure {
    fn axis(&self) -> PlotAxis {
        match self.log {
            true => PlotAxis::Log(self.text.clone()),
            false => PlotAxis::Linear(self.text.clone()),
        }
    }
}

/// Writes the value of a key, or nothing if there is none.
fn text_of(table: &Toml, key: &str) -> String {
    match table.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Float(value)) => number(*value),
        Some(value) => value.to_string(),
        None => String::new(),
    }
}

/// Writes a text, with the values of keys in its braces.
fn fill(text: &str, table: &Toml) -> String {
    let mut text = text.to_owned();
    for (key, value) in table {
        text = match value {
            Value::Table(inner) => fill(&text, inner),
            _ => text.replace(&format!("{{{key}}}"), &text_of(table, key)),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_names_must_be_there() {
        let check = |text: &str, expected: &str| {
            let error = read(text).map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check("[[section]]\nlike = \"x\"", "no section before is \"x\"");
        check("[[section]]\nname = \"x\"", "missing field `title`");
        check("[[section]]\nnames = \"x\"", "unknown field `names`");
    }
}
