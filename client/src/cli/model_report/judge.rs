//! Judgement of a model by rows, computed by its own SQL functions: metrics, and the numbers in the report's charts.
//!
//! ```text
//! --rows ─┬► ML.EVALUATE, also BY column                              metrics, the worst groups
//!         ├► ML.CONFUSION_MATRIX, ML.ROC_CURVE, ML.CALIBRATION        fit of classes
//!         ├► ML.PREDICT ─► quantiles ─► squares of a grid             fit of numbers
//!         ├► ML.FEATURE_INFO                                          features beside training's
//!         ├► a sample ─► ML.GLOBAL_EXPLAIN                            permutation importance
//!         └► a sample ─► ML.EXPLAIN_PREDICT                           integrated gradients
//! ```
//!
//! This module computes no metric: queries run on the cluster, and return no more rows than a chart has marks. The same
//! rows give the same report, except for approximate quantiles. The module does not draw anything.

use anyhow::{Context, bail};
use arrow::array::ArrayRef;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, FieldRef};
use volley::Session;
use volley_proto::store::{Classes, Manifest};

use super::answer::{Answer, numbers, texts};
use super::charts::{Bar, Bin, Cell, Grid, Matrix, Quantile, RocPoint, Spread};

/// Maximum number of groups shown per column, the worst first.
const GROUPS: usize = 20;
/// Maximum number of classes for which a confusion matrix is drawn.
const MATRIX_CLASSES: usize = 100;
/// Maximum number of features whose importance is shown, the most important first.
const IMPORTANT: usize = 30;
/// Maximum number of rows to measure importance on, and of feature values in them: each row is predicted five times for
/// each feature.
const SAMPLE: usize = 4000;
const SAMPLE_VALUES: usize = 200_000;
/// Minimum sample size in rows, however many features there are.
const LEAST_SAMPLE: usize = 200;
/// Maximum number of features whose attributions are shown, the greatest first.
const ATTRIBUTED: usize = 20;
/// Maximum number of rows whose predictions are explained: each takes as long as about 150 predictions.
const EXPLAINED: usize = 1000;
/// Squares of the grid of predicted over actual values, in each direction.
const SQUARES: u32 = 40;
/// Largest share of rows beyond each end of the grid; the outermost squares count them.
const BEYOND: f64 = 0.005;
/// Largest absolute value that is drawn; larger values and NaN are left out.
const LARGEST: &str = "1e300";
/// Quantiles of errors; attributions are shown between the first and the last.
const QUANTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// Model, and the rows that judge it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judge<'a> {
    pub(super) session: &'a Session,
    pub(super) manifest: &'a Manifest,
    /// Query that returns the rows.
    pub(super) rows: &'a str,
}

/// Judgement of a model by rows.
#[derive(Debug)]
pub(super) struct Judged {
    /// Number of rows with a label.
    pub(super) labelled: u64,
    /// Metrics of `ML.EVALUATE`, by name.
    pub(super) metrics: Vec<(String, Option<f64>)>,
    pub(super) fit: Fit,
    /// Features by permutation importance.
    pub(super) important: Important,
    /// Features by mean absolute attribution, or the reason why predictions of such a model are not explained.
    pub(super) attributed: Result<Important, String>,
    /// Number of rows, with or without a label.
    pub(super) rows: u64,
    /// Features in these rows, in any order.
    pub(super) features: Vec<RowsOfFeature>,
    pub(super) by: Vec<Groups>,
}

/// Fit of predictions to labels.
#[derive(Debug)]
pub(super) enum Fit {
    /// Fit of predicted classes.
    Classes {
        /// Confusion matrix, unless there are too many classes.
        matrix: Option<Matrix>,
        /// ROC curve of two classes; empty unless there are rows of both.
        roc: Vec<RocPoint>,
        calibration: Vec<Bin>,
    },
    /// Fit of predicted numbers.
    Numbers {
        grid: Grid,
        /// Quantiles of actual minus predicted.
        errors: [Quantile; 5],
    },
}

/// Most important features.
#[derive(Debug)]
pub(super) struct Important {
    pub(super) features: Vec<Bar>,
    /// Number of all features.
    pub(super) of: u64,
    /// Number of rows that importance was measured on.
    pub(super) rows: u64,
}

/// Values of a feature in rows.
#[derive(Debug)]
pub(super) struct RowsOfFeature {
    pub(super) column: String,
    /// Spread of a numeric feature.
    pub(super) spread: Option<Spread>,
    /// Number of distinct values.
    pub(super) values: Option<f64>,
    pub(super) nulls: Option<f64>,
    /// Distance of the mean from training's, in training's standard deviations.
    pub(super) drift: Option<f64>,
}

/// Groups of rows by a column, the worst first.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) column: String,
    pub(super) worst: Vec<Group>,
    /// Number of all groups.
    pub(super) of: u64,
}

/// Group of rows with one value of a column.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) value: String,
    pub(super) rows: u64,
    /// Values of the [`group_metrics`](Judge::group_metrics).
    pub(super) metrics: Vec<Option<f64>>,
}

/// Column of rows.
#[derive(Debug)]
struct Column {
    name: String,
    data_type: DataType,
}

impl Judge<'_> {
    /// Runs all queries of the report.
    ///
    /// # Errors
    /// When the rows lack columns that the model was trained on, have no label, or cannot be read.
    pub(super) async fn judged(&self, by: &[String]) -> anyhow::Result<Judged> {
        if !self.manifest.spec.label.several().is_empty() {
            bail!("not supported: --rows of a model with several labels; ask ML.EVALUATE");
        }
        let columns = self.columns().await?;
        let metrics = self.metrics().await?;
        let labelled = metrics.iter().find(|(name, _)| name == "rows");
        let labelled = labelled.and_then(|(_, rows)| *rows).map_or(0, whole);
        if labelled == 0 {
            bail!("--rows: none of the rows has a label to compare with");
        }
        let fit = match &self.manifest.classes {
            Some(classes) => self.classes(classes).await?,
            None => self.numbers().await?,
        };
        let important = self.important(&columns, labelled).await?;
        let attributed = self.attributed(&columns, labelled).await?;
        let all = self.ask(format!("SELECT count(*) AS n FROM {}", self.given()));
        let rows = all.await?.numbers("n")?.first().copied().flatten();
        let mut groups = Vec::new();
        for column in by {
            groups.push(self.groups(column).await?);
        }
        Ok(Judged {
            labelled,
            metrics,
            fit,
            important,
            attributed,
            rows: rows.map_or(0, whole),
            features: self.features().await?,
            by: groups,
        })
    }

    /// Returns the metrics that compare groups. The last one is drawn, and the worst groups have the highest.
    pub(super) fn group_metrics(manifest: &Manifest) -> [&'static str; 3] {
        match manifest.classes {
            Some(_) => ["accuracy", "f1_score", "log_loss"],
            None => ["r2_score", "mean_absolute_error", "rmspe"],
        }
    }

    /// Returns the rows as a relation.
    fn given(&self) -> String {
        format!("({}\n) AS given", self.query())
    }

    fn query(&self) -> &str {
        self.rows.trim().trim_end_matches(';')
    }

    /// Returns a call of an `ML` function over rows.
    fn call(&self, function: &str, rows: &str, more: &str) -> String {
        let Manifest { spec, version, .. } = self.manifest;
        let model = quoted(spec.model.as_str());
        format!("ML.{function}(MODEL {model}, {version}, ({rows}\n){more})")
    }

    /// Returns a call over all rows.
    fn over_all(&self, function: &str) -> String {
        self.call(function, self.query(), "")
    }

    /// Returns the label of the rows: one of their columns, or an expression of the model's TRANSFORM.
    fn label(&self) -> String {
        let spec = &self.manifest.spec;
        let label = spec.label.column();
        let transform = spec.transform.iter();
        let mut computed = transform.flat_map(|transform| &transform.columns);
        match computed.find(|computed| computed.column == *label) {
            Some(computed) => format!("({})", computed.sql),
            None => quoted(label),
        }
    }

    async fn ask(&self, sql: String) -> anyhow::Result<Answer> {
        let frame = self.session.sql(&sql).await.context("--rows")?;
        let batches = frame.collect().await.map_err(volley::Error::from);
        let batches = batches.context("--rows")?;
        let Some(first) = batches.first() else {
            return Ok(Answer(None));
        };
        Ok(Answer(Some(concat_batches(&first.schema(), &batches)?)))
    }

    async fn columns(&self) -> anyhow::Result<Vec<Column>> {
        let sql = format!("SELECT * FROM {}", self.given());
        let frame = self.session.sql(&sql).await.context("--rows")?;
        let columns = frame.schema().fields().iter().map(|field| Column {
            name: field.name().clone(),
            data_type: field.data_type().clone(),
        });
        Ok(columns.collect())
    }

    async fn metrics(&self) -> anyhow::Result<Vec<(String, Option<f64>)>> {
        let sql = format!("SELECT * FROM {}", self.over_all("EVALUATE"));
        let Answer(Some(batch)) = self.ask(sql).await? else {
            return Ok(Vec::new());
        };
        let schema = batch.schema();
        let columns = schema.fields().iter().zip(batch.columns());
        let metric = |(field, column): (&FieldRef, &ArrayRef)| {
            let value = numbers(column)?.first().copied().flatten();
            anyhow::Ok((field.name().clone(), value))
        };
        columns.map(metric).collect()
    }

    async fn classes(&self, classes: &Classes) -> anyhow::Result<Fit> {
        let matrix = if classes.len() <= MATRIX_CLASSES {
            Some(self.matrix(classes).await?)
        } else {
            None
        };
        let roc = if classes.len() == 2 {
            self.roc().await?
        } else {
            Vec::new()
        };
        let answer = self.ask(format!(
            "SELECT * FROM {} ORDER BY above",
            self.over_all("CALIBRATION")
        ));
        let bins = answer.await?.rows(
            ["above", "rows", "mean_probability", "true_share"],
            |[above, rows, mean_probability, true_share]| Bin {
                above,
                rows: whole(rows),
                mean_probability,
                true_share,
            },
        )?;
        Ok(Fit::Classes {
            matrix,
            roc,
            calibration: bins,
        })
    }

    async fn matrix(&self, classes: &Classes) -> anyhow::Result<Matrix> {
        let sql = format!(
            "SELECT * FROM {} ORDER BY expected_label",
            self.over_all("CONFUSION_MATRIX")
        );
        let classes = classes.texts();
        let Answer(Some(batch)) = self.ask(sql).await? else {
            bail!("ML.CONFUSION_MATRIX has no rows");
        };
        let labels = texts(batch.column(0))?;
        let mut counts = vec![vec![0; classes.len()]; labels.len()];
        for class in 0..classes.len() {
            let column = numbers(batch.column(class + 1))?;
            for (count, row) in column.into_iter().zip(&mut counts) {
                row[class] = count.map_or(0, whole);
            }
        }
        Ok(Matrix {
            labels,
            classes,
            counts,
        })
    }

    async fn roc(&self) -> anyhow::Result<Vec<RocPoint>> {
        let sql = format!(
            "SELECT * FROM {} ORDER BY threshold DESC",
            self.over_all("ROC_CURVE")
        );
        // If all rows are of one class, a rate is not a number.
        self.ask(sql).await?.rows(
            ["threshold", "recall", "false_positive_rate"],
            |[threshold, recall, false_positive_rate]| RocPoint {
                threshold,
                recall,
                false_positive_rate,
            },
        )
    }

    async fn numbers(&self) -> anyhow::Result<Fit> {
        let (label, predicted) = (self.label(), quoted(&self.manifest.predicted().name));
        let pairs = format!(
            "(SELECT CAST({label} AS DOUBLE) AS actual, CAST({predicted} AS DOUBLE) AS predicted FROM {}) AS pairs \
             WHERE abs(actual) <= {LARGEST} AND abs(predicted) <= {LARGEST}",
            self.over_all("PREDICT")
        );
        let ends = [BEYOND, 1.0 - BEYOND];
        let quantile = |share: f64, of: &str| {
            format!("approx_percentile_cont({share}) WITHIN GROUP (ORDER BY {of})")
        };
        let wanted = ["actual", "predicted"].into_iter();
        let wanted = wanted.flat_map(|of| ends.map(|share| quantile(share, of)));
        let wanted = wanted.chain(QUANTILES.map(|share| quantile(share, "error")));
        let wanted = wanted.enumerate().map(|(at, of)| format!("{of} AS q{at}"));
        let wanted: Vec<_> = wanted.collect();
        let answer = self.ask(format!(
            "SELECT {} FROM (SELECT actual, predicted, actual - predicted AS error FROM {pairs}) AS errors",
            wanted.join(", ")
        ));
        let names = ["q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8"];
        let found = answer.await?.rows(names, |quantiles| quantiles)?;
        let Some(&[a, b, c, d, ref errors @ ..]) = found.first() else {
            bail!("--rows: no row has a number as its label and one as its prediction");
        };
        let (low, high) = (a.min(c), b.max(d));
        let room = if high > low {
            0.0
        } else {
            low.abs().max(1.0) / 2.0
        };
        let (low, high) = (low - room, high + room);
        let width = (high - low) / f64::from(SQUARES);
        let square = |of: &str| {
            let last = SQUARES - 1;
            format!(
                "CAST(floor(least(greatest(({of} - ({low:e})) / {width:e}, 0.0), {last}.0)) AS BIGINT)"
            )
        };
        let cells = self.ask(format!(
            "SELECT x, y, count(*) AS n FROM (SELECT {} AS x, {} AS y FROM {pairs}) AS squares \
             GROUP BY x, y ORDER BY x, y",
            square("actual"),
            square("predicted"),
        ));
        let cells = cells.await?.rows(["x", "y", "n"], |[x, y, n]| Cell {
            actual: x as u32,
            predicted: y as u32,
            rows: whole(n),
        })?;
        let grid = Grid {
            low,
            high,
            squares: SQUARES,
            cells,
        };
        let errors = [0, 1, 2, 3, 4].map(|at: usize| (QUANTILES[at], errors[at]));
        Ok(Fit::Numbers { grid, errors })
    }

    /// Returns a query of at most `most` rows with a label, the same rows each time.
    fn sample(&self, columns: &[Column], most: usize) -> String {
        let hashed = columns.iter().filter(|column| has_text(&column.data_type));
        let hashed = hashed.map(|column| format!("CAST({} AS VARCHAR)", quoted(&column.name)));
        let hashed: Vec<_> = hashed.collect();
        let order = match hashed.is_empty() {
            true => String::new(),
            false => format!("ORDER BY md5(concat_ws('|', {}))", hashed.join(", ")),
        };
        let (given, label) = (self.given(), self.label());
        format!("SELECT * FROM {given} WHERE {label} IS NOT NULL {order} LIMIT {most}")
    }

    async fn important(&self, columns: &[Column], labelled: u64) -> anyhow::Result<Important> {
        let features = self.manifest.features.len().max(1);
        let most = (SAMPLE_VALUES / features).clamp(LEAST_SAMPLE, SAMPLE);
        let sample = self.sample(columns, most);
        let answer = self.ask(format!(
            "SELECT feature, attribution, attribution_stddev, count(*) OVER () AS features FROM {} \
             ORDER BY attribution DESC NULLS LAST, feature LIMIT {IMPORTANT}",
            self.call("GLOBAL_EXPLAIN", &sample, "")
        ));
        let answer = answer.await?;
        let names = answer.texts("feature")?.into_iter();
        let attributions = answer.numbers("attribution")?;
        let deviations = answer.numbers("attribution_stddev")?;
        let features = names.zip(attributions).zip(deviations);
        // If all rows are alike, their score is not a number.
        let features = features.filter_map(|((feature, attribution), deviation)| {
            let fall = attribution.filter(|fall| fall.is_finite())?;
            let deviation = deviation.unwrap_or(0.0);
            Some(Bar {
                feature,
                value: fall,
                whisker: [fall - deviation, fall + deviation],
            })
        });
        let of = answer.numbers("features")?.first().copied().flatten();
        Ok(Important {
            features: features.collect(),
            of: of.map_or(0, whole),
            rows: labelled.min(most as u64),
        })
    }

    /// Returns the attributions of features to predictions, or the reason why this kind of model is not explained.
    async fn attributed(
        &self,
        columns: &[Column],
        labelled: u64,
    ) -> anyhow::Result<Result<Important, String>> {
        let sample = self.sample(columns, EXPLAINED);
        let of = self.manifest.features.len();
        let call = self.call(
            "EXPLAIN_PREDICT",
            &sample,
            &format!(", top_k_features => {of}"),
        );
        let [low, .., high] = QUANTILES.map(|share| {
            format!("approx_percentile_cont({share}) WITHIN GROUP (ORDER BY attribution)")
        });
        let answer = self.ask(format!(
            "SELECT feature, avg(abs(attribution)) AS mean, {low} AS low, {high} AS high FROM \
             (SELECT item['feature'] AS feature, item['attribution'] AS attribution FROM \
             (SELECT unnest(top_feature_attributions) AS item FROM {call}) AS explained) AS attributions \
             WHERE abs(attribution) <= {LARGEST} GROUP BY feature ORDER BY mean DESC, feature LIMIT {ATTRIBUTED}"
        ));
        let answer = match answer.await {
            Err(error) if is_not_supported(&error) => {
                return Ok(Err(error.root_cause().to_string()));
            }
            answer => answer?,
        };
        let names = answer.texts("feature")?.into_iter();
        let numbers = answer.rows(["mean", "low", "high"], |numbers| numbers)?;
        let features = names.zip(numbers).map(|(feature, [value, low, high])| Bar {
            feature,
            value,
            whisker: [low, high],
        });
        Ok(Ok(Important {
            features: features.collect(),
            of: of as u64,
            rows: labelled.min(EXPLAINED as u64),
        }))
    }

    async fn features(&self) -> anyhow::Result<Vec<RowsOfFeature>> {
        let sql = format!("SELECT * FROM {}", self.over_all("FEATURE_INFO"));
        let answer = self.ask(sql).await?;
        let names = answer.texts("input")?;
        let measures = [
            "min",
            "max",
            "mean",
            "stddev",
            "category_count",
            "null_count",
            "drift",
        ];
        let mut columns = Vec::new();
        for measure in measures {
            columns.push(answer.numbers(measure)?);
        }
        let feature = |(row, column): (usize, String)| {
            let number = |at: usize| columns[at][row].filter(|number| number.is_finite());
            let spread = || {
                Some(Spread {
                    min: number(0)?,
                    max: number(1)?,
                    mean: number(2)?,
                    stddev: number(3)?,
                })
            };
            RowsOfFeature {
                column,
                spread: spread(),
                values: number(4),
                nulls: number(5),
                drift: number(6),
            }
        };
        Ok(names.into_iter().enumerate().map(feature).collect())
    }

    async fn groups(&self, column: &str) -> anyhow::Result<Groups> {
        let [_, second, last] = Self::group_metrics(self.manifest);
        let name = quoted(column);
        let call = self.call("EVALUATE", self.query(), &format!(", BY {name}"));
        let answer = self.ask(format!(
            "SELECT *, count(*) OVER () AS __volley_groups FROM {call} \
             ORDER BY {last} DESC NULLS LAST, {second} DESC NULLS LAST, {name} LIMIT {GROUPS}"
        ));
        let answer = answer.await?;
        let mut metrics = Vec::new();
        for metric in Self::group_metrics(self.manifest) {
            metrics.push(answer.numbers(metric)?);
        }
        let rows = answer.numbers("rows")?.into_iter();
        let worst = answer.texts(column)?.into_iter().zip(rows).enumerate();
        let worst = worst.map(|(at, (value, rows))| Group {
            value,
            rows: rows.map_or(0, whole),
            metrics: metrics.iter().map(|metric| metric[at]).collect(),
        });
        let of = answer
            .numbers("__volley_groups")?
            .first()
            .copied()
            .flatten();
        Ok(Groups {
            column: column.to_owned(),
            worst: worst.collect(),
            of: of.map_or(0, whole),
        })
    }
}

/// Converts a number to a count.
fn whole(number: f64) -> u64 {
    number as u64
}

/// Returns whether the error says that Volley does not support the query.
fn is_not_supported(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<volley::Error>(),
        Some(volley::Error::NotSupported { .. })
    )
}

/// Returns whether the text of a type's values tells them apart.
fn has_text(data_type: &DataType) -> bool {
    let plain = match data_type {
        DataType::Dictionary(_, values) => values,
        plain => plain,
    };
    let is_time = matches!(
        plain,
        DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)
    );
    plain.is_numeric() || plain.is_string() || is_time || *plain == DataType::Boolean
}

/// Quotes a name for SQL.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
