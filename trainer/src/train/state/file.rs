//! A state as bytes: one file in the safetensors format, the same bytes for the same state.
//!
//! | Entry | Contents |
//! |---|---|
//! | `weights.<i>`, `kept.<i>` | the parameters in the network's order, current and of the kept epoch, `f32` |
//! | `optimizer.<i>` | the optimizer's numbers for all parameters, `f32` |
//! | `scaling` | null value, shift, unit and null indicator (0 or 1) of each label and continuous feature, `f64` |
//! | `quantiles.<i>`, `bins.<i>` | quantiles that rank the continuous feature's numbers, `f64`, and edges of its bins, `f32`; absent if it has none |
//! | `weights.bn.mean`, `weights.bn.variance`, `kept.…` | batch norm's running statistics, `f64` |
//! | metadata `state` | JSON: everything else; `f64` numbers as their bits, `{"bits": …}` |

use std::borrow::Cow;
use std::collections::HashMap;

use bytes::Bytes;
use safetensors::tensor::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use volley_proto::store::{EpochRecord, Position, Quantiles, Scale};

use super::{Basis, EpochProgress, Kept, Selected, TrainingState, Weights};
use crate::encode::{FeatureScale, Scaling};
use crate::network::Normalization;
use crate::train::coverage::Covered;
use crate::{Error, Result};

/// Version of the layout that this build writes and reads.
const FORMAT: u32 = 5;
const METADATA: &str = "state";

// Numbers are written in their in-memory representation.
const _: () = assert!(cfg!(target_endian = "little"));

/// Everything that is not a tensor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    format: u32,
    basis: Basis,
    global_batch: u64,
    position: Position,
    parameters: usize,
    slots: usize,
    loss: f64,
    weight: f64,
    covered: Covered,
    history: Vec<EpochRecord>,
    /// Number of labels.
    labels: usize,
    /// The kept epoch and its score.
    kept: Option<(usize, f64)>,
    selected: Option<Selected>,
}

/// Puts the bits of each `f64` in its place: reading its text may give another number.
fn with_bits(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            json!({ "bits": number.as_f64().map(f64::to_bits) })
        }
        Value::Array(values) => values.into_iter().map(with_bits).collect(),
        Value::Object(fields) => {
            let fields = fields.into_iter();
            fields
                .map(|(name, value)| (name, with_bits(value)))
                .collect()
        }
        other => other,
    }
}

/// Puts the `f64` of all bits back.
fn from_bits(value: Value) -> Value {
    match value {
        Value::Array(values) => values.into_iter().map(from_bits).collect(),
        Value::Object(fields) => match fields.get("bits").and_then(Value::as_u64) {
            Some(bits) => f64::from_bits(bits).into(),
            None => {
                let fields = fields.into_iter();
                fields
                    .map(|(name, value)| (name, from_bits(value)))
                    .collect()
            }
        },
        other => other,
    }
}

impl TrainingState {
    /// Encodes the state; [`decode`](Self::decode) gives the same state, bit by bit.
    pub fn encode(&self) -> Bytes {
        let slots = self.slots.iter().map(|slot| Cow::Borrowed(slot.as_slice()));
        let kept = self.kept.as_ref();
        file(
            self.head(),
            &self.scaling,
            slots.collect(),
            Cow::Borrowed(&self.weights),
            kept.map(|kept| Cow::Borrowed(&kept.weights)),
        )
    }

    /// Encodes the state as [`encode`](Self::encode) does, and frees each part of it as soon as it is written.
    pub(in crate::train) fn into_bytes(self) -> Bytes {
        let head = self.head();
        let Self {
            scaling,
            slots,
            weights,
            kept,
            ..
        } = self;
        let slots = slots.into_iter().map(Cow::<[f32]>::Owned);
        file(
            head,
            &scaling,
            slots.collect(),
            Cow::Owned(weights),
            kept.map(|kept| Cow::Owned(kept.weights)),
        )
    }

    /// Returns everything that is not a tensor, as text.
    fn head(&self) -> String {
        let head = Head {
            format: FORMAT,
            basis: self.basis.clone(),
            global_batch: self.global_batch,
            position: self.position,
            parameters: self.weights.values.len(),
            slots: self.slots.len(),
            loss: self.progress.loss,
            weight: self.progress.weight,
            covered: self.progress.covered,
            history: self.history.clone(),
            labels: self.scaling.labels.len(),
            kept: self.kept.as_ref().map(|kept| (kept.epoch, kept.score)),
            selected: self.selected,
        };
        let head = serde_json::to_value(&head).expect("a state's head is what JSON can say");
        with_bits(head).to_string()
    }

    /// Decodes a state that was [encoded](Self::encode) as these bytes.
    ///
    /// # Errors
    /// When they are damaged, or of a layout that this build does not read.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |source| Error::StateFile {
            problem: "it is not in the safetensors format".into(),
            source: Some(Box::new(source)),
        };
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
        let tensors = SafeTensors::deserialize(bytes).map_err(damaged)?;
        let head = metadata.metadata().as_ref().and_then(|m| m.get(METADATA));
        let head = head.ok_or_else(|| wrong(format!("it has no metadata {METADATA:?}")))?;
        let Format { format } = parse(head)?;
        if format != FORMAT {
            let problem = format!("its format is {format}, this build reads {FORMAT}");
            return Err(wrong(problem));
        }
        let head: Head = serde_json::from_value(from_bits(parse(head)?)).map_err(malformed)?;
        let kept = match head.kept {
            Some((epoch, score)) => Some(Kept {
                epoch,
                score,
                weights: Weights::read("kept", head.parameters, &tensors)?,
            }),
            None => None,
        };
        let state = Self {
            basis: head.basis,
            global_batch: head.global_batch,
            scaling: read_scaling(head.labels, &tensors)?,
            position: head.position,
            weights: Weights::read("weights", head.parameters, &tensors)?,
            slots: (0..head.slots)
                .map(|at| read_f32(&format!("optimizer.{at}"), &tensors))
                .collect::<Result<_>>()?,
            progress: EpochProgress {
                loss: head.loss,
                weight: head.weight,
                covered: head.covered,
            },
            history: head.history,
            kept,
            selected: head.selected,
        };
        state.check_head()?;
        if !state.basis.is_sound() {
            return Err(wrong("its vocabularies are not sorted".into()));
        }
        Ok(state)
    }

    /// Checks that the numbers of the head are consistent.
    fn check_head(&self) -> Result<()> {
        let epochs = self.history.len();
        let kept = self
            .kept
            .as_ref()
            .is_none_or(|k| (1..=epochs).contains(&k.epoch));
        let selected = self.selected.is_none_or(|selected| {
            (1..=selected.epochs).contains(&selected.kept) && selected.epochs <= epochs
        });
        // The count of steps continues from one epoch to the next.
        let Position { epoch, step, steps } = self.position;
        let counted = self.history.iter().map(|record| record.steps);
        let counted = counted.chain([steps]);
        if kept
            && selected
            && self.global_batch > 0
            && epoch == epochs + 1
            && counted.is_sorted()
            && step <= steps
        {
            Ok(())
        } else {
            Err(wrong(
                "its position and its history contradict each other".into(),
            ))
        }
    }
}

/// Writes a state's file; numbers that it is given are freed one after the other.
fn file(
    head: String,
    scaling: &Scaling,
    slots: Vec<Cow<'_, [f32]>>,
    weights: Cow<'_, Weights>,
    kept: Option<Cow<'_, Weights>>,
) -> Bytes {
    let features = scaling.features.iter().map(|of| &of.scale);
    let scales = scaling.labels.iter().chain(features);
    let scales = scales.flat_map(|of| {
        [
            of.null,
            of.shift,
            of.unit,
            f64::from(u8::from(of.indicator)),
        ]
    });
    let mut tensors = vec![("scaling".to_owned(), Tensor::doubles(scales.collect()))];
    for (at, of) in scaling.features.iter().enumerate() {
        if let Some(quantiles) = &of.quantiles {
            let quantiles = Tensor::doubles(quantiles.to_vec().into());
            tensors.push((format!("quantiles.{at}"), quantiles));
        }
        if !of.bins.is_empty() {
            let bins = Tensor::floats(Cow::Borrowed(of.bins.as_slice()));
            tensors.push((format!("bins.{at}"), bins));
        }
    }
    let slots = slots.into_iter().enumerate();
    tensors.extend(slots.map(|(at, slot)| (format!("optimizer.{at}"), Tensor::floats(slot))));
    write("weights", weights, &mut tensors);
    if let Some(kept) = kept {
        write("kept", kept, &mut tensors);
    }
    // One entry only: a map of several has no fixed order.
    let metadata = HashMap::from([(METADATA.to_owned(), head)]);
    let file = safetensors::serialize(tensors, Some(metadata));
    Bytes::from(file.expect("names and shapes are what the format can say"))
}

fn write<'a>(of: &str, weights: Cow<'a, Weights>, tensors: &mut Vec<(String, Tensor<'a>)>) {
    let name = |at: usize| format!("{of}.{at}");
    let (mean, variance) = match weights {
        Cow::Borrowed(Weights { values, running }) => {
            let values = values.iter().enumerate();
            tensors.extend(
                values.map(|(at, values)| {
                    (name(at), Tensor::floats(Cow::Borrowed(values.as_slice())))
                }),
            );
            let (mean, variance) = (running.mean.as_slice(), running.variance.as_slice());
            (Cow::Borrowed(mean), Cow::Borrowed(variance))
        }
        Cow::Owned(Weights { values, running }) => {
            let values = values.into_iter().enumerate();
            tensors.extend(values.map(|(at, values)| (name(at), Tensor::floats(values.into()))));
            (running.mean.into(), running.variance.into())
        }
    };
    tensors.push((format!("{of}.bn.mean"), Tensor::doubles(mean)));
    tensors.push((format!("{of}.bn.variance"), Tensor::doubles(variance)));
}

/// Numbers to write.
#[derive(Debug)]
struct Tensor<'a> {
    shape: [usize; 1],
    numbers: Numbers<'a>,
}

#[derive(Debug)]
enum Numbers<'a> {
    F32(Cow<'a, [f32]>),
    F64(Cow<'a, [f64]>),
}

impl<'a> Tensor<'a> {
    fn floats(numbers: Cow<'a, [f32]>) -> Self {
        Self {
            shape: [numbers.len()],
            numbers: Numbers::F32(numbers),
        }
    }

    fn doubles(numbers: Cow<'a, [f64]>) -> Self {
        Self {
            shape: [numbers.len()],
            numbers: Numbers::F64(numbers),
        }
    }

    fn bytes(&self) -> &[u8] {
        match &self.numbers {
            Numbers::F32(numbers) => bytemuck::cast_slice(numbers),
            Numbers::F64(numbers) => bytemuck::cast_slice(numbers),
        }
    }
}

impl View for Tensor<'_> {
    fn dtype(&self) -> Dtype {
        match &self.numbers {
            Numbers::F32(_) => Dtype::F32,
            Numbers::F64(_) => Dtype::F64,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes().into()
    }

    fn data_len(&self) -> usize {
        self.bytes().len()
    }
}

impl Weights {
    fn read(of: &str, parameters: usize, tensors: &SafeTensors<'_>) -> Result<Self> {
        let values = (0..parameters).map(|at| read_f32(&format!("{of}.{at}"), tensors));
        Ok(Self {
            values: values.collect::<Result<_>>()?,
            running: Normalization {
                mean: read_f64(&format!("{of}.bn.mean"), tensors)?,
                variance: read_f64(&format!("{of}.bn.variance"), tensors)?,
            },
        })
    }
}

#[derive(Deserialize)]
struct Format {
    format: u32,
}

fn parse<'a, T: Deserialize<'a>>(head: &'a str) -> Result<T> {
    serde_json::from_str(head).map_err(malformed)
}

fn malformed(source: serde_json::Error) -> Error {
    Error::StateFile {
        problem: format!("its metadata {METADATA:?} is malformed"),
        source: Some(Box::new(source)),
    }
}

fn read_f32(name: &str, tensors: &SafeTensors<'_>) -> Result<Vec<f32>> {
    read(name, Dtype::F32, tensors).map(bytemuck::pod_collect_to_vec)
}

fn read_f64(name: &str, tensors: &SafeTensors<'_>) -> Result<Vec<f64>> {
    read(name, Dtype::F64, tensors).map(bytemuck::pod_collect_to_vec)
}

fn read_scaling(labels: usize, tensors: &SafeTensors<'_>) -> Result<Scaling> {
    let numbers = read_f64("scaling", tensors)?;
    let scales = numbers.chunks_exact(4).map(|of| Scale {
        null: of[0],
        shift: of[1],
        unit: of[2],
        indicator: of[3] != 0.0,
    });
    let mut scales: Vec<_> = scales.collect();
    if labels == 0 || scales.len() < labels {
        return Err(wrong("its scaling is not of its labels".into()));
    }
    let of_features = scales.split_off(labels);
    let has = |name: &str| tensors.tensor(name).is_ok();
    let features = of_features.into_iter().enumerate().map(|(at, scale)| {
        let (quantiles, bins) = (format!("quantiles.{at}"), format!("bins.{at}"));
        Ok(FeatureScale {
            scale,
            quantiles: match has(&quantiles) {
                true => Some(Quantiles::from(read_f64(&quantiles, tensors)?)),
                false => None,
            },
            bins: match has(&bins) {
                true => read_f32(&bins, tensors)?,
                false => vec![],
            },
        })
    });
    Ok(Scaling {
        labels: scales,
        features: features.collect::<Result<_>>()?,
    })
}

fn read<'a>(name: &str, dtype: Dtype, tensors: &SafeTensors<'a>) -> Result<&'a [u8]> {
    match tensors.tensor(name) {
        Ok(tensor) if tensor.dtype() == dtype => Ok(tensor.data()),
        Ok(tensor) => {
            let actual = tensor.dtype();
            Err(wrong(format!(
                "tensor {name} is {actual:?} instead of {dtype:?}"
            )))
        }
        Err(source) => Err(Error::StateFile {
            problem: format!("tensor {name} is missing"),
            source: Some(Box::new(source)),
        }),
    }
}

fn wrong(problem: String) -> Error {
    Error::StateFile {
        problem,
        source: None,
    }
}
