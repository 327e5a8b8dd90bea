//! The list for programs. `schema/ps.schema.json` describes it.

use std::collections::BTreeMap;

use gpuheap_ledger::{DEVICES, HOST, Kind, Origin, Process};
use serde::Serialize;

use crate::run::folder::Run;
use crate::run::processes;

/// All runs.
#[derive(Serialize)]
pub(super) struct Listing<'a> {
    schema: &'static str,
    runs: Vec<RunEntry<'a>>,
}

#[derive(Serialize)]
struct RunEntry<'a> {
    run: String,
    folder: String,
    command: &'a [String],
    started_ms: u64,
    /// Nothing is no budget.
    budget_bytes: Option<u64>,
    spill_bytes: u64,
    spilled_bytes: u64,
    spilled_peak_bytes: u64,
    moved_out_bytes: u64,
    moved_in_bytes: u64,
    refused: u64,
    devices: Vec<OnDevice>,
    processes: Vec<ProcessEntry>,
}

#[derive(Serialize)]
struct OnDevice {
    device: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    used_bytes: u64,
    peak_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_kind: Option<BTreeMap<&'static str, u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by_origin: Option<BTreeMap<&'static str, u64>>,
}

#[derive(Serialize)]
struct ProcessEntry {
    pid: u32,
    name: String,
    /// Nothing for a process of another container.
    command: Option<Vec<String>>,
    state: &'static str,
    spilled_bytes: u64,
    spilled_by_origin: BTreeMap<&'static str, u64>,
    moved_out_bytes: u64,
    moved_in_bytes: u64,
    devices: Vec<OnDevice>,
    host: BTreeMap<&'static str, u64>,
}

impl<'a> Listing<'a> {
    pub(super) fn new(runs: &'a [Run]) -> Self {
        Self { schema: "gpuheap.ps/1", runs: runs.iter().map(run_entry).collect() }
    }
}

fn run_entry(run: &Run) -> RunEntry<'_> {
    let snapshot = &run.snapshot;
    let budget = snapshot.budgets[0];
    let device = |device: usize| {
        let (used_bytes, peak_bytes) = (snapshot.used(device), snapshot.peaks[device]);
        let uuid = snapshot.devices[device].map(|uuid| uuid.to_string());
        (used_bytes > 0 || peak_bytes > 0).then_some(OnDevice {
            device,
            uuid,
            used_bytes,
            peak_bytes,
            by_kind: None,
            by_origin: None,
        })
    };
    RunEntry {
        run: run.name(),
        folder: run.path.to_string_lossy().into_owned(),
        command: &run.about.command,
        started_ms: run.about.started_ms,
        budget_bytes: (budget > 0).then_some(budget),
        spill_bytes: snapshot.spill,
        spilled_bytes: snapshot.used(HOST),
        spilled_peak_bytes: snapshot.peaks[HOST],
        moved_out_bytes: snapshot.moved_out,
        moved_in_bytes: snapshot.moved_in,
        refused: snapshot.denied,
        devices: (0..DEVICES).filter_map(device).collect(),
        processes: snapshot.living().map(process_entry).collect(),
    }
}

fn process_entry(process: &Process) -> ProcessEntry {
    let device = |device: usize| {
        let by_kind = by_kind(process, device);
        let (used_bytes, peak_bytes) = (process.limited[device], process.peak[device]);
        let is_used = used_bytes > 0 || peak_bytes > 0 || !by_kind.is_empty();
        is_used.then_some(OnDevice {
            device,
            uuid: None,
            used_bytes,
            peak_bytes,
            by_kind: Some(by_kind),
            by_origin: Some(by_origin(process, device)),
        })
    };
    ProcessEntry {
        pid: process.identity.process(),
        name: process.name.to_string(),
        command: processes::command(process.identity),
        state: process.state.name(),
        spilled_bytes: process.spilled(),
        spilled_by_origin: by_origin(process, HOST),
        moved_out_bytes: process.moved_out,
        moved_in_bytes: process.moved_in,
        devices: (0..DEVICES).filter_map(device).collect(),
        host: by_kind(process, HOST),
    }
}

fn by_origin(process: &Process, limit: usize) -> BTreeMap<&'static str, u64> {
    let origins = Origin::ALL.into_iter().map(|origin| (origin.name(), process.origins[limit][origin.number()]));
    origins.filter(|(_, bytes)| *bytes > 0).collect()
}

fn by_kind(process: &Process, device: usize) -> BTreeMap<&'static str, u64> {
    let kinds = Kind::ALL.into_iter().map(|kind| (kind.name(), process.bytes(kind, device)));
    kinds.filter(|(_, bytes)| *bytes > 0).collect()
}
