//! This crate's errors where DataFusion's are returned: whole, as the external source of one. It makes none of its own,
//! and does not turn DataFusion's into this crate's.

use datafusion::error::DataFusionError;

use crate::Error;

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        Self::External(Box::new(error))
    }
}
