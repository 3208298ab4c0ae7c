//! proto.
