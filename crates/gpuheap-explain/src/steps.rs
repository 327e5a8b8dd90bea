//! The turns of the program's loop.
//!
//! A boundary is a tick; a step is what lies between two of them. The first source that is there at all is used, so
//! that a recording with five optimizer steps is "too short" and not one with a hundred layers:
//!
//! 1. annotations of a profiler's steps,
//! 2. annotations of optimizer steps, thinned to one for each round where several optimizers take turns,
//! 3. annotations of `zero_grad`,
//! 4. root gradients (one for each `backward()`), with forward passes that no backward pass followed,
//! 5. frames of optimizers,
//! 6. what recurs: the calls of a model from one place, else allocations of one size from one place, else of any size.

use foldhash::HashMap;
use gpuheap_record::{AnnotationStage, DeviceRecording, Recording, StackId};

use crate::frames::{FrameTableMarks, Marks};
use crate::lifetimes::{Allocation, Allocations, Tick};
use crate::phases::{Phases, annotations, tick_of};
use crate::report::StepSource;

/// The fewest boundaries from which anything recurring is told.
pub(crate) const FEWEST_BOUNDARIES: usize = 8;

/// How much the gaps between occurrences of something regular may vary: standard deviation over mean.
const REGULAR: f64 = 0.6;
/// The same where threads serve requests side by side.
const INTERLEAVED: f64 = 1.2;

/// The boundaries of steps, in order of time.
#[derive(Clone, Debug)]
pub(crate) struct StepBoundaries {
    pub(crate) ticks: Vec<Tick>,
    pub(crate) source: StepSource,
    /// What one step is, in words.
    pub(crate) unit: String,
}

impl StepBoundaries {
    fn new(ticks: Vec<Tick>, source: StepSource, unit: impl Into<String>) -> Self {
        Self { ticks, source, unit: unit.into() }
    }

    /// The step that a tick lies in: the number of boundaries before it.
    pub(crate) fn step_of(&self, tick: Tick) -> usize {
        self.ticks.partition_point(|&boundary| boundary < tick)
    }
}

/// Finds the steps of a device's recording.
pub(crate) fn find(
    recording: &Recording,
    device: &DeviceRecording,
    allocations: &Allocations,
    phases: &Phases,
    marks: &FrameTableMarks,
) -> StepBoundaries {
    let annotated = |prefix: &'static str| -> Vec<Tick> {
        let matching =
            annotations(recording, device, prefix).filter(|annotation| annotation.stage == AnnotationStage::End);
        let mut ticks: Vec<Tick> = matching.map(|annotation| tick_of(device, annotation)).collect();
        ticks.sort_unstable();
        // Several within one tick are one, and what ended before the first event is not part of this recording.
        ticks.dedup();
        ticks.retain(|&tick| tick > Tick::START);
        ticks
    };
    let profiler = annotated("ProfilerStep#");
    if profiler.len() >= FEWEST_BOUNDARIES {
        return StepBoundaries::new(profiler, StepSource::Annotation, "profiler step");
    }
    let passes: Vec<Tick> =
        phases.backward.iter().filter(|pass| pass.root != StackId::default()).map(|pass| pass.end).collect();
    let optimizer = annotated("Optimizer.step#");
    // Annotations of another time than the events, as after a cut, say less than the backward passes that are there.
    let too_few =
        |ticks: &[Tick]| ticks.is_empty() || (ticks.len() < FEWEST_BOUNDARIES && passes.len() > 2 * ticks.len() + 2);
    if !too_few(&optimizer) {
        let rounds = one_for_each_round(recording, &optimizer, phases, marks);
        let unit = if rounds.len() == optimizer.len() { "optimizer step" } else { "round of optimizer steps" };
        return StepBoundaries::new(rounds, StepSource::Annotation, unit);
    }
    let zero_grad = annotated("Optimizer.zero_grad#");
    if !too_few(&zero_grad) && (passes.is_empty() || zero_grad.len() <= passes.len() + 1) {
        return StepBoundaries::new(zero_grad, StepSource::Annotation, "`zero_grad`");
    }
    if !passes.is_empty() {
        let count = passes.len();
        let turns = with_passes_that_failed(passes, allocations, phases, marks, &recording.stacks);
        let unit = if turns.len() > count { "forward pass" } else { "backward pass" };
        return StepBoundaries::new(turns, StepSource::OptimizerFrames, unit);
    }
    if !phases.optimizer.is_empty() {
        let ticks = phases.optimizer.iter().map(|span| span.end).collect();
        return StepBoundaries::new(ticks, StepSource::OptimizerFrames, "optimizer step");
    }
    recurring(recording, allocations.rows(), marks)
}

/// What recurs in a part of the recording.
pub(crate) fn recurring(recording: &Recording, rows: &[Allocation], marks: &FrameTableMarks) -> StepBoundaries {
    let calls = calls_of_models(rows, marks, &recording.stacks);
    let by_call = candidates(calls.into_iter().map(|call| ((call.site, 0), call.start, call.first_row)));
    let by_size = || {
        let framed =
            rows.iter().enumerate().filter(|(_, row)| row.stack != StackId::default() && row.born > Tick::START);
        candidates(framed.map(|(index, row)| ((row.stack, row.requested), row.born, index)))
    };
    let by_stack = || {
        let framed =
            rows.iter().enumerate().filter(|(_, row)| row.stack != StackId::default() && row.born > Tick::START);
        candidates(framed.map(|(index, row)| ((row.stack, 0), row.born, index)))
    };
    // The model is loaded before its loop: that part need not recur.
    let loaded = rows.iter().filter(|row| marks.marks(row.stack).any(Marks::PARAMETER)).count();
    let span = rows.len() - loaded;
    let found = most_regular(by_call, rows, span, REGULAR)
        .or_else(|| most_regular(by_size(), rows, span, REGULAR))
        .or_else(|| most_regular(by_stack(), rows, span, REGULAR))
        .or_else(|| most_regular(by_stack(), rows, span, INTERLEAVED));
    let Some(((stack, _), ticks)) = found else {
        return StepBoundaries::new(Vec::new(), StepSource::None, "step");
    };
    let unit = match marks.site_frame(recording, stack) {
        Some(frame) => {
            let file = recording.file(frame);
            let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
            format!("call of {name}:{}", recording.frame(frame).line)
        }
        None => "recurrence".to_owned(),
    };
    // A boundary is where a turn ends: just before the next one starts. The last turn is cut by the recording's end.
    let ticks = ticks.into_iter().map(|tick| Tick(tick.0.saturating_sub(1))).collect();
    StepBoundaries::new(ticks, StepSource::Period, unit)
}

/// Where several optimizers step in turn, a round is all of them: keep the last of each.
fn one_for_each_round(recording: &Recording, steps: &[Tick], phases: &Phases, marks: &FrameTableMarks) -> Vec<Tick> {
    let roots: Vec<(Tick, StackId)> = phases
        .backward
        .iter()
        .filter(|pass| pass.root != StackId::default())
        .map(|pass| (pass.start, pass.root))
        .collect();
    if roots.is_empty() {
        return steps.to_vec();
    }
    let last_root = |tick: Tick| roots.partition_point(|&(start, _)| start <= tick).checked_sub(1);
    // Optimizers that step after one and the same backward pass: the last one ends the turn.
    let mut turns: Vec<Tick> = Vec::with_capacity(steps.len());
    for (index, &step) in steps.iter().enumerate() {
        let shares_pass =
            steps.get(index + 1).is_some_and(|&next| last_root(next) == last_root(step) && last_root(step).is_some());
        if !shares_pass {
            turns.push(step);
        }
    }
    // Backward passes from different lines that take turns.
    let label = |tick: Tick| {
        last_root(tick).and_then(|index| marks.user_frame(roots[index].1)).map(|frame| recording.frame(frame))
    };
    let mut labels = Vec::new();
    let mut counts: Vec<usize> = Vec::new();
    for &turn in &turns {
        let label = label(turn);
        match labels.iter().position(|&known| known == label) {
            Some(index) => counts[index] += 1,
            None if labels.len() < 8 => {
                labels.push(label);
                counts.push(1);
            }
            None => return turns,
        }
    }
    let (fewest, most) = (counts.iter().min().copied().unwrap_or(0), counts.iter().max().copied().unwrap_or(0));
    if labels.len() < 2 || fewest + 1 < most {
        return turns;
    }
    let last = labels[labels.len() - 1];
    turns.retain(|&turn| label(turn) == last);
    turns
}

/// Adds the turns in which a forward pass was not followed by its backward pass: an exception came between.
fn with_passes_that_failed(
    passes: Vec<Tick>,
    allocations: &Allocations,
    phases: &Phases,
    marks: &FrameTableMarks,
    stacks: &gpuheap_record::StackTable,
) -> Vec<Tick> {
    let rows = allocations.rows();
    let calls = calls_of_models(rows, marks, stacks);
    let consumed = |call: &Call| {
        rows[call.first_row..call.end_row]
            .iter()
            .any(|row| row.born > Tick::START && row.freed != Tick::NEVER && phases.backward_of(row.freed).is_some())
    };
    let mut sites: HashMap<StackId, (usize, usize)> = HashMap::default();
    let consumed: Vec<bool> = calls.iter().map(consumed).collect();
    for (call, &consumed) in calls.iter().zip(&consumed) {
        let (with, without) = sites.entry(call.site).or_default();
        *(if consumed { with } else { without }) += 1;
    }
    let mut ticks = passes;
    let regular = ticks.len();
    for (index, call) in calls.iter().enumerate() {
        let (with, without) = sites[&call.site];
        // The place that trains, failing now and then: not another place that only evaluates.
        if !consumed[index] && with * 2 >= regular && without <= 2 * with {
            let next = calls.get(index + 1).map_or(phases.last, |next| next.start);
            ticks.push(Tick(next.0.saturating_sub(1).max(call.start.0)));
        }
    }
    ticks.sort_unstable();
    ticks.dedup();
    ticks
}

/// One call of a model: allocations in a row whose outermost module was called from one place.
#[derive(Clone, Copy, Debug)]
struct Call {
    site: StackId,
    start: Tick,
    first_row: usize,
    end_row: usize,
}

fn calls_of_models(rows: &[Allocation], marks: &FrameTableMarks, stacks: &gpuheap_record::StackTable) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    let mut open: Option<Call> = None;
    let mut sites: HashMap<StackId, Option<StackId>> = HashMap::default();
    for (index, row) in rows.iter().enumerate() {
        if row.born == Tick::START || row.stack == StackId::default() {
            continue;
        }
        let site = *sites.entry(row.stack).or_insert_with(|| outermost_call(row.stack, marks, stacks));
        match (site, &mut open) {
            (Some(site), Some(call)) if call.site == site => call.end_row = index + 1,
            (site, open) => {
                calls.extend(open.take());
                *open = site.map(|site| Call { site, start: row.born, first_row: index, end_row: index + 1 });
            }
        }
    }
    calls.extend(open);
    calls
}

/// The stack that called the outermost module of `stack`.
fn outermost_call(stack: StackId, marks: &FrameTableMarks, stacks: &gpuheap_record::StackTable) -> Option<StackId> {
    let mut at = stack;
    let mut found = None;
    while at != StackId::default() && marks.marks(at).any(Marks::MODULE_CALL) {
        at = stacks.caller(at);
        found = Some(at);
    }
    found.filter(|_| !marks.marks(stack).any(Marks::BACKWARD.with(Marks::ROOTLESS)))
}

/// Occurrences of each candidate: when, and as which row.
type Candidates = Vec<((StackId, u64), Vec<(Tick, usize)>)>;

fn candidates(occurrences: impl Iterator<Item = ((StackId, u64), Tick, usize)>) -> Candidates {
    let mut index: HashMap<(StackId, u64), usize> = HashMap::default();
    let mut all: Candidates = Vec::new();
    for (key, tick, row) in occurrences {
        let at = *index.entry(key).or_insert_with(|| {
            all.push((key, Vec::new()));
            all.len() - 1
        });
        all[at].1.push((tick, row));
    }
    all
}

/// How many candidates are looked at more closely.
const MOST_CANDIDATES: usize = 16;

/// The least frequent candidate that recurs regularly over most of `span` rows, and whose turns are those of a loop that
/// works; the earliest among equals.
fn most_regular(
    candidates: Candidates,
    rows: &[Allocation],
    span: usize,
    most_variation: f64,
) -> Option<((StackId, u64), Vec<Tick>)> {
    let regular = candidates.into_iter().filter(|(_, occurrences)| is_regular(occurrences, span, most_variation));
    let mut regular: Vec<_> = regular.collect();
    regular.sort_by_key(|(_, occurrences)| (occurrences.len(), occurrences[0].0));
    regular
        .into_iter()
        .take(MOST_CANDIDATES)
        .map(|(key, occurrences)| (key, occurrences.into_iter().map(|(tick, _)| tick).collect::<Vec<_>>()))
        .find(|(_, ticks)| works(ticks, rows))
}

/// Whether most turns free something that they or the turn before made. A model that is loaded layer by layer recurs as
/// well, and frees nothing.
fn works(ticks: &[Tick], rows: &[Allocation]) -> bool {
    let turn = |tick: Tick| ticks.partition_point(|&start| start <= tick);
    let mut at_work = vec![false; ticks.len() + 1];
    for row in rows.iter().filter(|row| row.freed != Tick::NEVER && row.born > Tick::START) {
        let (born, freed) = (turn(row.born), turn(row.freed));
        if freed - born <= 1 {
            at_work[born] = true;
        }
    }
    at_work.iter().filter(|&&works| works).count() * 10 >= ticks.len() * 6
}

fn is_regular(occurrences: &[(Tick, usize)], span: usize, most_variation: f64) -> bool {
    if occurrences.len() < FEWEST_BOUNDARIES {
        return false;
    }
    let (first, last) = (occurrences[0].1, occurrences[occurrences.len() - 1].1);
    if ((last - first) as f64) < 0.6 * span as f64 {
        return false;
    }
    let gaps: Vec<f64> = occurrences.windows(2).map(|pair| (pair[1].1 - pair[0].1) as f64).collect();
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
    let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    variance.sqrt() < most_variation * mean
}
