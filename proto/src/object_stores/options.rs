//! Options of a store in a statement: `OPTIONS ('aws.access_key_id' '…', 'aws.endpoint' '…')`.
//!
//! All values are treated as secret: nothing here shows one.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::access::{AllowedPaths, Denied};
use crate::{Error, Result, did_you_mean};

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a text that must not be shown.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text itself, for requests to a store.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Options of S3, by their names after `aws.`.
const AWS: &[&str] = &[
    "access_key_id",
    "allow_http",
    "allow_invalid_certificates",
    "checksum_algorithm",
    "connect_timeout",
    "disable_tagging",
    "endpoint",
    "imdsv1_fallback",
    "proxy_url",
    "region",
    "request_payer",
    "role_arn",
    "role_session_name",
    "s3_express",
    "secret_access_key",
    "server_side_encryption",
    "session_token",
    "skip_signature",
    "sse_bucket_key_enabled",
    "sse_customer_key_base64",
    "sse_kms_key_id",
    "timeout",
    "unsigned_payload",
    "virtual_hosted_style_request",
    "web_identity_token_file",
];

/// Options of Google Cloud Storage, by their names after `gcp.` or `google.`.
const GCP: &[&str] = &[
    "allow_invalid_certificates",
    "application_credentials_path",
    "base_url",
    "connect_timeout",
    "proxy_url",
    "service_account_key",
    "service_account_path",
    "skip_signature",
    "timeout",
];

/// Options of Azure Blob Storage, by their names after `azure.`.
const AZURE: &[&str] = &[
    "account_key",
    "account_name",
    "allow_http",
    "allow_invalid_certificates",
    "authority_host",
    "bearer_token",
    "client_id",
    "client_secret",
    "connect_timeout",
    "endpoint",
    "federated_token_file",
    "msi_endpoint",
    "proxy_url",
    "sas_token",
    "skip_signature",
    "tenant_id",
    "timeout",
    "use_emulator",
];

/// Provider of each option prefix, and its options.
const PREFIXES: &[(&str, &str, &[&str])] = &[
    ("aws", "aws", AWS),
    ("gcp", "gcp", GCP),
    ("google", "gcp", GCP),
    ("azure", "azure", AZURE),
];

/// Options of one store, by their full names such as `aws.region`. Without any, credentials and settings come from the
/// process's environment, or from the instance role.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StoreOptions(BTreeMap<String, Secret>);

impl StoreOptions {
    /// Returns no options: the environment decides.
    pub fn of_environment() -> Self {
        Self::default()
    }

    /// Checks whether an option of a statement is a store's, by the name as typed.
    pub fn is_one(key: &str) -> bool {
        let prefix = key.split('.').next().unwrap_or_default();
        let known = |(known, ..): &(&str, _, _)| prefix.eq_ignore_ascii_case(known);
        key.contains('.') && PREFIXES.iter().any(known)
    }

    /// Adds an option of a statement.
    ///
    /// # Errors
    /// When no store has it; names the known options.
    pub fn set(&mut self, key: &str, value: impl Into<String>) -> Result<()> {
        let lower = key.to_ascii_lowercase();
        let (prefix, name) = lower.split_once('.').unwrap_or((&lower, ""));
        let found = PREFIXES.iter().find(|(known, ..)| *known == prefix);
        let Some((_, provider, names)) = found else {
            return Err(Error::StoreOption {
                key: key.to_owned(),
                hint: String::new(),
                known: "aws.…, gcp.…, azure.…".to_owned(),
            });
        };
        if !names.contains(&name) {
            return Err(Error::StoreOption {
                key: key.to_owned(),
                hint: did_you_mean(name, names.iter().copied()),
                known: format!("{prefix}.{}", names.join(&format!(", {prefix}."))),
            });
        }
        let value = Secret::new(value);
        self.0.insert(format!("{provider}.{name}"), value);
        Ok(())
    }

    /// Checks whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that servers and files named by options are allowed: a bucket's URL does not contain its server.
    ///
    /// # Errors
    /// Names the option whose server or file is not allowed, without its value.
    pub fn check(&self, allowed: &AllowedPaths) -> Result<(), Denied> {
        if !allowed.is_restricted() {
            return Ok(());
        }
        for (key, value) in &self.0 {
            let Some(place) = place(key, value.reveal()) else {
                continue;
            };
            if place.is_none_or(|place| allowed.check(&place).is_err()) {
                let place = format!("what {key} in OPTIONS names");
                return Err(Denied::new(place, format!("it is not below {allowed}")));
            }
        }
        Ok(())
    }

    /// Returns a provider's options, by their names after the prefix.
    ///
    /// # Errors
    /// Names an option of another provider.
    pub(super) fn of(&self, provider: &str, url: &str) -> Result<Vec<(&str, &str)>> {
        let options = self.0.iter().map(|(key, value)| {
            let name = key.strip_prefix(provider);
            match name.and_then(|name| name.strip_prefix('.')) {
                Some(name) => Ok((name, value.reveal())),
                None => Err(Error::StoreOption {
                    key: key.clone(),
                    hint: String::new(),
                    known: match PREFIXES.iter().any(|(known, ..)| *known == provider) {
                        true => format!("those of {url} begin with {provider}."),
                        false => format!("{url} takes none"),
                    },
                }),
            }
        });
        options.collect()
    }

    /// Redacts the option values in a text.
    pub(super) fn redact(&self, text: &str) -> String {
        // Shorter values are not secrets, and occur within many words.
        let values = self.0.values().map(Secret::reveal);
        let secrets = values.filter(|value| value.len() >= 6);
        secrets.fold(text.to_owned(), |text, value| text.replace(value, "***"))
    }
}

/// Returns the server or file that an option names, if it names one; `Some(None)` if the value is not a URL or absolute
/// path.
fn place(key: &str, value: &str) -> Option<Option<Url>> {
    let server = |url: &str| Some(Url::parse(url).ok());
    match key {
        "aws.endpoint"
        | "aws.proxy_url"
        | "azure.authority_host"
        | "azure.endpoint"
        | "azure.msi_endpoint"
        | "azure.proxy_url"
        | "gcp.base_url"
        | "gcp.proxy_url" => server(value),
        "azure.account_name" => server(&format!("https://{value}.blob.core.windows.net")),
        "azure.use_emulator" => server("http://127.0.0.1:10000"),
        "gcp.service_account_key" => server(&server_of_key(value)?),
        "aws.web_identity_token_file"
        | "azure.federated_token_file"
        | "gcp.application_credentials_path"
        | "gcp.service_account_path" => Some(Url::from_file_path(value).ok()),
        _ => None,
    }
}

/// Returns the server in a service account's key, if it contains one.
fn server_of_key(json: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Key {
        gcs_base_url: Option<String>,
    }
    // Invalid JSON is refused when the store is opened.
    serde_json::from_str::<Key>(json).ok()?.gcs_base_url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_shown() {
        let mut options = StoreOptions::default();
        options.set("aws.secret_access_key", "hunter2").unwrap();
        options.set("AWS.Region", "eu-central-1").unwrap();
        let shown = format!("{options:?}");
        assert!(
            !shown.contains("hunter2") && shown.contains("***"),
            "{shown}"
        );
        assert_eq!(options.redact("key hunter2 is wrong"), "key *** is wrong");
        let sent = serde_json::to_string(&options).unwrap();
        let back: StoreOptions = serde_json::from_str(&sent).unwrap();
        assert_eq!(back, options);
        assert_eq!(
            back.of("aws", "s3://b").unwrap()[0],
            ("region", "eu-central-1")
        );
    }

    #[test]
    fn an_unknown_option_is_named_with_those_there_are() {
        let mut options = StoreOptions::default();
        let error = options.set("aws.acces_key_id", "x").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("\"aws.acces_key_id\""), "{text}");
        assert!(
            text.contains("did you mean") && text.contains("aws.region"),
            "{text}"
        );
        assert!(!StoreOptions::is_one("format.delimiter") && StoreOptions::is_one("aws.x"));
        options.set("google.service_account_path", "/x").unwrap();
        let error = options.of("aws", "s3://b").unwrap_err().to_string();
        assert!(error.contains("gcp.service_account_path"), "{error}");
    }

    #[test]
    fn options_lead_only_where_plans_may_read_and_write() {
        let prefixes = ["s3://bucket/in", "http://minio:9000", "/etc/volley"];
        let allowed = AllowedPaths::new(&prefixes.map(str::to_owned)).unwrap();
        let check = |key: &str, value: &str| {
            let mut options = StoreOptions::default();
            options.set(key, value).unwrap();
            options.check(&allowed)
        };
        for (key, value) in [
            ("aws.endpoint", "http://minio:9000"),
            ("aws.region", "eu-central-1"),
            ("aws.secret_access_key", "http://elsewhere"),
            ("aws.web_identity_token_file", "/etc/volley/token"),
            ("gcp.service_account_key", "{\"client_email\": \"x\"}"),
        ] {
            assert_eq!(check(key, value), Ok(()), "{key}");
        }
        for (key, value) in [
            ("aws.endpoint", "http://elsewhere:9000"),
            ("aws.endpoint", "http://minio:9001"),
            ("AWS.Endpoint", "no URL"),
            ("aws.proxy_url", "http://elsewhere"),
            ("google.base_url", "https://elsewhere"),
            ("azure.account_name", "elsewhere"),
            ("azure.use_emulator", "true"),
            ("aws.web_identity_token_file", "/etc/volley/../shadow"),
            ("gcp.service_account_path", "relative.json"),
            (
                "gcp.service_account_key",
                "{\"gcs_base_url\": \"https://elsewhere\"}",
            ),
        ] {
            let denied = check(key, value).unwrap_err().to_string();
            assert!(denied.contains("--allow-path"), "{denied}");
            assert!(!denied.contains("elsewhere"), "{denied}");
            let mut options = StoreOptions::default();
            options.set(key, value).unwrap();
            assert_eq!(options.check(&AllowedPaths::default()), Ok(()), "{key}");
        }
    }
}
