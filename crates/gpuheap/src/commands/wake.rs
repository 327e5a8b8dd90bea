//! `gpuheap wake`: a process that yielded moves its memory back.

use std::process::ExitCode;

use gpuheap_ledger::control::Request;
use gpuheap_record::Bytes;

use super::r#yield::{ask, moved, print, print_json, state};
use crate::cli::Wake;
use crate::errors::Error;

pub(super) fn run(arguments: &Wake) -> Result<ExitCode, Error> {
    let (process, done) = ask(arguments.pid, Request::Wake, arguments.json)?;
    if arguments.json {
        return print_json("gpuheap.wake/1", process, &done);
    }
    let left = if done.host > 0 { format!(", {} still on the host", Bytes::new(done.host)) } else { String::new() };
    print(&format!("{process} {}: {}{left}\n", state(done.state), moved(&done, "back")))
}
