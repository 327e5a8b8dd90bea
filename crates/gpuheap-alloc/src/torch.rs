//! PyTorch's CUDA caching allocator with native segments.
//!
//! Sizes, search, split, merge and release as PyTorch 2.11 does them; the rules were checked against recordings from an
//! H200, event by event. Other settings change only [`Config`] here; what needs more state (expandable growth,
//! collection by age, partial release) is not predicted yet.

mod allocator;
mod rules;

pub use allocator::{Allocation, Allocator, OutOfMemory, Request};
pub use rules::{Config, Decision, MIN_BLOCK, SMALL_LIMIT, SMALL_SEGMENT, decide, release_order};
