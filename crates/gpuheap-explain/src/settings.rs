//! Which allocator settings would have helped the recorded program, found by running it under them.

use gpuheap_alloc::torch::Config;
use gpuheap_record::Bytes;

use crate::findings::{Facts, given_limit};
use crate::report::{WhatIf, WhatIfRole};
use crate::whatif::Runner;

/// The settings that are tried for a remedy: those that the field recommends against waste.
fn candidates() -> [(&'static str, Config); 2] {
    let stock = Config::default;
    [("", stock()), ("expandable_segments:True", Config { expandable: true, ..stock() })]
}

/// What the tried settings came to.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The recorded settings first.
    pub(crate) rows: Vec<WhatIf>,
}

impl Settings {
    pub(crate) fn try_out(facts: &Facts<'_>) -> Self {
        let runner = Runner::new(facts.recording, facts.device, facts.replay);
        let recorded = Config::from(&facts.recording.settings);
        let conf = facts.recording.settings.conf.as_str();
        // A failure happened under some cap: the same one holds for the other settings.
        let cap = facts.oom.as_ref().map(|(_, oom)| given_limit(facts, oom).unwrap_or(oom.limit_at_least_bytes).get());
        let mut tried = vec![(conf, recorded.clone())];
        tried.extend(candidates().into_iter().filter(|(_, config)| *config != recorded));
        let rows = tried.iter().enumerate().map(|(index, (conf, config))| {
            let outcome = runner.run(config, cap);
            let role = if index == 0 { WhatIfRole::Recorded } else { WhatIfRole::Tried };
            runner.row(conf, role, cap, &outcome, facts.marks)
        });
        Self { rows: rows.collect() }
    }

    /// The setting under which least would have been reserved, if it saves anything over what was: its string and the
    /// bytes that it saves.
    pub(crate) fn best_saving(&self, reserved: Bytes) -> Option<(&WhatIf, Bytes)> {
        let others = self.rows.iter().skip(1).filter(|row| !row.oom);
        let best = others.min_by_key(|row| row.peak_reserved_bytes)?;
        let saved = reserved - best.peak_reserved_bytes;
        (saved > Bytes::ZERO).then_some((best, saved))
    }

    /// A setting under which the program would not have run out of memory.
    pub(crate) fn without_oom(&self) -> Option<&WhatIf> {
        self.rows.iter().skip(1).find(|row| !row.oom)
    }
}
