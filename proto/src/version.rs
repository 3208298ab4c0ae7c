//! Version of a process, and the number of the protocol that it speaks.
//!
//! Clients and executors send theirs with each gRPC request, as the header [`HEADER`]; the scheduler refuses requests of
//! another [`WIRE`]. Executors exchange data and ranks meet only after the scheduler has let them in, so they agree too.

use std::fmt;

/// Number of the protocol between clients, schedulers and executors: only processes with the same number work together.
///
/// Raise it by one with each change after which an older build would misread a message of a newer one, or the other way
/// round: a field with another meaning, a new required one, another encoding of plans or options, another DataFusion or
/// Ballista. A test fails until that is done: see `tests/tests/architecture/wire.rs`. A change that both sides read alike
/// needs no new number; builds with the same number can then be mixed during an upgrade.
pub const WIRE: u32 = 5;

/// Header of a gRPC request with the version of the process that sends it.
pub const HEADER: &str = "volley-version";

/// Version of a build, and its protocol number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Version of the package, such as `0.1.0`.
    pub build: String,
    /// Protocol number; 0 for builds that have none.
    pub wire: u32,
}

impl Version {
    /// Returns this build's version.
    pub fn own() -> Self {
        Self {
            build: env!("CARGO_PKG_VERSION").to_owned(),
            wire: WIRE,
        }
    }

    /// Returns the value of the header [`HEADER`]: `BUILD/WIRE`.
    pub fn header(&self) -> String {
        format!("{}/{}", self.build, self.wire)
    }

    /// Parses the value of the header; `None` if it is malformed.
    pub fn of_header(header: &str) -> Option<Self> {
        let (build, wire) = header.split_once('/')?;
        Some(Self {
            build: build.to_owned(),
            wire: wire.parse().ok()?,
        })
    }

    /// Returns why two sides do not work together, if they do not. Each side has a name such as `the scheduler`; a version
    /// that is `None` was not told.
    pub fn disagreement(
        (this, own): (&str, Option<&Self>),
        (that, other): (&str, &Self),
    ) -> Option<String> {
        if own.is_some_and(|own| own.wire == other.wire) {
            return None;
        }
        let own = match own {
            Some(own) => format!("is {own}"),
            None => "does not tell its version".to_owned(),
        };
        Some(format!(
            "{this} {own} and {that} is {other}: run builds with the same wire number on both sides"
        ))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {} (wire {})", self.build, self.wire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(build: &str, wire: u32) -> Version {
        Version {
            build: build.to_owned(),
            wire,
        }
    }

    #[test]
    fn the_wire_number_decides() {
        let ours = version("0.1.0", 3);
        let judge = |version: Option<&Version>| {
            Version::disagreement(("this volley", version), ("the scheduler", &ours))
        };
        assert_eq!(judge(Some(&version("0.2.0", 3))), None);
        let later = judge(Some(&version("0.1.0", 4))).unwrap();
        assert_eq!(
            later,
            "this volley is version 0.1.0 (wire 4) and the scheduler is version 0.1.0 (wire 3): run builds with the same \
             wire number on both sides"
        );
        let silent = judge(None).unwrap();
        assert!(silent.starts_with(
            "this volley does not tell its version and the scheduler is version 0.1.0 (wire 3)"
        ));
    }

    #[test]
    fn a_header_is_read_back() {
        let own = Version::own();
        assert_eq!(Version::of_header(&own.header()), Some(own));
        for header in [
            "",
            "0.1.0",
            "0.1.0/",
            "0.1.0/x",
            "0.1.0/-1",
            "0.1.0/4294967296",
        ] {
            assert_eq!(Version::of_header(header), None, "{header:?}");
        }
    }
}
