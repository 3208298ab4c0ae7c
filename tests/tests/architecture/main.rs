//! The one direction of dependencies between the crates, and what comes from others.

#![allow(clippy::unwrap_used)]

mod supply;

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// What each crate may depend on in this workspace.
const ALLOWED: &[(&str, &[&str])] = &[
    ("volley-proto", &[]),
    ("volley-trainer", &["volley-proto"]),
    ("volley-scheduler", &["volley-proto"]),
    ("volley-executor", &["volley-proto", "volley-trainer"]),
    (
        "volley",
        &["volley-proto", "volley-scheduler", "volley-executor"],
    ),
    (
        "volley-tests",
        &[
            "volley",
            "volley-proto",
            "volley-trainer",
            "volley-scheduler",
            "volley-executor",
        ],
    ),
    ("volley-custom-layer", &["volley-executor"]),
    (
        "volley-benchmarks",
        &[
            "volley",
            "volley-proto",
            "volley-trainer",
            "volley-scheduler",
            "volley-executor",
        ],
    ),
];

/// What crates must not link, whatever the way.
const FORBIDDEN: &[(&str, &[&str])] = &[
    (
        "volley-proto",
        &["burn", "ballista-scheduler", "ballista-executor"],
    ),
    (
        "volley-trainer",
        &["ballista-scheduler", "ballista-executor", "ballista"],
    ),
    ("volley-scheduler", &["burn", "ballista-executor"]),
    ("volley-executor", &["ballista-scheduler"]),
];

#[test]
fn dependencies_go_one_way() {
    let metadata = MetadataCommand::new().exec().unwrap();
    let names: BTreeMap<_, _> = metadata
        .packages
        .iter()
        .map(|package| (&package.id, package.name.as_str()))
        .collect();
    let resolve = metadata.resolve.as_ref().unwrap();
    let direct: BTreeMap<&str, BTreeSet<&str>> = resolve
        .nodes
        .iter()
        .map(|node| {
            let linked = node.deps.iter().filter(|dependency| {
                dependency
                    .dep_kinds
                    .iter()
                    .any(|kind| kind.kind == DependencyKind::Normal)
            });
            (
                names[&node.id],
                linked.map(|dependency| names[&dependency.pkg]).collect(),
            )
        })
        .collect();

    let members: BTreeSet<_> = metadata
        .workspace_packages()
        .into_iter()
        .map(|package| package.name.as_str())
        .collect();
    let ruled: BTreeSet<_> = ALLOWED.iter().map(|(name, _)| *name).collect();
    assert_eq!(members, ruled, "every crate of the workspace has a rule");

    for (name, allowed) in ALLOWED {
        for dependency in direct[name]
            .iter()
            .filter(|dependency| members.contains(*dependency))
        {
            assert!(
                allowed.contains(dependency),
                "{name} must not depend on {dependency}"
            );
        }
    }
    for (name, forbidden) in FORBIDDEN {
        let mut linked = BTreeSet::new();
        let mut open = vec![*name];
        while let Some(next) = open.pop() {
            if linked.insert(next) {
                open.extend(direct.get(next).into_iter().flatten());
            }
        }
        for dependency in *forbidden {
            assert!(
                !linked.contains(dependency),
                "{name} must not link {dependency}"
            );
        }
    }
}
