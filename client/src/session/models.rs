//! `SHOW MODELS`, `DESCRIBE MODEL` and `DROP MODEL`: statements about the store, which run in this process; and `DROP
//! PREPARED`, which the scheduler carries out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::array::{ArrayRef, StringArray, TimestampSecondArray, UInt32Array};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use volley_proto::limits::row_count;
use volley_proto::spec::{
    BatchSize, Computed, DeviceKind, Feature, FeatureKind, Linear, Rule, Start, VocabularyRule,
    layers_text,
};
use volley_proto::store::{HoldingKind, Manifest, ModelSummary};
use volley_proto::tables::Run;
use volley_proto::{ModelName, PreparedId};

use super::{Output, Session};
use crate::Result;
use crate::system_tables::Scope;

/// Maximum length of an expression of a TRANSFORM, in characters.
const LONGEST: usize = 60;

impl Session {
    pub(super) async fn show_models(&self) -> Result<Output> {
        let published = self.store().list().await?.into_iter();
        let mut models: BTreeMap<ModelName, (Option<ModelSummary>, Vec<String>)> = published
            .map(|model| (model.name.clone(), (Some(model), vec![])))
            .collect();
        for holding in self.store().examine(None, false).await? {
            if let HoldingKind::Unfinished(run) = holding.kind {
                let (_, unfinished) = models.entry(holding.model).or_default();
                unfinished.push(run.to_string());
            }
        }
        let names = models.keys().map(|name| Some(name.to_string()));
        let summaries = || models.values().map(|(summary, _)| summary.as_ref());
        let versions = summaries().map(|model| {
            let versions = model?.versions.iter().map(u32::to_string);
            Some(versions.collect::<Vec<_>>().join(", "))
        });
        let current = summaries().map(|model| model?.versions.last().copied());
        let published = summaries().map(|model| Some(unix_seconds(model?.published)));
        let published: TimestampSecondArray = published.collect();
        let unfinished = models.values().map(|(_, runs)| runs);
        let unfinished = unfinished.map(|runs| (!runs.is_empty()).then(|| runs.join(", ")));
        rows([
            ("name", Arc::new(names.collect::<StringArray>()) as ArrayRef),
            ("versions", Arc::new(versions.collect::<StringArray>())),
            ("current", Arc::new(current.collect::<UInt32Array>())),
            ("published", Arc::new(published.with_timezone("+00:00"))),
            ("unfinished", Arc::new(unfinished.collect::<StringArray>())),
        ])
    }

    pub(super) async fn describe_model(
        &self,
        name: &ModelName,
        version: Option<u32>,
    ) -> Result<Output> {
        let manifest = self.store().manifest(name, version).await?;
        let (properties, values): (Vec<_>, Vec<_>) = describe(&manifest).into_iter().unzip();
        rows([
            (
                "property",
                Arc::new(StringArray::from(properties)) as ArrayRef,
            ),
            ("value", Arc::new(StringArray::from(values))),
        ])
    }

    pub(super) async fn drop_model(
        &self,
        name: &ModelName,
        version: Option<u32>,
        if_exists: bool,
    ) -> Result<Output> {
        if if_exists {
            let versions = self.store().versions(name).await?;
            if versions.is_empty() {
                return Ok(Output::message(format!("model {name} does not exist")));
            }
            if let Some(version) = version.filter(|version| !versions.contains(version)) {
                let message = format!("model {name} has no version {version}");
                return Ok(Output::message(message));
            }
        }
        if let Some(version) = version {
            self.store().drop_version(name, version).await?;
            let message = format!("version {version} of model {name} dropped");
            return Ok(Output::message(message));
        }
        let versions = self.store().drop_model(name).await?;
        let plural = if versions == 1 { "version" } else { "versions" };
        let mut message = format!("model {name} dropped ({versions} {plural})");
        // The scheduler may be away, and need not be there for this.
        let runs: Vec<Run> = self
            .system_tables
            .rows(Scope::All)
            .await
            .unwrap_or_default();
        let under_way = |run: &&Run| run.model == name.as_str() && !run.state.has_ended();
        for run in runs.iter().filter(under_way) {
            let run = &run.train_id;
            message += &format!(
                "\ntraining run {run} of a model {name} is under way, and publishes a version when it is done: \
                 volley jobs cancel ends its job"
            );
        }
        Ok(Output::message(message))
    }
}

impl Session {
    pub(super) async fn drop_prepared(&self, id: Option<PreparedId>) -> Result<Output> {
        let dropped = self.system_tables.drop_prepared(id).await?;
        Ok(Output::message(match (id, dropped) {
            (Some(id), _) => format!("prepared rows {id} dropped"),
            (None, 1) => "the prepared rows of one query dropped".to_owned(),
            (None, dropped) => format!("the prepared rows of {dropped} queries dropped"),
        }))
    }
}

fn rows<const N: usize>(columns: [(&str, ArrayRef); N]) -> Result<Output> {
    let batch =
        RecordBatch::try_from_iter(columns).map_err(datafusion::error::DataFusionError::from)?;
    let schema: SchemaRef = batch.schema();
    Ok(Output::batches(schema, vec![batch]))
}

fn unix_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// Describes a model as properties, in reading order.
fn describe(manifest: &Manifest) -> Vec<(String, String)> {
    let spec = &manifest.spec;
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut add = |property: &str, value: String| rows.push((property.to_owned(), value));
    add("model", spec.model.to_string());
    add("version", manifest.version.to_string());
    add(
        "published",
        humantime::format_rfc3339_seconds(manifest.published).to_string(),
    );
    for (metric, value) in metrics(manifest) {
        add(&metric, value);
    }
    add("train_id", spec.train_id.to_string());
    add("model_type", spec.model_type().to_owned());
    add("label", spec.label.columns.join(", "));
    add("label_transform", word(&spec.label.transform));
    let predicted = manifest.predicted();
    let predicted = predicted
        .fields()
        .into_iter()
        .map(|field| field.name().clone());
    add("prediction", predicted.collect::<Vec<_>>().join(", "));
    if let Some(classes) = &manifest.classes {
        add("classes", classes.len().to_string());
    }
    add("data_split", spec.split.to_string());
    for computed in spec.transform.iter().flat_map(|of| &of.columns) {
        let Computed { column, typed, sql } = computed;
        let same = typed == sql || format!("\"{typed}\"") == *sql;
        let fitted = match same {
            true => String::new(),
            false => format!(" = {}", cut(sql)),
        };
        add(
            &format!("transform {column}"),
            format!("{}{fitted}", cut(typed)),
        );
    }
    for (Feature { column, kind }, learnt) in spec.features.iter().zip(&manifest.features) {
        let kind = match kind {
            FeatureKind::Categorical => "categorical",
            FeatureKind::Continuous => "continuous",
        };
        let values = learnt
            .vocabulary
            .map(|size| format!(", {size} values"))
            .unwrap_or_default();
        let bins = match learnt.bins.len() {
            0 => String::new(),
            edges => format!(", {} bins", edges - 1),
        };
        add(
            &format!("feature {column}"),
            format!("{kind}, {}{values}{bins}", learnt.data_type),
        );
    }
    add("numeric_transform", spec.numeric_transform.to_string());
    match spec.vocabulary {
        VocabularyRule::Values {
            min_frequency,
            most,
        } => {
            if min_frequency > 0 {
                add("min_frequency", min_frequency.to_string());
            }
            if let Some(most) = most {
                add("max_vocabulary", most.to_string());
            }
        }
        VocabularyRule::Buckets(buckets) => add("hash_buckets", buckets.to_string()),
    }
    let network = &spec.network;
    if network.linear != Linear::Alone {
        add("network", layers_text(&network.layers));
        add("embedding_dim", network.embedding_dim.to_string());
        add("batch_norm", network.batch_norm.to_string());
        add("numeric_embedding", word(&network.numeric_embedding));
        add("factors", network.factors.to_string());
        add("ensemble_size", network.ensemble_size.to_string());
        add("wide", (network.linear == Linear::Beside).to_string());
    }
    add("activation_output", word(&network.output));
    add("output_scale", manifest.output_scale.to_string());
    add("parameters", manifest.parameters.to_string());
    add("loss", spec.loss.to_string());
    for (label, weight) in spec.label.columns.iter().zip(&spec.label.loss_weights) {
        add(&format!("loss_weight {label}"), weight.to_string());
    }
    if let Some(column) = &spec.sample_weight {
        add("sample_weight_col", column.clone());
    }
    if manifest.classes.is_some() {
        add("class_weights", spec.class_weights.to_string());
    }
    add(
        "l2_reg",
        match spec.l2 {
            Some(l2) => l2.to_string(),
            None => "1 / (2 · training rows)".to_owned(),
        },
    );
    add("l1_reg", spec.l1.to_string());
    add("optimizer", spec.optimizer.to_string());
    if !matches!(spec.optimizer.rule, Rule::Lbfgs { .. }) {
        add("learn_rate", spec.optimizer.learn_rate.to_string());
        add("learn_rate_schedule", spec.optimizer.schedule.to_string());
    }
    match spec.batch_size.map(BatchSize::option) {
        Some((option, rows)) => add(option, rows.to_string()),
        None => add("global_batch_size", "by the number of rows".to_owned()),
    }
    add("accumulate", spec.accumulate.to_string());
    add("seed", spec.seed.to_string());
    add(
        "start",
        match &spec.start {
            Start::Fresh => "fresh weights".to_owned(),
            Start::Resume => "a checkpoint, where there was one".to_owned(),
            Start::Warm(model) => format!("the weights of {model}"),
        },
    );
    add("train_rows", manifest.train_rows.to_string());
    add("eval_rows", manifest.eval_rows.to_string());
    add("ranks", manifest.world_size.to_string());
    add("device", device(manifest));
    let recorded = manifest.precision();
    add(
        "precision",
        recorded.unwrap_or_else(|| "not recorded".to_owned()),
    );
    add("epochs", manifest.history.len().to_string());
    add(
        "kept_epoch",
        format!("{} (keep = {})", manifest.kept_epoch, word(&spec.keep)),
    );
    if let Some(refit) = &manifest.refit {
        let (first, last) = (refit.first_epoch, manifest.history.len());
        add(
            "refit",
            format!("epochs {first} to {last}, on all {}", row_count(refit.rows)),
        );
    }
    if let Some(why) = manifest
        .selection()
        .last()
        .and_then(|last| last.ended.clone())
    {
        add("ended", why);
    }
    rows
}

/// Returns the metrics of the kept epoch.
fn metrics(manifest: &Manifest) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    let mut add = |property: &str, value: f64| rows.push((property.to_owned(), value.to_string()));
    let kept = manifest
        .history
        .iter()
        .find(|epoch| epoch.epoch == manifest.kept_epoch);
    if let Some(kept) = kept {
        add("kept_epoch loss", kept.loss);
        let metrics = [
            ("eval_loss", kept.eval_loss),
            ("eval_mae", kept.eval_mae),
            ("eval_rmse", kept.eval_rmse),
            ("eval_r2", kept.eval_r2),
            ("eval_accuracy", kept.eval_accuracy),
            ("eval_interval_coverage", kept.eval_interval_coverage),
            ("eval_rmspe", kept.eval_rmspe),
        ];
        for (name, value) in metrics {
            if let Some(value) = value {
                add(&format!("kept_epoch {name}"), value);
            }
        }
        for of in &kept.labels {
            let metrics = [
                ("eval_loss", of.eval_loss),
                ("eval_mae", of.eval_mae),
                ("eval_rmse", of.eval_rmse),
                ("eval_r2", of.eval_r2),
                ("eval_rmspe", of.eval_rmspe),
            ];
            for (name, value) in metrics {
                if let Some(value) = value {
                    let property = format!("kept_epoch {name} of {}", of.label);
                    add(&property, value);
                }
            }
        }
    }
    rows
}

/// Returns the device that was asked for, with the kinds of devices that computed if they are known and others.
fn device(manifest: &Manifest) -> String {
    let asked = manifest.spec.device.to_string();
    let kinds = manifest.rank_devices.iter().map(|rank| match rank.device {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Cuda => "cuda",
        DeviceKind::Wgpu => "wgpu",
    });
    let kinds: BTreeSet<_> = kinds.collect();
    let computed = kinds.into_iter().collect::<Vec<_>>().join(" and ");
    // The kind of `cuda:1` is `cuda`.
    let kind = asked.split(':').next().unwrap_or(&asked);
    match computed.is_empty() || computed == kind {
        true => asked,
        false => format!("{computed} ({asked} was asked for)"),
    }
}

/// Returns the first characters of a long text.
fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the word for a value in the spec's text form.
fn word<T: serde::Serialize + std::fmt::Debug>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => format!("{value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::spec::{Device, Precision, RankDevice};

    use super::*;

    #[test]
    fn describes_what_matters() {
        let mut manifest = crate::testing::manifest("sales");
        manifest.features[1].bins = vec![0.0, 0.5, 2.0];
        let properties = describe(&manifest);
        let of = |name: &str| {
            let found = properties.iter().find(|(property, _)| property == name);
            found.unwrap_or_else(|| panic!("{name}")).1.as_str()
        };
        assert_eq!(of("label_transform"), "ln");
        assert_eq!(of("feature Store"), "categorical, Int64, 3 values");
        assert_eq!(of("feature Distance"), "continuous, Float64, 2 bins");
        assert_eq!(of("numeric_transform"), "none");
        assert_eq!(of("start"), "fresh weights");
        assert_eq!(of("kept_epoch"), "2 (keep = best)");
        assert_eq!(of("kept_epoch eval_rmspe"), "0.2");
        let first: Vec<_> = properties.iter().take(4).map(|(name, _)| name).collect();
        assert_eq!(first, ["model", "version", "published", "kept_epoch loss"]);
    }

    #[test]
    fn says_which_precision_was_asked_for_and_computed() {
        let mut manifest = crate::testing::manifest("sales");
        let described = |manifest: &Manifest| {
            let rows = describe(manifest).into_iter();
            let precision = rows.filter(|(property, _)| property == "precision");
            precision.map(|(_, value)| value).collect::<Vec<_>>()
        };
        assert_eq!(described(&manifest), ["not recorded"]);
        manifest.spec.precision = Some(Precision::Tf32);
        let device = RankDevice::new(DeviceKind::Cpu, manifest.spec.precision);
        manifest.rank_devices = vec![device; 2];
        assert_eq!(described(&manifest), ["tf32 on the CPU, as asked for"]);
        manifest.spec.device = Device::Auto;
        assert_eq!(super::device(&manifest), "cpu (auto was asked for)");
        manifest.spec.device = Device::Cpu;
        assert_eq!(super::device(&manifest), "cpu");
        manifest.rank_devices.clear();
        assert_eq!(super::device(&manifest), "cpu");
        manifest.spec.device = Device::Cuda(1);
        manifest.rank_devices = vec![RankDevice::new(DeviceKind::Cuda, None)];
        assert_eq!(super::device(&manifest), "cuda:1");
        assert_eq!(cut(&"é".repeat(61)), format!("{}…", "é".repeat(60)));
    }
}
