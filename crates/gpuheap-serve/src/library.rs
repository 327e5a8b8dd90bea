//! The recordings that are served: read in the background, kept within a budget, found again when they change.

use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use gpuheap_explain::{Rank, Skew, SkewFigures, skew};
use gpuheap_record::Bytes;
use serde::Serialize;
use tokio::sync::watch;

use crate::error::Error;
use crate::loaded::Loaded;
use crate::scan::{Found, Root};
use crate::state::{Failure, File, Stage, State};
use crate::summary::Summary;
use crate::whatif::{self, WhatIf};
use crate::{rank, reader};

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
    pub(crate) id: u32,
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

    /// The title of the page about all of them.
    pub(crate) fn title(&self) -> String {
        let folder = self.shared.root.folder_name();
        folder.map_or_else(|| "Recording".to_owned(), |folder| format!("Recordings in {folder}"))
    }

    /// The list, for the page about all of them.
    pub(crate) fn list(&self) -> List {
        let state = self.shared.lock();
        List {
            schema: "gpuheap.recordings/1",
            generator: gpuheap_report::html::generator(),
            folder: self.shared.root.folder_name(),
            recordings: state.files.iter().flat_map(Listed::of).collect(),
        }
    }

    /// What differs between ranks: one table a set of recordings that differ by rank alone.
    pub(crate) fn skew(&self) -> SkewList {
        let state = self.shared.lock();
        let mut runs: Vec<(String, Vec<Rank>)> = Vec::new();
        let mut add = |run: String, rank: Rank| match runs.iter_mut().find(|(name, _)| *name == run) {
            Some((_, ranks)) => ranks.push(rank),
            None => runs.push((run, vec![rank])),
        };
        for file in &state.files {
            let known = file.rows.iter().filter_map(|row| Some((row.id, row.known.as_ref()?)));
            if let Some(named) = rank::rank(&file.name) {
                // A rank that touched other devices is what it is on its own.
                let fullest = known.max_by_key(|(_, (summary, _))| summary.peaks.reserved_bytes);
                if let Some((id, (_, figures))) = fullest {
                    let figures: SkewFigures = figures.clone();
                    add(named.pattern, Rank { rank: named.rank, recording: id.to_string(), figures });
                }
            } else if file.rows.len() > 1 {
                for (id, (summary, figures)) in known {
                    let rank = Rank { rank: summary.device, recording: id.to_string(), figures: figures.clone() };
                    add(file.name.clone(), rank);
                }
            }
        }
        drop(state);
        runs.retain(|(_, ranks)| ranks.len() > 1);
        SkewList {
            schema: "gpuheap.skew/1",
            runs: runs.into_iter().map(|(name, ranks)| Run { name, skew: skew(ranks) }).collect(),
        }
    }

    /// Where the first page leads.
    pub(crate) fn entrance(&self) -> Entrance {
        match self.shared.lock().files.as_slice() {
            [File { rows, stage, .. }] if rows.len() == 1 && (*stage == Stage::Ready || self.is_one_file()) => {
                Entrance::Recording(rows[0].id)
            }
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
            return Ok(Some(Held { id, loaded: Arc::clone(loaded), device: row, whatif }));
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
            let stage = |stage: Stage| self.set_stage(&job.path, stage);
            let ids = |devices| self.lock().ids(&job.path, devices);
            let outcome = reader::read(&job.path, &job.name, self.options.limit, &stage, &ids);
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
        let mut state = self.lock();
        if let Some(file) = state.file_mut(path).filter(|file| file.stage != Stage::Ready) {
            file.stage = stage;
        }
    }
}

/// Every recording.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct List {
    schema: &'static str,
    generator: String,
    /// The folder's name; `None` for a single file.
    folder: Option<String>,
    recordings: Vec<Listed>,
}

/// One device of a recording, or a recording of which that is all that is known.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Listed {
    id: u32,
    name: String,
    bytes: u64,
    /// `reading`, `ready` or `failed`.
    state: &'static str,
    /// How much of the file was read, while it is.
    percent: Option<u8>,
    error: Option<String>,
    hint: Option<String>,
    rank: Option<u32>,
    /// Whether it is in memory.
    in_memory: bool,
    #[serde(flatten)]
    summary: Option<Summary>,
}

impl Listed {
    fn of(file: &File) -> Vec<Self> {
        let (state, percent, failure) = match &file.stage {
            Stage::Waiting => ("reading", None, None),
            Stage::Reading { percent } => ("reading", Some(*percent), None),
            Stage::Analysing => ("reading", Some(100), None),
            Stage::Ready => ("ready", None, None),
            Stage::Failed(failure) => ("failed", None, Some(failure)),
        };
        let rank = rank::rank(&file.name).map(|named| named.rank);
        let row = |row: &crate::state::Row| Self {
            id: row.id,
            name: file.name.clone(),
            bytes: file.stamp.bytes,
            state,
            percent,
            error: failure.map(|failure| failure.error.clone()),
            hint: failure.and_then(|failure| failure.hint.clone()),
            rank,
            in_memory: file.loaded.is_some(),
            summary: row.known.as_ref().map(|(summary, _)| summary.clone()),
        };
        file.rows.iter().map(row).collect()
    }
}

/// What differs between ranks.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct SkewList {
    schema: &'static str,
    runs: Vec<Run>,
}

/// Recordings that differ by rank alone.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Run {
    /// Their common name, with `*` for the rank.
    name: String,
    #[serde(flatten)]
    skew: Skew,
}
