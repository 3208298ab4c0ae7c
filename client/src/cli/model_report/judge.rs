//! What a model's own SQL says of rows: metrics, and what the report's charts are drawn of.
//!
//! ```text
//! --rows ─┬► ML.EVALUATE, also BY column                              metrics, the worst groups
//!         ├► ML.CONFUSION_MATRIX, ML.ROC_CURVE, ML.CALIBRATION        of classes
//!         ├► ML.PREDICT ─► quantiles ─► squares of a grid             of numbers
//!         ├► ML.FEATURE_INFO                                          features beside training's
//!         ├► a sample ─► ML.GLOBAL_EXPLAIN                            permutation importance
//!         └► a sample ─► ML.EXPLAIN_PREDICT                           integrated gradients
//! ```
//!
//! No metric is computed here: queries run on the cluster, and give no more rows than a picture has marks. The same rows
//! give the same report, as far as approximate quantiles are the same. Not here: how it looks.

use anyhow::{Context, bail};
use arrow::array::ArrayRef;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, FieldRef};
use volley::Session;
use volley_proto::store::{Classes, Manifest};

use super::answer::{Answer, numbers, texts};
use super::charts::{Bar, Bin, Cell, Grid, Matrix, Quantile, RocPoint, Spread};

/// Groups that are shown of a column, the worst ones.
const GROUPS: usize = 20;
/// Classes of which a confusion matrix is drawn, at most.
const MATRIX_CLASSES: usize = 100;
/// Features whose importance is shown, those that matter most.
const IMPORTANT: usize = 30;
/// Rows that importance is measured on, at most, and how many values of features they may have: it predicts each row
/// five times for each feature.
const SAMPLE: usize = 4000;
const SAMPLE_VALUES: usize = 200_000;
/// No sample is smaller, however many features there are.
const LEAST_SAMPLE: usize = 200;
/// Features whose attributions are shown, those with the greatest.
const ATTRIBUTED: usize = 20;
/// Rows whose predictions are explained, at most: each takes as long as some 150 predictions.
const EXPLAINED: usize = 1000;
/// Squares of the grid of predicted over actual, in each direction.
const SQUARES: u32 = 40;
/// The share of rows that are beyond the grid on each side.
const BEYOND: f64 = 0.005;
/// Beyond it, and NaN, are no numbers that could be drawn.
const LARGEST: &str = "1e300";
/// Quantiles of errors; attributions are between the outermost two.
const QUANTILES: [f64; 5] = [0.05, 0.25, 0.5, 0.75, 0.95];

/// A model, and the rows that it is judged by.
#[derive(Debug, Clone, Copy)]
pub(super) struct Judge<'a> {
    pub(super) session: &'a Session,
    pub(super) manifest: &'a Manifest,
    /// The query of the rows.
    pub(super) rows: &'a str,
}

/// What is known of a model by rows.
#[derive(Debug)]
pub(super) struct Judged {
    /// Rows with a label.
    pub(super) labelled: u64,
    /// The metrics of `ML.EVALUATE`, by their names.
    pub(super) metrics: Vec<(String, Option<f64>)>,
    pub(super) fit: Fit,
    /// By permutation importance.
    pub(super) important: Important,
    /// By the mean of absolute attributions; or why predictions of such a model are not explained.
    pub(super) attributed: Result<Important, String>,
    /// All rows, with a label or without.
    pub(super) rows: u64,
    /// What features are in these rows, in any order.
    pub(super) features: Vec<RowsOfFeature>,
    pub(super) by: Vec<Groups>,
}

/// How predictions fit labels.
#[derive(Debug)]
pub(super) enum Fit {
    /// Of classes.
    Classes {
        /// Not of too many classes.
        matrix: Option<Matrix>,
        /// Of two classes, of both of which there are rows.
        roc: Vec<RocPoint>,
        calibration: Vec<Bin>,
    },
    /// Of numbers.
    Numbers {
        grid: Grid,
        /// Quantiles of actual less predicted.
        errors: [Quantile; 5],
    },
}

/// The features that matter most.
#[derive(Debug)]
pub(super) struct Important {
    pub(super) features: Vec<Bar>,
    /// How many features there are.
    pub(super) of: u64,
    /// On how many rows that was measured.
    pub(super) rows: u64,
}

/// A feature's values in rows.
#[derive(Debug)]
pub(super) struct RowsOfFeature {
    pub(super) column: String,
    /// Of numbers.
    pub(super) spread: Option<Spread>,
    /// Distinct values.
    pub(super) values: Option<f64>,
    pub(super) nulls: Option<f64>,
    /// By how many of training's standard deviations the mean is another.
    pub(super) drift: Option<f64>,
}

/// Rows by a column, the worst groups first.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) column: String,
    pub(super) worst: Vec<Group>,
    /// How many groups there are.
    pub(super) of: u64,
}

/// Rows with one value of a column.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) value: String,
    pub(super) rows: u64,
    /// The [`group_metrics`](Judge::group_metrics).
    pub(super) metrics: Vec<Option<f64>>,
}

/// A column of rows.
#[derive(Debug)]
struct Column {
    name: String,
    data_type: DataType,
}

impl Judge<'_> {
    /// Asks all that is shown.
    ///
    /// # Errors
    /// When the rows lack what the model was trained on, have no label, or cannot be read.
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

    /// The metrics that groups are compared by; the last one is drawn, and the worst have most of it.
    pub(super) fn group_metrics(manifest: &Manifest) -> [&'static str; 3] {
        match manifest.classes {
            Some(_) => ["accuracy", "f1_score", "log_loss"],
            None => ["r2_score", "mean_absolute_error", "rmspe"],
        }
    }

    /// The rows as a relation.
    fn given(&self) -> String {
        format!("({}\n) AS given", self.query())
    }

    fn query(&self) -> &str {
        self.rows.trim().trim_end_matches(';')
    }

    /// A call of an `ML` function over rows.
    fn call(&self, function: &str, rows: &str, more: &str) -> String {
        let Manifest { spec, version, .. } = self.manifest;
        let model = quoted(spec.model.as_str());
        format!("ML.{function}(MODEL {model}, {version}, ({rows}\n){more})")
    }

    /// A call over all rows.
    fn over_all(&self, function: &str) -> String {
        self.call(function, self.query(), "")
    }

    /// The label in rows: a column of theirs, or what the model's TRANSFORM computes.
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
        // Of rows of one class, a rate is no number.
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

    /// A query of so many of the rows with a label, at most, the same ones each time.
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
        // The score of rows that are all alike is no number.
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

    /// Attributions of features to predictions; or why there are none, of a kind of model that is not explained.
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

/// A count.
fn whole(number: f64) -> u64 {
    number as u64
}

/// Whether what was asked for is nothing that Volley does.
fn is_not_supported(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<volley::Error>(),
        Some(volley::Error::NotSupported { .. })
    )
}

/// Whether values of a type are told apart by their text.
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

/// A name as it is written in SQL.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
