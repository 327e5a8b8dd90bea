//! What a program is told of a device within a budget: arithmetic alone.

/// A run's part of a device, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    /// What the run may hold there.
    pub(crate) budget: u64,
    /// What it holds, of what counts against that.
    pub(crate) used: u64,
}

/// A device's memory, in bytes: free, reserved by the driver for itself, used by programs, and all three together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Figures {
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

impl Part {
    /// The figures of a card that is as large as the budget.
    ///
    /// What is missing on it beyond what the run holds is missing because others have it, or the driver: first the
    /// driver, up to what it reserved. So a budget that is no limit changes nothing.
    pub(crate) fn of(self, device: Figures) -> Figures {
        let total = self.budget.min(device.total);
        let free = self.budget.saturating_sub(self.used).min(device.free).min(total);
        let gone = total - free;
        let reserved = device.reserved.min(gone.saturating_sub(self.used));
        Figures { total, reserved, free, used: gone - reserved }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn card(reserved: u64, free: u64, used: u64) -> Figures {
        Figures { total: reserved + free + used, reserved, free, used }
    }

    #[test]
    fn the_card_is_as_large_as_the_budget() {
        let part = Part { budget: 12 * GIB, used: 3 * GIB };
        let alone = part.of(card(GIB, 76 * GIB, 3 * GIB));
        assert_eq!(alone, Figures { total: 12 * GIB, reserved: 0, free: 9 * GIB, used: 3 * GIB });
        // Others left less than the budget has.
        let crowded = part.of(card(GIB, 5 * GIB, 74 * GIB));
        assert_eq!(crowded, Figures { total: 12 * GIB, reserved: GIB, free: 5 * GIB, used: 6 * GIB });
        let full = part.of(card(GIB, 0, 79 * GIB));
        assert_eq!(full, Figures { total: 12 * GIB, reserved: GIB, free: 0, used: 11 * GIB });
    }

    #[test]
    fn a_run_beyond_its_budget_has_nothing_left() {
        let figures = Part { budget: 2 * GIB, used: 3 * GIB }.of(card(0, 76 * GIB, 4 * GIB));
        assert_eq!(figures, Figures { total: 2 * GIB, reserved: 0, free: 0, used: 2 * GIB });
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_figures_add_up_and_stay_within_the_budget_and_the_card(
            budget in any::<u64>(), used in any::<u64>(), device in any::<[u64; 3]>(), odd in any::<Option<u64>>(),
        ) {
            // A library may say what does not add up.
            let [reserved, free, taken] = device.map(|bytes| bytes >> 2);
            let card = Figures { total: odd.unwrap_or(reserved + free + taken), reserved, free, used: taken };
            let part = Part { budget, used };
            let told = part.of(card);
            prop_assert_eq!(told.total, told.reserved + told.free + told.used);
            prop_assert_eq!(told.total, budget.min(card.total));
            prop_assert_eq!(told.free, budget.saturating_sub(used).min(card.free).min(told.total));
            prop_assert!(told.reserved <= reserved);
            prop_assert_eq!(part.of(told), told, "a library that asks itself is told the same");
        }

        #[test]
        fn a_budget_that_is_no_limit_changes_nothing(
            device in any::<[u64; 3]>(), share in any::<u64>(), more in any::<u64>(),
        ) {
            let [reserved, free, taken] = device.map(|bytes| bytes >> 2);
            let card = card(reserved, free, taken);
            // The run's memory is among what is used.
            let part = Part { budget: card.total.saturating_add(more), used: share % taken.saturating_add(1) };
            prop_assert_eq!(part.of(card), card);
        }
    }
}
