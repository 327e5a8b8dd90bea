//! The list for people: a line for each device of each process.

use gpuheap_ledger::{DEVICES, HOST, Kind, Origin, Process, State};
use gpuheap_record::Bytes;
use gpuheap_report::sanitize;

use crate::run::folder::Run;
use crate::run::processes;

/// Columns to the left, those with figures to the right.
const TITLES: [(&str, bool); 11] = [
    ("RUN", false),
    ("PID", true),
    ("COMMAND", false),
    ("STATE", false),
    ("DEVICE", true),
    ("USED", true),
    ("PEAK", true),
    ("SPILLED", true),
    ("BUDGET", true),
    ("HOLDS", false),
    ("FOR", false),
];

type Row = [String; TITLES.len()];

pub(super) fn text(runs: &[Run]) -> String {
    let titles = TITLES.map(|(title, _)| title.to_owned());
    let mut rows: Vec<Row> = vec![titles];
    for run in runs {
        let living: Vec<&Process> = run.snapshot.living().collect();
        if living.is_empty() {
            let command = processes::short(&run.about.command);
            let dash = || "-".to_owned();
            let (none, budget) = ("no CUDA yet".to_owned(), budget(run, 0));
            rows.push([
                run.name(),
                dash(),
                command,
                none,
                dash(),
                dash(),
                dash(),
                dash(),
                budget,
                String::new(),
                String::new(),
            ]);
        }
        for process in living {
            rows.extend(lines(run, process));
        }
    }
    aligned(&rows)
}

/// What a process does, in few letters.
fn state(state: State) -> &'static str {
    match state {
        State::Running => "running",
        State::GoingToSleep => "yielding",
        State::Asleep => "asleep",
        State::Held => "held",
        State::Waking => "waking",
    }
}

fn budget(run: &Run, device: usize) -> String {
    match run.snapshot.budgets[device] {
        0 => "-".to_owned(),
        bytes => Bytes::new(bytes).to_string(),
    }
}

/// The lines of a process: one for each device that it ever held something on, at least one.
fn lines(run: &Run, process: &Process) -> Vec<Row> {
    let is_used = |device: &usize| process.peak[*device] > 0 || process.bytes[*device].iter().any(|bytes| *bytes > 0);
    let mut devices: Vec<usize> = (0..DEVICES).filter(is_used).collect();
    if devices.is_empty() {
        devices.push(0);
    }
    let command = processes::command(process.identity);
    let command = command.map_or_else(|| process.name.to_string(), |command| processes::short(&command));
    let spilled = |index| if index == 0 { origins(process, HOST, " on the host") } else { Vec::new() };
    let line = |(index, device): (usize, usize)| {
        // What is the process's and not a device's stands once.
        let host = if index == 0 { kinds(process, HOST, " on the host") } else { Vec::new() };
        let held: Vec<String> = kinds(process, device, "").into_iter().chain(host).collect();
        [
            run.name(),
            process.identity.process().to_string(),
            command.clone(),
            state(process.state).to_owned(),
            device.to_string(),
            Bytes::new(process.limited[device]).to_string(),
            Bytes::new(process.peak[device]).to_string(),
            Bytes::new(process.bytes(Kind::Spilled, device)).to_string(),
            budget(run, device),
            held.join(", "),
            origins(process, device, "").into_iter().chain(spilled(index)).collect::<Vec<_>>().join(", "),
        ]
    };
    devices.into_iter().enumerate().map(line).collect()
}

/// Who asked for what a process holds within a limit, the most first.
fn origins(process: &Process, limit: usize, end: &str) -> Vec<String> {
    let held = Origin::ALL.into_iter().map(|origin| (process.origins[limit][origin.number()], origin.title()));
    let mut held: Vec<(u64, &str)> = held.filter(|(bytes, _)| *bytes > 0).collect();
    held.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    held.into_iter().map(|(bytes, title)| format!("{title} {}{end}", Bytes::new(bytes))).collect()
}

/// What a process holds in one place, by kind.
fn kinds(process: &Process, place: usize, end: &str) -> Vec<String> {
    let word = |kind| match kind {
        Kind::Linear => "linear",
        Kind::Pools => "pools",
        Kind::Physical | Kind::PhysicalHost => "physical",
        Kind::Arrays => "arrays",
        Kind::Graphs => "graphs",
        Kind::Managed => "managed",
        Kind::HostPinned => "page-locked",
        Kind::HostRegistered => "registered",
        Kind::Imported => "of others",
        Kind::Spilled => "spilled",
    };
    let held = Kind::ALL.into_iter().map(|kind| (kind, process.bytes(kind, place))).filter(|(_, bytes)| *bytes > 0);
    held.map(|(kind, bytes)| format!("{} {}{end}", Bytes::new(bytes), word(kind))).collect()
}

fn aligned(rows: &[Row]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| sanitize(cell)).collect()).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..TITLES.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).zip(TITLES).map(|((cell, &width), (_, is_figure))| {
            if is_figure { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
