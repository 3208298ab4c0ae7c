//! The text of `/metrics`.

use std::fmt;
use std::time::Duration;

use volley_proto::metrics::Metrics;

use super::{Vitals, work_folder};
use crate::ballista::disks::Space;

impl Vitals {
    /// Returns the metrics as text. Reads the work folder, so it blocks.
    ///
    /// # Errors
    /// When a value has no text.
    pub(super) fn text(&self) -> Result<String, fmt::Error> {
        let mut metrics = Metrics::default();
        self.of_the_executor(&mut metrics);
        self.of_memory(&mut metrics);
        self.of_files(&mut metrics);
        self.of_ranks(&mut metrics);
        if let Some(traces) = &self.traces {
            traces.count(&mut metrics);
        }
        metrics.process();
        metrics.text()
    }

    fn of_the_executor(&self, metrics: &mut Metrics) {
        let (config, counts) = (&self.config, &self.counts);
        let labels = vec![
            ("executor", config.id.clone()),
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("role", config.role.to_string()),
        ];
        let info = metrics.gauges(
            "volley_executor_info",
            "1, with the executor's id, version and role",
        );
        info.get_or_create(&labels).set(1.0);
        metrics.gauge(
            "volley_executor_ready",
            "1 while the executor attends its scheduler and does not leave, else 0",
            f64::from(u8::from(self.unready().is_none())),
        );
        metrics.counter(
            "volley_executor_registrations",
            "Times that the executor has registered with a scheduler",
            counts.registrations.get(),
        );
        metrics.gauge(
            "volley_task_slots",
            "Tasks that the executor runs at once",
            config.vcores as f64,
        );
        let running = self.tasks.lock().as_ref().map_or(0, |tasks| tasks.count());
        metrics.gauge(
            "volley_tasks_running",
            "Tasks that run, with those of ranks and those that are to stop",
            running as f64,
        );
        let ended = metrics.counters("volley_tasks_ended", "Tasks that have ended, by outcome");
        for (outcome, count) in [
            ("succeeded", &counts.tasks_succeeded),
            ("failed", &counts.tasks_failed),
            ("cancelled", &counts.tasks_cancelled),
        ] {
            let labels = vec![("outcome", outcome.to_owned())];
            ended.get_or_create(&labels).inc_by(count.get());
        }
    }

    fn of_memory(&self, metrics: &mut Metrics) {
        let tasks = self.tasks.lock().clone();
        metrics.gauge(
            "volley_query_memory_reserved_bytes",
            "Memory that running tasks have reserved",
            tasks.map_or(0, |tasks| tasks.reserved()) as f64,
        );
        metrics.gauge(
            "volley_query_memory_limit_bytes",
            "Memory for the tasks of queries: --memory",
            self.config.memory.as_u64() as f64,
        );
        metrics.gauge(
            "volley_rank_memory_limit_bytes",
            "Memory limit of each rank: --rank-memory",
            self.config.rank_memory.as_u64() as f64,
        );
        let machine = self.machine.as_ref();
        if let Some((limit, used)) = machine.and_then(|found| Some((found.limit, found.used()?))) {
            metrics.gauge(
                "volley_machine_memory_used_bytes",
                "Memory that the container uses without cached files, or without a container the process",
                used as f64,
            );
            metrics.gauge(
                "volley_machine_memory_limit_bytes",
                "Memory limit of the container, or without a container the memory of the host",
                limit as f64,
            );
        }
        metrics.counter(
            "volley_tasks_ended_for_memory",
            "Tasks that were ended because that memory was nearly used up",
            self.counts.tasks_ended_for_memory.get(),
        );
    }

    fn of_files(&self, metrics: &mut Metrics) {
        let (folder, counts) = (&self.config.work_dir, &self.counts);
        for (name, help, count) in [
            (
                "volley_spilled_bytes",
                "Bytes that operators of ended tasks have spilled to the work folder",
                &counts.spilled_bytes,
            ),
            (
                "volley_spilled_files",
                "Files that operators of ended tasks have spilled to",
                &counts.spilled_files,
            ),
            (
                "volley_shuffle_written_bytes",
                "Bytes of the files that ended tasks have written for other stages and for clients",
                &counts.shuffle_written_bytes,
            ),
            (
                "volley_shuffle_served_bytes",
                "Bytes of rows that were sent to other executors and to clients",
                &counts.shuffle_served_bytes,
            ),
        ] {
            metrics.counter(name, help, count.get());
        }
        metrics.counter(
            "volley_table_read_bytes",
            "Bytes that were read from files of tables, by scans, and from copies in shuffle stores",
            counts.traffic.read(),
        );
        metrics.counter(
            "volley_table_written_bytes",
            "Bytes that were written to files of tables, by COPY and others, and to shuffle stores",
            counts.traffic.written(),
        );
        let errors = metrics.counters(
            "volley_store_errors",
            "Requests to stores that have failed, by store: files of tables, or models and checkpoints",
        );
        for (store, count) in [
            ("tables", counts.traffic.errors()),
            ("models", counts.model_store_errors.get()),
        ] {
            let labels = vec![("store", store.to_owned())];
            errors.get_or_create(&labels).inc_by(count);
        }
        metrics.gauge(
            "volley_work_folder_bytes",
            "Size of the files in the work folder",
            work_folder::bytes(folder) as f64,
        );
        if let Some(disk) = Space::of(folder) {
            metrics.gauge(
                "volley_work_disk_free_bytes",
                "Free space on the disk of the work folder",
                disk.free as f64,
            );
            metrics.gauge(
                "volley_work_disk_size_bytes",
                "Size of the disk of the work folder",
                disk.size as f64,
            );
        }
    }

    fn of_ranks(&self, metrics: &mut Metrics) {
        metrics.gauge(
            "volley_ranks_running",
            "Ranks of trainings here, with those that wait for their peers",
            self.parking.ranks() as f64,
        );
        metrics.counter(
            "volley_rank_steps",
            "Training steps of the ranks here",
            self.counts.rank_steps.get(),
        );
        let parts = metrics.seconds(
            "volley_rank_step_seconds",
            "Time of the steps of the ranks here, by part: computing, and collectives with waiting",
        );
        let (steps, reducing) = (
            self.counts.step_micros.get(),
            self.counts.reduce_micros.get(),
        );
        for (part, micros) in [
            ("compute", steps.saturating_sub(reducing)),
            ("collectives", reducing),
        ] {
            let labels = vec![("part", part.to_owned())];
            let seconds = Duration::from_micros(micros).as_secs_f64();
            parts.get_or_create(&labels).inc_by(seconds);
        }
        metrics.counter(
            "volley_trained_rows",
            "Rows in training steps over all ranks of a run, counted by the executor of its rank 0",
            self.counts.trained_rows.get(),
        );
    }
}
