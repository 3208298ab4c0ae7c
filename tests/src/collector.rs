//! A collector of traces: receives spans by OTLP over gRPC, on a free port of loopback.
//!
//! This is the only file of the tests that knows OTLP's messages.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Runtime;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use volley_proto::traces::wire::trace_service_server::{TraceService, TraceServiceServer};
use volley_proto::traces::wire::{
    ExportTraceServiceRequest, ExportTraceServiceResponse, KeyValue, Span, StatusCode, any_value,
};

/// Collector of traces; dropping it stops it.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    spans: Arc<Mutex<Vec<CollectedSpan>>>,
    runtime: Option<Runtime>,
}

/// Span that a process has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedSpan {
    /// Program of the process.
    pub service: String,
    /// Name of the process among others of the program.
    pub instance: String,
    /// Id of the trace, in hexadecimal.
    pub trace: String,
    /// Id of the span, in hexadecimal.
    pub id: String,
    /// Id of the span above; `None` for the root.
    pub parent: Option<String>,
    /// Name of the span.
    pub name: String,
    /// Nanoseconds since 1970 at which it began and ended.
    pub times: [u64; 2],
    /// Attributes, as text.
    pub attributes: BTreeMap<String, String>,
    /// Names of its events.
    pub events: Vec<String>,
    /// Outcome.
    pub status: SpanStatus,
}

/// Outcome of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpanStatus {
    /// It ended neither well nor badly.
    Unset,
    /// It succeeded.
    Succeeded,
    /// It failed, with this error.
    Failed(String),
}

impl CollectedSpan {
    /// Returns an attribute.
    ///
    /// # Panics
    /// When the span does not have it.
    pub fn attribute(&self, key: &str) -> &str {
        let value = self.attributes.get(key);
        value.unwrap_or_else(|| panic!("no {key}: {self:?}"))
    }
}

impl Collector {
    /// Starts a collector, on its own threads.
    ///
    /// # Panics
    /// When a thread or a free port on loopback is lacking.
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("collector")
            .enable_all()
            .build()
            .expect("threads");
        let spans = Arc::<Mutex<Vec<CollectedSpan>>>::default();
        let service = TraceServiceServer::new(Receiver(Arc::clone(&spans)));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let address = listener.local_addr().expect("a bound address");
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            let server = Server::builder().add_service(service);
            let served = server.serve_with_incoming(TcpIncoming::from(listener));
            if let Err(error) = served.await {
                eprintln!("collector: {error}");
            }
        });
        Self {
            address,
            spans,
            runtime: Some(runtime),
        }
    }

    /// Returns its address as a URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the spans of a trace that have been sent so far.
    pub fn trace(&self, trace: &str) -> Vec<CollectedSpan> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        let of_trace = spans.iter().filter(|span| span.trace == trace);
        of_trace.cloned().collect()
    }

    /// Returns all spans that have been sent so far.
    pub fn spans(&self) -> Vec<CollectedSpan> {
        let spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropping the runtime would wait, which an asynchronous test must not.
            runtime.shutdown_background();
        }
    }
}

struct Receiver(Arc<Mutex<Vec<CollectedSpan>>>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for sent in request.into_inner().resource_spans {
            let resource = attributes(sent.resource.map(|of| of.attributes).unwrap_or_default());
            let scopes = sent.scope_spans.into_iter();
            let of_scopes = scopes.flat_map(|scope| scope.spans);
            spans.extend(of_scopes.map(|span| collected(span, &resource)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn collected(span: Span, resource: &BTreeMap<String, String>) -> CollectedSpan {
    let of_process = |key: &str| resource.get(key).cloned().unwrap_or_default();
    let status = span.status.unwrap_or_default();
    CollectedSpan {
        service: of_process("service.name"),
        instance: of_process("service.instance.id"),
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: (!span.parent_span_id.is_empty()).then(|| hex(&span.parent_span_id)),
        name: span.name,
        times: [span.start_time_unix_nano, span.end_time_unix_nano],
        attributes: attributes(span.attributes),
        events: span.events.into_iter().map(|event| event.name).collect(),
        status: match status.code() {
            StatusCode::Unset => SpanStatus::Unset,
            StatusCode::Ok => SpanStatus::Succeeded,
            StatusCode::Error => SpanStatus::Failed(status.message),
        },
    }
}

fn attributes(pairs: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |pair: KeyValue| {
        let value = match pair.value.and_then(|value| value.value) {
            Some(any_value::Value::StringValue(text)) => text,
            Some(any_value::Value::IntValue(number)) => number.to_string(),
            Some(any_value::Value::DoubleValue(number)) => number.to_string(),
            other => panic!("{}: no value is like {other:?}", pair.key),
        };
        (pair.key, value)
    };
    pairs.into_iter().map(text).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
