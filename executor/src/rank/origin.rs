//! Origin of a training on rank 0 when no earlier rank has left its state: a checkpoint or a model. Rank 0 sends it
//! to all other ranks.

use volley_proto::TrainId;
use volley_proto::failure::chain;
use volley_proto::spec::{Start, TrainSpec};
use volley_proto::store::{FoundCheckpoint, ModelStore};
use volley_trainer::custom::CustomLayers;
use volley_trainer::{Origin, TrainingState};

use crate::error::RankError;
use crate::models;

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
            let model = models::load(model, layers.clone()).await;
            let model = model.map_err(|error| refuse(chain(error.as_ref())))?;
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
