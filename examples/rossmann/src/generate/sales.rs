//! Sales of a store on a day.
//!
//! They are the product of the store's ordinary day, factors for weekday, promotion, month, holidays, competition
//! and weather, and noise with a standard deviation of about a tenth: an error that no model can go below.

use chrono::Datelike;

use super::calendar::{Day, REFURBISHMENT};
use super::dice::Dice;
use super::stores::Store;
use super::weather::Weather;

/// Largest sales in the competition's tables.
const LARGEST: f64 = 41_551.0;
const NOISE: f64 = 0.09;

/// Conditions that sales depend on besides the store.
#[derive(Debug)]
pub(super) struct Occasion<'a> {
    /// Days since 2013-01-01.
    pub(super) number: u32,
    pub(super) day: Day,
    pub(super) weather: &'a Weather,
    /// Searches in the store's state and week.
    pub(super) trend: i32,
    /// True if a public holiday is tomorrow or was yesterday.
    pub(super) beside_holiday: bool,
}

/// Sales of one store on one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sold {
    pub(super) sales: u32,
    pub(super) customers: u32,
}

/// Returns whether a store opens on a day.
pub(super) fn is_open(store: &Store, day: &Day) -> bool {
    (day.holiday == '0' || store.open_on_holidays) && (day.weekday() != 7 || store.open_on_sundays)
}

/// Draws sales and customers of an open store.
pub(super) fn draw_sales(store: &Store, occasion: &Occasion<'_>, dice: &mut Dice) -> Sold {
    // One in fifteen thousand open days has no sales.
    if dice.chance(0.000_064) {
        return Sold {
            sales: 0,
            customers: 0,
        };
    }
    let noise = 1.0 + NOISE * dice.bell();
    let sales = (expected(store, occasion) * noise).clamp(46.0, LARGEST);
    let basket = store.basket * if occasion.day.promo { 1.12 } else { 1.0 };
    let customers = sales / basket * (1.0 + 0.04 * dice.bell());
    Sold {
        sales: sales as u32,
        customers: customers as u32,
    }
}

/// Returns the sales without noise.
fn expected(store: &Store, occasion: &Occasion<'_>) -> f64 {
    const MONTHS: [f64; 12] = [
        0.93, 0.95, 1.0, 1.01, 1.02, 1.0, 0.99, 0.97, 0.96, 0.96, 1.04, 1.22,
    ];
    const WEEKDAYS: [f64; 5] = [1.10, 0.99, 0.95, 0.97, 1.04];
    let Occasion { day, weather, .. } = occasion;
    let weekday = match day.weekday() {
        6 => store.saturday,
        7 => 1.15,
        working => WEEKDAYS[working as usize - 1],
    };
    let promo = match (day.promo, day.weekday()) {
        (false, _) => 1.0,
        (true, 1) => 1.08 + store.promo_lift,
        (true, _) => 1.0 + store.promo_lift,
    };
    let payday = match day.date.day() {
        1..=4 => 1.06,
        20..=26 => 0.95,
        30.. => 1.07,
        _ => 1.0,
    };
    let holidays = if occasion.beside_holiday { 1.12 } else { 1.0 }
        * if day.school_holiday { 1.03 } else { 1.0 }
        * if day.holiday == '0' { 1.0 } else { 1.2 };
    let weather = if weather.rain { 0.975 } else { 1.0 }
        * if weather.mean_temperature > 22 {
            0.96
        } else {
            1.0
        };
    let searches = 1.0 + 0.002 * f64::from(occasion.trend - 65);
    let growth = 1.0 + 0.035 * f64::from(occasion.number) / 365.0;
    store.level
        * weekday
        * promo
        * MONTHS[day.date.month0() as usize]
        * payday
        * holidays
        * competition(store, day)
        * promo2(store, day)
        * weather
        * searches
        * growth
        * if store.refurbished && occasion.number >= REFURBISHMENT.end {
            1.05
        } else {
            1.0
        }
}

/// Returns the factor of a new competitor: it takes customers, more if it is near; within two years they come back.
fn competition(store: &Store, day: &Day) -> f64 {
    let (Some(distance), Some((month, year))) =
        (store.competition_distance, store.competition_since)
    else {
        return 1.0;
    };
    let months = (day.date.year() - year) * 12 + day.date.month0() as i32 - (month as i32 - 1);
    if !(0..24).contains(&months) {
        return 1.0;
    }
    let pull = 1_000.0 / (1_000.0 + f64::from(distance));
    1.0 - 0.12 * pull * (1.0 - f64::from(months) / 24.0)
}

/// Returns the factor of Promo2: its rounds start in four months of the year and last that month.
fn promo2(store: &Store, day: &Day) -> f64 {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sept", "Oct", "Nov", "Dec",
    ];
    match store.promo2 {
        Some((week, year, rounds))
            if (day.date.year(), day.date.iso_week().week()) >= (year, week)
                && rounds
                    .split(',')
                    .any(|month| month == MONTHS[day.date.month0() as usize]) =>
        {
            1.04
        }
        _ => 1.0,
    }
}
