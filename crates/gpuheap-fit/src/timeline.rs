//! Memory through the events of a program, by class: what a chart of it needs, and no more points than it can show.

use serde::{Deserialize, Serialize};

use crate::cost::CostModel;
use crate::holders::{Holder, holders};
use crate::program::Program;
use crate::replay::watched;
use crate::trace::{Class, Event, NO_MODULE, Phase};
use gpuheap_alloc::torch::Config;

/// Points of a timeline, about.
pub const POINTS: usize = 2400;
/// Holders that are named of each phase.
const HOLDERS: usize = 8;

/// The model as it is, and with the plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Timelines {
    /// As it is.
    pub baseline: Timeline,
    /// With the plan; none where nothing changes.
    pub planned: Option<Timeline>,
}

/// Memory through the events of a program. Its columns have a value for each point, which is a moment after an event;
/// what is there at a point stays until the next one.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Timeline {
    /// Events of the program.
    pub events: usize,
    /// The event of each point.
    pub at: Vec<usize>,
    /// Microseconds from the beginning of the first step, by the predicted times.
    pub us: Vec<u64>,
    /// Classes that are ever there.
    pub classes: Vec<Class>,
    /// Allocated bytes, one column for each class.
    pub bytes: Vec<Vec<u64>>,
    /// Reserved bytes.
    pub reserved: Vec<u64>,
    /// The module at work, as an index into `modules`; none outside of all.
    pub module: Vec<Option<u32>>,
    /// Names of modules.
    pub modules: Vec<String>,
    /// Phases, in the order in which they occur.
    pub phases: Vec<PhaseSpan>,
    /// The event at which most is allocated.
    pub peak: usize,
}

/// A phase of a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PhaseSpan {
    /// The step; 0 before the first.
    pub step: u32,
    /// The phase.
    pub phase: Phase,
    /// Its first event.
    pub start: usize,
    /// The event behind its last.
    pub end: usize,
    /// The time of its beginning, in microseconds as those of points.
    pub start_us: u64,
    /// The time of its end.
    pub end_us: u64,
    /// The most allocated bytes within it.
    pub allocated_bytes: u64,
    /// The most reserved bytes within it.
    pub reserved_bytes: u64,
    /// The event at which most is allocated.
    pub event: usize,
    /// The module at work then, empty outside of all.
    pub module: String,
    /// Who holds memory then, largest first.
    pub holders: Vec<Holder>,
}

impl Timeline {
    /// The timeline of a program under settings of the allocator.
    #[must_use]
    pub fn new(program: &Program<'_>, config: &Config, cost: &CostModel) -> Self {
        let mut all = Columns::default();
        let replayed = watched(program, config, None, |moment| {
            let class = program.slots[moment.slot as usize].class;
            all.push(moment.at, class, moment.allocated, moment.reserved);
        });
        let clock = Clock::new(program, cost);
        let (working, modules) = at_work(program);
        let us = all.at.iter().map(|&at| clock.us(at)).collect();
        let module = all.at.iter().map(|&at| working[at]).collect();
        let mut timeline = Self {
            events: program.events.len(),
            us,
            module,
            classes: all.classes,
            bytes: all.bytes,
            reserved: all.reserved,
            modules,
            phases: Vec::new(),
            peak: replayed.event,
            at: all.at,
        };
        timeline.phases = timeline.spans(program, &clock, &working);
        timeline.reduced(POINTS)
    }

    /// Allocated bytes at a point.
    #[must_use]
    pub fn allocated(&self, point: usize) -> u64 {
        self.bytes.iter().filter_map(|column| column.get(point)).fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The same with about `most` points: in each stretch the highest, the lowest and the last one are kept, and those at
    /// which a phase or a class comes to its most.
    #[must_use]
    pub fn reduced(&self, most: usize) -> Self {
        let count = self.at.len();
        if count <= most {
            return self.clone();
        }
        let totals: Vec<u64> = (0..count).map(|point| self.allocated(point)).collect();
        let mut kept = vec![false; count];
        let stretches = (most / 3).max(1);
        for stretch in 0..stretches {
            let range = stretch * count / stretches..(stretch + 1) * count / stretches;
            let highest = first_most(range.clone().map(|point| totals[point]));
            let lowest = first_most(range.clone().map(|point| u64::MAX - totals[point]));
            for within in [highest, lowest, range.len().checked_sub(1)].into_iter().flatten() {
                kept[range.start + within] = true;
            }
        }
        let mut keep = |point: Option<usize>| {
            if let Some(kept) = point.and_then(|point| kept.get_mut(point)) {
                *kept = true;
            }
        };
        keep(Some(0));
        keep(first_most(self.reserved.iter().copied()));
        for column in &self.bytes {
            keep(first_most(column.iter().copied()));
        }
        for phase in &self.phases {
            // What is there when it begins is the point before.
            let start = self.at.partition_point(|&at| at < phase.start);
            keep(start.checked_sub(1));
            keep(Some(start));
            keep(self.at.binary_search(&phase.event).ok());
        }
        self.only(&kept)
    }

    fn only(&self, kept: &[bool]) -> Self {
        fn pick<T: Copy>(column: &[T], kept: &[bool]) -> Vec<T> {
            column.iter().zip(kept).filter(|&(_, &kept)| kept).map(|(&value, _)| value).collect()
        }
        let mut used = vec![None; self.modules.len()];
        let mut modules = Vec::new();
        let module = pick(&self.module, kept).into_iter().map(|module| {
            let module = module? as usize;
            let number = *used.get_mut(module)?.get_or_insert_with(|| {
                modules.push(self.modules[module].clone());
                modules.len() - 1
            });
            u32::try_from(number).ok()
        });
        let module = module.collect();
        Self {
            events: self.events,
            at: pick(&self.at, kept),
            us: pick(&self.us, kept),
            classes: self.classes.clone(),
            bytes: self.bytes.iter().map(|column| pick(column, kept)).collect(),
            reserved: pick(&self.reserved, kept),
            module,
            modules,
            phases: self.phases.clone(),
            peak: self.peak,
        }
    }

    /// The phases of the program, without those in which nothing happens.
    fn spans(&self, program: &Program<'_>, clock: &Clock, working: &[Option<u32>]) -> Vec<PhaseSpan> {
        let mut spans = Vec::new();
        let (mut step, mut phase, mut start) = (0, Phase::Setup, 0);
        for at in 0..=program.events.len() {
            let next = match program.events.get(at) {
                Some(Event::Step(number)) => Some((*number, Phase::Other)),
                Some(Event::Phase(phase)) => Some((step, *phase)),
                Some(_) => continue,
                None => None,
            };
            spans.extend(self.span(program, clock, working, (step, phase), start..at));
            let Some(next) = next else { break };
            ((step, phase), start) = (next, at);
        }
        spans
    }

    fn span(
        &self,
        program: &Program<'_>,
        clock: &Clock,
        working: &[Option<u32>],
        (step, phase): (u32, Phase),
        events: std::ops::Range<usize>,
    ) -> Option<PhaseSpan> {
        let works = |event: &Event| matches!(event, Event::Alloc(_) | Event::Free(_) | Event::Op(_));
        if !program.events[events.clone()].iter().any(works) {
            return None;
        }
        let first = self.at.partition_point(|&at| at < events.start);
        let end = self.at.partition_point(|&at| at < events.end);
        // What is there when it begins counts, too.
        let from = first.saturating_sub(1);
        let highest = from + first_most((from..end).map(|point| self.allocated(point)))?;
        let event = self.at[highest].max(events.start);
        let module = working[event].map_or_else(String::new, |module| self.modules[module as usize].clone());
        Some(PhaseSpan {
            step,
            phase,
            start: events.start,
            end: events.end,
            start_us: clock.us(events.start),
            end_us: clock.us(events.end.saturating_sub(1)),
            allocated_bytes: self.allocated(highest),
            reserved_bytes: self.reserved[from..end].iter().copied().max().unwrap_or(0),
            event,
            module,
            holders: holders(program, event, HOLDERS),
        })
    }
}

/// The first of the greatest values.
fn first_most(values: impl Iterator<Item = u64>) -> Option<usize> {
    let mut most: Option<(usize, u64)> = None;
    for (at, value) in values.enumerate() {
        if most.is_none_or(|(_, known)| value > known) {
            most = Some((at, value));
        }
    }
    most.map(|(at, _)| at)
}

/// Every change that the allocator saw.
#[derive(Default)]
struct Columns {
    at: Vec<usize>,
    classes: Vec<Class>,
    bytes: Vec<Vec<u64>>,
    now: Vec<u64>,
    allocated: u64,
    reserved: Vec<u64>,
}

impl Columns {
    /// All of the change is of `class`: the allocator has the others as they were.
    fn push(&mut self, at: usize, class: Class, allocated: u64, reserved: u64) {
        let column = self.classes.iter().position(|&known| known == class).unwrap_or_else(|| {
            self.classes.push(class);
            self.bytes.push(vec![0; self.at.len()]);
            self.now.push(0);
            self.classes.len() - 1
        });
        let now = &mut self.now[column];
        *now = now.saturating_add(allocated).saturating_sub(self.allocated);
        self.allocated = allocated;
        self.at.push(at);
        self.reserved.push(reserved);
        for (bytes, &now) in self.bytes.iter_mut().zip(&self.now) {
            bytes.push(now);
        }
    }
}

/// When each event is.
struct Clock {
    us: Vec<f64>,
}

impl Clock {
    /// Each step takes as long as the cost model says of the last one, and its calls have their shares of that. What
    /// happens before the first takes no time.
    fn new(program: &Program<'_>, cost: &CostModel) -> Self {
        let mut us = Vec::with_capacity(program.events.len());
        let steps = program.steps();
        us.resize(steps.first().map_or(program.events.len(), |step| step.start), 0.0);
        let total_us = cost.step(program).total_us;
        let mut begin = 0.0;
        for step in steps {
            let (mut sum, mut times) = (0.0, 1.0);
            let start = us.len();
            for event in &program.events[step.start..step.end] {
                match *event {
                    Event::Repeat(count) => times = f64::from(count),
                    Event::Op(call) => sum += cost.call_us(call) * times,
                    _ => {}
                }
                us.push(sum);
            }
            let factor = if sum > 0.0 { total_us / sum } else { 0.0 };
            for time in &mut us[start..] {
                *time = begin + *time * factor;
            }
            begin += total_us;
        }
        Self { us }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and saturates")]
    fn us(&self, event: usize) -> u64 {
        self.us.get(event).or(self.us.last()).map_or(0, |us| us.round() as u64)
    }
}

/// The module at work after each event, and the names of modules.
fn at_work(program: &Program<'_>) -> (Vec<Option<u32>>, Vec<String>) {
    let mut open: Vec<u32> = Vec::new();
    let working = program.events.iter().map(|event| {
        match *event {
            Event::Enter(module, _) => open.push(module),
            Event::Leave(module, _) => {
                if let Some(at) = open.iter().rposition(|&other| other == module) {
                    open.truncate(at);
                }
            }
            _ => {}
        }
        open.last().copied().filter(|&module| module != NO_MODULE)
    });
    let working = working.collect();
    (working, program.trace.modules.iter().map(|module| module.name.clone()).collect())
}
