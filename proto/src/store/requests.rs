//! Tests of the number of requests that reading a store takes: more versions must not add requests for each.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::ModelStore;
use super::scene::Scene;
use crate::TrainId;
use crate::spec::IfExists;

/// Store that counts the requests to another.
#[derive(Debug)]
struct Counted {
    objects: Arc<dyn ObjectStore>,
    requests: Arc<AtomicUsize>,
}

impl Counted {
    fn count(&self) -> &dyn ObjectStore {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.objects.as_ref()
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counted({})", self.objects)
    }
}

#[async_trait]
impl ObjectStore for Counted {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        self.count().put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.count().put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.count().get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.count().delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.count().list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.count().list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.count().copy_opts(from, to, options).await
    }
}

#[tokio::test]
async fn a_version_s_manifest_is_read_without_looking_at_the_others() {
    const VERSIONS: usize = 50;
    let scene = Scene::folder();
    let published = scene.publish(TrainId::generate(), IfExists::Fail).await;
    assert_eq!(published.unwrap(), 1);
    for version in 2..=VERSIONS {
        let to = scene.path(&format!("models/sales/{version}"));
        std::fs::create_dir(&to).unwrap();
        for file in ["manifest.json", "weights"] {
            let from = scene.path("models/sales/1").join(file);
            std::fs::copy(from, to.join(file)).unwrap();
        }
    }
    let requests = Arc::<AtomicUsize>::default();
    let mut store = ModelStore::open(scene.store.url()).unwrap();
    store.objects.store = Arc::new(Counted {
        objects: Arc::clone(&store.objects.store),
        requests: Arc::clone(&requests),
    });
    let taken = || requests.swap(0, Ordering::Relaxed);
    store.manifest(&scene.model, Some(7)).await.unwrap();
    assert_eq!(taken(), 1);
    store.manifest(&scene.model, None).await.unwrap();
    assert_eq!(
        taken(),
        3,
        "the versions, whether the last is whole, its manifest"
    );
    assert!(store.manifest(&scene.model, Some(51)).await.is_err());
    assert!(taken() <= VERSIONS + 2);
    assert_eq!(store.rows().await.unwrap().len(), VERSIONS);
    let each = taken().div_ceil(VERSIONS);
    assert!(each <= 4, "{each} requests for each version");
}
