//! Asks both sides the same question and judges the answers.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::runtime::Runtime;

use crate::case::{Case, Question};
use crate::clusters::Clusters;
use crate::compare::{Asked, Rows, difference};
use crate::excused;
use crate::settings::{BATCH, PARTITIONS, Setting, without_statistics};
use crate::sides::{self, Outcome, Rules, Script, ask_reference, ask_volley};
use crate::tables::Format;
use crate::witness::Witness;

/// Result of a case.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// The same rows; their number.
    Agreed(usize),
    /// Both sides fail; the error of the reference.
    BothFail(String),
    /// The cluster has little memory, and reports that it was not enough.
    OutOfMemory,
    /// DataFusion alone disagrees with itself: with other partitions or batches it returns other rows, or fails. The
    /// question has several answers, or the fault is DataFusion's own.
    Unsettled(String),
    Fails(Failure),
}

/// Failure of an answer.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) what: What,
    /// Full text: the difference and both answers.
    pub(crate) said: String,
}

/// Kind of failure.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum What {
    /// Different rows, more or fewer of them, or in another order.
    Difference(&'static str),
    /// An error where the reference has an answer; without the parts that differ from case to case.
    Error(String),
    Hang,
    /// An answer where the reference has an error.
    OnlyHere(String),
}

/// Judge with both sides.
pub(crate) struct Judge {
    runtime: Runtime,
    clusters: Clusters,
    /// Second witness, if there is one to ask.
    witness: Option<Witness>,
}

/// Variations of DataFusion alone that must not change the answer: other numbers of partitions and of rows in a
/// batch, hash joins, sorts of all rows at once, and joins for scalar subqueries.
const OTHERWISE: [&[(&str, &str)]; 6] = [
    &[(PARTITIONS, "1"), (BATCH, "8192")],
    &[(PARTITIONS, "3"), (BATCH, "3")],
    &[
        (PARTITIONS, "5"),
        (BATCH, "1000"),
        ("datafusion.optimizer.repartition_file_min_size", "1"),
    ],
    &[("datafusion.optimizer.prefer_hash_join", "true")],
    &[("datafusion.optimizer.repartition_sorts", "false")],
    &[(
        "datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery",
        "false",
    )],
];

/// Multiple of DataFusion's own time after which an answer counts as a hang.
const PATIENCE: u32 = 10;

const SPELLED: &str = "DataFusion alone has these rows if IN is spelled out, structs are read whole and statistics are ignored";

const NOT_COMPUTED: &str = "DataFusion alone does not compute a value that is compared with a constant NULL, and so does not \
                            see that it is of several rows";

impl Judge {
    pub(crate) fn new(witness: Option<Witness>) -> Result<Self> {
        Ok(Self {
            runtime: sides::runtime()?,
            clusters: Clusters::default(),
            witness,
        })
    }

    /// Asks both sides.
    ///
    /// # Errors
    /// When the tables' files cannot be written.
    pub(crate) fn judge(&self, case: &Case, deadline: Duration) -> Result<Verdict> {
        let dir = tempfile::Builder::new()
            .prefix("volley-differential-")
            .tempdir()?;
        let dir = dir.path();
        case.write(dir)?;
        let out = |side: &str| {
            let out = dir.join(side);
            std::fs::create_dir_all(&out).map(|()| out)
        };
        let (of_reference, of_volley) = (out("reference")?, out("volley")?);
        let slots = case.kind.executors;
        let runtime = self.runtime.handle();
        let asked = Instant::now();
        let due = ask_reference(
            runtime,
            &case.reference(dir, &of_reference),
            slots,
            deadline,
        );
        // A question that is slow for DataFusion alone, or slow on a busy host, is not a hang.
        let patience = deadline.max(PATIENCE * asked.elapsed());
        let script = case.script(dir, &of_volley);
        let got = self.ask(case, &script, patience);
        let verdict = self.compare(
            &due,
            &got,
            case,
            |number| {
                let other = out(&format!("other-{number}")).ok()?;
                Some(case.reference(dir, &other))
            },
            || Some(case.spelled_out(dir, &out("spelled").ok()?)),
            deadline,
        );
        let witness = |rows: &Rows| self.witness_of(case, &case.reference(dir, dir), rows);
        Ok(match (verdict, due, &got) {
            (Verdict::Fails(failure), _, Outcome::Rows(rows)) => match witness(rows) {
                Some(None) => Verdict::Unsettled("DuckDB has Volley's rows".to_owned()),
                _ => Verdict::Fails(failure),
            },
            (Verdict::Agreed(rows), Outcome::Rows(due), _) => {
                if let Some(Some(kind)) = witness(&due) {
                    return Ok(Verdict::Unsettled(format!(
                        "both sides agree, and DuckDB has {kind}"
                    )));
                }
                let elsewhere = self.read_elsewhere(case, &of_volley, &due, deadline);
                elsewhere.map_or(Verdict::Agreed(rows), Verdict::Fails)
            }
            (verdict, ..) => verdict,
        })
    }

    /// Asks the case's cluster, and checks the cluster if that went wrong.
    pub(crate) fn ask(&self, case: &Case, script: &Script, deadline: Duration) -> Outcome {
        let cluster = self.clusters.of(case.kind);
        let got = ask_volley(self.runtime.handle(), script, &cluster, deadline);
        let lost = || {
            cluster
                .slots()
                .is_none_or(|slots| slots.executors < case.kind.executors as u64)
        };
        match &got {
            Outcome::Rows(_) => {}
            Outcome::Error(_) if !lost() => {}
            Outcome::Error(_) | Outcome::Hang => {
                self.clusters.look_after(case.kind, &Arc::clone(&cluster));
            }
        }
        got
    }

    /// Judges two answers. `otherwise` returns the reference's script writing to the folder of a number, `spelled` its
    /// script in another form.
    fn compare(
        &self,
        due: &Outcome,
        got: &Outcome,
        case: &Case,
        otherwise: impl Fn(usize) -> Option<Script>,
        spelled: impl Fn() -> Option<Script>,
        deadline: Duration,
    ) -> Verdict {
        let asked = &case.asked();
        let fails = |what| {
            Verdict::Fails(Failure {
                what,
                said: format!(
                    "DataFusion alone: {}Volley: {}",
                    describe(due),
                    describe(got)
                ),
            })
        };
        let ask = |script: &Script| {
            ask_reference(self.runtime.handle(), script, case.kind.executors, deadline)
        };
        // Answers of DataFusion alone with other settings.
        let others = || {
            OTHERWISE
                .iter()
                .enumerate()
                .filter_map(|(number, settings)| {
                    let mut script = otherwise(number)?;
                    with(&mut script, settings);
                    Some((settings, ask(&script)))
                })
        };
        // Answer of DataFusion alone to another form of the question.
        let spelled = || {
            let mut script = spelled()?;
            let answer = ask(&script);
            if !matches!(answer, Outcome::Error(_)) {
                return Some(answer);
            }
            // An ordered aggregate may fail in two steps, and not in one.
            with(&mut script, OTHERWISE[0]);
            Some(ask(&script))
        };
        // Answer of DataFusion alone when it computes everything and simplifies nothing.
        let unsimplified = || {
            let script = Script {
                rules: Rules::Unsimplified,
                ..otherwise(OTHERWISE.len())?
            };
            Some(ask(&script))
        };
        let spelled_agrees = |rows: &Rows| match spelled() {
            Some(Outcome::Rows(due)) => difference(&due, rows, asked).is_none(),
            Some(Outcome::Error(error)) => rows.rows.is_empty() && excused::writes_no_file(&error),
            Some(Outcome::Hang) | None => false,
        };
        match (due, got) {
            (Outcome::Rows(due_rows), Outcome::Rows(rows)) => {
                let Some(differs) = difference(due_rows, rows, asked) else {
                    return Verdict::Agreed(rows.rows.len());
                };
                if spelled_agrees(rows) {
                    return Verdict::Unsettled(SPELLED.to_owned());
                }
                // If any of the rows may be returned, all of them are known.
                let whole = Asked {
                    some: None,
                    ..asked.clone()
                };
                for (settings, other) in others() {
                    let same = matches!(&other, Outcome::Rows(other)
                        if difference(due_rows, other, &whole).is_none());
                    if !same {
                        let kind = differs.kind();
                        return Verdict::Unsettled(format!("{kind}, with {settings:?} also alone"));
                    }
                }
                let Verdict::Fails(mut failure) = fails(What::Difference(differs.kind())) else {
                    unreachable!("it is one");
                };
                failure.said = format!("{}: {}\n{}", differs.kind(), differs.said(), failure.said);
                Verdict::Fails(failure)
            }
            (Outcome::Hang, _) => Verdict::Unsettled("DataFusion alone takes too long".to_owned()),
            (_, Outcome::Hang) => fails(What::Hang),
            (Outcome::Error(due), Outcome::Error(_)) => Verdict::BothFail(without_details(due)),
            (Outcome::Rows(due), Outcome::Error(error)) => {
                let writes_none = |other: &Outcome| match other {
                    Outcome::Rows(due) => due.rows.is_empty(),
                    Outcome::Error(too) => excused::refused(too, || true).is_some(),
                    Outcome::Hang => false,
                };
                let no_rows = || {
                    due.rows.is_empty()
                        || others().any(|(_, other)| writes_none(&other))
                        || spelled().is_some_and(|other| writes_none(&other))
                };
                if let Some(refused) = excused::refused(error, no_rows) {
                    return Verdict::Unsettled(refused.to_owned());
                }
                if case.kind.little_memory && error.contains("Resources exhausted") {
                    return Verdict::OutOfMemory;
                }
                let text = without_details(error);
                let same = |other: &Outcome| matches!(other, Outcome::Error(other) if without_details(other) == text);
                if error.contains(excused::SEVERAL_ROWS)
                    && unsimplified().is_some_and(|other| same(&other))
                {
                    return Verdict::Unsettled(NOT_COMPUTED.to_owned());
                }
                let fails_too = others().any(|(_, other)| same(&other));
                match fails_too {
                    true => Verdict::Unsettled(format!("in other partitions also alone: {text}")),
                    false => fails(What::Error(text)),
                }
            }
            (Outcome::Error(error), Outcome::Rows(rows)) => {
                let text = without_details(error);
                let right = || {
                    others().any(|(_, other)| {
                    matches!(other, Outcome::Rows(other) if difference(&other, rows, asked).is_none())
                })
                };
                if spelled_agrees(rows) {
                    return Verdict::Unsettled(SPELLED.to_owned());
                }
                match excused::is_known(&text) || excused::is_known(error) || right() {
                    true => Verdict::Unsettled(format!("DataFusion alone fails: {text}")),
                    false => fails(What::OnlyHere(text)),
                }
            }
        }
    }

    /// Asks the second witness a query: `Some(None)` if it has these rows, otherwise the kind of difference; `None` if
    /// it has no answer.
    fn witness_of(
        &self,
        case: &Case,
        script: &Script,
        rows: &Rows,
    ) -> Option<Option<&'static str>> {
        let Question::Query(_) = case.question else {
            return None;
        };
        let told = self.witness.as_ref()?.ask(&script.statements, rows).ok()?;
        Some(difference(&told, rows, &case.asked()).map(|differs| differs.kind()))
    }

    /// Reads the files written by the cluster with DataFusion alone, and returns a failure if they differ.
    fn read_elsewhere(
        &self,
        case: &Case,
        out: &Path,
        due: &Rows,
        deadline: Duration,
    ) -> Option<Failure> {
        let Question::Write(write) = &case.question else {
            return None;
        };
        // Statistics omit NaN, which DataFusion alone does not consider.
        let script = Script {
            settings: without_statistics().collect(),
            statements: write.reading_elsewhere(out)?,
            ..Script::default()
        };
        // Without a file, the columns of Arrow files are unknown.
        if due.rows.is_empty() && write.format == Format::Arrow {
            return None;
        }
        let read = ask_reference(self.runtime.handle(), &script, 2, deadline);
        let what = match &read {
            Outcome::Rows(rows) => difference(due, rows, &Asked::default())?.kind(),
            Outcome::Error(_) | Outcome::Hang => "unreadable files",
        };
        let due = Outcome::Rows(due.clone());
        let said = format!(
            "DataFusion alone: {}of files written by Volley: {}",
            describe(&due),
            describe(&read)
        );
        Some(Failure {
            what: What::Difference(what),
            said,
        })
    }
}

fn with(script: &mut Script, settings: &[(&str, &str)]) {
    for (key, value) in settings {
        script.settings.retain(|setting| setting.key != *key);
        script.settings.push(Setting {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
        });
    }
}

/// Describes an outcome for people.
pub(crate) fn describe(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Rows(rows) => rows.describe(),
        Outcome::Error(error) => format!("error: {error}\n"),
        Outcome::Hang => "no answer in time\n".to_owned(),
    }
}

/// Removes numbers and file names, which differ from case to case, from an error's text.
pub(crate) fn without_details(error: &str) -> String {
    let mut text = String::new();
    for word in error.split_whitespace() {
        if !text.is_empty() {
            text.push(' ');
        }
        if word.contains('/') {
            text.push_str("PATH");
            continue;
        }
        let mut digits = false;
        for letter in word.chars() {
            if letter.is_ascii_digit() {
                if !digits {
                    text.push('N');
                }
                digits = true;
            } else {
                text.push(letter);
                digits = false;
            }
        }
    }
    // Lists in brackets are specific to this case.
    const LEAST: usize = 30;
    if let Some((end, _)) = text
        .match_indices(['[', '{', '"'])
        .find(|(at, _)| *at > LEAST)
    {
        text.truncate(end);
    }
    const MOST: usize = 160;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_alike_but_for_numbers_and_files() {
        let error = "task 12 of /tmp/x/1.csv: column c0 is INT32 in [k, v]";
        assert_eq!(
            without_details(error),
            "task N of PATH column cN is INTN in "
        );
    }
}
