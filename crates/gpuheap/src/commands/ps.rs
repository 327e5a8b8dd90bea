//! `gpuheap ps`: what runs under `gpuheap run`, and what every process of it holds.

mod json;
mod table;

use std::process::ExitCode;

use crate::cli::Ps;
use crate::errors::Error;
use crate::output;
use crate::run::{folder, watch};

pub(super) fn run(arguments: &Ps) -> Result<ExitCode, Error> {
    let runs = folder::all();
    for (run, error) in folder::unreadable() {
        watch::say(&format!("{error}: what run {run} holds is not known"));
    }
    let text = if arguments.json {
        serde_json::to_string_pretty(&json::Listing::new(&runs)).map_err(|error| Error::Print(error.into()))? + "\n"
    } else if runs.is_empty() {
        "Nothing runs under `gpuheap run`\n".to_owned()
    } else {
        table::text(&runs)
    };
    output::print(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
