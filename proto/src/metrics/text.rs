//! The text, from gauges and counters.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Content type of the text.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Labels of a series: names and values.
pub type Labels = Vec<(&'static str, String)>;
/// Gauges of one name, by their labels.
pub type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;
/// Counters of one name, by their labels.
pub type Counters = Family<Labels, Counter>;

/// Counters of seconds of one name, by their labels.
pub type Seconds = Family<Labels, Counter<f64, AtomicU64>>;

/// Metrics of one scrape.
///
/// ```
/// let mut metrics = volley_proto::metrics::Metrics::default();
/// metrics.counter("volley_jobs_submitted", "Jobs that were submitted", 7);
/// let text = metrics.text().unwrap();
/// assert!(text.contains("volley_jobs_submitted_total 7"));
/// ```
#[derive(Debug, Default)]
pub struct Metrics {
    pub(super) registry: Registry,
}

impl Metrics {
    /// Adds a gauge without labels.
    pub fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.gauges(name, help)
            .get_or_create(&Labels::new())
            .set(value);
    }

    /// Adds gauges, to which the caller gives labels and values.
    pub fn gauges(&mut self, name: &str, help: &str) -> Gauges {
        let gauges = Gauges::default();
        self.registry.register(name, help, gauges.clone());
        gauges
    }

    /// Adds a counter without labels; the text appends `_total` to its name.
    pub fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.counters(name, help)
            .get_or_create(&Labels::new())
            .inc_by(value);
    }

    /// Adds counters, to which the caller gives labels and values; the text appends `_total` to their name.
    pub fn counters(&mut self, name: &str, help: &str) -> Counters {
        let counters = Counters::default();
        self.registry.register(name, help, counters.clone());
        counters
    }

    /// Adds counters of seconds, to which the caller gives labels and values; the text appends `_total` to their name.
    pub fn seconds(&mut self, name: &str, help: &str) -> Seconds {
        let seconds = Seconds::default();
        self.registry.register(name, help, seconds.clone());
        seconds
    }

    /// Returns the text.
    ///
    /// # Errors
    /// When a value has no text.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
