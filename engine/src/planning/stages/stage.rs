//! A stage's plan as one operator, and what stands in it for the exchanges that it reads.
//!
//! Ballista plans exchanges, joins and sorts of the stages it sees anew, by what it knows of sizes, and
//! without what a plan as a whole has promised. A [`StageExec`] shows it no operator: only the
//! exchanges below, which are its children. What runs is the plan inside, with a [`StageInput`] for
//! each of them.

use std::fmt;
use std::sync::{Arc, OnceLock};

use ballista_core::execution_plans::ShuffleReaderExec;
use ballista_core::serde::scheduler::PartitionLocation;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{internal_datafusion_err, internal_err};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, LexOrdering, Partitioning};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties,
    displayable,
};

use super::merge::input_bytes;
use crate::operator;

/// Changes the place of written rows to where they are now.
pub type Relocate<'a> = dyn Fn(&mut PartitionLocation) + 'a;

/// A stage's plan. Its children are the exchanges that it reads.
#[derive(Debug)]
pub(crate) struct StageExec {
    plan: Arc<dyn ExecutionPlan>,
    inputs: Vec<Arc<dyn ExecutionPlan>>,
    /// Encoded plan, without the exchanges that it reads.
    message: Arc<[u8]>,
    /// Input bytes of each partition, once asked for: see [`input_bytes`].
    bytes: OnceLock<Option<Vec<u64>>>,
    properties: Arc<PlanProperties>,
}

impl StageExec {
    pub(super) fn new(
        plan: Arc<dyn ExecutionPlan>,
        inputs: Vec<Arc<dyn ExecutionPlan>>,
        message: Arc<[u8]>,
    ) -> Self {
        let properties = Arc::new(PlanProperties::new(
            EquivalenceProperties::new(plan.schema()),
            Partitioning::UnknownPartitioning(plan.output_partitioning().partition_count()),
            plan.pipeline_behavior(),
            Boundedness::Bounded,
        ));
        Self {
            plan,
            inputs,
            message,
            bytes: OnceLock::new(),
            properties,
        }
    }

    /// Returns the input bytes of each partition; `None` if they are unknown or partitions must stay apart.
    pub(super) fn bytes(&self) -> Option<&[u64]> {
        let bytes = self.bytes.get_or_init(|| input_bytes(self));
        bytes.as_deref()
    }

    /// Returns the same stage over other exchanges of the same rows.
    pub(super) fn reading(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Self {
        Self::new(Arc::clone(&self.plan), inputs, Arc::clone(&self.message))
    }

    /// Returns the exchanges that it reads.
    pub(super) fn inputs(&self) -> &[Arc<dyn ExecutionPlan>] {
        &self.inputs
    }

    /// Returns the encoded plan, without the exchanges that it reads.
    pub(super) fn message(&self) -> &Arc<[u8]> {
        &self.message
    }

    /// Returns the plan, which reads [`StageInput`]s.
    pub(super) fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }

    /// Replaces the exchanges in the stage's plan, or in a part of it, by readers of the written rows, as far as they are
    /// resolved. `relocate` changes the places that the exchanges name.
    pub(super) fn resolve(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        relocate: &Relocate<'_>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let with_inputs = |node: Arc<dyn ExecutionPlan>| -> Result<_> {
            let Some(input) = node.downcast_ref::<StageInput>() else {
                return Ok(Transformed::no(node));
            };
            let Some(exchange) = self.inputs.get(input.index) else {
                return internal_err!("a stage of {} inputs reads another", self.inputs.len());
            };
            // What is gathered is merged, if at all, by the stage's own operators.
            let reader = match exchange.downcast_ref::<CoalescePartitionsExec>() {
                Some(gathered) => gathered.input(),
                None => exchange,
            };
            let Some(reader) = reader.downcast_ref::<ShuffleReaderExec>() else {
                return Ok(Transformed::no(node));
            };
            input.read(reader, relocate).map(Transformed::yes)
        };
        plan.transform_up(with_inputs).data()
    }
}

pub(super) fn partitions(plan: &Arc<dyn ExecutionPlan>) -> usize {
    plan.output_partitioning().partition_count()
}

/// Replaces the operators that stand for stages in a plan by the stages' own plans.
pub fn in_stages(plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    Arc::clone(plan)
        .transform_up(|node| match node.downcast_ref::<StageExec>() {
            Some(stage) => {
                let plan = Arc::clone(&stage.plan);
                stage.resolve(plan, &|_| {}).map(Transformed::yes)
            }
            None => Ok(Transformed::no(node)),
        })
        .data()
}

/// Finds the first operator of a kind in a stage, or in a plan without stages.
pub fn find<T: ExecutionPlan>(plan: &dyn ExecutionPlan) -> Option<&T> {
    if let Some(stage) = plan.downcast_ref::<StageExec>() {
        return find(stage.plan.as_ref());
    }
    plan.downcast_ref().or_else(|| {
        let mut inputs = plan.children().into_iter();
        inputs.find_map(|input| find(input.as_ref()))
    })
}

/// A stage's input from another stage that has not run yet. It promises only the properties that an exchange keeps.
#[derive(Debug)]
pub(super) struct StageInput {
    index: usize,
    /// For each of its partitions, the exchange's partitions that it reads.
    partitions: Vec<Vec<usize>>,
    order: Option<LexOrdering>,
    /// Known properties of the rows' values, such as equal columns: an exchange changes none of them.
    values: EquivalenceProperties,
    properties: Arc<PlanProperties>,
}

impl StageInput {
    /// Creates the stage's input with this index, of the rows of a plan. Each of its partitions is in `order`,
    /// if one is given.
    pub(super) fn new(
        index: usize,
        plan: &Arc<dyn ExecutionPlan>,
        partitioning: Partitioning,
        order: Option<LexOrdering>,
    ) -> Self {
        let partitions = (0..partitioning.partition_count())
            .map(|partition| vec![partition])
            .collect();
        let mut values = plan.equivalence_properties().clone();
        values.clear_orderings();
        values.clear_per_partition_constants();
        let nothing = EquivalenceProperties::new(plan.schema());
        Self::part(index, partitioning, (partitions, order, values), nothing)
    }

    /// Returns the same input with the known properties of values as well. The decoder of an exchange's reader does
    /// not know them: no order may be derived from them, while rows are partitioned by equal columns regardless.
    pub(super) fn with_values(&self) -> Self {
        let partitioning = self.properties.partitioning.clone();
        let values = self.values.clone();
        let kept = (self.partitions.clone(), self.order.clone(), values.clone());
        Self::part(self.index, partitioning, kept, values)
    }

    /// Returns the same input with only these of its partitions.
    pub(super) fn slice(&self, slice: &[usize]) -> Self {
        let partitions = slice
            .iter()
            .map(|partition| self.partitions[*partition].clone());
        self.of(partitions.collect(), self.order.clone())
    }

    /// Returns the same input with partitions merged, `sizes` of them at a time.
    pub(super) fn merge(&self, sizes: &[usize]) -> Self {
        let mut partitions = self.partitions.iter();
        let merged = sizes
            .iter()
            .map(|size| partitions.by_ref().take(*size).flatten().copied().collect());
        self.of(merged.collect(), None)
    }

    /// Returns the same input with these partitions, each in an order.
    fn of(&self, partitions: Vec<Vec<usize>>, order: Option<LexOrdering>) -> Self {
        let count = partitions.len();
        let partitioning = match &self.properties.partitioning {
            Partitioning::Hash(keys, _) => Partitioning::Hash(keys.clone(), count),
            _ => Partitioning::UnknownPartitioning(count),
        };
        let kept = (partitions, order, self.values.clone());
        let mut known = self.properties.eq_properties.clone();
        known.clear_orderings();
        Self::part(self.index, partitioning, kept, known)
    }

    fn part(
        index: usize,
        partitioning: Partitioning,
        (partitions, order, values): (Vec<Vec<usize>>, Option<LexOrdering>, EquivalenceProperties),
        mut kept: EquivalenceProperties,
    ) -> Self {
        if let Some(order) = &order {
            kept.add_ordering(order.clone());
        }
        let properties = PlanProperties::new(
            kept,
            partitioning,
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            index,
            partitions,
            order,
            values,
            properties: Arc::new(properties),
        }
    }

    /// Returns its index among the stage's exchanges.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Checks whether its partitions are sorted.
    pub(super) fn is_ordered(&self) -> bool {
        self.order.is_some()
    }

    /// Returns the exchange's index, and the partitions that are read.
    #[cfg(test)]
    pub(super) fn reads(&self) -> (usize, &[Vec<usize>]) {
        (self.index, &self.partitions)
    }

    /// Returns a reader of these partitions.
    fn read(
        &self,
        reader: &ShuffleReaderExec,
        relocate: &Relocate<'_>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (due, schema) = (self.schema(), reader.schema());
        let types = |schema: &SchemaRef| {
            let fields = schema.fields().iter();
            fields.map(|field| field.data_type().clone()).collect()
        };
        let [due_types, types]: [Vec<_>; 2] = [types(&due), types(&schema)];
        if due_types != types {
            return internal_err!("an exchange of {schema} where {due} is read");
        }
        let of_one = |partition: &usize| {
            let locations = reader.partition.get(*partition);
            locations.ok_or_else(|| {
                let found = reader.partition.len();
                internal_datafusion_err!("partition {partition} of an exchange of {found}")
            })
        };
        let locations = self.partitions.iter().map(|partitions| {
            let mut locations = Vec::new();
            for partition in partitions {
                locations.extend_from_slice(of_one(partition)?);
            }
            locations.iter_mut().for_each(relocate);
            Ok(locations)
        });
        let reader = ShuffleReaderExec::try_new(
            reader.stage_id,
            locations.collect::<Result<_>>()?,
            reader.schema(),
            self.properties.partitioning.clone(),
        )?;
        Ok(Arc::new(reader))
    }
}

impl DisplayAs for StageExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StageExec")?;
        let plan = displayable(self.plan.as_ref()).indent(false).to_string();
        // The operator is below its writer, and its own lines are below it.
        plan.lines().try_for_each(|line| write!(f, "\n    {line}"))
    }
}

impl ExecutionPlan for StageExec {
    operator!("StageExec");

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.inputs.iter().collect()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; self.inputs.len()]
    }

    fn with_new_children(
        self: Arc<Self>,
        inputs: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if inputs.len() != self.inputs.len() {
            return internal_err!(
                "{} inputs for a stage of {}",
                inputs.len(),
                self.inputs.len()
            );
        }
        Ok(Arc::new(self.reading(inputs)))
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("a stage runs as tasks")
    }
}

impl DisplayAs for StageInput {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let partitioning = &self.properties.partitioning;
        write!(
            f,
            "StageInput: index={}, partitioning={partitioning}",
            self.index
        )
    }
}

impl ExecutionPlan for StageInput {
    operator!("StageInput", leaf);

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        internal_err!("an exchange is read once it is resolved")
    }
}
