//! From a recording to a report: the order in which the analyses run.

use gpuheap_record::{Bytes, Compression, DeviceId, DeviceRecording, EventKind, Format, Recording};

use crate::classes::{self, Classes, Rule};
use crate::error::Error;
use crate::findings::{self, Facts};
use crate::frames::{FrameTableMarks, is_of_driver};
use crate::holders::holders;
use crate::leaks;
use crate::ledger::{ledger, moment};
use crate::lifetimes::Tick;
use crate::names::Names;
use crate::oom;
use crate::outside;
use crate::phases::Phases;
use crate::replay::{self, Replay};
use crate::report::{ClassRule, MomentName, Report, SCHEMA, SourceInfo, StepSource, Steps};
use crate::sawtooth;
use crate::steps::{self, StepBoundaries};
use crate::stranded;
use crate::timeline::timeline;
use crate::verdict::verdict;

/// What to explain.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// The device by its ordinal; `None` for the one with an OOM, else the one that reserved most.
    pub device: Option<u32>,
    /// The card's size, or whatever limits the program.
    pub limit: Option<Bytes>,
    /// The moment for the ledger and the holders; `None` for the OOM if there was one, else the peak.
    pub at: Option<MomentName>,
}

/// Explains one device of a recording.
pub fn explain(recording: &Recording, options: &Options) -> Result<Report, Error> {
    report(recording, &Basis::of(recording, options.device)?, options)
}

/// What all that is said about one device of a recording rests upon. It borrows nothing, so that it can be kept beside
/// the recording.
pub(crate) struct Basis {
    /// The device's ordinal.
    pub(crate) device: DeviceId,
    pub(crate) replay: Replay,
    pub(crate) marks: FrameTableMarks,
    pub(crate) names: Names,
    pub(crate) phases: Phases,
    pub(crate) classes: Classes,
    pub(crate) steps: StepBoundaries,
}

impl Basis {
    pub(crate) fn of(recording: &Recording, device: Option<u32>) -> Result<Self, Error> {
        let device = choose_device(recording, device)?;
        let replay = replay::replay(recording, device);
        let marks = FrameTableMarks::new(recording);
        let phases = Phases::new(recording, device, &marks);
        let names = Names::new(recording, device, &replay.allocations);
        let classes = classes::classify(&replay.allocations, &replay.lanes, &names, &phases, &marks);
        let steps = steps::find(recording, device, &replay.allocations, &phases, &marks);
        Ok(Self { device: device.device, replay, marks, names, phases, classes, steps })
    }

    /// The device in the recording that this was made of.
    pub(crate) fn device<'a>(&self, recording: &'a Recording) -> Result<&'a DeviceRecording, Error> {
        choose_device(recording, Some(self.device.get()))
    }
}

/// The report on what a basis was made of.
pub(crate) fn report(recording: &Recording, basis: &Basis, options: &Options) -> Result<Report, Error> {
    let Basis { replay, marks, phases, classes, steps, .. } = basis;
    let device = basis.device(recording)?;
    let times_us = device.events.times_us();
    let after = phase_after(recording, replay, phases, marks, steps);
    let rows = replay.allocations.rows();
    let judged = [Some(steps), after.as_ref()].into_iter().flatten();
    let judged =
        judged.filter_map(|steps| Some((steps, leaks::analyse(rows, classes, &replay.allocated, phases, steps)?)));
    let last = replay.last_tick();
    let oom = oom::find(recording, device, replay, classes, phases, marks);
    let facts = Facts {
        recording,
        device,
        marks,
        replay,
        phases,
        limit: options.limit.or_else(|| outside::room(recording, device.device)),
        steps,
        leaks: judged.collect(),
        sawtooth: sawtooth::find(rows, &replay.allocated, phases, steps),
        stranded: stranded::find(replay, last),
        oom,
        settings: std::cell::OnceCell::new(),
    };
    let findings = findings::findings(&facts);
    let verdict = verdict(&facts, &findings);

    let oom_tick = facts.oom.as_ref().map(|&(tick, _)| tick);
    let ledger_at = options.at.unwrap_or(if facts.oom.is_some() { MomentName::Oom } else { MomentName::Peak });
    let tick = match ledger_at {
        MomentName::Peak => replay.peak,
        MomentName::PeakReserved => replay.peak_reserved,
        MomentName::End => last,
        MomentName::Oom => oom_tick.ok_or(Error::NoSuchMoment { asked: ledger_at })?,
    };
    let account = |tick| {
        let idle = facts.stranded.iter().filter(|stream| stream.last_used <= tick).map(|stream| stream.stream);
        let mut parts = ledger(recording, replay, classes, tick, &idle.collect::<Vec<u64>>(), options.limit);
        let now = tick.event().and_then(|event| times_us.get(event.index()).copied()).filter(|&time| time > 0);
        if options.limit.is_none()
            && let Some(memory) = outside::nearest(recording, device.device, now)
        {
            let reserved = parts.iter().map(|part| part.bytes).sum::<Bytes>();
            parts.extend(outside::parts(memory, reserved.get(), now, is_of_driver(recording)));
        }
        parts
    };
    let at = |tick| moment(replay, classes, times_us, tick);
    Ok(Report {
        schema: SCHEMA,
        source: source_info(recording, device, replay, phases, options.limit),
        verdict,
        peaks: replay.peaks,
        peak: at(replay.peak),
        peak_reserved: at(replay.peak_reserved),
        end: at(last),
        ledger_at,
        ledger: account(tick),
        ledgers: [
            (MomentName::Peak, Some(replay.peak)),
            (MomentName::PeakReserved, Some(replay.peak_reserved)),
            (MomentName::Oom, oom_tick),
            (MomentName::End, Some(last)),
        ]
        .into_iter()
        .filter_map(|(name, tick)| Some((name, account(tick?))))
        .collect(),
        holders: holders(recording, replay, classes, phases, marks, tick),
        named: basis.names.at(recording, replay, classes, tick),
        steps: Steps { count: steps.ticks.len() as u64, how: steps.source, unit: steps.unit.clone() },
        findings,
        replay: replay.check.clone(),
        whatif: facts.settings.get().map(|settings| settings.rows.clone()).unwrap_or_default(),
        classes: class_rules(replay, classes, tick),
        timeline: timeline(replay, times_us),
        oom: facts.oom.as_ref().map(|(_, oom)| oom.clone()),
    })
}

/// What was read, for the head of a report.
pub(crate) fn source_info(
    recording: &Recording,
    device: &DeviceRecording,
    replay: &Replay,
    phases: &Phases,
    limit: Option<Bytes>,
) -> SourceInfo {
    let times_us = device.events.times_us();
    let duration_us = match (times_us.first(), times_us.last()) {
        (Some(&first), Some(&last)) => last.saturating_sub(first),
        _ => 0,
    };
    SourceInfo {
        path: recording.source.path.to_string_lossy().into_owned(),
        format: format_name(recording),
        bytes: Bytes::new(recording.source.bytes),
        events: recording.event_count() as u64,
        devices: recording.devices.len() as u64,
        device: device.device.get(),
        device_events: device.events.len() as u64,
        complete: replay.complete,
        reserved_before: Bytes::new(replay.reserved_before),
        duration_us,
        conf: recording.settings.conf.clone(),
        device_bytes: outside::nearest(recording, device.device, None).map(|memory| Bytes::new(memory.total)),
        facts: recording.facts.iter().cloned().collect(),
        notes: notes(recording, device, replay, phases, limit),
    }
}

pub(crate) fn choose_device(recording: &Recording, asked: Option<u32>) -> Result<&DeviceRecording, Error> {
    if recording.devices.is_empty() {
        return Err(Error::Nothing);
    }
    let ordinals = || recording.devices.iter().map(|device| device.device.get()).collect();
    if let Some(asked) = asked {
        let found = recording.devices.iter().find(|device| device.device.get() == asked);
        return found.ok_or_else(|| Error::NoSuchDevice { asked, available: ordinals() });
    }
    let weight = |device: &&DeviceRecording| {
        let failed = device.events.kinds().contains(&EventKind::OutOfMemory);
        let reserved = device.segments.iter().fold(0_u64, |sum, segment| sum.saturating_add(segment.total_size));
        (failed, reserved, device.events.len(), std::cmp::Reverse(device.device))
    };
    recording.devices.iter().max_by_key(weight).ok_or_else(|| Error::NoSuchDevice { asked: 0, available: ordinals() })
}

/// Where the program went on for long after its last step, in another way: what recurs there.
pub(crate) fn phase_after(
    recording: &Recording,
    replay: &Replay,
    phases: &Phases,
    marks: &FrameTableMarks,
    steps: &StepBoundaries,
) -> Option<StepBoundaries> {
    let horizon = *steps.ticks.last().filter(|_| steps.source != StepSource::Period)?;
    let rows = replay.allocations.rows();
    let first = rows.partition_point(|row| row.born <= horizon);
    let long = (rows.len() - first) * 4 > rows.len() && phases.last > horizon;
    let found = long.then(|| steps::recurring(recording, &rows[first..], marks))?;
    (!found.ticks.is_empty()).then_some(found)
}

fn format_name(recording: &Recording) -> String {
    let format = match recording.source.format {
        Format::TorchPickle => "torch-snapshot-pickle",
        Format::TorchJson => "torch-snapshot-json",
        Format::Gpuheap => "gpuheap-recording",
    };
    let compression = match recording.source.compression {
        Compression::None => "",
        Compression::Gzip => "+gzip",
        Compression::Zstd => "+zstd",
    };
    format!("{format}{compression}")
}

/// What the reader should know before trusting a figure.
fn notes(
    recording: &Recording,
    device: &DeviceRecording,
    replay: &Replay,
    phases: &Phases,
    limit: Option<Bytes>,
) -> Vec<String> {
    let mut notes: Vec<String> = recording.notes.iter().map(|note| note.0.clone()).collect();
    let events = device.events.len();
    if events == 0 {
        notes.push("the recording has no history: peaks, steps and leaks are those of the final state".to_owned());
    } else if !replay.complete {
        notes.push(format!(
            "the recording starts late: {} were reserved before its first event; that state was rebuilt backwards from the \
             final one, and what happened before is not known. Start to record before the model is built, or raise \
             `max_entries`",
            Bytes::new(replay.reserved_before)
        ));
    }
    if replay.unexplained_start > 0 {
        notes.push(format!(
            "{} of {events} events did not fit the final state: the state before the first event is uncertain",
            replay.unexplained_start
        ));
    }
    if replay.unexplained > 0 {
        notes.push(format!("{} of {events} events did not fit what was known before them", replay.unexplained));
    }
    if events > 0 && !phases.has_frames {
        notes.push(
            "no frames were recorded: nothing can be said about places and classes; record with `stacks=\"python\"`"
                .to_owned(),
        );
    }
    if events > 0
        && !replay.check.exact
        && let Some(mismatch) = &replay.check.first_mismatch
    {
        notes.push(format!("the replay of the allocator is not exact: {mismatch}"));
    }
    if replay.forced_releases > 0 {
        notes.push(format!(
            "the allocator ran out of room {} and released its cache to go on: the program was near its limit",
            if replay.forced_releases == 1 { "once".to_owned() } else { format!("{} times", replay.forced_releases) }
        ));
    }
    if let Some(limit) = limit.filter(|&limit| limit < replay.peaks.reserved_bytes) {
        notes.push(format!("the limit of {limit} is less than what was reserved, {}", replay.peaks.reserved_bytes));
    }
    if let Some(host) = &recording.host {
        let bytes: Bytes = host.segments.iter().map(|segment| Bytes::new(segment.total_size)).sum();
        notes.push(format!("pinned host memory at the end: {bytes}"));
    }
    notes
}

fn class_rules(replay: &Replay, classes: &Classes, tick: Tick) -> Vec<ClassRule> {
    let mut sums = vec![(Bytes::ZERO, 0_u64); Rule::ALL.len()];
    for (id, row) in replay.allocations.iter().filter(|(_, row)| row.is_live_at(tick)) {
        let (bytes, blocks) = &mut sums[classes.rule(id) as usize];
        *bytes += Bytes::new(row.size);
        *blocks += 1;
    }
    let rules = Rule::ALL.iter().zip(sums).filter(|(_, (_, blocks))| *blocks > 0);
    let mut rules: Vec<ClassRule> = rules
        .map(|(rule, (bytes, blocks))| ClassRule { class: rule.class(), rule: rule.text(), bytes, blocks })
        .collect();
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.bytes));
    rules
}
