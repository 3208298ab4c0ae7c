//! Options of the engine: the cluster that plans run on, and the token for it.

use volley_proto::access::Credential;
use volley_proto::spec::Device;
use volley_proto::tls::TlsFiles;

use super::super::args::{EngineArgs, TokenArgs};
use super::{Embedded, EngineConfig, Result, Surroundings, checked_address, mistake};

/// Returns the source of the token.
pub(super) fn credential(args: TokenArgs, around: &Surroundings) -> Credential {
    let TokenArgs { token, token_file } = args;
    Credential::of(token, token_file.map(|file| around.absolute(&file)))
}

impl EngineConfig {
    /// Resolves the cluster that plans run on, and the TLS files and the source of the token for it.
    pub(super) fn resolve(
        args: EngineArgs,
        around: &Surroundings,
    ) -> Result<(Self, Option<TlsFiles>, Credential)> {
        let is_embedded =
            args.executors.is_some() || args.vcores.is_some() || args.device.is_some();
        let engine = match (args.scheduler, &around.cluster) {
            (Some(scheduler), _) => Self::Scheduler(checked_address(scheduler)?),
            (None, Some(found)) if !is_embedded => Self::Found(found.scheduler.clone()),
            (None, _) if !cfg!(feature = "standalone") => {
                return Err(mistake(
                    "this build has no cluster inside: give --scheduler HOST:PORT",
                ));
            }
            (None, _) => {
                let executors = args.executors.unwrap_or(2);
                Self::Embedded(Embedded {
                    executors,
                    vcores: args.vcores.unwrap_or_else(|| around.vcores_each(executors)),
                    device: args.device.unwrap_or(Device::Auto),
                })
            }
        };
        let given = args.tls.resolve_for(&engine, around)?;
        let tls = match (&engine, &around.cluster) {
            (Self::Found(_), Some(found)) => given.or_else(|| found.tls.clone()),
            _ => given,
        };
        Ok((engine, tls, credential(args.token, around)))
    }
}
