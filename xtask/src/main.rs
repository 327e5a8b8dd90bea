//! What developers and CI run: `cargo xtask --help`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command for developers: its output is its purpose")]

mod arguments;
mod bench;
mod exports;
mod failure;
mod fixtures;
mod fuzz;
mod gpu;
mod lint;
mod loom;
mod python;
mod test;
mod tools;
mod web;
mod workspace;

use std::process::ExitCode;

use crate::arguments::{Bench, Task};
use crate::failure::Failure;
use crate::workspace::Workspace;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.code())
        }
    }
}

fn run() -> Result<(), Failure> {
    let task = arguments::parse(std::env::args().skip(1))?;
    let workspace = Workspace::find()?;
    match task {
        Task::Help => {
            print!("{}", arguments::HELP);
            Ok(())
        }
        Task::Test { arguments } => test::run(&workspace, &arguments),
        Task::Lint => lint::run(&workspace),
        Task::Loom => loom::run(&workspace),
        Task::Fixtures { out, events, seed } => fixtures::run(&workspace, out.as_deref(), events, seed),
        Task::Bench { which: Bench::Shim, strict } => bench::shim::run(&workspace, strict),
        Task::Bench { which: Bench::Fit, strict } => bench::fit::run(&workspace, strict),
        Task::Bench { which: Bench::All, strict } => bench::run(&workspace, strict),
        Task::Web { check } => web::run(&workspace, check),
        Task::Browser { names } => web::browser(&workspace, &names),
        Task::Exports => exports::run(&workspace),
        Task::Python { options, arguments } => python::run(&workspace, options, &arguments),
        Task::Gpu { leaks } => gpu::run(&workspace, leaks.as_deref()),
        Task::Fuzz { target, seconds } => fuzz::run(&workspace, &target, seconds),
    }
}
