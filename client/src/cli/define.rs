//! `${name}` in scripts. The values of `--define` replace it before the text is read as SQL, everywhere, also in quotes
//! and comments; `$${` stands for `${`.

use volley_proto::did_you_mean;

use super::config::Defines;

/// Text of a script with its variables replaced.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Script {
    pub(super) text: String,
    /// Line of the script for each line of `text`; values may have several lines.
    origins: Vec<u64>,
}

/// Error about a variable that cannot be replaced.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("{line}: ${{{name}}} is not defined{hint} (--define {name}=VALUE defines it)")]
    Undefined {
        line: u64,
        name: String,
        hint: String,
    },
    #[error("{line}: expected a name and `}}` after `${{`; to write `${{` itself, write `$${{`")]
    NotAName { line: u64 },
}

impl Script {
    /// Replaces the variables of `source`.
    ///
    /// # Errors
    /// When a variable is not defined, or `${` has no name and `}` after it; the error names the line.
    pub(super) fn read(source: &str, defines: &Defines) -> Result<Self, Error> {
        let mut script = Self {
            text: String::with_capacity(source.len()),
            origins: vec![1],
        };
        let (mut line, mut rest) = (1, source);
        while let Some(dollar) = rest.find('$') {
            script.push_source(&rest[..dollar], &mut line);
            rest = &rest[dollar..];
            if let Some(after) = rest.strip_prefix("$${") {
                script.text.push_str("${");
                rest = after;
            } else if let Some(after) = rest.strip_prefix("${") {
                let end = after.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
                let (name, tail) = after.split_at(end.unwrap_or(after.len()));
                rest = tail
                    .strip_prefix('}')
                    .filter(|_| !name.is_empty())
                    .ok_or(Error::NotAName { line })?;
                script.push_value(value(name, defines, line)?, line);
            } else {
                script.text.push('$');
                rest = &rest[1..];
            }
        }
        script.push_source(rest, &mut line);
        Ok(script)
    }

    /// Returns the line of the script that a line of the text comes from; both count from 1.
    pub(super) fn origin(&self, line: u64) -> u64 {
        let index = usize::try_from(line.saturating_sub(1)).unwrap_or(usize::MAX);
        self.origins
            .get(index)
            .or(self.origins.last())
            .copied()
            .unwrap_or(line)
    }

    fn push_source(&mut self, text: &str, line: &mut u64) {
        self.text.push_str(text);
        for _ in text.matches('\n') {
            *line += 1;
            self.origins.push(*line);
        }
    }

    fn push_value(&mut self, text: &str, line: u64) {
        self.text.push_str(text);
        self.origins.extend(text.matches('\n').map(|_| line));
    }
}

fn value<'a>(name: &str, defines: &'a Defines, line: u64) -> Result<&'a str, Error> {
    defines
        .get(name)
        .map(String::as_str)
        .ok_or_else(|| Error::Undefined {
            line,
            name: name.to_owned(),
            hint: did_you_mean(name, defines.keys().map(String::as_str)),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defines(pairs: &[(&str, &str)]) -> Defines {
        pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect()
    }

    fn text(source: &str, pairs: &[(&str, &str)]) -> String {
        Script::read(source, &defines(pairs)).unwrap().text
    }

    #[test]
    fn replaces_what_is_defined_and_nothing_else() {
        assert_eq!(
            text("'${dir}/a', ${n}", &[("dir", "/d"), ("n", "3")]),
            "'/d/a', 3"
        );
        assert_eq!(text("$1 $tag$x$tag$ $", &[]), "$1 $tag$x$tag$ $");
        assert_eq!(text("${a}${a}", &[("a", "${a}")]), "${a}${a}");
    }

    #[test]
    fn two_dollars_escape() {
        assert_eq!(text("$${a} ${a}", &[("a", "1")]), "${a} 1");
        assert_eq!(text("$$ x $$", &[]), "$$ x $$");
    }

    #[test]
    fn names_the_line_and_the_nearest_variable() {
        let Err(error) = Script::read("SELECT\n ${epoch}", &defines(&[("epochs", "1")])) else {
            panic!("read")
        };
        let hint = "; did you mean \"epochs\"?".to_owned();
        assert_eq!(
            error,
            Error::Undefined {
                line: 2,
                name: "epoch".into(),
                hint
            }
        );
        for source in ["${}", "${a", "${a b}"] {
            let read = Script::read(source, &defines(&[("a", "1")]));
            assert_eq!(read, Err(Error::NotAName { line: 1 }), "{source}");
        }
    }

    #[test]
    fn lines_are_those_of_the_script() {
        let script = Script::read("a\n${v} b\nc", &defines(&[("v", "1\n2\n3")])).unwrap();
        let origins: Vec<_> = (1..=5).map(|line| script.origin(line)).collect();
        assert_eq!(origins, [1, 2, 2, 2, 3]);
        assert_eq!(script.origin(9), 3);
    }
}
