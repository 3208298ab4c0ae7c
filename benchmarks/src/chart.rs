//! A bar chart of a report's figures: bars that begin at 0, and a reference line.
//!
//! The caller defines the meaning of the bars.

use std::path::Path;

use plotters::prelude::*;

const WIDTH: u32 = 860;
const BAR: u32 = 26;
const MARGIN: u32 = 90;
const COLORS: [RGBColor; 4] = [
    RGBColor(0x1f, 0x6f, 0xb2),
    RGBColor(0xe0, 0x7b, 0x39),
    RGBColor(0x3f, 0x9b, 0x5f),
    RGBColor(0x8a, 0x5a, 0xa8),
];

/// Data of a chart.
#[derive(Debug)]
pub(crate) struct Chart {
    /// Caption of the bars and the line.
    pub(crate) said: &'static str,
    /// Position of the reference line.
    pub(crate) line: f64,
    pub(crate) bars: Vec<ChartBar>,
}

/// One bar.
#[derive(Debug)]
pub(crate) struct ChartBar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// Value as written beside the bar.
    pub(crate) written: String,
    /// Index of the measured system; each system has its own color.
    pub(crate) system: usize,
}

impl Chart {
    /// Draws the chart as an SVG file.
    pub(crate) fn draw(&self, title: &str, path: &Path) -> anyhow::Result<()> {
        let height = MARGIN + BAR * self.bars.len() as u32;
        let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
        area.fill(&WHITE)?;
        let text = |size: u32| ("sans-serif", size).into_font().color(&BLACK);
        area.draw(&Text::new(title, (16, 14), text(20)))?;
        area.draw(&Text::new(self.said, (16, 40), text(13)))?;
        let (left, right) = (360_i32, WIDTH as i32 - 80);
        let values = self.bars.iter().map(|bar| bar.value).chain([self.line]);
        let (least, greatest) = values.fold((0.0_f64, 0.0_f64), |(least, greatest), value| {
            (least.min(value), greatest.max(value))
        });
        let range = (greatest - least).max(f64::MIN_POSITIVE);
        let x = |value: f64| left + ((value - least) / range * f64::from(right - left)) as i32;
        for (row, bar) in self.bars.iter().enumerate() {
            let top = (66 + BAR * row as u32) as i32;
            area.draw(&Text::new(bar.label.as_str(), (16, top + 3), text(13)))?;
            let (from, to) = (x(bar.value.min(0.0)), x(bar.value.max(0.0)));
            let corners = [(from, top), (to, top + BAR as i32 - 8)];
            let color = COLORS[bar.system % COLORS.len()];
            area.draw(&Rectangle::new(corners, color.filled()))?;
            area.draw(&Text::new(
                bar.written.as_str(),
                (to + 6, top + 3),
                text(13),
            ))?;
        }
        let line = [(x(self.line), 62), (x(self.line), height as i32 - 16)];
        area.draw(&PathElement::new(line.to_vec(), BLACK.stroke_width(1)))?;
        area.present()?;
        Ok(())
    }
}
