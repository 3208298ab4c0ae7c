//! The days of the data, with their holidays and promotions in each German state.

use std::ops::Range;

use chrono::{Datelike, Days, NaiveDate, Weekday};

/// Days of train, from 2013-01-01 to 2015-07-31.
pub(super) const TRAIN_DAYS: u32 = 942;
/// Days of test, from 2015-08-01 to 2015-09-17.
pub(super) const TEST_DAYS: u32 = 48;
/// Days of the second half of 2014, when some stores were closed for refurbishment and have no rows.
pub(super) const REFURBISHMENT: Range<u32> = 546..730;

/// Returns the date of a day, counted from 2013-01-01.
pub(super) fn date(day: u32) -> NaiveDate {
    NaiveDate::from_ymd_opt(2013, 1, 1).expect("2013 has a first day") + Days::new(day.into())
}

/// German state, with its names in the tables.
#[derive(Debug)]
pub(super) struct State {
    /// Name in the weather table.
    pub(super) name: &'static str,
    /// Code in the stores' table.
    pub(super) code: &'static str,
    /// Code in the trends' table, if it is there.
    pub(super) trend: Option<&'static str>,
    /// Number of its stores, of 1,115 in total.
    pub(super) stores: u32,
    /// First day of the summer holidays, as (month, day), in 2013, 2014 and 2015.
    summer: [(u32, u32); 3],
}

const fn state(
    name: &'static str,
    code: &'static str,
    trend: Option<&'static str>,
    stores: u32,
    summer: [(u32, u32); 3],
) -> State {
    State {
        name,
        code,
        trend,
        stores,
        summer,
    }
}

/// All sixteen states, by name. Lower Saxony and Bremen share their stores under the former's code.
pub(super) static STATES: [State; 16] = [
    state(
        "BadenWuerttemberg",
        "BW",
        Some("BW"),
        73,
        [(7, 25), (7, 31), (7, 30)],
    ),
    state("Bayern", "BY", Some("BY"), 180, [(7, 31), (7, 30), (8, 1)]),
    state("Berlin", "BE", Some("BE"), 92, [(6, 20), (7, 10), (7, 16)]),
    state("Brandenburg", "BB", None, 0, [(6, 20), (7, 10), (7, 16)]),
    state("Bremen", "HB", None, 0, [(6, 27), (7, 31), (7, 23)]),
    state("Hamburg", "HH", Some("HH"), 28, [(6, 20), (7, 10), (7, 16)]),
    state("Hessen", "HE", Some("HE"), 112, [(7, 8), (7, 28), (7, 27)]),
    state(
        "MecklenburgVorpommern",
        "MV",
        None,
        0,
        [(6, 22), (7, 14), (7, 20)],
    ),
    state(
        "Niedersachsen",
        "HB,NI",
        Some("NI"),
        22,
        [(6, 27), (7, 31), (7, 23)],
    ),
    state(
        "NordrheinWestfalen",
        "NW",
        Some("NW"),
        286,
        [(7, 22), (7, 7), (6, 29)],
    ),
    state(
        "RheinlandPfalz",
        "RP",
        Some("RP"),
        40,
        [(7, 8), (7, 28), (7, 27)],
    ),
    state("Saarland", "SL", Some("SL"), 0, [(7, 8), (7, 28), (7, 27)]),
    state("Sachsen", "SN", Some("SN"), 75, [(7, 15), (7, 21), (7, 13)]),
    state(
        "SachsenAnhalt",
        "ST",
        Some("ST"),
        56,
        [(7, 15), (7, 21), (7, 13)],
    ),
    state(
        "SchleswigHolstein",
        "SH",
        Some("SH"),
        115,
        [(6, 24), (7, 14), (7, 20)],
    ),
    state(
        "Thueringen",
        "TH",
        Some("TH"),
        36,
        [(7, 15), (7, 21), (7, 13)],
    ),
];

/// Properties of a day in one state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Day {
    pub(super) date: NaiveDate,
    /// Kind of holiday: `a` public, `b` Easter, `c` Christmas; `0` if none.
    pub(super) holiday: char,
    pub(super) school_holiday: bool,
    /// True on days with promotions, which run in every store, Monday to Friday of every other week.
    pub(super) promo: bool,
}

impl Day {
    pub(super) fn new(state: &State, day: u32) -> Self {
        let date = date(day);
        let working = date.weekday().number_from_monday() <= 5;
        Self {
            date,
            holiday: holiday(state.code, date),
            school_holiday: working && is_school_holiday(state, date),
            // Day 6 is the first Monday.
            promo: working && day >= 6 && ((day - 6) / 7).is_multiple_of(2),
        }
    }

    /// Returns the weekday; Monday is 1.
    pub(super) fn weekday(&self) -> u32 {
        self.date.weekday().number_from_monday()
    }
}

fn holiday(state: &str, date: NaiveDate) -> char {
    let since_easter = (date - easter(date.year())).num_days();
    let one_of = |states: &[&str]| states.contains(&state);
    let repentance = date.weekday() == Weekday::Wed && (16..=22).contains(&date.day());
    match (date.month(), date.day()) {
        (12, 25 | 26) => 'c',
        (1, 1) | (5, 1) | (10, 3) => 'a',
        (1, 6) if one_of(&["BW", "BY", "ST"]) => 'a',
        (8, 15) if one_of(&["BY", "SL"]) => 'a',
        (10, 31) if one_of(&["BB", "MV", "SN", "ST", "TH"]) => 'a',
        (11, 1) if one_of(&["BW", "BY", "NW", "RP", "SL"]) => 'a',
        (11, _) if repentance && state == "SN" => 'a',
        _ => match since_easter {
            -2 | 1 => 'b',
            39 | 50 => 'a',
            60 if one_of(&["BW", "BY", "HE", "NW", "RP", "SL"]) => 'a',
            _ => '0',
        },
    }
}

fn is_school_holiday(state: &State, date: NaiveDate) -> bool {
    let (month, day) = state.summer[(date.year() - 2013) as usize];
    let summer = NaiveDate::from_ymd_opt(date.year(), month, day).expect("a day of summer");
    (0..44).contains(&(date - summer).num_days())
        || (-9..7).contains(&(date - easter(date.year())).num_days())
        || matches!(
            (date.month(), date.day()),
            (1, ..=5) | (10, 11..=25) | (12, 22..)
        )
}

/// Returns Easter Sunday, by Butcher's rule.
fn easter(year: i32) -> NaiveDate {
    let (golden, century, of_century) = (year % 19, year / 100, year % 100);
    let epact =
        (19 * golden + century - century / 4 - (century - (century + 8) / 25 + 1) / 3 + 15) % 30;
    let weekday = (32 + 2 * (century % 4) + 2 * (of_century / 4) - epact - of_century % 4) % 7;
    let correction = (golden + 11 * epact + 22 * weekday) / 451;
    let days = epact + weekday - 7 * correction + 114;
    NaiveDate::from_ymd_opt(year, (days / 31) as u32, (days % 31 + 1) as u32)
        .expect("Easter lies in March or April")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_days_are_those_of_the_competition() {
        assert_eq!(date(0).to_string(), "2013-01-01");
        assert_eq!(date(TRAIN_DAYS - 1).to_string(), "2015-07-31");
        assert_eq!(date(TRAIN_DAYS + TEST_DAYS - 1).to_string(), "2015-09-17");
        assert_eq!(date(REFURBISHMENT.start).to_string(), "2014-07-01");
        assert_eq!(date(REFURBISHMENT.end).to_string(), "2015-01-01");
    }

    #[test]
    fn easter_moves() {
        let sundays = [2013, 2014, 2015].map(|year| easter(year).to_string());
        assert_eq!(sundays, ["2013-03-31", "2014-04-20", "2015-04-05"]);
    }

    #[test]
    fn holidays_differ_by_state() {
        let on =
            |state, month, day| holiday(state, NaiveDate::from_ymd_opt(2014, month, day).unwrap());
        assert_eq!(on("NW", 12, 25), 'c');
        assert_eq!(on("NW", 4, 21), 'b');
        assert_eq!(on("NW", 4, 20), '0');
        assert_eq!(on("BY", 8, 15), 'a');
        assert_eq!(on("NW", 8, 15), '0');
        assert_eq!(on("SN", 11, 19), 'a');
    }
}
