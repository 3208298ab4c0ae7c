//! Protocol of a probe's connection, which measures round trip and bandwidth.
//!
//! ```text
//!   dialler                      listener
//!   the token ─────────────────▶ known?
//!             ◀───────────────── WELCOME
//!   PING ──────────────────────▶
//!             ◀───────────────── PING            repeated: the median is the round trip
//!   DATA, bytes, end ──────────▶ counted for as long as they come, a second at most
//!             ◀───────────────── bytes, nanoseconds
//! ```
//!
//! The bandwidth is the number of bytes received in a period of the listener's clock; bytes left in buffers do not
//! count. Callers set the deadlines.

use std::io;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::median;

const WELCOME: u8 = b'v';
const PING: u8 = b'p';
const DATA: u8 = b'd';
/// Number of round trips in one probe.
const PINGS: usize = 21;
/// Limits on the sending time and on the number of bytes sent.
const SENDING: Duration = Duration::from_millis(300);
const MOST_SENT: u64 = 256 << 20;
/// Time limit for counting received bytes.
const COUNTING: Duration = Duration::from_secs(1);
const CHUNK: usize = 128 << 10;
/// Maximum length of a token.
pub(super) const TOKEN: usize = 36;

/// Measurements of one connection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Found {
    pub(super) round_trip: Option<Duration>,
    /// Bytes per second.
    pub(super) rate: Option<f64>,
}

/// Measures a dialled connection.
pub(super) async fn measure(mut stream: TcpStream, token: &str) -> io::Result<Found> {
    stream.set_nodelay(true)?;
    stream.write_all(token.as_bytes()).await?;
    if stream.read_u8().await? != WELCOME {
        return Err(nonsense("another process answers"));
    }
    let mut round_trips = Vec::with_capacity(PINGS);
    for _ in 0..PINGS {
        let started = Instant::now();
        stream.write_u8(PING).await?;
        if stream.read_u8().await? != PING {
            return Err(nonsense("the answer is not that of a probe"));
        }
        round_trips.push(started.elapsed());
    }
    stream.write_u8(DATA).await?;
    let (mut receive, mut send) = stream.split();
    let (chunk, mut sent, started) = (vec![0; CHUNK], 0, Instant::now());
    let sending = async {
        while started.elapsed() < SENDING && sent < MOST_SENT {
            send.write_all(&chunk).await?;
            sent += CHUNK as u64;
        }
        send.shutdown().await
    };
    let answer = async {
        let bytes = receive.read_u64().await?;
        let nanoseconds = receive.read_u64().await?;
        Ok::<_, io::Error>((bytes, nanoseconds))
    };
    // On a slow network the answer arrives while much is still to be sent.
    let (bytes, nanoseconds) = {
        tokio::pin!(answer);
        tokio::select! {
            answer = &mut answer => answer?,
            sent = sending => {
                sent?;
                answer.await?
            }
        }
    };
    let seconds = Duration::from_nanos(nanoseconds).as_secs_f64();
    Ok(Found {
        round_trip: median(round_trips),
        rate: (seconds > 0.0).then(|| bytes as f64 / seconds),
    })
}

/// Answers a connection if it sends the token.
pub(super) async fn answer(mut stream: TcpStream, token: &str) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut said = vec![0; token.len().min(TOKEN)];
    stream.read_exact(&mut said).await?;
    if said != token.as_bytes() {
        return Err(nonsense("it does not know the token"));
    }
    stream.write_u8(WELCOME).await?;
    loop {
        match stream.read_u8().await? {
            PING => stream.write_u8(PING).await?,
            DATA => return count(stream).await,
            _ => return Err(nonsense("it is not a probe's")),
        }
    }
}

/// Reports the number of bytes received and the time taken, then reads on to the end: closing a connection with
/// unread bytes may discard the answer.
async fn count(mut stream: TcpStream) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut bytes = 0_u64;
    let started = Instant::now();
    while let Some(left) = COUNTING.checked_sub(started.elapsed()) {
        match timeout(left, stream.read(&mut chunk)).await {
            Ok(Ok(0)) | Err(_) => break,
            Ok(Ok(came)) => bytes += came as u64,
            Ok(Err(error)) => return Err(error),
        }
    }
    let nanoseconds = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
    stream.write_u64(bytes).await?;
    stream.write_u64(nanoseconds).await?;
    while stream.read(&mut chunk).await? > 0 {}
    Ok(())
}

fn nonsense(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
