//! `gpuheap run`: a program, and all that it starts, with the shim before the driver.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use gpuheap_ledger::Reader;
use gpuheap_ledger::file::Limits;
use gpuheap_record::Bytes;

use crate::cli::{Run, Spill};
use crate::errors::Error;
use crate::own::Own;
use crate::run::driver::{self, Search};
use crate::run::environment::{self, Changes};
use crate::run::folder::{self, Folder};
use crate::run::probe::{self, Found};
use crate::run::program::{self, Program};
use crate::run::watch::{self, Watch};
use crate::run::{self, recording, shim, spill};

pub(super) fn run(arguments: &Run, own: &Own) -> Result<ExitCode, Error> {
    if arguments.no_move && spills(arguments) {
        return Err(Error::Run(run::Error::SpillAndNoMove));
    }
    if let Some(option) = arguments.program.first().filter(|word| word.as_encoded_bytes().starts_with(b"-")) {
        return Err(Error::Run(run::Error::NoOption { option: option.clone() }));
    }
    match environment::outer_run() {
        Some(outer) => inner(arguments, own, &outer).map_err(Error::Run),
        None => outer(arguments, own).map_err(Error::Run),
    }
}

/// Whether something may spill.
fn spills(arguments: &Run) -> bool {
    arguments.spill.is_some_and(|spill| spill != Spill::Off)
}

/// A run of its own: folder, ledger, messages.
fn outer(arguments: &Run, own: &Own) -> Result<ExitCode, run::Error> {
    if let Some(path) = &arguments.record {
        recording::check(path)?;
    }
    let shim = shim::find(own)?;
    let path = environment::search_path();
    let search = Search::start(driver::NAME, path.as_deref());
    if search.candidates.is_empty() {
        return Err(run::Error::NoDriver { searched: search.searched, refused: search.refused });
    }
    let words: Vec<String> = arguments.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let budget = arguments.budget.map_or(0, Bytes::get);
    let limits = Limits { budget, spill: spill::most(arguments.spill) };
    let folder = Folder::new(&words, limits, &shim)?;
    if arguments.budget.is_some()
        && let Some(library) = shim::management(&shim)
        && let Some(real) = Search::start(driver::MANAGEMENT, path.as_deref()).candidates.first()
    {
        folder.put_management(&library, real);
    }
    let changes = attach(arguments, own, search, &folder)?;
    warn_of_earlier(&arguments.program[0], arguments.quiet);
    let program = Program::start(&arguments.program, &changes)?;
    let watch = Watch::start(folder.path(), arguments.quiet);
    let code = program.wait()?;
    let ended = watch.map(|watch| watch.end(arguments.budget.is_some() || spills(arguments))).unwrap_or_default();
    if let Some(path) = &arguments.record {
        recording::write(folder.path(), ended, path, arguments.quiet);
    }
    Ok(code)
}

/// Puts the first candidate behind the shim that turns out to be a driver. The environment in which it did comes back.
fn attach(arguments: &Run, own: &Own, mut search: Search, folder: &Folder) -> Result<Changes, run::Error> {
    for candidate in std::mem::take(&mut search.candidates) {
        folder.put_behind(&candidate)?;
        let beyond = search.beyond(&candidate);
        let changes = environment::of_run(arguments, folder.path(), &folder.drivers(), beyond);
        let why = match probe::look(own, &changes).map_err(run::Error::Probe)? {
            Found::Attached { management } => {
                if !management {
                    folder.remove_management();
                }
                return Ok(changes);
            }
            Found::OtherVersion => return Err(run::Error::OtherVersion),
            Found::Passed(got) => return Err(run::Error::NotAttached { got }),
            Found::Stub => "it is the CUDA toolkit's stub, which programs are linked with".to_owned(),
            Found::Failed(why) => why,
        };
        search.refused.push((candidate, why));
    }
    Err(run::Error::NoDriver { searched: search.searched, refused: search.refused })
}

/// A run inside a run: a program of the outer one.
fn inner(arguments: &Run, own: &Own, outer: &Path) -> Result<ExitCode, run::Error> {
    let is_given = [("--spill", spills(arguments)), ("--record", arguments.record.is_some())];
    if let Some((option, _)) = is_given.into_iter().find(|(_, is_given)| *is_given) {
        return Err(run::Error::InnerOption { option });
    }
    if let Some(budget) = arguments.budget {
        let snapshot = Reader::open(&outer.join("ledger")).and_then(|reader| reader.snapshot()).ok();
        let outer = snapshot.map(|snapshot| Bytes::new(snapshot.budgets[0])).filter(|outer| *outer > Bytes::ZERO);
        // The outer one holds in any case. A smaller one would have to be for a part of the ledger, which has no parts.
        if outer.is_none_or(|outer| budget < outer) {
            return Err(run::Error::InnerBudget { budget, outer });
        }
    }
    let changes = environment::of_inner_run(arguments, outer, &folder::drivers(outer));
    match probe::look(own, &changes).map_err(run::Error::Probe)? {
        Found::Attached { .. } => {}
        Found::OtherVersion => return Err(run::Error::OtherVersion),
        Found::Passed(got) => return Err(run::Error::NotAttached { got }),
        Found::Stub | Found::Failed(_) => {
            return Err(run::Error::NotAttached { got: folder::drivers(outer) });
        }
    }
    warn_of_earlier(&arguments.program[0], arguments.quiet);
    Program::start(&arguments.program, &changes)?.wait()
}

/// Says so if the program's file makes the loader look elsewhere first.
fn warn_of_earlier(program: &OsStr, quiet: bool) {
    if quiet {
        return;
    }
    if let Some((program, driver)) = program::earlier_driver(program) {
        watch::say(&format!(
            "`{}` looks for libraries in folders of its own first (DT_RPATH) and gets `{}`: what it allocates is neither \
             counted nor limited",
            program.display(),
            driver.display()
        ));
    }
}
