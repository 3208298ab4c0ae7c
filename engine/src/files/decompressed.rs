//! The bytes of compressed files, of all members.
//!
//! A compressed file may be several in a row, as `cat a.zst b.zst`, `pbzip2` and `pzstd` write it. DataFusion's streams end
//! with the first of them. Not here: which files are compressed, which their table says.

use std::io;

use async_compression::tokio::bufread::{BzDecoder, GzipDecoder, XzDecoder, ZstdDecoder};
use bytes::Bytes;
use datafusion::common::parsers::CompressionTypeVariant;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::error::{DataFusionError, Result};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use tokio::io::AsyncRead;
use tokio_util::io::{ReaderStream, StreamReader};

/// Bytes that are handed on at a time.
const PIECE: usize = 256 << 10;

/// Returns the bytes of a file without their compression.
pub fn decompressed(
    bytes: BoxStream<'static, Result<Bytes>>,
    compression: FileCompressionType,
) -> BoxStream<'static, Result<Bytes>> {
    fn pieces(decoder: impl AsyncRead + Send + 'static) -> BoxStream<'static, Result<Bytes>> {
        let pieces = ReaderStream::with_capacity(decoder, PIECE);
        pieces.map_err(DataFusionError::from).boxed()
    }
    let variant = *compression.get_variant();
    if variant == CompressionTypeVariant::UNCOMPRESSED {
        return bytes;
    }
    let reader = StreamReader::new(bytes.map_err(io::Error::other));
    match variant {
        CompressionTypeVariant::GZIP => {
            let mut decoder = GzipDecoder::new(reader);
            decoder.multiple_members(true);
            pieces(decoder)
        }
        CompressionTypeVariant::BZIP2 => {
            let mut decoder = BzDecoder::new(reader);
            decoder.multiple_members(true);
            pieces(decoder)
        }
        CompressionTypeVariant::XZ => {
            let mut decoder = XzDecoder::new(reader);
            decoder.multiple_members(true);
            pieces(decoder)
        }
        CompressionTypeVariant::ZSTD => {
            let mut decoder = ZstdDecoder::new(reader);
            decoder.multiple_members(true);
            pieces(decoder)
        }
        CompressionTypeVariant::UNCOMPRESSED => {
            reader.into_inner().map_err(DataFusionError::from).boxed()
        }
    }
}
