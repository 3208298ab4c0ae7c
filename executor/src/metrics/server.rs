//! The server of metrics and probes.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::service::Routes;
use volley_proto::access::{ExposureOptions, may_listen};
use volley_proto::connections::{Listener, server};
use volley_proto::metrics::OPEN_METRICS;
use volley_proto::tls::ClientCertificate;

use super::Vitals;
use super::readers::Readers;
use crate::config::MetricsConfig;
use crate::{Error, ExecutorConfig, Result};

/// Time after which somebody must be able to read the metrics.
const STARTING: Duration = Duration::from_secs(10);
/// Most connections: files are for tasks and shuffle data.
const CONNECTIONS: usize = 64;

/// Time limit for the text of the metrics.
const PATIENCE: Duration = Duration::from_secs(10);

/// Refusal of requests without a valid token.
const WANTED: &str = "this executor wants a token for its metrics: the one whose hash --metrics-token has, or without that \
                      option the one of a scheduler of the same user on this host\n";

/// Options of the address, and of its tokens.
const OPTIONS: ExposureOptions = ExposureOptions {
    bind: "--metrics",
    tokens: "--metrics-token HASH",
};

/// Parts of the server.
#[derive(Debug)]
struct Page {
    vitals: Arc<Vitals>,
    readers: Readers,
    /// Lock that is held while the text is made, so that one is made at a time.
    turn: Arc<Mutex<()>>,
}

/// Listens for requests.
///
/// # Errors
/// When the executor must not listen on the address, or cannot.
pub(crate) fn listen(config: &ExecutorConfig, metrics: &MetricsConfig) -> Result<Listener> {
    let (address, tls) = (metrics.listen, config.tls.clone());
    let tokens = !metrics.tokens.is_empty();
    may_listen(
        address.ip(),
        tokens,
        tls.is_some(),
        config.insecure,
        OPTIONS,
    )
    .map_err(Error::Exposed)?;
    let bound = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        tracing::info!(address = %bound, "answers /metrics, /livez and /readyz");
        TcpListener::from_std(listener)
    });
    let tcp = bound.map_err(|source| Error::Bind {
        address: address.to_string(),
        source,
    })?;
    Ok(Listener::at_most(
        tcp,
        tls.map(|tls| (tls, ClientCertificate::Optional)),
        CONNECTIONS,
    ))
}

/// Serves for as long as this is polled.
pub(crate) async fn serve(listener: Listener, metrics: MetricsConfig, vitals: Arc<Vitals>) {
    let readers = Readers::of(&vitals.config, &metrics);
    if matches!(readers, Readers::Anybody) {
        tracing::warn!("no token is required for the metrics");
    }
    let page = Arc::new(Page {
        vitals,
        readers,
        turn: Arc::default(),
    });
    // A scheduler that starts at the same time makes its token meanwhile.
    let warning = async {
        tokio::time::sleep(STARTING).await;
        if let Some(reason) = page.readers.nobody() {
            tracing::warn!("{reason}");
        }
    };
    let routes = Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(tell))
        .fallback(nothing_there)
        .with_state(Arc::clone(&page));
    // HTTP/1 has a deadline for a request's head.
    let served = server()
        .accept_http1(true)
        .add_routes(Routes::from(routes))
        .serve_with_incoming(listener.into_stream());
    let (served, ()) = tokio::join!(served, warning);
    if let Err(error) = served {
        tracing::error!(%error, "metrics and probes are not answered any more");
    }
}

async fn nothing_there(at: Uri) -> Response {
    let reason = format!("nothing is at {}\n", at.path());
    (StatusCode::NOT_FOUND, reason).into_response()
}

async fn ready(State(page): State<Arc<Page>>) -> Response {
    match page.vitals.unready() {
        None => "ok\n".into_response(),
        Some(reason) => {
            let reason = format!("{reason}\n");
            (StatusCode::SERVICE_UNAVAILABLE, reason).into_response()
        }
    }
}

async fn tell(State(page): State<Arc<Page>>, headers: HeaderMap) -> Response {
    let sent = headers.get(header::AUTHORIZATION);
    let sent = sent.and_then(|sent| sent.to_str().ok()).map(str::to_owned);
    let text = async {
        let turn = Arc::clone(&page.turn).lock_owned().await;
        // It goes on when it is late, and the next one waits for it.
        spawn_blocking(move || {
            let _turn = turn;
            let is_reader = page.readers.include(sent.as_deref());
            is_reader.then(|| page.vitals.text()).transpose()
        })
        .await
    };
    match timeout(PATIENCE, text).await {
        Ok(Ok(Ok(Some(text)))) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Ok(Ok(Ok(None))) => {
            let headers = [(header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, headers, WANTED).into_response()
        }
        Ok(Ok(Err(error))) => failed(&error.to_string()),
        Ok(Err(error)) => failed(&error.to_string()),
        Err(_) => failed(&format!("the metrics are not there within {PATIENCE:?}")),
    }
}

fn failed(reason: &str) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("{reason}\n")).into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_util::sync::CancellationToken;
    use volley_proto::access::Token;

    use super::*;
    use crate::ballista::Tasks;
    use crate::counts::Counts;
    use crate::rank::Parking;

    /// Returns the whole answer to a request, with its head.
    async fn ask(address: std::net::SocketAddr, path: &str, token: Option<&Token>) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let bearer = token.map_or_else(String::new, |token| {
            format!("Authorization: Bearer {}\r\n", token.reveal())
        });
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: executor\r\n{bearer}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn probes_and_metrics_tell_how_the_executor_is() {
        let dir = tempfile::tempdir().unwrap();
        let (token, other) = (Token::generate(), Token::generate());
        let config = ExecutorConfig::local("e-1", "127.0.0.1:9", dir.path().to_owned());
        let metrics = MetricsConfig {
            listen: "127.0.0.1:0".parse().unwrap(),
            tokens: vec![token.hash()],
        };
        let (counts, leaving) = (Arc::new(Counts::default()), CancellationToken::new());
        let vitals = Arc::new(Vitals::new(
            config.clone(),
            Arc::clone(&counts),
            Parking::default(),
            leaving.clone(),
        ));
        let listener = listen(&config, &metrics).unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, metrics, Arc::clone(&vitals)));
        let status = async |path: &str| {
            let answer = ask(address, path, None).await;
            answer.split(' ').nth(1).unwrap().to_owned()
        };
        assert_eq!(status("/livez").await, "200");
        assert_eq!(status("/readyz").await, "503", "it is not registered");
        let (tasks, _ended) = Tasks::new(CancellationToken::new());
        vitals.attends(tasks);
        assert_eq!(status("/readyz").await, "200");
        for path in ["/", "/metrics/", "/livez/x", "/api/volley/jobs"] {
            assert_eq!(status(path).await, "404", "{path}");
        }
        assert_eq!(status("/metrics").await, "401");
        let refused = ask(address, "/metrics", Some(&other)).await;
        assert!(refused.starts_with("HTTP/1.1 401 "), "{refused}");

        counts.tasks_failed.add(3);
        std::fs::write(dir.path().join("data"), [0_u8; 11]).unwrap();
        let text = ask(address, "/metrics", Some(&token)).await;
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        for line in [
            "volley_executor_ready 1.0",
            "volley_executor_registrations_total 1",
            "volley_tasks_running 0.0",
            "volley_tasks_ended_total{outcome=\"failed\"} 3",
            "volley_work_folder_bytes 11.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
        leaving.cancel();
        assert_eq!(status("/readyz").await, "503", "it leaves");
        assert_eq!(status("/livez").await, "200");
    }

    #[test]
    fn beyond_loopback_a_token_and_tls_are_wanted() {
        let config = ExecutorConfig::local("e", "127.0.0.1:9", "unused".into());
        let metrics = MetricsConfig {
            listen: "0.0.0.0:0".parse().unwrap(),
            tokens: Vec::new(),
        };
        let refused = listen(&config, &metrics);
        assert!(matches!(refused, Err(Error::Exposed(_))), "{refused:?}");
    }
}
