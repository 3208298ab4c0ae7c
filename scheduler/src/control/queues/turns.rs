//! The fair-share order of one offer's stages, which decides on the next slot.
//!
//! The order has three levels, each a sorted set: queues, the users of a queue, the stages of a user. A queue and a
//! user that have taken a slot are put back at another place. The order is built anew for each offer, from the stages
//! that have partitions left; it keeps nothing.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, HashMap};

use super::settings::Queues;
use super::usage::{Account, Usage};

/// Stage that waits for slots.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting<'a> {
    pub(crate) account: &'a Account,
    pub(crate) priority: i32,
    /// Place in the order of arrival.
    pub(crate) position: usize,
}

/// Order in which stages get slots.
#[derive(Debug)]
pub(crate) struct Turns {
    queues: Vec<QueueTurns>,
    /// Queues with a stage that may take a slot.
    order: BTreeSet<Load>,
    turn: u64,
}

#[derive(Debug)]
struct QueueTurns {
    weight: u32,
    cap: usize,
    slots: usize,
    turn: u64,
    users: Vec<UserTurns>,
    /// Users below the cap with a waiting stage.
    order: BTreeSet<UserTurn>,
}

/// Waiting stages of a user: the highest priority first, then the first to arrive.
#[derive(Debug, Default)]
struct UserTurns {
    slots: usize,
    turn: u64,
    waiting: BTreeSet<(Reverse<i32>, usize)>,
}

/// Sort key of a user in a queue: slots, last turn, position of the first stage, and index of the user.
type UserTurn = (usize, u64, usize, usize);

/// Sort key of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Load {
    slots: usize,
    weight: u32,
    turn: u64,
    queue: usize,
}

impl Ord for Load {
    /// Compares the slots per weight, without a division.
    fn cmp(&self, other: &Self) -> Ordering {
        let product = |slots: usize, weight: u32| slots as u128 * u128::from(weight);
        product(self.slots, other.weight)
            .cmp(&product(other.slots, self.weight))
            .then_with(|| self.turn.cmp(&other.turn))
            .then_with(|| self.queue.cmp(&other.queue))
    }
}

impl PartialOrd for Load {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Turns {
    /// Builds the order of these stages, given the slots in use.
    pub(crate) fn new<'a>(
        queues: &Queues,
        usage: &Usage,
        waiting: impl Iterator<Item = Waiting<'a>>,
    ) -> Self {
        let mut turns = Self {
            queues: Vec::new(),
            order: BTreeSet::new(),
            turn: usage.turn,
        };
        let mut known: HashMap<&str, (usize, HashMap<&str, usize>)> = HashMap::new();
        for stage in waiting {
            let Account { queue, user } = stage.account;
            let (queue, users) = known.entry(queue).or_insert_with(|| {
                turns.queues.push(QueueTurns {
                    weight: queues.weight(queue),
                    cap: queues.cap(queue).unwrap_or(usize::MAX),
                    slots: usage.of_queue(queue),
                    turn: usage.turn_of(queue),
                    users: Vec::new(),
                    order: BTreeSet::new(),
                });
                (turns.queues.len() - 1, HashMap::new())
            });
            let queue = &mut turns.queues[*queue];
            let user = *users.entry(user).or_insert_with(|| {
                queue.users.push(UserTurns {
                    slots: usage.of_user(stage.account),
                    turn: usage.turn_of_user(stage.account),
                    waiting: BTreeSet::new(),
                });
                queue.users.len() - 1
            });
            let place = (Reverse(stage.priority), stage.position);
            queue.users[user].waiting.insert(place);
        }
        for queue in 0..turns.queues.len() {
            for user in 0..turns.queues[queue].users.len() {
                turns.queues[queue].enter(user);
            }
            turns.enter(queue);
        }
        turns
    }

    /// Returns the position of the stage that gets the next slot.
    pub(crate) fn next(&self) -> Option<usize> {
        let queue = &self.queues[self.order.first()?.queue];
        let (.., user) = queue.order.first()?;
        let (_, position) = queue.users[*user].waiting.first()?;
        Some(*position)
    }

    /// Gives a slot to the stage whose turn it is; `more` says whether it waits for more.
    pub(crate) fn take(&mut self, more: bool) {
        let Some(Load { queue: at, .. }) = self.order.pop_first() else {
            return;
        };
        self.turn += 1;
        let queue = &mut self.queues[at];
        queue.turn = self.turn;
        queue.slots += 1;
        if let Some((.., user)) = queue.order.pop_first() {
            let of_user = &mut queue.users[user];
            of_user.slots += 1;
            of_user.turn = self.turn;
            if !more {
                of_user.waiting.pop_first();
            }
            queue.enter(user);
        }
        self.enter(at);
    }

    /// Leaves out the stage whose turn it is: it cannot take the slot.
    pub(crate) fn skip(&mut self) {
        let Some(Load { queue: at, .. }) = self.order.pop_first() else {
            return;
        };
        let queue = &mut self.queues[at];
        if let Some((.., user)) = queue.order.pop_first() {
            queue.users[user].waiting.pop_first();
            queue.enter(user);
        }
        self.enter(at);
    }

    /// Puts a queue into the order if any of its users is in its own order.
    fn enter(&mut self, queue: usize) {
        let QueueTurns {
            weight,
            slots,
            turn,
            ref order,
            ..
        } = self.queues[queue];
        if !order.is_empty() {
            self.order.insert(Load {
                slots,
                weight,
                turn,
                queue,
            });
        }
    }
}

impl QueueTurns {
    fn enter(&mut self, user: usize) {
        let UserTurns {
            slots,
            turn,
            waiting,
        } = &self.users[user];
        if *slots < self.cap
            && let Some((_, position)) = waiting.first()
        {
            self.order.insert((*slots, *turn, *position, user));
        }
    }
}

#[cfg(test)]
mod tests {
    use volley_proto::settings::QUEUE_DEFAULT;

    use super::super::settings::Queue;
    use super::*;

    fn queues(texts: &[&str]) -> Queues {
        let queues: Vec<Queue> = texts.iter().map(|text| text.parse().unwrap()).collect();
        Queues::new(&queues).unwrap()
    }

    /// Returns the stages that get the next slots; stages are given as `queue/user` with a priority, and want many
    /// slots.
    fn turns(queues: &Queues, usage: &Usage, stages: &[(&str, i32)], slots: usize) -> Vec<usize> {
        let account = |text: &str| {
            let (queue, user) = text.split_once('/').unwrap();
            Account::new(queue, user)
        };
        let accounts: Vec<_> = stages.iter().map(|(text, _)| account(text)).collect();
        let waiting = stages.iter().zip(&accounts).enumerate();
        let waiting = waiting.map(|(position, ((_, priority), account))| Waiting {
            account,
            priority: *priority,
            position,
        });
        let mut turns = Turns::new(queues, usage, waiting);
        let mut taken = Vec::new();
        while let Some(position) = turns.next()
            && taken.len() < slots
        {
            turns.take(true);
            taken.push(position);
        }
        taken
    }

    fn count(taken: &[usize], stages: usize) -> Vec<usize> {
        let of = |stage| taken.iter().filter(|taken| **taken == stage).count();
        (0..stages).map(of).collect()
    }

    #[test]
    fn slots_are_shared_by_weight() {
        let queues = queues(&["etl=1", "adhoc=3"]);
        let stages = [("etl/a", 0), ("adhoc/b", 0), ("default/c", 0)];
        let taken = turns(&queues, &Usage::default(), &stages, 50);
        assert_eq!(count(&taken, 3), [10, 30, 10]);
        // Slots in use count.
        let mut usage = Usage::default();
        usage.add(&Account::new("adhoc", "x"), 30);
        let taken = turns(&queues, &usage, &stages, 20);
        assert_eq!(count(&taken, 3), [10, 0, 10]);
    }

    #[test]
    fn a_queue_alone_has_all_slots() {
        let taken = turns(&queues(&["etl=1"]), &Usage::default(), &[("etl/a", 0)], 8);
        assert_eq!(taken, [0; 8]);
    }

    /// Returns the stages that get one slot, each time that it is free again.
    fn one_slot(stages: &[(&str, i32)], times: usize) -> Vec<usize> {
        let (queues, mut usage) = (queues(&["etl=1"]), Usage::default());
        let mut taken = Vec::new();
        for _ in 0..times {
            let turn = turns(&queues, &usage, stages, 1)[0];
            let (queue, user) = stages[turn].0.split_once('/').unwrap();
            usage.add(&Account::new(queue, user), 1);
            usage.remove(&Account::new(queue, user), 1);
            taken.push(turn);
        }
        taken
    }

    #[test]
    fn on_one_slot_queues_take_turns() {
        assert_eq!(one_slot(&[("etl/a", 0), ("default/b", 0)], 4), [0, 1, 0, 1]);
    }

    #[test]
    fn on_one_slot_users_take_turns_whatever_their_priorities() {
        let stages = [
            ("etl/a", 100),
            ("etl/a", 100),
            ("etl/b", 0),
            ("etl/c", -100),
        ];
        assert_eq!(one_slot(&stages, 6), [0, 2, 3, 0, 2, 3]);
    }

    #[test]
    fn inside_a_queue_users_share_then_priority_then_arrival_decide() {
        let queues = Queues::default();
        let stages = [
            ("default/a", 0),
            ("default/a", 5),
            ("default/b", 0),
            ("default/a", 5),
        ];
        let taken = turns(&queues, &Usage::default(), &stages, 4);
        assert_eq!(taken, [1, 2, 1, 2], "users in turn, a's highest priority");
        let of_one = [("default/a", 0), ("default/a", 0)];
        assert_eq!(turns(&queues, &Usage::default(), &of_one, 3), [0, 0, 0]);
    }

    #[test]
    fn a_user_takes_no_more_than_the_cap() {
        let queues = queues(&["etl=1,user_slots=3"]);
        let mut usage = Usage::default();
        usage.add(&Account::new("etl", "a"), 1);
        let stages = [("etl/a", 9), ("etl/b", 0)];
        let taken = turns(&queues, &usage, &stages, 100);
        assert_eq!(count(&taken, 2), [2, 3]);
        usage.remove(&Account::new("etl", "a"), 1);
        let taken = turns(&queues, &usage, &stages, 100);
        assert_eq!(count(&taken, 2), [3, 3]);
    }

    #[test]
    fn who_wants_no_more_makes_room() {
        let account = Account::new(QUEUE_DEFAULT, "a");
        let waiting = [0, 1].map(|position| Waiting {
            account: &account,
            priority: 0,
            position,
        });
        let usage = Usage::default();
        let mut turns = Turns::new(&Queues::default(), &usage, waiting.into_iter());
        assert_eq!(turns.next(), Some(0));
        turns.take(false);
        assert_eq!(turns.next(), Some(1));
        turns.take(false);
        assert_eq!(turns.next(), None);
        turns.take(false);
    }
}
