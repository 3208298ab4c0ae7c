//! The report's charts, as SVG text.

use plotters::coord::Shift;
use plotters::prelude::*;

const SIZE: (u32, u32) = (460, 290);
const FIRST: RGBColor = RGBColor(0x1f, 0x5f, 0xae);
const SECOND: RGBColor = RGBColor(0xc2, 0x57, 0x1a);
const SOFT: RGBColor = RGBColor(0x9a, 0xa6, 0xb5);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Lines over epochs: their names, and their points.
pub(super) fn curves(lines: &[(&str, Vec<(f64, f64)>)]) -> anyhow::Result<String> {
    let points = || lines.iter().flat_map(|(_, points)| points);
    let x = span(points().map(|(x, _)| *x));
    let y = span(points().map(|(_, y)| *y));
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(56)
            .build_cartesian_2d(x.0..x.1, y.0..y.1)?;
        let mut mesh = chart.configure_mesh();
        let epochs = points().map(|(x, _)| *x as usize).max().unwrap_or(1);
        mesh.x_desc("epoch").x_labels(epochs.min(10));
        mesh.x_label_formatter(&|x| format!("{x:.0}"));
        mesh.light_line_style(TRANSPARENT).draw()?;
        for ((name, points), color) in lines.iter().zip([FIRST, SECOND]) {
            let line = LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3);
            chart.draw_series(line)?.label(*name).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2))
            });
        }
        let mut legend = chart.configure_series_labels();
        legend.border_style(SOFT).background_style(WHITE).draw()?;
        Ok(())
    })
}

/// Predicted over actual, with the line where both are the same.
pub(super) fn scatter(points: &[(f64, f64)]) -> anyhow::Result<String> {
    let (low, high) = span(points.iter().flat_map(|(x, y)| [*x, *y]));
    svg(|area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(64)
            .build_cartesian_2d(low..high, low..high)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("actual").y_desc("predicted");
        mesh.light_line_style(TRANSPARENT).draw()?;
        let dots = points
            .iter()
            .map(|at| Circle::new(*at, 2, FIRST.mix(0.4).filled()));
        chart.draw_series(dots)?;
        chart.draw_series(LineSeries::new(
            [(low, low), (high, high)],
            SECOND.stroke_width(1),
        ))?;
        Ok(())
    })
}

fn svg(draw: impl FnOnce(&Area<'_>) -> anyhow::Result<()>) -> anyhow::Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&area)?;
        area.present()?;
    }
    Ok(text)
}

/// The least and the greatest number, never the same.
fn span(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = numbers
        .filter(|number| number.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), number| {
            (low.min(number), high.max(number))
        });
    match high - low {
        room if room > 0.0 => (low - 0.02 * room, high + 0.04 * room),
        _ if low.is_finite() => (low - 1.0, high + 1.0),
        _ => (0.0, 1.0),
    }
}
