//! How much memory of this host a rank may take, where nobody says. Measured once, as the process starts; what other
//! processes take is not looked at.

use std::fs;

use bytesize::ByteSize;

/// The share of the memory that ranks may have: queries, the page cache and the rest of the host have the other.
const SHARE: (u64, u64) = (3, 4);

/// What a rank in each of so many slots may take: an even part of three quarters of the host's memory, or of the
/// container's where that is less. Without bound where the system does not say how much there is.
pub fn rank_memory(slots: usize) -> ByteSize {
    let read = |path: &str| fs::read_to_string(path).ok();
    let host = read("/proc/meminfo").and_then(|text| total(&text));
    let container = read("/sys/fs/cgroup/memory.max").and_then(|text| limit(&text));
    let all = host.into_iter().chain(container).min();
    ByteSize(all.map_or(u64::MAX, |all| {
        all / SHARE.1 * SHARE.0 / slots.max(1) as u64
    }))
}

/// The bytes of `MemTotal` in `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The bytes that a control group (version 2) is limited to, if it is.
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
