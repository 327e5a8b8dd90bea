//! The recordings that are served: read in the background, kept within a budget, found again when they change.

use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gpuheap_record::Bytes;
use tokio::sync::watch;

use crate::error::Error;
use crate::list::{List, SkewList, ranks};
use crate::loaded::Loaded;
use crate::reader;
use crate::scan::{Found, Root};
use crate::state::{Failure, File, Stage, State};
use crate::whatif::{self, WhatIf};

/// Recordings that are read at the same time.
const READERS: usize = 2;

/// How recordings are read and kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The card's size, or whatever limits the programs.
    pub limit: Option<Bytes>,
    /// What the recordings in memory may take, about. The last one that was asked for is kept in any case.
    pub memory: Bytes,
    /// How long a question waits for a recording that is being read.
    pub patience: Duration,
    /// The time between two looks at the folder; `None` to look once.
    pub poll: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limit: None,
            memory: crate::half_of_memory(),
            patience: Duration::from_secs(10),
            poll: Some(Duration::from_secs(2)),
        }
    }
}

/// The recordings that are served. Work on them ends when it is dropped.
#[derive(Debug)]
pub struct Library {
    shared: Arc<Shared>,
}

/// What readers, watchers and questions share.
pub(crate) struct Shared {
    pub(crate) root: Root,
    pub(crate) options: Options,
    state: Mutex<State>,
    work: Condvar,
    /// Counts changes, for those who wait for one.
    changes: watch::Sender<u64>,
    searches: Sender<whatif::Job>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").field("root", &self.root).finish_non_exhaustive()
    }
}

/// A device of a recording in memory. It stays there as long as somebody holds this.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) device: usize,
    pub(crate) whatif: Arc<WhatIf>,
}

/// What a visitor of a recording's page gets.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Visit {
    /// The page, with this title.
    Ready {
        /// The title.
        title: String,
    },
    /// Not yet: what is done, and how far it is.
    NotYet {
        /// The recording.
        name: String,
        /// What is done, in words.
        doing: String,
    },
    /// Never.
    Failed {
        /// The recording.
        name: String,
        /// Why.
        failure: Failure,
    },
}

/// Where the first page leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Entrance {
    /// To the only recording.
    Recording(u32),
    /// To what is said of the only recording, which is not read yet or cannot be.
    NotYet(u32),
    /// To the list.
    List,
}

impl Library {
    /// Starts to read what there is.
    pub fn open(root: Root, options: Options) -> Result<Self, Error> {
        let failed = |source| Error::Look { name: root.folder_name().unwrap_or_default(), source };
        let found = root.scan().map_err(failed)?;
        let (searches, jobs) = channel();
        let poll = options.poll;
        let shared = Arc::new(Shared {
            root,
            options,
            state: Mutex::default(),
            work: Condvar::new(),
            changes: watch::Sender::new(0),
            searches,
        });
        shared.update(&found);
        for _ in 0..READERS {
            let shared = Arc::clone(&shared);
            spawn("reader", move || shared.read_all())?;
        }
        spawn("what-if", move || whatif::work(&jobs))?;
        if let Some(every) = poll {
            let shared = Arc::downgrade(&shared);
            spawn("watcher", move || crate::watch::work(&shared, every, found))?;
        }
        Ok(Self { shared })
    }

    /// How many files there are now.
    #[must_use]
    pub fn files(&self) -> usize {
        self.shared.lock().files.len()
    }

    /// Why a single file cannot be served, as soon as that is known; never, if it can be, and for folders.
    pub(crate) async fn failure(&self) -> Error {
        let mut changes = self.shared.changes.subscribe();
        loop {
            match self.shared.first_outcome() {
                Some(Err(error)) => return error,
                // What becomes of the file later is told on its page.
                Some(Ok(())) => break,
                None if changes.changed().await.is_err() => break,
                None => {}
            }
        }
        std::future::pending().await
    }

    /// Waits a little for the reading of a single file, and says why it failed if it did. Folders never fail.
    pub fn wait(&self, patience: Duration) -> Result<(), Error> {
        let start = Instant::now();
        let mut state = self.shared.lock();
        loop {
            if let Some(outcome) = self.shared.outcome(&state) {
                return outcome;
            }
            let Some(left) = patience.checked_sub(start.elapsed()) else { return Ok(()) };
            (state, _) = self.shared.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The title of the page about all of them.
    pub(crate) fn title(&self) -> String {
        let folder = self.shared.root.folder_name();
        folder.map_or_else(|| "Recording".to_owned(), |folder| format!("Recordings in {folder}"))
    }

    /// The list, for the page about all of them.
    pub(crate) fn list(&self) -> List {
        List::new(self.shared.root.folder_name(), &self.shared.lock().files)
    }

    /// What differs between ranks: one table a set of recordings that differ by rank alone.
    pub(crate) fn skew(&self) -> SkewList {
        let runs = ranks(&self.shared.lock().files);
        SkewList::new(runs)
    }

    /// Where the first page leads.
    pub(crate) fn entrance(&self) -> Entrance {
        match self.shared.lock().files.as_slice() {
            // What is not read yet may have several devices.
            [File { rows, stage, .. }] if rows.len() == 1 => match stage {
                Stage::Ready => Entrance::Recording(rows[0].id),
                _ if self.is_one_file() => Entrance::NotYet(rows[0].id),
                _ => Entrance::List,
            },
            _ => Entrance::List,
        }
    }

    fn is_one_file(&self) -> bool {
        self.shared.root.folder_name().is_none()
    }

    /// What a visitor of a recording's page gets now.
    pub(crate) fn visit(&self, id: u32) -> Option<Visit> {
        let state = self.shared.lock();
        let (file, row) = state.find(id)?;
        let (file, row) = (&state.files[file], &state.files[file].rows[row]);
        let name = file.name.clone();
        let doing = match &file.stage {
            Stage::Ready => {
                let Some((summary, _)) = &row.known else { return None };
                let device = if summary.devices > 1 { format!(", device {}", summary.device) } else { String::new() };
                let name = gpuheap_report::sanitize(&name);
                return Some(Visit::Ready { title: format!("{}: {name}{device}", summary.verdict_title) });
            }
            Stage::Failed(failure) => return Some(Visit::Failed { name, failure: failure.clone() }),
            Stage::Waiting => "waits for others to be read".to_owned(),
            Stage::Reading { percent } => format!("reading… {percent} %"),
            Stage::Analysing => "analysing…".to_owned(),
        };
        Some(Visit::NotYet { name, doing })
    }

    /// A device of a recording, when it is in memory: waits for it as long as patience lasts.
    pub(crate) async fn hold(&self, id: u32) -> Result<Held, Error> {
        let mut changes = self.shared.changes.subscribe();
        let wait = async {
            loop {
                if let Some(held) = self.shared.held(id)? {
                    return Ok(held);
                }
                if changes.changed().await.is_err() {
                    return Err(Error::Reading);
                }
            }
        };
        tokio::time::timeout(self.shared.options.patience, wait).await.unwrap_or(Err(Error::Reading))
    }

    /// Other settings for a device; asking starts the search.
    pub(crate) fn whatif(&self, held: &Held) -> whatif::Now {
        held.whatif.ask(&held.loaded, held.device, &self.shared.searches)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.work.notify_all();
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop).map_err(Error::Start)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.work.notify_all();
        self.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Takes over what was found.
    pub(crate) fn update(&self, found: &[Found]) {
        if self.lock().update(found) {
            self.changed();
        }
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.lock().closing
    }

    fn first_outcome(&self) -> Option<Result<(), Error>> {
        self.outcome(&self.lock())
    }

    /// How the reading of a single file ended; `None` as long as it has not. A folder has nothing to wait for.
    fn outcome(&self, state: &State) -> Option<Result<(), Error>> {
        let is_file = self.root.folder_name().is_none();
        match state.files.first().filter(|_| is_file).map(|file| &file.stage) {
            Some(Stage::Failed(Failure { error, hint })) => {
                Some(Err(Error::Unreadable { error: error.clone(), hint: hint.clone() }))
            }
            Some(Stage::Ready) | None => Some(Ok(())),
            Some(_) => None,
        }
    }

    /// A device that is in memory. One that is not is read first.
    fn held(&self, id: u32) -> Result<Option<Held>, Error> {
        let mut state = self.lock();
        let (file, row) = state.find(id).ok_or(Error::NoRecording)?;
        state.touch(file);
        let known = &state.files[file];
        if let Stage::Failed(failure) = &known.stage {
            return Err(Error::Unreadable { error: failure.error.clone(), hint: failure.hint.clone() });
        }
        if let Some(loaded) = &known.loaded {
            let whatif = Arc::clone(&known.rows[row].whatif);
            return Ok(Some(Held { loaded: Arc::clone(loaded), device: row, whatif }));
        }
        let path = known.path.clone();
        state.queue(&path, true);
        drop(state);
        self.work.notify_all();
        Ok(None)
    }

    /// Reads what is in the queue until the library closes.
    fn read_all(&self) {
        loop {
            let mut state = self.lock();
            let job = loop {
                if state.closing {
                    return;
                }
                if let Some(job) = state.next_job() {
                    break job;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            let tell = |stage: Stage| self.set_stage(&job.path, stage);
            let ids = |devices| self.lock().ids(&job.path, devices);
            let outcome = reader::read(&job.path, &job.name, self.options.limit, &tell, &ids);
            let mut state = self.lock();
            if state.finished(&job) {
                self.keep(&mut state, &job.path, outcome);
            }
            drop(state);
            self.changed();
        }
    }

    fn keep(&self, state: &mut State, path: &PathBuf, outcome: Result<reader::Outcome, Failure>) {
        let Some(file) = state.file_mut(path) else { return };
        match outcome {
            Ok(outcome) => {
                for (row, known) in file.rows.iter_mut().zip(outcome.devices) {
                    row.known = Some(known);
                }
                file.loaded = Some(Arc::new(outcome.loaded));
                file.stage = Stage::Ready;
                state.shrink(self.options.memory.get(), path);
            }
            Err(failure) => {
                file.rows.truncate(1);
                for row in &mut file.rows {
                    row.known = None;
                }
                file.stage = Stage::Failed(failure);
            }
        }
    }

    /// Notes how far a recording is. One that was dropped from memory stays ready while it is read again.
    fn set_stage(&self, path: &PathBuf, stage: Stage) {
        if let Some(file) = self.lock().file_mut(path).filter(|file| file.stage != Stage::Ready) {
            file.stage = stage;
        }
    }
}
