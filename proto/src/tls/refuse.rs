//! Answers to clients that do not speak TLS where it is required, in the protocol that they speak.
//!
//! A TLS record begins with 22, which no HTTP request does. A gRPC client begins with HTTP/2's preface, and shows its
//! user the text of a GOAWAY frame; a browser begins with a method.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::SPOKEN;

fn text() -> String {
    format!("{SPOKEN}: use https, or give --tls-ca FILE")
}

/// Content type of a TLS handshake record.
const HANDSHAKE: u8 = 22;
/// Maximum bytes read from a refused client, so that a reset does not lose the answer.
const MOST: usize = 64 * 1024;
const PATIENCE: Duration = Duration::from_secs(1);

/// Protocol that a connection begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Greeting {
    Tls,
    Other(Protocol),
}

/// Protocol other than TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
    Unknown,
}

/// Waits for the first bytes, and leaves them to be read.
pub(super) async fn look(stream: &TcpStream) -> io::Result<Greeting> {
    let mut first = [0; 4];
    let bytes = stream.peek(&mut first).await?;
    if bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(match (first[0], &first[..bytes]) {
        (HANDSHAKE, _) => Greeting::Tls,
        (_, begin) if b"PRI ".starts_with(begin) => Greeting::Other(Protocol::Http2),
        (letter, _) if letter.is_ascii_uppercase() => Greeting::Other(Protocol::Http1),
        _ => Greeting::Other(Protocol::Unknown),
    })
}

/// Answers a client, if that is possible within a moment.
pub(super) async fn tell(stream: &mut TcpStream, protocol: Protocol) {
    let answer = match protocol {
        Protocol::Http1 => format!(
            "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n\
             {}\n",
            text().len() + 1,
            text()
        )
        .into_bytes(),
        Protocol::Http2 => go_away(),
        Protocol::Unknown => return,
    };
    match stream.write_all(&answer).await {
        Ok(()) => linger(stream).await,
        Err(error) => tracing::debug!(%error, "a client is not told to speak TLS"),
    }
}

/// Closes a refused connection, reading the client's data for a moment: closing a socket with unread data resets it,
/// and the client would lose the answer, or the alert, that was sent last.
pub(super) async fn linger(stream: &mut TcpStream) {
    let closed = async {
        stream.shutdown().await?;
        let mut left = MOST;
        let mut sink = [0; 4096];
        loop {
            match stream.read(&mut sink).await? {
                0 => return Ok::<_, io::Error>(()),
                bytes if bytes > left => return Ok(()),
                bytes => left -= bytes,
            }
        }
    };
    if let Ok(Err(error)) = timeout(PATIENCE, closed).await {
        tracing::debug!(%error, "a refused client hung up");
    }
}

/// Returns HTTP/2's empty SETTINGS, then GOAWAY with INADEQUATE_SECURITY and a text: RFC 9113, sections 6.5 and 6.8.
fn go_away() -> Vec<u8> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const GOAWAY: u8 = 7;
    const INADEQUATE_SECURITY: u8 = 12;
    let length = u8::try_from(8 + text().len()).expect("the text is short");
    let mut frames = SETTINGS.to_vec();
    frames.extend([0, 0, length, GOAWAY, 0, 0, 0, 0, 0]);
    frames.extend([0, 0, 0, 0, 0, 0, 0, INADEQUATE_SECURITY]);
    frames.extend(text().as_bytes());
    frames
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        (near, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn protocols_are_told_apart_by_their_first_bytes() {
        for (bytes, expected) in [
            (&b"\x16\x03\x01"[..], Greeting::Tls),
            (b"PRI * HTTP/2.0\r\n", Greeting::Other(Protocol::Http2)),
            (b"GET / HTTP/1.1\r\n", Greeting::Other(Protocol::Http1)),
            (b"\x00\x01", Greeting::Other(Protocol::Unknown)),
        ] {
            let (mut near, far) = pair().await;
            near.write_all(bytes).await.unwrap();
            assert_eq!(look(&far).await.unwrap(), expected);
        }
        let (near, far) = pair().await;
        drop(near);
        assert!(look(&far).await.is_err(), "a port scan");
    }

    #[tokio::test]
    async fn a_browser_is_told() {
        let (mut near, mut far) = pair().await;
        near.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        let (_, told) = tokio::join!(tell(&mut far, Protocol::Http1), async {
            let mut text = String::new();
            near.read_to_string(&mut text).await.unwrap();
            drop(near);
            text
        });
        assert!(told.starts_with("HTTP/1.1 400") && told.contains("--tls-ca"));
    }
}
