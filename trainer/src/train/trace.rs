//! Trace of each rank's activity, as a file for `chrome://tracing` and <https://ui.perfetto.dev>: one track
//! per rank, one slice for each part of a step.
//!
//! Times are those of each host's clock: if the clocks of two hosts differ, so do their ranks' tracks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Maximum parts kept per rank, the first ones: a few thousand steps.
const MOST: usize = 40_000;

/// A part of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Part {
    Rows,
    /// One or more steps that a device took by itself.
    Steps,
    Moments,
    Backward,
    /// Sum of the gradient, as far as it does not overlap with the backward pass.
    Gradient,
    Update,
    Evaluate,
    Checkpoint,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Rows => "gather rows",
            Self::Steps => "steps on the device",
            Self::Moments => "all-reduce moments",
            Self::Backward => "forward, backward",
            Self::Gradient => "all-reduce gradient",
            Self::Update => "optimizer",
            Self::Evaluate => "evaluate",
            Self::Checkpoint => "encode checkpoint",
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Moments | Self::Gradient => "collective",
            _ => "compute",
        }
    }
}

/// A finished part: its kind, its step since training began, its start in microseconds since 1970, and its
/// duration in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Slice(Part, u64, u64, u64);

/// Recorder of finished parts, if tracing is on.
#[derive(Debug)]
pub(super) struct Trace {
    slices: Option<Vec<Slice>>,
    /// One moment by both clocks.
    origin: (Instant, u64),
    /// End of the last part.
    last: Instant,
}

impl Trace {
    pub(super) fn new(on: bool) -> Self {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let now = Instant::now();
        Self {
            slices: on.then(Vec::new),
            origin: (now, micros),
            last: now,
        }
    }

    /// Starts the next part now, skipping the time since the last.
    pub(super) fn begins(&mut self) {
        if self.slices.is_some() {
            self.last = Instant::now();
        }
    }

    /// Records that a part of a step is done; the next part starts now.
    pub(super) fn ends(&mut self, part: Part, step: u64) {
        let Some(slices) = &mut self.slices else {
            return;
        };
        let now = Instant::now();
        if slices.len() < MOST {
            let micros = |duration: std::time::Duration| duration.as_micros() as u64;
            let start = self.origin.1 + micros(self.last - self.origin.0);
            slices.push(Slice(part, step, start, micros(now - self.last)));
        }
        self.last = now;
    }

    /// Takes the recorded parts, if tracing is on.
    pub(super) fn take(&mut self) -> Option<Vec<Slice>> {
        self.slices.take()
    }
}

/// Encodes the file of all ranks' slices, given by rank.
pub(super) fn encode(ranks: &[Vec<Slice>]) -> Bytes {
    let mut events = Vec::new();
    for (rank, slices) in ranks.iter().enumerate() {
        events.push(json!({
            "name": "thread_name", "ph": "M", "pid": 0, "tid": rank,
            "args": { "name": format!("rank {rank}") },
        }));
        events.extend(slices.iter().map(|Slice(part, step, start, duration)| {
            json!({
                "name": part.name(), "cat": part.kind(), "ph": "X", "pid": 0, "tid": rank,
                "ts": start, "dur": duration, "args": { "step": step },
            })
        }));
    }
    let file = json!({ "traceEvents": events, "displayTimeUnit": "ms" });
    Bytes::from(file.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another() {
        let mut trace = Trace::new(true);
        trace.begins();
        trace.ends(Part::Rows, 1);
        trace.ends(Part::Backward, 1);
        let slices = trace.take().unwrap();
        let [Slice(_, _, start, duration), Slice(_, _, next, _)] = slices[..] else {
            panic!("{slices:?}")
        };
        assert!((start + duration).abs_diff(next) <= 1);
        let file: serde_json::Value = serde_json::from_slice(&encode(&[slices])).unwrap();
        assert_eq!(file["traceEvents"][2]["name"], "forward, backward");
        assert_eq!(file["traceEvents"][0]["args"]["name"], "rank 0");
    }

    #[test]
    fn nothing_is_noted_unasked() {
        let mut trace = Trace::new(false);
        trace.ends(Part::Rows, 1);
        assert_eq!(trace.take(), None);
    }
}
