//! The folder server of `s3s-fs`, with writes one at a time.
//!
//! `s3s-fs` 0.14 supports `If-None-Match: *` and `If-Match`, but checks first and writes later, and keeps an object's
//! ETag in a separate file that is written after the object's: two writers may both find nothing, and a reader may
//! get the previous ETag. S3 promises otherwise. Here a body is read whole, and then checked and written under a lock
//! that excludes reads. A prefix of other keys is a folder to `s3s-fs`, but not an object here.
//!
//! Requests that clients of `object_store` make are passed on; the rest of S3 is answered with `NotImplemented`.

use std::path::PathBuf;

use async_trait::async_trait;
use futures::TryStreamExt;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyObjectInput, CopyObjectOutput, CreateBucketInput,
    CreateBucketOutput, CreateMultipartUploadInput, CreateMultipartUploadOutput, DeleteObjectInput,
    DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, GetObjectInput, GetObjectOutput,
    HeadBucketInput, HeadBucketOutput, HeadObjectInput, HeadObjectOutput, ListObjectsV2Input,
    ListObjectsV2Output, ListPartsInput, ListPartsOutput, PutObjectInput, PutObjectOutput,
    StreamingBlob, UploadPartInput, UploadPartOutput,
};
use s3s::{Body, S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;
use tokio::sync::RwLock;

/// Folder as S3, in which writes exclude each other and reads.
#[derive(Debug)]
pub(super) struct Serial {
    files: FileSystem,
    root: PathBuf,
    turn: RwLock<()>,
}

impl Serial {
    pub(super) fn new(root: PathBuf) -> s3s_fs::Result<Self> {
        Ok(Self {
            files: FileSystem::new(&root)?,
            root,
            turn: RwLock::new(()),
        })
    }

    fn check_object(&self, bucket: &str, key: &str) -> S3Result<()> {
        if self.root.join(bucket).join(key).is_dir() {
            return Err(s3_error!(NoSuchKey));
        }
        Ok(())
    }
}

/// Reads a body to its end, so that half an upload is an error.
async fn whole(body: Option<StreamingBlob>) -> S3Result<Option<StreamingBlob>> {
    let Some(body) = body else { return Ok(None) };
    let body: Vec<_> = body
        .try_collect()
        .await
        .map_err(|source| S3Error::with_source(S3ErrorCode::IncompleteBody, source))?;
    Ok(Some(StreamingBlob::from(Body::from(body.concat()))))
}

#[async_trait]
impl S3 for Serial {
    async fn create_bucket(
        &self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        let _turn = self.turn.write().await;
        self.files.create_bucket(req).await
    }

    async fn head_bucket(
        &self,
        req: S3Request<HeadBucketInput>,
    ) -> S3Result<S3Response<HeadBucketOutput>> {
        self.files.head_bucket(req).await
    }

    async fn put_object(
        &self,
        mut req: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        req.input.body = whole(req.input.body).await?;
        let _turn = self.turn.write().await;
        self.files.put_object(req).await
    }

    async fn copy_object(
        &self,
        req: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let _turn = self.turn.write().await;
        self.files.copy_object(req).await
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let _turn = self.turn.write().await;
        self.files.delete_object(req).await
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let _turn = self.turn.write().await;
        self.files.delete_objects(req).await
    }

    async fn get_object(
        &self,
        req: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let _turn = self.turn.read().await;
        self.check_object(&req.input.bucket, &req.input.key)?;
        self.files.get_object(req).await
    }

    async fn head_object(
        &self,
        req: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let _turn = self.turn.read().await;
        self.check_object(&req.input.bucket, &req.input.key)?;
        self.files.head_object(req).await
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let _turn = self.turn.read().await;
        self.files.list_objects_v2(req).await
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let _turn = self.turn.write().await;
        self.files.create_multipart_upload(req).await
    }

    async fn upload_part(
        &self,
        mut req: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        req.input.body = whole(req.input.body).await?;
        let _turn = self.turn.write().await;
        self.files.upload_part(req).await
    }

    async fn list_parts(
        &self,
        req: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        let _turn = self.turn.read().await;
        self.files.list_parts(req).await
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let _turn = self.turn.write().await;
        self.files.complete_multipart_upload(req).await
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let _turn = self.turn.write().await;
        self.files.abort_multipart_upload(req).await
    }
}
