//! Ratios to rivals as bars.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::Report;

/// Draws how many times better we are, row by row, on a logarithmic scale, with a mark where it
/// was to be. Returns whether there was anything to draw.
///
/// # Errors
/// If the file cannot be written.
pub fn draw(report: &Report, path: &Path) -> Result<bool> {
    let bars: Vec<Bar> = report
        .rows
        .iter()
        .flat_map(|row| {
            row.rivals.iter().map(|rival| Bar {
                name: format!("{} / {}", row.name, rival.name),
                ratio: rival.ratio,
                target: rival.verdict.as_ref().and_then(|v| target(&v.target)),
            })
        })
        .filter(|bar| bar.ratio.is_finite() && bar.ratio > 0.0)
        .collect();
    if bars.is_empty() {
        return Ok(false);
    }
    chart(path, &bars).map_err(|e| anyhow!("cannot draw {}: {e}", path.display()))?;
    Ok(true)
}

struct Bar {
    name: String,
    ratio: f64,
    target: Option<f64>,
}

/// Returns the number in a verdict's target.
fn target(text: &str) -> Option<f64> {
    text.rsplit(' ').next()?.parse().ok()
}

#[expect(clippy::cast_precision_loss, reason = "a few bars")]
fn chart(path: &Path, bars: &[Bar]) -> Result<(), Box<dyn std::error::Error>> {
    let height = 90 + 34 * u32::try_from(bars.len())?;
    let area = SVGBackend::new(path, (1_000, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let most = bars
        .iter()
        .flat_map(|bar| [Some(bar.ratio), bar.target])
        .flatten()
        .fold(1.0, f64::max);
    let least = bars.iter().map(|bar| bar.ratio).fold(1.0, f64::min);
    let count = bars.len();
    let mut chart = ChartBuilder::on(&area)
        .caption(
            "times better than the rival, in the same run",
            ("sans-serif", 18),
        )
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(520)
        .build_cartesian_2d(
            (least * 0.8..most * 1.2).log_scale(),
            -0.6..count as f64 - 0.4,
        )?;
    let name = |y: &f64| {
        let is_row = (y - y.round()).abs() < 0.01;
        let bar = bars.iter().rev().enumerate();
        let found = bar
            .map(|(i, bar)| (i as f64, bar))
            .find(|(i, _)| is_row && (i - y.round()).abs() < 0.5);
        found.map_or_else(String::new, |(_, bar)| bar.name.clone())
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(count * 2)
        .y_label_formatter(&name)
        .draw()?;
    for (i, bar) in bars.iter().rev().enumerate() {
        let y = i as f64;
        let reached = bar.target.is_none_or(|target| bar.ratio >= target);
        let color = if reached { &GREEN } else { &RED };
        let corners = [(least * 0.8, y - 0.3), (bar.ratio, y + 0.3)];
        chart.draw_series([Rectangle::new(corners, color.mix(0.5).filled())])?;
        if let Some(target) = bar.target {
            let mark = [(target, y - 0.4), (target, y + 0.4)];
            chart.draw_series([PathElement::new(mark, BLACK.stroke_width(2))])?;
        }
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Row, Unit};

    #[test]
    fn rows_with_rivals_are_drawn() {
        let mut row = Row::new("answers", Unit::Millis, vec![1.0]);
        let report = |rows| Report {
            machine: String::new(),
            load_average: (String::new(), String::new()),
            date: String::new(),
            commit: String::new(),
            rounds: 1,
            rows,
            skipped: Vec::new(),
        };
        let path = std::env::temp_dir().join(format!("prelude-plot-{}.svg", std::process::id()));
        assert!(!draw(&report(vec![row.clone()]), &path).unwrap());
        row.against("somebody", &[7.5], Some(6.0));
        assert!(draw(&report(vec![row]), &path).unwrap());
        let svg = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(svg.contains("answers / somebody"));
        assert_eq!(target("≥ 6"), Some(6.0));
    }
}
