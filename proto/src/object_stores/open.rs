//! Opening of a remote store by its URL.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, S3ConditionalPut};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::multipart::MultipartStore;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use url::{Position, Url};

use super::StoreOptions;
use crate::{Error, Result};

/// URL schemes of remote stores.
pub const SCHEMES: &[&str] = &[
    "s3",
    "s3a",
    "gs",
    "az",
    "abfs",
    "abfss",
    "adl",
    "azure",
    "http",
    "https",
    #[cfg(feature = "hdfs")]
    "hdfs",
];

/// Checks whether stores of a scheme are read-only: web servers, and HDFS.
pub fn is_read_only(scheme: &str) -> bool {
    matches!(scheme, "http" | "https" | "hdfs")
}

/// Checks whether a URL belongs to a remote store.
pub fn is_remote(url: &Url) -> bool {
    SCHEMES.contains(&url.scheme())
}

/// Maximum number of retries of a failed request.
const RETRIES: usize = 8;
/// Time after which no further retry begins.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of each request; with it, a store that does not answer is an error after one and a half minutes.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Opened store.
#[derive(Clone)]
pub struct Opened {
    /// Scheme, bucket and host, without a path or credentials: `s3://bucket`.
    pub root: String,
    /// Store; paths are below its root.
    pub store: Arc<dyn ObjectStore>,
    /// Multipart uploads, which one process begins and another completes. Web servers have none.
    pub multipart: Option<Arc<dyn MultipartStore>>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The stores' debug output contains credentials.
        f.debug_struct("Opened")
            .field("root", &self.root)
            .field("multipart", &self.multipart.is_some())
            .finish_non_exhaustive()
    }
}

/// Opens the store of a URL, whatever its path. It sends no request yet.
///
/// With the feature `hdfs`, `hdfs://` is one of the schemes. That compiles; it has been tried on no cluster.
///
/// Credentials are those of the options, else those in the process's environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`), else
/// those of the instance role. S3 and Azure are reached over plain HTTP only if `aws.allow_http` or `AWS_ALLOW_HTTP`
/// allows it. An S3 store must support conditional writes (`If-None-Match`), as Amazon's does.
///
/// # Errors
/// When the scheme is not one of [`SCHEMES`], or an option is not the store's or not usable.
pub fn open(url: &Url, options: &StoreOptions) -> Result<Opened> {
    let root = root(url);
    if url.password().is_some() {
        return Err(refuse(
            &root,
            "a URL takes no password: give credentials as options, or in the environment",
        ));
    }
    if url.host_str().is_none_or(str::is_empty) && SCHEMES.contains(&url.scheme()) {
        return Err(refuse(&root, "there is no bucket or host after the scheme"));
    }
    match url.scheme() {
        "s3" | "s3a" => amazon(url, &root, options),
        "gs" => google(url, &root, options),
        "az" | "abfs" | "abfss" | "adl" | "azure" => azure(url, &root, options),
        "http" | "https" => web(url, &root, options),
        #[cfg(feature = "hdfs")]
        "hdfs" => hadoop(url, &root, options),
        scheme => {
            let schemes = SCHEMES.join("://, ");
            let reason = format!("scheme {scheme:?} is not supported: use file://, {schemes}://");
            Err(refuse(&root, &reason))
        }
    }
}

/// Returns the URL's scheme, user (for Azure: the container) and host.
pub fn root(url: &Url) -> String {
    let user = match url.username() {
        "" => String::new(),
        user => format!("{user}@"),
    };
    let host = &url[Position::BeforeHost..Position::AfterPort];
    format!("{}://{user}{host}", url.scheme())
}

fn refuse(root: &str, reason: &str) -> Error {
    Error::ObjectStoreUrl {
        url: root.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Returns the error of a store that cannot be opened, without option values that its reason may repeat.
fn cannot_open(root: &str, options: &StoreOptions, error: &(dyn StdError + 'static)) -> Error {
    let text = options.redact(&crate::failure::chain(error));
    refuse(root, &text)
}

fn retries() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: RETRIES,
        retry_timeout: RETRY_TIMEOUT,
    }
}

fn amazon(url: &Url, root: &str, options: &StoreOptions) -> Result<Opened> {
    let mut builder = AmazonS3Builder::from_env().with_url(root);
    for (name, value) in options.of("aws", root)? {
        let key = name.parse();
        let key = key.map_err(|error: object_store::Error| cannot_open(root, options, &error))?;
        builder = builder.with_config(key, value);
    }
    // `s3a` is Hadoop's name for the same.
    let store = builder
        .with_bucket_name(url.host_str().unwrap_or_default())
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_retry(retries())
        .build()
        .map_err(|error| cannot_open(root, options, &error))?;
    Ok(with_uploads(root, store))
}

fn google(url: &Url, root: &str, options: &StoreOptions) -> Result<Opened> {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_url(root);
    for (name, value) in options.of("gcp", root)? {
        // datafusion-cli's name for the option.
        let name = match name {
            "application_credentials_path" => "application_credentials",
            name => name,
        };
        let key = name.parse();
        let key = key.map_err(|error: object_store::Error| cannot_open(root, options, &error))?;
        builder = builder.with_config(key, value);
    }
    let store = builder
        .with_bucket_name(url.host_str().unwrap_or_default())
        .with_retry(retries())
        .build()
        .map_err(|error| cannot_open(root, options, &error))?;
    Ok(with_uploads(root, store))
}

fn azure(_: &Url, root: &str, options: &StoreOptions) -> Result<Opened> {
    let mut builder = MicrosoftAzureBuilder::from_env().with_url(root);
    for (name, value) in options.of("azure", root)? {
        let key = name.parse();
        let key = key.map_err(|error: object_store::Error| cannot_open(root, options, &error))?;
        builder = builder.with_config(key, value);
    }
    let store = builder
        .with_retry(retries())
        .build()
        .map_err(|error| cannot_open(root, options, &error))?;
    Ok(with_uploads(root, store))
}

/// Opens the files of a web server, read-only. The scheme decides on TLS.
fn web(url: &Url, root: &str, options: &StoreOptions) -> Result<Opened> {
    options.of("http", root)?;
    if !url.username().is_empty() {
        return Err(refuse(root, "a URL of a web server takes no user"));
    }
    let client = ClientOptions::new()
        .with_allow_http(url.scheme() == "http")
        .with_timeout(REQUEST_TIMEOUT)
        .with_connect_timeout(CONNECT_TIMEOUT);
    let store = HttpBuilder::new()
        .with_url(root)
        .with_client_options(client)
        .with_retry(retries())
        .build()
        .map_err(|error| cannot_open(root, options, &error))?;
    Ok(Opened {
        root: root.to_owned(),
        store: Arc::new(store),
        multipart: None,
    })
}

/// Opens the files of HDFS, read-only. The process's environment (`HADOOP_CONF_DIR`, `HADOOP_USER_NAME`) names the user
/// and the name nodes.
#[cfg(feature = "hdfs")]
fn hadoop(url: &Url, root: &str, options: &StoreOptions) -> Result<Opened> {
    use hdfs_native_object_store::HdfsObjectStoreBuilder;

    options.of("hdfs", root)?;
    if !url.username().is_empty() {
        return Err(refuse(root, "a URL of HDFS takes no user"));
    }
    let store = HdfsObjectStoreBuilder::new().with_url(root).build();
    let store = store.map_err(|error| cannot_open(root, options, &error))?;
    Ok(Opened {
        root: root.to_owned(),
        store: Arc::new(store),
        multipart: None,
    })
}

fn with_uploads(root: &str, store: impl ObjectStore + MultipartStore) -> Opened {
    let store = Arc::new(store);
    Opened {
        root: root.to_owned(),
        store: Arc::clone(&store) as _,
        multipart: Some(store),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(url: &str, options: &[(&str, &str)]) -> Result<Opened> {
        let mut given = StoreOptions::default();
        for (key, value) in options {
            given.set(key, *value)?;
        }
        open(&url.parse().unwrap(), &given)
    }

    #[test]
    fn a_url_says_which_store_it_is_of() {
        let keys = [
            ("aws.access_key_id", "AKIATEST"),
            ("aws.secret_access_key", "hunter2hunter2"),
        ];
        let s3 = opened("s3://bucket/a/b.csv", &keys).unwrap();
        assert_eq!(s3.root, "s3://bucket");
        assert!(s3.multipart.is_some());
        assert!(!format!("{s3:?}").contains("hunter2"));
        let gcp = [("gcp.skip_signature", "true")];
        assert!(opened("gs://bucket/a", &gcp).unwrap().multipart.is_some());
        let azure = [
            ("azure.account_name", "account"),
            ("azure.account_key", "aHVudGVyMg=="),
        ];
        assert!(
            opened("az://container/a", &azure)
                .unwrap()
                .multipart
                .is_some()
        );
        let named = "abfss://container@account.dfs.core.windows.net/a";
        assert_eq!(
            opened(named, &azure[1..]).unwrap().root,
            "abfss://container@account.dfs.core.windows.net"
        );
        let web = opened("https://example.org/a.csv", &[]).unwrap();
        assert!(web.multipart.is_none(), "a web server is only read");
    }

    #[test]
    fn what_cannot_be_opened_is_named_without_its_secrets() {
        for url in [
            "viewfs://host/a",
            "ftp://host/a",
            "s3:///a",
            "s3://u:p@bucket/a",
        ] {
            let error = opened(url, &[]).unwrap_err().to_string();
            assert!(error.contains(url.split_once("://").unwrap().0), "{error}");
            assert!(!error.contains(":p@"), "{error}");
        }
        let error = opened("https://h/a", &[("aws.region", "x")]).unwrap_err();
        assert!(error.to_string().contains("aws.region"), "{error}");
        let key = r#""hunter2hunter2""#;
        let error = opened("gs://b/a", &[("gcp.service_account_key", key)]).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
        let http = [
            ("aws.endpoint", "http://127.0.0.1:9"),
            ("aws.allow_http", "maybe"),
        ];
        assert!(opened("s3://b/a", &http).is_err());
    }

    #[cfg(feature = "hdfs")]
    #[test]
    fn hdfs_is_only_read() {
        let hdfs = opened("hdfs://127.0.0.1:9/a", &[]).unwrap();
        assert_eq!(hdfs.root, "hdfs://127.0.0.1:9");
        assert!(hdfs.multipart.is_none());
        assert!(opened("hdfs://h/a", &[("aws.region", "x")]).is_err());
    }
}
