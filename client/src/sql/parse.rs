//! Parser from a script to its statements.
//!
//! The script is split at its `;` tokens, so that every statement keeps its text. Volley's own statements are
//! recognized by their first words; all others are DataFusion's.

use datafusion::config::SqlParserOptions;
use datafusion::error::DataFusionError;
use datafusion::sql::parser::{DFParser, DFParserBuilder, Statement as DfStatement};
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::{Ident, ObjectName, ObjectNamePart, SetExpr};
use datafusion::sql::sqlparser::dialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer};
use volley_proto::{ModelName, PreparedId, TrainId};

use super::advice;
use super::excerpt::Excerpt;
use super::nesting;
use super::spell::{is_word, spell_out};
use super::statement::{CreateModel, Kind, Statement};
use super::{Clause, OptionValue, TrainOptions, train_options};
use crate::{Error, Result};

/// Settings a session parses SQL with.
#[derive(Debug)]
pub(crate) struct Dialect {
    /// SQL dialect of the grammar.
    pub(crate) grammar: Box<dyn dialect::Dialect>,
    /// Normalization of names, and the nesting limit of statements.
    pub(crate) options: SqlParserOptions,
}

/// Parses a script into its statements.
pub(crate) fn parse(script: &str, dialect: &Dialect) -> Result<Vec<Statement>> {
    let mut statements = Vec::new();
    for (excerpt, tokens, end) in cut(script, dialect)? {
        let parser = StatementParser::new(tokens.clone(), end, dialect)?;
        let kind = parser.statement();
        let mut kind = kind.map_err(|error| advice::advised(error, &tokens))?;
        nesting::bound(&mut kind)?;
        let Excerpt { text, line, column } = excerpt;
        statements.push(Statement {
            text,
            line,
            column,
            kind,
            read_as: dialect.options.clone(),
        });
    }
    Ok(statements)
}

/// Returns the first statement of a script that cannot be parsed.
pub(crate) fn first_refused(script: &str, dialect: &Dialect) -> Option<Excerpt> {
    let mut statements = cut(script, dialect).ok()?.into_iter();
    let refused = statements.find(|(_, tokens, end)| {
        let parser = StatementParser::new(tokens.clone(), *end, dialect);
        let kind = parser.and_then(StatementParser::statement);
        kind.and_then(|mut kind| nesting::bound(&mut kind)).is_err()
    });
    refused.map(|(excerpt, ..)| excerpt)
}

/// Cuts a script at its `;` tokens. Returns each statement's text, tokens and end.
fn cut(script: &str, dialect: &Dialect) -> Result<Vec<(Excerpt, Vec<TokenWithSpan>, Location)>> {
    let lines = Lines::of(script);
    let tokens = Tokenizer::new(dialect.grammar.as_ref(), script)
        .tokenize_with_location()
        .map_err(|e| syntax(e.location, e.message))?;
    let is_blank = |token: &TokenWithSpan| matches!(token.token, Token::Whitespace(_));
    let mut statements = Vec::new();
    for tokens in tokens.split(|token| token.token == Token::SemiColon) {
        let Some(first) = tokens.iter().position(|token| !is_blank(token)) else {
            continue;
        };
        let last = tokens
            .iter()
            .rposition(|token| !is_blank(token))
            .unwrap_or(first);
        let tokens = &tokens[first..=last];
        let (start, end) = (tokens[0].span.start, tokens[last - first].span.end);
        let text = script[lines.offset(start)..lines.offset(end)].to_owned();
        let excerpt = Excerpt {
            text,
            line: start.line,
            column: start.column,
        };
        statements.push((excerpt, tokens.to_vec(), end));
    }
    Ok(statements)
}

/// Parses the list in `TRANSFORM (…)`.
pub(crate) fn parse_transform(list: &str, dialect: &Dialect) -> Result<Clause> {
    let tokens = Tokenizer::new(dialect.grammar.as_ref(), list)
        .tokenize_with_location()
        .map_err(|e| syntax(e.location, e.message))?;
    let end = tokens.last().map_or_else(Location::empty, |t| t.span.end);
    let mut parser = StatementParser::new(tokens, end, dialect)?;
    let mut clause = parser.select_list()?;
    if !parser.ends(0) {
        return Err(parser.unexpected("',' or the end of the expressions"));
    }
    nesting::bound_transform(&mut clause)?;
    Ok(clause)
}

/// Parser of one statement's tokens.
struct StatementParser<'a> {
    inner: DFParser<'a>,
    end: Location,
    names: IdentNormalizer,
    recursion_limit: usize,
}

impl<'a> StatementParser<'a> {
    fn new(tokens: Vec<TokenWithSpan>, end: Location, dialect: &'a Dialect) -> Result<Self> {
        let inner = DFParserBuilder::new(spell_out(tokens))
            .with_dialect(dialect.grammar.as_ref())
            .with_recursion_limit(dialect.options.recursion_limit.get())
            .build()?;
        let names = IdentNormalizer::new(dialect.options.enable_ident_normalization);
        Ok(Self {
            inner,
            end,
            names,
            recursion_limit: dialect.options.recursion_limit.get(),
        })
    }

    fn statement(mut self) -> Result<Kind> {
        let verbose = self.at(1, "verbose");
        let explained = 1 + usize::from(verbose);
        let kind = if self.at(0, "explain") && self.creates_model(explained) {
            self.skip(explained);
            Kind::ExplainCreateModel {
                create: Box::new(self.create_model()?),
                verbose,
            }
        } else if self.creates_model(0) {
            Kind::CreateModel(Box::new(self.create_model()?))
        } else if self.at(0, "show") && self.at(1, "tables") && self.ends(2) {
            self.skip(2);
            Kind::Sql(Box::new(user_tables()?))
        } else if self.at(0, "show") && self.at(1, "models") {
            self.skip(2);
            Kind::ShowModels
        } else if self.at(0, "show") && self.at(1, "model") {
            let start = self.inner.parser.peek_token().span.start;
            let message = match self.ends(2) {
                true => "SHOW MODEL: did you mean SHOW MODELS?",
                false => {
                    "SHOW MODEL: DESCRIBE MODEL name describes a model, and SHOW MODELS lists all"
                }
            };
            return Err(syntax(start, message.to_owned()));
        } else if (self.at(0, "describe") || self.at(0, "desc"))
            && self.at(1, "model")
            && !self.ends(2)
        {
            self.skip(2);
            Kind::DescribeModel {
                name: self.model_name()?,
                version: self.version()?,
            }
        } else if self.at(0, "drop") && self.at(1, "model") {
            self.skip(2);
            let if_exists = self
                .inner
                .parser
                .parse_keywords(&[Keyword::IF, Keyword::EXISTS]);
            Kind::DropModel {
                name: self.model_name()?,
                version: self.version()?,
                if_exists,
            }
        } else if self.at(0, "drop") && self.at(1, "prepared") {
            self.skip(2);
            Kind::DropPrepared {
                id: self.prepared()?,
            }
        } else if self.at(0, "export") && self.at(1, "model") {
            return Err(Error::not_supported(format!(
                "EXPORT MODEL: {}",
                super::call::FILES
            )));
        } else {
            let statement = self.inner.parse_statement();
            Kind::Sql(Box::new(statement.map_err(|e| self.df_error(e))?))
        };
        if self.ends(0) {
            Ok(kind)
        } else {
            Err(self.unexpected("the end of the statement or ';'"))
        }
    }

    /// Parses `ALL`, or the id of prepared rows as text.
    fn prepared(&mut self) -> Result<Option<PreparedId>> {
        let expected = "ALL, or the id of prepared rows in single quotes, from volley.prepared";
        if self.at(0, "all") {
            self.skip(1);
            return Ok(None);
        }
        let Token::SingleQuotedString(text) = &self.inner.parser.peek_token().token else {
            return Err(self.unexpected(expected));
        };
        let Ok(id) = text.parse() else {
            return Err(self.unexpected(expected));
        };
        self.skip(1);
        Ok(Some(id))
    }

    /// Parses `VERSION n`, if it is there.
    fn version(&mut self) -> Result<Option<u32>> {
        if !self.at(0, "version") {
            return Ok(None);
        }
        self.skip(1);
        let expected = "the number of a version";
        let at = self.inner.parser.peek_token();
        let Token::Number(text, _) = &at.token else {
            return Err(self.unexpected(expected));
        };
        let Some(version) = text.parse().ok().filter(|version| *version > 0) else {
            return Err(self.unexpected(expected));
        };
        self.skip(1);
        Ok(Some(version))
    }

    fn create_model(&mut self) -> Result<CreateModel> {
        self.skip(1);
        let or_replace = self
            .inner
            .parser
            .parse_keywords(&[Keyword::OR, Keyword::REPLACE]);
        self.skip(1);
        let if_not_exists =
            self.inner
                .parser
                .parse_keywords(&[Keyword::IF, Keyword::NOT, Keyword::EXISTS]);
        if or_replace && if_not_exists {
            let message = "OR REPLACE and IF NOT EXISTS exclude each other".to_owned();
            return Err(syntax(self.inner.parser.peek_token().span.start, message));
        }
        let name = self.model_name()?;
        let mut transform = self.transform()?;
        let options = self.options()?;
        if transform.is_none() {
            transform = self.transform()?;
        }
        if !self.inner.parser.parse_keyword(Keyword::AS) {
            return Err(self.unexpected("TRANSFORM (…), OPTIONS (…) or AS SELECT …"));
        }
        let start = self.inner.parser.peek_token().span.start;
        let query = self.inner.parser.parse_query().map_err(|e| self.error(e))?;
        if let SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) =
            &*query.body
        {
            return Err(syntax(
                start,
                "expected a query: it is trained on its rows".to_owned(),
            ));
        }
        let train_id = TrainId::generate();
        Ok(CreateModel {
            train_id,
            name,
            or_replace,
            if_not_exists,
            transform,
            options,
            query,
        })
    }

    fn transform(&mut self) -> Result<Option<Clause>> {
        if !self.at(0, "transform") {
            return Ok(None);
        }
        self.skip(1);
        self.expect(&Token::LParen, "'(' after TRANSFORM")?;
        let clause = self.select_list()?;
        self.expect(
            &Token::RParen,
            "',' or ')' after an expression of TRANSFORM",
        )?;
        Ok(Some(clause))
    }

    fn select_list(&mut self) -> Result<Clause> {
        let items = self
            .inner
            .parser
            .parse_comma_separated(Parser::parse_select_item);
        let items = items.map_err(|e| self.error(e))?;
        Ok(Clause { items })
    }

    fn options(&mut self) -> Result<TrainOptions> {
        let mut options = TrainOptions::default();
        if !self.at(0, "options") {
            return Ok(options);
        }
        self.skip(1);
        self.expect(&Token::LParen, "'(' after OPTIONS")?;
        let mut seen = Vec::new();
        while !self.inner.parser.consume_token(&Token::RParen) {
            if !seen.is_empty() {
                self.expect(&Token::Comma, "',' or ')' after an option")?;
            }
            let key = self
                .inner
                .parser
                .parse_identifier()
                .map_err(|e| self.error(e))?
                .value;
            self.expect(&Token::Eq, "'=' after the option's name")?;
            let value = self.inner.parser.peek_token();
            let expr = self.inner.parser.parse_expr().map_err(|e| self.error(e))?;
            let Some(value) = OptionValue::of(&expr) else {
                return Err(syntax(
                    value.span.start,
                    format!("option {key}: expected a literal: {}", literal_of(&key)),
                ));
            };
            if seen.contains(&key.to_lowercase()) {
                return Err(Error::RepeatedOption { option: key });
            }
            options.set(&key, &value)?;
            seen.push(key.to_lowercase());
        }
        Ok(options)
    }

    fn model_name(&mut self) -> Result<ModelName> {
        let name = self
            .inner
            .parser
            .parse_object_name(false)
            .map_err(|e| self.error(e))?;
        model_name(&name, &self.names)
    }

    fn expect(&mut self, token: &Token, expected: &str) -> Result<()> {
        if self.inner.parser.consume_token(token) {
            Ok(())
        } else {
            Err(self.unexpected(expected))
        }
    }

    /// Checks whether a `CREATE MODEL` starts at the `n`th token.
    fn creates_model(&self, n: usize) -> bool {
        let replaces = self.at(n + 1, "or") && self.at(n + 2, "replace");
        self.at(n, "create") && self.at(if replaces { n + 3 } else { n + 1 }, "model")
    }

    fn at(&self, n: usize, word: &str) -> bool {
        is_word(&self.inner.parser.peek_nth_token(n).token, word)
    }

    fn ends(&self, n: usize) -> bool {
        self.inner.parser.peek_nth_token(n).token == Token::EOF
    }

    fn skip(&mut self, words: usize) {
        for _ in 0..words {
            self.inner.parser.advance_token();
        }
    }

    fn unexpected(&self, expected: &str) -> Error {
        let found = self.inner.parser.peek_token();
        let location = if found.token == Token::EOF {
            self.end
        } else {
            found.span.start
        };
        syntax(location, format!("expected {expected}, found {found}"))
    }

    fn df_error(&self, error: DataFusionError) -> Error {
        match error {
            DataFusionError::SQL(error, _) => self.error(*error),
            DataFusionError::Diagnostic(_, error) => self.df_error(*error),
            other => other.into(),
        }
    }

    fn error(&self, error: ParserError) -> Error {
        match error {
            ParserError::TokenizerError(text) | ParserError::ParserError(text) => {
                let (message, location) = located(&text);
                syntax(location.unwrap_or(self.end), message.to_owned())
            }
            ParserError::RecursionLimitExceeded => syntax(
                self.inner.parser.peek_token().span.start,
                format!(
                    "nested more than {} levels deep (datafusion.sql_parser.recursion_limit)",
                    self.recursion_limit
                ),
            ),
        }
    }
}

/// Returns how the value of an option is typed.
fn literal_of(option: &str) -> String {
    let mut known = train_options();
    match known.find(|known| known.name.eq_ignore_ascii_case(option)) {
        Some(known) => format!("{}; for example {}", known.values, known.example),
        None => "'text', 1, true or [1, 2]".to_owned(),
    }
}

/// Returns the query of SHOW TABLES: the user's tables, without system tables.
fn user_tables() -> Result<DfStatement> {
    let sql = "SELECT * FROM information_schema.tables \
               WHERE table_schema NOT IN ('information_schema', 'volley') ORDER BY 1, 2, 3";
    let mut statements = DFParser::parse_sql(sql)?;
    Ok(statements.pop_front().expect("the text is a statement"))
}

/// Reads a model's name: one part, lower-cased unless quoted.
pub(super) fn model_name(name: &ObjectName, names: &IdentNormalizer) -> Result<ModelName> {
    match name.0.as_slice() {
        [ObjectNamePart::Identifier(ident)] => ident_name(ident.clone(), names),
        _ => {
            let what =
                format!("{name} as a model: its name has one part, the store has no schemas");
            Err(Error::NotSupported { what })
        }
    }
}

/// Reads a model's name from one identifier.
pub(super) fn ident_name(ident: Ident, names: &IdentNormalizer) -> Result<ModelName> {
    Ok(names.normalize(ident).parse()?)
}

fn syntax(Location { line, column }: Location, message: String) -> Error {
    Error::Syntax {
        line,
        column,
        message,
    }
}

/// Splits a parser's message from the location at its end.
fn located(text: &str) -> (&str, Option<Location>) {
    let place = || {
        let (message, place) = text.rsplit_once(" at Line: ")?;
        let (line, column) = place.split_once(", Column: ")?;
        Some((
            message,
            Location {
                line: line.parse().ok()?,
                column: column.parse().ok()?,
            },
        ))
    };
    place().map_or((text, None), |(message, location)| {
        (message, Some(location))
    })
}

/// Start offsets of a script's lines.
struct Lines<'a> {
    script: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(script: &'a str) -> Self {
        let breaks = script.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            script,
            starts: [0].into_iter().chain(breaks).collect(),
        }
    }

    /// Returns the byte offset of a line and a character column, both from 1.
    fn offset(&self, Location { line, column }: Location) -> usize {
        let index = usize::try_from(line)
            .unwrap_or(usize::MAX)
            .saturating_sub(1);
        let Some(start) = self.starts.get(index) else {
            return self.script.len();
        };
        let before = usize::try_from(column)
            .unwrap_or(usize::MAX)
            .saturating_sub(1);
        let rest = &self.script[*start..];
        start
            + rest
                .char_indices()
                .nth(before)
                .map_or(rest.len(), |(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(script: &str) -> Result<Vec<Statement>> {
        let grammar = Box::new(dialect::GenericDialect {});
        super::parse(
            script,
            &Dialect {
                grammar,
                options: SqlParserOptions::default(),
            },
        )
    }

    fn one(sql: &str) -> Kind {
        let mut statements = parse(sql).unwrap_or_else(|e| panic!("{sql}: {e}"));
        assert_eq!(statements.len(), 1, "{sql}");
        statements.remove(0).kind
    }

    #[test]
    fn cuts_a_script_and_keeps_texts() {
        let script =
            "-- a; comment\nSELECT ';' AS \"ä;\" ;;\n /* b */ SHOW MODELS\n;\nDROP MODEL m -- c";
        let statements = parse(script).unwrap();
        let texts: Vec<_> = statements.iter().map(|s| (s.text(), s.line())).collect();
        assert_eq!(
            texts,
            [
                ("SELECT ';' AS \"ä;\"", 2),
                ("SHOW MODELS", 3),
                ("DROP MODEL m", 5)
            ]
        );
        assert!(parse(" ; -- nothing").unwrap().is_empty());
    }

    #[test]
    fn reads_create_model() {
        let Kind::CreateModel(create) = one(
            "create or replace model Sales options (MODEL_TYPE = 'dnn_regressor', \
             hidden_units = [1000, 500], l2_reg = 5e-5, ranks = 'all', batch_norm = true, \
             input_label_cols = ['Sales']) as select * from t where x > 1",
        ) else {
            panic!()
        };
        assert_eq!(create.name.as_str(), "sales");
        assert!(create.or_replace && !create.if_not_exists);
        assert_eq!(create.options.network.hidden_units, Some(vec![1000, 500]));
        assert_eq!(create.options.labels, ["Sales"]);
        assert_eq!(create.query.to_string(), "SELECT * FROM t WHERE x > 1");

        let Kind::CreateModel(create) = one(
            "CREATE MODEL IF NOT EXISTS \"Sales-2\" OPTIONS () AS WITH t AS (SELECT 1) SELECT * FROM t",
        ) else {
            panic!()
        };
        assert_eq!(create.name.as_str(), "Sales-2");
        assert!(create.if_not_exists);
        for sql in [
            "CREATE MODEL m TRANSFORM (ML.STANDARD_SCALER(x) OVER () AS x, * EXCEPT (x, y)) OPTIONS () AS SELECT 1",
            "CREATE MODEL m OPTIONS () TRANSFORM (ml.bucketize(x, [1, 5]) AS b, a || b AS ab) AS SELECT 1",
        ] {
            let Kind::CreateModel(create) = one(sql) else {
                panic!()
            };
            assert_eq!(create.transform.unwrap().items.len(), 2, "{sql}");
        }
        assert!(matches!(
            one("CREATE MODEL m AS SELECT 1"),
            Kind::CreateModel(_)
        ));
        assert!(matches!(
            one("EXPLAIN CREATE MODEL m AS SELECT 1"),
            Kind::ExplainCreateModel { verbose: false, .. }
        ));
        assert!(matches!(
            one("EXPLAIN VERBOSE CREATE OR REPLACE MODEL m AS SELECT 1"),
            Kind::ExplainCreateModel { verbose: true, .. }
        ));
    }

    #[test]
    fn runs_are_told_apart() {
        let statements = parse("CREATE MODEL m AS SELECT 1; CREATE MODEL n AS SELECT 1").unwrap();
        assert!(statements[0].train_id().is_some());
        assert_ne!(statements[0].train_id(), statements[1].train_id());
    }

    #[test]
    fn reads_the_small_statements() {
        assert!(matches!(one("show models"), Kind::ShowModels));
        assert!(
            matches!(one("DESC MODEL m"), Kind::DescribeModel { name, version: None } if name.as_str() == "m")
        );
        assert!(matches!(
            one("DESCRIBE MODEL m VERSION 2"),
            Kind::DescribeModel {
                version: Some(2),
                ..
            }
        ));
        assert!(matches!(
            one("drop model if exists \"M\""),
            Kind::DropModel { name, version: None, if_exists: true } if name.as_str() == "M"
        ));
        assert!(matches!(
            one("DROP MODEL version VERSION 3"),
            Kind::DropModel { name, version: Some(3), if_exists: false } if name.as_str() == "version"
        ));
    }

    #[test]
    fn leaves_everything_else_to_datafusion() {
        for sql in [
            "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION 'x.csv' OPTIONS ('format.has_header' 'true')",
            "COPY (SELECT * FROM ML.PREDICT(MODEL m, TABLE t)) TO 'out.csv' STORED AS CSV",
            "SET ballista.shuffle.partitions = 4",
            "EXPLAIN ANALYZE SELECT 1",
            "CREATE VIEW v AS SELECT a FROM ml.predict(MODEL m, (SELECT 1)) AS p WHERE a > 1",
            "SHOW TABLES",
            "DESCRIBE model",
            "DESCRIBE t",
            "SELECT model FROM models",
            "WITH t AS (SELECT 1 AS a) SELECT * FROM ML.EVALUATE(MODEL \"M\", TABLE t, version => 2)",
        ] {
            assert!(matches!(one(sql), Kind::Sql(_)), "{sql}");
        }
    }

    #[test]
    fn errors_say_where() {
        for (script, place) in [
            ("SELECT 1;\nSELEC 2", (2, 1)),
            ("SELECT 'open", (1, 8)),
            ("SHOW MODELS please", (1, 13)),
            ("DROP MODEL", (1, 11)),
            ("DROP MODEL m VERSION", (1, 21)),
            ("DROP PREPARED", (1, 14)),
            ("DROP PREPARED 7", (1, 15)),
            ("DROP PREPARED 'seven'", (1, 15)),
            ("DROP PREPARED ALL m", (1, 19)),
            ("DROP MODEL m VERSION 0", (1, 22)),
            ("DROP MODEL m VERSION x", (1, 22)),
            ("DESCRIBE MODEL m n", (1, 18)),
            ("CREATE MODEL m OPTIONS (epochs 3) AS SELECT 1", (1, 32)),
            (
                "CREATE MODEL m OPTIONS (epochs = 1 + 1) AS SELECT 1",
                (1, 34),
            ),
            (
                "CREATE MODEL m OPTIONS (epochs = 1 seed = 2) AS SELECT 1",
                (1, 36),
            ),
            ("CREATE MODEL m\n  OPTIONS (epochs = 1) SELECT 1", (2, 24)),
            ("CREATE MODEL m OPTIONS (epochs = 1", (1, 35)),
            ("CREATE MODEL m AS SELECT 1 FROM", (1, 32)),
            (
                "CREATE OR REPLACE MODEL IF NOT EXISTS m AS SELECT 1",
                (1, 39),
            ),
            ("CREATE MODEL m AS DELETE FROM t", (1, 19)),
            ("CREATE MODEL m TRANSFORM a AS SELECT 1", (1, 26)),
            ("CREATE MODEL m TRANSFORM (a b c) AS SELECT 1", (1, 31)),
            (
                "CREATE MODEL m TRANSFORM (a) TRANSFORM (a) AS SELECT 1",
                (1, 30),
            ),
            ("CREATE MODEL m TRANSFORM () AS SELECT 1", (1, 27)),
        ] {
            match parse(script) {
                Err(Error::Syntax { line, column, .. }) => {
                    assert_eq!((line, column), place, "{script}");
                }
                other => panic!("{script}: {other:?}"),
            }
        }
    }

    #[test]
    fn errors_say_what_may_have_been_meant() {
        for (script, due) in [
            ("SELCT 1", Some("did you mean SELECT?")),
            ("SELECT 1; shwo tables", Some("did you mean SHOW?")),
            (
                "SELECT a FORM t",
                Some("FORM was read as an alias: did you mean FROM?"),
            ),
            (
                "SELECT a form 'x.csv'",
                Some("form was read as an alias: did you mean FROM?"),
            ),
            (
                "SELECT a FROM t WHRE a = 1",
                Some("WHRE was read as an alias: did you mean WHERE?"),
            ),
            ("SELECT * FORM t", Some("did you mean FROM?")),
            ("SHOW MODEL", Some("did you mean SHOW MODELS?")),
            ("SHOW MODEL m", Some("DESCRIBE MODEL name")),
            ("\\d train", Some("work at the prompt only: DESCRIBE train")),
            ("\\dt", Some("SHOW TABLES")),
            (".tables", Some("SHOW TABLES")),
            (
                "COPY t FROM 'x.csv'",
                Some("INSERT INTO t SELECT * FROM 'x.csv'"),
            ),
            ("qqqq 1", None),
            ("SELECT a b c", None),
            ("SELECT 1 FROM", None),
        ] {
            match parse(script) {
                Err(Error::Syntax { message, .. }) => match due {
                    Some(due) => assert!(message.contains(due), "{script}: {message}"),
                    None => assert!(!message.contains("did you mean"), "{script}: {message}"),
                },
                other => panic!("{script}: {other:?}"),
            }
        }
    }

    #[test]
    fn finds_the_statement_that_is_refused() {
        let grammar = Box::new(dialect::GenericDialect {});
        let options = SqlParserOptions::default();
        let dialect = Dialect { grammar, options };
        let refused = |script| super::first_refused(script, &dialect);
        let script = "SELECT 1;\n  CREATE MODEL m OPTIONS (epocs = 1) AS SELECT 1; SELECT 2";
        let found = refused(script).unwrap();
        assert_eq!((found.line(), found.column()), (2, 3));
        assert!(found.text().starts_with("CREATE MODEL") && found.text().ends_with("SELECT 1"));
        assert_eq!(refused("SELECT 1; SELECT 2"), None);
    }

    #[test]
    fn values_that_are_no_literals_have_an_example() {
        let typed = "CREATE MODEL m OPTIONS (class_weights = [STRUCT('yes', 2.0)]) AS SELECT 1";
        let Err(Error::Syntax { message, .. }) = parse(typed) else {
            panic!("parsed")
        };
        assert!(message.contains("[['yes', 5], ['no', 1]]"), "{message}");
    }

    #[test]
    fn refuses_what_it_does_not_do() {
        for script in [
            "CREATE MODEL a.b AS SELECT 1",
            "EXPORT MODEL m OPTIONS (uri = 's3://bucket/m')",
            &format!(
                "CREATE MODEL m TRANSFORM ({}a AS b) AS SELECT 1",
                "a + ".repeat(1_000)
            ),
        ] {
            assert!(
                matches!(parse(script), Err(Error::NotSupported { .. })),
                "{script}"
            );
        }
        let twice = "CREATE MODEL m OPTIONS (epochs = 1, EPOCHS = 2) AS SELECT 1";
        assert!(matches!(parse(twice), Err(Error::RepeatedOption { .. })));
        let unnameable = parse("DROP MODEL \"a/b\"");
        assert!(matches!(
            unnameable,
            Err(Error::Proto(volley_proto::Error::ModelName { .. }))
        ));
        let deep = format!("SELECT {}1{}", "(".repeat(99), ")".repeat(99));
        assert!(matches!(parse(&deep), Err(Error::Syntax { .. })));
    }
}
