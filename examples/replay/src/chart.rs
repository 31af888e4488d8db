//! Pictures as SVG.

use std::fmt::Display;

use anyhow::anyhow;
use plotters::prelude::*;

use crate::fit::Fit;
use crate::text::number;
use crate::time;
use crate::timeline::Timeline;

/// Colours that the style of the page replaces, so that a picture is readable in light and in dark.
pub const INK: RGBColor = RGBColor(1, 1, 1);
pub const SERIES: [RGBColor; 3] = [RGBColor(2, 2, 2), RGBColor(3, 3, 3), RGBColor(4, 4, 4)];

const SIZE: (u32, u32) = (960, 300);
const TEXT: (&str, i32) = ("sans-serif", 14);

/// Counts of some kinds over time; the first kind is an area.
pub fn timeline(timeline: &Timeline<3>, kinds: usize) -> anyhow::Result<String> {
    let counts = timeline.counts();
    // An area needs two points.
    let ends = (counts.len() as u64).max(2);
    let most = counts
        .iter()
        .map(|counts| counts[0])
        .max()
        .unwrap_or(0)
        .max(1);
    let shown = |step: &u64| {
        let at = timeline.start().saturating_add(
            timeline
                .step()
                .saturating_mul(i64::try_from(*step).unwrap_or(0)),
        );
        // Without the year and the Z.
        time::shown(at)
            .get(5..19)
            .unwrap_or_default()
            .replace('T', " ")
    };
    let points = |kind: usize| {
        let last = counts.last().map_or(0, |counts| counts[kind]);
        let all = counts.iter().map(move |counts| counts[kind]).chain([last]);
        (0..).zip(all)
    };
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .x_label_area_size(28)
            .y_label_area_size(70)
            .build_cartesian_2d(0..ends, 0..most)
            .map_err(failed)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(INK.mix(0.15))
            .axis_style(INK.mix(0.4))
            .label_style(TEXT.into_font().color(&INK))
            .x_labels(6)
            .y_labels(5)
            .x_label_formatter(&shown)
            .y_label_formatter(&|count| number(*count))
            .draw()
            .map_err(failed)?;
        let area = AreaSeries::new(points(0), 0, SERIES[0].mix(0.2))
            .border_style(SERIES[0].stroke_width(2));
        chart.draw_series(area).map_err(failed)?;
        for (kind, colour) in SERIES.iter().enumerate().take(kinds).skip(1) {
            chart
                .draw_series(LineSeries::new(points(kind), colour.stroke_width(2)))
                .map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

/// The bursts that fit by rate: those that refuse few keys, and those that refuse none. Both axes
/// are logarithmic.
pub fn curve(fits: &[Fit]) -> anyhow::Result<String> {
    let mut fits: Vec<(f64, &Fit)> = fits.iter().map(|fit| (per_second(fit), fit)).collect();
    fits.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (Some(first), Some(last)) = (fits.first(), fits.last()) else {
        return Ok(String::new());
    };
    let most = fits
        .iter()
        .map(|(_, fit)| fit.burst_for_all)
        .max()
        .unwrap_or(1)
        .max(2);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let rates = (first.0 / 1.2..last.0 * 1.2).log_scale();
        let mut chart = ChartBuilder::on(&root)
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(70)
            .build_cartesian_2d(rates, (1.0..most as f64 * 1.2).log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(INK.mix(0.15))
            .axis_style(INK.mix(0.4))
            .label_style(TEXT.into_font().color(&INK))
            .axis_desc_style(TEXT.into_font().color(&INK))
            .x_desc("rate, a second")
            .y_desc("burst")
            .x_labels(8)
            .y_labels(6)
            .x_label_formatter(&|rate| {
                format!("{rate:.3}")
                    .trim_end_matches('0')
                    .trim_end_matches('.')
                    .to_owned()
            })
            .y_label_formatter(&|burst| format!("{burst:.0}"))
            .draw()
            .map_err(failed)?;
        for (series, burst) in [
            (1, (|fit| fit.burst_for_all) as fn(&Fit) -> u64),
            (0, |fit| fit.burst),
        ] {
            let points = fits.iter().map(|(rate, fit)| (*rate, burst(fit) as f64));
            let line = LineSeries::new(points, SERIES[series].stroke_width(2)).point_size(3);
            chart.draw_series(line).map_err(failed)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(svg)
}

fn per_second(fit: &Fit) -> f64 {
    fit.rate.count() as f64 / fit.rate.period().as_secs_f64()
}

fn failed(error: impl Display) -> anyhow::Error {
    anyhow!("a picture cannot be drawn: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_of_little_and_of_nothing_are_drawn() {
        let mut little = Timeline::default();
        assert!(timeline(&little, 3).unwrap().ends_with("</svg>\n"));
        little.add(1_700_000_000_000_000, [1, 1, 0]);
        assert!(timeline(&little, 3).unwrap().contains("<polygon"));
        assert_eq!(curve(&[]).unwrap(), "");
        let fit = Fit {
            rate: "1/second".parse().unwrap(),
            burst: 1,
            refused_keys: 0,
            burst_for_all: 1,
        };
        assert!(curve(&[fit]).unwrap().contains("<circle"));
    }
}
