//! Fuzz targets: the codecs' decoding of plans from other processes.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{CastExpr, Column, Literal};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::physical_plan::PhysicalExtensionCodec;
use volley_proto::damage::with_damaged_copies;

use crate::allocations::bounded;
use crate::codec::lost::{Converter, decode_expr};
use crate::codec::{MAGIC, encode_plan};
use crate::{VolleyLogicalCodec, VolleyPhysicalCodec};

/// Runs a target on samples and on damaged copies of them.
fn samples(samples: &[Vec<u8>], target: impl Fn(&[u8])) {
    for sample in samples {
        with_damaged_copies(sample).for_each(|bytes| bounded(&bytes, &target));
    }
}

static SCHEMA: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, true),
        Field::new("s", DataType::Utf8, true),
    ]))
});

fn empty() -> Arc<dyn ExecutionPlan> {
    Arc::new(EmptyExec::new(Arc::clone(&SCHEMA)))
}

/// Encodes one of Volley's nodes from its JSON.
fn node(magic: &[u8], json: serde_json::Value) -> Vec<u8> {
    [magic, json.to_string().as_bytes()].concat()
}

fn physical(bytes: &[u8]) {
    let (codec, context) = (VolleyPhysicalCodec::default(), TaskContext::default());
    for inputs in [0, 1, 2] {
        let inputs = vec![empty(); inputs];
        if let Ok(plan) = codec.try_decode(bytes, &inputs, &context, &Converter) {
            let _ = (plan.schema(), plan.properties(), format!("{plan:?}"));
        }
    }
}

fn nodes() -> Vec<Vec<u8>> {
    let schema = encode_plan(&empty()).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(include_str!(
        "../../../proto/src/__fuzz__/manifest/corpus/whole.json"
    ))
    .unwrap();
    let columns = serde_json::json!({"name": "predicted_y", "class": null});
    let model = serde_json::json!({"store": "file:///m/", "name": "m", "version": 1});
    let lost: &[u8] = b"\xffvolley\x03";
    let scan = serde_json::json!({
        "compression": "GZIP", "preserve_order": true, "terminator": 7, "metadata_size_hint": 9
    });
    let values = serde_json::json!([{"ignore_nulls": true, "reversed": false}]);
    vec![
        node(MAGIC, serde_json::json!("Fence")),
        node(
            MAGIC,
            serde_json::json!({"Train": {"spec": manifest["spec"]}}),
        ),
        node(
            MAGIC,
            serde_json::json!({"Predict": {"model": model, "columns": columns}}),
        ),
        node(
            MAGIC,
            serde_json::json!({"Pruned": {"operators": 3, "schema": schema, "orders": [], "constants": [0]}}),
        ),
        node(
            MAGIC,
            serde_json::json!({"WorkTable": {
                "table": {"name": "t", "projection": [1, 4]}, "schema": schema
            }}),
        ),
        node(
            MAGIC,
            serde_json::json!({"Recursive": {
                "query": {"name": "t", "is_distinct": true}, "schema": schema
            }}),
        ),
        node(
            MAGIC,
            serde_json::json!({"Expand": {
                "sets": [[true, false], [false, true]], "identity": [], "schema": schema
            }}),
        ),
        node(
            MAGIC,
            serde_json::json!({"Write": {"target": {"job": "j", "url": "", "writer": schema}}}),
        ),
        node(
            MAGIC,
            serde_json::json!({"RepeatedNames": {"exprs": [10, 2, 10, 0]}}),
        ),
        node(lost, serde_json::json!({"Partitions": 3})),
        node(lost, serde_json::json!({"EmptySets": 2})),
        node(lost, serde_json::json!({"Scan": scan})),
        node(lost, serde_json::json!({"Windows": values})),
        node(lost, serde_json::json!("ArrowSink")),
        [b"\xffvolley\x02".as_slice(), &schema].concat(),
    ]
}

#[test]
fn physical_nodes() {
    let decodes = |bytes: &Vec<u8>| {
        let (codec, context) = (VolleyPhysicalCodec::default(), TaskContext::default());
        let decoded = codec.try_decode(bytes, &[empty()], &context, &Converter);
        decoded.is_ok()
    };
    assert!(nodes().iter().filter(|node| decodes(node)).count() >= 6);
    samples(&nodes(), physical);
    bolero::check!(name = "physical_node")
        .with_iterations(2_000)
        .for_each(|bytes| bounded(bytes, physical));
}

fn logical(bytes: &[u8]) {
    let (codec, context) = (VolleyLogicalCodec::default(), TaskContext::default());
    let input: LogicalPlan = LogicalPlanBuilder::empty(true).build().unwrap();
    let _ = codec.try_decode(bytes, std::slice::from_ref(&input), &context);
    let _ = codec.try_decode_file_format(bytes, &context);
    let text = String::from_utf8_lossy(bytes);
    let _ = codec.try_decode_udf(&text, bytes);
    let _ = codec.try_decode_udaf(&text, bytes);
}

#[test]
fn logical_nodes() {
    samples(&nodes(), logical);
    bolero::check!(name = "logical_node")
        .with_iterations(2_000)
        .for_each(|bytes| bounded(bytes, logical));
}

fn table(bytes: &[u8]) {
    let (codec, context) = (VolleyLogicalCodec::default(), TaskContext::default());
    let name = "t".into();
    let _ = codec.try_decode_table_provider(bytes, &name, Arc::clone(&SCHEMA), &context);
}

#[test]
fn tables() {
    let framed = |json: serde_json::Value, rows: &[u8]| {
        let json = json.to_string();
        let length = (json.len() as u64).to_le_bytes();
        [MAGIC, &length, json.as_bytes(), rows].concat()
    };
    let files = serde_json::json!({"Files": {
        "locations": [{"url": "file:///d/", "glob": "*.csv"}], "only": null,
        "file_extension": ".csv", "format": "Avro", "partition_columns": [], "orders": []
    }});
    let call = serde_json::json!({"Call": {"function": "range", "arguments": [[26, 2, 8, 1]]}});
    let samples_of = [
        framed(files, b""),
        framed(call, b""),
        framed(serde_json::json!("Rows"), &rows()),
    ];
    samples(&samples_of, table);
    bolero::check!(name = "table")
        .with_iterations(2_000)
        .for_each(|bytes| bounded(bytes, table));
}

/// Encodes rows in Arrow's format, preceded by their length.
fn rows() -> Vec<u8> {
    use datafusion::arrow::array::{Int64Array, RecordBatch, StringArray};
    use datafusion::arrow::ipc::writer::StreamWriter;
    let columns: [datafusion::arrow::array::ArrayRef; 2] = [
        Arc::new(Int64Array::from(vec![Some(1), None, Some(3)])),
        Arc::new(StringArray::from(vec!["a", "bc", ""])),
    ];
    let batch = RecordBatch::try_new(Arc::clone(&SCHEMA), columns.to_vec()).unwrap();
    let mut writer = StreamWriter::try_new(Vec::new(), &SCHEMA).unwrap();
    writer.write(&batch).unwrap();
    let rows = writer.into_inner().unwrap();
    [(rows.len() as u64).to_le_bytes().as_slice(), &rows].concat()
}

fn cast(bytes: &[u8]) {
    let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new("k", 0));
    let cast: Arc<dyn PhysicalExpr> = Arc::new(CastExpr::new(column, DataType::Int32, None));
    let literal: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(1_f32.into()));
    for inputs in [vec![], vec![cast], vec![literal]] {
        let _ = decode_expr(bytes, &inputs);
    }
}

#[test]
fn casts() {
    let cast_of = serde_json::json!({"Cast": {"name": "k", "nullable": false}});
    let lost = [cast_of, serde_json::json!("Half")];
    samples(&lost.map(|lost| node(b"\xffvolley\x03", lost)), cast);
    bolero::check!(name = "cast")
        .with_iterations(2_000)
        .for_each(|bytes| bounded(bytes, cast));
}
