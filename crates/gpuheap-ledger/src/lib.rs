//! What the processes of a run share: the form of the ledger in shared memory, and the words that are sent over sockets.
//!
//! A run is what one `gpuheap run` started. Its folder holds the ledger, in which the shim in each process counts, and a
//! socket for each process that can be asked to make room. This crate says what both look like, for the shim that writes
//! them and for the commands that read them. It maps nothing and calls no driver, so it holds no unsafe code and needs
//! the standard library alone.
//!
//! | module | what is there |
//! | --- | --- |
//! | [`layout`] | the shared memory: header, a slot for each process; atomics only |
//! | [`account`] | a process's place in it: slots taken and given up, bytes within limits |
//! | [`denials`] | the last requests that the budget refused: a ring that many write at once |
//! | [`kind`] | what memory is, and whether it counts against the budget |
//! | [`identity`] | which process a slot belongs to, and whether it is alive |
//! | [`name`] | what the system calls a process |
//! | [`uuid`] | which device a place is of, whatever number it has in a process |
//! | [`mod@file`] | a new ledger as a file |
//! | [`snapshot`] | a ledger read without mapping it, as plain numbers |
//! | [`origin`] | who asked for memory |
//! | [`events`] | what happened to memory in one process: a file of records |
//! | [`control`] | requests and replies over the socket of a process |
#![cfg(unix)]
#![forbid(unsafe_code)]

pub mod account;
pub mod control;
pub mod denials;
pub mod events;
pub mod file;
pub mod identity;
pub mod kind;
pub mod layout;
pub mod name;
pub mod origin;
pub mod snapshot;
#[cfg(not(loom))]
mod sync;
#[cfg(loom)]
pub mod sync;
pub mod uuid;

pub use account::{Account, Member};
pub use denials::Denial;
pub use identity::Identity;
pub use kind::{KINDS, Kind};
pub use layout::{DEVICES, HOST, LIMITS, ORIGINS, Shared, Slot, State, limit_of};
pub use name::Name;
pub use origin::Origin;
pub use snapshot::{Process, Reader, Snapshot};
pub use uuid::Uuid;
