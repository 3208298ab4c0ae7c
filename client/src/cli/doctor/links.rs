//! Links between a cluster's processes, as a table, and remedies for broken ones.

use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use volley_proto::probe::{Fault, FaultKind, Link, Port};

use crate::cli::format::texts;

/// Returns a table with one row per link.
pub(super) fn rows(links: &[Link]) -> Result<RecordBatch, ArrowError> {
    let round_trips = |link: &Link| round_trip(link).map_or_else(String::new, milliseconds);
    let rates = |link: &Link| rate(link).map_or_else(String::new, megabytes);
    RecordBatch::try_from_iter([
        ("from", texts(links, |link| link.from.to_string())),
        ("to", texts(links, |link| link.to.to_string())),
        ("by", texts(links, |link| link.host.clone())),
        ("ports", texts(links, ports)),
        ("round trip", texts(links, round_trips)),
        ("bandwidth", texts(links, rates)),
    ])
}

/// Returns the faults of a link, each with a remedy.
pub(super) fn faults(link: &Link) -> Vec<String> {
    let about = format!("{} to {} ({})", link.from, link.to, link.host);
    if let Err(reason) = &link.outcome {
        return vec![format!("{about} was not tried: {reason}")];
    }
    let said = |(port, fault): (&Port, &Fault)| {
        let Port {
            service, number, ..
        } = port;
        let remedy = remedy(link, port, fault.kind);
        format!(
            "{about}: port {number} ({service}): {}: {remedy}",
            fault.text
        )
    };
    link.faults().map(said).collect()
}

/// Summarizes all links in one line.
pub(super) fn summary(links: &[Link]) -> String {
    let slowest = links.iter().filter_map(round_trip).max();
    let narrowest = links.iter().filter_map(rate).reduce(f64::min);
    let mut said = format!("{} links, all reached", links.len());
    if let Some(slowest) = slowest {
        said.push_str(&format!(
            "; a round trip takes {} at most",
            milliseconds(slowest)
        ));
    }
    if let Some(narrowest) = narrowest {
        said.push_str(&format!("; at least {}", megabytes(narrowest)));
    }
    said
}

fn remedy(link: &Link, port: &Port, kind: FaultKind) -> String {
    let Link { from, to, host, .. } = link;
    match kind {
        FaultKind::Unresolved => format!(
            "make the name {host} known where {from} runs (DNS or /etc/hosts), or start {to} with --advertise-host \
             and a name or address that it can resolve"
        ),
        FaultKind::Refused => format!(
            "{to} listens, but not where {from} connects: start it with --bind 0.0.0.0 (or ::) and an \
             --advertise-host that leads to it, and have no firewall refuse the port"
        ),
        FaultKind::Unreachable => {
            format!("give {to} an --advertise-host that the host of {from} has a route to")
        }
        FaultKind::Silent => {
            let ports = match &link.range {
                Some(range) => format!("ports {range} (its --ports)"),
                None => format!(
                    "port {}, or start it with --ports FIRST-LAST and let these pass: it picks others at each start",
                    port.number
                ),
            };
            format!(
                "let any firewall between them pass TCP from the host of {from} to {host}, {ports}"
            )
        }
        FaultKind::Stranger => format!(
            "another process answers {from} at {host}: give {to} an --advertise-host that leads to it alone"
        ),
    }
}

/// Returns the dialled ports of a link, with their results.
fn ports(link: &Link) -> String {
    let measured = match &link.outcome {
        Ok(measured) => measured,
        Err(_) => return "not tried".to_owned(),
    };
    let said = |port: &Port| {
        let Port {
            service,
            number,
            fault,
        } = port;
        match fault.as_ref().map(|fault| fault.kind) {
            None => format!("{service} {number}"),
            Some(FaultKind::Unresolved) => format!("{service} {number} UNKNOWN HOST"),
            Some(FaultKind::Refused) => format!("{service} {number} REFUSED"),
            Some(FaultKind::Unreachable) => format!("{service} {number} UNREACHABLE"),
            Some(FaultKind::Silent) => format!("{service} {number} NO ANSWER"),
            Some(FaultKind::Stranger) => format!("{service} {number} STRANGER"),
        }
    };
    let said: Vec<_> = measured.ports.iter().map(said).collect();
    match said.is_empty() {
        // The connection is the one that the executor registered over.
        true => "connected".to_owned(),
        false => said.join(", "),
    }
}

fn round_trip(link: &Link) -> Option<Duration> {
    link.outcome.as_ref().ok()?.round_trip
}

fn rate(link: &Link) -> Option<f64> {
    link.outcome.as_ref().ok()?.rate
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

fn megabytes(rate: f64) -> String {
    match rate / 1e6 {
        megabytes if megabytes < 10.0 => format!("{megabytes:.1} MB/s"),
        megabytes => format!("{megabytes:.0} MB/s"),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;
    use volley_proto::probe::{CONNECTING, LinkEnd, Measured, Service};

    use super::*;

    fn link(fault: Option<Fault>, range: Option<&str>) -> Link {
        let port = |service, number, fault| Port {
            service,
            number,
            fault,
        };
        Link {
            from: LinkEnd::Executor("e1".to_owned()),
            to: LinkEnd::Executor("e2".to_owned()),
            host: "c".to_owned(),
            range: range.map(str::to_owned),
            outcome: Ok(Measured {
                ports: vec![
                    port(Service::Flight, 7001, None),
                    port(Service::Ranks, 7002, fault),
                ],
                round_trip: Some(Duration::from_micros(250)),
                rate: Some(1.5e6),
                rate_back: None,
            }),
        }
    }

    #[test]
    fn a_fault_names_the_port_and_the_remedy() {
        assert!(faults(&link(None, None)).is_empty());
        let silent = || Some(Fault::silent(CONNECTING));
        let said = faults(&link(silent(), Some("7000-7099"))).join("\n");
        for part in [
            "e1 to e2 (c)",
            "7002 (ranks)",
            "no answer",
            "7000-7099 (its --ports)",
        ] {
            assert!(said.contains(part), "{said}");
        }
        let said = faults(&link(silent(), None)).join("\n");
        assert!(said.contains("--ports FIRST-LAST"), "{said}");
        for (kind, part) in [
            (FaultKind::Unresolved, "/etc/hosts"),
            (FaultKind::Refused, "--bind 0.0.0.0"),
            (FaultKind::Unreachable, "--advertise-host"),
            (FaultKind::Stranger, "--advertise-host"),
        ] {
            let text = "so it is".to_owned();
            let said = faults(&link(Some(Fault { kind, text }), None)).join("\n");
            assert!(said.contains(part) && said.contains("so it is"), "{said}");
        }
        let untried = Link {
            outcome: Err("e2 has left the cluster".to_owned()),
            ..link(None, None)
        };
        assert_eq!(
            faults(&untried),
            ["e1 to e2 (c) was not tried: e2 has left the cluster"]
        );
    }

    #[test]
    fn ways_are_rows_and_a_line() {
        let links = [
            link(None, None),
            link(Some(Fault::silent(CONNECTING)), None),
        ];
        let rows = rows(&links).unwrap();
        let cell = |column: &str, row: usize| {
            let column = rows.column_by_name(column).unwrap();
            column
                .as_any()
                .downcast_ref::<StringArray>()
                .unwrap()
                .value(row)
                .to_owned()
        };
        assert_eq!(cell("ports", 0), "Flight 7001, ranks 7002");
        assert_eq!(cell("ports", 1), "Flight 7001, ranks 7002 NO ANSWER");
        assert_eq!(
            (cell("round trip", 0), cell("bandwidth", 0)),
            ("0.25 ms".into(), "1.5 MB/s".into())
        );
        let said = summary(&links[..1]);
        assert_eq!(
            said,
            "1 links, all reached; a round trip takes 0.25 ms at most; at least 1.5 MB/s"
        );
    }
}
