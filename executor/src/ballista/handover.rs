//! Rows of tasks that move to another executor, because the one that holds them is to leave.
//!
//! ```text
//!   scheduler ── take ──► heir ── send ──► executor that leaves
//!                          └── the files of an attempt's stages, under the same names ──┘
//! ```
//!
//! A reader looks for rows in its own folder first and opens a file by its name, so a file has its name once it is whole,
//! and its index before it. Not here: which rows move where, and who reads them there, which the scheduler decides.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tempfile::NamedTempFile;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use volley_proto::wire::rows_client::RowsClient;
use volley_proto::wire::rows_server;
use volley_proto::wire::{SendRowsRequest, SendRowsResponse, TakeRowsRequest, TakeRowsResponse};

use super::connections::Connections;
use super::flight::is_name;
use super::proof::Proven;
use crate::counts::Counts;

/// Most bytes of a file in one message.
const PART: usize = 1 << 20;
/// Most messages that wait for the network or the disk.
const WAITING: usize = 4;
/// Time without a message after which the sender is given up.
const SILENCE: Duration = Duration::from_secs(30);

/// Service that sends and takes the files below a work folder; cheap to clone.
#[derive(Clone)]
pub(super) struct Rows {
    pub(super) work_dir: PathBuf,
    pub(super) connections: Arc<Connections>,
    pub(super) proven: Proven,
    pub(super) counts: Arc<Counts>,
}

type Sent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl rows_server::Rows for Rows {
    type SendStream = Sent<SendRowsResponse>;
    type TakeStream = Sent<TakeRowsResponse>;

    async fn send(
        &self,
        request: Request<SendRowsRequest>,
    ) -> Result<Response<Self::SendStream>, Status> {
        self.proven.check(&request, "send rows")?;
        let rows = request.into_inner();
        let folder = self.folder(&rows)?;
        let (parts, sent) = mpsc::channel(WAITING);
        let counts = Arc::clone(&self.counts);
        spawn_blocking(move || {
            let mut send = |part: SendRowsResponse| {
                counts.shuffle_served_bytes.add(part.content.len() as u64);
                parts.blocking_send(Ok(part)).is_ok()
            };
            if let Err(error) = read(&folder, &rows.stages, &mut send) {
                // If nobody receives any more, there is nobody to tell.
                parts.blocking_send(Err(failed(&folder, &error))).ok();
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(sent))))
    }

    async fn take(
        &self,
        request: Request<TakeRowsRequest>,
    ) -> Result<Response<Self::TakeStream>, Status> {
        self.proven.check(&request, "take rows")?;
        let taken = self.clone().taken(request.into_inner());
        // The answer begins at once: taking the rows may take long.
        Ok(Response::new(Box::pin(futures::stream::once(taken))))
    }
}

impl Rows {
    /// Returns the folder of an attempt.
    ///
    /// # Errors
    /// When it has no attempt's name.
    #[allow(clippy::result_large_err)] // tonic's own error type
    fn folder(&self, rows: &SendRowsRequest) -> Result<PathBuf, Status> {
        match is_name(&rows.attempt) {
            true => Ok(self.work_dir.join(&rows.attempt)),
            false => Err(Status::invalid_argument(format!(
                "rows of {:?}: expected an attempt's id, of letters, digits, - and _",
                rows.attempt
            ))),
        }
    }

    async fn taken(self, asked: TakeRowsRequest) -> Result<TakeRowsResponse, Status> {
        let TakeRowsRequest { address, rows } = asked;
        let rows = rows.ok_or_else(|| Status::invalid_argument("it names no rows to take"))?;
        let folder = self.folder(&rows)?;
        let unreachable =
            |error: &dyn std::fmt::Display| Status::unavailable(format!("{address}: {error}"));
        let channel = self.connections.dial(&address).await;
        let channel = channel.map_err(|error| unreachable(&error))?;
        let mut client = RowsClient::new(channel);
        let mut sent = client.send(rows).await?.into_inner();
        let (parts, received) = mpsc::channel(WAITING);
        let writer = spawn_blocking(move || {
            write(&folder, received).map_err(|error| failed(&folder, &error))
        });
        let passed: Result<(), Status> = async {
            loop {
                let part = timeout(SILENCE, sent.message()).await;
                let silent = |_| unreachable(&format!("nothing received for {SILENCE:?}"));
                let Some(part) = part.map_err(silent)?? else {
                    return Ok(());
                };
                // The writer has failed if it receives no more.
                if parts.send(part).await.is_err() {
                    return Ok(());
                }
            }
        }
        .await;
        drop(parts);
        let written = writer.await;
        passed?;
        written.map_err(|error| Status::internal(error.to_string()))?
    }
}

#[allow(clippy::result_large_err)] // tonic's own error type
fn failed(folder: &Path, error: &io::Error) -> Status {
    Status::internal(format!("{}: {error}", folder.display()))
}

/// Reads the files of stages in an attempt's folder, part by part, for as long as `send` returns true.
fn read(
    folder: &Path,
    stages: &[u64],
    send: &mut impl FnMut(SendRowsResponse) -> bool,
) -> io::Result<()> {
    for stage in stages {
        let mut files = Vec::new();
        list(&folder.join(stage.to_string()), &mut files)?;
        // An index is there before its file.
        files.sort_by_key(|file| file.extension().is_some_and(|found| found == "arrow"));
        for path in files {
            let file = path.strip_prefix(folder).map_err(io::Error::other)?;
            let file = file.to_str().ok_or(ErrorKind::InvalidFilename)?.to_owned();
            let mut reader = fs::File::open(&path)?;
            loop {
                let mut content = Vec::new();
                Read::take(&mut reader, PART as u64).read_to_end(&mut content)?;
                let ends = content.len() < PART;
                let part = SendRowsResponse {
                    file: file.clone(),
                    content,
                    ends,
                };
                if !send(part) {
                    return Ok(());
                }
                if ends {
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Adds the files below a folder; none if there is no such folder. Links are not followed, and files that are not whole,
/// whose names begin with a dot, are left out.
fn list(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&entry.path(), files)?;
        } else if kind.is_file() && !entry.file_name().as_encoded_bytes().starts_with(b".") {
            files.push(entry.path());
        }
    }
    Ok(())
}

/// Writes files as their parts are received.
fn write(
    folder: &Path,
    mut parts: mpsc::Receiver<SendRowsResponse>,
) -> io::Result<TakeRowsResponse> {
    let mut taken = TakeRowsResponse::default();
    let mut open: Option<(String, NamedTempFile)> = None;
    while let Some(part) = parts.blocking_recv() {
        let path = folder.join(&part.file);
        let (file, mut written) = match open.take() {
            Some(open) => open,
            None => (part.file.clone(), begin(folder, &part.file)?),
        };
        if file != part.file {
            return Err(io::Error::other(format!("{file} has no last part")));
        }
        written.write_all(&part.content)?;
        taken.bytes += part.content.len() as u64;
        match part.ends {
            true => {
                written.persist(&path)?;
                taken.files += 1;
            }
            false => open = Some((file, written)),
        }
    }
    match open {
        Some((file, _)) => Err(io::Error::other(format!("{file} has no last part"))),
        None => Ok(taken),
    }
}

/// Begins a file that has another name until it is whole; one that is given up is removed.
fn begin(folder: &Path, file: &str) -> io::Result<NamedTempFile> {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    let file = Path::new(file);
    let (true, Some(within)) = (file.components().all(is_plain), file.parent()) else {
        let reason = format!("{} is outside of the attempt's folder", file.display());
        return Err(io::Error::new(ErrorKind::InvalidFilename, reason));
    };
    let within = folder.join(within);
    fs::create_dir_all(&within)?;
    NamedTempFile::new_in(within)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio_util::sync::CancellationToken;
    use tonic::Code;
    use volley_proto::access::ClusterSecret;
    use volley_proto::connections::Listener;

    use super::super::flight;
    use super::*;

    /// Starts the services of an executor. Returns its address.
    fn serve(work_dir: &Path, secret: &ClusterSecret, stop: &CancellationToken) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let rows = Rows {
            work_dir: work_dir.to_owned(),
            connections: Arc::new(Connections::new(None, secret.clone())),
            proven: Proven::new(secret.clone(), address.clone()),
            counts: Arc::default(),
        };
        let listener = Listener::new(listener, None);
        tokio::spawn(flight::serve(listener, rows, stop.clone()));
        address
    }

    async fn take(
        heir: &str,
        (address, attempt): (&str, &str),
        secret: &ClusterSecret,
    ) -> Result<TakeRowsResponse, Status> {
        let connections = Connections::new(None, secret.clone());
        let mut client = RowsClient::new(connections.dial(heir).await.unwrap());
        let request = TakeRowsRequest {
            address: address.to_owned(),
            rows: Some(SendRowsRequest {
                attempt: attempt.to_owned(),
                stages: vec![1, 3],
            }),
        };
        let mut taken = client.take(request).await?.into_inner();
        Ok(taken.message().await?.expect("it ends with what it took"))
    }

    #[tokio::test]
    async fn an_executor_takes_the_files_of_stages() {
        let secret = ClusterSecret::generate();
        let stop = CancellationToken::new();
        let _stops = stop.clone().drop_guard();
        let (leaving, heir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let content = |length: usize| -> Vec<u8> { (0..length).map(|at| at as u8).collect() };
        let files = [
            ("1/7/data.arrow", content(2 * PART + 5)),
            ("1/7/data.arrow.index", content(16)),
            ("3/0/data-4.arrow", content(PART)),
            ("3/1/data-4.arrow", Vec::new()),
        ];
        let write = |file: &str, content: &[u8]| {
            let file = leaving.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, content).unwrap();
        };
        for (file, content) in &files {
            write(&format!("a/{file}"), content);
        }
        // Neither of these stages nor of this attempt.
        write("a/2/0/data-1.arrow", b"x");
        write("b/1/0/data-1.arrow", b"x");
        // Not whole.
        write("a/1/7/.tmp1", b"x");
        std::os::unix::fs::symlink("/etc/hostname", leaving.path().join("a/1/link")).unwrap();
        let from = serve(leaving.path(), &secret, &stop);
        let to = serve(heir.path(), &secret, &stop);
        let taken = take(&to, (&from, "a"), &secret).await.unwrap();
        let bytes: usize = files.iter().map(|(_, content)| content.len()).sum();
        assert_eq!((taken.files, taken.bytes), (4, bytes as u64));
        let mut found = Vec::new();
        list(heir.path(), &mut found).unwrap();
        assert_eq!(found.len(), files.len(), "{found:?}");
        for (file, content) in &files {
            assert!(
                fs::read(heir.path().join("a").join(file)).unwrap() == *content,
                "{file}"
            );
        }
        // Again, as after an answer that was lost.
        assert_eq!(take(&to, (&from, "a"), &secret).await.unwrap(), taken);
        let of_nothing = take(&to, (&from, "c"), &secret).await.unwrap();
        assert_eq!(of_nothing, TakeRowsResponse::default());
    }

    #[tokio::test]
    async fn only_the_cluster_moves_rows() {
        let secret = ClusterSecret::generate();
        let stop = CancellationToken::new();
        let _stops = stop.clone().drop_guard();
        let dir = tempfile::tempdir().unwrap();
        let address = serve(dir.path(), &secret, &stop);
        let of = (address.as_str(), "a");
        let refused = take(&address, of, &ClusterSecret::generate()).await;
        assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated);
        let outside = take(&address, (&address, "../a"), &secret).await;
        assert_eq!(outside.unwrap_err().code(), Code::InvalidArgument);
        let nobody = take(&address, ("127.0.0.1:1", "a"), &secret).await;
        assert_eq!(nobody.unwrap_err().code(), Code::Unavailable);
    }

    #[test]
    fn files_stay_in_the_attempt_s_folder_and_are_whole() {
        let dir = tempfile::tempdir().unwrap();
        let written = |parts: &[(&str, bool)]| {
            let (sender, receiver) = mpsc::channel(parts.len());
            for (file, ends) in parts {
                let part = SendRowsResponse {
                    file: (*file).to_owned(),
                    content: vec![1],
                    ends: *ends,
                };
                sender.try_send(part).unwrap();
            }
            drop(sender);
            write(&dir.path().join("a"), receiver).map_err(|error| error.to_string())
        };
        for file in ["../b/1", "/tmp/1", "1/../../b", "", "."] {
            let error = written(&[(file, true)]).unwrap_err();
            assert!(error.contains("outside"), "{file}: {error}");
        }
        for parts in [
            &[("1/0/x", false)][..],
            &[("1/0/x", false), ("1/0/y", true)],
        ] {
            assert!(written(parts).unwrap_err().contains("no last part"));
        }
        let mut left = Vec::new();
        list(dir.path(), &mut left).unwrap();
        assert!(left.is_empty(), "{left:?}");
    }
}
