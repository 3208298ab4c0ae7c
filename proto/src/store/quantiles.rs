//! Quantiles of a column's numbers, and normal scores by them.
//!
//! The score is that of scikit-learn's `QuantileTransformer(output_distribution='normal')`: a number's rank among
//! equally spaced quantiles, as a share, through the inverse of the normal distribution. This module does not choose
//! the numbers.

use std::cmp::Ordering;

use serde::ser::SerializeSeq;
use serde::{Deserialize, Serialize, Serializer};

/// Quantiles of numbers, from the smallest to the largest, equally spaced in rank.
///
/// Between two quantiles, ranks are interpolated; a number that several quantiles equal has the middle of their ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Stored")]
pub struct Quantiles {
    /// Distinct quantiles, ascending.
    #[serde(serialize_with = "exact")]
    values: Vec<f64>,
    /// Rank of the last quantile that equals each of them; empty if no two are equal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    last: Vec<u32>,
}

/// Quantiles as stored in a file, not validated yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    values: Vec<StoredNumber>,
    #[serde(default)]
    last: Vec<u32>,
}

/// A number, or its shortest text if a reader of JSON might get its last bit wrong.
///
/// A number that equals a quantile has another score than its neighbours, so that every bit matters.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredNumber {
    Number(f64),
    Text(String),
}

impl From<f64> for StoredNumber {
    fn from(x: f64) -> Self {
        let text = format!("{x:?}");
        match serde_json::from_str::<f64>(&text) {
            Ok(read) if read.to_bits() == x.to_bits() => Self::Number(x),
            _ => Self::Text(text),
        }
    }
}

impl TryFrom<StoredNumber> for f64 {
    type Error = String;

    fn try_from(stored: StoredNumber) -> Result<Self, String> {
        match stored {
            StoredNumber::Number(x) => Ok(x),
            StoredNumber::Text(text) => text
                .parse()
                .map_err(|_| format!("expected a number instead of {text:?}")),
        }
    }
}

fn exact<S: Serializer>(values: &[f64], to: S) -> Result<S::Ok, S::Error> {
    let mut all = to.serialize_seq(Some(values.len()))?;
    for x in values {
        all.serialize_element(&StoredNumber::from(*x))?;
    }
    all.end()
}

impl TryFrom<Stored> for Quantiles {
    type Error = String;

    fn try_from(Stored { values, last }: Stored) -> Result<Self, String> {
        let values = values.into_iter().map(f64::try_from);
        let values = values.collect::<Result<Vec<_>, _>>()?;
        let ascends = values.windows(2).all(|pair| pair[0] < pair[1])
            && values.iter().all(|value| !value.is_nan());
        let ranks = last.is_empty()
            || (last.len() == values.len()
                && last.windows(2).all(|pair| pair[0] < pair[1])
                && last
                    .last()
                    .is_some_and(|last| (*last as usize) < Self::MOST));
        match ascends && ranks && values.len() <= Self::MOST {
            true => Ok(Self { values, last }),
            false => Err(format!(
                "expected at most {} quantiles, ascending, and the rank of each",
                Self::MOST
            )),
        }
    }
}

/// Returns the `at`-th of the quantiles that cut numbers in ascending order into `of` equal parts, interpolated as
/// NumPy's `linear`; 0 if there are no numbers.
pub fn quantile(sorted: &[f64], at: usize, of: usize) -> f64 {
    let (Some(last), true) = (sorted.len().checked_sub(1), of > 0) else {
        return sorted.first().copied().unwrap_or(0.0);
    };
    // In integers, so that a quantile at one of the numbers equals it exactly.
    let (low, rest) = (at * last / of, at * last % of);
    let [from, to] = [low, low + 1].map(|place| sorted[place.min(last)]);
    from + (to - from) * rest as f64 / of as f64
}

/// Takes all quantiles, ascending, equal ones repeated.
impl From<Vec<f64>> for Quantiles {
    fn from(all: Vec<f64>) -> Self {
        let mut values = all.clone();
        values.dedup();
        let runs = all.chunk_by(|left, right| left == right);
        let last = runs.scan(0, |end, run| {
            *end += run.len() as u32;
            Some(*end - 1)
        });
        let last = match values.len() < all.len() {
            true => last.collect(),
            false => vec![],
        };
        Self { values, last }
    }
}

impl Quantiles {
    /// Maximum number of quantiles, scikit-learn's default `n_quantiles`; fewer for fewer numbers.
    pub const MOST: usize = 1000;
    /// Share of the normal distribution beyond the extreme scores, as in scikit-learn.
    const TAIL: f64 = 1e-7;

    /// Returns the quantiles of numbers in ascending order.
    pub fn of(sorted: &[f64]) -> Self {
        let count = sorted.len().min(Self::MOST);
        let parts = count.saturating_sub(1);
        let all = (0..count).map(|at| quantile(sorted, at, parts));
        Self::from(all.collect::<Vec<_>>())
    }

    /// Returns all quantiles, ascending, equal ones repeated.
    pub fn to_vec(&self) -> Vec<f64> {
        let values = self.values.iter().enumerate();
        let repeated = values.flat_map(|(at, value)| std::iter::repeat_n(*value, self.count(at)));
        repeated.collect()
    }

    /// Returns the number of quantiles.
    pub fn len(&self) -> usize {
        self.values
            .len()
            .checked_sub(1)
            .map_or(0, |at| self.last(at) + 1)
    }

    /// Checks whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns the median; 0 if there are no numbers.
    pub fn median(&self) -> f64 {
        quantile(&self.to_vec(), 1, 2)
    }

    /// Returns the normal score of a number, within ± 5.2, also beyond all quantiles: 0 for a median that differs from
    /// the smallest and the largest quantile. If all quantiles are equal, it is 0 for any number.
    pub fn score(&self, x: f64) -> f64 {
        let (Some(least), Some(greatest)) = (self.values.first(), self.values.last()) else {
            return 0.0;
        };
        let (least, greatest) = (*least, *greatest);
        // Also if numbers do not compare.
        if least.partial_cmp(&greatest) != Some(Ordering::Less) {
            return 0.0;
        }
        if x <= least || x >= greatest {
            return normal_quantile(if x <= least { 0.0 } else { 1.0 });
        }
        let most = self.values.len() - 1;
        let above = self
            .values
            .partition_point(|value| *value <= x)
            .clamp(1, most);
        let [low, high] = [above - 1, above].map(|at| self.values[at]);
        let rank = match x == low {
            true => (self.first(above - 1) + self.last(above - 1)) as f64 / 2.0,
            false => self.last(above - 1) as f64 + (x - low) / (high - low),
        };
        normal_quantile(rank / self.last(most) as f64)
    }

    /// Returns the mean and the variance of the scores of numbers that have these quantiles.
    pub fn moments(&self) -> [f64; 2] {
        let rows = self.len().max(1) as f64;
        let (mut sum, mut squares) = (0.0, 0.0);
        for (at, value) in self.values.iter().enumerate() {
            let (count, score) = (self.count(at) as f64, self.score(*value));
            sum += count * score;
            squares += count * score * score;
        }
        let mean = sum / rows;
        [mean, (squares / rows - mean * mean).max(0.0)]
    }

    /// Returns the rank of the first quantile that equals the value at an index.
    fn first(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.last(before) + 1)
    }

    /// Returns the rank of the last one.
    fn last(&self, at: usize) -> usize {
        self.last.get(at).map_or(at, |rank| *rank as usize)
    }

    fn count(&self, at: usize) -> usize {
        (self.last(at) + 1).saturating_sub(self.first(at))
    }
}

/// Returns the number below which a share of a normal distribution lies: Wichura 1988, AS 241 (doi:10.2307/2347330),
/// whose third range is beyond [`Quantiles::TAIL`].
fn normal_quantile(share: f64) -> f64 {
    let polynomial =
        |x: f64, of: [f64; 8]| of.into_iter().fold(0.0_f64, |sum, term| sum * x + term);
    let share = share.clamp(Quantiles::TAIL, 1.0 - Quantiles::TAIL);
    let from_middle = share - 0.5;
    if from_middle.abs() <= 0.425 {
        let x = 0.180_625 - from_middle * from_middle;
        let numerator = [
            2_509.080_928_730_122_7,
            33_430.575_583_588_13,
            67_265.770_927_008_7,
            45_921.953_931_549_87,
            13_731.693_765_509_46,
            1_971.590_950_306_551_3,
            133.141_667_891_784_38,
            3.387_132_872_796_366_5,
        ];
        let denominator = [
            5_226.495_278_852_854,
            28_729.085_735_721_943,
            39_307.895_800_092_71,
            21_213.794_301_586_597,
            5_394.196_021_424_751,
            687.187_007_492_057_9,
            42.313_330_701_600_91,
            1.0,
        ];
        return from_middle * polynomial(x, numerator) / polynomial(x, denominator);
    }
    let x = (-share.min(1.0 - share).ln()).sqrt() - 1.6;
    let numerator = [
        0.000_774_545_014_278_341_4,
        0.022_723_844_989_269_184,
        0.241_780_725_177_450_6,
        1.270_458_252_452_368_4,
        3.647_848_324_763_204_5,
        5.769_497_221_460_691,
        4.630_337_846_156_546,
        1.423_437_110_749_683_5,
    ];
    let denominator = [
        1.050_750_071_644_416_9e-9,
        0.000_547_593_808_499_534_5,
        0.015_198_666_563_616_457,
        0.148_103_976_427_480_08,
        0.689_767_334_985_1,
        1.676_384_830_183_803_8,
        2.053_191_626_637_759,
        1.0,
    ];
    let distance = polynomial(x, numerator) / polynomial(x, denominator);
    distance.copysign(from_middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Score of the largest number and those beyond it; that of the smallest has the opposite sign.
    const END: f64 = 5.199_337_58;

    fn assert_scores(numbers: &[f64], due: &[(f64, f64)]) {
        let quantiles = Quantiles::of(numbers);
        for (x, due) in due {
            let score = quantiles.score(*x);
            assert!((score - due).abs() < 2e-6, "{x}: {score} instead of {due}");
        }
    }

    #[test]
    fn scores_are_those_of_scikit_learn() {
        let ties = [1.0, 1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 8.0, 20.0, 50.0];
        let due = [
            (0.0, -END),
            (1.0, -END),
            (1.5, -0.589_455_797_8),
            (2.0, -0.430_727_299_3),
            (2.5, -0.282_216_147_1),
            (4.0, 0.0),
            (8.0, 0.589_455_797_8),
            (14.0, 0.967_421_566_1),
            (49.99, 3.962_805_673_3),
            (50.0, END),
            (60.0, END),
        ];
        assert_scores(&ties, &due);
        // More numbers than quantiles.
        let squares: Vec<f64> = (0..2501).map(|i| f64::from(i * i) / 64.0).collect();
        let due = [
            (0.01, -3.723_164_210_1),
            (10.0, -2.322_080_940_6),
            (1000.3, -1.274_701_570_2),
            (50_000.0, 0.569_647_595_3),
            (97_000.0, 2.709_839_066_3),
        ];
        assert_scores(&squares, &due);
        assert_eq!(Quantiles::of(&squares).len(), Quantiles::MOST);
    }

    #[test]
    fn numbers_that_do_not_differ_have_no_scores() {
        for numbers in [&[][..], &[7.0], &[7.0; 5]] {
            let quantiles = Quantiles::of(numbers);
            assert_eq!(quantiles.len(), numbers.len());
            assert_eq!(
                [6.0, 7.0, 8.0].map(|x| quantiles.score(x)),
                [0.0; 3],
                "{numbers:?}"
            );
            assert_eq!(quantiles.moments(), [0.0, 0.0]);
        }
    }

    #[test]
    fn equal_quantiles_are_stored_once_and_come_back() {
        let ties = vec![0.0, 0.0, 0.25, 1.0, 1.0, 1.0];
        let quantiles = Quantiles::from(ties.clone());
        assert_eq!(quantiles.to_vec(), ties);
        assert_eq!((quantiles.len(), quantiles.median()), (6, 0.625));
        let json = serde_json::to_string(&quantiles).unwrap();
        assert_eq!(json, r#"{"values":[0.0,0.25,1.0],"last":[1,2,5]}"#);
        assert_eq!(serde_json::from_str::<Quantiles>(&json).unwrap(), quantiles);
        let json = serde_json::to_string(&Quantiles::from(vec![0.5, 0.75])).unwrap();
        assert_eq!(json, r#"{"values":[0.5,0.75]}"#);
    }

    #[test]
    fn quantiles_come_back_from_json_to_the_last_bit() {
        let step = |i: u32| 1.7e9 + f64::from(i) * 0.1;
        let thirds = (1..500).map(|i| f64::from(i) / 3.0);
        let mut all: Vec<f64> = thirds.chain((0..400).map(step)).collect();
        all.extend([-1e300, 5e-324, 1.0_f64.next_up(), 9_007_199_254_740_993.0]);
        all.sort_by(f64::total_cmp);
        let quantiles = Quantiles::from(all);
        let json = serde_json::to_string(&quantiles).unwrap();
        assert_eq!(serde_json::from_str::<Quantiles>(&json).unwrap(), quantiles);
        let read = serde_json::from_str::<Quantiles>(r#"{"values":["0.1",0.25,3]}"#).unwrap();
        assert_eq!(read.to_vec(), [0.1, 0.25, 3.0]);
    }

    #[test]
    fn numbers_that_f32_takes_for_one_have_scores_of_their_own() {
        let seconds: Vec<f64> = (0..5).map(|i| 1.7e9 + f64::from(i)).collect();
        let quantiles = Quantiles::of(&seconds);
        assert_eq!(quantiles.median(), 1.7e9 + 2.0);
        let scores: Vec<f64> = seconds.iter().map(|x| quantiles.score(*x)).collect();
        assert!(scores.is_sorted_by(|a, b| a < b), "{scores:?}");
    }

    #[test]
    fn what_are_no_quantiles_is_refused() {
        for json in [
            r#"{"values":[0.0,1.0],"last":[0,4294967295]}"#,
            r#"{"values":[0.0,1.0],"last":[1,1]}"#,
            r#"{"values":[0.0,1.0],"last":[1]}"#,
            r#"{"values":[1.0,0.0]}"#,
            r#"{"values":[0.0],"last":[],"more":1}"#,
            r#"{"values":[0.0,"one"]}"#,
            r#"{"values":["NaN"]}"#,
        ] {
            assert!(serde_json::from_str::<Quantiles>(json).is_err(), "{json}");
        }
        // Numbers that do not compare; JSON cannot contain them.
        let quantiles = Quantiles::from(vec![f64::NAN]);
        assert_eq!([quantiles.score(1.0), quantiles.score(f64::NAN)], [0.0; 2]);
    }

    #[test]
    fn moments_are_those_of_the_scores() {
        let numbers: Vec<f64> = (0..501).map(|i| (f64::from(i) / 50.0).exp()).collect();
        let quantiles = Quantiles::of(&numbers);
        let scores: Vec<f64> = numbers.iter().map(|x| quantiles.score(*x)).collect();
        let mean = scores.iter().sum::<f64>() / 501.0;
        let variance = scores.iter().map(|y| (y - mean).powi(2)).sum::<f64>() / 501.0;
        let [found, spread] = quantiles.moments();
        assert!((found - mean).abs() < 1e-9 && mean.abs() < 1e-6, "{found}");
        assert!((spread - variance).abs() < 1e-9, "{spread} {variance}");
    }

    #[test]
    fn quantiles_are_interpolated_as_numpy_does() {
        let sorted = [1.0, 2.0, 4.0, 8.0];
        let of = |at, of| quantile(&sorted, at, of);
        assert_eq!([of(0, 2), of(1, 2), of(2, 2)], [1.0, 3.0, 8.0]);
        assert_eq!([of(1, 4), of(1, 3), of(2, 3)], [1.75, 2.0, 4.0]);
        assert_eq!(quantile(&[], 1, 2), 0.0);
        assert_eq!(quantile(&[-1e30, 0.0], 1, 1), 0.0);
    }
}
