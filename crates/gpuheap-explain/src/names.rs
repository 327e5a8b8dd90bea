//! What the program itself calls its memory: the allocation behind each name.
//!
//! A name stands for an address at a time, and addresses are used again: it belongs to the block that held the address
//! then.

use foldhash::HashMap;
use gpuheap_record::{Bytes, DeviceRecording, NamedAs, Recording, StringId};

use crate::classes::Classes;
use crate::replay::Replay;
use crate::report::{Class, Named};

use crate::lifetimes::{AllocationId, Allocations, Tick};

/// How many names a report has.
const MOST_NAMED: usize = 30;
/// How many blocks below an address are looked at for one that reaches over it.
const MOST_BELOW: usize = 256;

/// The allocations of one device that have a name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    of: HashMap<AllocationId, (NamedAs, StringId)>,
}

impl Names {
    /// The first name that each allocation got.
    pub(crate) fn new(recording: &Recording, device: &DeviceRecording, allocations: &Allocations) -> Self {
        let mut names = recording.names.iter().filter(|name| name.device == device.device).peekable();
        if names.peek().is_none() {
            return Self::default();
        }
        let rows = allocations.rows();
        let mut by_address: Vec<AllocationId> = (0..rows.len()).map(AllocationId::from_index).collect();
        by_address.sort_unstable_by_key(|id| (rows[id.index()].address, id.index()));
        let times = device.events.times_us();
        let mut of = HashMap::default();
        for name in names {
            let events = times.partition_point(|&time| time <= name.time_us);
            let tick = Tick(u32::try_from(events).unwrap_or(u32::MAX - 1));
            let below = by_address.partition_point(|id| rows[id.index()].address <= name.address);
            let held = by_address[..below].iter().rev().take(MOST_BELOW).find(|id| {
                let row = &rows[id.index()];
                name.address - row.address < row.size && row.is_live_at(tick)
            });
            if let Some(&id) = held {
                of.entry(id).or_insert((name.named_as, name.name));
            }
        }
        Self { of }
    }

    /// What was live at `tick`, by its name: the [`MOST_NAMED`] largest.
    pub(crate) fn at(&self, recording: &Recording, replay: &Replay, classes: &Classes, tick: Tick) -> Vec<Named> {
        let rows = replay.allocations.rows();
        let mut sums: HashMap<(Class, StringId), (u64, u64)> = HashMap::default();
        for (&id, &(_, name)) in self.of.iter().filter(|(id, _)| rows[id.index()].is_live_at(tick)) {
            let (bytes, blocks) = sums.entry((classes.class(id), name)).or_default();
            *bytes = bytes.saturating_add(rows[id.index()].size);
            *blocks += 1;
        }
        let mut named: Vec<Named> = sums
            .into_iter()
            .map(|((class, name), (bytes, blocks))| {
                let name = recording.strings.text(name).to_owned();
                Named { name, class, bytes: Bytes::new(bytes), blocks }
            })
            .collect();
        named.sort_unstable_by(|a, b| (b.bytes, a.class, &a.name).cmp(&(a.bytes, b.class, &b.name)));
        named.truncate(MOST_NAMED);
        named
    }

    /// What the program calls an allocation.
    pub(crate) fn get(&self, id: AllocationId) -> Option<(NamedAs, StringId)> {
        self.of.get(&id).copied()
    }
}

#[cfg(test)]
mod tests {
    use gpuheap_record::{Event, EventKind, Name};

    use super::*;
    use crate::replay;

    #[test]
    fn a_name_belongs_to_the_block_that_held_the_address_then() {
        let mut recording = Recording::default();
        let kinds = [EventKind::Alloc, EventKind::FreeRequested, EventKind::FreeCompleted];
        for (index, kind) in kinds.into_iter().cycle().take(9).enumerate() {
            let event = Event { kind, address: 4096, size: 512, time_us: 10 + index as u64, ..Event::default() };
            recording.device_mut(0).events.push(event);
        }
        for (time_us, address, text) in
            [(13, 4096, "second"), (10, 4100, "first"), (12, 4096, "nobody"), (16, 9000, "far")]
        {
            let name = recording.strings.intern(text);
            let device = gpuheap_record::DeviceId::new(0);
            recording.names.push(Name { device, address, time_us, named_as: NamedAs::Input, name });
        }
        let device = &recording.devices[0];
        let replay = replay::replay(&recording, device);
        let names = Names::new(&recording, device, &replay.allocations);
        let name = |row| names.get(AllocationId::from_index(row)).map(|(_, name)| recording.strings.text(name));
        assert_eq!([name(0), name(1), name(2)], [Some("first"), Some("second"), None]);
    }
}
