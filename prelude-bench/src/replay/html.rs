//! A report as one page with plots, which needs no other file and no network.

use std::time::Duration;

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::{Fate, Report};

const SIZE: (u32, u32) = (860, 320);
const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;\
    padding:0 1em;color:#222}svg{max-width:100%;height:auto}";

/// Returns the page.
pub(super) fn page(report: &Report) -> Result<String> {
    let title = escaped(&format!("{} against {}", report.trace, report.url));
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n\
         <pre>{}</pre>\n",
        escaped(&report.render())
    );
    for (heading, plot) in [
        ("Share of answers within a time", shares(report)),
        ("Time to the end, by arrival", by_arrival(report)),
    ] {
        let svg = plot.map_err(|error| anyhow!("cannot draw \"{heading}\": {error}"))?;
        page += &format!("<h2>{heading}</h2>\n{svg}\n");
    }
    page += "</body></html>\n";
    Ok(page)
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

type Drawn = Result<String, Box<dyn std::error::Error>>;

fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1_000.0).max(0.01)
}

/// Draws which share of answers had come within each time.
fn shares(report: &Report) -> Drawn {
    let done = || { report.answers.iter() }.filter(|(_, a)| a.fate == Fate::Answered);
    let first: Vec<f64> = done().filter_map(|(_, a)| a.first.map(ms)).collect();
    let end: Vec<f64> = done().map(|(_, a)| ms(a.end)).collect();
    let mut curves = [
        ("time to first token", BLUE, first),
        ("time to the end", RED, end),
    ];
    for (_, _, times) in &mut curves {
        times.sort_by(f64::total_cmp);
    }
    let all = || curves.iter().flat_map(|(_, _, times)| times);
    let least = all().copied().fold(f64::INFINITY, f64::min);
    let most = all().copied().fold(0.0, f64::max);
    let range = if most > 0.0 {
        least * 0.9..most * 1.1
    } else {
        1.0..10.0
    };
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(range.log_scale(), 0.0..1.0)?;
        chart.configure_mesh().x_desc("ms").y_desc("share").draw()?;
        for (name, color, times) in &curves {
            #[expect(clippy::cast_precision_loss, reason = "a share")]
            let share = |(i, &ms): (usize, &f64)| (ms, (i + 1) as f64 / times.len() as f64);
            let line: Vec<_> = times.iter().enumerate().map(share).collect();
            chart
                .draw_series([PathElement::new(line, color.stroke_width(2))])?
                .label(*name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], *color));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// Draws each request at its arrival: blue if answered, red if refused or failed.
fn by_arrival(report: &Report) -> Drawn {
    let answers = || report.answers.iter();
    let last = answers()
        .map(|(at, _)| at.as_secs_f64())
        .fold(0.0, f64::max);
    let most = answers().map(|(_, a)| ms(a.end)).fold(1.0, f64::max);
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..(last * 1.02).max(0.1), (0.01..most * 1.2).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("seconds from the start")
            .y_desc("ms")
            .draw()?;
        let point = |(at, answer): &(Duration, super::Answer)| {
            let color = match answer.fate {
                Fate::Answered => BLUE.mix(0.5),
                _ => RED.mix(0.8),
            };
            Circle::new((at.as_secs_f64(), ms(answer.end)), 2, color.filled())
        };
        chart.draw_series(report.answers.iter().map(point))?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_cannot_break_the_page() {
        let found = super::escaped("<a href=\"x\">&</a>");
        assert_eq!(found, "&lt;a href=&quot;x&quot;&gt;&amp;&lt;/a&gt;");
    }
}
