//! Tests of the screen: what it shows, what keys do, and that no input harms it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod hostile;
mod keys;
mod random;
mod samples;
mod screens;
