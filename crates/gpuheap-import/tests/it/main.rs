//! One test binary for the importers: a module a subject.
#![expect(clippy::unwrap_used, reason = "a test stops where something unexpected happens")]

mod bombs;
mod damage;
mod files;
mod foreign;
mod opcodes;
mod own;
mod schema;
mod seeds;
mod styles;
mod support;
mod writer;
