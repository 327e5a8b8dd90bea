//! The leak: where it grows, how fast, and what it looks like.

use gpuheap_record::{Bytes, Frame, FrameId, StackId};

use super::{Facts, event_at, file_name, per_step, percent, plural};
use crate::frames::{Marks, site, sites};
use crate::holders::backward_label;
use crate::leaks::{LeakAnalysis, LeakGroup};
use crate::report::{Confidence, Finding, FindingKind, Remedy, StepSource};
use crate::steps::StepBoundaries;

/// The finding for the part of the recording that leaks most, if any does.
pub(crate) fn find(facts: &Facts<'_>) -> Option<Finding> {
    let leaking = facts.leaks.iter().filter(|(_, analysis)| !analysis.groups.is_empty());
    let (steps, analysis) = leaking.max_by(|a, b| total_bytes(&a.1).cmp(&total_bytes(&b.1)))?;
    let rate = analysis.rate();
    let places = places(facts, analysis);
    let main = places.first()?;
    let share = main.rate / rate.max(f64::MIN_POSITIVE);
    let stack = main.group.key.stack;
    let site = main.frame.map(|frame| site(facts.recording, frame));
    let unit = &steps.unit;
    let window = &analysis.window;
    let judged = window.judged.len();
    let pattern = Pattern::of(facts, analysis, main.group);
    let confidence = if facts.replay.unexplained > facts.device.events.len() / 100 {
        Confidence::Low
    } else {
        analysis.confidence()
    };

    let since = analysis.groups[0].began_late.map_or_else(String::new, |step| format!(" since step {}", step + 1));

    let began = analysis.groups[0].began_late.unwrap_or(window.warm_up);
    let mut evidence = Vec::new();
    let steps_with = analysis.groups.iter().map(|group| group.steps_with_survivors).max().unwrap_or(0);
    evidence.push(format!(
        "{steps_with} of {} judged left memory behind that was still alive at the last step's end",
        plural(judged, "step")
    ));
    let place = match (&site, main.group.key.frameless_size) {
        (Some(site), 0) => format!("allocated at {}:{} in `{}`", file_name(&site.file), site.line, site.function),
        (Some(_), _) => format!("made by the {}", backward_label(facts.recording, facts.marks, stack)),
        (None, _) => "made where no frames were recorded".to_owned(),
    };
    evidence.push(format!("{} of it was {place}; {} in all", percent(share), plural(places.len(), "place")));
    for other in places.iter().skip(1).take(3).filter(|other| other.rate >= 0.05 * rate) {
        if let Some(frame) = other.frame {
            let Frame { line, .. } = facts.recording.frame(frame);
            evidence.push(format!(
                "{} at {}:{line} in `{}`",
                percent(other.rate / rate),
                file_name(facts.recording.file(frame)),
                facts.recording.function(frame)
            ));
        }
    }
    let curve = &analysis.total_curve;
    evidence.push(format!(
        "live memory at step ends: {} after {}, {} after {}; the trend is {} per step",
        Bytes::new(curve[window.warm_up]),
        plural(window.warm_up + 1, "step"),
        Bytes::new(curve[curve.len() - 1]),
        window.steps,
        signed(analysis.total_slope)
    ));
    let dies = if analysis.oldest_freed < 2 {
        "nothing that was made after the warm-up and lived longer than one step was ever freed: a buffer for more than \
         this many steps would look the same"
            .to_owned()
    } else {
        format!("what was freed after the warm-up was at most {} old", plural(analysis.oldest_freed, "step"))
    };
    evidence.push(dies);
    if let Some(line) = steps_left(facts, analysis, rate) {
        evidence.push(line);
    }

    let bytes = Bytes::new(total_bytes(analysis));
    Some(Finding {
        id: String::new(),
        kind: FindingKind::Leak,
        title: format!(
            "+{} per {unit}{since} ({judged} of {} judged): {}",
            per_step(rate),
            plural(window.steps, "step"),
            pattern.what()
        ),
        site,
        stack: sites(facts.recording, stack),
        bytes,
        bytes_per_step: Some(per_step(rate)),
        confidence,
        evidence,
        remedy: Remedy { text: pattern.advice(facts, main.frame), conf: None, saves_bytes: Some(bytes) },
        event: steps.ticks.get(began).and_then(|&tick| event_at(tick)),
        growth: growth(analysis),
    })
}

fn total_bytes(analysis: &LeakAnalysis) -> u64 {
    analysis.groups.iter().fold(0, |sum, group| sum.saturating_add(group.bytes))
}

fn growth(analysis: &LeakAnalysis) -> Vec<Bytes> {
    let steps = analysis.total_curve.len();
    let mut curve = vec![Bytes::ZERO; steps];
    for group in &analysis.groups {
        for (sum, &bytes) in curve.iter_mut().zip(&group.curve) {
            *sum += Bytes::new(bytes);
        }
    }
    curve
}

/// A line of the program and what leaks there.
struct Place<'a> {
    frame: Option<FrameId>,
    rate: f64,
    group: &'a LeakGroup,
}

/// The leaking lines, the fastest first: functions by their sum, and within a function its fastest line.
fn places<'a>(facts: &Facts<'_>, analysis: &'a LeakAnalysis) -> Vec<Place<'a>> {
    let mut places: Vec<Place<'a>> = Vec::new();
    for group in &analysis.groups {
        let frame = facts.marks.site_frame(facts.recording, group.key.stack);
        match places.iter_mut().find(|place| place.frame == frame) {
            Some(place) => place.rate += group.rate,
            None => places.push(Place { frame, rate: group.rate, group }),
        }
    }
    let function = |frame: Option<FrameId>| {
        frame.map(|frame| {
            let Frame { function, file, .. } = facts.recording.frame(frame);
            (function, file)
        })
    };
    let of_function: Vec<f64> = places
        .iter()
        .map(|place| {
            places.iter().filter(|other| function(other.frame) == function(place.frame)).map(|other| other.rate).sum()
        })
        .collect();
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|&a, &b| {
        of_function[b].total_cmp(&of_function[a]).then(places[b].rate.total_cmp(&places[a].rate)).then(a.cmp(&b))
    });
    let mut places: Vec<Option<Place<'a>>> = places.into_iter().map(Some).collect();
    order.into_iter().filter_map(|index| places[index].take()).collect()
}

fn signed(bytes: f64) -> String {
    let sign = if bytes < 0.0 { '-' } else { '+' };
    format!("{sign}{}", per_step(bytes.abs()))
}

/// How many steps are left to the limit, if there is one: cached memory may still serve some of them.
fn steps_left(facts: &Facts<'_>, analysis: &LeakAnalysis, rate: f64) -> Option<String> {
    let limit = facts.limit?;
    let reserved = Bytes::new(*facts.replay.reserved.get(analysis.window.horizon.index())?);
    let live = Bytes::new(*facts.replay.allocated.get(analysis.window.horizon.index())?);
    let steps = |room: Bytes| room.get() as f64 / rate.max(1.0);
    Some(format!("{:.0} to {:.0} more steps until {limit} are full", steps(limit - reserved), steps(limit - live)))
}

/// What the survivors look like, and what usually does that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pattern {
    /// Blocks from many places of one forward pass.
    Graph,
    /// A whole forward pass, in turns without a backward pass.
    Exceptions,
    /// Results of one place in a hook of a module.
    Hook,
    /// Memory that the backward pass made.
    Gradients,
    /// One block for each new size.
    CacheBySize,
    /// Only every so many steps.
    Periodic,
    /// Copies of weights or optimizer state.
    ModelCopies,
    /// Results of modules.
    Outputs,
    /// Anything else that the program's own code made.
    Kept,
}

impl Pattern {
    fn of(facts: &Facts<'_>, analysis: &LeakAnalysis, main: &LeakGroup) -> Self {
        let set = facts.marks.marks(main.key.stack);
        // Where the growth began late, the steps since then count.
        let since = main.began_late.map_or(0, |first| first - analysis.window.judged.start);
        let judged = analysis.window.judged.len() - since;
        let in_modules = |group: &&LeakGroup| {
            group.key.frameless_size == 0 && facts.marks.marks(group.key.stack).any(Marks::MODULE_CALL)
        };
        // One forward pass leaves many blocks if its graph is kept, and one or two if only its results are.
        let of_forward: usize = analysis.groups.iter().filter(in_modules).map(|group| group.survivors).sum();
        let turns =
            analysis.groups.iter().filter(in_modules).map(|group| group.steps_with_survivors).max().unwrap_or(0);
        let forward_places = analysis.groups.iter().filter(in_modules).count();
        let whole_passes = forward_places >= 2 && of_forward >= 3 * turns.max(1);
        match () {
            () if main.key.frameless_size > 0 => Self::Gradients,
            () if set.any(Marks::PARAMETER.with(Marks::OPTIMIZER)) => Self::ModelCopies,
            () if called_from_hook(facts, main.key.stack) => Self::Hook,
            () if whole_passes && facts.phases.backward.is_empty() => Self::Outputs,
            () if whole_passes && has_failed_turns(facts) => Self::Exceptions,
            () if whole_passes => Self::Graph,
            () if main.sizes >= 8 && main.sizes * 10 >= main.survivors * 9 => Self::CacheBySize,
            () if main.steps_with_survivors * 10 <= judged * 6 => Self::Periodic,
            () if set.any(Marks::MODULE_CALL) => Self::Outputs,
            () => Self::Kept,
        }
    }

    fn what(self) -> &'static str {
        match self {
            Self::Graph => "the graph of every forward pass is kept",
            Self::Exceptions => "forward passes that were never finished are kept",
            Self::Hook => "a hook keeps a tensor of every call",
            Self::Gradients => "memory that the backward pass made is kept",
            Self::CacheBySize => "one block for every new size is kept",
            Self::Periodic => "something is kept every few steps",
            Self::ModelCopies => "copies of weights or optimizer state are kept",
            Self::Outputs => "results of the model are kept",
            Self::Kept => "tensors of every step are kept",
        }
    }

    fn advice(self, facts: &Facts<'_>, frame: Option<FrameId>) -> String {
        let place = frame.map_or_else(String::new, |frame| {
            format!(" Start at {}:{}.", file_name(facts.recording.file(frame)), facts.recording.frame(frame).line)
        });
        let advice = match self {
            Self::Graph => {
                "Keep numbers, not tensors: use `.item()` for a loss that is summed or logged, `.detach()` for a state \
                 that is carried over."
            }
            Self::Exceptions => {
                "Keep the text of a caught exception, not the exception: its traceback holds every local tensor."
            }
            Self::Hook => "Clear what the hook collects after each step, or keep `.item()` or `.detach().cpu()` of it.",
            Self::Gradients => {
                "Do not keep gradients or the results of `create_graph=True` from step to step: keep `.item()` or \
                 `.detach().cpu()` of them, or use `torch.autograd.grad`."
            }
            Self::CacheBySize => {
                "Bound the cache (for example `functools.lru_cache(maxsize=8)`), or pad to a few sizes."
            }
            Self::Periodic => {
                "Bound what evaluation, logging or a replay buffer collects, or move it to the host with `.detach().cpu()`."
            }
            Self::ModelCopies => {
                "Keep copies of weights on the host (`.cpu()`) or on disk, and only as many as are used."
            }
            Self::Outputs => {
                "Keep `.detach().cpu()` of results, or a number that sums them up; a state that is carried to the next step needs \
                 `.detach()`."
            }
            Self::Kept => {
                "Find the list, dict or attribute that these tensors go into and bound it; a kept view keeps its whole \
                 storage, `.clone()` of the part does not."
            }
        };
        format!("{advice}{place}")
    }
}

/// Whether a user's function was called directly by the machinery of modules and is not a module's `forward`.
fn called_from_hook(facts: &Facts<'_>, stack: StackId) -> bool {
    let recording = facts.recording;
    let user = facts.marks.user_stack(stack);
    let (Some(own), Some(caller)) =
        (recording.stacks.innermost(user), recording.stacks.innermost(recording.stacks.caller(user)))
    else {
        return false;
    };
    let caller_is_module = matches!(recording.function(caller), "inner" | "_call_impl" | "_wrapped_call_impl")
        && recording.file(caller).replace('\\', "/").ends_with("torch/nn/modules/module.py");
    caller_is_module && recording.function(own) != "forward"
}

/// Whether forward passes without a backward pass count as turns of their own.
fn has_failed_turns(facts: &Facts<'_>) -> bool {
    let passes = facts.phases.backward.iter().filter(|pass| pass.root != StackId::default()).count();
    facts.steps.source == StepSource::OptimizerFrames && facts.steps.ticks.len() > passes
}

/// How long the recording is, in words, for a leak that cannot be judged.
pub(crate) fn too_short(steps: &StepBoundaries) -> Option<String> {
    let count = steps.ticks.len();
    (crate::leaks::Window::new(&steps.ticks).is_none()).then(|| {
        let needed = crate::steps::FEWEST_BOUNDARIES;
        match count {
            0 => "no steps were found: leaks cannot be judged".to_owned(),
            _ => format!("{} seen, {needed} needed: too short to judge leaks", plural(count, "step")),
        }
    })
}
