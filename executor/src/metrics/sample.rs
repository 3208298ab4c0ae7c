//! Samples of the executor's vital signs, which the scheduler keeps for a while: its page shows them.
//!
//! A sample has levels as they are, and rates since the sample before. Not here: how samples travel.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;
use volley_proto::access::Authorized;
use volley_proto::metrics::ProcessUsage;
use volley_proto::tables;

use super::Vitals;
use crate::ExecutorConfig;
use crate::attendance::measured;
use crate::ballista::disks::Space;

/// Time between two samples.
const EVERY: Duration = Duration::from_secs(3);

/// Sends samples to the scheduler for as long as this is polled.
pub(crate) async fn tell_vitals(config: ExecutorConfig, channel: Authorized, vitals: Arc<Vitals>) {
    let mut before = Totals::read(&vitals);
    let mut first = true;
    loop {
        // The first one soon: people look at executors that have just started.
        tokio::time::sleep(if first { EVERY / 6 } else { EVERY }).await;
        first = false;
        let now = Totals::read(&vitals);
        let mut sample = now.since(&before, &vitals);
        before = now;
        // A disk on the network may not answer for long.
        let folder = vitals.config.work_dir.clone();
        let space = spawn_blocking(move || Space::of(&folder)).await;
        sample.disk_free_bytes = space.ok().flatten().map(|space| space.free);
        if let Err(error) = measured(&config, channel.clone(), sample).await {
            tracing::debug!(%error, "the scheduler is not told of vital signs");
        }
    }
}

/// Totals since the process started, and when they were read.
struct Totals {
    at: Instant,
    process: ProcessUsage,
    served: u64,
}

impl Totals {
    fn read(vitals: &Vitals) -> Self {
        Self {
            at: Instant::now(),
            process: ProcessUsage::read(),
            served: vitals.counts.shuffle_served_bytes.get(),
        }
    }

    fn since(&self, before: &Self, vitals: &Vitals) -> tables::Vitals {
        let seconds = (self.at - before.at).as_secs_f64();
        let rate = |of: fn(&ProcessUsage) -> Option<u64>| {
            let bytes = of(&self.process)?.saturating_sub(of(&before.process)?);
            Some(bytes as f64 / seconds)
        };
        let cpu = |totals: &Self| totals.process.cpu_seconds;
        let tasks = vitals.tasks.lock().clone();
        tables::Vitals {
            executor_id: vitals.config.id.clone(),
            at: 0,
            tasks: tasks.as_ref().map_or(0, |tasks| tasks.count() as u64),
            ranks: vitals.parking.ranks() as u64,
            reserved_bytes: tasks.map_or(0, |tasks| tasks.reserved() as u64),
            rank_bytes: vitals.parking.bytes(),
            process_bytes: self.process.resident_bytes,
            machine_bytes: vitals.machine.as_ref().map(|machine| machine.limit),
            cpu_cores: cpu(self)
                .zip(cpu(before))
                .map(|(now, then)| (now - then).max(0.0) / seconds),
            disk_read_rate: rate(|process| process.disk_read_bytes),
            disk_write_rate: rate(|process| process.disk_written_bytes),
            network_in_rate: rate(|process| process.network_received_bytes),
            network_out_rate: rate(|process| process.network_sent_bytes),
            served_rate: Some(self.served.saturating_sub(before.served) as f64 / seconds),
            disk_free_bytes: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::counts::Counts;
    use crate::rank::Parking;

    #[test]
    fn rates_are_of_the_time_between_two_samples() {
        let config = ExecutorConfig::local("e", "127.0.0.1:9", "unused".into());
        let counts = Arc::<Counts>::default();
        let vitals = Vitals::new(
            config,
            Arc::clone(&counts),
            Parking::default(),
            CancellationToken::new(),
        );
        let process = |cpu_seconds, disk_read_bytes| ProcessUsage {
            cpu_seconds: Some(cpu_seconds),
            resident_bytes: Some(7),
            disk_read_bytes: Some(disk_read_bytes),
            disk_written_bytes: None,
            network_received_bytes: None,
            network_sent_bytes: None,
        };
        let at = Instant::now();
        let before = Totals {
            at,
            process: process(1.0, 100),
            served: 10,
        };
        let now = Totals {
            at: at + Duration::from_secs(2),
            process: process(4.0, 700),
            served: 30,
        };
        let sample = now.since(&before, &vitals);
        assert_eq!(sample.cpu_cores, Some(1.5));
        assert_eq!(sample.disk_read_rate, Some(300.0));
        assert_eq!(sample.disk_write_rate, None);
        assert_eq!(sample.served_rate, Some(10.0));
        assert_eq!((sample.process_bytes, sample.tasks), (Some(7), 0));
    }
}
