//! What is known of every recording: found, waiting, read, dropped.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use gpuheap_explain::SkewFigures;

use crate::loaded::Loaded;
use crate::scan::{Found, Stamp};
use crate::summary::Summary;
use crate::whatif::WhatIf;

/// Files of more bytes are read one at a time. A compressed one is taken for ten times as large.
const BIG: u64 = 256 << 20;

/// How far a recording is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Others are read first.
    Waiting,
    /// Its file is read.
    Reading {
        /// How much of it was.
        percent: u8,
    },
    /// It was read and is analysed.
    Analysing,
    /// It can be asked.
    Ready,
    /// It cannot be read or explained.
    Failed(Failure),
}

/// Why a recording cannot be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    pub(crate) error: String,
    pub(crate) hint: Option<String>,
}

/// One file.
pub(crate) struct File {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) stamp: Stamp,
    pub(crate) stage: Stage,
    /// One row a device; a single one as long as nobody knows.
    pub(crate) rows: Vec<Row>,
    /// `None` while it is not in memory.
    pub(crate) loaded: Option<Arc<Loaded>>,
    /// When it was asked last, by the library's clock.
    pub(crate) used: u64,
    /// Whether it is in the queue or being read.
    pub(crate) queued: bool,
}

/// One device of a file.
pub(crate) struct Row {
    pub(crate) id: u32,
    pub(crate) known: Option<(Summary, SkewFigures)>,
    pub(crate) whatif: Arc<WhatIf>,
}

impl Row {
    fn new(id: u32) -> Self {
        Self { id, known: None, whatif: Arc::default() }
    }
}

impl File {
    fn is_big(&self) -> bool {
        let name = self.name.to_ascii_lowercase();
        let factor = if [".gz", ".zst", ".zstd"].iter().any(|end| name.ends_with(end)) { 10 } else { 1 };
        self.stamp.bytes.saturating_mul(factor) > BIG
    }
}

/// Every recording and who reads what.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) files: Vec<File>,
    last_id: u32,
    clock: u64,
    queue: VecDeque<PathBuf>,
    running: usize,
    big_runs: bool,
    pub(crate) closing: bool,
}

/// A file to be read.
pub(crate) struct Job {
    pub(crate) path: PathBuf,
    pub(crate) name: String,
    pub(crate) stamp: Stamp,
    big: bool,
}

impl State {
    pub(crate) fn new_id(&mut self) -> u32 {
        self.last_id += 1;
        self.last_id
    }

    /// The place of a row: its file and its place in the file.
    pub(crate) fn find(&self, id: u32) -> Option<(usize, usize)> {
        let of = |file: &File| file.rows.iter().position(|row| row.id == id);
        self.files.iter().enumerate().find_map(|(index, file)| Some((index, of(file)?)))
    }

    pub(crate) fn file_mut(&mut self, path: &PathBuf) -> Option<&mut File> {
        self.files.iter_mut().find(|file| file.path == *path)
    }

    /// Notes that somebody asked for a file.
    pub(crate) fn touch(&mut self, file: usize) {
        self.clock += 1;
        self.files[file].used = self.clock;
    }

    /// Takes over what was found: what is gone goes, what is new or changed is queued. Says whether anything changed.
    pub(crate) fn update(&mut self, found: &[Found]) -> bool {
        let before = self.files.len();
        self.files.retain(|file| found.iter().any(|found| found.path == file.path));
        let mut changed = self.files.len() != before;
        for found in found {
            if let Some(file) = self.file_mut(&found.path) {
                if file.stamp == found.stamp {
                    continue;
                }
                file.stamp = found.stamp;
                file.stage = Stage::Waiting;
                file.loaded = None;
                for row in &mut file.rows {
                    // Whoever still looks at the old recording keeps the old search.
                    row.whatif = Arc::default();
                }
            } else {
                let id = self.new_id();
                self.files.push(File {
                    name: found.name.clone(),
                    path: found.path.clone(),
                    stamp: found.stamp,
                    stage: Stage::Waiting,
                    rows: vec![Row::new(id)],
                    loaded: None,
                    used: 0,
                    queued: false,
                });
            }
            changed = true;
            self.queue(&found.path, false);
        }
        let place = |file: &File| found.iter().position(|found| found.path == file.path);
        self.files.sort_by_key(place);
        changed
    }

    /// Puts a file into the queue, unless it is in it: at its front if somebody waits for it.
    pub(crate) fn queue(&mut self, path: &PathBuf, first: bool) {
        let Some(file) = self.file_mut(path) else { return };
        if !file.queued {
            file.queued = true;
            self.queue.push_back(path.clone());
        }
        if first && let Some(at) = self.queue.iter().position(|queued| queued == path) {
            self.queue.remove(at);
            self.queue.push_front(path.clone());
        }
    }

    /// The next file to read, if one may be read now.
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        loop {
            let path = self.queue.front()?.clone();
            let Some(file) = self.files.iter().find(|file| file.path == path) else {
                // It is gone again.
                self.queue.pop_front();
                continue;
            };
            let big = file.is_big();
            if self.running > 0 && (big || self.big_runs) {
                return None;
            }
            let job = Job { path, name: file.name.clone(), stamp: file.stamp, big };
            self.queue.pop_front();
            self.running += 1;
            self.big_runs = big;
            return Some(job);
        }
    }

    /// Notes that a file was read, or could not be. Says whether the result still counts.
    pub(crate) fn finished(&mut self, job: &Job) -> bool {
        self.running -= 1;
        if job.big {
            self.big_runs = false;
        }
        let Some(file) = self.file_mut(&job.path) else { return false };
        file.queued = false;
        if file.stamp != job.stamp {
            self.queue(&job.path, false);
            return false;
        }
        true
    }

    /// One number a device of a file: known ones stay.
    pub(crate) fn ids(&mut self, path: &PathBuf, devices: usize) -> Vec<u32> {
        let known = self.file_mut(path).map_or(0, |file| file.rows.len());
        let new: Vec<u32> = (known..devices).map(|_| self.new_id()).collect();
        let Some(file) = self.file_mut(path) else { return new };
        file.rows.truncate(devices.max(1));
        file.rows.extend(new.into_iter().map(Row::new));
        file.rows.iter().map(|row| row.id).collect()
    }

    /// Drops what was not asked for longest until the rest fits, but never `kept`.
    pub(crate) fn shrink(&mut self, budget: u64, kept: &PathBuf) {
        loop {
            let held = self.files.iter().filter_map(|file| Some((file, file.loaded.as_ref()?.cost())));
            let sum: u64 = held.clone().map(|(_, cost)| cost).sum();
            let oldest = held.filter(|(file, _)| file.path != *kept).min_by_key(|(file, _)| file.used);
            let Some(path) = oldest.filter(|_| sum > budget).map(|(file, _)| file.path.clone()) else { return };
            if let Some(file) = self.file_mut(&path) {
                file.loaded = None;
            }
        }
    }
}
