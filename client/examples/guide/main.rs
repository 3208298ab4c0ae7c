//! A guide to the library, a topic a module. Each makes its own data and checks its own results.
//!
//! ```console
//! $ cargo run --example guide            # all topics
//! $ cargo run --example guide -- train   # one of them
//! ```

mod cluster;
mod custom_layer;
mod evaluate;
mod frames;
mod jobs;
mod progress;
mod read;
mod train;
mod write;

use std::error::Error;
use std::path::Path;

use volley::standalone::{Standalone, StandaloneConfig};
use volley::store::ModelStore;
use volley::{Session, SessionConfig};

/// Errors of any kind: Volley's are [`volley::Error`].
type Result<T = (), E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const TOPICS: [&str; 9] = [
    "read",
    "frames",
    "write",
    "train",
    "progress",
    "evaluate",
    "jobs",
    "cluster",
    "custom_layer",
];

#[tokio::main]
async fn main() -> Result {
    let mut topics: Vec<String> = std::env::args().skip(1).collect();
    if topics.is_empty() {
        topics = TOPICS.map(str::to_owned).to_vec();
    }
    // A cluster inside this process. With one of processes, its address is all that changes.
    let cluster = Standalone::start(StandaloneConfig::default()).await?;
    let folder = tempfile::tempdir()?;
    let session = connect(&cluster, &folder.path().join("models")).await?;
    for topic in topics {
        run(&topic, &session, folder.path()).await?;
        println!("{topic}: done");
    }
    cluster.stop().await;
    Ok(())
}

/// Connects to a cluster, with a model store in a folder.
async fn connect(cluster: &Standalone, models: &Path) -> Result<Session> {
    let store = ModelStore::directory_url(models)?;
    Ok(Session::connect(SessionConfig::new(cluster.scheduler(), store)).await?)
}

async fn run(topic: &str, session: &Session, folder: &Path) -> Result {
    match topic {
        "read" => read::run(session, folder).await,
        "frames" => frames::run(session).await,
        "write" => write::run(session, folder).await,
        "train" => train::run(session).await,
        "progress" => progress::run(session).await,
        "evaluate" => evaluate::run(session).await,
        "jobs" => jobs::run(session).await,
        "cluster" => cluster::run().await,
        "custom_layer" => custom_layer::run(folder).await,
        _ => Err(format!("no topic {topic:?}; there are {}", TOPICS.join(", ")).into()),
    }
}
