//! The arguments of `gpuheap check`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use gpuheap_record::Bytes;

const AFTER: &str = "\
Examples:
  gpuheap check snapshot.pickle --max-peak 20GiB --no-leaks
  gpuheap check rank*.pickle --budget-file gpuheap.toml --format github
  gpuheap check --plan plan.json           does the plan of `gpuheap fit` still fit?

A budget file has the same names; options on the command line win:
  max-peak = \"20GiB\"       # allocated memory
  max-reserved = \"24GiB\"   # reserved memory
  max-waste = 15           # percent of the reserved memory that was never in use
  no-leaks = true

A program that ran out of memory is never within its budget.

Exit codes: 0 all within the budget, 1 something is not, 2 bad input or use";

/// What to check against what.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub(crate) struct Check {
    /// The recordings: files, folders that hold one, or `-` for standard input; all devices are checked
    #[arg(value_name = "FILE", required_unless_present = "plan", conflicts_with = "plan")]
    pub(crate) files: Vec<PathBuf>,

    /// Check a plan of `gpuheap fit --json` instead: trace its model again, and see whether the plan still fits
    #[arg(long, value_name = "PATH", conflicts_with_all = ["max_peak", "max_reserved", "max_waste", "no_leaks", "budget_file"])]
    pub(crate) plan: Option<PathBuf>,

    /// With `--plan`: this trace instead of one that is made now; may be repeated
    #[arg(long = "trace", value_name = "FILE", requires = "plan")]
    pub(crate) traces: Vec<PathBuf>,

    /// With `--plan`: the Python that has the model's packages
    #[arg(long, value_name = "PATH", requires = "plan")]
    pub(crate) python: Option<PathBuf>,

    /// The most allocated memory: `20GiB`, `24GB` or bytes
    #[arg(long, value_name = "SIZE", value_parser = super::limit)]
    pub(crate) max_peak: Option<Bytes>,

    /// The most reserved memory
    #[arg(long, value_name = "SIZE", value_parser = super::limit)]
    pub(crate) max_reserved: Option<Bytes>,

    /// The largest part of the reserved memory, in percent, that may never be in use
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub(crate) max_waste: Option<f64>,

    /// No leak, and no garbage that piles up
    #[arg(long)]
    pub(crate) no_leaks: bool,

    /// Read what is not given here from this file
    #[arg(long, value_name = "PATH")]
    pub(crate) budget_file: Option<PathBuf>,

    /// What to print
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) format: Format,

    /// Write to this file instead of standard output
    #[arg(long, short, value_name = "PATH")]
    pub(crate) output: Option<PathBuf>,
}

/// The forms of the result of a check.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// One line for each violation; one line if everything holds
    Text,
    /// Annotations for GitHub Actions
    Github,
    /// `JUnit` XML, for most other services
    Junit,
    /// One JSON object
    Json,
}

/// A part in percent.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').trim_end();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err("write a number from 0 to 100".to_owned()),
    }
}
