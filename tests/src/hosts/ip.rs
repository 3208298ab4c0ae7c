//! Commands of `ip` and `tc`, and a subnet that no other test process has.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::etc;

/// Prefix of namespaces' names, followed by a process's id and a subnet's number.
const PREFIX: &str = "volley-";
/// Prefix of the names of the test's cable ends.
const CABLE: &str = "volley";
/// Number of subnets in 198.18.0.0/15, which is reserved for tests of networks.
const SUBNETS: u16 = 512;
/// Name of the bridge in the switch's namespace.
const BRIDGE: &str = "br0";

/// Last part of the test's own address.
pub(super) const OWN: u8 = 254;

/// End of a host's cable.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Switch,
    Host,
}

/// Runs `ip`; an error is its output.
pub(super) fn ip(args: &[impl AsRef<str>]) -> Result<String, String> {
    run("ip", args)
}

/// Runs `tc`.
pub(super) fn tc(args: &[impl AsRef<str>]) -> Result<String, String> {
    run("tc", args)
}

fn run(program: &str, args: &[impl AsRef<str>]) -> Result<String, String> {
    let args: Vec<_> = args.iter().map(AsRef::as_ref).collect();
    let said = |text: &dyn std::fmt::Display| format!("{program} {}: {text}", args.join(" "));
    let output = Command::new(program)
        .args(&args)
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| said(&error))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(said(&String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// # Panics
/// When `outcome` is an error.
pub(super) fn must(outcome: Result<String, String>) {
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// Checks whether hosts are possible here; an error says why not.
pub(super) fn is_possible() -> Result<(), String> {
    if !fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        return Err("this is not root".to_owned());
    }
    ip(&["-V"])?;
    tc(&["-V"])?;
    Ok(())
}

/// Network that nobody else has, with its namespaces.
#[derive(Debug)]
pub(super) struct Subnet {
    number: u16,
    hosts: Vec<String>,
}

impl Subnet {
    /// Takes a subnet with its switch, and removes those of processes that are gone.
    ///
    /// # Errors
    /// The output of `ip`, if namespaces are impossible.
    pub(super) fn take() -> Result<Self, String> {
        static NEXT: AtomicU16 = AtomicU16::new(0);
        remove_leftovers();
        // Two processes seldom begin at the same subnet.
        let first = (std::process::id() % u32::from(SUBNETS)) as u16 * 7;
        loop {
            let attempt = NEXT.fetch_add(1, Ordering::Relaxed);
            let number = first.wrapping_add(attempt) % SUBNETS;
            let subnet = Self {
                number,
                hosts: Vec::new(),
            };
            match subnet.try_take() {
                Ok(()) => return Ok(subnet),
                Err(_) if attempt < SUBNETS && subnet.is_taken() => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Checks whether another process has the subnet.
    fn is_taken(&self) -> bool {
        let cable = format!("{CABLE}{}", self.number);
        Path::new("/sys/class/net").join(cable).exists()
    }

    /// Tries to take the subnet, which belongs to the process that makes the test's cable end: its name is unique.
    fn try_take(&self) -> Result<(), String> {
        let (cable, switch) = (format!("{CABLE}{}", self.number), self.switch());
        let cable = cable.as_str();
        ip(&["netns", "add", &switch])?;
        ip(&[
            "link", "add", cable, "type", "veth", "peer", "name", "test", "netns", &switch,
        ])?;
        let own = format!("{}/24", self.ipv4(OWN));
        ip(&["addr", "add", &own, "dev", cable])?;
        ip(&["link", "set", cable, "up"])?;
        ip(&["-n", &switch, "link", "add", BRIDGE, "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", BRIDGE, "up"])?;
        ip(&["-n", &switch, "link", "set", "test", "master", BRIDGE, "up"])?;
        Ok(())
    }

    /// Adds a host, without an address.
    pub(super) fn add_host(&mut self, host: &str) {
        let (namespace, switch) = (self.namespace(host), self.switch());
        // The next steps may fail half-way.
        self.hosts.push(host.to_owned());
        must(ip(&["netns", "add", &namespace]));
        fs::create_dir_all(etc(&namespace)).expect("root makes folders in /etc");
        fs::write(self.names_file(host), "127.0.0.1 localhost\n").expect("a host's names");
        let id = fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a random id");
        fs::write(self.boot_id(host), id).expect("a host's boot id");
        let (namespace, port) = (namespace.as_str(), port(host));
        must(ip(&[
            "link", "add", &port, "netns", &switch, "type", "veth", "peer", "name", "eth0",
            "netns", namespace,
        ]));
        must(ip(&[
            "-n", &switch, "link", "set", &port, "master", BRIDGE, "up",
        ]));
        must(ip(&["-n", namespace, "link", "set", "lo", "up"]));
        must(ip(&["-n", namespace, "link", "set", "eth0", "up"]));
    }

    pub(super) fn namespace(&self, host: &str) -> String {
        format!("{PREFIX}{}-{}-{host}", std::process::id(), self.number)
    }

    fn switch(&self) -> String {
        self.namespace("switch")
    }

    /// Returns the file that a host's names are read from.
    pub(super) fn names_file(&self, host: &str) -> PathBuf {
        etc(&self.namespace(host)).join("hosts")
    }

    /// Returns the file that a host's processes see as the running kernel's boot id.
    pub(super) fn boot_id(&self, host: &str) -> PathBuf {
        boot_id(&self.namespace(host))
    }

    pub(super) fn ipv4(&self, number: u8) -> Ipv4Addr {
        let [high, low] = self.number.to_be_bytes();
        Ipv4Addr::new(198, 18 + high, low, number)
    }

    pub(super) fn ipv6(&self, number: u8) -> Ipv6Addr {
        Ipv6Addr::new(0xfd76, 0x6f6c, 0x6c65, self.number, 0, 0, 0, number.into())
    }

    /// Returns arguments of `ip` for use inside a host.
    pub(super) fn inside(&self, host: &str, args: &[&str]) -> Vec<String> {
        let namespace = self.namespace(host);
        let all = ["-n", &namespace].into_iter().chain(args.iter().copied());
        all.map(str::to_owned).collect()
    }

    /// Returns arguments of `ip` that set the switch's end of a cable up or down.
    pub(super) fn port(&self, host: &str, state: &str) -> Vec<String> {
        let (switch, port) = (self.switch(), port(host));
        ["-n", &switch, "link", "set", &port, state]
            .map(str::to_owned)
            .to_vec()
    }

    /// Returns arguments of `tc` for a queue without room at an end of a cable.
    pub(super) fn queue(&self, end: End, host: &str, action: &str) -> Vec<String> {
        let (namespace, device) = match end {
            End::Switch => (self.switch(), port(host)),
            End::Host => (self.namespace(host), "eth0".to_owned()),
        };
        let mut args = vec!["-n", &namespace, "qdisc", action, "dev", &device, "root"];
        if action != "del" {
            args.extend(["pfifo", "limit", "0"]);
        }
        args.into_iter().map(str::to_owned).collect()
    }
}

impl Drop for Subnet {
    fn drop(&mut self) {
        for host in &self.hosts {
            remove(&self.namespace(host));
        }
        // The ends of all cables go with the switch.
        remove(&self.switch());
    }
}

/// Returns the file of a boot id. It lies beside a namespace's folder, because `ip` lays that folder's files over
/// `/etc`.
fn boot_id(namespace: &str) -> PathBuf {
    etc(namespace).with_extension("boot-id")
}

/// Names the switch's end of a host's cable.
fn port(host: &str) -> String {
    format!("to-{host}")
}

/// Removes namespaces of killed test processes, and processes that still run in them.
fn remove_leftovers() {
    for entry in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        let process = rest.split('-').next().and_then(|id| id.parse::<u32>().ok());
        if process.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists()) {
            remove(&name);
        }
    }
}

/// Kills the processes in a namespace and removes it, as far as it exists.
fn remove(namespace: &str) {
    for id in ip(&["netns", "pids", namespace])
        .unwrap_or_default()
        .lines()
    {
        if let Ok(id) = id.trim().parse() {
            kill(Pid::from_raw(id), Signal::SIGKILL).ok();
        }
    }
    ip(&["netns", "del", namespace]).ok();
    fs::remove_dir_all(etc(namespace)).ok();
    fs::remove_file(boot_id(namespace)).ok();
}
