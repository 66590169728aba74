//! Curves of a section as an SVG file.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

const SIZE: (u32, u32) = (860, 380);

/// The width of the names beside a plot.
const LEGEND: u32 = 200;

/// Colours of the curves, which people with any colour vision can tell apart (Okabe and Ito).
const COLORS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// A plot of curves. Both axes are positive; a logarithmic one leaves out points at zero.
pub(super) struct Plot {
    /// The file's name without its ending.
    pub(super) name: String,
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) curves: Vec<Curve>,
}

/// The name of an axis, with its unit, and its scale.
pub(super) enum Axis {
    Linear(String),
    Log(String),
}

/// A curve: its name and its points.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

impl Axis {
    fn name(&self) -> &str {
        match self {
            Self::Linear(name) | Self::Log(name) => name,
        }
    }

    fn shows(&self, value: f64) -> bool {
        value.is_finite() && (value > 0.0 || matches!(self, Self::Linear(_)))
    }

    /// Maps a value to the plotted coordinate: a logarithm to the base 10, or the value itself.
    fn place(&self, value: f64) -> f64 {
        match self {
            Self::Linear(_) => value,
            Self::Log(_) => value.log10(),
        }
    }

    /// Writes the value at a coordinate; on a logarithmic axis with two digits, as ticks lie there
    /// at parts of a power of ten.
    fn label(&self, place: f64) -> String {
        let value = match self {
            Self::Linear(_) => place,
            Self::Log(_) => {
                let unit = 10_f64.powf(place.floor() - 1.0);
                (10_f64.powf(place) / unit).round() * unit
            }
        };
        let digits = match value {
            value if value >= 10.0 => 0,
            value if value >= 1.0 => 1,
            _ => 2,
        };
        format!("{value:.digits$}")
    }

    /// Returns the range that holds these coordinates, with a margin.
    fn range(&self, places: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
        let (low, high) = places.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| {
            (low.min(at), high.max(at))
        });
        if low > high {
            return 0.0..1.0;
        }
        let margin = 0.04 * (high - low).max(0.1);
        match self {
            Self::Linear(_) => 0.0..high + margin,
            Self::Log(_) => low - margin..high + margin,
        }
    }
}

impl Plot {
    /// Writes `NAME.svg` into a folder.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(self.file());
        self.draw(&path)
            .map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))
    }

    pub(super) fn file(&self) -> String {
        format!("{}.svg", self.name)
    }

    /// Returns the points of a curve that the axes can show, in the axes' coordinates.
    fn shown(&self, curve: &Curve) -> Vec<(f64, f64)> {
        let points = curve.points.iter();
        let points = points.filter(|(x, y)| self.x.shows(*x) && self.y.shows(*y));
        let placed = points.map(|&(x, y)| (self.x.place(x), self.y.place(y)));
        placed.collect()
    }

    fn draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
        let curves = self.curves.iter();
        let curves: Vec<_> = curves.map(|c| (&c.name, self.shown(c))).collect();
        let all = || curves.iter().flat_map(|(_, points)| points);
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let (plot, legend) = area.split_horizontally(SIZE.0 - LEGEND);
        let mut chart = ChartBuilder::on(&plot)
            .caption(&self.title, ("sans-serif", 17))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(
                self.x.range(all().map(|(x, _)| *x)),
                self.y.range(all().map(|(_, y)| *y)),
            )?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(self.x.name())
            .y_desc(self.y.name())
            .x_label_formatter(&|x| self.x.label(*x))
            .y_label_formatter(&|y| self.y.label(*y))
            .draw()?;
        for (n, (name, points)) in curves.iter().enumerate() {
            let color = COLORS[n % COLORS.len()];
            let dots = points
                .iter()
                .map(|&point| Circle::new(point, 3, color.filled()));
            let few = points.len() <= 20;
            chart.draw_series(dots.take(if few { points.len() } else { 0 }))?;
            let line = color.stroke_width(2);
            chart.draw_series([PathElement::new(points.clone(), line)])?;
            let y = 50 + 22 * i32::try_from(n)?;
            legend.draw(&PathElement::new([(0, y), (20, y)], line))?;
            let name = Text::new(name.as_str(), (26, y - 7), ("sans-serif", 14));
            legend.draw(&name)?;
        }
        area.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithmic_axis_leaves_out_zero() {
        let folder = std::env::temp_dir().join(format!("prelude-papers-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let curve = |name: &str, points| Curve {
            name: name.to_owned(),
            points,
        };
        let plot = Plot {
            name: "test".to_owned(),
            title: "a title".to_owned(),
            x: Axis::Linear("requests/s".to_owned()),
            y: Axis::Log("s".to_owned()),
            curves: vec![
                curve("one", vec![(1.0, 0.0), (2.0, 10.0), (3.0, 100.0)]),
                curve("none", vec![(1.0, 0.0)]),
            ],
        };
        plot.write(&folder).unwrap();
        let svg = std::fs::read_to_string(folder.join("test.svg")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        for text in ["a title", "requests/s", "one", "none"] {
            assert!(svg.contains(text), "{text} is missing");
        }
        // Two of the four points.
        assert_eq!(svg.matches("<circle").count(), 2);
        let log = Axis::Log("s".to_owned());
        let labels = [2.0, 2.2, 0.2, -1.0].map(|place| log.label(place));
        assert_eq!(labels, ["100", "160", "1.6", "0.10"]);
        assert_eq!(
            Axis::Linear("s".to_owned()).range(std::iter::empty()),
            0.0..1.0
        );
    }
}
