//! Roles of token holders.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Role of a principal. Each of the first three has the permissions of the previous one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reading queries and system tables.
    Read,
    /// In addition, statements that write, and training.
    Run,
    /// In addition, everybody's jobs.
    Administer,
    /// Joining the cluster as an executor, and nothing else.
    Executor,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Read, Self::Run, Self::Administer, Self::Executor];

    /// Checks whether this role has the permissions of the role `needed`.
    pub fn may(self, needed: Self) -> bool {
        let rank = |role| match role {
            Self::Read => 0,
            Self::Run => 1,
            Self::Administer => 2,
            Self::Executor => 3,
        };
        match (self, needed) {
            (Self::Executor, _) | (_, Self::Executor) => self == needed,
            _ => rank(self) >= rank(needed),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Read => "read",
            Self::Run => "run",
            Self::Administer => "administer",
            Self::Executor => "executor",
        })
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::ALL.into_iter();
        all.find(|role| role.to_string() == text).ok_or_else(|| {
            format!("{text:?} is not a role: expected read, run, administer or executor")
        })
    }
}

/// Authenticated principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// Name, which identifies the owner of a job.
    pub name: String,
    /// Role that sets the permissions.
    pub role: Role,
}

impl Principal {
    /// Names of the scheduler's own principals, which neither a file of tokens nor an issuer may use.
    pub const RESERVED: [&str; 3] = ["anybody", "local", "local-executors"];

    /// Checks a name for a file of tokens.
    ///
    /// # Errors
    /// The reason, for a name that such a file cannot have.
    pub fn check_name(name: &str) -> Result<(), String> {
        /// Length of the longest name.
        const LONGEST: usize = 64;
        let is_part = |c: char| c.is_ascii_alphanumeric() || "._@-".contains(c);
        if name.is_empty() || name.len() > LONGEST || !name.chars().all(is_part) {
            return Err(format!(
                "{name:?} is not a name: expected letters, digits and . _ @ -, at most {LONGEST}"
            ));
        }
        match Self::RESERVED.contains(&name) {
            true => Err(format!("the name {name} is taken by the scheduler itself")),
            false => Ok(()),
        }
    }

    /// Returns the principal of every caller if tokens are not required.
    pub fn anybody() -> Self {
        Self {
            name: "anybody".to_owned(),
            role: Role::Administer,
        }
    }

    /// Checks whether the principal may manage what belongs to `owner`.
    pub fn may_touch(&self, owner: &str) -> bool {
        self.role == Role::Administer || (self.role != Role::Executor && self.name == owner)
    }

    /// Checks that the principal has the permissions of `needed`.
    ///
    /// # Errors
    /// Names the required role and the principal's.
    pub fn needs(&self, needed: Role) -> Result<(), String> {
        // If tokens are not required, executors show none either.
        match self.role.may(needed) || *self == Self::anybody() {
            true => Ok(()),
            false => Err(format!(
                "it needs the role {needed}, and {} has the role {}",
                self.name, self.role
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_include_those_before_and_executors_are_apart() {
        for (has, may) in [
            (Role::Read, [true, false, false, false]),
            (Role::Run, [true, true, false, false]),
            (Role::Administer, [true, true, true, false]),
            (Role::Executor, [false, false, false, true]),
        ] {
            assert_eq!(Role::ALL.map(|needed| has.may(needed)), may, "{has}");
            assert_eq!(has.to_string().parse(), Ok(has));
        }
        for needed in Role::ALL {
            assert_eq!(Principal::anybody().needs(needed), Ok(()), "{needed}");
        }
        assert!("root".parse::<Role>().unwrap_err().contains("administer"));
    }

    #[test]
    fn a_job_is_its_owner_s_and_an_administrator_s() {
        let who = |name: &str, role| Principal {
            name: name.to_owned(),
            role,
        };
        assert!(who("alice", Role::Read).may_touch("alice"));
        assert!(!who("bob", Role::Run).may_touch("alice"));
        assert!(who("root", Role::Administer).may_touch("alice"));
        assert!(!who("alice", Role::Executor).may_touch("alice"));
        let said = who("alice", Role::Read).needs(Role::Run).unwrap_err();
        assert!(
            said.contains("role run") && said.contains("alice has the role read"),
            "{said}"
        );
    }
}
