//! Buckets of a gradient: ranges of the flat gradient that the backward pass completes one after the other, so that
//! ranks can sum one while the next is computed.
//!
//! They are derived from the graph and the lengths of its parameters alone, so all ranks have the same ones, on CPUs and
//! on [devices](crate::network::plan). Neither the sums nor their thread are here.
//!
//! ```text
//!   flat gradient    embedding │ dense.0 │ dense.1 │ dense.2 │ output
//!   backward pass              ◀─────────────────────────────────────
//!   buckets           3 (rest) │   2     │    1    │         0           each of at least BUCKET numbers but the last
//! ```

use std::collections::VecDeque;
use std::ops::{DerefMut, Range};

use crate::network::Parameter;
use crate::network::graph::Graph;

/// Minimum numbers of a bucket, 1 MiB: with fewer, latencies and starts weigh more. In tests it is tiny, so that small
/// networks have several.
pub(super) const BUCKET: usize = if cfg!(test) { 64 } else { 1 << 18 };

/// Gradients by the parameters, which the backward pass computes node by node.
pub(in crate::network) trait Gradients {
    /// Returns the gradients by some parameters that are not yet complete.
    fn of(&mut self, parameters: Range<usize>) -> Vec<&mut [f32]>;

    /// Notes that the gradients by these parameters are complete.
    fn complete(&mut self, parameters: Range<usize>);
}

/// Returns the range of each bucket in the flat gradient, which has the parameters in this order; the buckets that
/// the backward pass completes first come first.
///
/// A bucket begins and ends with a parameter. No parameter shares a bucket with one after it that is completed later:
/// tables at the end of the flat gradient would hold back the last layers.
pub(super) fn ranges(graph: &Graph, order: &[usize]) -> Vec<Range<usize>> {
    let turns = turns(graph);
    let total: usize = graph.parameters.iter().map(Parameter::len).sum();
    let (mut start, mut end, mut last) = (total, total, 0);
    let mut found = Vec::new();
    for at in order.iter().rev() {
        let is_large = end - start >= BUCKET;
        let is_held_back = turns[*at] < last;
        if end > start && (is_large || is_held_back) {
            found.push((last, start..end));
            (end, last) = (start, 0);
        }
        start -= graph.parameters[*at].len();
        last = last.max(turns[*at]);
    }
    if end > start {
        found.push((last, start..end));
    }
    // Of those that are completed together, the one nearer to the end comes first: the sort is stable.
    found.sort_by_key(|(turn, _)| *turn);
    found.into_iter().map(|(_, range)| range).collect()
}

/// Returns the turn in which the backward pass completes each parameter.
fn turns(graph: &Graph) -> Vec<usize> {
    // Tables that codes look up come after all nodes.
    let mut turns = vec![graph.nodes.len(); graph.parameters.len()];
    for (turn, node) in (0..graph.nodes.len()).rev().enumerate() {
        turns[graph.parameters_of(node)].fill(turn);
    }
    turns
}

/// Gradients in buckets, each of which is handed over as soon as it is complete.
pub(super) struct Buckets<'d, B> {
    /// Buckets that are not complete, in the order of their completion.
    waiting: VecDeque<Bucket<B>>,
    /// Range of each parameter in the flat gradient.
    places: Vec<Range<usize>>,
    done: &'d mut dyn FnMut(Range<usize>, B),
}

struct Bucket<B> {
    /// At least as many numbers as the range has.
    numbers: B,
    range: Range<usize>,
    /// Numbers of parameters that are not complete.
    left: usize,
}

impl<'d, B: DerefMut<Target = [f32]>> Buckets<'d, B> {
    /// Creates the buckets of a flat gradient that has the parameters in this order. `done` gets each with its range.
    ///
    /// # Panics
    /// If a bucket has fewer numbers than its range.
    pub(super) fn new(
        graph: &Graph,
        order: &[usize],
        buckets: impl IntoIterator<Item = (Range<usize>, B)>,
        done: &'d mut dyn FnMut(Range<usize>, B),
    ) -> Self {
        let mut places = vec![0..0; order.len()];
        let mut end = 0;
        for at in order {
            let start = end;
            end += graph.parameters[*at].len();
            places[*at] = start..end;
        }
        let buckets = buckets.into_iter().map(|(range, numbers)| {
            assert!(numbers.len() >= range.len(), "a bucket has its numbers");
            Bucket {
                numbers,
                left: range.len(),
                range,
            }
        });
        Self {
            waiting: buckets.collect(),
            places,
            done,
        }
    }
}

impl<B: DerefMut<Target = [f32]>> Gradients for Buckets<'_, B> {
    fn of(&mut self, parameters: Range<usize>) -> Vec<&mut [f32]> {
        let places = &self.places[parameters];
        let mut found: Vec<&mut [f32]> = places.iter().map(|_| &mut [][..]).collect();
        let mut by_place: Vec<usize> = (0..places.len()).collect();
        by_place.sort_unstable_by_key(|at| places[*at].start);
        for Bucket { numbers, range, .. } in &mut self.waiting {
            let mut rest = &mut **numbers;
            let mut passed = range.start;
            for at in &by_place {
                let place = &places[*at];
                if place.is_empty() || !range.contains(&place.start) {
                    continue;
                }
                let mut next = |len| {
                    let next = rest.split_off_mut(..len);
                    next.expect("a parameter is within its bucket")
                };
                next(place.start - passed);
                found[*at] = next(place.len());
                passed = place.end;
            }
        }
        found
    }

    fn complete(&mut self, parameters: Range<usize>) {
        for place in &self.places[parameters] {
            let mut waiting = self.waiting.iter_mut();
            if let Some(bucket) = waiting.find(|bucket| bucket.range.contains(&place.start)) {
                bucket.left -= place.len();
            }
        }
        while let Some(bucket) = self.waiting.pop_front_if(|bucket| bucket.left == 0) {
            (self.done)(bucket.range, bucket.numbers);
        }
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::spec::{
        Activation, EmbeddingWidth, EnsembleSize, Layer, Linear, Network, NumericEmbedding, Output,
    };

    use super::*;
    use crate::network::{Architecture, Sizes};
    use crate::testing::custom_layers;

    fn architecture(members: usize, factors: usize) -> Architecture {
        let sizes = Sizes {
            codes: vec![5; 2],
            continuous: 3,
            bins: vec![vec![-1.0, 0.0, 2.0]; 3],
            outputs: 1,
            rows: 0,
        };
        let residual = Layer::Residual(vec![Layer::Dense(8)]);
        let layers = Layer::stack(&[16, 32], Activation::Relu, &[]);
        let network = Network {
            embedding_dim: EmbeddingWidth::Same(4),
            batch_norm: true,
            numeric_embedding: NumericEmbedding::None,
            layers: [layers, vec![residual]].concat(),
            output: Output::Identity,
            linear: Linear::Beside,
            factors,
            ensemble_size: EnsembleSize::Of(members),
        };
        Architecture::of(&network, &["a", "b"], &sizes, 1.0, &custom_layers()).unwrap()
    }

    /// Returns orders of the flat gradient: that of the parameters, and that with tables last.
    fn orders(graph: &Graph) -> [Vec<usize>; 2] {
        let all = 0..graph.parameters.len();
        let is_table = |at: &usize| graph.tables.iter().any(|table| table.at == *at);
        let (tables, others): (Vec<_>, Vec<_>) = all.clone().partition(is_table);
        [all.collect(), [others, tables].concat()]
    }

    fn total(graph: &Graph) -> usize {
        graph.parameters.iter().map(Parameter::len).sum()
    }

    fn graphs() -> impl Iterator<Item = Graph> {
        let sizes = [(1, 0), (1, 2), (3, 0), (2, 20)];
        sizes
            .into_iter()
            .map(|(members, factors)| architecture(members, factors).graph)
    }

    #[test]
    fn buckets_tile_the_gradient_and_none_waits_for_a_later_one() {
        for graph in graphs() {
            let turns = turns(&graph);
            for order in orders(&graph) {
                let ranges = ranges(&graph, &order);
                assert!(ranges.len() > 1);
                let mut by_place = ranges.clone();
                by_place.sort_by_key(|range| range.start);
                let mut end = 0;
                for range in &by_place {
                    assert_eq!(range.start, end);
                    end = range.end;
                }
                assert_eq!(end, total(&graph));
                // The parameters of each bucket, by place; empty ones belong to none.
                let mut start = 0;
                let mut of = vec![vec![]; ranges.len()];
                for at in &order {
                    let holds = |range: &Range<usize>| range.contains(&start);
                    of[ranges.iter().position(holds).unwrap()].push(turns[*at]);
                    start += graph.parameters[*at].len();
                }
                let completed = of.iter().map(|turns| *turns.iter().max().unwrap());
                assert!(completed.is_sorted());
                for turns in of {
                    assert!(turns.iter().rev().is_sorted(), "{turns:?}");
                }
            }
        }
    }

    #[test]
    fn the_last_layers_do_not_wait_for_tables() {
        let graph = architecture(1, 20).graph;
        for order in orders(&graph) {
            let ranges = ranges(&graph, &order);
            // Returns the index of the bucket that has this parameter.
            let bucket = |name: &str| {
                let mut own = order.iter().map(|at| &graph.parameters[*at]);
                let before = own.by_ref().take_while(|parameter| parameter.name != name);
                let start: usize = before.map(Parameter::len).sum();
                ranges
                    .iter()
                    .position(|range| range.contains(&start))
                    .unwrap()
            };
            assert!(bucket("output.kernel") <= 1);
            assert!(bucket("dense.0.kernel") < bucket("factors.values"));
        }
    }

    #[test]
    fn each_bucket_is_handed_over_once_its_parameters_are_complete() {
        for graph in graphs() {
            for order in orders(&graph) {
                let ranges = ranges(&graph, &order);
                let mut flat = vec![0.0; total(&graph)];
                let mut handed_over = Vec::new();
                let mut done = |range: Range<usize>, numbers: Vec<f32>| {
                    flat[range.clone()].copy_from_slice(&numbers);
                    handed_over.push(range);
                };
                let empty = ranges.iter().map(|range| vec![0.0; range.len()]);
                let empty: Vec<_> = ranges.iter().cloned().zip(empty).collect();
                let mut buckets = Buckets::new(&graph, &order, empty, &mut done);
                let nodes = (0..graph.nodes.len()).rev();
                let tables = graph.looked_up().map(|(_, table)| table.at..table.at + 1);
                for own in nodes.map(|node| graph.parameters_of(node)).chain(tables) {
                    let first = own.start;
                    for (at, gradient) in buckets.of(own.clone()).into_iter().enumerate() {
                        gradient.fill((first + at + 1) as f32);
                    }
                    buckets.complete(own.clone());
                    buckets.complete(0..0);
                }
                assert_eq!(handed_over, ranges);
                let due = order.iter().flat_map(|at| {
                    std::iter::repeat_n((at + 1) as f32, graph.parameters[*at].len())
                });
                assert!(flat.into_iter().eq(due));
            }
        }
    }
}
