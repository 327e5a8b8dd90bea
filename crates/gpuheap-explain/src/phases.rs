//! What the program was doing when: backward passes, optimizer steps, module calls.

use gpuheap_record::{Annotation, AnnotationStage, DeviceRecording, EventKind, Recording, StackId};

use crate::frames::{FrameTableMarks, Marks};
use crate::lifetimes::{Allocation, Tick};

/// A backward pass: from its first allocation to the next allocation that is not part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Backward {
    pub(crate) start: Tick,
    /// Just before the next allocation of something else; the end of the recording if there is none.
    pub(crate) end: Tick,
    /// Whether something else followed.
    pub(crate) ended: bool,
    /// Where the pass was started, if its root gradient was recorded.
    pub(crate) root: StackId,
}

/// A range of ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) start: Tick,
    pub(crate) end: Tick,
}

/// The phases of one device's recording, each list in order of time.
#[derive(Debug)]
pub(crate) struct Phases {
    /// Whether any allocation has frames. Without frames nothing can be told from them.
    pub(crate) has_frames: bool,
    pub(crate) backward: Vec<Backward>,
    /// From annotations, or from the frames of optimizers where there are none.
    pub(crate) optimizer: Vec<Span>,
    /// Allocations in forward passes of modules.
    pub(crate) module_calls: Vec<Tick>,
    /// Failed allocations.
    pub(crate) ooms: Vec<Tick>,
    /// The last tick.
    pub(crate) last: Tick,
}

impl Phases {
    pub(crate) fn new(recording: &Recording, device: &DeviceRecording, marks: &FrameTableMarks) -> Self {
        let events = &device.events;
        let last = Tick(u32::try_from(events.len()).unwrap_or(u32::MAX - 1));
        let allocs = || events.ids().filter(|&id| events.kind(id) == EventKind::Alloc);
        let has_frames = allocs().any(|id| events.stack(id) != StackId::default());
        let mut phases = Self {
            has_frames,
            backward: Vec::new(),
            optimizer: annotated_optimizer_steps(recording, device),
            module_calls: Vec::new(),
            ooms: Vec::new(),
            last,
        };
        let annotated = !phases.optimizer.is_empty();
        let mut backward: Option<Backward> = None;
        let mut optimizer: Option<Span> = None;
        for id in events.ids() {
            let tick = Tick::after(id);
            match events.kind(id) {
                EventKind::Alloc => {}
                EventKind::OutOfMemory => {
                    phases.ooms.push(tick);
                    continue;
                }
                _ => continue,
            }
            let stack = events.stack(id);
            let set = marks.marks(stack);
            if set.any(Marks::ROOT_GRADIENT) {
                phases.end_backward(&mut backward, tick);
                backward = Some(Backward { start: tick, end: last, ended: false, root: stack });
            } else if has_frames && is_backward(stack, set) {
                backward.get_or_insert(Backward { start: tick, end: last, ended: false, root: StackId::default() });
            } else {
                phases.end_backward(&mut backward, tick);
                if set.any(Marks::MODULE_CALL) {
                    phases.module_calls.push(tick);
                }
            }
            if !annotated {
                if set.any(Marks::OPTIMIZER) {
                    optimizer.get_or_insert(Span { start: tick, end: last }).end = tick;
                } else if let Some(span) = optimizer.take() {
                    phases.optimizer.push(Span { end: Tick(tick.0 - 1), ..span });
                }
            }
        }
        phases.backward.extend(backward);
        phases.optimizer.extend(optimizer.map(|span| Span { end: last, ..span }));
        phases
    }

    fn end_backward(&mut self, open: &mut Option<Backward>, next: Tick) {
        if let Some(pass) = open.take() {
            self.backward.push(Backward { end: Tick(next.0 - 1), ended: true, ..pass });
        }
    }

    /// The backward pass that an allocation was made in.
    pub(crate) fn backward_of(&self, tick: Tick) -> Option<&Backward> {
        let after = self.backward.partition_point(|pass| pass.start <= tick);
        after.checked_sub(1).map(|index| &self.backward[index]).filter(|pass| tick <= pass.end)
    }

    /// The first backward pass that starts after `tick`.
    pub(crate) fn next_backward(&self, tick: Tick) -> Option<&Backward> {
        self.backward.get(self.backward.partition_point(|pass| pass.start <= tick))
    }

    /// The optimizer step that `tick` lies in.
    pub(crate) fn optimizer_of(&self, tick: Tick) -> Option<Span> {
        let after = self.optimizer.partition_point(|span| span.start < tick);
        after.checked_sub(1).map(|index| self.optimizer[index]).filter(|span| tick <= span.end)
    }

    /// The first allocation of a module's forward pass after `tick`.
    pub(crate) fn next_module_call(&self, tick: Tick) -> Option<Tick> {
        self.module_calls.get(self.module_calls.partition_point(|&call| call <= tick)).copied()
    }

    /// Whether an allocation failed within `from..=to`.
    pub(crate) fn oom_between(&self, from: Tick, to: Tick) -> bool {
        self.ooms.get(self.ooms.partition_point(|&oom| oom < from)).is_some_and(|&oom| oom <= to)
    }

    /// Whether an allocation failed while `allocation` was alive, within `from..=to`.
    pub(crate) fn oom_within(&self, allocation: &Allocation, from: Tick, to: Tick) -> bool {
        let last = Tick(allocation.freed.0.saturating_sub(1)).min(to);
        self.oom_between(from.max(allocation.born), last)
    }

    /// Whether an allocation with this stack was made by a backward pass.
    pub(crate) fn is_backward(&self, stack: StackId, set: Marks) -> bool {
        self.has_frames && is_backward(stack, set)
    }
}

/// The autograd engine runs in threads of its own, where the interpreter has no frames; what Python code does there on
/// its behalf (hooks, custom functions, recomputation) starts at a callback and not at a program's root.
fn is_backward(stack: StackId, set: Marks) -> bool {
    stack == StackId::default() || (set.any(Marks::BACKWARD.with(Marks::ROOTLESS)) && !set.any(Marks::ROOT_GRADIENT))
}

/// The annotations whose name begins with `prefix` that belong to a device: its own if any names it, else all.
pub(crate) fn annotations<'a>(
    recording: &'a Recording,
    device: &DeviceRecording,
    prefix: &'static str,
) -> impl Iterator<Item = &'a Annotation> + use<'a> {
    let named = move |annotation: &Annotation| recording.strings.text(annotation.name).starts_with(prefix);
    let own = device.device;
    let has_own = recording.annotations.iter().any(|annotation| annotation.device == Some(own) && named(annotation));
    let has_others = recording.devices.len() > 1
        && recording.annotations.iter().any(|annotation| annotation.device.is_some_and(|other| other != own));
    recording
        .annotations
        .iter()
        .filter(move |annotation| named(annotation) && (!(has_own && has_others) || annotation.device == Some(own)))
}

fn annotated_optimizer_steps(recording: &Recording, device: &DeviceRecording) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut open: Option<Tick> = None;
    for annotation in annotations(recording, device, "Optimizer.step#") {
        match annotation.stage {
            AnnotationStage::Start => open = Some(tick_of(device, annotation)),
            AnnotationStage::End => {
                let end = tick_of(device, annotation);
                if let Some(start) = open.take().filter(|&start| start <= end) {
                    spans.push(Span { start, end });
                }
            }
        }
    }
    spans.sort_by_key(|span| (span.start, span.end));
    spans
}

/// The tick at which an annotation stands: events at the very same microsecond are inside its range.
pub(crate) fn tick_of(device: &DeviceRecording, annotation: &Annotation) -> Tick {
    let times = device.events.times_us();
    let count = match annotation.stage {
        AnnotationStage::Start => times.partition_point(|&time| time < annotation.time_us),
        AnnotationStage::End => times.partition_point(|&time| time <= annotation.time_us),
    };
    Tick(u32::try_from(count).unwrap_or(u32::MAX - 1))
}
