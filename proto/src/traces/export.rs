//! The exporter: sends the spans of a process to a collector, in batches, beside everything else that the process does.
//!
//! ```text
//!   Traces::send ──► queue ──► batch ──► collector
//!        │ full                  │ no answer: again, a few times
//!        └──► dropped, counted ◄─┘ refused, or still no answer
//! ```
//!
//! The queue bounds the memory, deadlines bound each request, and the process's end waits at most [`END`] for the rest.
//! A collector that does not answer costs a warning a minute.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::endpoint::OtlpEndpoint;
use super::span::{Outcome, Span, SpanEvent, Value};
use super::wire;
use super::wire::trace_service_client::TraceServiceClient;
use super::wire::{
    AnyValue, ExportTraceServiceRequest, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans,
    SpanKind, SpanStatus, StatusCode, any_value,
};
use crate::metrics::{Count, Metrics};
use crate::version::Version;

/// Most spans that wait to be sent; others are dropped.
const QUEUE: usize = 8192;
/// Most spans in a request.
const BATCH: usize = 512;
/// Time for which a request waits for more spans.
const GATHER: Duration = Duration::from_millis(500);
/// Time limit for a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// Time limit for an answer, with the connection.
const ANSWER: Duration = Duration::from_secs(5);
/// Pause before a batch is sent again.
const PAUSE: Duration = Duration::from_secs(5);
/// Times that a batch is sent before it is dropped.
const TRIES: usize = 6;
/// Time limit for the rest of the spans once the process ends.
const END: Duration = Duration::from_secs(2);
/// Time between two warnings.
const QUIET: Duration = Duration::from_secs(60);
/// Flag of a span that was sampled: all are.
const SAMPLED: u32 = 1;

/// Process whose spans are exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Name of the program.
    pub name: &'static str,
    /// Name of the process among others of the program: an executor's id, or an address.
    pub instance: String,
}

/// Handle by which spans are sent; cheap to clone. Never waits.
#[derive(Debug, Clone)]
pub struct Traces {
    spans: mpsc::Sender<Span>,
    counts: Arc<Counts>,
}

/// Numbers of spans since the process started.
#[derive(Debug, Default)]
struct Counts {
    sent: Count,
    dropped: Count,
}

impl Counts {
    fn drops(&self, spans: usize) {
        self.dropped.add(spans as u64);
    }
}

impl Traces {
    /// Returns a handle, and the receiver of its spans, of which so many may wait.
    pub fn channel(waiting: usize) -> (Self, mpsc::Receiver<Span>) {
        let (spans, queue) = mpsc::channel(waiting);
        let counts = Arc::default();
        (Self { spans, counts }, queue)
    }

    /// Sends a span. It is dropped if too many wait.
    pub fn send(&self, span: Span) {
        if self.spans.try_send(span).is_err() {
            self.counts.drops(1);
        }
    }

    /// Counts spans that were given up before they were complete.
    pub fn gives_up(&self, spans: usize) {
        self.counts.drops(spans);
    }

    /// Adds the numbers of spans to a process's metrics.
    pub fn count(&self, metrics: &mut Metrics) {
        let spans = metrics.counters(
            "volley_trace_spans",
            "Spans of jobs, by outcome: sent to the collector, or dropped",
        );
        for (outcome, count) in [
            ("sent", &self.counts.sent),
            ("dropped", &self.counts.dropped),
        ] {
            let labels = vec![("outcome", outcome.to_owned())];
            spans.get_or_create(&labels).inc_by(count.get());
        }
    }

    #[cfg(test)]
    fn counted(&self) -> (u64, u64) {
        let Counts { sent, dropped } = &*self.counts;
        (sent.get(), dropped.get())
    }
}

/// Exporter of a process; dropping it stops it.
#[derive(Debug)]
pub struct Exporter {
    traces: Traces,
    stop: oneshot::Sender<()>,
    sending: JoinSet<()>,
}

impl Exporter {
    /// Starts an exporter on the runtime that this is called on. It connects when there is something to send.
    pub fn start(to: &OtlpEndpoint, service: &Service) -> Self {
        let endpoint = to.endpoint().connect_timeout(CONNECT).timeout(ANSWER);
        let (traces, queue) = Traces::channel(QUEUE);
        let sender = Sender {
            endpoint: to.to_string(),
            client: TraceServiceClient::new(endpoint.connect_lazy()),
            resource: resource(service),
            queue,
            batch: Vec::new(),
            counts: Arc::clone(&traces.counts),
            warned: None,
            fails: false,
        };
        let (stop, stopped) = oneshot::channel();
        let mut sending = JoinSet::new();
        sending.spawn(sender.run(stopped));
        tracing::info!(endpoint = %to, "traces of jobs are sent to a collector");
        Self {
            traces,
            stop,
            sending,
        }
    }

    /// Returns the handle by which spans are sent.
    pub fn traces(&self) -> &Traces {
        &self.traces
    }

    /// Sends the spans that wait, for a bounded time, and ends.
    pub async fn finish(self) {
        let Self {
            stop, mut sending, ..
        } = self;
        // The task is gone only if it has panicked.
        stop.send(()).ok();
        sending.join_next().await;
    }
}

/// The side that sends.
struct Sender {
    endpoint: String,
    client: TraceServiceClient<Channel>,
    resource: Resource,
    queue: mpsc::Receiver<Span>,
    /// Spans that are being sent.
    batch: Vec<Span>,
    counts: Arc<Counts>,
    /// Time of the last warning.
    warned: Option<Instant>,
    /// True if the last request has failed.
    fails: bool,
}

impl Sender {
    async fn run(mut self, stopped: oneshot::Receiver<()>) {
        tokio::select! {
            biased;
            _ = stopped => {}
            never = self.serve() => match never {},
        }
        if timeout(END, self.rest()).await.is_err() {
            tracing::debug!("some spans were not sent before the process ended");
        }
    }

    /// Sends spans as they come. It may be dropped at any point: the batch stays.
    async fn serve(&mut self) -> Infallible {
        loop {
            if self.queue.recv_many(&mut self.batch, BATCH).await == 0 {
                // No handle is left; the exporter is about to be dropped.
                std::future::pending::<()>().await;
            }
            if self.batch.len() < BATCH {
                sleep(GATHER).await;
                self.fill();
            }
            self.send().await;
        }
    }

    /// Sends what waits, once.
    async fn rest(&mut self) {
        loop {
            self.fill();
            if self.batch.is_empty() {
                return;
            }
            let sent = self.request().await;
            if let Err(status) = &sent {
                self.warn(status);
                self.counts.drops(self.batch.len());
            }
            self.batch.clear();
            if sent.is_err() {
                return;
            }
        }
    }

    /// Adds spans that wait to the batch.
    fn fill(&mut self) {
        while self.batch.len() < BATCH
            && let Ok(span) = self.queue.try_recv()
        {
            self.batch.push(span);
        }
    }

    /// Sends the batch, again if there is no answer, and drops it in the end.
    async fn send(&mut self) {
        for tries in 1..=TRIES {
            let Err(status) = self.request().await else {
                break;
            };
            self.warn(&status);
            if tries == TRIES || is_final(status.code()) {
                self.counts.drops(self.batch.len());
                break;
            }
            sleep(PAUSE).await;
        }
        self.batch.clear();
    }

    /// Sends the batch once, and counts its spans if the collector takes it.
    async fn request(&mut self) -> Result<(), Status> {
        let request = self.message();
        let answer = timeout(ANSWER, self.client.export(request)).await;
        let answer = answer.unwrap_or_else(|_| {
            Err(Status::deadline_exceeded(format!(
                "no answer within {ANSWER:?}"
            )))
        })?;
        let partial = answer.into_inner().partial_success;
        let rejected = partial.as_ref().map_or(0, |partial| partial.rejected_spans);
        let rejected = usize::try_from(rejected).unwrap_or(0);
        let rejected = rejected.min(self.batch.len());
        self.counts.drops(rejected);
        let taken = (self.batch.len() - rejected) as u64;
        self.counts.sent.add(taken);
        match partial.filter(|_| rejected > 0) {
            Some(partial) => self.warn(&Status::invalid_argument(partial.error_message)),
            None if self.fails => {
                self.fails = false;
                tracing::info!(endpoint = self.endpoint, "the collector takes spans again");
            }
            None => {}
        }
        Ok(())
    }

    fn message(&self) -> ExportTraceServiceRequest {
        let scope = Scope {
            name: "volley".to_owned(),
            version: Version::own().build,
        };
        ExportTraceServiceRequest {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans {
                    scope: Some(scope),
                    spans: self.batch.iter().map(span).collect(),
                }],
            }],
        }
    }

    /// Warns that spans are not taken, from time to time.
    fn warn(&mut self, status: &Status) {
        self.fails = true;
        if self.warned.is_none_or(|last| last.elapsed() >= QUIET) {
            self.warned = Some(Instant::now());
            let code = status.code();
            let error = status.message();
            tracing::warn!(
                endpoint = self.endpoint,
                ?code,
                error,
                "the collector does not take the spans of traces; jobs are not affected"
            );
        }
    }
}

/// Checks whether a request that was refused so would be refused again.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::FailedPrecondition
            | Code::Unimplemented
    )
}

fn resource(service: &Service) -> Resource {
    let attributes: [(&'static str, Value); 4] = [
        ("service.name", service.name.into()),
        ("service.version", Version::own().build.into()),
        ("service.instance.id", service.instance.clone().into()),
        ("process.pid", u64::from(std::process::id()).into()),
    ];
    Resource {
        attributes: attributes.iter().map(attribute).collect(),
    }
}

/// Returns a span as OTLP has it.
fn span(span: &Span) -> wire::Span {
    let kind = match span.waits {
        true => SpanKind::Client,
        false => SpanKind::Internal,
    };
    let (code, message) = match &span.outcome {
        Outcome::Ended => (StatusCode::Unset, String::new()),
        Outcome::Succeeded => (StatusCode::Ok, String::new()),
        Outcome::Failed(reason) => (StatusCode::Error, reason.clone()),
    };
    let parent = span.parent.as_ref();
    wire::Span {
        trace_id: span.trace.bytes().to_vec(),
        span_id: span.id.bytes().to_vec(),
        parent_span_id: parent.map_or_else(Vec::new, |parent| parent.bytes().to_vec()),
        flags: SAMPLED,
        name: span.name.to_owned(),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end),
        attributes: span.attributes.iter().map(attribute).collect(),
        events: span.events.iter().map(event).collect(),
        dropped_events_count: span.left_out,
        status: Some(SpanStatus {
            message,
            code: code.into(),
        }),
    }
}

fn event(event: &SpanEvent) -> wire::Event {
    wire::Event {
        time_unix_nano: nanos(event.at),
        name: event.name.to_owned(),
        attributes: event.attributes.iter().map(attribute).collect(),
    }
}

fn attribute((key, value): &(&'static str, Value)) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::StringValue(text.clone()),
        Value::Whole(number) => any_value::Value::IntValue(*number),
        Value::Real(number) => any_value::Value::DoubleValue(*number),
    };
    KeyValue {
        key: (*key).to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}

/// Returns nanoseconds since 1970.
fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use tokio::net::TcpListener;
    use tonic::transport::Server;
    use tonic::transport::server::TcpIncoming;
    use tonic::{Request, Response};

    use super::super::place::{Part, Place};
    use super::super::wire::trace_service_server::{TraceService, TraceServiceServer};
    use super::super::wire::{ExportTraceServiceResponse, PartialSuccess};
    use super::*;

    /// Collector that answers as it is told.
    #[derive(Clone, Default)]
    struct Collector {
        /// Answers to the next requests, the last one first; others are taken.
        answers: Arc<Mutex<Vec<Result<i64, Status>>>>,
        spans: Arc<Mutex<Vec<wire::Span>>>,
    }

    #[tonic::async_trait]
    impl TraceService for Collector {
        async fn export(
            &self,
            request: Request<ExportTraceServiceRequest>,
        ) -> Result<Response<ExportTraceServiceResponse>, Status> {
            let answer = self.answers.lock().pop().unwrap_or(Ok(0));
            let rejected_spans = answer?;
            let resources = request.into_inner().resource_spans;
            let scopes = resources.into_iter().flat_map(|spans| spans.scope_spans);
            self.spans
                .lock()
                .extend(scopes.flat_map(|scope| scope.spans));
            Ok(Response::new(ExportTraceServiceResponse {
                partial_success: Some(PartialSuccess {
                    rejected_spans,
                    error_message: "too many".to_owned(),
                }),
            }))
        }
    }

    impl Collector {
        async fn serve(&self, running: &mut JoinSet<()>) -> OtlpEndpoint {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let service = TraceServiceServer::new(self.clone());
            let incoming = TcpIncoming::from(listener);
            let server = Server::builder().add_service(service);
            running.spawn(async move {
                server.serve_with_incoming(incoming).await.unwrap();
            });
            format!("http://{address}").parse().unwrap()
        }
    }

    fn start(to: &OtlpEndpoint) -> Exporter {
        let service = Service {
            name: "volley-test",
            instance: "1".to_owned(),
        };
        Exporter::start(to, &service)
    }

    fn job(id: &str) -> Span {
        let place = Place {
            job: id,
            part: Part::Job,
        };
        let now = SystemTime::now();
        Span::new(&place, now, now).failed("no")
    }

    #[tokio::test]
    async fn what_waits_is_sent_at_the_end() {
        let (collector, mut running) = (Collector::default(), JoinSet::new());
        let exporter = start(&collector.serve(&mut running).await);
        let traces = exporter.traces().clone();
        // More than one request.
        for number in 0..BATCH + 1 {
            traces.send(job(&number.to_string()));
        }
        exporter.finish().await;
        assert_eq!(traces.counted(), (BATCH as u64 + 1, 0));
        let spans = collector.spans.lock();
        assert_eq!(spans.len(), BATCH + 1);
        let first = &spans[0];
        assert_eq!((first.trace_id.len(), first.span_id.len()), (16, 8));
        assert!(first.parent_span_id.is_empty());
        let status = first.status.as_ref().unwrap();
        assert_eq!((status.code(), &*status.message), (StatusCode::Error, "no"));
        drop(spans);
        traces.send(job("late"));
        assert_eq!(traces.counted().1, 1, "the exporter is gone");
    }

    #[tokio::test]
    async fn refused_spans_are_dropped_and_counted() {
        let (collector, mut running) = (Collector::default(), JoinSet::new());
        let endpoint = collector.serve(&mut running).await;
        for (answer, due) in [
            (Err(Status::unauthenticated("who?")), (0, 2)),
            (Ok(1), (1, 1)),
            (Ok(0), (2, 0)),
        ] {
            collector.answers.lock().push(answer);
            let exporter = start(&endpoint);
            let traces = exporter.traces().clone();
            traces.send(job("a"));
            traces.send(job("b"));
            exporter.finish().await;
            assert_eq!(traces.counted(), due);
        }
    }

    #[tokio::test]
    async fn nobody_waits_for_a_collector_that_is_not_there() {
        let nobody = {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            format!("http://{}", listener.local_addr().unwrap())
        };
        let exporter = start(&nobody.parse().unwrap());
        let traces = exporter.traces().clone();
        // As many as wait, those that are being sent, and one more.
        for number in 0..QUEUE + BATCH + 1 {
            traces.send(job(&number.to_string()));
        }
        let (sent, dropped) = traces.counted();
        assert_eq!(sent, 0);
        assert!(dropped >= 1, "the queue is bounded");
        let mut metrics = Metrics::default();
        traces.count(&mut metrics);
        let text = metrics.text().unwrap();
        let line = format!("volley_trace_spans_total{{outcome=\"dropped\"}} {dropped}");
        assert!(text.contains(&line), "{text}");
        exporter.finish().await;
    }
}
