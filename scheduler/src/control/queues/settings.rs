//! The queues of a cluster: their names, weights and caps, from the scheduler's options.
//!
//! Not here: the use that jobs make of them.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use volley_proto::settings::QUEUE_DEFAULT;
use volley_proto::{Error, did_you_mean};

/// Queue from the scheduler's options: `NAME=WEIGHT[,user_slots=N]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Name by which jobs choose it.
    pub name: String,
    /// Weight: slots are shared between queues in proportion to it.
    pub weight: u32,
    /// Cap: the most slots of the queue that one user's queries hold; `None` sets no cap.
    pub user_slots: Option<usize>,
}

impl FromStr for Queue {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |expected: &str| Error::option("--queue", text, expected);
        let form = || wrong("expected NAME=WEIGHT[,user_slots=N]");
        let (name, rest) = text.split_once('=').ok_or_else(form)?;
        let in_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(in_name) {
            return Err(wrong(
                "expected a name of letters, digits, '_' and '-' before the '='",
            ));
        }
        let (weight, cap) = match rest.split_once(',') {
            Some((weight, cap)) => (weight, Some(cap)),
            None => (rest, None),
        };
        let weight = weight.parse::<u32>().ok().filter(|weight| *weight > 0);
        let weight = weight.ok_or_else(|| wrong("expected a weight of 1 or more"))?;
        let slots = |cap: &str| {
            let slots = cap.strip_prefix("user_slots=").ok_or_else(form)?;
            if slots.contains(',') {
                return Err(form());
            }
            let slots = slots.parse::<usize>().ok().filter(|slots| *slots > 0);
            slots.ok_or_else(|| wrong("expected user_slots of 1 or more"))
        };
        Ok(Self {
            name: name.to_owned(),
            weight,
            user_slots: cap.map(slots).transpose()?,
        })
    }
}

/// Queues of a cluster; `default` is always among them.
#[derive(Debug, Clone)]
pub(crate) struct Queues {
    by_name: BTreeMap<String, Queue>,
}

impl Default for Queues {
    fn default() -> Self {
        let default = Queue {
            name: QUEUE_DEFAULT.to_owned(),
            weight: 1,
            user_slots: None,
        };
        Self {
            by_name: [(default.name.clone(), default)].into(),
        }
    }
}

impl Queues {
    /// Builds the queues of these settings, and `default`.
    ///
    /// # Errors
    /// When two have the same name.
    pub(crate) fn new(queues: &[Queue]) -> Result<Self, Error> {
        let mut known = Self::default();
        let mut names = BTreeSet::new();
        for queue in queues {
            if !names.insert(&queue.name) {
                return Err(Error::Option {
                    option: "--queue".to_owned(),
                    value: queue.name.clone(),
                    expected: "expected each queue once".to_owned(),
                });
            }
            known.by_name.insert(queue.name.clone(), queue.clone());
        }
        Ok(known)
    }

    /// Checks that a queue exists.
    ///
    /// # Errors
    /// When it does not; names it and the existing queues.
    pub(crate) fn check(&self, name: &str) -> Result<(), String> {
        if self.by_name.contains_key(name) {
            return Ok(());
        }
        let names = || self.by_name.keys().map(String::as_str);
        let hint = did_you_mean(name, names());
        let names = names().collect::<Vec<_>>().join(", ");
        Err(format!(
            "unknown queue {name:?}: the scheduler's queues are {names}{hint}"
        ))
    }

    pub(super) fn weight(&self, queue: &str) -> u32 {
        self.by_name.get(queue).map_or(1, |queue| queue.weight)
    }

    /// Returns the cap of a queue.
    pub(crate) fn cap(&self, queue: &str) -> Option<usize> {
        self.by_name.get(queue).and_then(|queue| queue.user_slots)
    }

    /// Sums the weights of some queues.
    pub(crate) fn weights<'a>(&self, queues: impl Iterator<Item = &'a str>) -> u64 {
        queues.map(|queue| u64::from(self.weight(queue))).sum()
    }

    /// Returns a queue's share of `slots` by its weight; `weights` is the sum of all queues that share them.
    pub(crate) fn share(&self, queue: &str, slots: usize, weights: u64) -> usize {
        let share = slots as u64 * u64::from(self.weight(queue)) / weights.max(1);
        usize::try_from(share).unwrap_or(usize::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(texts: &[&str]) -> Queues {
        let queues: Vec<Queue> = texts.iter().map(|text| text.parse().unwrap()).collect();
        Queues::new(&queues).unwrap()
    }

    #[test]
    fn a_share_is_of_those_that_are_active() {
        let queues = queues(&["etl=1", "adhoc=3"]);
        let share = |slots: usize, active: &[&str]| {
            queues.share("etl", slots, queues.weights(active.iter().copied()))
        };
        assert_eq!(share(8, &["etl"]), 8);
        assert_eq!(share(8, &["etl", "adhoc"]), 2);
        assert_eq!(share(2, &["etl", "adhoc"]), 1);
    }

    #[test]
    fn queues_are_read() {
        let queue: Queue = "etl=2,user_slots=4".parse().unwrap();
        assert_eq!(
            (queue.name.as_str(), queue.weight, queue.user_slots),
            ("etl", 2, Some(4))
        );
        assert_eq!("a=1".parse::<Queue>().unwrap().user_slots, None);
        for (text, expected) in [
            ("etl", "expected NAME=WEIGHT[,user_slots=N]"),
            ("etl=1,slots=4", "expected NAME=WEIGHT[,user_slots=N]"),
            (
                "etl=1,user_slots=4,x=1",
                "expected NAME=WEIGHT[,user_slots=N]",
            ),
            ("etl=0", "expected a weight of 1 or more"),
            ("etl=x", "expected a weight of 1 or more"),
            ("etl=1,user_slots=0", "expected user_slots of 1 or more"),
            (
                "e l=1",
                "expected a name of letters, digits, '_' and '-' before the '='",
            ),
        ] {
            let error = text.parse::<Queue>().unwrap_err().to_string();
            assert_eq!(error, format!("option --queue = {text}: {expected}"));
        }
        let twice = [queue.clone(), queue];
        assert!(Queues::new(&twice).is_err());
    }

    #[test]
    fn an_unknown_queue_is_refused_with_those_that_there_are() {
        let queues = queues(&["etl=1"]);
        assert_eq!(queues.check("etl"), Ok(()));
        assert_eq!(queues.check(QUEUE_DEFAULT), Ok(()));
        let refused = queues.check("etll").unwrap_err();
        assert_eq!(
            refused,
            "unknown queue \"etll\": the scheduler's queues are default, etl; did you mean \"etl\"?"
        );
    }
}
