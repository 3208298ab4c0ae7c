//! Answers of the systems to a suite's queries, over several rounds: seconds of right answers, reasons of wrong
//! ones.

use std::collections::BTreeMap;

use super::answer::Answer;
use crate::comparison::{Case, Unit};

/// Results by query, in order: the seconds and the answer, or the error.
pub(super) type Answers = Vec<Result<(f64, Answer), String>>;

/// Results of each system so far.
pub(super) struct Board {
    /// System whose answers all others are compared with.
    reference: &'static str,
    /// Seconds by system, query and round.
    seconds: BTreeMap<&'static str, BTreeMap<usize, Vec<f64>>>,
    /// First error by system and query.
    wrong: BTreeMap<&'static str, BTreeMap<usize, String>>,
}

impl Board {
    pub(super) fn new(reference: &'static str) -> Self {
        Self {
            reference,
            seconds: BTreeMap::new(),
            wrong: BTreeMap::new(),
        }
    }

    /// Enters a round's answers; records the seconds of right ones if `counts` is true.
    pub(super) fn enter(&mut self, answers: Vec<(&'static str, Answers)>, counts: bool) {
        let reference = answers.iter().find(|(system, _)| *system == self.reference);
        let reference: Vec<_> = match reference {
            Some((_, answers)) => answers
                .iter()
                .map(|answer| answer.as_ref().ok().map(|(_, answer)| answer.clone()))
                .collect(),
            None => Vec::new(),
        };
        for (system, answers) in answers {
            for (query, answer) in answers.into_iter().enumerate() {
                let right = answer.and_then(|(seconds, answer)| {
                    let expected = reference.get(query).cloned().flatten();
                    let expected = expected.ok_or("there is no answer to compare with")?;
                    answer.differs(&expected).map_or(Ok(seconds), Err)
                });
                match right {
                    Ok(seconds) if counts => {
                        let of_system = self.seconds.entry(system).or_default();
                        of_system.entry(query).or_default().push(seconds);
                    }
                    Ok(_) => {}
                    Err(reason) => {
                        eprintln!("{system}, query {}: {reason}", query + 1);
                        let of_system = self.wrong.entry(system).or_default();
                        of_system.entry(query).or_insert(reason);
                    }
                }
            }
        }
    }

    /// Returns the cases of the geometric mean and of each query, with their target ratios.
    pub(super) fn cases(
        &self,
        names: &[&str],
        of_mean: &[(f64, &str)],
        of_each: &[(f64, &str)],
    ) -> Vec<Case> {
        let case = |name: &str, bars: &[(f64, &str)]| {
            let case = Case::new(name, Unit::Seconds);
            let bars = bars.iter();
            bars.fold(case, |case, (times, system)| case.at_least(*times, system))
        };
        let mut mean = case("geometric mean", of_mean);
        let mut cases: Vec<_> = names.iter().map(|name| case(name, of_each)).collect();
        for (system, queries) in &self.seconds {
            let wrong = self.wrong.get(system);
            for (query, seconds) in queries {
                if wrong.is_some_and(|wrong| wrong.contains_key(query)) {
                    continue;
                }
                for figure in seconds {
                    cases[*query].push(system, *figure);
                }
            }
            if wrong.is_none() {
                for round in rounds(queries) {
                    mean.push(system, geometric_mean(&round));
                }
            }
        }
        cases.insert(0, mean);
        cases
    }

    pub(super) fn remarks(&self, names: &[&str]) -> Vec<String> {
        let mut remarks = Vec::new();
        for (system, queries) in &self.wrong {
            for (query, reason) in queries {
                remarks.push(format!("**{system} fails at {}**: {reason}", names[*query]));
            }
        }
        if remarks.is_empty() {
            remarks.push("All systems gave the same answers to all queries.".to_owned());
        } else {
            remarks.push("A system that fails at a query has no geometric mean.".to_owned());
        }
        remarks
    }
}

/// Returns the seconds of all queries, by round.
fn rounds(queries: &BTreeMap<usize, Vec<f64>>) -> Vec<Vec<f64>> {
    let count = queries.values().map(Vec::len).min().unwrap_or_default();
    let round = |round: usize| queries.values().map(|seconds| seconds[round]).collect();
    (0..count).map(round).collect()
}

fn geometric_mean(figures: &[f64]) -> f64 {
    let logarithms: f64 = figures.iter().map(|figure| figure.ln()).sum();
    (logarithms / figures.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::comparison::VOLLEY;

    const REFERENCE: &str = "the reference";
    const OTHER: &str = "another";

    #[test]
    fn what_fails_has_no_figure_and_is_told() {
        let answer =
            |seconds: f64, value: f64| Ok((seconds, Answer::of_rows(vec![json!({"a": value})])));
        let names = ["q01", "q02"];
        let mut board = Board::new(REFERENCE);
        for counts in [false, true] {
            let answers = vec![
                (REFERENCE, vec![answer(1.0, 1.0), answer(4.0, 2.0)]),
                (OTHER, vec![answer(2.0, 1.0), answer(8.0, 2.0)]),
                (VOLLEY, vec![answer(1.0, 1.0), answer(1.0, 3.0)]),
            ];
            board.enter(answers, counts);
        }
        let cases = board.cases(&names, &[(3.0, OTHER)], &[]);
        assert_eq!(cases[0].samples[OTHER], [4.0]);
        assert!(!cases[0].samples.contains_key(VOLLEY));
        assert_eq!(cases[1].samples[VOLLEY], [1.0]);
        assert!(!cases[2].samples.contains_key(VOLLEY));
        assert!(board.remarks(&names)[0].starts_with("**Volley fails at q02**"));
    }
}
