//! The protocol between the processes of a cluster, as it was when its number was last raised.
//!
//! `wire.txt` has a digest for each message of `volley.proto`, for each type of the sources that is encoded for another
//! process, and the version of each package that encodes for us. The test fails when one of them changes without the
//! number. It reads sources as text: comments and white space do not count.
//!
//! Not here: the layouts of the model store and of the record of jobs, which have numbers of their own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use volley_proto::version::WIRE;

/// Folders and files with types that one process encodes and another decodes.
const ENCODED: [&str; 11] = [
    "engine/src/codec",
    "engine/src/settings.rs",
    "engine/src/write",
    "proto/src/limits.rs",
    "proto/src/probe.rs",
    "proto/src/spec",
    "proto/src/tables",
    "proto/src/tables.rs",
    "trainer/src/collective/endpoint.rs",
    "trainer/src/collective/wire.rs",
    "trainer/src/train",
];

/// Files among these that encode by hand or by a macro: their whole text counts.
const WHOLE: [&str; 2] = ["proto/src/tables.rs", "trainer/src/collective/wire.rs"];

/// Packages that encode plans, rows and messages.
const PACKAGES: [&str; 6] = [
    "arrow-ipc",
    "ballista-core",
    "datafusion-proto",
    "prost",
    "serde_json",
    "tonic",
];

/// Derives of types that are encoded.
const DERIVES: [&str; 5] = [
    "Serialize",
    "Deserialize",
    "Message",
    "Oneof",
    "Enumeration",
];

/// File with the digests.
const FILE: &str = "tests/tests/architecture/wire.txt";

/// Returns the root of the repository.
fn root() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().expect("a folder above").to_owned()
}

/// Returns a text without comments and white space.
fn bare(text: &str) -> String {
    let lines = text.lines().map(|line| match line.find("//") {
        // A URL in a string is no comment.
        Some(at) if !line[..at].ends_with(':') => &line[..at],
        _ => line,
    });
    lines
        .flat_map(str::chars)
        .filter(|c| !c.is_whitespace())
        .collect()
}

fn hash(text: &str) -> String {
    let hash = digest(&SHA256, bare(text).as_bytes());
    hash.as_ref()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Returns a text up to the end of its first block in braces, or to a semicolon before one.
fn item(text: &str) -> &str {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return &text[..=at];
                }
            }
            ';' if depth == 0 => return &text[..=at],
            _ => {}
        }
    }
    text
}

/// Returns the name behind a keyword at the start of an item's declaration.
fn name<'a>(text: &'a str, keywords: &[&str]) -> Option<&'a str> {
    let declares = |line: &'a str| {
        let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
        let mut words = words.skip_while(|word| !keywords.contains(word));
        words.nth(1)
    };
    let code = text.lines().map(str::trim);
    let mut code = code.filter(|line| !line.starts_with("//") && !line.starts_with("#["));
    code.find_map(declares)
}

/// Adds the digests of the messages and services of a protobuf file.
fn add_messages(text: &str, known: &mut BTreeMap<String, String>) {
    let mut rest = text;
    while let Some(at) = ["message ", "enum ", "service "]
        .iter()
        .filter_map(|keyword| rest.find(&format!("\n{keyword}")))
        .min()
    {
        let item = item(&rest[at + 1..]);
        let name = name(item, &["message", "enum", "service"]).expect("an item has a name");
        known.insert(format!("message {name}"), hash(item));
        rest = &rest[at + 1 + item.len()..];
    }
}

/// Adds the digests of the encoded types of a file of sources, or of all below a folder.
fn add_types(path: &Path, known: &mut BTreeMap<String, String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            add_types(&entry.unwrap().path(), known);
        }
        return;
    }
    let file = path.strip_prefix(root()).unwrap().display().to_string();
    if path.extension().is_none_or(|extension| extension != "rs") || file.contains("test") {
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    let code = text
        .split("#[cfg(test)]\nmod ")
        .next()
        .expect("a first part");
    if WHOLE.contains(&file.as_str()) {
        known.insert(format!("file {file}"), hash(code));
        return;
    }
    let derives = code.match_indices("#[derive(");
    for (at, _) in derives {
        let item = item(&code[at..]);
        let derived = item.split(')').next().expect("a first part");
        let derived = derived.split(|c: char| !c.is_alphanumeric());
        if !derived.into_iter().any(|name| DERIVES.contains(&name)) {
            continue;
        }
        let name = name(item, &["struct", "enum"]).expect("an item has a name");
        known.insert(format!("type {file} {name}"), hash(item));
    }
}

/// Adds the versions of packages.
fn add_packages(known: &mut BTreeMap<String, String>) {
    let lock = fs::read_to_string(root().join("Cargo.lock")).unwrap();
    for package in PACKAGES {
        let (_, rest) = lock
            .split_once(&format!("name = \"{package}\"\n"))
            .expect(package);
        let version = rest.split('"').nth(1).expect("it has a version");
        known.insert(format!("package {package}"), version.to_owned());
    }
}

#[test]
fn the_number_changes_with_the_protocol() {
    let mut known = BTreeMap::new();
    let proto = fs::read_to_string(root().join("proto/proto/volley.proto")).unwrap();
    add_messages(&proto, &mut known);
    for path in ENCODED {
        add_types(&root().join(path), &mut known);
    }
    add_packages(&mut known);
    let count = |kind: &str| known.keys().filter(|name| name.starts_with(kind)).count();
    assert!(count("message") > 60 && count("type") > 40, "{known:#?}");

    let mut lines = vec![format!("wire {WIRE}")];
    lines.extend(known.iter().map(|(name, value)| format!("{name} {value}")));
    let file = root().join(FILE);
    let written = fs::read_to_string(&file).unwrap_or_default();
    let before: Vec<_> = written.lines().collect();
    if lines == before {
        return;
    }
    let is_raised = before.first() != Some(&lines[0].as_str());
    let mut changes = String::new();
    for line in lines.iter().filter(|line| !before.contains(&line.as_str())) {
        writeln!(changes, "+ {line}").unwrap();
    }
    for line in before
        .iter()
        .filter(|line| !lines.iter().any(|now| now == *line))
    {
        writeln!(changes, "- {line}").unwrap();
    }
    match std::env::var("VOLLEY_WIRE").as_deref() {
        Ok("raised") if is_raised => fs::write(&file, lines.join("\n") + "\n").unwrap(),
        Ok("alike") => fs::write(&file, lines.join("\n") + "\n").unwrap(),
        _ => panic!(
            "the protocol between processes has changed since {FILE} was written:\n{changes}\
             If builds before and after the change misread each other, raise WIRE in proto/src/version.rs by one, and run \
             this test with VOLLEY_WIRE=raised. If both read each other's messages as they are meant, run it with \
             VOLLEY_WIRE=alike"
        ),
    }
}
