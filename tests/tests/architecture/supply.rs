//! The packages that the workspace is built from: their licences and sources, packages allowed in one version only,
//! and packages known to be unmaintained.
//!
//! `deny.toml` has the same rules for licences and sources for `cargo deny`, which also knows advisories and needs
//! the internet for them. This test needs only what a build needs.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{Metadata, MetadataCommand};

/// Permitted licences of linked packages; if a package offers several, one must be permitted.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
    "bzip2-1.0.6",
];

/// Packages allowed in one version only, because their types or state cross crate boundaries or because one is
/// enough: a second version would be another trait, another pool or another TLS library.
const ONCE: &[&str] = &[
    "arrow",
    "arrow-flight",
    "axum",
    "ballista-core",
    "bytes",
    "datafusion",
    "http",
    "hyper",
    "object_store",
    "parquet",
    "prost",
    "ring",
    "rustls",
    "serde_json",
    "tokio",
    "tonic",
    "tracing",
    "url",
];

/// Packages known to be unmaintained, used here or not: a list kept by hand, not RustSec's database.
const UNMAINTAINED: &[&str] = &[
    "adler",
    "ansi_term",
    "async-std",
    "atty",
    "backoff",
    "bincode",
    "daemonize",
    "derivative",
    "dotenv",
    "encoding",
    "failure",
    "fxhash",
    "instant",
    "mach",
    "net2",
    "number_prefix",
    "paste",
    "proc-macro-error",
    "rustc-serialize",
    "rustls-pemfile",
    "serde_cbor",
    "stdweb",
    "tempdir",
    "yaml-rust",
];

/// Unmaintained packages that are used nevertheless, with reasons.
const EXCUSED: &[(&str, &str)] = &[
    (
        "bincode",
        "Burn 0.21 keeps records with it, which Volley does not use",
    ),
    (
        "paste",
        "a macro at compile time, which Burn and its matrix kernels use",
    ),
];

fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    // Only the packages of the shipped platform; the lock file also contains those of other platforms.
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    command.other_options(
        ["--locked", "--filter-platform", target.as_str()]
            .map(str::to_owned)
            .to_vec(),
    );
    command.exec().unwrap()
}

/// Checks that a licence expression can be met with these licences. It may use `OR`, `AND`, parentheses, and the old
/// form `/`.
fn is_met(expression: &str, licences: &[&str]) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any(&words, &mut at, licences);
    met && at == words.len()
}

fn any(words: &[&str], at: &mut usize, licences: &[&str]) -> bool {
    let mut met = all(words, at, licences);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all(words, at, licences);
    }
    met
}

fn all(words: &[&str], at: &mut usize, licences: &[&str]) -> bool {
    let mut met = one(words, at, licences);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, licences);
    }
    met
}

fn one(words: &[&str], at: &mut usize, licences: &[&str]) -> bool {
    let Some(word) = words.get(*at) else {
        return false;
    };
    *at += 1;
    if *word == "(" {
        let met = any(words, at, licences);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return met && closed;
    }
    let mut licence = (*word).to_owned();
    if let [Some(&"WITH"), Some(exception)] = [words.get(*at), words.get(*at + 1)] {
        licence = format!("{licence} WITH {exception}");
        *at += 2;
    }
    licences.contains(&licence.as_str())
}

#[test]
fn expressions_of_licences_are_read() {
    let licences = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"];
    for (expression, due) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("(GPL-3.0 OR MIT) AND Apache-2.0", true),
        ("MIT AND (GPL-3.0 OR Zlib)", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("MIT WITH LLVM-exception", false),
        ("(MIT", false),
        ("", false),
    ] {
        assert_eq!(is_met(expression, &licences), due, "{expression}");
    }
}

#[test]
fn licences_are_those_that_are_allowed() {
    let metadata = metadata();
    let of_others = metadata
        .packages
        .iter()
        .filter(|package| package.source.is_some());
    let refused = of_others.filter(|package| {
        let licence = package.license.as_deref().unwrap_or_default();
        !is_met(licence, LICENCES)
    });
    let refused: Vec<_> = refused
        .map(|package| {
            format!(
                "{} {}: {:?}",
                package.name, package.version, package.license
            )
        })
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

#[test]
fn packages_come_from_the_registry_as_they_were_locked() {
    let metadata = metadata();
    let own: BTreeSet<_> = metadata
        .workspace_packages()
        .into_iter()
        .map(|of| of.name.to_string())
        .collect();
    let elsewhere = metadata
        .packages
        .iter()
        .filter(|package| match &package.source {
            Some(source) => !source.is_crates_io(),
            None => !own.contains(package.name.as_str()),
        });
    let elsewhere: Vec<_> = elsewhere.map(|package| package.id.to_string()).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:#?}");
    // For all platforms: every package that is not the workspace's has a checksum.
    let lock = std::fs::read_to_string(metadata.workspace_root.join("Cargo.lock")).unwrap();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| package.lines().find_map(|line| line.strip_prefix(name));
        let name = field("name = ").unwrap().trim_matches('"');
        let locked = field("source = \"registry+").is_some() && field("checksum = ").is_some();
        assert!(
            own.contains(name) || locked,
            "{name} has no checksum of the registry's"
        );
    }
}

#[test]
fn of_some_packages_there_is_one() {
    let mut versions = BTreeMap::<String, BTreeSet<String>>::new();
    for package in metadata().packages {
        let of = versions.entry(package.name.to_string()).or_default();
        of.insert(package.version.to_string());
    }
    for name in ONCE {
        let found = versions.get(*name).map_or(0, BTreeSet::len);
        assert_eq!(found, 1, "{name}: {:?}", versions.get(*name));
    }
}

#[test]
fn what_nobody_maintains_is_known() {
    let names: BTreeSet<_> = metadata()
        .packages
        .into_iter()
        .map(|of| of.name.to_string())
        .collect();
    let found = UNMAINTAINED
        .iter()
        .copied()
        .filter(|name| names.contains(*name));
    let excused = EXCUSED.iter().map(|(name, _)| *name);
    assert!(found.eq(excused), "known: {EXCUSED:#?}");
}
