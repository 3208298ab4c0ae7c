//! A scheduler as it is dialled.

use std::fmt;

use ballista_core::utils::{GrpcClientConfig, create_grpc_client_endpoint};
use tonic::transport::{Channel, Endpoint};
use volley_proto::tls::{self, Tls, TlsFiles};

use crate::Result;

/// A scheduler's address, and what is spoken TLS with where that is spoken.
#[derive(Debug, Clone)]
pub struct SchedulerAddress {
    address: String,
    tls: Option<Tls>,
}

impl SchedulerAddress {
    /// The scheduler at `host:port`, over TLS if there are files for it.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn open(address: impl Into<String>, tls: Option<&TlsFiles>) -> Result<Self> {
        Ok(Self {
            address: address.into(),
            tls: tls.cloned().map(Tls::open).transpose()?,
        })
    }

    /// `host:port`
    pub fn as_str(&self) -> &str {
        &self.address
    }

    /// What is spoken TLS with, if it is.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        tls::url(&self.address, self.tls.is_some())
    }

    /// Connects, for a service of the scheduler's.
    ///
    /// # Errors
    /// When it does not answer, or not as it is expected to.
    pub async fn connect(&self) -> std::result::Result<Channel, tonic::transport::Error> {
        tls::connect(self.endpoint(None)?, self.tls()).await
    }

    /// A channel that connects when it is first used.
    ///
    /// # Errors
    /// When the address is none.
    pub(crate) fn channel(
        &self,
        grpc: &GrpcClientConfig,
    ) -> std::result::Result<Channel, tonic::transport::Error> {
        Ok(tls::channel(self.endpoint(Some(grpc))?, self.tls()))
    }

    fn endpoint(
        &self,
        grpc: Option<&GrpcClientConfig>,
    ) -> std::result::Result<Endpoint, tonic::transport::Error> {
        // Whether TLS is spoken is for who connects.
        create_grpc_client_endpoint(tls::url(&self.address, false), grpc)
    }
}

impl fmt::Display for SchedulerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}
