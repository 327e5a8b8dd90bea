//! Tests of the server's answers, without a socket.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod answers;
mod folder;
mod security;
mod support;
