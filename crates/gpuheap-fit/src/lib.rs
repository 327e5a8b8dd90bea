//! Whether a training step fits a memory budget, before it is run, and the cheapest changes that make it fit.
//!
//! A [`Trace`] of two steps, made without a GPU, goes in. A [`Program`] is the trace as a list of events that levers
//! transform: activation checkpointing, accumulation, forms of the optimizer. The [`replay`] of a program through
//! PyTorch's exact allocator gives its peaks, the [`cost`] model its time, and [`fit`] searches for the fastest set of
//! levers whose peak stays within the budget.
//!
//! Nothing here runs Python, knows a terminal or prints.
#![forbid(unsafe_code)]

mod bar;
pub mod blocks;
mod confirm;
pub mod cost;
pub mod device;
mod error;
pub mod exchange;
mod fit;
pub mod holders;
mod json;
pub mod levers;
pub mod plan;
mod program;
pub mod replay;
pub mod scale;
pub mod timeline;
pub mod trace;
mod tracer;

pub use error::Error;
pub use fit::{
    Basis, Fit, FitBatch, FitOptions, FrontPoint, Optimality, Peak, PhaseReport, PlannedLever, SCHEMA, Verdict, fit,
};
pub use json::JsonError;
pub use levers::Lever;
pub use program::{Program, Slot, Step};
pub use timeline::{Timeline, Timelines};
pub use trace::Trace;
pub use tracer::{Tracer, fit_traced};

/// The JSON Schema (draft 2020-12) of a [`Fit`].
pub const JSON_SCHEMA: &str = include_str!("../schema/fit.schema.json");
