//! The conformance suite of the collectives: every operation, over every transport, at several world sizes
//! and lengths, with links that are sound, slow, cut or mute.

mod conformance;
mod failures;
mod faults;
mod fuzz;
mod handshake;
mod world;
