//! Volley's nodes on the wire: Ballista's codecs, and ours in front of them.
//!
//! Ours start with a magic string that no protobuf message of Ballista's can start with, followed
//! by JSON. Everything else is passed on.

pub(crate) mod endless_limits;
pub(crate) mod filtered;
pub(crate) mod flight_types;
#[cfg(test)]
mod fuzz;
pub(crate) mod laterals;
pub(crate) mod lost;
pub(crate) mod recursion;
pub(crate) mod repeated;
pub(crate) mod stores;
pub(crate) mod subqueries;
pub(crate) mod tables;
pub(crate) mod task;
pub(crate) mod unions;

use std::sync::Arc;

use ballista_core::serde::{BallistaLogicalExtensionCodec, BallistaPhysicalExtensionCodec};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{ScalarValue, TableReference};
use datafusion::datasource::file_format::FileFormatFactory;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{AggregateUDF, Extension, LogicalPlan, ScalarUDF, WindowUDF};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr_common::physical_expr::proto_decode::PhysicalExprDecodeCtx;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::work_table::WorkTableExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::physical_plan::{
    PhysicalExtensionCodec, PhysicalPlanDecodeContext, PhysicalProtoConverterExtension,
};
use datafusion_proto::protobuf::{self, PhysicalPlanNode};
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::codec::lost::{Converter, Lost, decode_expr, verify};
use crate::codec::recursion::{Recursion, WorkTable};
use crate::codec::repeated::RepeatedNames;
use crate::codec::tables::{EncodedFormat, decode_table, encode_table};
use crate::codec::task::{PrunedExec, TaskPlan};
use crate::error::{External, Malformed, external};
use crate::mends::{checked_sums, float_extremes, sliding};
use crate::nodes::train::only;
use crate::operators::expand::ExpandExec;
use crate::operators::fence::FenceExec;
use crate::operators::row_hash;
use crate::operators::running;
use crate::operators::single_value;
use crate::write::{EncodedTarget, Target};
use crate::{CommitExec, PredictExec, PredictNode, PreparedExec, TrainExec, TrainNode, WriteExec};
use volley_proto::spec::TrainSpec;
use volley_proto::store::PredictedColumns;
use volley_proto::{Error, ModelRef, PreparedId, nesting};

pub(crate) const MAGIC: &[u8] = b"\xffvolley\x01";

/// Operators that one which is left out may stand for: metrics are kept for each.
const MOST_OPERATORS: usize = 1 << 16;

/// Prefix of a task's plan, before the options of its stores and its message.
const TASK: &[u8] = b"\xffvolley\x02";

/// One of Volley's nodes without its inputs.
#[derive(Serialize, Deserialize)]
enum Node {
    /// A logical node is not prepared.
    Train {
        spec: Arc<TrainSpec>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        prepared: Option<PreparedId>,
    },
    /// The schema is that of a plan without rows, in protobuf.
    Prepared {
        id: PreparedId,
        rows: Vec<u64>,
        schema: Vec<u8>,
    },
    Predict {
        model: ModelRef,
        columns: PredictedColumns,
    },
    Write {
        target: EncodedTarget,
    },
    Commit {
        target: EncodedTarget,
    },
    Fence,
    /// The states of no rows are values in protobuf, and the schema is as below.
    Expand {
        sets: Vec<Vec<bool>>,
        identity: Vec<Vec<u8>>,
        schema: Vec<u8>,
    },
    /// The columns are expressions, in protobuf.
    RepeatedNames {
        exprs: Vec<u8>,
    },
    /// The schema is that of a plan without rows, in protobuf, and the orders are those of sorts of such plans.
    Pruned {
        operators: usize,
        schema: Vec<u8>,
        orders: Vec<Vec<u8>>,
        constants: Vec<usize>,
    },
    /// As above.
    Recursive {
        query: Recursion,
        schema: Vec<u8>,
    },
    /// As above.
    WorkTable {
        table: WorkTable,
        schema: Vec<u8>,
    },
}

impl Node {
    fn encode(&self, buf: &mut Vec<u8>) -> Result<()> {
        buf.extend_from_slice(MAGIC);
        serde_json::to_writer(buf, self).malformed("plan node")
    }

    /// Decodes the node; `None` when the bytes are not Volley's.
    fn decode(buf: &[u8]) -> Result<Option<Self>> {
        let node = buf.strip_prefix(MAGIC).map(serde_json::from_slice);
        node.transpose().malformed("plan node")
    }
}

/// Encodes logical plans.
#[derive(Debug, Default)]
pub struct VolleyLogicalCodec {
    inner: BallistaLogicalExtensionCodec,
}

/// Implements the coding of Volley's own functions, of which the names tell all.
macro_rules! own_functions {
    () => {
        fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
            match row_hash::function(name) {
                Some(function) => Ok(function),
                None => self.inner.try_decode_udf(name, buf),
            }
        }

        fn try_encode_udf(&self, function: &ScalarUDF, buf: &mut Vec<u8>) -> Result<()> {
            match row_hash::function(function.name()) {
                Some(_) => Ok(()),
                None => self.inner.try_encode_udf(function, buf),
            }
        }

        fn try_decode_udaf(&self, name: &str, buf: &[u8]) -> Result<Arc<AggregateUDF>> {
            match aggregate(name) {
                Some(function) => Ok(function),
                None => self.inner.try_decode_udaf(name, buf),
            }
        }

        fn try_encode_udaf(&self, function: &AggregateUDF, buf: &mut Vec<u8>) -> Result<()> {
            match aggregate(function.name()) {
                Some(_) => Ok(()),
                None => self.inner.try_encode_udaf(function, buf),
            }
        }
    };
}

impl LogicalExtensionCodec for VolleyLogicalCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[LogicalPlan],
        context: &TaskContext,
    ) -> Result<Extension> {
        let node: Arc<dyn datafusion::logical_expr::UserDefinedLogicalNode> =
            match Node::decode(buf)? {
                None => return self.inner.try_decode(buf, inputs, context),
                Some(Node::Train { spec, .. }) => {
                    Arc::new(TrainNode::try_new(spec, only(inputs.to_vec())?)?)
                }
                Some(Node::Predict { model, columns }) => Arc::new(PredictNode::try_new(
                    model,
                    columns,
                    only(inputs.to_vec())?,
                )?),
                Some(Node::RepeatedNames { exprs }) => {
                    let input = only(inputs.to_vec())?;
                    Arc::new(RepeatedNames::decode(&exprs, input, context, self)?)
                }
                Some(_) => {
                    let what = "it is a physical node in a logical plan";
                    return Err(external(Error::malformed("plan node", what)));
                }
            };
        Ok(Extension { node })
    }

    fn try_encode(&self, extension: &Extension, buf: &mut Vec<u8>) -> Result<()> {
        let node = extension.node.as_any();
        if let Some(train) = node.downcast_ref::<TrainNode>() {
            Node::Train {
                spec: Arc::clone(train.spec()),
                prepared: None,
            }
            .encode(buf)
        } else if let Some(predict) = node.downcast_ref::<PredictNode>() {
            let (model, columns) = (predict.model().clone(), predict.columns().clone());
            Node::Predict { model, columns }.encode(buf)
        } else if let Some(projection) = node.downcast_ref::<RepeatedNames>() {
            let exprs = projection.encode(self)?;
            Node::RepeatedNames { exprs }.encode(buf)
        } else {
            self.inner.try_encode(extension, buf)
        }
    }

    fn try_decode_table_provider(
        &self,
        buf: &[u8],
        table: &TableReference,
        schema: SchemaRef,
        context: &TaskContext,
    ) -> Result<Arc<dyn TableProvider>> {
        match decode_table(buf, &schema, context, self)? {
            Some(decoded) => Ok(decoded),
            None => self
                .inner
                .try_decode_table_provider(buf, table, schema, context),
        }
    }

    fn try_encode_table_provider(
        &self,
        table: &TableReference,
        provider: Arc<dyn TableProvider>,
        buf: &mut Vec<u8>,
    ) -> Result<()> {
        if encode_table(provider.as_ref(), self, buf)? {
            return Ok(());
        }
        self.inner
            .try_encode_table_provider(table, provider, buf)
            .map_err(|_| {
                let table = table.to_string();
                external(Error::UnsendableTable { table })
            })
    }

    fn try_decode_file_format(
        &self,
        buf: &[u8],
        _: &TaskContext,
    ) -> Result<Arc<dyn FileFormatFactory>> {
        let format: EncodedFormat = serde_json::from_slice(buf).malformed("format of files")?;
        format.factory()
    }

    fn try_encode_file_format(
        &self,
        buf: &mut Vec<u8>,
        format: Arc<dyn FileFormatFactory>,
    ) -> Result<()> {
        let format = EncodedFormat::of_factory(format.as_ref())?;
        serde_json::to_writer(buf, &format).malformed("format of files")
    }

    own_functions!();

    fn try_decode_udwf(&self, name: &str, buf: &[u8]) -> Result<Arc<WindowUDF>> {
        self.inner.try_decode_udwf(name, buf)
    }

    fn try_encode_udwf(&self, function: &WindowUDF, buf: &mut Vec<u8>) -> Result<()> {
        self.inner.try_encode_udwf(function, buf)
    }
}

/// Encodes physical plans.
#[derive(Debug, Default)]
pub struct VolleyPhysicalCodec {
    inner: BallistaPhysicalExtensionCodec,
}

impl PhysicalExtensionCodec for VolleyPhysicalCodec {
    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(message) = buf.strip_prefix(TASK) {
            return TaskPlan::decode(message, context, |plan| decode_plan(plan, context, self));
        }
        if let Some(lost) = Lost::decode(buf)? {
            return lost.restore(only(inputs.to_vec())?);
        }
        match Node::decode(buf)? {
            None => self.inner.try_decode(buf, inputs, context, converter),
            Some(Node::Pruned {
                operators,
                schema,
                orders,
                constants,
            }) => {
                if operators > MOST_OPERATORS {
                    let what = format!("it stands for {operators} operators");
                    return Err(external(Error::malformed("plan node", what)));
                }
                let empty = decode_plan(&schema, context, self)?;
                let order = |sorted: &Vec<u8>| {
                    let sorted = decode_plan(sorted, context, self)?;
                    let order = sorted.output_ordering().cloned();
                    order.ok_or_else(|| {
                        external(Error::malformed("plan node", "a sort without an order"))
                    })
                };
                let orders = orders.iter().map(order).collect::<Result<Vec<_>>>()?;
                let pruned = PrunedExec::try_new(empty.schema(), orders, &constants, operators)?;
                Ok(Arc::new(pruned))
            }
            Some(Node::Recursive { query, schema }) => {
                let schema = decode_plan(&schema, context, self)?.schema();
                let terms = <[_; 2]>::try_from(inputs.to_vec());
                let terms = terms
                    .map_err(|terms| {
                        let found = format!("a recursive query of {} terms", terms.len());
                        Error::malformed("plan node", found)
                    })
                    .external()?;
                query.query(schema, terms)
            }
            Some(Node::WorkTable { table, schema }) => {
                table.table(&decode_plan(&schema, context, self)?.schema())
            }
            Some(Node::Train { spec, prepared }) => {
                let train = TrainExec::over(spec, only(inputs.to_vec())?);
                Ok(Arc::new(match prepared {
                    Some(id) => train.preparing(id, Arc::clone(train.input())),
                    None => train,
                }))
            }
            Some(Node::Prepared { id, rows, schema }) => {
                let schema = decode_plan(&schema, context, self)?.schema();
                Ok(Arc::new(PreparedExec::new(id, rows, schema)))
            }
            Some(Node::Predict { model, columns }) => Ok(Arc::new(PredictExec::new(
                model,
                columns,
                only(inputs.to_vec())?,
            ))),
            Some(Node::Write { target }) => {
                let target = Target::decode(&target, context, self, converter)?;
                Ok(Arc::new(WriteExec::new(target, only(inputs.to_vec())?)))
            }
            Some(Node::RepeatedNames { .. }) => {
                let what = "it is a logical node in a physical plan";
                Err(external(Error::malformed("plan node", what)))
            }
            Some(Node::Fence) => Ok(Arc::new(FenceExec::new(only(inputs.to_vec())?))),
            Some(Node::Expand {
                sets,
                identity,
                schema,
            }) => {
                let identity = identity.iter().map(|value| decode_value(value));
                let identity = identity.collect::<Result<_>>()?;
                let schema = decode_plan(&schema, context, self)?.schema();
                let input = only(inputs.to_vec())?;
                Ok(Arc::new(ExpandExec::try_new(
                    input, sets, identity, schema,
                )?))
            }
            Some(Node::Commit { target }) => {
                let target = Target::decode(&target, context, self, converter)?;
                Ok(Arc::new(CommitExec::new(target, only(inputs.to_vec())?)))
            }
        }
    }

    fn try_encode(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        if let Some(train) = plan.downcast_ref::<TrainExec>() {
            Node::Train {
                spec: Arc::clone(train.spec()),
                prepared: train.prepared(),
            }
            .encode(buf)
        } else if let Some(rows) = plan.downcast_ref::<PreparedExec>() {
            Node::Prepared {
                id: rows.id(),
                rows: rows.rows().to_vec(),
                schema: encode_schema(rows)?,
            }
            .encode(buf)
        } else if let Some(predict) = plan.downcast_ref::<PredictExec>() {
            let (model, columns) = (predict.model().clone(), predict.columns().clone());
            Node::Predict { model, columns }.encode(buf)
        } else if let Some(write) = plan.downcast_ref::<WriteExec>() {
            let target = write.target().encode(self, converter)?;
            Node::Write { target }.encode(buf)
        } else if let Some(commit) = plan.downcast_ref::<CommitExec>() {
            let target = commit.target().encode(self, converter)?;
            Node::Commit { target }.encode(buf)
        } else if plan.is::<FenceExec>() {
            Node::Fence.encode(buf)
        } else if let Some(expand) = plan.downcast_ref::<ExpandExec>() {
            let identity = expand.identity().iter().map(encode_value);
            Node::Expand {
                sets: expand.sets().to_vec(),
                identity: identity.collect::<Result<_>>()?,
                schema: encode_schema(expand)?,
            }
            .encode(buf)
        } else if let Some(task) = plan.downcast_ref::<TaskPlan>() {
            buf.extend_from_slice(TASK);
            buf.extend_from_slice(task.message());
            Ok(())
        } else if let Some(pruned) = plan.downcast_ref::<PrunedExec>() {
            let empty: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(pruned.schema()));
            let orders = pruned.orders().into_iter();
            let orders = orders.map(|order| {
                encode_plan(&(Arc::new(SortExec::new(order, Arc::clone(&empty))) as _))
            });
            Node::Pruned {
                operators: pruned.operators(),
                schema: encode_schema(pruned)?,
                orders: orders.collect::<Result<_>>()?,
                constants: PrunedExec::constants_of(plan.equivalence_properties()),
            }
            .encode(buf)
        } else if let Some(query) = plan.downcast_ref::<RecursiveQueryExec>() {
            Node::Recursive {
                query: Recursion::of(query),
                schema: encode_schema(query)?,
            }
            .encode(buf)
        } else if let Some(table) = plan.downcast_ref::<WorkTableExec>() {
            Node::WorkTable {
                table: WorkTable::of(table)?,
                schema: encode_schema(table)?,
            }
            .encode(buf)
        } else {
            self.inner.try_encode(plan, buf, converter)
        }
    }

    fn try_decode_expr(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn PhysicalExpr>],
        context: &PhysicalExprDecodeCtx<'_>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        match decode_expr(buf, inputs)? {
            Some(expr) => Ok(expr),
            None => self.inner.try_decode_expr(buf, inputs, context),
        }
    }

    own_functions!();

    fn try_decode_udwf(&self, name: &str, buf: &[u8]) -> Result<Arc<WindowUDF>> {
        match running::function(name) {
            Some(function) => Ok(function),
            None => self.inner.try_decode_udwf(name, buf),
        }
    }

    fn try_encode_udwf(&self, function: &WindowUDF, buf: &mut Vec<u8>) -> Result<()> {
        match running::function(function.name()) {
            Some(_) => Ok(()),
            None => self.inner.try_encode_udwf(function, buf),
        }
    }
}

/// Volley's own aggregate of this name, of which the name tells all.
fn aggregate(name: &str) -> Option<Arc<AggregateUDF>> {
    filtered::function(name)
        .or_else(|| single_value::function(name))
        .or_else(|| float_extremes::function(name))
        .or_else(|| of_window(name))
}

/// Volley's own aggregate of this name that takes the place of one over windows.
fn of_window(name: &str) -> Option<Arc<AggregateUDF>> {
    sliding::function(name).or_else(|| checked_sums::function(name))
}

/// Encodes an operator's columns as a plan without rows.
fn encode_schema(plan: &dyn ExecutionPlan) -> Result<Vec<u8>> {
    let empty: Arc<dyn ExecutionPlan> = Arc::new(EmptyExec::new(plan.schema()));
    encode_plan(&empty)
}

fn encode_value(value: &ScalarValue) -> Result<Vec<u8>> {
    Ok(protobuf::ScalarValue::try_from(value)?.encode_to_vec())
}

fn decode_value(message: &[u8]) -> Result<ScalarValue> {
    let message: protobuf::ScalarValue = nesting::decode(message).malformed("value")?;
    Ok(ScalarValue::try_from(&message)?)
}

/// Encodes a plan as a message, with the properties that DataFusion's own encoding leaves out.
pub(crate) fn encode_plan(plan: &Arc<dyn ExecutionPlan>) -> Result<Vec<u8>> {
    let codec = VolleyPhysicalCodec::default();
    let message = Converter.execution_plan_to_proto(plan, &codec)?;
    Ok(message.encode_to_vec())
}

fn decode_plan(
    message: &[u8],
    context: &TaskContext,
    codec: &VolleyPhysicalCodec,
) -> Result<Arc<dyn ExecutionPlan>> {
    let message: PhysicalPlanNode = nesting::decode(message).malformed("plan")?;
    let context = PhysicalPlanDecodeContext::new(context, codec);
    Converter.proto_to_execution_plan(&message, &context)
}

/// Refuses a plan that would not arrive on an executor as it is here. Returns its message.
///
/// # Errors
/// Names the operator that cannot be sent, or what of it would be lost.
pub(crate) fn verify_sent(plan: &Arc<dyn ExecutionPlan>, context: &TaskContext) -> Result<Vec<u8>> {
    let codec = VolleyPhysicalCodec::default();
    let message = encode_plan(plan)?;
    let arrived = decode_plan(&message, context, &codec)?;
    verify(plan, &arrived)?;
    Ok(message)
}
