//! An S3 server on a free port of loopback, over a folder that is removed with it.

use std::net::SocketAddr;
use std::path::PathBuf;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::serial::Serial;

/// S3 server with one bucket; dropping it stops it and removes its files.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    dir: TempDir,
    runtime: Option<Runtime>,
}

impl S3Server {
    /// Name of its bucket.
    pub const BUCKET: &str = "volley-test";
    /// Access key that it knows.
    pub const ACCESS_KEY: &str = "volley-test-key";
    /// Secret of that key.
    pub const SECRET_KEY: &str = "volley-test-secret";

    /// Starts a server with an empty bucket, on its own threads.
    ///
    /// # Panics
    /// When a folder, a thread or a free port on loopback is lacking.
    pub fn start() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("volley-s3-")
            .tempdir()
            .expect("a folder");
        let root = dir.path().canonicalize().expect("the folder's path");
        std::fs::create_dir(root.join(Self::BUCKET)).expect("a bucket");
        let mut service = S3ServiceBuilder::new(Serial::new(root).expect("a folder to serve"));
        service.set_auth(SimpleAuth::from_single(Self::ACCESS_KEY, Self::SECRET_KEY));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("s3-server")
            .enable_all()
            .build()
            .expect("threads");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("a bound address");
        runtime.spawn(serve(listener, service.build()));
        Self {
            address,
            dir,
            runtime: Some(runtime),
        }
    }

    /// Returns its address as `host:port`.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Returns its address as a URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the folder of its bucket: keys are paths in it.
    pub fn bucket_dir(&self) -> PathBuf {
        self.dir.path().join(Self::BUCKET)
    }

    /// Returns the variables that let a process reach it, or a proxy before it, at this endpoint (`http://…`).
    pub fn environment(endpoint: &str) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT", endpoint.to_owned()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", Self::ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", Self::SECRET_KEY.to_owned()),
        ]
    }

    /// Returns the same as options of a statement: `aws.endpoint` and so on.
    pub fn options(endpoint: &str) -> Vec<(String, String)> {
        let option = |(variable, value): (&str, String)| {
            (variable.to_lowercase().replacen("aws_", "aws.", 1), value)
        };
        Self::environment(endpoint)
            .into_iter()
            .map(option)
            .collect()
    }

    /// Counts the multipart uploads that were begun and neither completed nor aborted.
    ///
    /// # Panics
    /// When the server's folder cannot be read.
    pub fn open_uploads(&self) -> usize {
        let entries = std::fs::read_dir(self.dir.path()).expect("the server's folder");
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with(".upload"))
            .count()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropping the runtime would wait, which an asynchronous test must not.
            runtime.shutdown_background();
        }
    }
}

async fn serve(listener: std::net::TcpListener, service: S3Service) {
    let listener = TcpListener::from_std(listener).expect("a socket");
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                eprintln!("S3 server: {error}");
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        stream.set_nodelay(true).ok();
        let connection =
            http1::Builder::new().serve_connection(TokioIo::new(stream), service.clone());
        connections.spawn(async move {
            // Tests include clients that leave in the middle of a request.
            connection.await.ok();
        });
    }
}
