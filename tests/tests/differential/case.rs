//! Test cases: tables, settings and a question, all determined by one seed.

use std::path::Path;

use anyhow::Result;

use crate::clusters::Kind;
use crate::compare::Asked;
use crate::dice::Dice;
use crate::query::{self, Query};
use crate::settings::{self, Setting};
use crate::sides::{Rules, Script};
use crate::tables::{self, Table};
use crate::writes::{self, Write};

/// One test case.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) kind: Kind,
    pub(crate) settings: Vec<Setting>,
    pub(crate) tables: Vec<Table>,
    pub(crate) question: Question,
}

/// Question of a case.
#[derive(Debug, Clone)]
pub(crate) enum Question {
    Query(Query),
    /// Write of rows, and reading them back.
    Write(Write),
}

impl Case {
    /// Draws the case of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let kind = Kind {
            executors: dice.weighted(&[(1, 1), (4, 2), (3, 3), (1, 4)]),
            little_memory: false,
        };
        let mut settings = settings::draw(&mut dice);
        let tables = tables::draw(&mut dice);
        let large = tables.iter().any(|table| table.rows() > 1_000);
        let kind = match large && dice.chance(50) {
            true => {
                settings.extend(settings::of_little_memory());
                Kind {
                    executors: 2,
                    little_memory: true,
                }
            }
            false => kind,
        };
        let question = match dice.chance(12) {
            true => Question::Write(writes::draw(&mut dice, &tables)),
            false => Question::Query(query::draw(&mut dice, &tables)),
        };
        let mut case = Self {
            kind,
            settings,
            tables,
            question,
        };
        case.drop_unused();
        case
    }

    /// Drops tables that the question does not name.
    pub(crate) fn drop_unused(&mut self) {
        let text = self.text();
        let named = |table: &Table| text.contains(&format!(" {} ", table.name));
        self.tables.retain(named);
    }

    /// Writes the files of the tables.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        self.tables.iter().try_for_each(|table| table.write(dir))
    }

    /// Returns the script for a side; writes go to the folder `out`.
    pub(crate) fn script(&self, dir: &Path, out: &Path) -> Script {
        let tables = self.tables.iter().flat_map(|table| table.statements(dir));
        let mut statements: Vec<_> = tables.collect();
        match &self.question {
            Question::Query(query) => statements.push(query.to_string()),
            Question::Write(write) => statements.extend(write.statements(out)),
        }
        Script {
            settings: self.settings.clone(),
            statements,
            rules: Rules::Default,
        }
    }

    /// Returns the reference's script. It returns all rows that the answer may be drawn from, `INTERSECT ALL` and
    /// `EXCEPT ALL` are spelled out, tables have no declared keys, because those do not hold, and files are not
    /// split within values.
    pub(crate) fn reference(&self, dir: &Path, out: &Path) -> Script {
        let mut case = self.clone();
        for table in &mut case.tables {
            table.key = None;
        }
        let is_some = self.asked().some.is_some();
        match &mut case.question {
            Question::Query(query) => {
                *query = query::with_numbers(query);
                query.limit = query.limit.filter(|_| !is_some);
            }
            Question::Write(write) => write.query = query::with_numbers(&write.query),
        }
        let uncut = Setting::of("datafusion.catalog.newlines_in_values", true);
        case.settings.push(uncut);
        case.script(dir, out)
    }

    /// Returns the reference's script in a form that avoids known errors of DataFusion alone: `IN` is spelled out,
    /// structs are read as a whole, and optimizations based on statistics, which omit NaN, are off.
    pub(crate) fn spelled_out(&self, dir: &Path, out: &Path) -> Script {
        let mut case = self.clone();
        match &mut case.question {
            Question::Query(query) => *query = query::without_in(query),
            Question::Write(write) => write.query = query::without_in(&write.query),
        }
        for setting in settings::without_statistics() {
            case.settings.retain(|other| other.key != setting.key);
            case.settings.push(setting);
        }
        case.reference(dir, out)
    }

    /// Returns the freedom that the question leaves to answers.
    pub(crate) fn asked(&self) -> Asked {
        match &self.question {
            Question::Query(query) => Asked {
                order: query.order.iter().map(|key| key.name.clone()).collect(),
                some: query.limit.filter(|_| !query.total),
            },
            Question::Write(_) => Asked::default(),
        }
    }

    /// Returns the question in one line.
    pub(crate) fn text(&self) -> String {
        match &self.question {
            Question::Query(query) => format!("{query} "),
            Question::Write(write) => write.statements(Path::new("OUT")).join(";\n") + " ",
        }
    }

    /// Describes the case in enough detail to ask it by hand.
    pub(crate) fn describe(&self) -> String {
        let mut said = format!("-- executors: {}", self.kind.executors);
        said += if self.kind.little_memory {
            ", with little memory\n"
        } else {
            "\n"
        };
        for setting in &self.settings {
            said += &format!("{};\n", setting.statement());
        }
        for table in &self.tables {
            said += &table.describe();
        }
        said + self.text().trim_end() + ";\n"
    }
}
