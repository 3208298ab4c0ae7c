//! Tests of object stores over a network: lost answers, late generations, and stores without the guarantees that
//! publishing relies on.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use super::ModelStore;
use super::objects::PART;
use super::scene::{Scene, steps};
use crate::object_stores::RetryPolicy;
use crate::spec::IfExists;
use crate::{Error, TrainId};

type Result<T> = object_store::Result<T>;

/// Fault of a store, compared with one in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// Puts are done, and every second answer is lost.
    LosesAnswers,
    /// Every third request is not done; requests of different kinds alternate, so that each kind is hit.
    Fails,
    /// Puts ignore their conditions.
    IgnoresConditions,
}

#[derive(Debug)]
struct Troubled {
    objects: Arc<dyn ObjectStore>,
    trouble: Trouble,
    requests: AtomicUsize,
    /// Paths of conditional puts, in the order of the requests.
    conditional: Mutex<Vec<Path>>,
}

impl Troubled {
    fn over(scene: &mut Scene, trouble: Trouble) -> Arc<Self> {
        let troubled = Arc::new(Self {
            objects: Arc::clone(&scene.store.objects.store),
            trouble,
            requests: AtomicUsize::new(0),
            conditional: Mutex::default(),
        });
        scene.store.objects.store = Arc::clone(&troubled) as _;
        scene.store.objects.retry = RetryPolicy {
            backoff: Duration::from_millis(1),
            ..RetryPolicy::REMOTE
        };
        troubled
    }

    /// Checks whether this request is one of `many` in a cycle.
    fn is_one_of(&self, many: usize) -> bool {
        self.requests.fetch_add(1, Ordering::Relaxed) % many == 1
    }

    fn fails(&self) -> Result<()> {
        match self.trouble {
            Trouble::Fails if self.is_one_of(3) => Err(lost()),
            _ => Ok(()),
        }
    }
}

fn lost() -> StoreError {
    StoreError::Generic {
        store: "troubled",
        source: "connection reset".into(),
    }
}

impl fmt::Display for Troubled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Troubled({})", self.objects)
    }
}

#[async_trait]
impl ObjectStore for Troubled {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        self.fails()?;
        if options.mode != PutMode::Overwrite {
            self.conditional.lock().unwrap().push(location.clone());
        }
        if self.trouble == Trouble::IgnoresConditions {
            options.mode = PutMode::Overwrite;
        }
        let put = self.objects.put_opts(location, payload, options).await?;
        match self.trouble {
            Trouble::LosesAnswers if self.is_one_of(2) => Err(lost()),
            _ => Ok(put),
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.fails()?;
        self.objects.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.fails()?;
        self.objects.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.objects.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.fails()?;
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn a_put_whose_answer_is_lost_is_known_for_one_s_own() {
    for trouble in [Trouble::LosesAnswers, Trouble::Fails] {
        let mut scene = Scene::memory();
        let troubled = Troubled::over(&mut scene, trouble);
        for version in 1..=6 {
            let run = TrainId::generate();
            let publish = scene.publish(run, IfExists::Replace).await;
            assert_eq!(publish.unwrap(), version, "{trouble:?}");
            for checkpoint in [10, 20, 20] {
                scene.save(run, checkpoint).await;
            }
            assert_eq!(steps(&scene.newest(Some(run)).await), Some(20));
            assert_eq!(scene.states(run, 1, 20).await.len(), 1);
        }
        let versions = scene.store.versions(&scene.model).await.unwrap();
        assert_eq!(versions, [1, 2, 3, 4, 5, 6]);
        assert_eq!(scene.unpublished().await, []);
        let conditional = troubled.conditional.lock().unwrap().len();
        assert!(conditional >= 6 * 4, "{conditional}");
    }
}

#[tokio::test]
async fn of_two_whose_answers_are_lost_one_has_the_place() {
    let mut scene = Scene::memory();
    Troubled::over(&mut scene, Trouble::LosesAnswers);
    let objects = &scene.store.objects;
    for round in 0..10 {
        let path = Path::from(format!("place {round}"));
        let [one, other] = ["one", "other"].map(Bytes::from);
        let (one, other) = tokio::join!(objects.create(&path, &one), objects.create(&path, &other));
        assert_eq!([one.unwrap(), other.unwrap()], [true, false]);
        assert_eq!(scene.get(&path).await, "one");
    }
}

#[tokio::test]
async fn a_store_that_ignores_conditions_is_refused() {
    let mut scene = Scene::memory();
    scene.store.check_writable().await.unwrap();
    Troubled::over(&mut scene, Trouble::IgnoresConditions);
    match scene.store.check_writable().await {
        Err(Error::StoreUrl { reason, .. }) => {
            assert!(reason.contains("If-None-Match"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    let left = scene.store.files_under(&scene.store.root).await.unwrap();
    assert_eq!(left, []);
}

#[tokio::test]
async fn what_stays_unanswered_is_an_error_that_names_the_store_and_the_file() {
    let mut scene = Scene::memory();
    scene.store.objects.retry = RetryPolicy {
        attempts: 1,
        ..RetryPolicy::REMOTE
    };
    scene.store.objects.store = Arc::new(Troubled {
        objects: Arc::clone(&scene.store.objects.store),
        trouble: Trouble::Fails,
        requests: AtomicUsize::new(1),
        conditional: Mutex::default(),
    });
    match scene.store.versions(&scene.model).await {
        Err(Error::Store { store, action, .. }) => {
            assert_eq!(store, "memory:///a/prefix");
            assert!(action.contains("models/sales"), "{action}");
        }
        other => panic!("{other:?}"),
    }
}

/// Covers an earlier generation, frozen while it published, and a later one, which still publishes.
#[tokio::test]
async fn who_has_published_removes_nothing_of_a_later_generation() {
    let scene = Scene::memory();
    let run = TrainId::generate();
    for generation in 1..=3 {
        let staged = format!("models/sales/files/{run}-{generation:06}-x/weights");
        scene.put(&scene.object(&staged), "w").await;
        let other = format!(
            "models/sales/files/{}-{generation:06}-x/weights",
            TrainId::generate()
        );
        scene.put(&scene.object(&other), "w").await;
    }
    assert_eq!(scene.publish_by(run, 2, IfExists::Fail).await.unwrap(), 1);
    let left = scene.unpublished().await;
    let of_run = |path: &&Path| path.as_ref().contains(&run.to_string());
    let of_run: Vec<_> = left.iter().filter(of_run).collect();
    assert_eq!((left.len(), of_run.len()), (4, 1));
    assert!(of_run[0].as_ref().contains("-000003-"), "{of_run:?}");
    assert_eq!(scene.read(1).await.unwrap(), "w");
    // Files that others are publishing stay when the model is dropped.
    assert_eq!(scene.store.drop_model(&scene.model).await.unwrap(), 1);
    assert_eq!(scene.unpublished().await, left);
    let all = scene.store.files_under(&scene.object("models")).await;
    assert_eq!(all.unwrap().len(), left.len());
}

#[tokio::test]
async fn large_files_go_in_parts_and_come_back_whole() {
    let scene = Scene::memory();
    let run = TrainId::generate();
    let large: Vec<u8> = (0..2 * PART + 77).map(|i| (i % 251) as u8).collect();
    let large = Bytes::from(large);
    let files = vec![("weights", large.clone())];
    let manifest = scene.manifest(run, IfExists::Fail);
    assert_eq!(scene.store.publish(1, manifest, files).await.unwrap(), 1);
    assert!(scene.read(1).await.unwrap() == large, "other bytes");
    let url = {
        let manifest = scene.store.manifest(&scene.model, Some(1)).await.unwrap();
        scene.store.file_url(&scene.model, &manifest, "weights")
    };
    let start = format!("memory:///a/prefix/models/sales/files/{run}-000001-");
    assert!(url.as_str().starts_with(&start), "{url}");
}

#[test]
fn urls_that_no_models_can_be_kept_at_are_refused_without_their_secrets() {
    for (url, named) in [
        ("memory:///a", "memory"),
        ("https://example.org/a", "https"),
        ("s3://key:hunter2@bucket/a", "environment"),
        ("s3://bucket/a?secret=hunter2", "environment"),
    ] {
        let error = ModelStore::open(&url.parse().unwrap()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(named), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
}
