//! The host of a run, and the memory of processes, as the kernel reports them.

use std::fs;

use serde::Serialize;

/// Host of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
}

impl Machine {
    pub(crate) fn of_this_process() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name));
            line.and_then(|line| line.split_once(':'))
                .map(|(_, value)| value.trim().to_owned())
        };
        // Virtual machines may report only a maker's name; family and model identify the processor.
        let cpu = read("/proc/cpuinfo");
        let processor = ["model name", "cpu family", "model\t"].map(|name| field(&cpu, name));
        let processor = match processor {
            [Some(name), Some(family), Some(model)] => {
                format!("{name} (family {family}, model {model})")
            }
            [name, ..] => name.unwrap_or_default(),
        };
        let kib = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kib: f64 = kib.trim_end_matches(" kB").parse().unwrap_or(0.0);
        Self {
            processor,
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: kib / 1024.0 / 1024.0,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// Returns a living process's peak memory so far, in MiB (`VmHWM`).
pub(crate) fn peak_memory_mib(process: u32) -> Option<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024.0)
}

/// Returns the processor time that a living process has taken so far, in milliseconds, with a resolution of 10 ms.
pub(crate) fn processor_millis(process: u32) -> Option<f64> {
    // Linux counts it in hundredths of a second for users, whatever its own clock.
    const TICK_MILLIS: f64 = 10.0;
    let status = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The second field, the command's name, may contain spaces and parentheses.
    let (_, fields) = status.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) * TICK_MILLIS)
}

/// Returns the ids of all descendants of a process.
pub(crate) fn descendants(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let children = tasks.flat_map(|task| {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let ids = children.split_whitespace().filter_map(|id| id.parse().ok());
        ids.collect::<Vec<u32>>()
    });
    let children: Vec<u32> = children.collect();
    let below = children.iter().flat_map(|child| descendants(*child));
    let below: Vec<u32> = below.collect();
    children.into_iter().chain(below).collect()
}
