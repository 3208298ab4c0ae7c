//! The handle to the controller: one lock around it, which also sends its commands on and wakes its waiters.
//!
//! ```text
//!   grpc, ballista ── event, question ──► Control ──► Controller (one lock, never held across a wait)
//!                                           │ commands
//!                                           ├─ Wake(topic) ──► those who wait for it
//!                                           ├─ Record(change) ► the record
//!                                           └─ the rest ─────► the driver, in order
//! ```
//!
//! The [traces](crate::traces) of jobs follow events and commands here, if there are any. The handle decides nothing.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};
use volley_proto::traces::Traces;

use crate::control::{Binding, Command, Controller, Event, Now, Offer, Policy, Topic};
use crate::record::{Record, WriterFigures};
use crate::traces::JobTraces;

/// Handle to the controller; cheap to clone.
#[derive(Clone)]
pub(crate) struct Control {
    shared: Arc<Shared>,
}

struct Shared {
    controller: Mutex<Controller>,
    topics: Mutex<HashMap<Topic, watch::Sender<()>>>,
    commands: mpsc::UnboundedSender<Command>,
    record: Record,
    traces: Option<JobTraces>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl Control {
    /// Creates an empty controller, and the receiver of its commands but those that are for the record.
    pub(crate) fn new(
        policy: Policy,
        record: Record,
        traces: Option<Traces>,
    ) -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let shared = Shared {
            controller: Mutex::new(Controller::new(policy)),
            topics: Mutex::default(),
            commands,
            record,
            traces: traces.map(JobTraces::new),
        };
        let shared = Arc::new(shared);
        (Self { shared }, receiver)
    }

    /// Passes an event to the controller.
    pub(crate) fn on(&self, event: Event) {
        let commands = {
            let mut controller = self.shared.controller.lock();
            let now = Now::read();
            let traces = self.shared.traces.as_ref();
            let seen = traces.and_then(|traces| Some((traces, JobTraces::sees(&event)?)));
            let commands = controller.on(event, now);
            if let Some((traces, seen)) = seen {
                traces.follows(seen, &controller, now.time);
            }
            self.record(commands, &controller, now)
        };
        self.send(commands);
    }

    /// Returns the parts of an offer to bind now.
    pub(crate) fn place(&self, offer: Offer<'_>) -> Vec<Binding> {
        let commands = {
            let mut controller = self.shared.controller.lock();
            let now = Now::read();
            let commands = controller.place(offer, now);
            self.record(commands, &controller, now)
        };
        let mut bindings = Vec::new();
        let rest = commands.into_iter().filter_map(|command| match command {
            Command::Bind(binding) => {
                bindings.push(binding);
                None
            }
            command => Some(command),
        });
        let rest = rest.collect();
        self.send(rest);
        bindings
    }

    /// Asks the controller a question that may change it.
    pub(crate) fn ask<T>(&self, question: impl FnOnce(&mut Controller, Now) -> T) -> T {
        let (answer, commands) = {
            let mut controller = self.shared.controller.lock();
            let now = Now::read();
            let answer = question(&mut controller, now);
            let commands = controller.take_commands();
            (answer, self.record(commands, &controller, now))
        };
        self.send(commands);
        answer
    }

    /// Reads the controller.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Controller) -> T) -> T {
        look(&self.shared.controller.lock())
    }

    /// Waits until `look` finds something, looking again whenever the topic changes; returns `None` at the deadline.
    pub(crate) async fn wait<T>(
        &self,
        topic: Topic,
        patience: Duration,
        look: impl Fn(&Controller) -> Option<T>,
    ) -> Option<T> {
        // Subscribes before looking, so that a change in between is not missed.
        let mut news = self.subscribe(topic);
        let deadline = Instant::now() + patience;
        loop {
            if let Some(found) = self.look(&look) {
                return Some(found);
            }
            timeout_at(deadline, news.changed()).await.ok()?;
        }
    }

    /// Subscribes to news of a topic from now on.
    pub(crate) fn subscribe(&self, topic: Topic) -> News {
        let mut topics = self.shared.topics.lock();
        let receiver = topics.entry(topic.clone()).or_default().subscribe();
        News {
            shared: Arc::clone(&self.shared),
            topic,
            receiver,
        }
    }

    /// Holds attempts of jobs that are not known yet back, until the answer is dropped: their quotas are not known either.
    pub(crate) fn opens(&self) -> Opening {
        self.ask(|control, _| control.opens());
        Opening {
            control: self.clone(),
        }
    }

    /// Returns the figures of the record's writer; `None` where jobs are not recorded.
    pub(crate) fn record_figures(&self) -> Option<WriterFigures> {
        self.shared.record.figures()
    }

    /// Returns the handle by which spans are sent; `None` where jobs are not traced.
    pub(crate) fn traces(&self) -> Option<&Traces> {
        self.shared.traces.as_ref().map(JobTraces::traces)
    }

    /// Records changes, in the order in which the controller decided them: under its lock. Returns the other commands.
    fn record(
        &self,
        mut commands: Vec<Command>,
        controller: &Controller,
        now: Now,
    ) -> Vec<Command> {
        if let Some(traces) = &self.shared.traces {
            traces.decided(&commands, controller, now.time);
        }
        let recorded = commands.extract_if(.., |command| matches!(command, Command::Record(_)));
        for command in recorded {
            if let Command::Record(change) = command {
                self.shared.record.change(change);
            }
        }
        commands
    }

    fn send(&self, commands: Vec<Command>) {
        for command in commands {
            match command {
                Command::Wake(topic) => {
                    if let Some(topic) = self.shared.topics.lock().get(&topic) {
                        topic.send_replace(());
                    }
                }
                command => {
                    if let Err(command) = self.shared.commands.send(command) {
                        tracing::debug!(?command, "the scheduler is stopping");
                    }
                }
            }
        }
    }
}

/// Submission whose job is not known yet.
pub(crate) struct Opening {
    control: Control,
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.control.ask(|control, _| control.opened());
    }
}

/// Subscription to a topic.
pub(crate) struct News {
    shared: Arc<Shared>,
    topic: Topic,
    receiver: watch::Receiver<()>,
}

impl News {
    /// Waits for news that has not been waited for yet.
    pub(crate) async fn changed(&mut self) {
        // The sender is dropped with the last receiver.
        if self.receiver.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for News {
    fn drop(&mut self) {
        let mut topics = self.shared.topics.lock();
        let is_last = |topic: &watch::Sender<()>| topic.receiver_count() == 1;
        if topics.get(&self.topic).is_some_and(is_last) {
            topics.remove(&self.topic);
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! A controller for tests of the code that holds one.

    use super::*;
    use crate::control::{Queues, RetentionPolicy};

    pub(crate) const LONG: Duration = Duration::from_secs(3600);

    /// Creates a controller with long timeouts.
    pub(crate) fn control() -> (Control, mpsc::UnboundedReceiver<Command>) {
        let policy = Policy {
            executor_timeout: LONG,
            client_timeout: LONG,
            retention: RetentionPolicy {
                unread: LONG,
                idle: LONG,
            },
            queues: Queues::default(),
            reservation_limit: LONG,
        };
        Control::new(policy, Record::default(), None)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::LONG;
    use super::*;
    use crate::control::{AttemptEnd, Submission};

    fn with_job() -> Control {
        let (control, _) = testing::control();
        control.on(Event::JobSubmitted(Submission::query("j")));
        control
    }

    fn is_over(controller: &Controller) -> Option<bool> {
        let job = controller.job("j")?;
        job.has_ended().then_some(true)
    }

    #[tokio::test]
    async fn waits_for_a_change_or_the_deadline() {
        let control = with_job();
        let topic = || Topic::Job("j".into());
        let late = control.wait(topic(), Duration::ZERO, is_over).await;
        assert_eq!(late, None);
        let waiting = tokio::spawn({
            let control = control.clone();
            async move { control.wait(topic(), LONG, is_over).await }
        });
        tokio::task::yield_now().await;
        control.on(Event::AttemptEnded {
            attempt: "j".into(),
            end: AttemptEnd::Succeeded { rows: None },
        });
        assert_eq!(waiting.await.unwrap(), Some(true));
        assert!(control.shared.topics.lock().is_empty(), "nobody waits");
    }
}
