//! Network probes between the processes of a cluster: requests to executors, and their results.
//!
//! A [`Link`] goes from one process to another, dialled as usual: by the host that the other advertises. Only
//! registered executors and their scheduler are dialled. This module suggests no remedies: `volley doctor` does.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::tls::Tls;

/// Time limit for connecting to a port, including the resolution of its host's name.
pub const CONNECTING: Duration = Duration::from_secs(3);

/// Probe that an executor is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Probe {
    /// Listen where its ranks do, and answer callers that know the token.
    Listen {
        /// Token that callers send first.
        token: String,
        /// Time to listen.
        patience: Duration,
    },
    /// Dial another executor.
    Dial(Target),
    /// Exchange bytes with the scheduler.
    Scheduler,
    /// Stop listening. It is not answered.
    Stop,
}

/// Executor as others dial it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Host that it advertises.
    pub host: String,
    /// Port of its Flight service, if the dialling process uses it.
    pub flight: Option<u16>,
    /// Port on which it listens for the probe, among those of its ranks.
    pub ranks: Option<u16>,
    /// Token to send there.
    pub token: String,
}

/// Result of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Probed {
    /// The executor listens.
    Listens {
        /// Port that it listens on; none if its ranks have no port to spare.
        port: Option<u16>,
        /// Configured port range, if any.
        range: Option<String>,
    },
    /// The other executor was dialled.
    Measured(Measured),
    /// The probe could not be made, for this reason.
    Failed(String),
}

/// Measurements of a link.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Ports that were dialled.
    pub ports: Vec<Port>,
    /// Round-trip time of a byte: the median of several.
    pub round_trip: Option<Duration>,
    /// Bytes per second sent.
    pub rate: Option<f64>,
    /// Bytes per second received, where that is measured at the same time.
    pub rate_back: Option<f64>,
}

/// Port that was dialled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Service that listens there.
    pub service: Service,
    /// Port number.
    pub number: u16,
    /// Reason why it was not reached, if it was not.
    pub fault: Option<Fault>,
}

/// Service that listens on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Service {
    /// An executor's task server, which the scheduler dials.
    Tasks,
    /// An executor's Flight service, which executors and clients dial.
    Flight,
    /// A rank, or a probe in its place, which other ranks dial.
    Ranks,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tasks => "tasks",
            Self::Flight => "Flight",
            Self::Ranks => "ranks",
        })
    }
}

/// Reason why a port was not reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Text of the error.
    pub text: String,
}

/// Kind of a fault, as far as its remedy depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// The dialling process cannot resolve the host's name.
    Unresolved,
    /// The connection was refused.
    Refused,
    /// There is no route to the host.
    Unreachable,
    /// The connection timed out.
    Silent,
    /// Another process answers.
    Stranger,
}

impl Fault {
    /// Returns the fault of another process that answers, or closes the connection.
    pub fn stranger(text: impl fmt::Display) -> Self {
        Self {
            kind: FaultKind::Stranger,
            text: text.to_string(),
        }
    }

    /// Returns the fault of a timeout after `waited`.
    pub fn silent(waited: Duration) -> Self {
        Self {
            kind: FaultKind::Silent,
            text: format!("no answer within {waited:?}"),
        }
    }

    fn of(error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::ConnectionRefused => FaultKind::Refused,
            io::ErrorKind::TimedOut => FaultKind::Silent,
            _ => FaultKind::Unreachable,
        };
        Self {
            kind,
            text: error.to_string(),
        }
    }
}

/// End of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkEnd {
    /// The scheduler.
    Scheduler,
    /// Executor by its id.
    Executor(String),
}

impl fmt::Display for LinkEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler => f.pad("scheduler"),
            Self::Executor(id) => f.pad(id),
        }
    }
}

/// Link from one process to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// Dialling process.
    pub from: LinkEnd,
    /// Dialled process.
    pub to: LinkEnd,
    /// Host that was dialled.
    pub host: String,
    /// Port range that the dialled process was given, if any.
    pub range: Option<String>,
    /// Measurements, or the reason why the probe could not be made.
    pub outcome: Result<Measured, String>,
}

impl Link {
    /// Returns the ports that were not reached, and the reasons.
    pub fn faults(&self) -> impl Iterator<Item = (&Port, &Fault)> {
        let ports = self.outcome.iter().flat_map(|measured| &measured.ports);
        ports.filter_map(|port| Some((port, port.fault.as_ref()?)))
    }

    /// Checks that all ports of the link were reached.
    pub fn is_well(&self) -> bool {
        self.outcome.is_ok() && self.faults().next().is_none()
    }
}

/// Connects to a port of a host; an IPv6 address is in brackets.
///
/// # Errors
/// The reason why it was not reached in time.
pub async fn connect(host: &str, port: u16) -> Result<TcpStream, Fault> {
    let connect = async {
        let unresolved = |text: String| Fault {
            kind: FaultKind::Unresolved,
            text,
        };
        let addresses = lookup_host(format!("{host}:{port}")).await;
        let addresses = addresses.map_err(|error| unresolved(error.to_string()))?;
        let addresses: Vec<_> = addresses.collect();
        if addresses.is_empty() {
            return Err(unresolved("it has no address".to_owned()));
        }
        let stream = TcpStream::connect(&addresses[..]).await;
        stream.map_err(|error| Fault::of(&error))
    };
    let connected = timeout(CONNECTING, connect).await;
    connected.unwrap_or_else(|_| Err(Fault::silent(CONNECTING)))
}

/// Connects to a port of a service, and completes the TLS handshake if TLS is used.
///
/// # Errors
/// The reason why it was not reached in time, or is not the expected service.
pub async fn reach(host: &str, port: u16, tls: Option<&Tls>) -> Result<(), Fault> {
    let stream = connect(host, port).await?;
    let Some(tls) = tls else {
        return Ok(());
    };
    match timeout(CONNECTING, tls.agree(host, stream)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Fault::stranger(error)),
        Err(_) => Err(Fault::silent(CONNECTING)),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn why_a_port_is_not_reached_is_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        connect("127.0.0.1", port).await.unwrap();
        connect("localhost", port).await.unwrap();
        drop(listener);
        let refused = connect("127.0.0.1", port).await.unwrap_err();
        assert_eq!(refused.kind, FaultKind::Refused, "{refused:?}");
        // RFC 2606: no host has such a name. Without a name server, the lookup times out.
        let unknown = connect("nobody.invalid", port).await.unwrap_err();
        let kinds = [FaultKind::Unresolved, FaultKind::Silent];
        assert!(kinds.contains(&unknown.kind), "{unknown:?}");
    }

    #[test]
    fn a_way_is_well_when_all_of_its_ports_are_reached() {
        let port = |number, fault| Port {
            service: Service::Flight,
            number,
            fault,
        };
        let silent = Fault::silent(CONNECTING);
        let link = |ports| Link {
            from: LinkEnd::Scheduler,
            to: LinkEnd::Executor("e".to_owned()),
            host: "b".to_owned(),
            range: None,
            outcome: Ok(Measured {
                ports,
                ..Measured::default()
            }),
        };
        assert!(link(vec![port(1, None)]).is_well());
        let broken = link(vec![port(1, None), port(2, Some(silent))]);
        assert!(!broken.is_well());
        let told: Link = serde_json::from_slice(&serde_json::to_vec(&broken).unwrap()).unwrap();
        assert_eq!(told, broken);
        assert_eq!(
            told.faults()
                .map(|(port, _)| port.number)
                .collect::<Vec<_>>(),
            [2]
        );
    }
}
