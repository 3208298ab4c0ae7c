//! Attacks on processes without any of the workspace's programs: finding their ports, sending bytes, and calling
//! services with messages that no encoder makes.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bytes::{Buf, BufMut};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Request, Status};
use volley_proto::access::Token;
use volley_proto::version::{HEADER, Version};

/// Timeout of a call.
const CALL: Duration = Duration::from_secs(120);

/// Returns the TCP ports that a process listens on, as the kernel knows them.
///
/// # Panics
/// When they cannot be read.
pub fn ports(process: u32) -> BTreeSet<u16> {
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).expect("a process");
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return BTreeSet::new();
    };
    let links = files
        .flatten()
        .filter_map(|file| fs::read_link(file.path()).ok());
    let sockets: HashSet<String> = links
        .filter_map(|link| {
            let link = link.to_str()?.strip_prefix("socket:[")?;
            Some(link.strip_suffix(']')?.to_owned())
        })
        .collect();
    let listening = table.lines().skip(1).filter_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let (local, state, inode) = (columns.get(1)?, columns.get(3)?, columns.get(9)?);
        let port = u16::from_str_radix(local.rsplit(':').next()?, 16).ok()?;
        (*state == "0A" && sockets.contains(*inode)).then_some(port)
    });
    listening.collect()
}

/// Returns the peak memory of a process, in bytes.
///
/// # Panics
/// When it cannot be read.
pub fn most_memory(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    1024 * kib.expect("it says how much")
}

/// Connects to a port of this host.
///
/// # Errors
/// The operating system's error.
pub fn dial(port: u16) -> io::Result<TcpStream> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let stream = TcpStream::connect_timeout(&address, Duration::from_secs(10))?;
    stream.set_write_timeout(Some(Duration::from_secs(10)))?;
    Ok(stream)
}

/// Sends bytes as far as the other side accepts them, and hangs up.
pub fn throw(port: u16, bytes: &[u8]) {
    if let Ok(mut stream) = dial(port) {
        // The other side may hang up on refused bytes.
        stream.write_all(bytes).ok();
    }
}

/// Sends a request and reads the answer to its end.
///
/// # Panics
/// When there is no answer by the deadline.
pub fn request(port: u16, request: &str) -> String {
    let mut stream = dial(port).expect("it listens");
    stream.set_read_timeout(Some(CALL)).expect("a deadline");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

/// Checks whether the other side closes a connection within a time.
pub fn is_closed(stream: &mut TcpStream, within: Duration) -> bool {
    stream.set_read_timeout(Some(within)).expect("a deadline");
    let mut bytes = [0; 1024];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

/// Encodes a field of a message that has a length.
pub fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = head(number, content.len());
    bytes.extend_from_slice(content);
    bytes
}

/// Encodes the prefix of a field that has a length.
pub fn head(number: u32, length: usize) -> Vec<u8> {
    let key = varint(u64::from((number << 3) | 2));
    [key, varint(length as u64)].concat()
}

/// Encodes a field of a message that is a number.
pub fn number(number: u32, value: u64) -> Vec<u8> {
    [varint(u64::from(number << 3)), varint(value)].concat()
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// Calls a method with these bytes as its message, and a token if there is one. Returns the first message of the
/// answer.
///
/// # Errors
/// The service's error, or the absence of a message.
///
/// # Panics
/// When the path is invalid.
pub async fn call(
    port: u16,
    path: &str,
    message: Vec<u8>,
    token: Option<&Token>,
) -> Result<Vec<u8>, Status> {
    let unreachable = |error: tonic::transport::Error| Status::unavailable(error.to_string());
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"));
    let endpoint = endpoint.map_err(unreachable)?.timeout(CALL);
    let channel = endpoint.connect();
    let mut client = Grpc::new(channel.await.map_err(unreachable)?)
        .max_encoding_message_size(usize::MAX)
        .max_decoding_message_size(usize::MAX);
    client.ready().await.map_err(unreachable)?;
    let path = path.parse::<PathAndQuery>().expect("a path");
    let mut request = Request::new(message);
    // One that speaks another protocol is refused before its message is read.
    let version = Version::own().header().parse().expect("a header");
    request.metadata_mut().insert(HEADER, version);
    if let Some(token) = token {
        let bearer = format!("Bearer {}", token.reveal());
        let bearer = bearer.parse().expect("a header");
        request.metadata_mut().insert("authorization", bearer);
    }
    let answer = client.server_streaming(request, path, Raw).await?;
    let first = answer.into_inner().message().await?;
    first.ok_or_else(|| Status::not_found("no message in the answer"))
}

/// Codec that passes messages on as bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut bytes = vec![0; from.remaining()];
        from.copy_to_slice(&mut bytes);
        Ok(Some(bytes))
    }
}
