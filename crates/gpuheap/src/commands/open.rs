//! `gpuheap open`: the page of a recording, in the browser.

use std::env::var_os;
use std::fs;
use std::io::{self, Write, stderr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use crate::cli::Open;
use crate::commands::page;
use crate::errors::Error;
use crate::{input, output};

/// Pages are removed when another one is made this long after them.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
const PREFIX: &str = "report-";
const SUFFIX: &str = ".html";

pub(super) fn run(arguments: &Open) -> Result<ExitCode, Error> {
    let (recording, mut progress) = input::read(&arguments.file, false)?;
    progress.explaining(recording.event_count());
    let options = gpuheap_explain::Options { device: arguments.device, limit: arguments.limit, at: None };
    let page = page::write(recording, &options, progress)?;
    let folder = folder();
    let path = keep(&folder, page.as_bytes()).map_err(|source| Error::Write { path: folder.clone(), source })?;
    clean(&folder);
    output::print(format!("{}\n", path.display()).as_bytes())?;
    if !show(path.as_os_str()) {
        let file = arguments.file.display();
        say(&format!(
            "There is no browser here. On the machine that you sit at, either copy the page\n  \
             scp HOST:{} .\nor serve the recording here with `gpuheap serve {file}` and lead its port there\n  \
             ssh -L 7650:localhost:7650 HOST\n",
            path.display()
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens a path or an address in the browser, if there is one. Never waits for it.
pub(super) fn show(what: &std::ffi::OsStr) -> bool {
    has_browser() && open::that_detached(what).is_ok()
}

/// Whether there is a browser that the user can see. A text browser in the terminal is none.
fn has_browser() -> bool {
    let set = |name: &str| var_os(name).is_some_and(|value| !value.is_empty());
    if set("SSH_CONNECTION") || set("SSH_TTY") {
        return false;
    }
    cfg!(any(target_os = "macos", windows)) || set("DISPLAY") || set("WAYLAND_DISPLAY") || set("WSL_DISTRO_NAME")
}

/// Says something that is not data.
pub(super) fn say(text: &str) {
    let text: String = text.lines().flat_map(|line| [gpuheap_report::sanitize(line), "\n".to_owned()]).collect();
    // There is nowhere to say that this failed.
    let _ = stderr().lock().write_all(text.as_bytes());
}

/// Where pages are kept: a browser must still be able to read them when this command has ended.
fn folder() -> PathBuf {
    let set = |name: &str| var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = |below: &str| set("HOME").map(|home| home.join(below));
    let cache = if cfg!(windows) {
        set("LOCALAPPDATA")
    } else if cfg!(target_os = "macos") {
        home("Library/Caches")
    } else {
        set("XDG_CACHE_HOME").filter(|path| path.is_absolute()).or_else(|| home(".cache"))
    };
    cache.map_or_else(std::env::temp_dir, |cache| cache.join("gpuheap").join("pages"))
}

/// Writes a page that nobody else can read, under a name that nobody can guess.
fn keep(folder: &Path, page: &[u8]) -> io::Result<PathBuf> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)?;
    // Temporary files are their owner's alone.
    let mut file = tempfile::Builder::new().prefix(PREFIX).suffix(SUFFIX).rand_bytes(16).tempfile_in(folder)?;
    file.write_all(page)?;
    file.flush()?;
    let (_, path) = file.keep().map_err(|error| error.error)?;
    Ok(path)
}

/// Removes pages of last week. One that cannot be removed does no harm.
fn clean(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let modified = entry.metadata().ok().filter(fs::Metadata::is_file).and_then(|data| data.modified().ok());
        let age = modified.and_then(|modified| SystemTime::now().duration_since(modified).ok());
        if name.starts_with(PREFIX) && name.ends_with(SUFFIX) && age.is_some_and(|age| age > KEPT) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_kept_for_a_week_and_other_files_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("gpuheap/pages");
        let page = keep(&below, b"<!doctype html>").unwrap();
        let old = keep(&below, b"old").unwrap();
        let other = below.join("mine.html");
        fs::write(&other, "mine").unwrap();
        let age = |path: &Path| {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::now() - KEPT - Duration::from_secs(60)).unwrap();
        };
        age(&old);
        age(&other);
        clean(&below);
        assert_eq!((page.exists(), old.exists(), other.exists()), (true, false, true));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&page), mode(&below)), (0o600, 0o700));
        }
    }
}
