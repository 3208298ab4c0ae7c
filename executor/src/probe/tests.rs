use std::time::Duration;

use tokio::net::TcpListener;
use volley_proto::address::ListenAddress;
use volley_proto::probe::{FaultKind, Probed, Service, Target};

use super::{dial, listen, median};
use crate::ExecutorConfig;

const PATIENCE: Duration = Duration::from_secs(60);

fn config() -> ExecutorConfig {
    ExecutorConfig::local("e", "127.0.0.1:1", "unused".into())
}

fn target(flight: Option<u16>, ranks: Option<u16>, token: &str) -> Target {
    Target {
        host: "127.0.0.1".to_owned(),
        flight,
        ranks,
        token: token.to_owned(),
    }
}

#[tokio::test]
async fn a_way_is_measured_by_who_knows_the_token() {
    let (listener, probed) = listen::bind(&config()).unwrap();
    let Probed::Listens {
        port: Some(port),
        range: None,
    } = probed
    else {
        panic!("{probed:?}")
    };
    let listener = listener.unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let flight = closed.local_addr().unwrap().port();
    drop(closed);
    let serving = listen::serve(listener, "the token", PATIENCE);
    let dialling = async {
        let found = dial::dial(&target(Some(flight), Some(port), "the token"), None).await;
        assert!(
            found.round_trip.is_some_and(|time| time > Duration::ZERO),
            "{found:?}"
        );
        assert!(found.rate.is_some_and(|rate| rate > 1e5), "{found:?}");
        let faults = found
            .ports
            .iter()
            .map(|port| port.fault.as_ref().map(|fault| fault.kind));
        assert_eq!(faults.collect::<Vec<_>>(), [Some(FaultKind::Refused), None]);

        let stranger = dial::dial(&target(None, Some(port), "my token!"), None).await;
        assert_eq!((stranger.round_trip, stranger.rate), (None, None));
        assert_eq!(stranger.ports[0].service, Service::Ranks);
        let fault = stranger.ports[0].fault.as_ref().unwrap();
        assert_eq!(fault.kind, FaultKind::Stranger, "{fault:?}");
    };
    tokio::select! {
        () = serving => panic!("it listens for a minute"),
        () = dialling => {}
    }
}

#[tokio::test]
async fn ranks_keep_the_ports_that_they_may_need() {
    let narrow = |ports: &str| ExecutorConfig {
        listen: ListenAddress::new([127, 0, 0, 1].into(), ports.parse().unwrap(), None).unwrap(),
        vcores: 2,
        ..config()
    };
    let (listener, probed) = listen::bind(&narrow("7000-7003")).unwrap();
    assert!(listener.is_none());
    let kept = Probed::Listens {
        port: None,
        range: Some("7000-7003".to_owned()),
    };
    assert_eq!(probed, kept);
}

#[test]
fn the_median_is_the_middle_one() {
    let of = |times: &[u64]| median(times.iter().copied().map(Duration::from_secs).collect());
    assert_eq!(of(&[]), None);
    assert_eq!(of(&[9, 1, 2]), Some(Duration::from_secs(2)));
}
