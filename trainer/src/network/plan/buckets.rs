//! The gradient in buckets: each is copied to the host once the backward pass has completed it, so that ranks can sum it
//! while the device computes those of earlier layers.
//!
//! ```text
//!  work           last layers ─┬▶ layers before ─┬▶ … ─┬▶ tables         all of it is queued at once
//!  second stream               └ copy 0          └ copy 1 └ …
//!  host                          wait 0 ─ done 0   wait 1 ─ done 1 …
//! ```
//!
//! The buckets are [those of the host](bucket_ranges), in its order, since ranks on CPUs sum the same ones. The device may
//! complete a bucket earlier than one before it: the members of an ensemble are computed together, on the host one after
//! the other. Then its copy waits for its turn.
//!
//! The losses, which go with a bucket, are copied as soon as they are computed. Sums are not computed here.

use std::ops::{DerefMut, Range};
use std::rc::Rc;

use super::layout::{Layout, Section};
use super::step::Held;
use super::{Input, Piece, Plan, uncovered};
use crate::Result;
use crate::device::{Address, Memory, Pinned, Runtime, Transfer, Work};
use crate::network::host::bucket_ranges;

/// Pinned memory of the buckets and the losses.
#[derive(Debug)]
pub(super) struct Buckets {
    /// In the order in which they are handed over.
    all: Vec<Bucket>,
    losses: Pinned,
}

/// Bucket, with memory of its own: it is waited for by itself.
#[derive(Debug)]
struct Bucket {
    /// Range in the flat gradient.
    range: Range<usize>,
    section: Section,
    pinned: Pinned,
}

impl Bucket {
    /// Returns the copy between its memory and the gradient at this address.
    fn transfer(&self, gradient: Address) -> Transfer {
        Transfer {
            offset: 0,
            at: gradient + 4 * self.section.span.start as u64,
            bytes: 4 * self.section.span.len(),
        }
    }
}

impl Buckets {
    /// Pins memory for these ranges of the flat gradient, and for this many bytes of losses.
    fn new(
        runtime: &Rc<dyn Runtime>,
        layout: &Layout,
        ranges: &[Range<usize>],
        losses: usize,
    ) -> Result<Self> {
        let all = ranges.iter().map(|range| {
            let section = layout.section(range);
            let pinned = Pinned::new(runtime, 4 * section.span.len())?;
            Ok(Bucket {
                range: range.clone(),
                section,
                pinned,
            })
        });
        Ok(Self {
            all: all.collect::<Result<_>>()?,
            losses: Pinned::new(runtime, losses)?,
        })
    }
}

/// A bucket in pinned memory: copies its numbers to the beginning of a slice.
pub(crate) type CopyBucket<'a> = &'a dyn Fn(&mut [f32]);

/// Losses of a step's rows, once so many parts of its work are done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Losses<'a> {
    pub(super) after: usize,
    pub(super) memory: &'a Memory,
    pub(super) count: usize,
}

impl Plan {
    /// Returns the ranges of the flat gradient's buckets, once their memory is pinned; none if that is refused, or if the
    /// host computes amid the work, which it cannot queue as a whole.
    pub(super) fn prepare_buckets(&mut self) -> Vec<Range<usize>> {
        if uncovered(&self.layers.architecture).is_some() {
            return vec![];
        }
        let ranges = bucket_ranges(&self.layers.architecture);
        if ranges.len() > 1 && self.buckets.is_none() {
            let losses = self.held.as_ref().map(Held::losses);
            let losses = losses.map_or(0, Memory::bytes);
            match Buckets::new(&self.runtime, &self.layers.layout, &ranges, losses) {
                Ok(buckets) => self.buckets = Some(buckets),
                Err(error) => {
                    tracing::warn!(%error, "gradients are not sent while the GPU computes");
                    return vec![];
                }
            }
        }
        ranges
    }

    /// Queues work, with the copy of each bucket behind the part that completes the last of its parameters: `ends` are the
    /// numbers of parts after which they are complete. The losses, if any, are copied too.
    pub(super) fn queue_buckets(
        &self,
        work: &[Work],
        ends: &[usize],
        losses: Option<Losses<'_>>,
    ) -> Result<()> {
        let buckets = self.buckets.as_ref().expect("buckets are prepared");
        let of_buckets = buckets.all.iter().map(|bucket| {
            let ends = ends[bucket.section.parameters.clone()].iter();
            let end = ends.max().copied().unwrap_or(work.len());
            (end, &bucket.pinned, bucket.transfer(self.gradient.at()))
        });
        let of_losses = losses.map(|losses| {
            let transfer = Transfer {
                offset: 0,
                at: losses.memory.at(),
                bytes: 8 * losses.count,
            };
            (losses.after, &buckets.losses, transfer)
        });
        let mut copies: Vec<_> = of_losses.into_iter().chain(of_buckets).collect();
        copies.sort_by_key(|(end, ..)| *end);
        let mut queued = 0;
        for (end, pinned, transfer) in copies {
            self.runtime.run(&work[queued..end])?;
            pinned.collect(&[transfer])?;
            queued = end;
        }
        self.runtime.run(&work[queued..])
    }

    /// Waits for the losses that were queued, and returns their sum.
    pub(super) fn take_losses(&self, count: usize) -> Result<f64> {
        let buckets = self.buckets.as_ref().expect("buckets are prepared");
        let mut sum = 0.0;
        buckets.losses.take(|bytes| {
            let losses: &[f64] = bytemuck::cast_slice(&bytes[..8 * count]);
            sum = losses.iter().sum();
        })?;
        Ok(sum)
    }

    /// Waits for each bucket that was queued, one after the other, and gives it to `done`.
    pub(super) fn take_buckets(&self, mut done: impl FnMut(CopyBucket<'_>)) -> Result<()> {
        let buckets = self.buckets.as_ref().expect("buckets are prepared");
        let layout = &self.layers.layout;
        for bucket in &buckets.all {
            bucket.pinned.take(|bytes| {
                let span: &[f32] = bytemuck::cast_slice(bytes);
                done(&|flat: &mut [f32]| layout.gather_section(&bucket.section, span, flat));
            })?;
        }
        Ok(())
    }

    /// Computes a batch's gradient, and hands over its buckets.
    pub(super) fn back_in_buckets<B: DerefMut<Target = [f32]>>(
        &self,
        input: &Input,
        slopes: &[f32],
        piece: Piece,
        buckets: Vec<B>,
        done: &mut dyn FnMut(B),
    ) -> Result<()> {
        let (work, ends) = self.back_work(input, slopes, piece)?;
        self.queue_buckets(&work, &ends, None)?;
        let mut buckets = buckets.into_iter();
        self.take_buckets(|copy| {
            let mut numbers = buckets.next().expect("the buckets are the network's");
            copy(&mut numbers);
            done(numbers);
        })
    }

    /// Sets the gradient to `flat`: while one bucket is copied to the device, the next one is written to pinned memory.
    pub(super) fn send_gradient(&self, buckets: &Buckets, flat: &[f32]) -> Result<()> {
        let layout = &self.layers.layout;
        for bucket in &buckets.all {
            let own = &flat[bucket.range.clone()];
            // Work that is queued by now may read or write the gradient.
            bucket.pinned.retire()?;
            bucket.pinned.fill(|bytes| {
                let span = bytemuck::cast_slice_mut(bytes);
                layout.spread_section(&bucket.section, own, span);
            })?;
            let transfer = bucket.transfer(self.gradient.at());
            bucket.pinned.transfer(&[transfer])?;
        }
        let mut all = buckets.all.iter();
        all.try_for_each(|bucket| bucket.pinned.arrive())
    }
}
