//! The nodes of a graph that are computed together, and the storage of their values.
//!
//! The members of an ensemble are the same nodes with other parameters. They are computed together, as lanes: a value
//! of one member stands for those of all, and parameters are a fixed stride apart. Values that only a `Concat` reads
//! are stored in its columns from the start, which saves a copy; so are the gradients by them. A column of ones, which
//! the layer's bias is multiplied by, follows a value that a dense layer reads.

use std::ops::Range;

use super::layout::{Layout, aligned};
use super::words::Tensor;
use crate::device::Address;
use crate::network::attribution::entries;
use crate::network::graph::{Operation, Value};
use crate::network::{Architecture, Parameter};

/// Computed node, for all lanes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Planned {
    /// Index in the graph: of the first member's node, where there are several.
    pub(super) node: usize,
    pub(super) lanes: usize,
    /// Numbers between the parameters of consecutive lanes.
    pub(super) stride: usize,
}

/// Computed nodes and the storage of values.
#[derive(Debug, Clone)]
pub(super) struct Sketch {
    pub(super) lanes: usize,
    pub(super) nodes: Vec<Planned>,
    /// Dropouts per lane.
    pub(super) dropouts: usize,
    values: Vec<Option<Kept>>,
    /// Marks of values that are never stored in columns of another one.
    apart: Vec<bool>,
    /// Marks of the values whose gradient is needed.
    pub(super) sought: Vec<bool>,
}

/// Storage of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Kept {
    width: usize,
    lanes: usize,
    place: Place,
    /// A column of ones follows it.
    ones: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Place {
    Own,
    /// Columns of another value, from this one on.
    Within(Value, usize),
    /// Rows of the step.
    Batch,
}

/// Storage of the values and gradients of a piece.
#[derive(Debug, Clone)]
pub(super) struct Places {
    pub(super) values: Vec<Option<Tensor>>,
    pub(super) deltas: Vec<Option<Tensor>>,
    /// Scratch memory of each planned node, for its gradient.
    pub(super) scratch: Vec<Address>,
    pub(super) bytes: usize,
}

impl Sketch {
    pub(super) fn new(architecture: &Architecture, layout: &Layout) -> Self {
        let graph = &architecture.graph;
        Self::with(
            architecture,
            layout,
            vec![false; graph.widths.len()],
            graph.sought(true),
        )
    }

    /// Lays out [paths](super::paths): values that move have memory of their own, in which the gradients of all points
    /// add up.
    pub(super) fn of_paths(architecture: &Architecture, layout: &Layout) -> Self {
        let graph = &architecture.graph;
        let mut apart = vec![false; graph.widths.len()];
        entries(graph).for_each(|value| apart[value] = true);
        let mut sought = graph.sought(false);
        if let Some((node, _)) = graph.linear_node() {
            // Its attributions are exact.
            sought[node.to] = false;
        }
        let mut sketch = Self::with(architecture, layout, apart, sought);
        let output = sketch.same(graph.members[0]);
        sketch.sought[output] = true;
        sketch
    }

    fn with(
        architecture: &Architecture,
        layout: &Layout,
        apart: Vec<bool>,
        sought: Vec<bool>,
    ) -> Self {
        let graph = &architecture.graph;
        let (lanes, each) = (architecture.members, graph.each);
        let mut nodes = Vec::new();
        // The first member's embeddings, with the value that they are columns of.
        let mut columns: Vec<(Value, Value)> = Vec::new();
        for (at, node) in graph.nodes.iter().enumerate() {
            let of_member = at < each * lanes;
            let beside = graph.members.iter().position(|member| *member == node.to);
            let is_others = match of_member {
                true => at >= each,
                false => lanes > 1 && beside.is_some_and(|member| member > 0),
            };
            if is_others || matches!(node.operation, Operation::Mean) {
                continue;
            }
            if let Operation::Columns(_) = node.operation {
                columns.push((node.to, node.from[0]));
                continue;
            }
            let laned = of_member || (lanes > 1 && beside == Some(0));
            let stride = match of_member && lanes > 1 && node.operation.has_parameters() {
                true => layout.start(graph.nodes[at + each].at) - layout.start(node.at),
                false => 0,
            };
            nodes.push(Planned {
                node: at,
                lanes: if laned { lanes } else { 1 },
                stride,
            });
        }
        let mut sketch = Self {
            lanes,
            nodes,
            dropouts: graph.dropouts.len() / lanes,
            values: vec![None; graph.widths.len()],
            apart,
            sought,
        };
        sketch.keep(architecture);
        for (to, from) in columns {
            let whole = sketch.values[from].expect("embeddings are kept");
            sketch.values[to] = Some(Kept {
                place: Place::Within(from, 0),
                ..whole
            });
        }
        sketch.join(architecture);
        sketch
    }

    /// Assigns storage to inputs and to the outputs of nodes.
    fn keep(&mut self, architecture: &Architecture) {
        let graph = &architecture.graph;
        let kept = |width, lanes, place| {
            Some(Kept {
                width,
                lanes,
                place,
                ones: false,
            })
        };
        if let Some(value) = graph.embeddings {
            let width = graph.widths[value] / self.lanes;
            self.values[value] = kept(width, self.lanes, Place::Own);
        }
        if let Some(value) = graph.factors {
            self.values[value] = kept(graph.widths[value], 1, Place::Own);
        }
        if let Some(value) = graph.numbers {
            self.values[value] = kept(graph.widths[value], 1, Place::Batch);
        }
        for planned in &self.nodes {
            let to = graph.nodes[planned.node].to;
            self.values[to] = kept(graph.widths[to], planned.lanes, Place::Own);
        }
    }

    /// Returns the value that this one has all its columns in common with, or else itself.
    pub(super) fn same(&self, value: Value) -> Value {
        match self.values[value] {
            Some(Kept {
                place: Place::Within(whole, 0),
                width,
                ..
            }) if self.values[whole].is_some_and(|whole| whole.width == width) => self.same(whole),
            _ => value,
        }
    }

    /// Stores values that only a `Concat` reads in its columns, and adds ones behind values that dense layers read.
    fn join(&mut self, architecture: &Architecture) {
        let graph = &architecture.graph;
        let mut readers = vec![0; graph.widths.len()];
        readers[self.same(graph.members[0])] += 1;
        for planned in &self.nodes {
            for from in &graph.nodes[planned.node].from {
                readers[self.same(*from)] += 1;
            }
        }
        for planned in self.nodes.clone() {
            let node = &graph.nodes[planned.node];
            match node.operation {
                Operation::Dense { bias: true, .. } => {
                    let from = self.same(node.from[0]);
                    if let Some(kept) = &mut self.values[from] {
                        kept.ones = true;
                    }
                }
                // A single input would be the whole output.
                Operation::Concat if node.from.len() > 1 => {
                    let mut first = 0;
                    for from in &node.from {
                        let value = self.same(*from);
                        let kept = self.values[value].as_mut().expect("it is read");
                        let width = kept.width;
                        let alone = readers[value] == 1 && kept.place == Place::Own;
                        let alone = alone && !self.apart[value];
                        if alone && kept.lanes == planned.lanes && Some(value) != graph.factors {
                            kept.place = Place::Within(node.to, first);
                        }
                        first += width;
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the width and the lanes of a value, if it is stored.
    pub(super) fn shape(&self, value: Value) -> Option<(usize, usize)> {
        self.values[value].map(|kept| (kept.width, kept.lanes))
    }

    /// Returns whether a value is stored in columns of another one.
    pub(super) fn is_within(&self, value: Value, whole: Value) -> bool {
        matches!(self.values[value], Some(Kept { place: Place::Within(of, _), .. }) if of == whole)
    }

    /// Returns the row stride of the step's numeric input, in numbers.
    pub(super) fn numbers_ld(&self, architecture: &Architecture) -> usize {
        let kept = architecture
            .graph
            .numbers
            .and_then(|value| self.values[value]);
        kept.map_or(0, |kept| aligned(kept.width + usize::from(kept.ones)))
    }

    /// Iterates over the values that are followed by a column of ones.
    pub(super) fn ones(&self) -> impl Iterator<Item = Value> {
        let values = self.values.iter().enumerate();
        values
            .filter(|(_, kept)| kept.is_some_and(|kept| kept.ones))
            .map(|(value, _)| value)
    }

    /// Assigns storage for this many rows, from the address `base` on. `numbers` is the step's numeric input.
    pub(super) fn places(
        &self,
        architecture: &Architecture,
        rows: usize,
        base: Address,
        numbers: Tensor,
    ) -> Places {
        let mut end = 0;
        let mut carve = |numbers: usize| {
            let span: Range<usize> = end..end + 4 * aligned(numbers).next_multiple_of(64);
            end = span.end;
            base + span.start as Address
        };
        let values = self.tensors(rows, Some(numbers), &mut carve, |_| true);
        let deltas = self.tensors(rows, None, &mut carve, |value| self.sought[value]);
        let scratch = self.nodes.iter().map(|planned| {
            let node = &architecture.graph.nodes[planned.node];
            match node.operation {
                Operation::LayerNorm => carve(2 * rows * planned.lanes),
                Operation::Interactions { factors, .. } => {
                    carve(rows * factors * architecture.outputs)
                }
                Operation::Custom(ref custom) => {
                    let graph = &architecture.graph;
                    let own = graph.parameters[node.at..][..custom.parameters].iter();
                    let widest = graph.widths[node.from[0]].max(graph.widths[node.to]);
                    carve(planned.lanes * (own.map(Parameter::len).sum::<usize>() + rows * widest))
                }
                _ => 0,
            }
        });
        let scratch = scratch.collect();
        Places {
            values,
            deltas,
            scratch,
            bytes: end,
        }
    }

    /// Assigns storage to values, or to the gradients by them: then there is no `batch`, and that by numbers is of each
    /// lane.
    fn tensors(
        &self,
        rows: usize,
        batch: Option<Tensor>,
        carve: &mut impl FnMut(usize) -> Address,
        wanted: impl Fn(Value) -> bool,
    ) -> Vec<Option<Tensor>> {
        let own = self.values.iter().enumerate().map(|(value, kept)| {
            let kept = kept.filter(|_| wanted(value))?;
            let mut own = |lanes: usize| {
                let ld = aligned(kept.width + usize::from(kept.ones));
                Tensor::new(carve(lanes * rows * ld), [lanes, rows, kept.width], ld)
            };
            match kept.place {
                Place::Own => Some(own(kept.lanes)),
                Place::Batch => Some(batch.unwrap_or_else(|| own(self.lanes))),
                Place::Within(..) => None,
            }
        });
        let mut tensors: Vec<Option<Tensor>> = own.collect();
        for value in 0..tensors.len() {
            if wanted(value) && tensors[value].is_none() {
                tensors[value] = self.within(value, &tensors);
            }
        }
        tensors
    }

    /// Returns the storage of a value, as columns of another one where it has none of its own.
    fn within(&self, value: Value, tensors: &[Option<Tensor>]) -> Option<Tensor> {
        match self.values[value]?.place {
            Place::Within(whole, first) => {
                let whole = self.within(whole, tensors)?;
                Some(whole.columns(first, self.values[value]?.width))
            }
            Place::Own | Place::Batch => tensors[value],
        }
    }
}
