//! `gpuheap serve`: recordings in the browser, from a server on this machine.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use gpuheap_serve::{Library, Options, Root, Server};

use crate::cli::Serve;
use crate::commands::open::{say, show};
use crate::errors::Error;
use crate::{files, input, output};

/// How long the address waits for a file that may be no recording.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) fn run(arguments: &Serve) -> Result<ExitCode, Error> {
    let path = &arguments.path;
    if path.as_os_str() == "-" {
        return Err(Error::ServeStandardInput);
    }
    if let Err(source) = std::fs::metadata(path) {
        return Err(Error::Import(gpuheap_import::Error::Open { path: path.clone(), source }));
    }
    let server = Server::bind(&arguments.listen.unwrap_or_default()).map_err(Error::Serve)?;
    let root = Root::new(path, Box::new(recordings)).map_err(Error::Serve)?;
    let default = Options::default();
    let memory = arguments.memory.unwrap_or(default.memory);
    let options = Options { limit: arguments.limit, memory, ..default };
    let library = Library::open(root, options).map_err(Error::Serve)?;
    // What no recording is shows at once: nobody is sent to a page that goes away.
    library.wait(PATIENCE).map_err(|error| reason(arguments, error))?;

    let url = server.access().url();
    output::print(format!("{url}\n").as_bytes())?;
    if server.access().has_token() {
        say(
            "Whoever has this address can read the recordings, and so can whoever reads the traffic: it is not encrypted",
        );
    }
    if path.is_dir() {
        let count = library.files();
        let noun = if count == 1 { "recording" } else { "recordings" };
        say(&format!("{count} {noun} in `{}`; more are found as they come. Ctrl-C ends this", path.display()));
    } else {
        say("Ctrl-C ends this");
    }
    if !arguments.no_open && !show(url.as_ref()) && !server.access().has_token() {
        let port = server.port();
        say(&format!(
            "There is no browser here. On the machine that you sit at:\n  ssh -L {port}:localhost:{port} HOST\nthen open \
             http://localhost:{port}/"
        ));
    }
    server.run(Arc::new(library)).map_err(|error| reason(arguments, error))?;
    Ok(ExitCode::SUCCESS)
}

/// Why the file cannot be read, as the other commands say it.
fn reason(arguments: &Serve, error: gpuheap_serve::Error) -> Error {
    if !matches!(error, gpuheap_serve::Error::Unreadable { .. }) {
        return Error::Serve(error);
    }
    let explained = || {
        let (recording, _progress) = input::read(&arguments.path, false)?;
        let options = |device| gpuheap_explain::Options { device, limit: arguments.limit, at: None };
        let devices = recording.devices.iter().map(|device| Some(device.device.get()));
        let devices: Vec<Option<u32>> = if recording.devices.is_empty() { vec![None] } else { devices.collect() };
        for device in devices {
            gpuheap_explain::explain(&recording, &options(device)).map_err(Error::Explain)?;
        }
        Ok(())
    };
    // By now the file may be another one.
    explained().err().unwrap_or(Error::Serve(error))
}

/// What looks like a recording in one folder.
fn recordings(folder: &Path) -> std::io::Result<Vec<std::path::PathBuf>> {
    files::recordings(folder).map_err(|error| match error {
        Error::Folder { source, .. } => source,
        other => std::io::Error::other(other.to_string()),
    })
}
