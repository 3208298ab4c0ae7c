//! Metrics of this process under the names that Prometheus's own clients use, from `/proc`; none where there is no `/proc`.

use std::fs;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;

use super::Metrics;
use crate::connections::files;

/// Clock ticks of a second in `/proc`: `USER_HZ`, 100 on each architecture that Volley is built for.
const TICKS: f64 = 100.0;

/// CPU time and memory that this process has used so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessUsage {
    /// Seconds of CPU time, user and system.
    pub cpu_seconds: Option<f64>,
    /// Resident memory in bytes.
    pub resident_bytes: Option<u64>,
    /// Bytes read from disks.
    pub disk_read_bytes: Option<u64>,
    /// Bytes written to disks.
    pub disk_written_bytes: Option<u64>,
    /// Bytes that the network interfaces of the host, or of the container's own network, have received; not those of the
    /// loopback interface.
    pub network_received_bytes: Option<u64>,
    /// Bytes that they have sent.
    pub network_sent_bytes: Option<u64>,
}

impl ProcessUsage {
    /// Reads what the system counts; a field is `None` where it does not.
    pub fn read() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let (io, network) = (read("/proc/self/io"), read("/proc/self/net/dev"));
        let network = interfaces(&network);
        Self {
            cpu_seconds: cpu_seconds(&read("/proc/self/stat")),
            resident_bytes: status_bytes(&read("/proc/self/status"), "VmRSS:"),
            disk_read_bytes: counted(&io, "read_bytes:"),
            disk_written_bytes: counted(&io, "write_bytes:"),
            network_received_bytes: network.map(|(received, _)| received),
            network_sent_bytes: network.map(|(_, sent)| sent),
        }
    }
}

/// Returns the number after a name at the beginning of a line.
fn counted(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}

/// Adds up the bytes that the interfaces in `/proc/net/dev` have received and sent, loopback left out.
fn interfaces(text: &str) -> Option<(u64, u64)> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    let counts = lines
        .filter(|(name, _)| name.trim() != "lo")
        .map(|(_, counts)| {
            let mut counts = counts.split_whitespace().map(str::parse::<u64>);
            // Eight counters of what was received are followed by eight of what was sent.
            Some((counts.next()?.ok()?, counts.nth(7)?.ok()?))
        });
    let counts: Vec<_> = counts.collect::<Option<_>>()?;
    let all = counts.into_iter();
    (!text.is_empty()).then(|| all.fold((0, 0), |sum, each| (sum.0 + each.0, sum.1 + each.1)))
}

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
        if let Some(bytes) = status_bytes(&status, "VmRSS:") {
            let help = "Resident memory of the process";
            self.gauge("process_resident_memory_bytes", help, bytes as f64);
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

/// Returns a value of `/proc/PID/status` that is in KiB there, in bytes.
pub fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
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
        assert_eq!(cpu_seconds(""), None);
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let status = "Name:\tx\nVmSize:\t  200 kB\nVmRSS:\t 12 kB\n";
        assert_eq!(status_bytes(status, "VmRSS:"), Some(12 * 1024));
        assert_eq!(status_bytes(status, "VmSize:"), Some(200 * 1024));
        assert_eq!(status_bytes(status, "VmSwap:"), None);
        assert_eq!(status_bytes("", "VmRSS:"), None);
    }

    #[test]
    fn interfaces_are_added_up_without_loopback() {
        let text = "Inter-|   Receive | Transmit\n face |bytes packets | bytes packets\n    \
                    lo: 700 1 0 0 0 0 0 0 700 1 0 0 0 0 0 0\n  \
                    eth0: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n  \
                    eth1: 1 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n";
        assert_eq!(interfaces(text), Some((11, 22)));
        assert_eq!((interfaces(""), interfaces("eth0: x\n")), (None, None));
        assert_eq!(
            counted("rchar: 7\nread_bytes: 12\n", "read_bytes:"),
            Some(12)
        );
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
