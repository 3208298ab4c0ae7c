//! The dialling side of a probe between executors.

use std::time::Duration;

use tokio::time::timeout;
use volley_proto::probe::{Fault, Measured, Port, Service, Target, connect, reach};
use volley_proto::tls::Tls;

use super::exchange::{self, Found};

/// Timeout of the exchange with the listener.
const PATIENCE: Duration = Duration::from_secs(5);

/// Dials the target's Flight port and its ranks' port, both at once.
pub(super) async fn dial(target: &Target, tls: Option<&Tls>) -> Measured {
    let Target {
        host,
        flight,
        ranks,
        token,
    } = target;
    let flight = async {
        let number = (*flight)?;
        let fault = reach(host, number, tls).await.err();
        Some(port(Service::Flight, number, fault))
    };
    let ranks = async {
        let number = (*ranks)?;
        let found = measure(host, number, token).await;
        let fault = found.as_ref().err().cloned();
        Some((port(Service::Ranks, number, fault), found.ok()))
    };
    let (flight, ranks) = tokio::join!(flight, ranks);
    let (ranks, found) = ranks.unzip();
    let found = found.flatten();
    Measured {
        ports: flight.into_iter().chain(ranks).collect(),
        round_trip: found.and_then(|found| found.round_trip),
        rate: found.and_then(|found| found.rate),
        rate_back: None,
    }
}

async fn measure(host: &str, port: u16, token: &str) -> Result<Found, Fault> {
    let stream = connect(host, port).await?;
    match timeout(PATIENCE, exchange::measure(stream, token)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(Fault::stranger(error)),
        Err(_) => Err(Fault::silent(PATIENCE)),
    }
}

fn port(service: Service, number: u16, fault: Option<Fault>) -> Port {
    Port {
        service,
        number,
        fault,
    }
}
