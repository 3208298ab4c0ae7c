//! One GET of JSON, for the scheduler's REST interface: HTTP/1.0, where the body ends with the
//! connection, so that there is nothing to know of chunks and lengths. Not an HTTP client.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of an answer, at most.
const LONGEST: u64 = 16 * 1024 * 1024;

/// What is at `path` on the server at `address` (`host:port`).
///
/// # Errors
/// When the server does not answer, answers with an error, or with something else than a `T`.
pub(super) async fn get_json<T: DeserializeOwned>(address: &str, path: &str) -> Result<T> {
    let got = timeout(PATIENCE, get(address, path)).await;
    let late = || {
        let what = format!("{address} did not answer within {PATIENCE:?}");
        Error::new(ErrorKind::TimedOut, what)
    };
    let response = got.map_err(|_| late())??;
    serde_json::from_slice(body(&response)?).map_err(Error::from)
}

/// The whole answer.
async fn get(address: &str, path: &str) -> Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    let request =
        format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    let read = stream.take(LONGEST + 1).read_to_end(&mut response).await?;
    if read as u64 > LONGEST {
        let what = format!("{address} answers with more than {LONGEST} bytes");
        return Err(Error::new(ErrorKind::InvalidData, what));
    }
    Ok(response)
}

fn body(response: &[u8]) -> Result<&[u8]> {
    const END_OF_HEAD: &[u8] = b"\r\n\r\n";
    let refuse = |what: String| Error::new(ErrorKind::InvalidData, what);
    let head = response
        .windows(END_OF_HEAD.len())
        .position(|bytes| bytes == END_OF_HEAD);
    let head = head.ok_or_else(|| refuse("the answer is not HTTP".into()))?;
    let status = String::from_utf8_lossy(&response[..head])
        .lines()
        .next()
        .unwrap_or("")
        .to_owned();
    if status.split(' ').nth(1) == Some("200") {
        Ok(&response[head + END_OF_HEAD.len()..])
    } else {
        Err(refuse(status))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn only_a_200_has_a_body() {
        assert_eq!(body(b"HTTP/1.0 200 OK\r\nA: b\r\n\r\n[1]").unwrap(), b"[1]");
        assert_eq!(
            body(b"HTTP/1.1 404 Not Found\r\n\r\n")
                .unwrap_err()
                .to_string(),
            "HTTP/1.1 404 Not Found"
        );
        assert!(body(b"garbage").is_err());
    }

    #[test]
    fn no_answer_makes_it_panic() {
        bolero::check!(name = "http")
            .with_iterations(20_000)
            .for_each(|bytes| {
                if let Ok(body) = body(bytes) {
                    assert!(bytes.ends_with(body));
                }
            });
    }

    #[tokio::test]
    async fn gets_json() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            stream
                .write_all(b"HTTP/1.0 200 OK\r\n\r\n[1, 2]")
                .await
                .unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        });
        assert_eq!(
            get_json::<Vec<u8>>(&address, "/api/x").await.unwrap(),
            [1, 2]
        );
        assert!(server.await.unwrap().starts_with("GET /api/x HTTP/1.0\r\n"));
    }
}
