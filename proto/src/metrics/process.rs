//! Metrics of this process under the names that Prometheus's own clients use, from `/proc`; none where there is no `/proc`.

use std::fs;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;

use super::Metrics;
use crate::connections::files;

/// Clock ticks of a second in `/proc`: `USER_HZ`, 100 on each architecture that Volley is built for.
const TICKS: f64 = 100.0;

impl Metrics {
    /// Adds the CPU time, memory, open files and start of this process.
    pub fn process(&mut self) {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (stat, status, system) = (
            read("/proc/self/stat"),
            read("/proc/self/status"),
            read("/proc/stat"),
        );
        if let Some(seconds) = cpu_seconds(&stat) {
            let cpu = Counter::<f64, AtomicU64>::default();
            cpu.inc_by(seconds);
            let help = "User and system CPU time of the process";
            self.registry.register("process_cpu_seconds", help, cpu);
        }
        if let Some(bytes) = resident(&status) {
            let help = "Resident memory of the process";
            self.gauge("process_resident_memory_bytes", help, bytes);
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One of them is the folder that is read.
            let open = open.count().saturating_sub(1);
            self.gauge("process_open_fds", "Open files of the process", open as f64);
            let help = "Limit of the process's open files";
            self.gauge("process_max_fds", help, files() as f64);
        }
        if let Some(seconds) = start(&stat, &system) {
            let help = "Time when the process started, in seconds since 1970";
            self.gauge("process_start_time_seconds", help, seconds);
        }
    }
}

/// Returns a field of `/proc/self/stat`, counted from 1 as in proc(5).
fn field(stat: &str, number: usize) -> Option<f64> {
    // The second field is the program's name in parentheses, with anything in it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    fields.nth(number.checked_sub(3)?)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((field(stat, 14)? + field(stat, 15)?) / TICKS)
}

/// Returns the start of the process: ticks since the system booted, whose time `/proc/stat` has.
fn start(stat: &str, system: &str) -> Option<f64> {
    let booted = system.lines().find_map(|line| line.strip_prefix("btime "));
    let booted: f64 = booted?.trim().parse().ok()?;
    Some(booted + field(stat, 22)? / TICKS)
}

fn resident(status: &str) -> Option<f64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read_by_the_numbers_of_its_fields() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 900 0 3 0 250 50 0 0 20 0 9 0 12345 1000 200 18446744073709551615";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(
            start(stat, "cpu 1 2\nbtime 1700000000\n"),
            Some(1_700_000_123.45)
        );
        assert_eq!(resident("Name:\tx\nVmRSS:\t 12 kB\n"), Some(12_288.0));
        assert_eq!((cpu_seconds(""), resident("")), (None, None));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_its_metrics() {
        let mut metrics = Metrics::default();
        metrics.process();
        let text = metrics.text().unwrap();
        for name in [
            "process_cpu_seconds_total ",
            "process_resident_memory_bytes ",
            "process_open_fds ",
            "process_max_fds ",
            "process_start_time_seconds ",
        ] {
            assert!(
                text.lines().any(|line| line.starts_with(name)),
                "{name} in\n{text}"
            );
        }
    }
}
