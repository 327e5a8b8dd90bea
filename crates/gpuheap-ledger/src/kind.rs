//! What memory is.

/// What memory is.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// `cuMemAlloc`, `cuMemAllocPitch`: what was asked for.
    Linear = 0,
    /// Held by pools of stream-ordered memory.
    Pools = 1,
    /// `cuMemCreate`, on a device.
    Physical = 2,
    /// Arrays, by their dimensions.
    Arrays = 3,
    /// Held by the driver for graphs.
    Graphs = 4,
    /// `cuMemAllocManaged`, wherever it is just now.
    Managed = 5,
    /// `cuMemCreate`, on the host.
    PhysicalHost = 6,
    /// Page-locked memory of the host that the driver gave.
    HostPinned = 7,
    /// Memory of the program that it had page-locked.
    HostRegistered = 8,
    /// Memory that belongs to another process or another interface, which has it in its own figures.
    Imported = 9,
    /// Memory of the host that stands behind addresses of a device.
    Spilled = 10,
}

/// How many kinds there are.
pub const KINDS: usize = 11;

impl Kind {
    /// All kinds, by their numbers.
    pub const ALL: [Self; KINDS] = [
        Self::Linear,
        Self::Pools,
        Self::Physical,
        Self::Arrays,
        Self::Graphs,
        Self::Managed,
        Self::PhysicalHost,
        Self::HostPinned,
        Self::HostRegistered,
        Self::Imported,
        Self::Spilled,
    ];

    /// The kind of that number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Its number, as an index.
    #[must_use]
    pub fn number(self) -> usize {
        Self::ALL.iter().position(|kind| *kind == self).unwrap_or(0)
    }

    /// Whether it is memory of a device that this process made it take: that counts against the budget.
    #[must_use]
    pub fn counts(self) -> bool {
        matches!(self, Self::Linear | Self::Pools | Self::Physical | Self::Arrays | Self::Graphs)
    }

    /// Its name, one word in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Pools => "pools",
            Self::Physical => "physical",
            Self::Arrays => "arrays",
            Self::Graphs => "graphs",
            Self::Managed => "managed",
            Self::PhysicalHost => "physical_host",
            Self::HostPinned => "host_pinned",
            Self::HostRegistered => "host_registered",
            Self::Imported => "imported",
            Self::Spilled => "spilled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_numbers_that_they_say() {
        for (number, kind) in (0_u32..).zip(Kind::ALL) {
            assert_eq!(kind as u32, number);
            assert_eq!(Kind::from_number(number), Some(kind));
            assert_eq!(kind.number(), number as usize);
        }
        assert_eq!(Kind::from_number(11), None);
        assert_eq!(Kind::Spilled as u32, 10);
        assert!(!Kind::Spilled.counts() && Kind::Linear.counts());
    }
}
