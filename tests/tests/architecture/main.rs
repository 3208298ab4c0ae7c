//! Architecture rules: one direction of dependencies between crates and inside them, the packages that each crate
//! links, and the packages from outside.

#![allow(clippy::unwrap_used)]

mod scripts;
mod supply;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Workspace crates that each crate may depend on.
const ALLOWED: &[(&str, &[&str])] = &[
    ("volley-proto", &[]),
    ("volley-engine", &["volley-proto"]),
    ("volley-trainer", &["volley-proto"]),
    ("volley-scheduler", &["volley-proto", "volley-engine"]),
    (
        "volley-executor",
        &["volley-proto", "volley-engine", "volley-trainer"],
    ),
    ("volley-rossmann", &[]),
    (
        "volley",
        &[
            "volley-proto",
            "volley-engine",
            "volley-scheduler",
            "volley-executor",
            "volley-rossmann",
        ],
    ),
    (
        "volley-tests",
        &[
            "volley",
            "volley-proto",
            "volley-engine",
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
            "volley-engine",
            "volley-trainer",
            "volley-scheduler",
            "volley-executor",
        ],
    ),
];

/// Packages that crates, built alone with these features, must not link, directly or indirectly: each name, and all
/// names that continue it after a hyphen.
const FORBIDDEN: &[(&str, &str, &[&str])] = &[
    (
        "volley-proto",
        "",
        &["datafusion", "ballista", "sqlparser", "parquet", "burn"],
    ),
    (
        "volley-engine",
        "",
        &["burn", "ballista-scheduler", "ballista-executor"],
    ),
    (
        "volley-trainer",
        "",
        &["datafusion", "ballista", "sqlparser", "parquet"],
    ),
    ("volley-scheduler", "", &["burn", "ballista-executor"]),
    ("volley-executor", "", &["ballista-scheduler"]),
];

/// Dependency rules inside a crate.
struct Inside {
    /// Folder of the crate.
    folder: &'static str,
    /// Modules at the top, which may name all others.
    roots: &'static [&'static str],
    /// For each other folder or file at the root of the sources: the parts that it may name.
    parts: &'static [(&'static str, &'static [&'static str])],
    /// Words that must not be in the code of a part.
    forbidden: &'static [(&'static str, &'static [&'static str])],
}

const INSIDE: &[Inside] = &[ENGINE, SCHEDULER, EXECUTOR, TRAINER];

const ENGINE: Inside = Inside {
    folder: "engine",
    roots: &["lib"],
    parts: &[
        (
            "codec",
            &[
                "error",
                "mends",
                "nodes",
                "object_stores",
                "operators",
                "write",
            ],
        ),
        ("error", &[]),
        ("files", &[]),
        (
            "mends",
            &["error", "nodes", "operators", "rules", "runtime"],
        ),
        ("nodes", &["error", "runtime", "settings"]),
        ("object_stores", &["error"]),
        ("operators", &["nodes", "runtime"]),
        (
            "planning",
            &[
                "codec",
                "mends",
                "nodes",
                "object_stores",
                "operators",
                "rules",
                "settings",
                "write",
            ],
        ),
        ("rules", &[]),
        ("runtime", &[]),
        (
            "session",
            &["codec", "mends", "operators", "planning", "rules", "write"],
        ),
        ("settings", &["error", "object_stores"]),
        ("task", &["mends", "operators", "planning"]),
        (
            "write",
            &["error", "files", "nodes", "object_stores", "settings"],
        ),
    ],
    forbidden: &[
        // DataFusion is what they mend and extend, in one process.
        ("files", &["ballista_core"]),
        ("mends", &["ballista_core", "volley_proto"]),
        ("operators", &["ballista_core"]),
        ("rules", &["ballista_core", "volley_proto"]),
    ],
};

const SCHEDULER: Inside = Inside {
    folder: "scheduler",
    roots: &["command", "lib", "main", "server"],
    parts: &[
        ("access", &[]),
        ("control", &[]),
        ("record", &["control"]),
        ("traces", &["control"]),
        ("handle", &["control", "record", "traces"]),
        ("listing", &[]),
        ("tables", &["control", "handle", "listing", "record"]),
        ("grpc", &["access", "control", "handle", "tables"]),
        ("web", &["access", "tables"]),
        (
            "ballista",
            &["access", "control", "handle", "record", "tables"],
        ),
        ("config", &["access", "control"]),
        ("simulation", &["control"]),
        ("error", &[]),
    ],
    forbidden: &[
        (
            "access",
            &["ballista_core", "ballista_scheduler", "datafusion"],
        ),
        (
            "control",
            &[
                "tokio",
                "tonic",
                "axum",
                "async",
                "datafusion",
                "ballista_core",
                "ballista_scheduler",
                "volley_proto::wire",
                "volley_engine",
            ],
        ),
        (
            "grpc",
            &["ballista_core", "ballista_scheduler", "datafusion"],
        ),
        (
            "record",
            &["ballista_core", "ballista_scheduler", "datafusion"],
        ),
        (
            "planning",
            &[
                "tokio::spawn",
                "tokio::sync",
                "tokio::task",
                "tokio::time",
                "tonic",
                "ballista_scheduler::state",
            ],
        ),
        (
            "tables",
            &["ballista_core", "ballista_scheduler", "datafusion"],
        ),
        (
            "traces",
            &["ballista_core", "ballista_scheduler", "datafusion"],
        ),
        (
            "web",
            &["ballista_core", "ballista_scheduler", "datafusion"],
        ),
    ],
};

const EXECUTOR: Inside = Inside {
    folder: "executor",
    roots: &["lib", "main", "command"],
    parts: &[
        ("accelerator", &[]),
        ("attendance", &["config"]),
        (
            "ballista",
            &["attendance", "counts", "files", "memory", "probe"],
        ),
        ("config", &["memory"]),
        ("counts", &[]),
        ("error", &[]),
        (
            "executor",
            &[
                "attendance",
                "ballista",
                "counts",
                "metrics",
                "models",
                "rank",
            ],
        ),
        ("files", &[]),
        ("memory", &[]),
        (
            "metrics",
            &[
                "attendance",
                "ballista",
                "config",
                "counts",
                "memory",
                "rank",
            ],
        ),
        ("models", &["accelerator"]),
        ("notices", &["attendance", "ballista"]),
        ("probe", &["attendance"]),
        ("rank", &["ballista", "counts", "error", "memory", "models"]),
    ],
    forbidden: &[
        ("attendance", &["ballista_core", "datafusion"]),
        ("metrics", &["ballista_core", "datafusion"]),
        ("probe", &["ballista_core", "datafusion"]),
        // Steps, gradients and the meeting of ranks belong to the trainer.
        ("rank", &["Communicator", "Options"]),
    ],
};

const TRAINER: Inside = Inside {
    folder: "trainer",
    roots: &["lib"],
    parts: &[
        (
            "accelerator",
            &["device", "model", "network", "testing", "train"],
        ),
        ("bin", &[]),
        ("collective", &[]),
        ("device", &[]),
        ("encode", &["network", "random", "testing"]),
        ("error", &["collective", "encode"]),
        ("gang", &["collective", "train"]),
        ("model", &["encode", "network", "testing"]),
        ("network", &["device", "random", "testing", "threads"]),
        ("random", &[]),
        ("simulation", &["collective"]),
        ("speed", &["network", "threads"]),
        // Code for tests.
        (
            "testing",
            &["collective", "device", "network", "random", "train"],
        ),
        (
            "train",
            &[
                "collective",
                "device",
                "encode",
                "model",
                "network",
                "random",
                // A test compares what both send.
                "simulation",
                "testing",
                "threads",
            ],
        ),
        ("threads", &[]),
    ],
    forbidden: &[
        ("encode", &["Communicator"]),
        ("network", &["Communicator", "arrow"]),
        ("collective", &["arrow"]),
    ],
};

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
}

#[test]
fn no_crate_links_what_it_must_not() {
    for (name, features, forbidden) in FORBIDDEN {
        let linked = linked(name, features);
        assert!(linked.contains(*name), "{linked:?}");
        for package in &linked {
            let is_forbidden = forbidden.iter().any(|forbidden| {
                let rest = package.strip_prefix(forbidden);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            });
            assert!(!is_forbidden, "{name} must not link {package}");
        }
    }
}

/// Returns the packages that a crate links when it is built alone. Cargo's metadata would use the features that the
/// whole workspace enables.
fn linked(name: &str, features: &str) -> BTreeSet<String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--locked", "--edges", "normal"])
        .args(["--prefix", "none", "--format", "{p}"])
        .args(["--package", name, "--features", features])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo tree of {name}: {told}");
    let tree = String::from_utf8(output.stdout).unwrap();
    let packages = tree.lines().filter_map(|line| line.split(' ').next());
    packages.map(str::to_owned).collect()
}

#[test]
fn crates_point_one_way_inside() {
    for Inside {
        folder,
        roots,
        parts: rules,
        forbidden,
    } in INSIDE
    {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../{folder}/src"));
        let mut parts = BTreeSet::new();
        for file in sources(&root) {
            let path = file.strip_prefix(&root).unwrap().with_extension("");
            let part = path.iter().next().unwrap().to_str().unwrap().to_owned();
            if roots.contains(&part.as_str()) {
                continue;
            }
            // Depth of the file's module below the root.
            let depth = path.iter().filter(|name| *name != "mod").count();
            let path = format!("{folder}/src/{}", path.display());
            let code = code(&fs::read_to_string(&file).unwrap());
            let rule = rules.iter().find(|(name, _)| *name == part);
            let (_, allowed) = rule.unwrap_or_else(|| panic!("{path} has no rule"));
            for named in named(&code, depth) {
                let is_part = rules.iter().any(|(name, _)| *name == named);
                let is_root = roots.contains(&named.as_str());
                let is_allowed = named == part || allowed.contains(&named.as_str());
                assert!(
                    is_allowed || !(is_part || is_root),
                    "{path} must not name crate::{named}: {part} may name {allowed:?} only"
                );
            }
            let forbidden = forbidden.iter().filter(|(name, _)| *name == part);
            for word in forbidden.flat_map(|(_, words)| *words) {
                assert!(!has_word(&code, word), "{path} must not name {word}");
            }
            parts.insert(part);
        }
        let ruled: BTreeSet<_> = rules.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(parts, ruled, "every part of {folder} has a rule");
    }
}

/// Checks that no part can reach itself through the parts it may name; errors, which all parts use, are left out.
#[test]
fn no_rule_inside_a_crate_allows_a_circle() {
    for Inside { folder, parts, .. } in INSIDE {
        let mut left: BTreeMap<&str, BTreeSet<&str>> = parts
            .iter()
            .filter(|(part, _)| !["error", "testing"].contains(part))
            .map(|(part, names)| (*part, names.iter().copied().collect()))
            .collect();
        while !left.is_empty() {
            let free = left.iter().find(|(_, names)| {
                let mut names = names.iter();
                names.all(|name| !left.contains_key(name))
            });
            let free = free.map(|(part, _)| *part);
            let free = free.unwrap_or_else(|| panic!("{folder}: a circle among {left:?}"));
            left.remove(free);
        }
    }
}

/// Returns the Rust files under a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// Removes a file's comments.
fn code(text: &str) -> String {
    let lines = text.lines();
    let lines = lines.map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the items at the crate's root that code names, by `crate::` or, from a module of this depth, by the
/// matching number of `super::`.
fn named(code: &str, depth: usize) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    let to_root = ["crate::".to_owned(), "super::".repeat(depth)];
    for path in to_root {
        for (at, _) in code.match_indices(&path) {
            // A longer path also ends with this one.
            if path != "crate::" && code[..at].ends_with("super::") {
                continue;
            }
            let rest = &code[at + path.len()..];
            let items = match rest.strip_prefix('{') {
                Some(group) => items(group),
                None => vec![rest.split([',', ';', '}']).next().unwrap_or_default()],
            };
            for item in items {
                let item = item.trim();
                let end = item.find(|c: char| !(c.is_alphanumeric() || c == '_'));
                named.insert(item[..end.unwrap_or(item.len())].to_owned());
            }
        }
    }
    named.remove("");
    named
}

/// Returns the items of an import group, up to its closing brace; nested groups count to their item.
fn items(group: &str) -> Vec<&str> {
    let (mut items, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                items.push(&group[start..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items
}

/// Checks that code contains a word, not just as part of a longer one.
fn has_word(code: &str, word: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(in_word) && (word.ends_with(':') || !after.is_some_and(in_word))
    })
}

#[test]
fn what_a_file_names_is_found() {
    let names = |text: &str, depth| named(&code(text), depth).into_iter().collect::<Vec<_>>();
    assert_eq!(names("use crate::control::Event;", 2), ["control"]);
    assert_eq!(
        names("use crate::{Error, web::Hosts};", 1),
        ["Error", "web"]
    );
    assert_eq!(
        names("use crate::{a::{B, c::D}, e};\nuse crate::{f};", 1),
        ["a", "e", "f"]
    );
    assert!(names("// see crate::ballista", 1).is_empty());
    assert_eq!(names("use super::super::grpc::index;", 2), ["grpc"]);
    assert!(names("use super::slots::Task;", 2).is_empty());
    assert_eq!(
        names("let a = crate::handle::Control::new();", 1),
        ["handle"]
    );
    assert!(has_word("use tokio::sync;", "tokio"));
    assert!(!has_word("let tokio_like = 1;", "tokio"));
}
