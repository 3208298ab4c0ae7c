//! The memory layout of parameters on a device: in parameter order, each node's parameters together and aligned for
//! vector loads.
//!
//! A dense layer's bias follows its kernel, as one more row of it: a product with an input whose last column is 1 adds
//! the bias, and the product that computes the kernel's gradient has the bias' gradient as its last row. Padding
//! between parameters is 0 and stays 0.

use std::ops::Range;

use crate::network::Architecture;

/// Alignment of a node's parameters, in numbers: 16 bytes.
const ALIGN: usize = 4;

/// Rounds up to whole vectors.
pub(super) fn aligned(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

/// Positions of the parameters in a device's memory.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    /// Offset and length of each parameter, in numbers.
    spans: Vec<(usize, usize)>,
    penalized: Vec<bool>,
    /// Length with padding, in numbers.
    len: usize,
}

/// Consecutive parameters, with the padding between them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) parameters: Range<usize>,
    /// Range on the device, in numbers.
    pub(super) span: Range<usize>,
}

impl Layout {
    pub(super) fn new(architecture: &Architecture) -> Self {
        let graph = &architecture.graph;
        let parameters = architecture.parameters();
        let mut begins = vec![false; parameters.len() + 1];
        let tables = graph.tables.iter().map(|table| table.at);
        let nodes = graph.nodes.iter().map(|node| node.at);
        tables.chain(nodes).for_each(|at| begins[at] = true);
        let mut end = 0;
        let spans = parameters.iter().zip(begins).map(|(parameter, begins)| {
            let start = if begins { aligned(end) } else { end };
            end = start + parameter.len();
            (start, parameter.len())
        });
        let spans: Vec<_> = spans.collect();
        Self {
            spans,
            penalized: parameters.iter().map(|p| p.penalized).collect(),
            len: aligned(end),
        }
    }

    /// Returns the length on the device, in numbers.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the offset of a parameter.
    pub(super) fn start(&self, parameter: usize) -> usize {
        self.spans[parameter].0
    }

    /// Returns the place of a range of whole parameters, given in parameter order without padding.
    pub(super) fn section(&self, flat: &Range<usize>) -> Section {
        let starts = self.spans.iter().scan(0, |end, (_, len)| {
            let start = *end;
            *end += len;
            Some(start)
        });
        let own = starts.zip(&self.spans).enumerate();
        let own = own.filter(|(_, (start, (_, len)))| *len > 0 && flat.contains(start));
        let own: Vec<usize> = own.map(|(at, _)| at).collect();
        let (Some(first), Some(last)) = (own.first(), own.last()) else {
            return Section::default();
        };
        let (start, len) = self.spans[*last];
        let section = Section {
            parameters: *first..last + 1,
            span: self.start(*first)..start + len,
        };
        let count: usize = self.spans[section.parameters.clone()]
            .iter()
            .map(|(_, len)| len)
            .sum();
        assert_eq!(count, flat.len(), "parameters are whole");
        section
    }

    /// Copies the numbers of a section, which are first in `flat`, into its span.
    pub(super) fn spread_section(&self, section: &Section, flat: &[f32], span: &mut [f32]) {
        let mut rest = flat;
        for (start, len) in &self.spans[section.parameters.clone()] {
            let (own, others) = rest.split_at(*len);
            span[start - section.span.start..][..*len].copy_from_slice(own);
            rest = others;
        }
    }

    /// Copies the numbers of a section from its span; they are the first ones in `flat`.
    pub(super) fn gather_section(&self, section: &Section, span: &[f32], flat: &mut [f32]) {
        let mut rest = flat;
        for (start, len) in &self.spans[section.parameters.clone()] {
            let (own, others) = rest.split_at_mut(*len);
            own.copy_from_slice(&span[start - section.span.start..][..*len]);
            rest = others;
        }
    }

    /// Returns the section of all parameters.
    fn whole(&self) -> Section {
        Section {
            parameters: 0..self.spans.len(),
            span: 0..self.len,
        }
    }

    /// Copies numbers from parameter order into the device's layout.
    pub(super) fn spread(&self, flat: &[f32]) -> Vec<f32> {
        let mut spread = vec![0.0; self.len];
        self.spread_section(&self.whole(), flat, &mut spread);
        spread
    }

    /// Copies numbers from the device's layout back into parameter order.
    pub(super) fn gather(&self, spread: &[f32], flat: &mut [f32]) {
        self.gather_section(&self.whole(), spread, flat);
    }

    /// Returns how many numbers there are without padding.
    pub(super) fn count(&self) -> usize {
        self.spans.iter().map(|(_, len)| len).sum()
    }

    /// Splits numbers in the device's layout by parameter.
    pub(super) fn split(&self, spread: &[f32]) -> Vec<Vec<f32>> {
        let spans = self.spans.iter();
        let split = spans.map(|(start, len)| spread[*start..start + len].to_vec());
        split.collect()
    }

    /// Returns flags for each number: 1 if it is penalized, 2 if kernels sum up its gradient, as `summed` says.
    pub(super) fn flags(&self, summed: impl Fn(usize) -> bool) -> Vec<u8> {
        let mut flags = vec![0; self.len];
        for (at, (start, len)) in self.spans.iter().enumerate() {
            let flag = u8::from(self.penalized[at]) | (u8::from(summed(at)) << 1);
            flags[*start..start + len].fill(flag);
        }
        flags
    }
}
