//! BigQuery ML's `TRANSFORM` functions: the values that each fits, and the expression that results.
//!
//! | function | result for a number `x` |
//! |---|---|
//! | `ML.STANDARD_SCALER(x) OVER ()` | (x - mean) / standard deviation (of a sample) |
//! | `ML.MIN_MAX_SCALER(x) OVER ()` | 0 at the minimum, 1 at the maximum, clamped to this range |
//! | `ML.MAX_ABS_SCALER(x) OVER ()` | x / greatest absolute value |
//! | `ML.ROBUST_SCALER(x [, [25, 75]] [, with_median] [, with_quantile_range]) OVER ()` | (x - median) / range |
//! | `ML.QUANTILE_BUCKETIZE(x, buckets [, format]) OVER ()` | the bucket between quantiles, as text |
//! | `ML.IMPUTER(x, 'mean' \| 'median' \| 'most_frequent') OVER ()` | x, with NULL replaced by that value |
//! | `ML.BUCKETIZE(x, [points] [, exclude_boundaries] [, format])` | the bucket between points, as text |
//!
//! A quantile is a value that occurs: the least value that the given share of values does not exceed. A divisor of 0 is
//! replaced by 1.

use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, ObjectNamePart, WindowType,
};
use volley_proto::did_you_mean;

use super::{parse, wrong};
use crate::Result;
use crate::sql::OptionValue;

/// Maximum number of buckets of one function.
const MOST_BUCKETS: u64 = 1000;

/// Names of the fitted functions.
const FITTED: [&str; 6] = [
    "STANDARD_SCALER",
    "MIN_MAX_SCALER",
    "MAX_ABS_SCALER",
    "ROBUST_SCALER",
    "QUANTILE_BUCKETIZE",
    "IMPUTER",
];
const BUCKETIZE: &str = "BUCKETIZE";

/// Statistic that is fitted to training rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Measure {
    Mean,
    Deviation,
    Least,
    Greatest,
    /// The least value that at least `at / of` of all values do not exceed.
    Quantile {
        at: u64,
        of: u64,
    },
    /// The least of the most frequent values.
    MostFrequent,
}

/// Fitted value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fitted {
    Number(f64),
    Text(String),
}

/// Fitted function.
#[derive(Debug)]
pub(super) struct Fit {
    rule: Rule,
    /// The call, as typed.
    pub(super) typed: String,
    pub(super) argument: Expr,
    /// True if its argument is text.
    pub(super) is_text: bool,
}

#[derive(Debug)]
enum Rule {
    Standard,
    MinMax,
    MaxAbs,
    Robust {
        range: [u64; 2],
        median: bool,
        scale: bool,
    },
    Buckets(u64, Format),
    Imputer(Measure),
}

/// Format of bucket names.
#[derive(Debug, Clone, Copy)]
enum Format {
    Names,
    Ranges,
    Json,
}

/// Returns the name of a function of the schema `ml`.
pub(super) fn ml_name(function: &Function) -> Option<&str> {
    match function.name.0.as_slice() {
        [
            ObjectNamePart::Identifier(schema),
            ObjectNamePart::Identifier(name),
        ] if schema.value.eq_ignore_ascii_case("ml") => Some(&name.value),
        _ => None,
    }
}

/// Checks whether a function is fitted.
pub(super) fn is_fitted(function: &Function) -> bool {
    let fitted = |name: &str| FITTED.iter().any(|known| name.eq_ignore_ascii_case(known));
    ml_name(function).is_some_and(fitted)
}

/// `ML` function with its column names resolved.
pub(super) enum Read {
    /// Expression that needs no fitting.
    Scalar(Expr),
    /// Function to be fitted.
    Fitted(Fit),
}

/// Parses a call; `typed` is its text.
///
/// # Errors
/// Names what is wrong with the call.
pub(super) fn read(function: &Function, typed: &str) -> Result<Read> {
    let name = ml_name(function).unwrap_or_default().to_uppercase();
    let arguments = arguments(function).ok_or_else(|| wrong(typed, usage(&name)))?;
    let refuse = || wrong(typed, usage(&name));
    let Some((argument, options)) = arguments.split_first() else {
        return Err(refuse());
    };
    let options = options.iter().map(|option| OptionValue::of(option));
    let options: Option<Vec<_>> = options.collect();
    if name == BUCKETIZE {
        if function.over.is_some() {
            let reason = "it is computed row by row, and takes no OVER ()";
            return Err(wrong(typed, reason));
        }
        let options = options.ok_or_else(refuse)?;
        return bucketize(argument, &options, typed).map(Read::Scalar);
    }
    if !FITTED.contains(&name.as_str()) {
        return Err(wrong(typed, unknown(&name)));
    }
    match &function.over {
        Some(WindowType::WindowSpec(over))
            if over.partition_by.is_empty()
                && over.order_by.is_empty()
                && over.window_frame.is_none()
                && over.window_name.is_none() => {}
        Some(_) => {
            let reason = "expected OVER () with nothing in it: it is fitted to all training rows";
            return Err(wrong(typed, reason));
        }
        None => {
            let reason = "expected OVER () behind it, as for all functions that are fitted to rows";
            return Err(wrong(typed, reason));
        }
    }
    let options = options.ok_or_else(refuse)?;
    let rule = match (name.as_str(), options.as_slice()) {
        ("STANDARD_SCALER", []) => Rule::Standard,
        ("MIN_MAX_SCALER", []) => Rule::MinMax,
        ("MAX_ABS_SCALER", []) => Rule::MaxAbs,
        ("ROBUST_SCALER", options) => robust(options).ok_or_else(refuse)?,
        ("QUANTILE_BUCKETIZE", [buckets, format @ ..]) => {
            let buckets = buckets.number::<u64>();
            let buckets = buckets.filter(|number| (2..=MOST_BUCKETS).contains(number));
            let format = Format::of(format);
            Rule::Buckets(buckets.ok_or_else(refuse)?, format.ok_or_else(refuse)?)
        }
        ("IMPUTER", [OptionValue::Text(strategy)]) => Rule::Imputer(match strategy.as_str() {
            "mean" => Measure::Mean,
            "median" => Measure::Quantile { at: 1, of: 2 },
            "most_frequent" => Measure::MostFrequent,
            _ => return Err(refuse()),
        }),
        _ => return Err(refuse()),
    };
    Ok(Read::Fitted(Fit {
        rule,
        typed: typed.to_owned(),
        argument: (*argument).clone(),
        is_text: false,
    }))
}

/// Returns the arguments of a call without other clauses.
fn arguments(function: &Function) -> Option<Vec<&Expr>> {
    let plain = function.filter.is_none()
        && function.within_group.is_empty()
        && function.null_treatment.is_none()
        && matches!(function.parameters, FunctionArguments::None);
    let FunctionArguments::List(list) = &function.args else {
        return None;
    };
    let plain = plain && list.clauses.is_empty() && list.duplicate_treatment.is_none();
    let arguments = list.args.iter().map(|argument| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    });
    arguments.collect::<Option<Vec<_>>>().filter(|_| plain)
}

/// Describes the arguments that a function expects.
fn usage(name: &str) -> String {
    let expected = match name {
        "STANDARD_SCALER" | "MIN_MAX_SCALER" | "MAX_ABS_SCALER" => "(number) OVER ()",
        "ROBUST_SCALER" => {
            "(number [, [low, high]] [, with_median] [, with_quantile_range]) OVER (), with 0 < low < high < 100 and \
             true or false for the others"
        }
        "QUANTILE_BUCKETIZE" => {
            "(number, buckets [, format]) OVER (), with 2 to 1000 buckets, and 'bucket_names', 'bucket_ranges' or \
             'bucket_ranges_json'"
        }
        "IMPUTER" => "(number or text, 'mean' | 'median' | 'most_frequent') OVER ()",
        BUCKETIZE => {
            "(number, [points] [, exclude_boundaries] [, format]), with numbers from the least to the greatest, true or \
             false, and 'bucket_names', 'bucket_ranges' or 'bucket_ranges_json'"
        }
        _ => return unknown(name),
    };
    format!("expected ML.{name}{expected}")
}

/// Suggests an alternative to an unknown function.
fn unknown(name: &str) -> String {
    let instead = match name {
        "LABEL_ENCODER" | "ONE_HOT_ENCODER" | "MULTI_HOT_ENCODER" => {
            "a text column is a categorical feature, whose values have an embedding each"
        }
        "FEATURE_CROSS" => "write a || '_' || b AS ab",
        "HASH_BUCKETIZE" => "use the option hash_buckets for categorical features",
        "POLYNOMIAL_EXPAND" => "write the products, x * y AS xy",
        _ => {
            let known = || FITTED.into_iter().chain([BUCKETIZE]);
            let hint = did_you_mean(name, known());
            let known: Vec<_> = known().collect();
            return format!(
                "unknown function in TRANSFORM{hint}; the functions are {}",
                known.join(", ")
            );
        }
    };
    format!("not supported: {instead}")
}

/// Parses `[, quantile_range] [, with_median] [, with_quantile_range]`.
fn robust(options: &[OptionValue]) -> Option<Rule> {
    let (range, flags) = match options {
        [list @ OptionValue::List(_), flags @ ..] => {
            let range = list.list(OptionValue::number::<u64>)?;
            (<[u64; 2]>::try_from(range).ok()?, flags)
        }
        flags => ([25, 75], flags),
    };
    let (median, scale) = match flags {
        [] => (true, true),
        [OptionValue::Bool(median)] => (*median, true),
        [OptionValue::Bool(median), OptionValue::Bool(scale)] => (*median, *scale),
        _ => return None,
    };
    let fits = 0 < range[0] && range[0] < range[1] && range[1] < 100;
    fits.then_some(Rule::Robust {
        range,
        median,
        scale,
    })
}

fn bucketize(argument: &Expr, options: &[OptionValue], typed: &str) -> Result<Expr> {
    let refuse = || wrong(typed, usage(BUCKETIZE));
    let [points, rest @ ..] = options else {
        return Err(refuse());
    };
    let points = points.list(OptionValue::number::<f64>).ok_or_else(refuse)?;
    let (excludes, format) = match rest {
        [OptionValue::Bool(excludes), format @ ..] => (*excludes, format),
        format => (false, format),
    };
    let format = Format::of(format).ok_or_else(refuse)?;
    let ordered = points.windows(2).all(|pair| pair[0] < pair[1]);
    let finite = points.iter().all(|point| point.is_finite());
    if points.is_empty() || !ordered || !finite {
        return Err(refuse());
    }
    if points.len() as u64 >= MOST_BUCKETS {
        let reason = format!("expected fewer than {MOST_BUCKETS} points");
        return Err(wrong(typed, reason));
    }
    let points = match excludes {
        false => &points[..],
        true if points.len() < 3 => {
            let reason = "expected at least 3 points, since the first and the last are excluded";
            return Err(wrong(typed, reason));
        }
        true => &points[1..points.len() - 1],
    };
    buckets(&number_of(argument), points, format)
}

impl Format {
    fn of(options: &[OptionValue]) -> Option<Self> {
        match options {
            [] => Some(Self::Names),
            [OptionValue::Text(name)] => match name.as_str() {
                "bucket_names" => Some(Self::Names),
                "bucket_ranges" => Some(Self::Ranges),
                "bucket_ranges_json" => Some(Self::Json),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the name of bucket `at`, which lies between these points.
    fn name(self, at: usize, low: Option<&f64>, high: Option<&f64>) -> String {
        let text = |point: Option<&f64>, none: &str| {
            point.map_or_else(|| none.to_owned(), ToString::to_string)
        };
        match self {
            Self::Names => format!("bin_{}", at + 1),
            Self::Ranges => {
                let open = if low.is_some() { '[' } else { '(' };
                format!("{open}{}, {})", text(low, "-inf"), text(high, "+inf"))
            }
            Self::Json => {
                let (low, high) = (text(low, "-Infinity"), text(high, "Infinity"));
                format!("{{\"start\": \"{low}\", \"end\": \"{high}\"}}")
            }
        }
    }
}

/// Builds the bucket expression of a number: each bucket starts at a point and ends below the next.
fn buckets(number: &str, points: &[f64], format: Format) -> Result<Expr> {
    let name = |at: usize| {
        let low = at.checked_sub(1).and_then(|at| points.get(at));
        format.name(at, low, points.get(at))
    };
    let cases = points.iter().enumerate();
    let cases: String = cases
        .map(|(at, point)| format!(" WHEN {number} < {} THEN '{}'", literal(*point), name(at)))
        .collect();
    let last = name(points.len());
    parse(&format!(
        "CASE WHEN {number} IS NULL THEN NULL{cases} ELSE '{last}' END"
    ))
}

/// Returns the SQL of an expression cast to a number.
pub(super) fn number_of(expr: &Expr) -> String {
    format!("CAST({expr} AS DOUBLE)")
}

/// Returns a number as SQL that parses to the same number.
fn literal(number: f64) -> String {
    let number = number + 0.0; // one zero
    match number < 0.0 {
        true => format!("({number:?})"),
        false => format!("{number:?}"),
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

impl Fit {
    /// Returns the fitted measures, in the order in which [`expression`](Self::expression) takes them.
    pub(super) fn measures(&self) -> Vec<Measure> {
        use Measure::{Deviation, Greatest, Least, Mean, Quantile};
        match &self.rule {
            // A constant has no deviation, but the sums of a cluster may round to one: compare least and greatest.
            Rule::Standard => vec![Mean, Deviation, Least, Greatest],
            Rule::MinMax | Rule::MaxAbs => vec![Least, Greatest],
            Rule::Robust { range, .. } => [50, range[0], range[1]]
                .map(|at| Quantile { at, of: 100 })
                .to_vec(),
            Rule::Buckets(buckets, _) => (1..*buckets)
                .map(|at| Quantile { at, of: *buckets })
                .collect(),
            Rule::Imputer(measure) => vec![*measure],
        }
    }

    /// Checks whether the function takes text too.
    pub(super) fn takes_text(&self) -> bool {
        matches!(self.rule, Rule::Imputer(Measure::MostFrequent))
    }

    /// Returns placeholder values of the right types, for use before fitting.
    pub(super) fn neutral(&self) -> Vec<Fitted> {
        let measures = self.measures();
        let number = |(at, measure): (usize, &Measure)| match measure {
            Measure::MostFrequent if self.is_text => Fitted::Text(String::new()),
            Measure::Deviation | Measure::Greatest => Fitted::Number(1.0),
            Measure::Quantile { .. } => Fitted::Number(at as f64),
            _ => Fitted::Number(0.0),
        };
        measures.iter().enumerate().map(number).collect()
    }

    /// Builds the expression with the fitted values.
    pub(super) fn expression(&self, fitted: &[Fitted]) -> Result<Expr> {
        let x = number_of(&self.argument);
        let number = |at: usize| match fitted.get(at) {
            Some(Fitted::Number(number)) => *number,
            _ => f64::NAN,
        };
        let unit = |unit: f64| match unit == 0.0 {
            true => literal(1.0),
            false => literal(unit),
        };
        let sql = match &self.rule {
            Rule::Standard => {
                let (mean, deviation) = match number(2) == number(3) {
                    true => (number(2), 1.0),
                    false => (number(0), number(1)),
                };
                format!("({x} - {}) / {}", literal(mean), unit(deviation))
            }
            Rule::MinMax => {
                let (least, greatest) = (number(0), number(1));
                let scaled = format!("({x} - {}) / {}", literal(least), unit(greatest - least));
                // `least` and `greatest` would ignore a NULL.
                format!(
                    "CASE WHEN {x} < {} THEN 0.0 WHEN {x} > {} THEN 1.0 ELSE {scaled} END",
                    literal(least),
                    literal(greatest)
                )
            }
            Rule::MaxAbs => {
                let most = number(0).abs().max(number(1).abs());
                format!("{x} / {}", unit(most))
            }
            Rule::Robust { median, scale, .. } => {
                let shift = if *median { number(0) } else { 0.0 };
                let range = if *scale { number(2) - number(1) } else { 1.0 };
                format!("({x} - {}) / {}", literal(shift), unit(range))
            }
            Rule::Buckets(_, format) => {
                let points = (0..fitted.len()).map(number);
                let mut points: Vec<_> = points.collect();
                points.dedup(); // of values that are more frequent than a bucket
                return buckets(&x, &points, *format);
            }
            Rule::Imputer(_) => match fitted.first() {
                Some(Fitted::Text(text)) => {
                    format!("coalesce({}, {})", self.argument, quoted(text))
                }
                _ => format!("coalesce({x}, {})", literal(number(0))),
            },
        };
        parse(&sql)
    }
}
