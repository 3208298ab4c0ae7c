//! Memory of the machine: of the host, or of the process's container (control group) if that is less; and what the process
//! gives back to it.
//!
//! Not here: the memory that tasks and ranks may hold by their settings.

use std::ffi::{CStr, c_int};
use std::fs;
use std::path::{Path, PathBuf};
use std::ptr;

use bytesize::ByteSize;
use tikv_jemalloc_sys::mallctl;

/// Share of the machine's memory for ranks; queries, the page cache and the rest of the host have the remainder.
const SHARE: (u64, u64) = (3, 4);

/// Returns the default memory of a rank, given the number of slots: an even part of three quarters of the machine's
/// memory, as it is when the process starts. Unlimited where the system does not report its memory.
pub fn rank_memory(slots: usize) -> ByteSize {
    let all = Machine::find().map(|machine| machine.limit);
    ByteSize(all.map_or(u64::MAX, |all| {
        all / SHARE.1 * SHARE.0 / slots.max(1) as u64
    }))
}

/// Returns freed pages to the system. jemalloc keeps the dirty pages of an arena for ten seconds, or until the arena's threads
/// allocate again: other threads cannot use them. It does nothing in a program with another allocator.
pub(crate) fn give_back() {
    let result = purge();
    if result != 0 {
        tracing::debug!(result, "freed memory is not given back");
    }
}

/// Purges the dirty pages of jemalloc's arenas. Returns 0, or the error's number.
fn purge() -> c_int {
    // Of all arenas: 4096 is MALLCTL_ARENAS_ALL in jemalloc's header.
    const PURGE: &CStr = c"arena.4096.purge";
    let (old, len, new) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: the name ends with a zero byte, and this command neither reads nor writes a value. It frees only pages that no
    // allocation uses.
    #[allow(unsafe_code)]
    unsafe {
        mallctl(PURGE.as_ptr(), old, len, new, 0)
    }
}

/// Memory that the process cannot exceed.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Size in bytes.
    pub(crate) limit: u64,
    /// The container that has the limit; `None` for the host.
    container: Option<Container>,
}

impl Machine {
    /// Finds the memory of this process; `None` where the system does not report it.
    pub(crate) fn find() -> Option<Self> {
        let host = total(&read("/proc/meminfo")?)?;
        let groups = read("/proc/self/cgroup").unwrap_or_default();
        let containers = Container::of(&groups).into_iter();
        let limits = containers.filter_map(|container| Some((container.limit()?, container)));
        let least = limits.min_by_key(|(limit, _)| *limit);
        Some(match least.filter(|(limit, _)| *limit < host) {
            Some((limit, container)) => Self {
                limit,
                container: Some(container),
            },
            None => Self {
                limit: host,
                container: None,
            },
        })
    }

    /// Returns the bytes that are used: by all processes of the container without cached files, or by this process.
    pub(crate) fn used(&self) -> Option<u64> {
        match &self.container {
            Some(container) => container.used(),
            None => number(&read("/proc/self/status")?, "VmRSS:").map(|kib| kib * 1024),
        }
    }

    /// Returns what has the limit, in words.
    pub(crate) fn name(&self) -> &'static str {
        match self.container {
            Some(_) => "the container's limit",
            None => "the host's memory",
        }
    }
}

/// Control group that limits memory, of version 1 or 2.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Container {
    folder: PathBuf,
    version: Version,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Container {
    /// Returns the groups of a process and those around them, from `/proc/PID/cgroup`.
    fn of(groups: &str) -> Vec<Self> {
        let mut all = vec![];
        for group in groups.lines() {
            let mut parts = group.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            let (root, version) = match controllers {
                "" => ("/sys/fs/cgroup", Version::Two),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    ("/sys/fs/cgroup/memory", Version::One)
                }
                _ => continue,
            };
            // Of a path outside of the container, only the root is there.
            let path = path.trim_start_matches('/');
            all.extend(Path::new(path).ancestors().map(|path| Self {
                folder: Path::new(root).join(path),
                version,
            }));
        }
        all
    }

    fn read(&self, of_one: &str, of_two: &str) -> Option<String> {
        read(self.folder.join(match self.version {
            Version::One => of_one,
            Version::Two => of_two,
        }))
    }

    /// Returns the limit in bytes, if there is one.
    fn limit(&self) -> Option<u64> {
        let limit = self.read("memory.limit_in_bytes", "memory.max")?;
        limit.trim().parse().ok()
    }

    fn used(&self) -> Option<u64> {
        let used = self.read("memory.usage_in_bytes", "memory.current")?;
        let used: u64 = used.trim().parse().ok()?;
        // The system drops cached files before it ends a process.
        let dropped: &[&str] = match self.version {
            Version::One => &["total_inactive_file ", "total_active_file "],
            Version::Two => &["inactive_file ", "active_file ", "slab_reclaimable "],
        };
        let held = read(self.folder.join("memory.stat"))?;
        let dropped = dropped.iter().filter_map(|name| number(&held, name));
        Some(used.saturating_sub(dropped.sum()))
    }
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok()
}

/// Returns `MemTotal` of `/proc/meminfo`, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    number(meminfo, "MemTotal:")?.checked_mul(1024)
}

/// Returns the number after a name that begins a line.
fn number(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(name))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allocator_knows_the_command() {
        assert_eq!(purge(), 0);
    }

    #[test]
    fn reads_what_the_system_says() {
        let meminfo = "MemTotal:       16303428 kB\nMemFree:          220000 kB\n";
        assert_eq!(total(meminfo), Some(16_303_428 * 1024));
        assert_eq!(total("MemFree: 1 kB\n"), None);
        assert_eq!(
            number("cache 7\ninactive_file 12\n", "inactive_file "),
            Some(12)
        );
        let (one, four) = (rank_memory(1).as_u64(), rank_memory(4).as_u64());
        assert!(one / 4 >= four && four > 0, "{one} {four}");
    }

    #[test]
    fn containers_are_those_of_the_process_and_around_it() {
        let folders = |groups: &str| {
            let of = Container::of(groups).into_iter();
            of.map(|container| (container.folder.display().to_string(), container.version))
                .collect::<Vec<_>>()
        };
        let two = |path: &str| (path.to_owned(), Version::Two);
        assert_eq!(
            folders("0::/pod/one\n"),
            [
                two("/sys/fs/cgroup/pod/one"),
                two("/sys/fs/cgroup/pod"),
                two("/sys/fs/cgroup/")
            ]
        );
        assert_eq!(folders("0::/\n"), [two("/sys/fs/cgroup/")]);
        assert_eq!(
            folders("5:devices:/\n4:cpu,memory:/a\n"),
            [
                ("/sys/fs/cgroup/memory/a".to_owned(), Version::One),
                ("/sys/fs/cgroup/memory/".to_owned(), Version::One)
            ]
        );
        let machine = Machine::find().unwrap();
        assert!(
            machine.used().unwrap() > 0 && machine.limit > 0,
            "{machine:?}"
        );
    }
}
