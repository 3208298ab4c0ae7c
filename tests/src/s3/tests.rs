//! Tests of the server's promises with the product's client.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{
    BackoffConfig, Error, ObjectStore, ObjectStoreExt, PutMode, PutPayload, RetryConfig,
    UpdateVersion, WriteMultipart,
};

use super::{Fault, FaultPlan, FaultyProxy, S3Server};

fn client(endpoint: &str, max_retries: usize) -> AmazonS3 {
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(1),
            max_backoff: Duration::from_millis(20),
            base: 2.0,
        },
        max_retries,
        retry_timeout: Duration::from_secs(60),
    };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(S3Server::BUCKET)
        .with_retry(retry);
    for (variable, value) in S3Server::environment(endpoint) {
        builder = builder.with_config(variable.to_lowercase().parse().unwrap(), value);
    }
    builder.build().unwrap()
}

/// Returns a plan without faults, except planted ones.
fn planned() -> FaultPlan {
    FaultPlan::even(0, 0.0)
}

#[tokio::test]
async fn objects_are_put_read_in_ranges_listed_copied_and_deleted() {
    let server = S3Server::start();
    let s3 = client(&server.endpoint(), 0);
    for name in ["a/1", "a/b/2", "a/b/3", "c"] {
        s3.put(&Path::from(name), format!("content of {name}").into())
            .await
            .unwrap();
    }
    let read = s3.get_range(&Path::from("a/b/2"), 3..10).await.unwrap();
    assert_eq!(read.as_ref(), b"tent of");
    let listed = s3
        .list_with_delimiter(Some(&Path::from("a")))
        .await
        .unwrap();
    assert_eq!(listed.common_prefixes, [Path::from("a/b")]);
    assert_eq!(listed.objects.len(), 1);
    s3.copy(&Path::from("c"), &Path::from("d")).await.unwrap();
    let all: Vec<_> = s3.list(None).try_collect().await.unwrap();
    let mut all: Vec<_> = all.iter().map(|object| object.location.as_ref()).collect();
    all.sort_unstable();
    assert_eq!(all, ["a/1", "a/b/2", "a/b/3", "c", "d"]);
    for name in ["a/b/2", "d", "never there"] {
        s3.delete(&Path::from(name)).await.unwrap();
    }
    for gone in ["d", "a/b/2", "a/b"] {
        let read = s3.get(&Path::from(gone)).await;
        assert!(matches!(read, Err(Error::NotFound { .. })), "{gone}");
        let head = s3.head(&Path::from(gone)).await;
        assert!(matches!(head, Err(Error::NotFound { .. })), "{gone}");
    }
}

#[tokio::test]
async fn one_of_many_creates_and_one_of_many_updates() {
    let server = S3Server::start();
    let s3 = Arc::new(client(&server.endpoint(), 0));
    let path = Path::from("claimed");
    let created = race(&s3, &path, PutMode::Create).await;
    assert!(
        created
            .iter()
            .filter_map(|put| put.as_ref().err())
            .all(|error| matches!(error, Error::AlreadyExists { .. }))
    );
    let won = winners(&created);
    let [Some(first)] = &won[..] else {
        panic!("{created:?}")
    };
    let version = UpdateVersion {
        e_tag: Some(first.clone()),
        version: None,
    };
    let updated = race(&s3, &path, PutMode::Update(version.clone())).await;
    assert_eq!(winners(&updated).len(), 1, "{updated:?}");
    let late = s3
        .put_opts(&path, "late".into(), PutMode::Update(version).into())
        .await;
    assert!(matches!(late, Err(Error::Precondition { .. })), "{late:?}");
}

type Put = Result<object_store::PutResult, Error>;

/// Runs sixteen writers at once, each with different content.
async fn race(s3: &Arc<AmazonS3>, path: &Path, mode: PutMode) -> Vec<Put> {
    let puts = (0..16).map(|writer| {
        let (s3, path, mode) = (Arc::clone(s3), path.clone(), mode.clone());
        tokio::spawn(async move {
            let content = PutPayload::from(format!("writer {writer} of {mode:?}"));
            s3.put_opts(&path, content, mode.into()).await
        })
    });
    let puts: Vec<_> = puts.collect();
    let mut done = Vec::new();
    for put in puts {
        done.push(put.await.unwrap());
    }
    done
}

fn winners(puts: &[Put]) -> Vec<Option<String>> {
    puts.iter()
        .filter_map(|put| put.as_ref().ok().map(|put| put.e_tag.clone()))
        .collect()
}

#[tokio::test]
async fn parts_are_an_object_once_completed_and_nothing_when_aborted() {
    let server = S3Server::start();
    let s3 = client(&server.endpoint(), 0);
    let content: Vec<u8> = (0..12_000_000_u32).map(|i| (i % 251) as u8).collect();
    let path = Path::from("large");
    let mut upload = WriteMultipart::new(s3.put_multipart(&path).await.unwrap());
    upload.write(&content);
    assert!(matches!(s3.head(&path).await, Err(Error::NotFound { .. })));
    upload.finish().await.unwrap();
    let read = s3.get(&path).await.unwrap().bytes().await.unwrap();
    assert!(read == content, "other bytes");

    let path = Path::from("aborted");
    let mut upload = s3.put_multipart(&path).await.unwrap();
    upload
        .put_part(content[..6_000_000].to_vec().into())
        .await
        .unwrap();
    upload.abort().await.unwrap();
    assert!(matches!(s3.head(&path).await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn who_does_not_know_the_secret_is_refused() {
    let server = S3Server::start();
    let stranger = AmazonS3Builder::new()
        .with_bucket_name(S3Server::BUCKET)
        .with_endpoint(server.endpoint())
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_access_key_id(S3Server::ACCESS_KEY)
        .with_secret_access_key("guessed")
        .build()
        .unwrap();
    let put = stranger.put(&Path::from("a"), "b".into()).await;
    assert!(
        matches!(put, Err(Error::PermissionDenied { .. })),
        "{put:?}"
    );
}

#[tokio::test]
async fn every_fault_is_what_its_name_says() {
    let server = S3Server::start();
    let proxy = FaultyProxy::to(&server.address(), planned());
    let s3 = client(&proxy.endpoint(), 0);
    let is_there = async |name: &str| {
        let direct = client(&server.endpoint(), 0);
        direct.head(&Path::from(name)).await.is_ok()
    };
    for (fault, stored) in [
        (Fault::SlowDown, false),
        (Fault::InternalError, false),
        (Fault::ResetBefore, false),
        (Fault::ResetAfter, true),
        (Fault::Truncate, true),
    ] {
        let name = format!("{fault:?}");
        let path = Path::from(name.as_str());
        proxy.plant("PUT", &name, fault);
        let put = s3
            .put_opts(&path, "content".into(), PutMode::Create.into())
            .await;
        assert!(put.is_err(), "{fault:?}");
        assert_eq!(is_there(&name).await, stored, "{fault:?}");
        assert_eq!(proxy.injected(fault), 1);
    }
    let path = Path::from("Delay");
    proxy.plant("PUT", "Delay", Fault::Delay);
    s3.put(&path, "content".into()).await.unwrap();
    assert_eq!(proxy.injected(Fault::Delay), 1);
    proxy.plant("GET", "Delay", Fault::Truncate);
    let read = s3.get(&path).await.unwrap().bytes().await;
    assert!(read.is_err() || proxy.requests_of("GET", "Delay") > 1);
    assert_eq!(proxy.planted(), 0);
}

#[tokio::test]
async fn faults_are_those_of_the_seed_and_can_be_switched_off() {
    let plan = FaultPlan::even(7, 0.5);
    let drawn =
        |plan: &FaultPlan| -> Vec<_> { (0..1000).map(|n| plan.draw("GET", "/a", n)).collect() };
    assert_eq!(drawn(&plan), drawn(&plan.clone()));
    assert_ne!(drawn(&plan), drawn(&FaultPlan::even(8, 0.5)));
    let failing = drawn(&plan).iter().flatten().count();
    assert!((400..600).contains(&failing), "{failing} of 1000");

    let server = S3Server::start();
    let proxy = FaultyProxy::to(&server.address(), plan);
    let path = Path::from("through all of it");
    let s3 = client(&proxy.endpoint(), 30);
    s3.put(&path, "content".into()).await.unwrap();
    for _ in 0..20 {
        let read = s3.get(&path).await.unwrap().bytes().await;
        assert!(read.is_err() || read.unwrap().as_ref() == b"content");
    }
    let injected = || {
        Fault::ALL
            .map(|fault| proxy.injected(fault))
            .iter()
            .sum::<u64>()
    };
    assert!(injected() > 0);
    proxy.switch(false);
    let before = (injected(), proxy.requests());
    for _ in 0..20 {
        let read = client(&proxy.endpoint(), 0).get(&path).await.unwrap();
        assert_eq!(read.bytes().await.unwrap().as_ref(), b"content");
    }
    assert_eq!((injected(), proxy.requests()), (before.0, before.1 + 20));
}
