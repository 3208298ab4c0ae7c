//! Search interest in the shop, by week, in Germany and its states.

use chrono::{Datelike, Days, NaiveDate};

use super::calendar::{STATES, date};
use super::dice::Dice;

/// Weeks, Sunday to Saturday, from 2012-12-02 to 2015-10-03.
pub(super) const WEEKS: usize = 148;

/// Stream of the trends' random numbers, far from those of stores and weather.
const STREAM: u64 = 1 << 41;

/// Returns the regions of `googletrend.csv` in their order: Germany (`None`), then the states by their codes.
pub(super) fn regions() -> Vec<Option<&'static str>> {
    let mut states: Vec<_> = STATES
        .iter()
        .filter_map(|state| state.trend)
        .map(Some)
        .collect();
    states.sort_unstable();
    [None].into_iter().chain(states).collect()
}

/// Draws one region's searches by week, 0 to 100. They rise before Christmas, and slowly every year.
pub(super) fn draw_trend(region: Option<&str>, seed: u64) -> Vec<i32> {
    let stream = regions()
        .iter()
        .position(|each| *each == region)
        .expect("a region of the file");
    let mut dice = Dice::new(seed, STREAM + stream as u64);
    let level = dice.between(55.0, 65.0);
    let noise = if region.is_some() { 8.0 } else { 4.0 };
    (0..WEEKS)
        .map(|week| {
            let christmas = if first_day(week).month() == 12 {
                15.0
            } else {
                0.0
            };
            let value = level + christmas + 0.05 * week as f64 + noise * dice.bell();
            (value.round() as i32).clamp(0, 100)
        })
        .collect()
}

/// Returns the week of `googletrend.csv` that the features join to a day.
///
/// They match the calendar year and the ISO week of the day with those of the week's first day, a Sunday: so the
/// days from Monday to that Sunday see the week that the Sunday begins.
pub(super) fn week_of(day: u32) -> usize {
    // Week 0 begins on 2012-12-02, four weeks and two days before day 0, a Tuesday.
    let sunday = day / 7 * 7 + 5 + if day % 7 > 5 { 7 } else { 0 };
    ((sunday + 30) / 7) as usize
}

/// Formats a week as in the file.
pub(super) fn label(week: usize) -> String {
    let first = first_day(week);
    format!("{first} - {}", first + Days::new(6))
}

fn first_day(week: usize) -> NaiveDate {
    date(0) - Days::new(30) + Days::new(7 * week as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weeks_are_those_of_the_file() {
        assert_eq!(label(0), "2012-12-02 - 2012-12-08");
        assert_eq!(label(WEEKS - 1), "2015-09-27 - 2015-10-03");
        assert_eq!(regions().len() * WEEKS, 2_072);
    }

    #[test]
    fn a_day_sees_the_week_of_its_iso_week_s_sunday() {
        for day in 0..990 {
            let first = first_day(week_of(day));
            assert_eq!(first.iso_week(), date(day).iso_week(), "day {day}");
        }
    }
}
