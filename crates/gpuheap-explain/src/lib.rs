//! What a recording means: a [`Recording`](gpuheap_record::Recording) goes in, a [`Report`] comes out.
//!
//! Nothing here knows a file format, and nothing prints. One file an analysis; [`explain`] says in which order they run:
//! the replay gives every allocation its size and its life, frames and phases say what the program was doing, classes
//! and steps follow from these, the analyses from all of them, the findings from the analyses, the verdict from the
//! findings.
#![forbid(unsafe_code)]

mod analysis;
mod check;
mod classes;
mod diff;
mod error;
mod explain;
mod findings;
mod fragmentation;
mod frames;
mod gaps;
pub mod health;
mod holders;
mod initial;
mod layout;
mod leaks;
mod ledger;
mod lifetimes;
mod names;
mod oom;
mod outside;
mod phases;
mod program;
mod replay;
mod report;
mod sawtooth;
mod search;
mod settings;
mod skew;
mod steps;
mod stranded;
mod timeline;
mod trend;
mod verdict;
mod views;
mod whatif;

pub use analysis::Analysis;
pub use check::{Budget, Checked, check};
pub use diff::{ClassChange, DIFF_SCHEMA, Diff, Side, SiteChange, diff};
pub use error::Error;
pub use explain::{Options, explain};
pub use gaps::{FilledGaps, fill_gaps};
pub use report::*;
pub use search::{WhatIfOptions, whatif};
pub use skew::{Measure, MeasureUnit, Rank, RankName, Skew, SkewFigures, skew};
pub use views::*;
