//! Calls of table functions (`range`, `generate_series`), which are evaluated again where the plan arrives.
//!
//! Only the function's name and its arguments are sent, never its rows.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{
    Session, TableFunction, TableFunctionArgs, TableFunctionImpl, TableProvider,
};
use datafusion::common::plan_datafusion_err;
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::functions_table::all_default_table_functions;
use datafusion::logical_expr::Expr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::logical_plan::from_proto::parse_exprs;
use datafusion_proto::logical_plan::to_proto::serialize_exprs;
use datafusion_proto::protobuf::LogicalExprNode;
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::error::Malformed;
use volley_proto::nesting;

/// DataFusion's table functions, so that their calls can be sent: to be registered with a session.
pub fn table_functions() -> Vec<TableFunction> {
    let sendable = |function: Arc<TableFunction>| {
        let name = function.name().to_owned();
        TableFunction::new(name, Arc::new(Function(function)))
    };
    let functions = all_default_table_functions().into_iter();
    functions.map(sendable).collect()
}

#[derive(Debug)]
struct Function(Arc<TableFunction>);

impl TableFunctionImpl for Function {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        let arguments = args.exprs().to_vec();
        Ok(Arc::new(Call {
            function: self.0.name().to_owned(),
            table: self.0.create_table_provider_with_args(args)?,
            arguments,
        }))
    }
}

/// A call of a table function, with the table that it returns.
#[derive(Debug)]
pub(super) struct Call {
    function: String,
    arguments: Vec<Expr>,
    table: Arc<dyn TableProvider>,
}

/// A call on the wire.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EncodedCall {
    function: String,
    /// Expressions in protobuf.
    arguments: Vec<Vec<u8>>,
}

impl Call {
    pub(super) fn encode(&self, codec: &dyn LogicalExtensionCodec) -> Result<EncodedCall> {
        let arguments = serialize_exprs(&self.arguments, codec)?;
        Ok(EncodedCall {
            function: self.function.clone(),
            arguments: arguments.iter().map(Message::encode_to_vec).collect(),
        })
    }

    pub(super) fn decode(
        encoded: &EncodedCall,
        context: &TaskContext,
        codec: &dyn LogicalExtensionCodec,
    ) -> Result<Self> {
        let function = all_default_table_functions()
            .into_iter()
            .find(|function| function.name() == encoded.function)
            .ok_or_else(|| {
                plan_datafusion_err!("there is no table function {}", encoded.function)
            })?;
        let decode = |node: &Vec<u8>| nesting::decode::<LogicalExprNode>(node);
        let arguments = encoded.arguments.iter().map(decode);
        let arguments = arguments
            .collect::<Result<Vec<_>, _>>()
            .malformed("call of a table function")?;
        let arguments = parse_exprs(&arguments, context, codec)?;
        // The functions depend on their arguments alone.
        let session = SessionStateBuilder::new().build();
        let args = TableFunctionArgs::new(&arguments, &session);
        Ok(Self {
            table: function.create_table_provider_with_args(args)?,
            function: encoded.function.clone(),
            arguments,
        })
    }
}

#[async_trait]
impl TableProvider for Call {
    fn schema(&self) -> SchemaRef {
        self.table.schema()
    }

    fn table_type(&self) -> TableType {
        self.table.table_type()
    }

    /// Columns are chosen outside: DataFusion's encoding of a series forgets that it has none.
    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let rows = self.table.scan(session, None, filters, limit).await?;
        let schema = rows.schema();
        let all = |columns: &Vec<usize>| columns.iter().copied().eq(0..schema.fields().len());
        let Some(columns) = projection.filter(|columns| !all(columns)) else {
            return Ok(rows);
        };
        let column = |at: &usize| {
            let name = schema.field(*at).name();
            ProjectionExpr::new(Arc::new(Column::new(name, *at)), name)
        };
        let columns: Vec<_> = columns.iter().map(column).collect();
        Ok(Arc::new(ProjectionExec::try_new(columns, rows)?))
    }
}
