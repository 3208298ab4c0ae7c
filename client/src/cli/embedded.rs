//! Cluster inside this process, in a build that has one.

use volley_proto::traces::OtlpEndpoint;

use super::config::Embedded;

#[cfg(feature = "standalone")]
pub(super) use volley::standalone::Standalone;

/// Starts a cluster in this process.
///
/// # Errors
/// When a part of it does not start.
#[cfg(feature = "standalone")]
pub(super) async fn start(
    embedded: &Embedded,
    otlp: Option<&OtlpEndpoint>,
) -> anyhow::Result<Standalone> {
    use anyhow::Context;
    use volley::standalone::StandaloneConfig;

    let Embedded {
        executors,
        vcores,
        device,
    } = *embedded;
    let config = StandaloneConfig {
        executors,
        vcores,
        device,
        otlp: otlp.cloned(),
        ..StandaloneConfig::default()
    };
    Standalone::start(config)
        .await
        .context("cannot start a cluster in this process")
}

/// Stand-in for the cluster in a build without one; it has no values.
#[cfg(not(feature = "standalone"))]
#[derive(Debug)]
pub(super) enum Standalone {}

#[cfg(not(feature = "standalone"))]
impl Standalone {
    pub(super) fn scheduler(&self) -> &str {
        match *self {}
    }

    pub(super) async fn stop(self) {
        match self {}
    }
}

/// Fails, because this build has no cluster inside.
///
/// # Errors
/// Always.
#[cfg(not(feature = "standalone"))]
pub(super) async fn start(_: &Embedded, _: Option<&OtlpEndpoint>) -> anyhow::Result<Standalone> {
    anyhow::bail!("this build has no cluster inside: give --scheduler HOST:PORT")
}
