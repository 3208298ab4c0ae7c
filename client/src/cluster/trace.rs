//! Span of a client's query, if the client sends traces: from its submission to the last row that was read.

use std::time::SystemTime;

use arrow::record_batch::RecordBatch;
use volley_proto::failure::chain;
use volley_proto::traces::{Part, Place, Span, Traces};

use super::Cluster;
use crate::{Error, Result};

/// Span of a query that was submitted, or nothing; it is sent when this is dropped.
#[derive(Debug)]
pub(crate) struct ClientTrace(Option<Open>);

#[derive(Debug)]
struct Open {
    traces: Traces,
    job: String,
    begun: SystemTime,
    rows: usize,
    error: Option<String>,
}

impl Cluster {
    /// Begins the span of a job that this client began to submit at `begun`.
    pub(crate) fn trace(&self, job: &str, begun: SystemTime) -> ClientTrace {
        let exporter = self.exporter.lock();
        ClientTrace(exporter.as_ref().map(|exporter| Open {
            traces: exporter.traces().clone(),
            job: job.to_owned(),
            begun,
            rows: 0,
            error: None,
        }))
    }
}

impl ClientTrace {
    /// Records the error that ended the query.
    pub(crate) fn fails(&mut self, error: &Error) {
        if let Some(open) = &mut self.0 {
            open.error = Some(chain(error));
        }
    }

    /// Counts rows that were read.
    pub(crate) fn reads(&mut self, batch: &Result<RecordBatch>) {
        match batch {
            Ok(batch) => {
                if let Some(open) = &mut self.0 {
                    open.rows += batch.num_rows();
                }
            }
            Err(error) => self.fails(error),
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let place = Place {
            job: &self.job,
            part: Part::Client,
        };
        let span = Span::new(&place, self.begun, SystemTime::now()).with("volley.rows", self.rows);
        self.traces.send(match self.error.take() {
            Some(error) => span.failed(error),
            None => span,
        });
    }
}
