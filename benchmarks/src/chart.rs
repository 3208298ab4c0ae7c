//! A comparison as a bar chart: for each case, how many times as good Volley is as each system.

use std::path::Path;

use plotters::prelude::*;

use crate::comparison::{Comparison, VOLLEY};

const WIDTH: u32 = 860;
const BAR: u32 = 26;
const MARGIN: u32 = 90;
const COLORS: [RGBColor; 4] = [
    RGBColor(0x1f, 0x6f, 0xb2),
    RGBColor(0xe0, 0x7b, 0x39),
    RGBColor(0x3f, 0x9b, 0x5f),
    RGBColor(0x8a, 0x5a, 0xa8),
];

/// Draws the ratios of a comparison as an SVG file; where there is nothing to compare with, none.
pub(crate) fn draw(comparison: &Comparison, path: &Path) -> anyhow::Result<()> {
    let mut systems: Vec<&str> = Vec::new();
    let mut bars = Vec::new();
    for case in &comparison.cases {
        for system in case.systems() {
            if system == VOLLEY {
                continue;
            }
            let Some(ratio) = case.ratio(system).filter(|ratio| ratio.is_finite()) else {
                continue;
            };
            if !systems.contains(&system) {
                systems.push(system);
            }
            let color = systems.iter().position(|known| *known == system);
            bars.push((case.name.as_str(), system, ratio, color.unwrap_or_default()));
        }
    }
    let height = MARGIN + BAR * bars.len() as u32;
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let text = |size: u32| ("sans-serif", size).into_font().color(&BLACK);
    area.draw(&Text::new(comparison.title, (16, 14), text(20)))?;
    let said = "how many times as good Volley is; the line is 1";
    area.draw(&Text::new(said, (16, 40), text(13)))?;
    let (left, right) = (360_i32, WIDTH as i32 - 80);
    let largest = bars
        .iter()
        .map(|(_, _, ratio, _)| *ratio)
        .fold(1.0, f64::max);
    let x = |ratio: f64| left + (ratio / largest * f64::from(right - left)) as i32;
    for (row, (case, system, ratio, color)) in bars.iter().enumerate() {
        let top = (66 + BAR * row as u32) as i32;
        let label = format!("{case}, against {system}");
        area.draw(&Text::new(label, (16, top + 3), text(13)))?;
        let corners = [(left, top), (x(*ratio), top + BAR as i32 - 8)];
        let color = COLORS[color % COLORS.len()];
        area.draw(&Rectangle::new(corners, color.filled()))?;
        let value = format!("{ratio:.2}×");
        area.draw(&Text::new(value, (x(*ratio) + 6, top + 3), text(13)))?;
    }
    let line = [(x(1.0), 62), (x(1.0), height as i32 - 16)];
    area.draw(&PathElement::new(line.to_vec(), BLACK.stroke_width(1)))?;
    area.present()?;
    Ok(())
}
