//! The assignment of GPUs to the executors that could run a gang's ranks.
//!
//! No GPU is dealt twice, and as many executors as possible get one: if the GPU that an executor sees is taken, its
//! owner is moved to another that it sees (augmenting paths of bipartite matching, Kuhn 1955). An executor that has
//! been dealt a GPU keeps one, so those first in the order are served first. Ranks that share get a GPU together once
//! there are too few for one each.
//!
//! Not here: the number of ranks, and the order of executors.

use std::collections::{BTreeMap, BTreeSet};

use super::pool::Executor;
use crate::control::devices::{DeviceRequest, HeldGpus, HostGpu};

/// Executor that could run a rank, and the rank's device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dealt<'a> {
    pub(super) executor: &'a Executor,
    /// GPU; `None` for the CPU.
    pub(super) gpu: Option<&'a HostGpu>,
}

/// Deals GPUs to executors in their order. Executors that need a GPU and get none are left out; those that get one
/// come first.
pub(super) fn deal<'a>(
    executors: &[&'a Executor],
    request: DeviceRequest,
    held: &HeldGpus,
) -> Vec<Dealt<'a>> {
    let choices = executors.iter().map(|executor| executor.choice(request));
    let choices: Vec<_> = choices.collect();
    let open = |gpus: &'a [HostGpu]| {
        let open = gpus.iter().filter(|gpu| held.is_open(gpu, request.shares));
        let mut open: Vec<_> = open.collect();
        open.sort_by_key(|gpu| held.ranks_on(gpu));
        open
    };
    let mut matching = Matching {
        options: choices.iter().map(|choice| open(choice.gpus())).collect(),
        owners: BTreeMap::new(),
    };
    let unmatched: Vec<_> = (0..executors.len())
        .filter(|at| !matching.augment(*at, &mut BTreeSet::new()))
        .collect();
    let mut gpus = vec![None; executors.len()];
    let mut dealt: BTreeMap<&HostGpu, usize> = BTreeMap::new();
    for (gpu, owner) in &matching.owners {
        gpus[*owner] = Some(*gpu);
        dealt.insert(gpu, 1);
    }
    for at in unmatched.into_iter().filter(|_| request.shares) {
        let ranks_on = |gpu: &&HostGpu| held.ranks_on(gpu) + dealt.get(*gpu).unwrap_or(&0);
        let least = matching.options[at].iter().copied().min_by_key(ranks_on);
        if let Some(gpu) = least {
            *dealt.entry(gpu).or_default() += 1;
            gpus[at] = Some(gpu);
        }
    }
    let all = executors.iter().zip(choices).zip(gpus);
    let able = all.filter(|((_, choice), gpu)| gpu.is_some() || !choice.needs_gpu());
    let mut able: Vec<_> = able
        .map(|((executor, _), gpu)| Dealt { executor, gpu })
        .collect();
    able.sort_by_key(|dealt| dealt.gpu.is_none());
    able
}

/// Matching of executors, by position, with GPUs of their own.
struct Matching<'a> {
    /// GPUs that each executor may get.
    options: Vec<Vec<&'a HostGpu>>,
    owners: BTreeMap<&'a HostGpu, usize>,
}

impl<'a> Matching<'a> {
    /// Gives an executor a GPU of its own, besides those that have one. Returns false if there is none.
    fn augment(&mut self, at: usize, tried: &mut BTreeSet<&'a HostGpu>) -> bool {
        let mut options = self.options[at].iter();
        if let Some(gpu) = options.find(|gpu| !self.owners.contains_key(*gpu)) {
            self.owners.insert(gpu, at);
            return true;
        }
        for option in 0..self.options[at].len() {
            let gpu = self.options[at][option];
            let owner = self.owners.get(gpu).copied();
            if tried.insert(gpu) && owner.is_some_and(|owner| self.augment(owner, tried)) {
                self.owners.insert(gpu, at);
                return true;
            }
        }
        false
    }
}
