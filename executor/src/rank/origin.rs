//! Origin of a training on rank 0 when no earlier rank has left its state: a checkpoint or a model. Rank 0 sends it
//! to all other ranks.

use volley_proto::failure::chain;
use volley_proto::spec::{Start, TrainSpec};
use volley_proto::store::{FoundCheckpoint, ModelStore};
use volley_proto::{ModelRef, TrainId};
use volley_trainer::custom::CustomLayers;
use volley_trainer::{Model, Origin, TrainingState, VOCABULARIES, WEIGHTS};

use crate::error::RankError;

/// Origin of a rank's training when no state was left on this executor.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) origin: Origin,
    /// Messages for the user about the origin.
    pub(super) notes: Vec<String>,
    /// Run of the checkpoint, when it is another run than this one.
    pub(super) continues: Option<TrainId>,
}

/// Looks in the store for a checkpoint of this run, then for the origin that the spec names.
pub(super) async fn look_up(spec: &TrainSpec, layers: &CustomLayers) -> Result<Found, RankError> {
    let mut notes = Vec::new();
    let refuse = |reason: String| RankError::Origin {
        model: spec.model.to_string(),
        reason,
    };
    let failed = |error: volley_proto::Error| refuse(chain(&error));
    let store = ModelStore::open(&spec.store).map_err(failed)?;
    // Drops checkpoints of finished runs whose ranks ended before they could drop them.
    let (model, run) = (&spec.model, spec.train_id);
    let dropped = store.drop_finished_checkpoints(model, run).await;
    dropped.map_err(failed)?;
    let own = store.newest_checkpoint(&spec.model, Some(spec.train_id));
    if let Some((_, state)) = decode(own.await.map_err(failed)?, &mut notes).map_err(refuse)? {
        return Ok(Found {
            origin: Origin::State(state),
            notes,
            continues: None,
        });
    }
    let (origin, continues) = match &spec.start {
        Start::Fresh => (Origin::Fresh, None),
        Start::Resume => {
            let newest = store.newest_checkpoint(&spec.model, None).await;
            let found = decode(newest.map_err(failed)?, &mut notes).map_err(refuse)?;
            let (run, state) = found.ok_or_else(|| {
                refuse(format!(
                    "there is no checkpoint to resume from in {}: leave out resume to train from \
                     the start",
                    store.url()
                ))
            })?;
            (Origin::State(state), Some(run))
        }
        Start::Warm(model) => {
            let model = load(model, layers).await.map_err(refuse)?;
            (Origin::Warm(model), None)
        }
    };
    Ok(Found {
        origin,
        notes,
        continues,
    })
}

fn decode(
    found: FoundCheckpoint,
    notes: &mut Vec<String>,
) -> Result<Option<(TrainId, TrainingState)>, String> {
    notes.extend(found.skipped);
    let Some((info, bytes)) = found.checkpoint else {
        return Ok(None);
    };
    let state = TrainingState::decode(&bytes).map_err(|error| {
        let (position, cause) = (info.position, chain(&error));
        format!("the checkpoint at {position} cannot be read: {cause}")
    })?;
    notes.push(format!("the newest checkpoint is at {}", info.position));
    Ok(Some((info.train_id, state)))
}

/// Loads a published model.
async fn load(model: &ModelRef, layers: &CustomLayers) -> Result<Model, String> {
    let text = |error: volley_proto::Error| chain(&error);
    let store = ModelStore::open(&model.store).map_err(text)?;
    let manifest = store.manifest(&model.name, Some(model.version)).await;
    let manifest = manifest.map_err(text)?;
    let weights = store.read(model, &manifest, WEIGHTS).await;
    let vocabularies = store.read(model, &manifest, VOCABULARIES).await;
    let (weights, vocabularies) = (weights.map_err(text)?, vocabularies.map_err(text)?);
    let loaded = Model::load(manifest, &weights, &vocabularies, layers);
    loaded.map_err(|error| chain(&error))
}
