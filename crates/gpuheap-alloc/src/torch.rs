//! PyTorch's CUDA caching allocator.
//!
//! Sizes, search, split, growth, collection and release as PyTorch 2.11 does them; the rules were checked against
//! recordings from an H200, event by event.

mod allocator;
mod conf;
mod release;
mod rules;

pub use allocator::{Allocator, Counters, OutOfMemory, Request};
pub use conf::{ConfError, parse_conf};
pub use release::{Release, collection_pass, full_release, partial_release};
pub use rules::{Config, Decision, MIN_BLOCK, SMALL_LIMIT, SMALL_SEGMENT, decide, find, new_memory};
