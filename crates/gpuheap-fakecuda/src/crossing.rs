//! Copies between a device and the host that are under way, and what is done beside them: mapping the host's memory for a
//! device takes turns with copies out of it on a real one, so programs that care do not do both at once. Counted under
//! names that no function has, see `config`.

use gpuheap_cuda::raw::location;

use crate::entry;
use crate::state::State;

/// Which way a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    In,
    Out,
}

/// Pieces of work that are copies.
#[derive(Debug)]
pub(crate) struct Crossing(Vec<(Way, usize, u64)>);

impl Crossing {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }
}

impl State {
    /// Whether physical memory of the host is behind an address.
    fn is_host(&self, address: usize) -> bool {
        let handle = self.space.mapping_at(address).map(|(_, mapping)| mapping.handle);
        let physical = handle.and_then(|handle| self.space.physical.get(&handle));
        physical.is_some_and(|physical| physical.location.kind != location::DEVICE)
    }

    /// A stream was just given a copy.
    pub(crate) fn crosses(&mut self, to: usize, from: usize, stream: usize) {
        let (way, what) = match (self.is_host(from), self.is_host(to)) {
            (true, false) => (Way::In, "copies in"),
            (false, true) => (Way::Out, "copies out"),
            _ => return,
        };
        entry::happened(what);
        let number = self.streams[&stream].given;
        self.crossing.0.push((way, stream, number));
    }

    /// A device may reach a mapping from now on.
    pub(crate) fn granted(&mut self, address: usize) {
        if !self.is_host(address) {
            return;
        }
        let mut under_way = std::mem::take(&mut self.crossing.0);
        under_way.retain(|(_, stream, number)| !self.is_past(*stream, *number));
        for (way, what) in [(Way::In, "host mapped beside copies in"), (Way::Out, "host mapped beside copies out")] {
            if under_way.iter().any(|(other, ..)| *other == way) {
                entry::happened(what);
            }
        }
        self.crossing.0 = under_way;
    }
}
