//! Picture with two axes: round numbers along them, and the pixel of a pair of numbers.

use super::svg::{Anchor, Pixel, Svg};

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 310.0;
/// Margins for the ticks and titles of axes.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 46.0;

/// Axis: its title, and its range.
#[derive(Debug, Clone, Copy)]
pub(super) struct Axis<'a> {
    pub(super) name: &'a str,
    pub(super) low: f64,
    pub(super) high: f64,
    /// True if all values are whole numbers.
    pub(super) whole: bool,
}

impl<'a> Axis<'a> {
    /// Creates an axis of numbers.
    pub(super) fn new(name: &'a str, (low, high): (f64, f64)) -> Self {
        Self {
            name,
            low,
            high,
            whole: false,
        }
    }

    /// Creates an axis of shares, from 0 to 1.
    pub(super) fn share(name: &'a str) -> Self {
        Self::new(name, (0.0, 1.0))
    }

    /// Returns the position of a number between two pixels.
    pub(super) fn place(&self, number: f64, [start, end]: [f64; 2]) -> f64 {
        start + (number - self.low) / (self.high - self.low) * (end - start)
    }

    /// Returns about `count` round numbers on the axis, with their text.
    pub(super) fn ticks(&self, count: f64) -> Vec<(f64, String)> {
        let (low, high) = (self.low, self.high);
        let mut rough = (high - low) / count;
        if self.whole {
            rough = rough.max(1.0);
        }
        if !rough.is_finite() || rough <= 0.0 {
            return Vec::new();
        }
        let power = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
        let step = steps.into_iter().find(|step| *step >= rough * (1.0 - 1e-9));
        let step = step.unwrap_or(10.0 * power);
        let first = (low / step - 1e-9).ceil();
        let last = (high / step + 1e-9).floor();
        let count = (last - first).clamp(-1.0, 100.0) as i32 + 1;
        let ticks = (0..count).map(|at| {
            // Adding 0 turns -0 into 0.
            let tick = (first + f64::from(at)) * step + 0.0;
            (tick, written(tick, step))
        });
        ticks.collect()
    }
}

/// Formats a tick, with enough digits to tell it from the next one.
fn written(tick: f64, step: f64) -> String {
    if tick.abs() >= 1e7 || step < 1e-5 {
        let digits = match tick == 0.0 {
            true => 0.0,
            false => (tick.abs().log10() + 1e-9).floor() - (step.log10() + 1e-9).floor(),
        };
        let digits = digits.clamp(0.0, 15.0) as usize;
        return format!("{tick:.digits$e}");
    }
    let decimals = (-(step * 1.000_001).log10().floor()).max(0.0) as usize;
    format!("{tick:.decimals$}")
}

/// Returns the least and the greatest number with some space around them; the two are never equal.
pub(super) fn span(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = numbers
        .filter(|number| number.is_finite())
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), number| {
            (low.min(number), high.max(number))
        });
    match high - low {
        room if room > 0.0 && room.is_finite() => (low - 0.02 * room, high + 0.04 * room),
        // Their difference is larger than any finite number.
        room if room > 0.0 && low.is_finite() => (low * 0.5, high * 0.5),
        _ if low.is_finite() => {
            let room = (low.abs() * 1e-3).max(1.0);
            (low - room, high + room)
        }
        _ => (0.0, 1.0),
    }
}

/// Picture with its axes drawn.
#[derive(Debug)]
pub(super) struct Plot<'a> {
    pub(super) svg: Svg,
    x: Axis<'a>,
    y: Axis<'a>,
}

impl<'a> Plot<'a> {
    /// Draws the axes. `said` describes the picture for readers who cannot see it.
    pub(super) fn new(said: &str, x: Axis<'a>, y: Axis<'a>) -> Self {
        let mut plot = Self {
            svg: Svg::new(WIDTH, HEIGHT, said),
            x,
            y,
        };
        for (tick, text) in y.ticks(5.0) {
            let (_, top) = plot.at(x.low, tick);
            plot.svg.line("grid", (LEFT, top), (WIDTH - RIGHT, top));
            plot.svg
                .text("", Anchor::End, (LEFT - 7.0, top + 4.0), &text);
        }
        for (tick, text) in x.ticks(6.0) {
            let (left, bottom) = plot.at(tick, y.low);
            plot.svg.line("axis", (left, bottom), (left, bottom + 4.0));
            plot.svg
                .text("", Anchor::Middle, (left, bottom + 17.0), &text);
        }
        let bottom = HEIGHT - BOTTOM;
        plot.svg
            .line("axis", (LEFT, bottom), (WIDTH - RIGHT, bottom));
        let middle = (LEFT + WIDTH - RIGHT) / 2.0;
        plot.svg
            .text("", Anchor::Middle, (middle, HEIGHT - 8.0), x.name);
        let middle = (TOP + bottom) / 2.0;
        plot.svg.upright("", Anchor::Middle, (14.0, middle), y.name);
        plot
    }

    /// Returns the pixel of a pair of numbers.
    pub(super) fn at(&self, x: f64, y: f64) -> Pixel {
        (
            self.x.place(x, [LEFT, WIDTH - RIGHT]),
            self.y.place(y, [HEIGHT - BOTTOM, TOP]),
        )
    }

    /// Draws the line where both axes have the same number.
    pub(super) fn diagonal(&mut self) {
        let low = self.x.low.max(self.y.low);
        let high = self.x.high.min(self.y.high);
        let (from, to) = (self.at(low, low), self.at(high, high));
        self.svg.line("even", from, to);
    }

    /// Draws a line from the bottom to the top.
    pub(super) fn upright(&mut self, x: f64) {
        let (from, to) = (self.at(x, self.y.low), self.at(x, self.y.high));
        self.svg.line("even", from, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(low: f64, high: f64, whole: bool) -> Vec<String> {
        let axis = Axis {
            whole,
            ..Axis::new("", (low, high))
        };
        axis.ticks(5.0).into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_numbers_within_the_axis() {
        assert_eq!(
            texts(0.0, 1.0, false),
            ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
        );
        assert_eq!(texts(-0.7, 1.1, false), ["-0.5", "0.0", "0.5", "1.0"]);
        assert_eq!(texts(0.9, 3.1, true), ["1", "2", "3"]);
        assert_eq!(texts(0.0, 4e8, false)[1], "1e8");
        assert_eq!(
            texts(1.2e7, 1.21e7, false),
            [
                "1.200e7", "1.202e7", "1.204e7", "1.206e7", "1.208e7", "1.210e7"
            ]
        );
        assert!(texts(1.0, 1.0, false).is_empty());
        assert!(texts(f64::NAN, 1.0, false).is_empty());
    }

    #[test]
    fn pairs_of_numbers_are_between_the_axes() {
        let plot = Plot::new("", Axis::share("x"), Axis::new("y", (10.0, 20.0)));
        assert_eq!(plot.at(0.0, 10.0), (LEFT, HEIGHT - BOTTOM));
        assert_eq!(plot.at(1.0, 20.0), (WIDTH - RIGHT, TOP));
        let (x, y) = plot.at(0.5, 15.0);
        assert_eq!(x, (LEFT + WIDTH - RIGHT) / 2.0);
        assert_eq!(y, (TOP + HEIGHT - BOTTOM) / 2.0);
    }

    #[test]
    fn spans_have_room_and_are_never_empty() {
        let (low, high) = span([1.0, f64::NAN, 3.0].into_iter());
        assert!(low < 1.0 && high > 3.0 && high < 3.2);
        assert_eq!(span([5.0].into_iter()), (4.0, 6.0));
        for numbers in [[1.7e18; 2], [-1.7e308, 1.7e308], [f64::MAX; 2]] {
            let (low, high) = span(numbers.into_iter());
            let place = Axis::new("", (low, high)).place(numbers[0], [0.0, 1.0]);
            assert!(place.is_finite(), "{numbers:?}: {low} {high}");
        }
        assert_eq!(span(std::iter::empty()), (0.0, 1.0));
    }
}
