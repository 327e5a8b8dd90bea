//! Tests of whole fits on models that are made here.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod bar;
mod confirm;
mod cost;
mod devices;
mod hostile;
mod hostile_fits;
mod model;
mod operators;
mod planner;
mod sizes;
mod timeline;
mod transforms;
