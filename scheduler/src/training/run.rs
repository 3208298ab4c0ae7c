//! One training run as the scheduler knows it: a state machine of events in, answers out.

use bytes::Bytes;
use volley_proto::store::EpochRecord;

/// One training run.
#[derive(Debug, Default)]
pub(crate) struct Run {
    generation: u64,
    members: Vec<Member>,
    root: Option<Failure>,
    events: Vec<Event>,
}

/// A rank's task in the current generation; its index is its rank.
#[derive(Debug, Clone)]
struct Member {
    task: usize,
    executor: String,
    endpoint: Option<Bytes>,
}

/// What has happened, for those who watch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    /// The gang waits for slots.
    Waiting { reason: String },
    /// A generation has been bound.
    Started {
        generation: u64,
        executors: Vec<String>,
    },
    /// A rank has streamed its shards.
    Loaded {
        rank: usize,
        rows: u64,
        seconds: f64,
    },
    /// An epoch is done.
    Epoch(EpochRecord),
    /// The generation has ended in failure.
    Failed(Failure),
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) rank: usize,
    pub(crate) executor: String,
    pub(crate) error: String,
}

/// A generation's membership as one rank gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Membership {
    pub(crate) generation: u64,
    pub(crate) rank: usize,
    pub(crate) endpoints: Vec<Bytes>,
    pub(crate) executors: Vec<String>,
}

impl Run {
    /// The gang waits; said once for each reason.
    pub(crate) fn waits(&mut self, reason: String) {
        let said =
            matches!(self.events.last(), Some(Event::Waiting { reason: last }) if *last == reason);
        if !said {
            self.events.push(Event::Waiting { reason });
        }
    }

    /// A new generation has been bound to these tasks.
    pub(crate) fn starts(&mut self, tasks: Vec<(usize, String)>) {
        self.generation += 1;
        self.root = None;
        let executors = tasks.iter().map(|(_, executor)| executor.clone()).collect();
        let member = |(task, executor)| Member {
            task,
            executor,
            endpoint: None,
        };
        self.members = tasks.into_iter().map(member).collect();
        self.events.push(Event::Started {
            generation: self.generation,
            executors,
        });
    }

    /// A task reports where its rank can be reached. False when it is no member.
    pub(crate) fn joins(&mut self, task: usize, executor: &str, endpoint: Bytes) -> bool {
        let mine = |member: &&mut Member| member.task == task && member.executor == executor;
        let member = self.members.iter_mut().find(mine);
        member
            .map(|member| member.endpoint = Some(endpoint))
            .is_some()
    }

    /// The membership for a task, once all have joined.
    pub(crate) fn membership(&self, task: usize) -> Option<Membership> {
        let rank = self.members.iter().position(|member| member.task == task)?;
        let endpoints = self
            .members
            .iter()
            .map(|m| m.endpoint.clone())
            .collect::<Option<_>>()?;
        let executors = self.members.iter().map(|m| m.executor.clone()).collect();
        Some(Membership {
            generation: self.generation,
            rank,
            endpoints,
            executors,
        })
    }

    /// The ranks that have not joined, as text.
    pub(crate) fn missing(&self) -> String {
        let missing: Vec<_> = self
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| member.endpoint.is_none())
            .map(|(rank, member)| format!("rank {rank} on executor {}", member.executor))
            .collect();
        missing.join(", ")
    }

    /// A rank reports progress. Reports of other generations are dropped.
    pub(crate) fn reports(&mut self, generation: u64, event: Event) {
        if generation == self.generation {
            self.events.push(event);
        }
    }

    /// A rank reports its failure. The first that is not the loss of a peer is the root cause.
    pub(crate) fn fails(&mut self, generation: u64, failure: Failure, peer_lost: bool) {
        if generation == self.generation && self.root.is_none() && !peer_lost {
            self.events.push(Event::Failed(failure.clone()));
            self.root = Some(failure);
        }
    }

    /// The failure that ended the generation.
    pub(crate) fn root(&self) -> Option<&Failure> {
        self.root.as_ref()
    }

    /// What has happened so far.
    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound() -> Run {
        let mut run = Run::default();
        run.starts(vec![(0, "a".into()), (1, "b".into())]);
        run
    }

    fn failure(rank: usize, error: &str) -> Failure {
        Failure {
            rank,
            executor: "x".into(),
            error: error.into(),
        }
    }

    #[test]
    fn membership_is_handed_out_once_all_have_joined() {
        let mut run = bound();
        assert!(run.joins(1, "b", "B".into()));
        assert_eq!(run.membership(1), None);
        assert_eq!(run.missing(), "rank 0 on executor a");
        assert!(run.joins(0, "a", "A".into()));
        let membership = run.membership(1).unwrap();
        assert_eq!((membership.generation, membership.rank), (1, 1));
        assert_eq!(membership.endpoints, ["A", "B"]);
        assert_eq!(membership.executors, ["a", "b"]);
    }

    #[test]
    fn strangers_do_not_join() {
        let mut run = bound();
        assert!(!run.joins(7, "a", "A".into()));
        assert!(!run.joins(0, "b", "A".into()));
    }

    #[test]
    fn a_new_generation_starts_without_members_endpoints() {
        let mut run = bound();
        run.joins(0, "a", "A".into());
        run.joins(1, "b", "B".into());
        run.starts(vec![(2, "a".into()), (3, "c".into())]);
        assert_eq!(run.membership(2), None);
        run.reports(
            1,
            Event::Loaded {
                rank: 0,
                rows: 1,
                seconds: 0.0,
            },
        );
        assert!(
            !run.events()
                .iter()
                .any(|event| matches!(event, Event::Loaded { .. }))
        );
    }

    #[test]
    fn the_root_cause_is_the_first_failure_that_is_not_a_lost_peer() {
        let mut run = bound();
        run.fails(1, failure(0, "peer 1 closed"), true);
        assert_eq!(run.root(), None);
        run.fails(1, failure(1, "label is null"), false);
        run.fails(1, failure(0, "other"), false);
        assert_eq!(run.root().unwrap().error, "label is null");
        run.fails(9, failure(0, "stale"), false);
        assert_eq!(run.root().unwrap().rank, 1);
    }

    #[test]
    fn waiting_is_said_once() {
        let mut run = Run::default();
        run.waits("a".into());
        run.waits("a".into());
        run.waits("b".into());
        assert_eq!(run.events().len(), 2);
    }
}
