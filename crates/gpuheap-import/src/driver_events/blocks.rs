//! What is alive while the steps are carried out, as blocks of a recording.

use std::collections::BTreeMap;

use gpuheap_ledger::events::{Events, Record, What};
use gpuheap_ledger::{HOST, Kind, Origin};
use gpuheap_record::{
    Block, BlockState, Bytes, DRIVER_FILE, DeviceId, DeviceMemory, DeviceRecording, Event, EventKind, Frame, Note,
    Recording, Segment, SegmentKind, StackId,
};

use super::order::{Action, Step};
use super::{call_of, process_name, shown};

/// Segments are multiples of this, in bytes.
const UNIT: u64 = 512;
/// Addresses that no driver gives: where those that are made up begin.
const MADE_UP: u64 = 1 << 60;
/// Where addresses end.
const END: u64 = 1 << 63;

/// Memory of one charge.
#[derive(Debug)]
struct Charge {
    kind: Kind,
    origin: Origin,
    device: usize,
    bytes: u64,
    /// Its blocks, the oldest first: address and bytes.
    blocks: Vec<(u64, u64)>,
}

/// What lies at an address.
#[derive(Clone, Copy, Debug)]
struct Lies {
    bytes: u64,
    stack: StackId,
}

/// One device, or the host.
#[derive(Debug, Default)]
struct Space {
    /// By address.
    lies: BTreeMap<u64, Lies>,
    reserved: u64,
}

/// All that is alive.
#[derive(Debug)]
pub(super) struct Blocks {
    /// By process and number.
    charges: BTreeMap<(usize, u64), Charge>,
    /// By device, and the host.
    spaces: BTreeMap<usize, Space>,
    stacks: BTreeMap<(usize, Kind, Origin), StackId>,
    names: Vec<String>,
    /// Where the next made-up address is.
    next: u64,
    /// By kind, what is not shown: now and at most, in bytes.
    unshown: BTreeMap<Kind, (u64, u64)>,
    /// Records about memory that was not known, or was known already.
    unmatched: u64,
}

impl Blocks {
    pub(super) fn new(processes: &[Events], recording: &mut Recording) -> Self {
        let records = processes.iter().flat_map(|process| &process.records);
        for device in records.map(place_of).filter(|device| *device < HOST) {
            recording.device_mut(u32::try_from(device).unwrap_or(0));
        }
        Self {
            charges: BTreeMap::new(),
            spaces: BTreeMap::new(),
            stacks: BTreeMap::new(),
            names: processes.iter().map(process_name).collect(),
            next: MADE_UP,
            unshown: BTreeMap::new(),
            unmatched: 0,
        }
    }

    /// Bytes of segments that a device has now.
    pub(super) fn reserved(&self, device: DeviceId) -> u64 {
        let space = usize::try_from(device.get()).ok().and_then(|device| self.spaces.get(&device));
        space.map_or(0, |space| space.reserved)
    }

    pub(super) fn carry_out(&mut self, step: &Step, recording: &mut Recording) {
        match &step.action {
            Action::Record(record) => self.follow(step, record, recording),
            Action::Refused(record) => {
                let stack = self.stack(step.process, record.kind, record.origin, recording);
                let event = event(step, record.address, record.bytes, stack);
                let event = Event { kind: EventKind::OutOfMemory, ..event };
                if let Some(target) = target(recording, place_of(record)) {
                    target.events.push(event);
                }
            }
            Action::Size(record) => {
                let Ok(device) = u32::try_from(record.device).map(DeviceId::new) else { return };
                recording.device_memory.push(DeviceMemory {
                    device,
                    time_us: step.time_us,
                    total: record.bytes,
                    free: record.address.min(record.bytes),
                    reserved: self.reserved(device),
                    ..DeviceMemory::default()
                });
            }
            Action::End => {
                let of_process = self.charges.range((step.process, 0)..=(step.process, u64::MAX));
                let numbers: Vec<(usize, u64)> = of_process.map(|(number, _)| *number).collect();
                for number in numbers {
                    if let Some(mut charge) = self.charges.remove(&number) {
                        self.resize(step, &mut charge, 0, 0, recording);
                    }
                }
            }
        }
    }

    fn follow(&mut self, step: &Step, record: &Record, recording: &mut Recording) {
        let number = (step.process, record.charge);
        let known = self.charges.remove(&number);
        self.unmatched += u64::from(known.is_some() == (record.what == What::Take));
        if known.is_none() && record.what == What::GiveBack {
            return;
        }
        let &Record { kind, origin, .. } = record;
        let device = place_of(record);
        let mut charge = known.unwrap_or(Charge { kind, origin, device, bytes: 0, blocks: Vec::new() });
        let bytes = if record.what == What::GiveBack { 0 } else { record.bytes };
        self.resize(step, &mut charge, bytes, record.address, recording);
        if record.what != What::GiveBack {
            self.charges.insert(number, charge);
        }
    }

    /// Makes a charge's blocks have so many bytes together.
    fn resize(&mut self, step: &Step, charge: &mut Charge, bytes: u64, address: u64, recording: &mut Recording) {
        if !shown(charge.kind) {
            let (now, most) = self.unshown.entry(charge.kind).or_default();
            *now = now.saturating_sub(charge.bytes).saturating_add(bytes);
            *most = (*most).max(*now);
            charge.bytes = bytes;
            return;
        }
        let stack = self.stack(step.process, charge.kind, charge.origin, recording);
        let mut less = charge.bytes.saturating_sub(bytes);
        let mut more = bytes.saturating_sub(charge.bytes);
        while less > 0
            && let Some((at, held)) = charge.blocks.pop()
        {
            self.remove(step, charge.device, at, held, stack, recording);
            // Of a block that is too large, the rest is there again.
            more = held.saturating_sub(less);
            less = less.saturating_sub(held);
        }
        if more > 0
            && let Some(at) = self.add(step, charge.device, (address, more), stack, recording)
        {
            charge.blocks.push((at, more));
        }
        charge.bytes = bytes;
    }

    fn add(
        &mut self,
        step: &Step,
        device: usize,
        (address, bytes): (u64, u64),
        stack: StackId,
        recording: &mut Recording,
    ) -> Option<u64> {
        let size = bytes.next_multiple_of(UNIT);
        let space = self.spaces.entry(device).or_default();
        let end = address.saturating_add(size);
        let before = space.lies.range(..end).next_back();
        let is_free = before.is_none_or(|(at, lies)| at + lies.bytes.next_multiple_of(UNIT) <= address);
        let at = if address > 0 && address.is_multiple_of(UNIT) && end <= MADE_UP && is_free {
            address
        } else {
            let at = self.next;
            self.next = at.checked_add(size).filter(|next| *next <= END)?;
            at
        };
        space.lies.insert(at, Lies { bytes, stack });
        space.reserved += size;
        if let Some(target) = target(recording, device) {
            target.events.push(Event { kind: EventKind::SegmentAlloc, ..event(step, at, size, stack) });
            target.events.push(Event { kind: EventKind::Alloc, ..event(step, at, bytes, stack) });
        }
        Some(at)
    }

    fn remove(&mut self, step: &Step, device: usize, at: u64, bytes: u64, stack: StackId, recording: &mut Recording) {
        let size = bytes.next_multiple_of(UNIT);
        let space = self.spaces.entry(device).or_default();
        space.lies.remove(&at);
        space.reserved = space.reserved.saturating_sub(size);
        if let Some(target) = target(recording, device) {
            target.events.push(Event { kind: EventKind::FreeRequested, ..event(step, at, bytes, stack) });
            target.events.push(Event { kind: EventKind::FreeCompleted, ..event(step, at, bytes, stack) });
            target.events.push(Event { kind: EventKind::SegmentFree, ..event(step, at, size, stack) });
        }
    }

    /// Library, call, process: the innermost first.
    fn stack(&mut self, process: usize, kind: Kind, origin: Origin, recording: &mut Recording) -> StackId {
        if let Some(stack) = self.stacks.get(&(process, kind, origin)) {
            return *stack;
        }
        let name = self.names.get(process).map_or("", String::as_str);
        let frames =
            [(origin.title(), ""), (call_of(kind), DRIVER_FILE), (name, DRIVER_FILE)].map(|(function, file)| {
                let file = recording.strings.intern(file);
                let function = recording.strings.intern(function);
                recording.frames.insert(Frame { function, file, line: 0 })
            });
        let stack = recording.stacks.intern(&frames);
        self.stacks.insert((process, kind, origin), stack);
        stack
    }

    /// The state at the end, and what there is to say of it.
    pub(super) fn finish(self, recording: &mut Recording) {
        for (device, space) in &self.spaces {
            let segments = space.lies.iter().map(|(&address, lies)| segment(address, *lies)).collect();
            if let Some(target) = target(recording, *device) {
                target.segments = segments;
            }
        }
        for (kind, (_, most)) in self.unshown.iter().filter(|(_, (_, most))| *most > 0) {
            recording.notes.push(Note(format!(
                "{}, not in the account: at most {}",
                call_of(*kind),
                Bytes::new(*most)
            )));
        }
        if self.unmatched > 0 {
            recording.notes.push(Note(format!(
                "{} events are about memory that no event before told of, or told of twice",
                self.unmatched
            )));
        }
    }
}

/// Where memory is shown: what is on the host is, whichever device it is for.
fn place_of(record: &Record) -> usize {
    if record.kind.counts() { record.device } else { HOST }
}

fn segment(address: u64, lies: Lies) -> Segment {
    let size = lies.bytes.next_multiple_of(UNIT);
    Segment {
        address,
        total_size: size,
        kind: SegmentKind::Large,
        stack: lies.stack,
        blocks: vec![Block {
            address,
            size,
            requested_size: lies.bytes,
            state: BlockState::Allocated,
            stack: lies.stack,
        }],
        ..Segment::default()
    }
}

fn event(step: &Step, address: u64, size: u64, stack: StackId) -> Event {
    Event { address, size, stack, time_us: step.time_us, ..Event::default() }
}

/// Where a device's events go; the host's are made when there are any.
fn target(recording: &mut Recording, device: usize) -> Option<&mut DeviceRecording> {
    if device >= HOST {
        return Some(recording.host.get_or_insert_default());
    }
    Some(recording.device_mut(u32::try_from(device).ok()?))
}
