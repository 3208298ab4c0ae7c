//! The network between the processes of a cluster: what executors are asked to try of it, and what came of that.
//!
//! A [`Link`] is from one process to another as the first one dials the second: by the host that it advertises. Nobody
//! is dialled but registered executors and their scheduler. Not here: remedies, which `volley doctor` names.

use std::fmt;
use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::tls::Tls;

/// How long a port may take to be connected with, its host's name to be resolved included.
pub const CONNECTING: Duration = Duration::from_secs(3);

/// What an executor is asked to try.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Probe {
    /// To listen where its ranks do, and to answer who knows the token.
    Listen {
        /// What callers say first.
        token: String,
        /// For how long.
        patience: Duration,
    },
    /// To dial another executor.
    Dial(Target),
    /// To exchange bytes with the scheduler.
    Scheduler,
    /// To listen no more. It is not answered.
    Stop,
}

/// An executor as others dial it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The host that it advertises.
    pub host: String,
    /// The port of its Flight service, if it is of use to whoever dials.
    pub flight: Option<u16>,
    /// The port where it listens for the probe, among those of its ranks.
    pub ranks: Option<u16>,
    /// What it is to be told there.
    pub token: String,
}

/// What came of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Probed {
    /// The executor listens.
    Listens {
        /// On this port; none where its ranks have no port to spare.
        port: Option<u16>,
        /// Its ports, if these were given to it.
        range: Option<String>,
    },
    /// The other was dialled.
    Measured(Measured),
    /// Nothing could be tried, for this reason.
    Failed(String),
}

/// How a link was found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The ports that were dialled.
    pub ports: Vec<Port>,
    /// How long a byte takes there and back: the median of some.
    pub round_trip: Option<Duration>,
    /// Bytes a second there.
    pub rate: Option<f64>,
    /// Bytes a second back, where that is measured at once.
    pub rate_back: Option<f64>,
}

/// A port that was dialled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// What listens there.
    pub service: Service,
    /// Its number.
    pub number: u16,
    /// Why it was not reached, if so.
    pub fault: Option<Fault>,
}

/// What listens on a port.
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

/// Why a port was not reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Of what kind that is.
    pub kind: FaultKind,
    /// What was said.
    pub text: String,
}

/// Why a port was not reached, as far as what would mend it depends on that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// The host's name means nothing to whoever dialled.
    Unresolved,
    /// The connection is refused.
    Refused,
    /// There is no route to such a host.
    Unreachable,
    /// It times out.
    Silent,
    /// Another process answers.
    Stranger,
}

impl Fault {
    /// Another process answers, or closes the connection.
    pub fn stranger(text: impl fmt::Display) -> Self {
        Self {
            kind: FaultKind::Stranger,
            text: text.to_string(),
        }
    }

    /// It has timed out after so long.
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

/// One end of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkEnd {
    /// The scheduler.
    Scheduler,
    /// An executor by its id.
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

/// The link from one process to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Link {
    /// The dialling process.
    pub from: LinkEnd,
    /// The dialled process.
    pub to: LinkEnd,
    /// By what host.
    pub host: String,
    /// The port range that the dialled process was given, if any.
    pub range: Option<String>,
    /// What was found, or why nothing could be tried.
    pub outcome: Result<Measured, String>,
}

impl Link {
    /// The ports that were not reached, and why.
    pub fn faults(&self) -> impl Iterator<Item = (&Port, &Fault)> {
        let ports = self.outcome.iter().flat_map(|measured| &measured.ports);
        ports.filter_map(|port| Some((port, port.fault.as_ref()?)))
    }

    /// Whether it is as it should be.
    pub fn is_well(&self) -> bool {
        self.outcome.is_ok() && self.faults().next().is_none()
    }
}

/// Connects with a port of a host, an IPv6 address in brackets.
///
/// # Errors
/// Why it was not reached in time.
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

/// Connects with a port of a service, and agrees on TLS there if it is spoken.
///
/// # Errors
/// Why it was not reached in time, or is not the service that it should be.
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
        // RFC 2606: nobody has such a name. Where no name server answers, it is silence.
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
