//! The fastest set of levers whose peak stays within a budget.
//!
//! Blocks come in a chain, and what is done to each is chosen exactly (`chain`); all other levers are few, and tried in
//! every combination that makes sense (`search`). Every candidate that counts is replayed through the allocator before
//! it is believed.

mod asked;
mod chain;
mod corrections;
mod prepare;
mod ranks;
mod search;
mod spec;
pub mod spread;
mod variants;

pub use chain::{Chain, Choice, Link, Solved};
pub(crate) use prepare::normalizes_over_batches;
pub use prepare::{Limits, Variant};
pub use search::{Candidate, Found, Planner};
pub use variants::variants;
