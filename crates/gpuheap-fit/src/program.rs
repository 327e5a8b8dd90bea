//! What a training program does to memory, in a form that levers can change.

use crate::levers::Lever;
use crate::trace::{Class, Event, Phase, Trace};

/// The least that the allocator gives, in bytes, and what it rounds to.
const BLOCK: u64 = 512;

/// A piece of memory of a program: a storage of the trace, or one that a lever added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// What the allocator is asked for, before it rounds.
    pub bytes: u64,
    /// What it is for.
    pub class: Class,
    /// The module that made it, or [`NO_MODULE`](crate::trace::NO_MODULE).
    pub module: u32,
}

impl Slot {
    /// Bytes that the allocator counts for it under stock settings; 0 for a storage without memory.
    #[must_use]
    pub fn rounded(&self) -> u64 {
        self.bytes.div_ceil(BLOCK) * BLOCK
    }
}

/// Work that no call of the trace stands for: many small calls, as one.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Work {
    /// Microseconds of the device; copies over the link that it waits for included.
    pub device_us: f64,
    /// Microseconds of copies over the link beside the device's work.
    pub link_us: f64,
    /// What it costs the program, in calls of a small operator ([`Device::launch_us`](crate::device::Device)).
    pub host_calls: f64,
}

/// How a module runs its forward pass, as far as that costs the program time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Run {
    /// As it is.
    #[default]
    Plain,
    /// Under a checkpoint.
    Checkpointed,
    /// Under a selective checkpoint.
    Selective,
}

/// A list of events over slots. A slot can be made again after it was dropped.
#[derive(Clone, Debug)]
pub struct Program<'t> {
    /// What it was made from: modules, operators and their calls.
    pub trace: &'t Trace,
    /// Memory; the first ones are the storages of the trace, by their number.
    pub slots: Vec<Slot>,
    /// What happens, in order.
    pub events: Vec<Event>,
    /// What [`Event::Work`] stands for, by its number.
    pub works: Vec<Work>,
    /// How each module runs, by its number.
    pub runs: Vec<Run>,
    /// Time of a step that no operator accounts for, such as copies over the link, in microseconds.
    pub extra_us: f64,
}

/// Where a step is in the events of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The event that begins it.
    pub start: usize,
    /// The event behind its last.
    pub end: usize,
}

impl<'t> Program<'t> {
    /// The program that was traced.
    #[must_use]
    pub fn new(trace: &'t Trace) -> Self {
        let slots = trace.storages.iter().map(|storage| Slot {
            bytes: storage.bytes,
            class: storage.class,
            module: storage.module,
        });
        Self {
            trace,
            slots: slots.collect(),
            events: trace.events.clone(),
            works: Vec::new(),
            runs: runs(trace),
            extra_us: 0.0,
        }
    }

    /// Adds work, and gives the event that stands for it.
    pub fn work(&mut self, work: Work) -> Event {
        self.works.push(work);
        Event::Work(u32::try_from(self.works.len() - 1).unwrap_or(u32::MAX))
    }

    /// Adds a slot, and says its number.
    pub fn add(&mut self, slot: Slot) -> u32 {
        self.slots.push(slot);
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
    }

    /// The stream that a slot is asked for on; what levers add is on the default stream.
    #[must_use]
    pub fn stream(&self, slot: u32) -> u64 {
        self.trace.storages.get(slot as usize).map_or(0, |storage| u64::from(storage.stream))
    }

    /// The steps, in order.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let mut starts: Vec<usize> =
            (0..self.events.len()).filter(|&at| matches!(self.events[at], Event::Step(_))).collect();
        let mut steps = Vec::with_capacity(starts.len());
        starts.push(self.events.len());
        for pair in starts.windows(2) {
            steps.push(Step { start: pair[0], end: pair[1] });
        }
        steps
    }

    /// The phase at the beginning of each event.
    #[must_use]
    pub fn phases(&self) -> Vec<Phase> {
        let mut phase = Phase::Setup;
        let phases = self.events.iter().map(|event| {
            if let Event::Phase(next) = event {
                phase = *next;
            }
            phase
        });
        phases.collect()
    }

    /// Whether every slot is made before it is dropped, and dropped before it is made again: the first event that breaks
    /// this, if any.
    #[must_use]
    pub fn first_fault(&self) -> Option<usize> {
        let mut alive = vec![false; self.slots.len()];
        self.events.iter().position(|event| match *event {
            Event::Alloc(slot) => alive.get_mut(slot as usize).is_none_or(|alive| std::mem::replace(alive, true)),
            Event::Free(slot) => !alive.get_mut(slot as usize).is_some_and(std::mem::take),
            _ => false,
        })
    }

    /// The most bytes alive at once, and the event that comes to it: exact for what the program asks for, in
    /// microseconds. What the allocator adds to it, a [`replay`](crate::replay) says.
    #[must_use]
    pub fn most_alive(&self) -> (u64, usize) {
        let (mut alive, mut most) = (0_u64, (0_u64, 0_usize));
        for (at, event) in self.events.iter().enumerate() {
            match *event {
                Event::Alloc(slot) => {
                    alive = alive.saturating_add(self.slots[slot as usize].rounded());
                    if alive > most.0 {
                        most = (alive, at);
                    }
                }
                Event::Free(slot) => alive = alive.saturating_sub(self.slots[slot as usize].rounded()),
                _ => {}
            }
        }
        most
    }

    /// The slots that are alive after event `at`.
    #[must_use]
    pub fn alive_after(&self, at: usize) -> Vec<u32> {
        let mut alive = vec![false; self.slots.len()];
        for event in &self.events[..self.events.len().min(at.saturating_add(1))] {
            match *event {
                Event::Alloc(slot) => alive[slot as usize] = true,
                Event::Free(slot) => alive[slot as usize] = false,
                _ => {}
            }
        }
        (0..).zip(alive).filter(|&(_, alive)| alive).map(|(slot, _)| slot).collect()
    }
}

/// How modules run under the levers that were applied before the trace was made.
fn runs(trace: &Trace) -> Vec<Run> {
    let mut runs = vec![Run::Plain; trace.modules.len()];
    for lever in &trace.applied {
        let (modules, run) = match lever {
            Lever::Checkpoint { modules } => (modules, Run::Checkpointed),
            Lever::SelectiveCheckpoint { modules, .. } => (modules, Run::Selective),
            _ => continue,
        };
        for (index, module) in trace.modules.iter().enumerate() {
            if modules.contains(&module.name) {
                runs[index] = run;
            }
        }
    }
    runs
}
