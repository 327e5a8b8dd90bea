//! Tests of the command as its users run it: arguments in; exit code, output and errors out.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod check;
mod completions;
mod context;
mod diff;
mod explain;
mod export;
mod fit;
mod help;
mod page;
mod recordings;
#[cfg(target_os = "linux")]
mod run;
mod serve;
mod tui;
mod whatif;
