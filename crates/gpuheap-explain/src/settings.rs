//! Which allocator settings would have helped the recorded program, found by running it under them.

use gpuheap_alloc::torch::Config;
use gpuheap_record::Bytes;

use crate::findings::{Facts, given_limit};
use crate::report::{WhatIf, WhatIfRole};
use crate::whatif::{Change, Runner};

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
    /// What changes to the program, under the recorded settings, would have reserved at most: each in words.
    pub(crate) changes: Vec<(String, Bytes)>,
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
            let role = if index == 0 { WhatIfRole::Recorded } else { WhatIfRole::Tried };
            // Without a failure the recorded run needs no second one.
            let is_known = role == WhatIfRole::Recorded && cap.is_none();
            let outcome = if is_known { runner.recorded() } else { runner.run(config, cap) };
            runner.row(conf, role, cap, &outcome, facts.marks)
        });
        Self { rows: rows.collect(), changes: changes(facts, &runner, &recorded, cap) }
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

/// Changes to the program that may help against waste, with what it would have reserved at most.
fn changes(facts: &Facts<'_>, runner: &Runner<'_>, config: &Config, cap: Option<u64>) -> Vec<(String, Bytes)> {
    let mut changes = Vec::new();
    let mut try_out = |what: String, change: Change| {
        let outcome = runner.run_changed(config, cap, change);
        if outcome.failure.is_none() {
            changes.push((what, Bytes::new(outcome.counters.peak_reserved)));
        }
    };
    let mut streams: Vec<u64> = facts.replay.lanes.iter().map(|(_, lane)| lane.stream).collect();
    streams.sort_unstable();
    streams.dedup();
    if streams.len() > 1 {
        try_out("with all work on one stream".to_owned(), Change { one_stream: true, ..Change::default() });
    }
    // Phases end with the first step, which makes what stays, and where the loop gives way to another.
    let ticks = &facts.steps.ticks;
    let phase_end = (facts.leaks.len() > 1).then(|| ticks.last()).flatten();
    for (what, tick) in [("the first step", ticks.first()), ("the last step", phase_end)] {
        if let Some(event) = tick.and_then(|tick| tick.event()) {
            let change = Change { empty_cache_after: Some(event), ..Change::default() };
            try_out(format!("with `torch.cuda.empty_cache()` once after {what}"), change);
        }
    }
    changes
}
