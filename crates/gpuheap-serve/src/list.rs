//! What the page about all recordings shows: the list, and what differs between ranks.

use gpuheap_explain::{Rank, Skew, skew};
use serde::Serialize;

use crate::rank;
use crate::state::{File, Row, Stage};
use crate::summary::Summary;

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

impl List {
    pub(crate) fn new(folder: Option<String>, files: &[File]) -> Self {
        Self {
            schema: "gpuheap.recordings/1",
            generator: gpuheap_report::html::generator(),
            folder,
            recordings: files.iter().flat_map(Listed::of).collect(),
        }
    }
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
        let row = |row: &Row| Self {
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

impl SkewList {
    /// Compares the ranks of each run.
    pub(crate) fn new(runs: Vec<(String, Vec<Rank>)>) -> Self {
        let runs = runs.into_iter().map(|(name, ranks)| Run { name, skew: skew(ranks) }).collect();
        Self { schema: "gpuheap.skew/1", runs }
    }
}

/// Recordings that differ by rank alone, with what they have in common; and the devices of one recording.
pub(crate) fn ranks(files: &[File]) -> Vec<(String, Vec<Rank>)> {
    let mut runs: Vec<(String, Vec<Rank>)> = Vec::new();
    let mut add = |run: &str, rank: Rank| match runs.iter_mut().find(|(name, _)| name == run) {
        Some((_, ranks)) => ranks.push(rank),
        None => runs.push((run.to_owned(), vec![rank])),
    };
    for file in files {
        let known = file.rows.iter().filter_map(|row| Some((row.id, row.known.as_ref()?)));
        if let Some(named) = rank::rank(&file.name) {
            // A rank that touched other devices is what it is on its own.
            let fullest = known.max_by_key(|(_, (summary, _))| summary.peaks.reserved_bytes);
            if let Some((id, (_, figures))) = fullest {
                add(&named.pattern, Rank { rank: named.rank, recording: id.to_string(), figures: figures.clone() });
            }
        } else if file.rows.len() > 1 {
            for (id, (summary, figures)) in known {
                let rank = Rank { rank: summary.device, recording: id.to_string(), figures: figures.clone() };
                add(&file.name, rank);
            }
        }
    }
    runs.retain(|(_, ranks)| ranks.len() > 1);
    runs
}
