//! The weather of every state and day.
//!
//! Temperature follows the season and depends on the previous day. Sales depend on [`Weather::mean_temperature`] and
//! [`Weather::rain`].

use super::calendar::{STATES, TEST_DAYS, TRAIN_DAYS, date};
use super::dice::Dice;
use chrono::Datelike;

/// Base of the weather's random streams, far from those of the stores.
const STREAM: u64 = 1 << 40;

pub(super) const HEADER: [&str; 24] = [
    "file",
    "Date",
    "Max_TemperatureC",
    "Mean_TemperatureC",
    "Min_TemperatureC",
    "Dew_PointC",
    "MeanDew_PointC",
    "Min_DewpointC",
    "Max_Humidity",
    "Mean_Humidity",
    "Min_Humidity",
    "Max_Sea_Level_PressurehPa",
    "Mean_Sea_Level_PressurehPa",
    "Min_Sea_Level_PressurehPa",
    "Max_VisibilityKm",
    "Mean_VisibilityKm",
    "Min_VisibilitykM",
    "Max_Wind_SpeedKm_h",
    "Mean_Wind_SpeedKm_h",
    "Max_Gust_SpeedKm_h",
    "Precipitationmm",
    "CloudCover",
    "Events",
    "WindDirDegrees",
];

/// Weather of a day in one state, as in `weather.csv`.
#[derive(Debug)]
pub(super) struct Weather {
    pub(super) mean_temperature: i32,
    pub(super) rain: bool,
    /// All fields after `Date`.
    fields: Vec<String>,
}

impl Weather {
    /// Returns the row of `weather.csv`.
    pub(super) fn row(&self, state: usize, day: u32) -> Vec<String> {
        let key = [STATES[state].name.to_owned(), date(day).to_string()];
        key.into_iter().chain(self.fields.iter().cloned()).collect()
    }
}

/// Draws every day of train and test, in one state.
pub(super) fn draw_weather(state: usize, seed: u64) -> Vec<Weather> {
    let mut dice = Dice::new(seed, STREAM + state as u64);
    let climate = dice.between(-1.0, 1.0);
    let mut anomaly = 0.0;
    (0..TRAIN_DAYS + TEST_DAYS)
        .map(|day| {
            anomaly = 0.8 * anomaly + 2.2 * dice.bell();
            draw_day(season(day) + climate + anomaly, &mut dice)
        })
        .collect()
}

/// Returns the expected temperature of a day in °C, interpolated between the middles of the months.
fn season(day: u32) -> f64 {
    const MONTHS: [f64; 12] = [
        0.5, 1.2, 4.8, 9.3, 13.9, 16.9, 19.0, 18.4, 14.3, 9.8, 5.0, 2.0,
    ];
    let of_year = (f64::from(date(day).ordinal()) - 15.0) / 30.4375 + 12.0;
    let (month, part) = (of_year as usize, of_year - of_year.trunc());
    MONTHS[month % 12] * (1.0 - part) + MONTHS[(month + 1) % 12] * part
}

fn draw_day(temperature: f64, dice: &mut Dice) -> Weather {
    let wet = dice.unit();
    let rain = wet > 0.42 && temperature > -1.0;
    let snow = wet > 0.42 && temperature < 3.0 && dice.chance(0.7);
    let fog = dice.chance(if temperature < 12.0 { 0.32 } else { 0.14 });
    let thunder = rain && temperature > 14.0 && dice.chance(0.2);
    let hail = (rain || snow) && dice.chance(0.012);
    let events = [
        (fog, "Fog"),
        (rain, "Rain"),
        (snow, "Snow"),
        (hail, "Hail"),
        (thunder, "Thunderstorm"),
    ];
    let events: Vec<&str> = events
        .iter()
        .filter(|(is, _)| *is)
        .map(|(_, name)| *name)
        .collect();

    let mean = round(temperature);
    let (above, below) = (round(dice.between(2.0, 6.5)), round(dice.between(2.0, 6.0)));
    let dew = mean - round(dice.between(1.0, 7.0));
    let humidity = (round(58.0 + 30.0 * wet + 4.0 * dice.bell())).clamp(25, 100);
    let (more, less) = (
        round(dice.between(6.0, 20.0)),
        round(dice.between(10.0, 28.0)),
    );
    let pressure = round(1_018.0 - 9.0 * wet + 6.0 * dice.bell());
    let visible = round(dice.between(6.0, 20.0) * if fog { 0.6 } else { 1.0 }).max(1);
    let wind = round(dice.between(4.0, 18.0) + 6.0 * wet).max(1);
    let gusts = wind * 2 + round(dice.between(8.0, 30.0));
    let rainfall = if rain {
        round(dice.between(0.0, 12.0) * wet * wet * wet * 100.0).max(0)
    } else {
        0
    };

    let known = |is_known: bool, value: i32| {
        if is_known {
            value.to_string()
        } else {
            String::new()
        }
    };
    let sees = !dice.chance(0.024);
    let fields = vec![
        (mean + above).to_string(),
        mean.to_string(),
        (mean - below).to_string(),
        (dew + 2).to_string(),
        dew.to_string(),
        (dew - 3).to_string(),
        (humidity + more).min(100).to_string(),
        humidity.to_string(),
        (humidity - less).max(10).to_string(),
        (pressure + 3).to_string(),
        pressure.to_string(),
        (pressure - 4).to_string(),
        known(sees, (visible + 12).min(31)),
        known(sees, visible),
        known(sees, visible / 3),
        (wind + round(dice.between(4.0, 16.0))).to_string(),
        wind.to_string(),
        known(dice.chance(0.2275), gusts),
        hundredths(rainfall),
        known(
            !dice.chance(0.074),
            round(8.0 * wet + dice.bell()).clamp(0, 8),
        ),
        events.join("-"),
        (dice.below(362) as i32 - 1).to_string(),
    ];
    Weather {
        mean_temperature: mean,
        rain: rain || snow,
        fields,
    }
}

fn round(value: f64) -> i32 {
    value.round() as i32
}

/// Formats hundredths: 25 is `0.25`, 250 is `2.5`, 0 is `0`.
fn hundredths(value: i32) -> String {
    let text = format!("{}.{:02}", value / 100, value % 100);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_no_trailing_zeros() {
        assert_eq!(
            [0, 25, 250, 1_000].map(hundredths),
            ["0", "0.25", "2.5", "10"]
        );
    }

    #[test]
    fn july_is_warmer_than_january_and_both_have_weather() {
        let weather = draw_weather(9, 1);
        assert_eq!(weather.len(), 990);
        let mean = |days: std::ops::Range<usize>| -> i32 {
            weather[days]
                .iter()
                .map(|day| day.mean_temperature)
                .sum::<i32>()
                / 31
        };
        assert!(mean(181..212) > mean(0..31) + 10);
        assert!(
            weather
                .iter()
                .all(|day| day.row(9, 0).len() == HEADER.len())
        );
    }
}
