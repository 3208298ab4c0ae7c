//! Linking the GPUs of all ranks, so that recorded steps sum over them instead of through the host's memory.
//!
//! ```text
//!  offers ──gather──▶ decide ─▶ id of rank 0 ──broadcast──▶ join ─▶ trial ──gather──▶ linked
//!                       │                                    └────────┴─ a rank failed ─▶ apart
//!                       └─ a CPU, another host, a shared or another GPU, no library ────▶ apart
//! ```
//!
//! All ranks decide the same from the same messages. A link is trusted only after it has summed a known vector, queued and
//! recorded, to the same numbers as the ranks' own connections. Where ranks stay apart, each step's sums go over those
//! connections. Whether a rank's rows fit on its GPU, which linked steps need, is agreed later, by the training loop.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::agree::gather;
use crate::collective::{Communicator, host_id};
use crate::device::{Identity, Memory, Number, Runtime, Summed, Work};
use crate::{Error, Result};

/// Time within which GPUs must have met, and again within which they must have summed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum length of the vector of a trial. It is as long as the gradient if that is shorter: by the length, NCCL chooses
/// an algorithm, and connects for it at its first sum, which cannot be cancelled.
const LONGEST: usize = 1 << 24;

/// A rank's device and host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Offer {
    /// Empty if unknown.
    host: String,
    /// `None` if no plan computes on this rank.
    device: Option<Identity>,
}

/// Outcome of linking, the same on all ranks.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Linked {
    pub(super) is_linked: bool,
    /// Note to the user: the reason why they are not, if the user can remove it.
    pub(super) note: Option<String>,
}

impl Linked {
    fn apart(note: impl Into<Option<String>>) -> Self {
        Self {
            is_linked: false,
            note: note.into(),
        }
    }
}

/// Returns the reason why ranks stay apart, if there is one; a note if the user may not expect it.
fn decide(offers: &[Offer]) -> Option<Linked> {
    let devices: Option<Vec<&Identity>> =
        offers.iter().map(|offer| offer.device.as_ref()).collect();
    let Some(devices) = devices else {
        return Some(Linked::apart(None));
    };
    let host = &offers[0].host;
    let on_one_host = !host.is_empty() && offers.iter().all(|offer| offer.host == *host);
    let uuids: BTreeSet<_> = devices.iter().map(|device| &device.uuid).collect();
    let of_one_kind = devices.iter().all(|device| device.kind == devices[0].kind);
    if !on_one_host || uuids.len() < devices.len() || !of_one_kind {
        return Some(Linked::apart(None));
    }
    let unlinked = devices.iter().enumerate();
    let mut unlinked =
        unlinked.filter_map(|(rank, device)| Some((rank, device.unlinked.as_ref()?)));
    let (rank, reason) = unlinked.next()?;
    Some(Linked::apart(note(rank, reason)))
}

fn note(rank: usize, reason: &str) -> String {
    format!(
        "gradients go through the host's memory, which is slower than between GPUs: rank {rank}: {reason}"
    )
}

/// Links the devices of all ranks, if all are of one kind and on one host, unless the network says otherwise with a reason.
/// `numbers` is the length of the gradient. All ranks call it, with `None` where no plan computes.
///
/// # Errors
/// If a peer is lost.
pub(super) fn link(
    runtime: Option<&Rc<dyn Runtime>>,
    unlinked: Option<&str>,
    numbers: usize,
    communicator: &mut Communicator,
) -> Result<Linked> {
    if communicator.world_size() == 1 {
        return Ok(Linked::default());
    }
    let identity = runtime.and_then(|runtime| {
        let identity = runtime.identity();
        let unknown = |error: &Error| tracing::warn!(%error, "a GPU cannot be linked");
        let identity = identity.inspect_err(unknown).ok()?;
        Some(Identity {
            unlinked: unlinked.map(str::to_owned).or(identity.unlinked),
            ..identity
        })
    });
    let mine = Offer {
        host: host_id(),
        device: identity,
    };
    let offers = gather(&mine, "GPU", communicator)?;
    let (Some(runtime), None) = (runtime, decide(&offers)) else {
        return Ok(decide(&offers).unwrap_or_default());
    };
    let mut id = match communicator.rank() {
        0 => runtime.link_id().unwrap_or_else(|error| {
            tracing::warn!(%error, "GPUs cannot be linked");
            vec![]
        }),
        _ => vec![],
    };
    communicator.broadcast(0, &mut id)?;
    let linked = meet(runtime, &id, numbers, communicator);
    let mine = match linked {
        Ok(()) => None,
        Err(error @ Error::Collective(_)) => {
            leave(runtime);
            return Err(error);
        }
        Err(error) => {
            leave(runtime);
            Some(error.chain())
        }
    };
    let all = gather(&mine, "link between GPUs", communicator)?;
    let mut failed = all.into_iter().enumerate();
    let failed = failed.find_map(|(rank, reason)| Some(note(rank, &reason?)));
    if failed.is_some() {
        leave(runtime);
    }
    Ok(Linked {
        is_linked: failed.is_none(),
        note: failed,
    })
}

fn leave(runtime: &Rc<dyn Runtime>) {
    if let Err(error) = runtime.leave() {
        tracing::warn!(%error, "a link between GPUs does not end");
    }
}

/// Joins the link, and sums a vector over it and over the ranks' connections.
fn meet(
    runtime: &Rc<dyn Runtime>,
    id: &[u8],
    numbers: usize,
    communicator: &mut Communicator,
) -> Result<()> {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    let trial = Trial::new(rank, numbers);
    // All ranks make these calls, whatever their devices do.
    let due = trial.summed(communicator)?;
    runtime.join(id, rank, world_size)?;
    wait(runtime, "meet", communicator)?;
    trial.run(&due, runtime, communicator)
}

/// Waits until the device is done.
fn wait(runtime: &Rc<dyn Runtime>, what: &str, communicator: &mut Communicator) -> Result<()> {
    let start = Instant::now();
    communicator.wait_until(|| match start.elapsed() < PATIENCE {
        true => runtime.is_done(),
        false => Err(failed(
            runtime,
            what,
            format!("nothing within {PATIENCE:?}"),
        )),
    })
}

fn failed(runtime: &Rc<dyn Runtime>, what: &str, reason: String) -> Error {
    Error::DeviceFailed {
        device: runtime.name(),
        what: format!("{what} with the GPUs of other ranks"),
        reason,
    }
}

/// Numbers whose sums are exact in any order.
#[derive(Debug, PartialEq)]
struct Trial {
    single: Vec<f32>,
    double: Vec<f64>,
}

impl Trial {
    fn new(rank: usize, numbers: usize) -> Self {
        let number = |at: usize| ((at % 509) * (rank + 1)) as f64;
        Self {
            single: (0..numbers.clamp(1, LONGEST))
                .map(|at| number(at) as f32)
                .collect(),
            double: (0..64).map(|at| number(at) / 8.0).collect(),
        }
    }

    /// Returns the sums over all ranks, over their connections.
    fn summed(&self, communicator: &mut Communicator) -> Result<Self> {
        let mut single: Vec<f64> = self
            .single
            .iter()
            .map(|number| f64::from(*number))
            .collect();
        let mut double = self.double.clone();
        communicator.all_reduce_sum_f64(&mut single)?;
        communicator.all_reduce_sum_f64(&mut double)?;
        Ok(Self {
            single: single.into_iter().map(|number| number as f32).collect(),
            double,
        })
    }

    /// Sums on the devices, queued and then recorded.
    fn run(
        &self,
        due: &Self,
        runtime: &Rc<dyn Runtime>,
        communicator: &mut Communicator,
    ) -> Result<()> {
        let single = Memory::of(runtime, &self.single)?;
        let double = Memory::of(runtime, &self.double)?;
        let work = [Work::AllReduce(vec![
            Summed {
                at: single.at(),
                len: self.single.len(),
                kind: Number::F32,
            },
            Summed {
                at: double.at(),
                len: self.double.len(),
                kind: Number::F64,
            },
        ])];
        let mut twice = || {
            let mut is_right = true;
            for is_recorded in [false, true] {
                single.write(0, &self.single)?;
                double.write(0, &self.double)?;
                if is_recorded {
                    let recorded = runtime.record(&work)?;
                    runtime.replay(recorded)?;
                    wait(runtime, "sum", communicator)?;
                    runtime.forget(recorded);
                } else {
                    runtime.run(&work)?;
                    wait(runtime, "sum", communicator)?;
                }
                let mut found = Self {
                    single: vec![0.0; self.single.len()],
                    double: vec![0.0; self.double.len()],
                };
                single.read(0, &mut found.single)?;
                double.read(0, &mut found.double)?;
                // Peers whose sums are right go on to the next one, and wait for this device there.
                is_right &= found == *due;
            }
            match is_right {
                true => Ok(()),
                false => {
                    let reason = "a known vector has another sum than over the ranks' connections";
                    Err(failed(runtime, "sum", reason.into()))
                }
            }
        };
        let summed = twice();
        if summed.is_err() {
            // Before memory is freed that queued sums use.
            leave(runtime);
        }
        summed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(host: &str, uuid: &str, kind: &str) -> Offer {
        Offer {
            host: host.into(),
            device: Some(Identity {
                uuid: uuid.into(),
                kind: kind.into(),
                unlinked: None,
            }),
        }
    }

    #[test]
    fn gpus_of_one_kind_on_one_host_are_linked() {
        let own = offer("a", "1", "H100");
        assert_eq!(decide(&[own.clone(), offer("a", "2", "H100")]), None);
        let cpu = Offer {
            device: None,
            ..own.clone()
        };
        for other in [
            offer("b", "2", "H100"),
            offer("a", "1", "H100"),
            offer("a", "2", "H200"),
            cpu,
        ] {
            assert_eq!(decide(&[own.clone(), other]), Some(Linked::apart(None)));
        }
        let unknown = [offer("", "1", "H100"), offer("", "2", "H100")];
        assert_eq!(decide(&unknown), Some(Linked::apart(None)));
    }

    #[test]
    fn a_missing_library_is_noted() {
        let mut without = offer("a", "2", "H100");
        let device = without.device.as_mut().unwrap();
        device.unlinked = Some("NCCL is not found".into());
        let apart = decide(&[offer("a", "1", "H100"), without]).unwrap();
        assert!(!apart.is_linked);
        assert!(apart.note.unwrap().ends_with("rank 1: NCCL is not found"));
    }
}
