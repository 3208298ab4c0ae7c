//! Several hosts on one computer: network namespaces with cables between them.
//!
//! ```text
//!   the test ──┐ 198.18.N.254
//!              switch (a bridge in a namespace of its own)
//!      ┌────────┼────────┐
//!      a        b        c          198.18.N.1, .2, .3, … and fd76:6f6c:6c65:N::1, …
//! ```
//!
//! Each host has its own addresses, knows the others by name, and appears as a separate computer: it has its own boot
//! id, so ranks on two hosts use only the network. Folders that a process needs for itself are separate file systems;
//! all others are shared, as on a network file system. Cables can be pulled, hosts made deaf or mute, pairs of hosts
//! cut off from each other, and addresses changed.
//!
//! Hosts need root and iproute2. They are removed when dropped; hosts of killed test processes are removed when hosts
//! are next made.

mod ip;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use self::ip::{End, Subnet, ip, tc};

/// Variable set to `required` where tests over hosts must not be left out.
const REQUIRED: &str = "VOLLEY_HOSTS";
/// First number for new addresses: above the numbers that hosts begin with, and below the test's own.
const FIRST_NEW_NUMBER: u8 = 101;

/// Hosts on a switch; removed when dropped.
#[derive(Debug)]
pub struct Hosts {
    subnet: Subnet,
    names: Vec<&'static str>,
    /// Last part of each host's address.
    numbers: Mutex<Vec<u8>>,
    next_number: AtomicU8,
    has_ipv6: bool,
}

impl Hosts {
    /// Starts hosts with these names. Where hosts are impossible, says why on standard error and returns `None`.
    ///
    /// # Panics
    /// When hosts are impossible and `VOLLEY_HOSTS=required` is set, or possible and something else fails.
    pub fn start(names: &[&'static str]) -> Option<Self> {
        let subnet = match ip::is_possible().and_then(|()| Subnet::take()) {
            Ok(subnet) => subnet,
            Err(why) => {
                let required = std::env::var(REQUIRED).is_ok_and(|value| value == "required");
                assert!(
                    !required,
                    "{REQUIRED}=required, and there are no hosts: {why}"
                );
                say(&format!(
                    "NOT RUN: several hosts take root and iproute2: {why}"
                ));
                return None;
            }
        };
        let count = u8::try_from(names.len()).expect("a few hosts");
        let mut hosts = Self {
            subnet,
            names: names.to_vec(),
            numbers: Mutex::new((1..=count).collect()),
            next_number: AtomicU8::new(FIRST_NEW_NUMBER),
            has_ipv6: true,
        };
        for name in names {
            hosts.subnet.add_host(name);
        }
        hosts.has_ipv6 = (1..=count).zip(names).all(|(number, name)| {
            hosts.add_address(name, number);
            let address = format!("{}/64", hosts.subnet.ipv6(number));
            // Without this, an address is unusable for a second, while the kernel checks for duplicates.
            let add = ["addr", "add", &address, "dev", "eth0", "nodad"];
            ip(&hosts.inside(name, &add)).is_ok()
        });
        hosts.tell_names();
        Some(hosts)
    }

    /// Checks whether hosts have IPv6; says so on standard error if not.
    pub fn have_ipv6(&self) -> bool {
        if !self.has_ipv6 {
            say("NOT RUN: hosts have no IPv6 on this machine");
        }
        self.has_ipv6
    }

    /// Returns the command for a program on a host, with these folders private and empty. The started process is the
    /// program itself, so signals reach it.
    ///
    /// # Panics
    /// When the host does not exist, or a folder cannot be made.
    pub fn command(&self, host: &str, own: &[&Path], program: &Path) -> Command {
        let mut prepare =
            String::from("mount --bind \"$1\" /proc/sys/kernel/random/boot_id; shift; ");
        for folder in own {
            fs::create_dir_all(folder).expect("a folder in the test's own");
            prepare.push_str("mount -t tmpfs tmpfs \"$1\"; shift; ");
        }
        let script = format!("set -e; {prepare}exec \"$@\"");
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.subnet.namespace(self.known(host))])
            .args(["sh", "-c", &script, "sh"])
            .arg(self.subnet.boot_id(host))
            .args(own)
            .arg(program);
        command
    }

    /// Returns a host's address.
    pub fn ipv4(&self, host: &str) -> Ipv4Addr {
        self.subnet.ipv4(self.number(host))
    }

    /// Returns the test's own address, at which hosts reach it.
    pub fn own_ipv4(&self) -> Ipv4Addr {
        self.subnet.ipv4(ip::OWN)
    }

    /// Returns a host's IPv6 address, which does not change.
    pub fn ipv6(&self, host: &str) -> Ipv6Addr {
        let index = self.names.iter().position(|name| *name == host);
        let index = index.unwrap_or_else(|| panic!("no host {host}"));
        self.subnet
            .ipv6(u8::try_from(index + 1).expect("a few hosts"))
    }

    /// Pulls a host's cable.
    ///
    /// # Panics
    /// When `ip` or `tc` fails, as in all functions that change hosts.
    pub fn cut(&self, host: &str) {
        ip::must(ip(&self.port(host, "down")));
    }

    /// Plugs a host's cable in again.
    pub fn plug(&self, host: &str) {
        ip::must(ip(&self.port(host, "up")));
    }

    /// Drops everything sent to a host.
    pub fn deafen(&self, host: &str) {
        self.drop_all(End::Switch, host);
    }

    /// Drops everything that a host sends.
    pub fn mute(&self, host: &str) {
        self.drop_all(End::Host, host);
    }

    /// Undoes [`deafen`](Self::deafen) and [`mute`](Self::mute).
    pub fn heal(&self, host: &str) {
        for end in [End::Switch, End::Host] {
            // One of the ends may have nothing to undo.
            tc(&self.subnet.queue(end, self.known(host), "del")).ok();
        }
    }

    /// Drops everything that two hosts send each other. Others reach both.
    pub fn part(&self, one: &str, other: &str) {
        self.each_way(one, other, |from, address| {
            // No host has this hardware address.
            let add = [
                "neigh",
                "replace",
                address,
                "lladdr",
                "02:00:00:00:00:fe",
                "nud",
                "permanent",
                "dev",
                "eth0",
            ];
            ip::must(ip(&self.inside(from, &add)));
        });
    }

    /// Undoes [`part`](Self::part).
    pub fn join(&self, one: &str, other: &str) {
        self.each_way(one, other, |from, address| {
            ip::must(ip(
                &self.inside(from, &["neigh", "del", address, "dev", "eth0"])
            ));
        });
    }

    /// Gives a host another address, by which everybody finds its name from then on.
    pub fn readdress(&self, host: &str) {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let address = format!("{}/24", self.ipv4(host));
        ip::must(ip(
            &self.inside(host, &["addr", "del", &address, "dev", "eth0"])
        ));
        self.add_address(host, number);
        let index = self.names.iter().position(|name| *name == host);
        self.numbers()[index.expect("a known host")] = number;
        self.tell_names();
    }

    fn numbers(&self) -> std::sync::MutexGuard<'_, Vec<u8>> {
        self.numbers.lock().expect("nobody panics with it")
    }

    fn number(&self, host: &str) -> u8 {
        let index = self.names.iter().position(|name| *name == host);
        self.numbers()[index.unwrap_or_else(|| panic!("no host {host}"))]
    }

    fn known<'a>(&self, host: &'a str) -> &'a str {
        assert!(self.names.contains(&host), "no host {host}");
        host
    }

    fn add_address(&self, host: &str, number: u8) {
        let address = format!("{}/24", self.subnet.ipv4(number));
        ip::must(ip(
            &self.inside(host, &["addr", "add", &address, "dev", "eth0"])
        ));
    }

    /// Writes the addresses of all hosts in place, so that running processes see them.
    fn tell_names(&self) {
        let mut text = String::from("127.0.0.1 localhost\n::1 localhost\n");
        for name in &self.names {
            writeln!(text, "{} {name}", self.ipv4(name)).expect("a string takes text");
        }
        for name in &self.names {
            fs::write(self.subnet.names_file(name), &text).expect("a host's names");
        }
    }

    fn inside(&self, host: &str, args: &[&str]) -> Vec<String> {
        self.subnet.inside(self.known(host), args)
    }

    fn port(&self, host: &str, state: &str) -> Vec<String> {
        self.subnet.port(self.known(host), state)
    }

    fn drop_all(&self, end: End, host: &str) {
        ip::must(tc(&self.subnet.queue(end, self.known(host), "replace")));
    }

    fn each_way(&self, one: &str, other: &str, act: impl Fn(&str, &str)) {
        for (from, to) in [(one, other), (other, one)] {
            act(from, &self.ipv4(to).to_string());
            if self.has_ipv6 {
                act(from, &self.ipv6(to).to_string());
            }
        }
    }
}

/// Prints a line even when the output of tests is captured.
fn say(line: &str) {
    writeln!(std::io::stderr().lock(), "{line}").ok();
}

/// Returns the folder for the files of a host.
fn etc(namespace: &str) -> PathBuf {
    Path::new("/etc/netns").join(namespace)
}
