//! The table as bars.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use crate::{engines::Who, judge::Line, workloads::Unit};

const BAR: f64 = 0.16;

/// Draws the rows of one unit as groups of bars, one bar per engine, on a logarithmic scale:
/// engines differ by a factor of a hundred.
pub(crate) fn bars(path: &Path, lines: &[Line], unit: Unit, engines: &[Who]) -> Result<()> {
    let rows: Vec<&Line> = lines.iter().filter(|l| l.unit == unit).collect();
    let values = rows.iter().flat_map(|l| &l.entries).map(|cell| cell.median);
    let values: Vec<f64> = values.filter(|v| v.is_finite() && *v > 0.0).collect();
    if values.is_empty() {
        return Ok(());
    }
    let low = values.iter().copied().fold(f64::INFINITY, f64::min) / 2.0;
    let high = values.iter().copied().fold(0.0, f64::max) * 2.0;
    draw(path, &rows, unit, engines, low, high).map_err(|e| anyhow!("cannot draw: {e}"))
}

#[expect(clippy::cast_precision_loss, reason = "a few rows and engines")]
fn draw(
    path: &Path,
    rows: &[&Line],
    unit: Unit,
    engines: &[Who],
    low: f64,
    high: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let height = 90 + 70 * u32::try_from(rows.len())?;
    let area = SVGBackend::new(path, (900, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let better = if unit.more_is_better() {
        "more"
    } else {
        "less"
    };
    let mut chart = ChartBuilder::on(&area)
        .caption(
            format!("{}, {better} is better", unit.text()),
            ("sans-serif", 18),
        )
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(230)
        .build_cartesian_2d((low..high).log_scale(), -0.6..rows.len() as f64 - 0.4)?;
    let label = |y: &f64| {
        let row = rows.len() as f64 - 1.0 - y.round();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "checked to be a row"
        )]
        let line = (row >= 0.0 && (y - y.round()).abs() < 0.01).then(|| rows.get(row as usize));
        line.flatten().map_or_else(String::new, |l| l.name.clone())
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(rows.len() * 2)
        .y_label_formatter(&label)
        .draw()?;
    for (place, who) in engines.iter().enumerate() {
        let color = Palette99::pick(place).mix(0.9);
        let bars = rows.iter().enumerate().filter_map(|(row, line)| {
            let cell = line.entries.iter().find(|cell| cell.who == *who)?;
            let middle = rows.len() as f64 - 1.0 - row as f64;
            let top = middle + BAR * (engines.len() as f64 / 2.0 - place as f64);
            let corners = [(low, top - BAR), (cell.median, top)];
            Some(Rectangle::new(corners, color.filled()))
        });
        chart
            .draw_series(bars)?
            .label(who.title())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled()));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .position(SeriesLabelPosition::LowerRight)
        .draw()?;
    area.present()?;
    Ok(())
}
