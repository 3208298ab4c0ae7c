//! The claims of a verified token as a name and a role, in pure code. The issuer's signature has been verified before.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use volley_proto::access::{Principal, Role};

use super::Refused;

/// Length of the longest subject, in bytes.
const LONGEST: usize = 255;
/// Roles that a claim can give, the highest first. Executors join with tokens from the scheduler's file.
const ROLES: [Role; 3] = [Role::Administer, Role::Run, Role::Read];

/// Claims by their names.
pub(super) type Claims = Map<String, Value>;

/// The principal of a verified token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::access) struct Verified {
    pub(in crate::access) principal: Principal,
    /// Expiry of the token; `None` if it is later than a clock can represent.
    expires: Option<SystemTime>,
}

impl Verified {
    /// # Errors
    /// When the subject is not a valid name, or no role is claimed.
    pub(super) fn of(claims: &Claims, role_claim: &str) -> Result<Self, Refused> {
        let name = claims.get("sub").and_then(Value::as_str);
        let name = name.filter(|name| is_name(name)).ok_or(Refused::Subject)?;
        let claimed = claims.get(role_claim);
        let claimed = claimed.ok_or_else(|| Refused::Missing(role_claim.to_owned()))?;
        let role = role(claimed).ok_or_else(|| Refused::Role(role_claim.to_owned()))?;
        Ok(Self {
            principal: Principal {
                name: name.to_owned(),
                role,
            },
            expires: claims.get("exp").and_then(expiry),
        })
    }

    /// Checks that the token has not expired at `now`.
    pub(in crate::access) fn holds(&self, now: SystemTime) -> bool {
        self.expires.is_none_or(|expires| now < expires)
    }
}

/// Checks a name. Names own jobs and are words of audit lines, so they have no spaces, and are none of the
/// scheduler's own.
fn is_name(name: &str) -> bool {
    let is_printable = name.chars().all(|c| c.is_ascii_graphic());
    !name.is_empty()
        && name.len() <= LONGEST
        && is_printable
        && !Principal::RESERVED.contains(&name)
}

/// Returns the highest role in a list, or in a text of words; other words belong to other services.
fn role(claim: &Value) -> Option<Role> {
    let words: Vec<&str> = match claim {
        Value::String(text) => text.split_whitespace().collect(),
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let mut roles = ROLES.into_iter();
    roles.find(|role| {
        let role = role.to_string();
        words.iter().any(|word| *word == role)
    })
}

/// Parses an expiry in seconds since 1970, whole or not.
fn expiry(claim: &Value) -> Option<SystemTime> {
    let seconds = Duration::try_from_secs_f64(claim.as_f64()?).ok()?;
    UNIX_EPOCH.checked_add(seconds)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(claims: Value) -> Result<Verified, Refused> {
        let Value::Object(claims) = claims else {
            panic!("claims are an object");
        };
        Verified::of(&claims, "role")
    }

    #[test]
    fn a_claim_gives_the_highest_of_its_roles() {
        for (claim, due) in [
            (json!("read"), Some(Role::Read)),
            (json!("run"), Some(Role::Run)),
            (json!("administer"), Some(Role::Administer)),
            (json!("read administer run"), Some(Role::Administer)),
            (json!(["read", "run"]), Some(Role::Run)),
            (json!(["billing", "read", 7]), Some(Role::Read)),
            (json!("executor"), None),
            (json!("root"), None),
            (json!("Read"), None),
            (json!("read,run"), None),
            (json!(["read run"]), None),
            (json!(""), None),
            (json!([]), None),
            (json!(null), None),
            (json!({"run": true}), None),
        ] {
            let found = of(json!({"sub": "alice", "exp": 1, "role": claim}));
            let found = found.map(|verified| verified.principal.role);
            let due = due.ok_or_else(|| Refused::Role("role".to_owned()));
            assert_eq!(found, due, "{claim}");
        }
        let without = of(json!({"sub": "alice", "exp": 1}));
        assert_eq!(without, Err(Refused::Missing("role".to_owned())));
    }

    #[test]
    fn a_subject_is_a_name() {
        let subject = |sub: Value| {
            let verified = of(json!({"sub": sub, "exp": 1, "role": "read"}));
            verified.map(|verified| verified.principal.name)
        };
        for name in [
            "alice",
            "auth0|5f7c",
            "alice@example.com",
            "system:serviceaccount:a:b",
        ] {
            assert_eq!(subject(json!(name)).as_deref(), Ok(name));
        }
        let long = "x".repeat(LONGEST + 1);
        for wrong in ["", "a b", "line\nbreak", "ä", "anybody", "local", &long] {
            assert_eq!(subject(json!(wrong)), Err(Refused::Subject), "{wrong:?}");
        }
        assert_eq!(subject(json!(7)), Err(Refused::Subject));
    }

    #[test]
    fn what_is_verified_holds_until_it_expires() {
        let at = |second| UNIX_EPOCH + Duration::from_secs(second);
        let expiring = |exp: Value| of(json!({"sub": "a", "exp": exp, "role": "read"})).unwrap();
        let verified = expiring(json!(1000));
        assert!(verified.holds(at(999)) && !verified.holds(at(1000)));
        assert!(!expiring(json!(1000.5)).holds(at(1001)));
        assert!(expiring(json!(u64::MAX)).holds(at(1 << 40)));
    }
}
