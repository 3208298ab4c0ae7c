//! The common part of all reports: name and title, method, command, machine, versions and remarks, written as JSON,
//! Markdown and a chart.
//!
//! Callers own the figures: they pass their tables as Markdown and draw their chart.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Context;
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::chart::Chart;
use crate::comparison::VOLLEY;
use crate::machine::Machine;

/// Context needed to read figures and to reproduce them.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Part of the files' names, such as `training`.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Method of measurement, in a few sentences of Markdown.
    pub(crate) method: String,
    /// Command that reproduces the report.
    pub(crate) command: String,
    #[serde(serialize_with = "rfc3339")]
    pub(crate) at: DateTime<Utc>,
    pub(crate) machine: Machine,
    /// Versions of the software involved.
    pub(crate) versions: BTreeMap<String, String>,
    /// Notes on these figures for the reader, one sentence each.
    pub(crate) remarks: Vec<String>,
}

impl Report {
    pub(crate) fn new(name: &'static str, title: &'static str, method: impl Into<String>) -> Self {
        let volley = (VOLLEY.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Self {
            name,
            title,
            method: method.into(),
            command: std::env::args().skip(1).collect::<Vec<_>>().join(" "),
            at: Utc::now(),
            machine: Machine::of_this_process(),
            versions: [volley].into(),
            remarks: Vec::new(),
        }
    }

    /// Records versions that a peer has reported.
    pub(crate) fn note_versions(&mut self, answer: &serde_json::Value) {
        for (of, is) in answer.as_object().into_iter().flatten() {
            let is = is.as_str().map_or_else(|| is.to_string(), str::to_owned);
            self.versions.insert(of.clone(), is);
        }
    }

    /// Adds a remark, unless it is already there.
    pub(crate) fn remark(&mut self, remark: String) {
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }

    /// Writes `all`, which contains this report, as JSON, the figures as Markdown, and the chart, into a folder.
    pub(crate) fn write(
        &self,
        folder: &Path,
        all: &impl Serialize,
        figures: &str,
        chart: &Chart,
    ) -> anyhow::Result<()> {
        fs::create_dir_all(folder)?;
        let name = format!("{}-{}", self.name, self.at.format("%Y-%m-%d"));
        let path = |extension: &str| folder.join(format!("{name}.{extension}"));
        fs::write(path("json"), serde_json::to_string_pretty(all)? + "\n")?;
        let text = self.markdown(figures, &format!("{name}.svg"));
        fs::write(path("md"), &text)?;
        chart
            .draw(self.title, &path("svg"))
            .context("cannot draw the chart")?;
        println!("{text}\nwritten to {}", path("md").display());
        Ok(())
    }

    /// Formats the report as Markdown.
    fn markdown(&self, figures: &str, chart: &str) -> String {
        let mut text = String::new();
        let Machine {
            processor,
            cores,
            memory_gib,
            kernel,
        } = &self.machine;
        let versions: Vec<_> = self
            .versions
            .iter()
            .map(|(of, is)| format!("{of} {is}"))
            .collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "# {}, {}\n\n{}\n\n{processor}, {cores} cores, {memory_gib:.0} GiB, Linux {kernel}. {}.\n\n\
             ```console\n$ cargo run --release --bin volley-benchmarks -- {}\n```\n\n{figures}",
            self.title,
            self.at.format("%Y-%m-%d"),
            self.method,
            versions.join(", "),
            self.command,
        );
        let _ = writeln!(text, "![{}]({chart})", self.title);
        for remark in &self.remarks {
            let _ = writeln!(text, "\n{remark}");
        }
        text
    }
}

/// Writes a time as RFC 3339 has it.
pub(crate) fn rfc3339<S: serde::Serializer>(at: &DateTime<Utc>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&at.to_rfc3339())
}
