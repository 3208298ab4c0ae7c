//! The stores: their data in `store.csv` and `store_states.csv`, and properties that show only in their sales.

use super::calendar::{REFURBISHMENT, STATES, TRAIN_DAYS};
use super::dice::Dice;

/// Number of stores in the competition's tables; of these, the numbers of refurbished stores and of stores in test
/// follow.
pub(super) const FULL_SIZE: u32 = 1115;
const REFURBISHED: u32 = 180;
const IN_TEST: u32 = 856;

/// A store. The second half of the fields is in no table.
#[derive(Debug)]
pub(super) struct Store {
    /// Number of the store, from 1.
    pub(super) number: u32,
    /// Index into [`STATES`].
    pub(super) state: usize,
    pub(super) kind: char,
    pub(super) assortment: char,
    /// Distance to the nearest competitor, in metres.
    pub(super) competition_distance: Option<u32>,
    /// Month and year in which the competitor opened.
    pub(super) competition_since: Option<(u32, i32)>,
    /// Week and year when the store joined Promo2, and the months in which its rounds start.
    pub(super) promo2: Option<(u32, i32, &'static str)>,

    pub(super) refurbished: bool,
    /// True for the one store whose first row is of 2013-01-02.
    pub(super) starts_late: bool,
    pub(super) in_test: bool,
    pub(super) open_on_sundays: bool,
    pub(super) open_on_holidays: bool,
    /// Sales on an ordinary day.
    pub(super) level: f64,
    /// Increase by a promotion, as a fraction.
    pub(super) promo_lift: f64,
    /// Saturday's sales, as a fraction of an ordinary day's.
    pub(super) saturday: f64,
    /// Average spending of a customer.
    pub(super) basket: f64,
}

impl Store {
    /// Returns whether train has a row of this store for this day.
    pub(super) fn has_row(&self, day: u32) -> bool {
        day < TRAIN_DAYS
            && !(self.refurbished && REFURBISHMENT.contains(&day))
            && !(self.starts_late && day == 0)
    }

    fn draw(number: u32, dice: &mut Dice) -> Self {
        let kind = dice.pick(&[('a', 602), ('b', 17), ('c', 148), ('d', 348)]);
        let assortment = match kind {
            'b' => dice.pick(&[('a', 7), ('b', 9), ('c', 1)]),
            'd' => dice.pick(&[('a', 128), ('c', 220)]),
            _ => dice.pick(&[('a', 458), ('c', 292)]),
        };
        let states: Vec<(usize, u32)> = STATES
            .iter()
            .enumerate()
            .map(|(index, state)| (index, state.stores))
            .collect();
        let distance = distance(dice);
        let spread = dice.bell();
        let near = distance.is_some_and(|metres| metres < 500);
        let level = 5_480.0
            * (1.0 + 0.33 * spread + 0.07 * spread * spread)
            * if kind == 'b' { 1.5 } else { 1.0 }
            * if assortment == 'c' { 1.05 } else { 1.0 }
            * if near { 0.93 } else { 1.0 };
        Self {
            number,
            state: dice.pick(&states),
            kind,
            assortment,
            competition_distance: distance,
            competition_since: (distance.is_some() && dice.chance(0.684))
                .then(|| competition_since(dice)),
            promo2: dice.chance(0.512).then(|| promo2(dice)),
            refurbished: false,
            starts_late: false,
            in_test: false,
            open_on_sundays: kind == 'b' || dice.chance(0.013),
            open_on_holidays: kind == 'b' && dice.chance(0.8),
            level,
            promo_lift: dice.between(0.20, 0.42),
            saturday: dice.between(0.75, 1.0),
            basket: if kind == 'b' {
                dice.between(4.5, 6.0)
            } else {
                dice.between(7.5, 11.5)
            },
        }
    }
}

/// Draws the stores of a data set, in the order of their numbers.
pub(super) fn draw_stores(count: u32, seed: u64) -> Vec<Store> {
    let mut stores: Vec<Store> = (1..=count)
        .map(|number| Store::draw(number, &mut Dice::new(seed, u64::from(number))))
        .collect();
    let mut dice = Dice::new(seed, 0);
    let total = stores.len();
    for index in dice.sample(total, scaled(REFURBISHED, count)) {
        stores[index].refurbished = true;
    }
    for index in dice.sample(total, scaled(IN_TEST, count).max(1)) {
        stores[index].in_test = true;
    }
    stores[dice.below(total)].starts_late = true;
    stores
}

/// Scales a number of stores from the full size to `stores`.
fn scaled(of: u32, stores: u32) -> usize {
    ((u64::from(of) * u64::from(stores) + u64::from(FULL_SIZE) / 2) / u64::from(FULL_SIZE)) as usize
}

/// Draws a competitor's distance: many are near and a few are far. The deciles are in metres.
fn distance(dice: &mut Dice) -> Option<u32> {
    const DECILES: [u32; 11] = [
        20, 250, 520, 1_020, 1_550, 2_330, 3_500, 5_200, 8_700, 15_000, 60_000,
    ];
    if dice.chance(0.003) {
        return None;
    }
    let decile = dice.below(10);
    let (low, high) = (f64::from(DECILES[decile]), f64::from(DECILES[decile + 1]));
    Some(dice.between(low, high) as u32 / 10 * 10)
}

fn competition_since(dice: &mut Dice) -> (u32, i32) {
    const YEARS: [(i32, u32); 23] = [
        (1900, 1),
        (1961, 1),
        (1990, 5),
        (1994, 2),
        (1995, 2),
        (1998, 2),
        (1999, 8),
        (2000, 10),
        (2001, 16),
        (2002, 27),
        (2003, 19),
        (2004, 22),
        (2005, 62),
        (2006, 47),
        (2007, 48),
        (2008, 54),
        (2009, 54),
        (2010, 55),
        (2011, 54),
        (2012, 82),
        (2013, 83),
        (2014, 70),
        (2015, 38),
    ];
    (dice.below(12) as u32 + 1, dice.pick(&YEARS))
}

fn promo2(dice: &mut Dice) -> (u32, i32, &'static str) {
    const WEEKS: [u32; 12] = [1, 5, 9, 10, 13, 14, 18, 22, 31, 35, 40, 45];
    let year = dice.pick(&[
        (2009, 73),
        (2010, 64),
        (2011, 128),
        (2012, 81),
        (2013, 120),
        (2014, 95),
        (2015, 10),
    ]);
    let rounds = dice.pick(&[
        ("Jan,Apr,Jul,Oct", 335),
        ("Feb,May,Aug,Nov", 130),
        ("Mar,Jun,Sept,Dec", 106),
    ]);
    // No store joined after spring of the last year.
    let week = if year == 2015 {
        WEEKS[dice.below(8)]
    } else {
        WEEKS[dice.below(12)]
    };
    (week, year, rounds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_size_has_the_rows_of_the_competition() {
        let stores = draw_stores(FULL_SIZE, 7);
        let train: usize = stores
            .iter()
            .map(|store| (0..TRAIN_DAYS).filter(|&day| store.has_row(day)).count())
            .sum();
        assert_eq!(train, 1_017_209);
        assert_eq!(stores.iter().filter(|store| store.in_test).count(), 856);
    }

    #[test]
    fn every_number_of_stores_has_one_in_test() {
        for count in 1..=30 {
            assert!(
                draw_stores(count, 1).iter().any(|store| store.in_test),
                "{count} stores"
            );
        }
    }
}
