//! Default memory limit of a rank, from the host's memory. It is measured once, as the process starts; memory used
//! by other processes is not considered.

use std::fs;

use bytesize::ByteSize;

/// Share of the host's memory for ranks; queries, the page cache and the rest of the host have the remainder.
const SHARE: (u64, u64) = (3, 4);

/// Returns the default memory of a rank, given the number of slots: an even part of three quarters of the host's
/// memory, or of the container's limit if that is less. Unlimited where the system does not report its memory.
pub fn rank_memory(slots: usize) -> ByteSize {
    let read = |path: &str| fs::read_to_string(path).ok();
    let host = read("/proc/meminfo").and_then(|text| total(&text));
    let container = read("/sys/fs/cgroup/memory.max").and_then(|text| limit(&text));
    let all = host.into_iter().chain(container).min();
    ByteSize(all.map_or(u64::MAX, |all| {
        all / SHARE.1 * SHARE.0 / slots.max(1) as u64
    }))
}

/// Returns `MemTotal` of `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the memory limit of a control group (version 2) in bytes, if it has one.
fn limit(max: &str) -> Option<u64> {
    max.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_system_says() {
        let meminfo = "MemTotal:       16303428 kB\nMemFree:          220000 kB\n";
        assert_eq!(total(meminfo), Some(16_303_428 * 1024));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert_eq!(
            (limit("max\n"), limit("1073741824\n")),
            (None, Some(1 << 30))
        );
        let (one, four) = (rank_memory(1).as_u64(), rank_memory(4).as_u64());
        assert!(one / 4 >= four && four > 0, "{one} {four}");
    }
}
