//! A training's history as a file for TensorBoard: scalars by optimizer step.
//!
//! The format is TensorFlow's `TFRecord` of `Event` messages (`tensorflow/core/util/event.proto`,
//! `core/framework/summary.proto`), limited to the parts that scalars need.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use volley_proto::store::EpochRecord;

/// File name; TensorBoard reads files with `tfevents` in their names.
pub(super) const FILE: &str = "events.out.tfevents.volley";

const VERSION: &str = "brain.Event:2";

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since 1970.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, tag = "2")]
    simple_value: f32,
}

/// Encodes the file of a training that ended at `end`. All epochs are in it, with times counted back from
/// `end`; each point of `curve` is the mean loss of several steps, as far as this rank has seen them.
pub(super) fn encode(history: &[EpochRecord], curve: &[(u64, f64)], end: SystemTime) -> Bytes {
    let mut file = BytesMut::new();
    let seconds: f64 = history.iter().map(|epoch| epoch.seconds).sum();
    let begin = end
        .checked_sub(Duration::try_from_secs_f64(seconds).unwrap_or_default())
        .unwrap_or(UNIX_EPOCH);
    let begin = begin
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64();
    let version = Event {
        wall_time: begin,
        file_version: Some(VERSION.to_owned()),
        ..Event::default()
    };
    record(&mut file, &version);
    let mut now = begin;
    let mut done = 0;
    let mut points = curve.iter().peekable();
    for epoch in history {
        let steps = (epoch.steps - done).max(1) as f64;
        while let Some((step, loss)) = points.next_if(|(step, _)| *step <= epoch.steps) {
            let part = step.saturating_sub(done) as f64 / steps;
            let scalars = scalars(vec![("loss/steps", Some(*loss))]);
            record(
                &mut file,
                &event(now + part * epoch.seconds, *step, scalars),
            );
        }
        now += epoch.seconds;
        done = epoch.steps;
        let of_labels = epoch.labels.iter().flat_map(|of| {
            let metrics = [
                ("mae", of.eval_mae),
                ("rmse", of.eval_rmse),
                ("r2", of.eval_r2),
                ("rmspe", of.eval_rmspe),
            ];
            metrics.map(|(metric, value)| (format!("validation/{metric}/{}", of.label), value))
        });
        let of_labels: Vec<_> = of_labels.collect();
        let mut values = vec![
            ("loss/training", Some(epoch.loss)),
            ("loss/validation", epoch.eval_loss),
            ("validation/mae", epoch.eval_mae),
            ("validation/rmse", epoch.eval_rmse),
            ("validation/r2", epoch.eval_r2),
            ("validation/accuracy", epoch.eval_accuracy),
            ("validation/interval_coverage", epoch.eval_interval_coverage),
            ("learning_rate", epoch.learn_rate),
            ("validation/rmspe", epoch.eval_rmspe),
            ("seconds/epoch", Some(epoch.seconds)),
            ("seconds/compute", Some(epoch.compute_seconds)),
            ("seconds/reduce", Some(epoch.reduce_seconds)),
            ("rows_per_second", Some(epoch.rows as f64 / epoch.seconds)),
        ];
        let tagged = of_labels.iter().map(|(tag, value)| (tag.as_str(), *value));
        values.extend(tagged);
        let scalars = scalars(values);
        record(&mut file, &event(now, epoch.steps, scalars));
    }
    file.freeze()
}

fn scalars(values: Vec<(&str, Option<f64>)>) -> Summary {
    let values = values.into_iter().filter_map(|(tag, value)| {
        Some(Value {
            tag: tag.to_owned(),
            simple_value: value? as f32,
        })
    });
    Summary {
        values: values.collect(),
    }
}

fn event(wall_time: f64, step: u64, summary: Summary) -> Event {
    Event {
        wall_time,
        step: i64::try_from(step).unwrap_or(i64::MAX),
        file_version: None,
        summary: Some(summary),
    }
}

/// Writes a record: length, its checksum, message, its checksum.
fn record(file: &mut BytesMut, event: &Event) {
    let message = event.encode_to_vec();
    let length = (message.len() as u64).to_le_bytes();
    file.put_slice(&length);
    file.put_u32_le(masked(&length));
    file.put_slice(&message);
    file.put_u32_le(masked(&message));
}

/// Computes TFRecord's masked CRC-32C: rotated and offset, so that a checksum of checksums is not zero.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
        .rotate_right(15)
        .wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use bytes::Buf;

    use super::*;

    /// Decodes the events of a file, and checks its checksums.
    fn decode(mut file: Bytes) -> Vec<Event> {
        let mut events = Vec::new();
        while file.has_remaining() {
            let length = file.copy_to_bytes(8);
            assert_eq!(file.get_u32_le(), masked(&length));
            let message = file.copy_to_bytes(length.clone().get_u64_le() as usize);
            assert_eq!(file.get_u32_le(), masked(&message));
            events.push(Event::decode(message).unwrap());
        }
        events
    }

    #[test]
    fn a_history_becomes_scalars_in_the_order_of_time() {
        let epoch = |epoch: usize| EpochRecord {
            epoch,
            steps: 10 * epoch as u64,
            rows: 100,
            checksum: String::new(),
            ranks: Vec::new(),
            earlier: None,
            loss: 1.0 / epoch as f64,
            eval_loss: (epoch == 2).then_some(0.75),
            eval_mae: None,
            eval_rmse: None,
            eval_r2: None,
            eval_rmspe: None,
            eval_accuracy: None,
            eval_majority: None,
            eval_interval_coverage: None,
            labels: vec![],
            learn_rate: None,
            ended: None,
            seconds: 2.0,
            compute_seconds: 1.5,
            reduce_seconds: 0.5,
        };
        let end = UNIX_EPOCH + Duration::from_secs(1000);
        let curve = [(5, 1.5), (10, 1.0), (15, 0.75)];
        let events = decode(encode(&[epoch(1), epoch(2)], &curve, end));
        assert_eq!(events[0].file_version.as_deref(), Some(VERSION));
        let told: Vec<_> = events[1..]
            .iter()
            .map(|event| (event.step, event.wall_time))
            .collect();
        let expected = [
            (5, 997.0),
            (10, 998.0),
            (10, 998.0),
            (15, 999.0),
            (20, 1000.0),
        ];
        assert_eq!(told, expected);
        let last = events
            .last()
            .and_then(|event| event.summary.clone())
            .unwrap();
        let validation = last.values.iter().find(|v| v.tag == "loss/validation");
        assert_eq!(validation.unwrap().simple_value, 0.75);
    }
}
