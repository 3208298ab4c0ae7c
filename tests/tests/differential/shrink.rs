//! Reduces a failing case as long as it fails in the same way.
//!
//! It reduces first the query, because parts that it does not name can then be dropped; then settings and tables;
//! then rows, in halves, quarters and so on (A. Zeller and R. Hildebrandt, "Simplifying and isolating
//! failure-inducing input", doi:10.1109/32.988498); then the query again.

use std::time::Instant;

use crate::case::{Case, Question};
use crate::query::smaller;
use crate::tables::{Format, Value};

/// Returns the smallest failing case found by the deadline.
pub(crate) fn shrink(case: &Case, deadline: Instant, fails: impl FnMut(&Case) -> bool) -> Case {
    let mut shrink = Shrink {
        case: case.clone(),
        deadline,
        fails,
    };
    // Questions about many rows are slow.
    shrink.rows(MANY);
    loop {
        let steps = [
            shrink.query(),
            shrink.executors(),
            shrink.settings(),
            shrink.tables(),
            shrink.rows(0),
        ];
        if !steps.contains(&true) || shrink.is_late() {
            return shrink.case;
        }
    }
}

/// Number of rows from which a table is reduced before the query.
const MANY: usize = 200;

struct Shrink<F> {
    case: Case,
    deadline: Instant,
    fails: F,
}

impl<F: FnMut(&Case) -> bool> Shrink<F> {
    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Replaces the case by a candidate if that fails too.
    fn take(&mut self, candidate: Case) -> bool {
        let fails = !self.is_late() && (self.fails)(&candidate);
        if fails {
            self.case = candidate;
        }
        fails
    }

    fn query(&mut self) -> bool {
        let mut any = false;
        let mut step = 0;
        while !self.is_late() {
            let mut candidate = self.case.clone();
            let query = match &mut candidate.question {
                Question::Query(query) => query,
                Question::Write(write) => &mut write.query,
            };
            let Some(next) = smaller(query, step) else {
                break;
            };
            *query = next;
            candidate.drop_unused();
            match self.take(candidate) {
                true => any = true,
                false => step += 1,
            }
        }
        if let Question::Write(write) = &self.case.question
            && !write.options.is_empty()
        {
            let mut candidate = self.case.clone();
            if let Question::Write(write) = &mut candidate.question {
                write.options.clear();
            }
            any |= self.take(candidate);
        }
        if let Question::Write(write) = &self.case.question
            && write.by.is_some()
        {
            let mut candidate = self.case.clone();
            if let Question::Write(write) = &mut candidate.question {
                write.by = None;
            }
            any |= self.take(candidate);
        }
        any
    }

    fn executors(&mut self) -> bool {
        let now = self.case.kind.executors;
        let few = (1..now).any(|executors| {
            let mut candidate = self.case.clone();
            candidate.kind.executors = executors;
            self.take(candidate)
        });
        let mut candidate = self.case.clone();
        candidate.kind.little_memory = false;
        few | (self.case.kind.little_memory && self.take(candidate))
    }

    fn settings(&mut self) -> bool {
        let mut any = false;
        for at in (0..self.case.settings.len()).rev() {
            let mut candidate = self.case.clone();
            candidate.settings.remove(at);
            any |= self.take(candidate);
        }
        any
    }

    /// Simplifies files: one kind of file, fewer files, no declared order, fewer columns.
    fn tables(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.case.tables.len() {
            let table = &self.case.tables[at];
            let nested = table
                .columns
                .iter()
                .any(|column| column.data_type.is_nested());
            if !table.order.is_empty() {
                let mut candidate = self.case.clone();
                candidate.tables[at].order.clear();
                any |= self.take(candidate);
            }
            if self.case.tables[at].by_folder {
                let mut candidate = self.case.clone();
                candidate.tables[at].by_folder = false;
                any |= self.take(candidate);
            }
            if self.case.tables[at].key.is_some() {
                let mut candidate = self.case.clone();
                candidate.tables[at].key = None;
                any |= self.take(candidate);
            }
            let table = &self.case.tables[at];
            if (table.in_memory || table.format != Format::Csv) && !nested {
                let mut candidate = self.case.clone();
                candidate.tables[at].in_memory = false;
                candidate.tables[at].format = Format::Csv;
                candidate.tables[at].inferred = false;
                any |= self.take(candidate);
            }
            while self.case.tables[at].files.len() > 1 {
                let mut candidate = self.case.clone();
                let files = &mut candidate.tables[at].files;
                let last = files.pop().expect("there are two");
                files[0].extend(last);
                candidate.tables[at].sort();
                if !self.take(candidate) {
                    break;
                }
                any = true;
            }
            for column in (1..self.case.tables[at].columns.len()).rev() {
                if self.case.tables[at].columns[column].stored.is_some() {
                    let mut candidate = self.case.clone();
                    candidate.tables[at].columns[column].stored = None;
                    any |= self.take(candidate);
                }
                any |= self.column(at, column);
            }
        }
        any
    }

    fn column(&mut self, table: usize, column: usize) -> bool {
        let mut candidate = self.case.clone();
        let table = &mut candidate.tables[table];
        let is_folder = table.by_folder && column + 1 == table.columns.len();
        if is_folder
            || table.columns.len() <= 2
            || table.order.iter().any(|key| key.column >= column)
        {
            return false;
        }
        table.columns.remove(column);
        for row in table.files.iter_mut().flatten() {
            row.remove(column);
        }
        self.take(candidate)
    }

    /// Removes rows from tables that have more than `few`.
    fn rows(&mut self, few: usize) -> bool {
        let mut any = false;
        for at in 0..self.case.tables.len() {
            let mut part = self.case.tables[at].rows().div_ceil(2);
            while part > few / 4 && !self.is_late() {
                let mut start = 0;
                while start < self.case.tables[at].rows() && !self.is_late() {
                    let mut candidate = self.case.clone();
                    without(&mut candidate.tables[at].files, start, part);
                    match self.take(candidate) {
                        true => any = true,
                        false => start += part,
                    }
                }
                part /= 2;
            }
        }
        any
    }
}

/// Removes `count` rows from `start`, counted through all files.
fn without(files: &mut [Vec<Vec<Value>>], start: usize, count: usize) {
    let mut at = 0;
    for rows in files {
        rows.retain(|_| {
            at += 1;
            !(start < at && at <= start + count)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Counts the rows that have this value in some cell.
    fn with_value(case: &Case, sought: &Value) -> usize {
        let rows = case
            .tables
            .iter()
            .flat_map(|table| table.files.iter().flatten());
        rows.filter(|row| row.contains(sought)).count()
    }

    #[test]
    fn what_does_not_matter_goes() {
        // The case fails while two tables are joined and one row has an id of 3.
        let fails =
            |case: &Case| case.text().contains(" JOIN ") && with_value(case, &Value::Int(3)) > 0;
        let mut tried = 0;
        for seed in 0..400 {
            let case = Case::draw(seed);
            if !matches!(case.question, Question::Query(_)) || !fails(&case) {
                continue;
            }
            tried += 1;
            let deadline = Instant::now() + Duration::from_secs(20);
            let small = shrink(&case, deadline, fails);
            assert!(fails(&small), "seed {seed}");
            assert!(small.settings.is_empty() && small.kind.executors == 1);
            assert_eq!(
                small.text().matches(" JOIN ").count(),
                1,
                "seed {seed}: {}",
                small.text()
            );
            let rows: usize = small.tables.iter().map(crate::tables::Table::rows).sum();
            assert_eq!(rows, 1, "seed {seed}");
            if tried == 5 {
                return;
            }
        }
        panic!("no seed gave such a case");
    }

    #[test]
    fn a_deadline_ends_it() {
        let case = Case::draw(1);
        let same = shrink(&case, Instant::now(), |_| true);
        assert_eq!(same.describe(), case.describe());
    }

    #[test]
    fn rows_are_counted_through_all_files() {
        let row = |number| vec![Value::Int(number)];
        let mut files = vec![vec![row(0), row(1)], Vec::new(), vec![row(2), row(3)]];
        without(&mut files, 1, 2);
        assert_eq!(files, [vec![row(0)], Vec::new(), vec![row(3)]]);
    }
}
