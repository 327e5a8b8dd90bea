//! Findings: what the analyses found, each with its evidence, its place and what to do about it.

mod fragmentation;
pub(crate) mod growth;
mod kept;
mod leak;
mod oom;
mod pending;
pub(crate) mod sawtooth;
mod settings;
mod stranded;

pub(crate) use leak::too_short as leak_too_short;
pub(crate) use oom::{given_limit, went_on as oom_went_on};

use std::cell::OnceCell;

use gpuheap_record::{Bytes, DeviceRecording, Recording};

use crate::frames::FrameTableMarks;
use crate::leaks::LeakAnalysis;
use crate::lifetimes::Tick;
use crate::phases::Phases;
use crate::replay::Replay;
use crate::report::{Finding, FindingKind, OutOfMemory};
use crate::sawtooth::Sawtooth;
use crate::settings::Settings;
use crate::steps::StepBoundaries;
use crate::stranded::StrandedStream;

/// Everything that findings are made of.
pub(crate) struct Facts<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) device: &'a DeviceRecording,
    pub(crate) marks: &'a FrameTableMarks,
    pub(crate) replay: &'a Replay,
    pub(crate) phases: &'a Phases,
    pub(crate) limit: Option<Bytes>,
    pub(crate) steps: &'a StepBoundaries,
    /// The judgement of the steps, and of what recurs after the last of them where the program went on for long.
    pub(crate) leaks: Vec<(&'a StepBoundaries, LeakAnalysis)>,
    pub(crate) sawtooth: Option<Sawtooth>,
    pub(crate) stranded: Vec<StrandedStream>,
    pub(crate) oom: Option<(Tick, OutOfMemory)>,
    /// What other settings would have done, once it is asked.
    pub(crate) settings: OnceCell<Settings>,
}

impl Facts<'_> {
    /// What other settings would have done.
    pub(crate) fn settings(&self) -> &Settings {
        self.settings.get_or_init(|| Settings::try_out(self))
    }
}

/// All findings, the most important first.
pub(crate) fn findings(facts: &Facts<'_>) -> Vec<Finding> {
    let leak = leak::find(facts);
    let sawtooth = if leak.is_none() { sawtooth::find(facts) } else { None };
    let oom = oom::find(facts, leak.as_ref());
    let went_on = facts.oom.as_ref().is_some_and(|&(tick, _)| oom::went_on(facts, tick));
    let (first, last) = if went_on { (None, oom) } else { (oom, None) };
    let all = [
        first,
        leak,
        sawtooth,
        stranded::find(facts),
        fragmentation::find(facts),
        pending::find(facts),
        growth::find(facts),
        kept::find(facts),
        last,
    ];
    let mut all: Vec<Finding> = all.into_iter().flatten().collect();
    all.extend(settings::find(facts));
    for index in 0..all.len() {
        let same = all[..index].iter().filter(|before| before.kind == all[index].kind).count();
        all[index].id = format!("{}-{}", kind_name(all[index].kind), same + 1);
    }
    all
}

fn kind_name(kind: FindingKind) -> &'static str {
    match kind {
        FindingKind::Oom => "oom",
        FindingKind::Leak => "leak",
        FindingKind::Sawtooth => "sawtooth",
        FindingKind::Stranded => "stranded",
        FindingKind::Fragmentation => "fragmentation",
        FindingKind::GrowingWorkingSet => "growing-working-set",
        FindingKind::Kept => "kept",
        FindingKind::DeferredFrees => "deferred-frees",
        FindingKind::Settings => "settings",
    }
}

/// The event that a tick comes directly after, as reports name events.
pub(crate) fn event_at(tick: Tick) -> Option<u64> {
    tick.event().map(|event| u64::from(event.get()))
}

/// A rate in whole bytes a step.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rates are finite and not negative")]
pub(crate) fn per_step(rate: f64) -> Bytes {
    Bytes::new(rate.max(0.0).round() as u64)
}

/// A number with a comma between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share as a whole percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// `1 step`, `2 steps`.
pub(crate) fn plural(count: usize, one: &str) -> String {
    match one.strip_suffix('s') {
        _ if count == 1 => format!("1 {one}"),
        Some(stem) if one.ends_with("ss") => format!("{count} {stem}ses"),
        _ => format!("{count} {one}s"),
    }
}

/// The last part of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}
