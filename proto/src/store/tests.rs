//! Tests of published versions and of checkpoints, in a folder and among objects in memory.

use std::time::{Duration, SystemTime};

use arrow::datatypes::{DataType, Field, Schema};

use bytes::Bytes;

use super::scene::{Scene, state, steps};
use super::{FoundCheckpoint, Manifest, WrittenFile};
use crate::failure::chain;
use crate::spec::{Feature, FeatureKind, IfExists};
use crate::{Error, TrainId};

#[tokio::test]
async fn the_newest_checkpoint_of_a_run_is_found_and_two_are_kept() {
    for scene in Scene::all() {
        let run = TrainId::generate();
        assert_eq!(scene.newest(Some(run)).await, FoundCheckpoint::default());
        for steps in [90, 100, 200, 1200] {
            scene.save(run, steps).await;
        }
        let found = scene.newest(Some(run)).await;
        assert_eq!(steps(&found), Some(1200));
        assert!(found.skipped.is_empty());
        let info = found.checkpoint.unwrap().0;
        assert_eq!((info.train_id, info.position.epoch), (run, 13));
        for (steps, kept) in [(90, false), (100, false), (200, true), (1200, true)] {
            let info = scene.exists(&scene.info(run, 1, steps)).await;
            let states = scene.states(run, 1, steps).await.len();
            assert_eq!((info, states), (kept, usize::from(kept)), "{steps}");
        }
        // A later generation that had to go back has the newest checkpoint, even with fewer steps.
        scene.save_by(run, 2, 150).await.unwrap();
        assert_eq!(steps(&scene.newest(Some(run)).await), Some(150));
        assert!(scene.exists(&scene.info(run, 1, 1200)).await);
        assert!(!scene.exists(&scene.info(run, 1, 200)).await);
        scene.save_by(run, 2, 250).await.unwrap();
        assert_eq!(steps(&scene.newest(Some(run)).await), Some(250));
        // The same position again.
        scene.save_by(run, 2, 250).await.unwrap();
        assert_eq!(scene.states(run, 2, 250).await.len(), 1);
        assert!(scene.exists(&scene.info(run, 2, 150)).await);
        assert!(!scene.exists(&scene.info(run, 1, 1200)).await);
        assert_eq!(steps(&scene.newest(Some(run)).await), Some(250));
        scene
            .store
            .drop_checkpoints(&scene.model, run)
            .await
            .unwrap();
        assert_eq!(scene.newest(None).await, FoundCheckpoint::default());
        scene
            .store
            .drop_checkpoints(&scene.model, run)
            .await
            .unwrap();
    }
}

/// Checks that a superseded rank 0 that resumes does no harm once a later generation has written.
#[tokio::test]
async fn a_generation_that_was_given_up_harms_no_later_one() {
    for scene in Scene::all() {
        let run = TrainId::generate();
        scene.save(run, 100).await;
        for steps in [50, 60] {
            scene.save_by(run, 2, steps).await.unwrap();
        }
        // Also if it would be further, or at the very same step.
        for late in [50, 60, 200] {
            match scene.save_by(run, 1, late).await {
                Err(Error::Superseded {
                    generation: 1,
                    by: 2,
                    ..
                }) => {}
                other => panic!("{other:?}"),
            }
        }
        let newest = scene.newest(Some(run)).await;
        assert_eq!((steps(&newest), newest.skipped.len()), (Some(60), 0));
        // It had listed files before the later one wrote: its files are its own, and rank behind the later ones.
        let info = scene.get(&scene.info(run, 2, 60)).await;
        scene.put(&scene.info(run, 1, 200), info).await;
        let late = format!("models/sales/checkpoints/{run}/000001-{:012}.state", 200);
        scene.put(&scene.object(&late), state(60)).await;
        assert_eq!(steps(&scene.newest(Some(run)).await), Some(60));
        scene.save_by(run, 3, 70).await.unwrap();
        assert_eq!(steps(&scene.newest(Some(run)).await), Some(70));
        assert!(!scene.exists(&scene.info(run, 1, 200)).await);
        assert!(scene.states(run, 1, 200).await.is_empty());
    }
}

#[tokio::test]
async fn what_is_not_whole_is_skipped_and_named() {
    type Spoil = fn(Vec<u8>) -> Option<Vec<u8>>;
    let spoils: [(&str, Spoil, &str); 6] = [
        (
            "state",
            |state| Some(state[..9].to_vec()),
            "its state has 9 bytes instead of 26",
        ),
        (
            "state",
            |mut state| {
                state[17] ^= 0x10;
                Some(state)
            },
            "hash",
        ),
        ("json", |_| None, "not written to its end"),
        ("state", |_| None, "its state is missing"),
        (
            "json",
            |json| Some(json[..json.len() / 2].to_vec()),
            "corrupt",
        ),
        (
            "json",
            |json| {
                let json = String::from_utf8(json).unwrap();
                Some(json.replace("\"format\": 1", "\"format\": 9").into())
            },
            "has format 9, this build reads 1",
        ),
    ];
    for (what, spoil, reason) in spoils {
        for scene in Scene::all() {
            let run = TrainId::generate();
            scene.save(run, 1100).await;
            scene.save(run, 1200).await;
            let path = match what {
                "state" => scene.states(run, 1, 1200).await[0].clone(),
                _ => scene.info(run, 1, 1200),
            };
            match spoil(scene.get(&path).await.to_vec()) {
                Some(spoilt) => scene.put(&path, spoilt).await,
                None => scene.remove(&path).await,
            }
            for asked in [Some(run), None] {
                let found = scene.newest(asked).await;
                assert_eq!(steps(&found), Some(1100), "{reason}");
                let [skipped] = &found.skipped[..] else {
                    panic!("{found:?}")
                };
                let start = format!("checkpoint at step 1200 of run {run} ");
                assert!(skipped.starts_with(&start), "{skipped}");
                assert!(skipped.contains(reason), "{skipped}");
                assert!(skipped.ends_with("; using the one before"), "{skipped}");
            }
            scene.remove(&scene.states(run, 1, 1100).await[0]).await;
            let found = scene.newest(None).await;
            assert_eq!((steps(&found), found.skipped.len()), (None, 2));
            assert!(found.skipped[1].ends_with("; there is none before it"));
        }
    }
}

#[tokio::test]
async fn the_last_run_to_write_comes_first() {
    for scene in Scene::all() {
        let (early, late) = (TrainId::generate(), TrainId::generate());
        scene.save(late, 5).await;
        scene.save(early, 900).await;
        scene.save(late, 10).await;
        assert_eq!(steps(&scene.newest(None).await), Some(10));
        assert_eq!(steps(&scene.newest(Some(early)).await), Some(900));
        scene
            .store
            .drop_checkpoints(&scene.model, late)
            .await
            .unwrap();
        assert_eq!(steps(&scene.newest(None).await), Some(900));
    }
}

#[tokio::test]
async fn checkpoints_are_no_versions_and_go_with_the_model() {
    for scene in Scene::all() {
        let run = TrainId::generate();
        scene.save(run, 100).await;
        assert!(scene.store.versions(&scene.model).await.unwrap().is_empty());
        assert!(scene.store.list().await.unwrap().is_empty());
        let misspelt = "sale".parse().unwrap();
        for name in [&scene.model, &misspelt] {
            match scene.store.drop_model(name).await {
                Err(Error::UnknownModel { hint, .. }) => assert_eq!(hint, ""),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(scene.publish(run, IfExists::Fail).await.unwrap(), 1);
        assert_eq!(scene.store.list().await.unwrap()[0].versions, [1]);
        assert_eq!(steps(&scene.newest(Some(run)).await), Some(100));
        match scene.store.drop_model(&misspelt).await {
            Err(Error::UnknownModel { hint, .. }) => assert!(hint.contains("sales")),
            other => panic!("{other:?}"),
        }
        assert_eq!(scene.store.drop_model(&scene.model).await.unwrap(), 1);
        assert_eq!(scene.newest(None).await, FoundCheckpoint::default());
    }
}

#[tokio::test]
async fn a_run_that_has_published_is_not_resumed_and_can_be_cleared_away() {
    for scene in Scene::all() {
        let (done, under_way) = (TrainId::generate(), TrainId::generate());
        scene.save(under_way, 7).await;
        scene.save(done, 100).await;
        assert_eq!(steps(&scene.newest(None).await), Some(100));
        scene.publish(done, IfExists::Fail).await.unwrap();
        assert_eq!(steps(&scene.newest(None).await), Some(7));
        let drop = async |except| {
            let (store, model) = (&scene.store, &scene.model);
            store
                .drop_finished_checkpoints(model, except)
                .await
                .unwrap();
        };
        drop(done).await;
        assert_eq!(steps(&scene.newest(Some(done)).await), Some(100));
        drop(under_way).await;
        assert_eq!(scene.newest(Some(done)).await, FoundCheckpoint::default());
        assert_eq!(steps(&scene.newest(None).await), Some(7));
    }
}

#[tokio::test]
async fn a_run_publishes_once() {
    for scene in Scene::all() {
        let (run, other) = (TrainId::generate(), TrainId::generate());
        assert_eq!(scene.publish(run, IfExists::Replace).await.unwrap(), 1);
        assert_eq!(scene.publish(other, IfExists::Replace).await.unwrap(), 2);
        assert_eq!(scene.publish(run, IfExists::Replace).await.unwrap(), 1);
        assert_eq!(scene.store.versions(&scene.model).await.unwrap(), [1, 2]);
        assert_eq!(scene.unpublished().await, []);
        if scene.is_folder() {
            let unpublished = std::fs::read_dir(scene.path("models/sales/unpublished"));
            assert_eq!(unpublished.unwrap().count(), 0);
        }
        // A version without a manifest belongs to nobody.
        scene
            .remove(&scene.object("models/sales/1/manifest.json"))
            .await;
        assert_eq!(scene.publish(run, IfExists::Replace).await.unwrap(), 3);
        assert_eq!(scene.store.versions(&scene.model).await.unwrap(), [2, 3]);
    }
}

/// Checks that a superseded rank may publish at the same time as the next generation's.
#[tokio::test]
async fn generations_that_publish_at_once_publish_once() {
    for scene in Scene::all() {
        let (run, other) = (TrainId::generate(), TrainId::generate());
        let publish = || scene.publish(run, IfExists::Replace);
        let all = tokio::join!(
            publish(),
            publish(),
            publish(),
            scene.publish(other, IfExists::Replace)
        );
        let [one, same, again, others] = [all.0, all.1, all.2, all.3].map(Result::unwrap);
        assert_eq!([one, one], [same, again]);
        assert_ne!(one, others);
        assert_eq!(scene.store.versions(&scene.model).await.unwrap(), [1, 2]);
        assert_eq!(scene.read(one).await.unwrap(), "w");
        // Publishing again returns it when its folder is gone, and when only the version is left of its run.
        assert_eq!(publish().await.unwrap(), one);
    }
}

#[tokio::test]
async fn a_model_s_file_that_is_not_what_was_published_is_an_error() {
    for (spoilt, has, had) in [
        (Some(""), "0 bytes", "1 bytes"),
        (Some("v"), "hash", "hash"),
        (None, "no content", "1 bytes"),
    ] {
        for scene in Scene::all() {
            let run = TrainId::generate();
            scene.publish(run, IfExists::Fail).await.unwrap();
            assert_eq!(scene.read(1).await.unwrap(), "w");
            let weights = scene.weights(1).await;
            match spoilt {
                Some(spoilt) => scene.put(&weights, spoilt).await,
                None => scene.remove(&weights).await,
            }
            match scene.read(1).await {
                Err(Error::ModelFile {
                    file,
                    found,
                    expected,
                }) => {
                    assert!(file.ends_with(weights.as_ref()), "{file}");
                    assert!(found.contains(has) && expected.contains(had), "{found}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_manifest_of_another_format_is_refused_by_its_number() {
    let scene = Scene::folder();
    scene
        .publish(TrainId::generate(), IfExists::Fail)
        .await
        .unwrap();
    let path = scene.path("models/sales/1/manifest.json");
    let json = std::fs::read_to_string(&path).unwrap();
    let manifest: Manifest = serde_json::from_str(&json).unwrap();
    assert_eq!(manifest.files, [WrittenFile::of("weights", b"w")]);
    let now = format!("\"format\": {}", Manifest::FORMAT);
    for other in [1, Manifest::FORMAT + 1] {
        let json = json.replace(&now, &format!("\"format\": {other}"));
        std::fs::write(&path, json).unwrap();
        let said = chain(&scene.read(1).await.unwrap_err());
        assert!(said.contains(&format!("its format is {other}")), "{said}");
    }
    std::fs::write(&path, &json[..json.len() / 2]).unwrap();
    match scene.read(1).await {
        Err(Error::Unreadable { file, .. }) => assert!(file.ends_with("1/manifest.json"), "{file}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_report_is_kept_beside_its_version() {
    for scene in Scene::all() {
        let Scene { store, model, .. } = &scene;
        for version in [1, 2] {
            let run = TrainId::generate();
            assert_eq!(
                scene.publish(run, IfExists::Replace).await.unwrap(),
                version
            );
        }
        for html in ["<p>old", "<p>new"] {
            store.keep_report(model, 1, html.to_owned()).await.unwrap();
        }
        let report = store.report(model, 1).await.unwrap().unwrap();
        assert_eq!(&report[..], b"<p>new");
        assert_eq!(store.report(model, 2).await.unwrap(), None);
        let rows = store.rows().await.unwrap();
        let kept: Vec<_> = rows.iter().map(|row| row.report).collect();
        assert_eq!(kept, [true, false]);
        match store.keep_report(model, 3, String::new()).await {
            Err(Error::UnknownVersion { version: 3, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(store.versions(model).await.unwrap(), [1, 2]);
        assert_eq!(store.drop_model(model).await.unwrap(), 2);
        assert_eq!(store.report(model, 1).await.unwrap(), None);
    }
}

#[tokio::test]
async fn a_model_that_another_run_published_meanwhile_is_not_replaced_unasked() {
    for scene in Scene::all() {
        let (run, other) = (TrainId::generate(), TrainId::generate());
        assert_eq!(scene.publish(other, IfExists::Fail).await.unwrap(), 1);
        match scene.publish(run, IfExists::Fail).await {
            Err(Error::PublishedMeanwhile { version: 1, .. }) => {}
            other => panic!("{other:?}"),
        }
        // The run that did publish may publish again, with the same result.
        assert_eq!(scene.publish(other, IfExists::Fail).await.unwrap(), 1);
        assert_eq!(scene.store.versions(&scene.model).await.unwrap(), [1]);
        assert_eq!(scene.publish(run, IfExists::Replace).await.unwrap(), 2);
    }
}

#[tokio::test]
async fn a_run_does_not_publish_over_one_that_began_later() {
    for scene in Scene::all() {
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        let publish = async |begun| {
            let mut manifest = scene.manifest(TrainId::generate(), IfExists::Replace);
            manifest.begun = begun;
            let files = vec![("weights", Bytes::from_static(b"w"))];
            scene.store.publish(1, manifest, files).await
        };
        assert_eq!(publish(at(10)).await.unwrap(), 1);
        assert_eq!(publish(at(20)).await.unwrap(), 2);
        let error = publish(at(19)).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("version 2 was published by training"),
            "{text}"
        );
        assert!(
            text.contains("at 1970-01-01T00:00:20.000Z, and this one at 1970-01-01T00:00:19.000Z"),
            "{text}"
        );
        assert_eq!(scene.store.versions(&scene.model).await.unwrap(), [1, 2]);
        assert_eq!(publish(at(20)).await.unwrap(), 3);
        // A run of which nothing is known publishes, and so does one after it.
        assert_eq!(publish(None).await.unwrap(), 4);
        assert_eq!(publish(at(1)).await.unwrap(), 5);
    }
}

/// Checks that runs of two clusters, of which one's clock is an hour fast, publish in the order in which they began.
#[tokio::test]
async fn clocks_that_differ_do_not_refuse_a_later_run() {
    for scene in Scene::all() {
        let noon = SystemTime::UNIX_EPOCH + Duration::from_secs(12 * 3600);
        let fast = |minutes: u64| Some(noon + Duration::from_secs(60 * (60 + minutes)));
        let slow = |minutes: u64| Some(noon + Duration::from_secs(60 * minutes));
        let publish = async |newest_version, begun| {
            let mut manifest = scene.manifest(TrainId::generate(), IfExists::Replace);
            manifest.begun = begun;
            manifest.spec.newest_version = newest_version;
            let files = vec![("weights", Bytes::from_static(b"w"))];
            scene.store.publish(1, manifest, files).await
        };
        assert_eq!(publish(Some(0), fast(0)).await.unwrap(), 1);
        // One after the other, and each sees the version before.
        assert_eq!(publish(Some(1), slow(10)).await.unwrap(), 2);
        assert_eq!(publish(Some(2), fast(20)).await.unwrap(), 3);
        // This one began before version 2, and took long.
        let error = publish(Some(1), fast(90)).await.unwrap_err().to_string();
        let said = "began later: after version 2 was published, and this one after version 1 was published";
        assert!(error.contains(said), "{error}");
        assert!(publish(Some(0), None).await.is_err());
        // Two at once: only their times tell, as for runs of one cluster.
        assert_eq!(publish(Some(3), slow(30)).await.unwrap(), 4);
        assert!(publish(Some(3), slow(29)).await.is_err());
        assert_eq!(publish(Some(3), slow(31)).await.unwrap(), 5);
        // A run that has seen no versions says only when it began.
        assert_eq!(publish(None, slow(40)).await.unwrap(), 6);
        assert!(publish(Some(5), slow(39)).await.is_err());
        assert_eq!(publish(Some(6), slow(39)).await.unwrap(), 7);
        let versions = scene.store.versions(&scene.model).await.unwrap();
        assert_eq!(versions, [1, 2, 3, 4, 5, 6, 7]);
        // Once the model is dropped, numbers may begin anew, and those from before say nothing.
        scene.store.drop_model(&scene.model).await.unwrap();
        let dropped = scene.store.newest_number(&scene.model).await.unwrap();
        publish(Some(7), slow(50)).await.unwrap();
        publish(Some(dropped), slow(60)).await.unwrap();
        assert!(publish(Some(7), slow(50)).await.is_err());
        publish(Some(7), slow(70)).await.unwrap();
    }
}

#[test]
fn all_columns_that_an_input_lacks_are_named() {
    let mut manifest = Scene::memory().manifest(TrainId::generate(), IfExists::Fail);
    let feature = |column: &str| Feature {
        column: column.into(),
        kind: FeatureKind::Continuous,
    };
    manifest.spec.features = ["promo", "store", "week"].map(feature).into();
    let field = Field::new("stores", DataType::Float64, false);
    match manifest.check_input(&Schema::new(vec![field])) {
        Err(Error::MissingColumns {
            count: 3, columns, ..
        }) => assert_eq!(columns, r#""promo", "store" (it has "stores"), "week""#),
        other => panic!("{other:?}"),
    }
    manifest.spec.features = (0..25).map(|n| feature(&format!("f{n}"))).collect();
    let error = manifest.check_input(&Schema::empty()).unwrap_err();
    assert!(error.to_string().ends_with("\"f19\" and 5 more"), "{error}");
}
