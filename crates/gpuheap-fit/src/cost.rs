//! How long a step takes.
//!
//! A kernel takes as long as its arithmetic or its traffic, whichever is longer (`kernel`). The program starts kernels
//! one after another (`host`) while the device works, so the step is followed call by call (`queue`): where the
//! program is slower the device waits, and what is lost in one phase is not made up for in another.

mod beside;
mod host;
mod kernel;
mod product;
mod queue;

use crate::device::{Calibration, Device};
use crate::exchange;
use crate::levers::Lever;
use crate::levers::checkpoint::WINDOW;
use crate::program::{Program, Run};
use crate::trace::{Call, Class, Event, Pass, Phase, Trace};
pub use beside::HIDDEN;
use beside::Link;
use host::Host;
use kernel::Kernels;
use queue::Queue;

/// Calls of a small operator that it takes the program to handle one that a selective checkpoint has stored.
pub(crate) const STORED_CALLS: f64 = host::STORED;
/// The same for a small operator with autograd around it.
pub(crate) const SMALL_CALLS: f64 = 1.0 + host::FORWARD;
/// The same for what an optimizer does in Python for each parameter.
pub(crate) const PARAMETER_CALLS: f64 = host::PARAMETER;
/// The same for an optimizer's step in a hook of a single parameter, without its operators.
pub(crate) const HOOK_CALLS: f64 = 25.0;

/// Times of all calls of a trace on one device.
#[derive(Clone, Debug)]
pub struct CostModel {
    /// Microseconds on the device, by call.
    call_us: Vec<f64>,
    /// What a call costs the program without what is around it, in calls of a small operator; by call.
    call_host: Vec<f64>,
    /// Whether the program waits for what the device computed before, by call.
    waits: Vec<bool>,
    /// Whether a call is a copy over the link that runs beside other work, by call; empty where none does.
    beside: Vec<bool>,
    /// Modules whose parts a backward pass runs again in the trace, whoever asked for that; by module.
    again: Vec<bool>,
    /// For a trace with a selective checkpoint applied: see [`stored`].
    stored: f64,
    /// Parameters that the optimizer steps.
    parameters: f64,
    launch_us: f64,
    /// What it takes to copy as much over the link as may be on its way.
    window_us: f64,
    factor: f64,
}

/// The time of one step, in microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StepTime {
    /// What the device works.
    pub device_us: f64,
    /// What the program needs to start all of it.
    pub launch_us: f64,
    /// The step.
    pub total_us: f64,
}

/// How the program comes by what it does, while events are followed.
#[derive(Clone, Debug)]
struct Walk {
    queue: Queue,
    phase: Phase,
    /// How each module runs: as it is told to, or as what it is part of.
    runs: Vec<Run>,
    /// Whether the optimizer has begun its step.
    stepping: bool,
    /// Modules that run again, within a backward pass.
    again: u32,
    device_us: f64,
    host_us: f64,
    link: Link,
}

impl CostModel {
    /// Times of the calls of `trace` on `device`.
    #[must_use]
    pub fn new(trace: &Trace, device: &Device, calibration: Option<&Calibration>) -> Self {
        let (kernels, host) = (Kernels::new(trace, device), Host::new(trace));
        let factor =
            calibration.filter(|calibration| calibration.is_for(device)).map_or(1.0, |known| known.time_factor);
        let offloads = trace.applied.iter().any(|lever| matches!(lever, Lever::OffloadActivations { .. }));
        let call_us = |call: &Call| {
            if exchange::is(trace.op_name(call)) { exchange::us(call, device) } else { kernels.us(call) }
        };
        let host_units = |call: &Call| {
            let groups = if kernels.by_groups(call) { host::GROUPS } else { 0.0 };
            host.call(call.op, trace.inputs(call).len()) + groups
        };
        let beside = |call| offloads && kernels.crosses_link(call);
        let again = run_again(trace);
        Self {
            beside: if offloads { trace.calls.iter().map(beside).collect() } else { Vec::new() },
            call_us: trace.calls.iter().map(call_us).collect(),
            call_host: trace.calls.iter().map(host_units).collect(),
            waits: trace.calls.iter().map(|call| host.waits(call.op) || kernels.by_groups(call)).collect(),
            stored: stored(trace, &again),
            again,
            parameters: stepped(trace),
            launch_us: device.launch_us.value.max(0.0),
            window_us: WINDOW as f64 / device.link_bytes_per_second.value.max(1.0) * 1e6,
            factor,
        }
    }

    /// The time of the last step of a program.
    #[must_use]
    pub fn step(&self, program: &Program<'_>) -> StepTime {
        let start = program.steps().last().map_or(0, |step| step.start);
        self.of(program, start, program.events.len())
    }

    /// The time of the events from `start` to `end`, as a step of their own.
    #[must_use]
    pub fn of(&self, program: &Program<'_>, start: usize, end: usize) -> StepTime {
        let mut walk = Walk::new(program, &self.again, self.window_us);
        self.think(&mut walk, host::STEP);
        self.follow(&mut walk, program, start, end);
        let total = walk.queue.end() + program.extra_us.max(0.0);
        StepTime {
            device_us: walk.device_us + program.extra_us.max(0.0),
            launch_us: walk.host_us,
            total_us: total * self.factor,
        }
    }

    fn follow(&self, walk: &mut Walk, program: &Program<'_>, start: usize, end: usize) {
        let mut at = start;
        while at < end {
            if let Event::Repeat(count @ 2..) = program.events[at] {
                let rest = &program.events[at + 1..end];
                let stop =
                    rest.iter().position(|event| matches!(event, Event::Repeat(_))).map_or(end, |to| at + 1 + to);
                self.repeat(walk, program, at + 1, stop, count);
                at = stop;
                continue;
            }
            self.event(walk, program, program.events[at]);
            at += 1;
        }
    }

    /// The first pass gets the queue going; those after the second are like it.
    fn repeat(&self, walk: &mut Walk, program: &Program<'_>, start: usize, end: usize, count: u32) {
        let pass =
            |walk: &mut Walk| program.events[start..end].iter().for_each(|&event| self.event(walk, program, event));
        pass(walk);
        let before = walk.clone();
        pass(walk);
        let more = f64::from(count - 2);
        walk.link.later((walk.queue.end() - before.queue.end()) * more);
        walk.queue.again(&before.queue, more);
        walk.device_us += (walk.device_us - before.device_us) * more;
        walk.host_us += (walk.host_us - before.host_us) * more;
    }

    fn event(&self, walk: &mut Walk, program: &Program<'_>, event: Event) {
        match event {
            Event::Phase(phase) => {
                walk.phase = phase;
                walk.stepping = false;
            }
            Event::Enter(module, pass @ (Pass::Forward | Pass::Recompute)) => {
                walk.again += u32::from(pass == Pass::Recompute);
                self.think(walk, host::MODULE);
                // A second pass begins behind what counts as entering the block, so the first pays for both.
                if pass == Pass::Forward && walk.begins(program.trace, module) {
                    self.think(walk, 2.0 * host::BLOCK);
                }
            }
            Event::Leave(_, Pass::Recompute) => walk.again = walk.again.saturating_sub(1),
            Event::Op(call) => self.call(walk, program.trace, call),
            Event::Record(event, stream) => walk.queue.record(event, stream),
            Event::Wait(stream, event) => walk.queue.wait_on(stream, event),
            Event::Work(work) => {
                let work = program.works.get(work as usize).copied().unwrap_or_default();
                self.begin_stepping(walk, false);
                let host_us = work.host_calls * self.launch_us;
                walk.queue.calls(host_us, work.device_us);
                walk.link.copy(&mut walk.queue, work.link_us);
                walk.device_us += work.device_us;
                walk.host_us += host_us;
            }
            _ => {}
        }
    }

    fn call(&self, walk: &mut Walk, trace: &Trace, call: u32) {
        self.begin_stepping(walk, trace.op_name(&trace.calls[call as usize]).contains("_fused_"));
        let index = call as usize;
        let thread = trace.calls[index].thread;
        let backward = walk.again == 0 && (thread != 0 || walk.phase == Phase::Backward);
        let mut units = self.call_host[index] + if backward { host::BACKWARD } else { host::FORWARD };
        // A backward pass itself has no hooks but those that fetch what was saved, which `HOOKED_AGAIN` has its share of.
        if !backward {
            let run = walk.runs.get(trace.calls[index].module as usize).copied().unwrap_or_default();
            units += match (run, walk.again > 0) {
                (Run::Plain, _) => 0.0,
                (Run::Checkpointed, false) => host::HOOKED,
                (Run::Checkpointed, true) => host::HOOKED_AGAIN,
                (Run::Selective, false) => host::DISPATCHED,
                (Run::Selective, true) => host::DISPATCHED_AGAIN + host::STORED * self.stored,
            };
        }
        let host_us = units * self.launch_us;
        let device_us = self.call_us[index];
        if self.waits[index] {
            walk.queue.wait(host::WAIT * self.launch_us);
        }
        walk.host_us += host_us;
        if self.beside.get(index).copied().unwrap_or(false) {
            walk.queue.think(host_us);
            walk.link.copy(&mut walk.queue, device_us);
            return;
        }
        walk.queue.call_on(trace.calls[index].stream, host_us, device_us);
        walk.device_us += device_us;
    }

    fn begin_stepping(&self, walk: &mut Walk, fused: bool) {
        if walk.phase == Phase::Optimizer && !walk.stepping {
            walk.stepping = true;
            self.think(walk, if fused { host::FUSED_PARAMETER } else { host::PARAMETER } * self.parameters);
        }
    }

    fn think(&self, walk: &mut Walk, units: f64) {
        walk.queue.think(units * self.launch_us);
        walk.host_us += units * self.launch_us;
    }

    /// What it costs to treat a block, whose forward pass is from event `enter` to event `leave`, in microseconds: its
    /// operators run as `run` says, and those for which `again` says so once more. Taken for itself, as if the program
    /// were not ahead of the device.
    #[must_use]
    pub fn treated_us(
        &self,
        program: &Program<'_>,
        (enter, leave): (usize, usize),
        run: Run,
        again: impl Fn(&str) -> bool,
    ) -> f64 {
        let (extra, extra_again) = match run {
            Run::Plain => (0.0, 0.0),
            Run::Checkpointed => (host::HOOKED, host::HOOKED_AGAIN),
            Run::Selective => (host::DISPATCHED, host::DISPATCHED_AGAIN),
        };
        let (mut plain, mut first, mut second) = (Queue::new(), Queue::new(), Queue::new());
        first.think(if run == Run::Plain { 0.0 } else { 2.0 * host::BLOCK * self.launch_us });
        for event in &program.events[enter..=leave] {
            match *event {
                Event::Enter(..) => {
                    for queue in [&mut plain, &mut first, &mut second] {
                        queue.think(host::MODULE * self.launch_us);
                    }
                }
                Event::Op(call) => {
                    let units = self.call_host[call as usize] + host::FORWARD;
                    let device_us = self.call_us[call as usize];
                    plain.call(units * self.launch_us, device_us);
                    first.call((units + extra) * self.launch_us, device_us);
                    if again(program.trace.op_name(&program.trace.calls[call as usize])) {
                        second.call((units + extra_again) * self.launch_us, device_us);
                    } else if run == Run::Selective {
                        second.think(host::STORED * self.launch_us);
                    }
                }
                _ => {}
            }
        }
        (first.end() - plain.end() + second.end()).max(0.0) * self.factor
    }

    /// The time of a single call on the device, in microseconds.
    #[must_use]
    pub fn call_us(&self, call: u32) -> f64 {
        self.call_us.get(call as usize).copied().unwrap_or(0.0)
    }

    /// The microseconds of the last step that the device spends in each phase, as far as it spends any.
    #[must_use]
    pub fn phases(&self, program: &Program<'_>) -> Vec<(Phase, f64)> {
        let start = program.steps().last().map_or(0, |step| step.start);
        let mut sums: Vec<(Phase, f64)> = Vec::new();
        let (mut phase, mut times) = (Phase::Other, 1.0);
        let mut add = |phase: Phase, us: f64| match sums.iter_mut().find(|(known, _)| *known == phase) {
            Some((_, sum)) => *sum += us,
            None => sums.push((phase, us)),
        };
        for event in &program.events[start..] {
            match *event {
                Event::Phase(next) => phase = next,
                Event::Repeat(count) => times = f64::from(count),
                Event::Op(call) => add(phase, self.call_us(call) * times),
                Event::Work(work) => {
                    add(phase, program.works.get(work as usize).map_or(0.0, |work| work.device_us) * times);
                }
                _ => {}
            }
        }
        sums
    }
}

impl Walk {
    fn new(program: &Program<'_>, again: &[bool], window_us: f64) -> Self {
        let mut runs = program.runs.clone();
        for (run, &again) in runs.iter_mut().zip(again) {
            if *run == Run::Plain && again {
                *run = Run::Checkpointed;
            }
        }
        // A parent comes before its parts.
        for (index, module) in program.trace.modules.iter().enumerate() {
            let above = runs.get(module.parent as usize).copied().unwrap_or_default();
            if above != Run::Plain && runs.get(index) == Some(&Run::Plain) {
                runs[index] = above;
            }
        }
        Self {
            runs,
            queue: Queue::new(),
            phase: Phase::Other,
            stepping: false,
            again: 0,
            device_us: 0.0,
            host_us: 0.0,
            link: Link::new(window_us),
        }
    }

    /// Whether a module is a block that is treated as such, and not a part of one.
    fn begins(&self, trace: &Trace, module: u32) -> bool {
        let run = |module: u32| self.runs.get(module as usize).copied().unwrap_or_default();
        let above = trace.modules.get(module as usize).map_or(Run::Plain, |module| run(module.parent));
        run(module) != Run::Plain && above == Run::Plain
    }
}

/// Modules that a program checkpoints by itself: a backward pass enters what is in them again, and not them, since what it
/// runs is what is behind entering them.
fn run_again(trace: &Trace) -> Vec<bool> {
    let mut entered = vec![false; trace.modules.len()];
    for event in &trace.events {
        if let Event::Enter(module, Pass::Recompute) = *event
            && let Some(entered) = entered.get_mut(module as usize)
        {
            *entered = true;
        }
    }
    let mut found = vec![false; trace.modules.len()];
    for (module, _) in trace.modules.iter().zip(&entered).filter(|(_, entered)| **entered) {
        let above = module.parent as usize;
        if entered.get(above) == Some(&false) {
            found[above] = true;
        }
    }
    found
}

/// How many parameters an optimizer steps: those that gradients are made for.
fn stepped(trace: &Trace) -> f64 {
    if trace.optimizer.is_none() {
        return 0.0;
    }
    let parameters = trace.storages.iter().filter(|storage| storage.class == Class::Parameter).count();
    let last = trace.events.iter().rposition(|event| matches!(event, Event::Step(_))).unwrap_or(0);
    let made = trace.events[last..]
        .iter()
        .filter(|event| matches!(event, Event::Alloc(slot) if trace.storages[*slot as usize].class == Class::Gradient));
    match made.count() {
        0 => parameters as f64,
        made => made.min(parameters) as f64,
    }
}

/// Of the calls of selectively checkpointed modules that a trace was made with: those that a second pass does not show,
/// for each that it does. It looks stored results up, and what a block does by itself looks like its backward pass.
fn stored(trace: &Trace, again: &[bool]) -> f64 {
    let selective = trace.applied.iter().any(|lever| matches!(lever, Lever::SelectiveCheckpoint { .. }));
    if !selective {
        return 0.0;
    }
    let program = Program::new(trace);
    let runs = Walk::new(&program, again, 0.0).runs;
    let (mut first, mut second, mut depth) = (0_u32, 0_u32, 0_u32);
    for event in &trace.events {
        match *event {
            Event::Enter(_, Pass::Recompute) => depth += 1,
            Event::Leave(_, Pass::Recompute) => depth = depth.saturating_sub(1),
            Event::Op(call) => {
                let call = &trace.calls[call as usize];
                if runs.get(call.module as usize) == Some(&Run::Selective) {
                    second += u32::from(depth > 0);
                    first += u32::from(depth == 0 && call.thread == 0);
                }
            }
            _ => {}
        }
    }
    f64::from(first.saturating_sub(second)) / f64::from(second.max(1))
}
