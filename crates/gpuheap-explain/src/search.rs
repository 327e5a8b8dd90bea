//! The search for the settings under which a recorded program reserves least.
//!
//! Each candidate is a whole replay, so the search is small: the settings that are always worth a look, then split
//! limits and divisions around the best of them. It takes the same path every time, on however many cores.

use std::sync::atomic::{AtomicUsize, Ordering};

use gpuheap_alloc::torch::{Config, parse_conf};
use gpuheap_record::{Bytes, Recording};

use crate::error::Error;
use crate::explain::{choose_device, source_info};
use crate::frames::{FrameTableMarks, is_of_driver};
use crate::phases::Phases;
use crate::replay;
use crate::report::{SCHEMA, WhatIf, WhatIfReport, WhatIfRole};
use crate::whatif::{self, Outcome, Runner};

/// Settings that are always tried. Collection by threshold needs a limit and is tried only under one.
const ALWAYS: [&str; 6] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
];
const UNDER_A_LIMIT: [&str; 2] = [
    "garbage_collection_threshold:0.6,per_process_memory_fraction:0.99",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.99",
];
/// What the search adds to the best of them.
const VARIATIONS: [&str; 6] = [
    "max_split_size_mb:32",
    "max_split_size_mb:64",
    "max_split_size_mb:256",
    "max_split_size_mb:1024",
    "roundup_power2_divisions:16",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
];
/// Replays of fewer events than this are so short that the smallest limit is looked for in every row.
const SHORT: usize = 200_000;

/// What to try.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WhatIfOptions {
    /// The device by its ordinal; `None` for the one with an OOM, else the one that reserved most.
    pub device: Option<u32>,
    /// Settings as in `PYTORCH_CUDA_ALLOC_CONF`; with any given, only these are tried.
    pub confs: Vec<String>,
    /// The cap on reserved memory.
    pub limit: Option<Bytes>,
}

/// Runs one device's recording under other settings. `progress` is told how many replays of how many are done; it is
/// called from several threads.
pub fn whatif(
    recording: &Recording,
    options: &WhatIfOptions,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<WhatIfReport, Error> {
    let device = choose_device(recording, options.device)?;
    if is_of_driver(recording) {
        return Err(Error::OfDriver);
    }
    let replay = replay::replay(recording, device);
    let marks = FrameTableMarks::new(recording);
    let phases = Phases::new(recording, device, &marks);
    let runner = Runner::new(recording, device, &replay);
    let mut found = search(&runner, &marks, options, true, progress)?;
    let mut source = source_info(recording, device, &replay, &phases, options.limit);
    source.notes.append(&mut found.notes);
    Ok(WhatIfReport {
        schema: SCHEMA,
        source,
        replay: replay.check.clone(),
        best: found.best,
        saves_bytes: found.saves_bytes,
        whatif: found.rows,
    })
}

/// What a search found.
pub(crate) struct Found {
    /// The recorded settings first.
    pub(crate) rows: Vec<WhatIf>,
    /// The settings of the best row, if it is worth them.
    pub(crate) best: Option<String>,
    pub(crate) saves_bytes: Option<Bytes>,
    /// What the rows do not say by themselves.
    pub(crate) notes: Vec<String>,
}

/// Searches among settings, or tries those that are given. `limits` says whether to look for the smallest limits, too:
/// that takes many more replays.
pub(crate) fn search(
    runner: &Runner<'_>,
    marks: &FrameTableMarks,
    options: &WhatIfOptions,
    limits: bool,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Found, Error> {
    let Runner { recording, device, replay, .. } = *runner;
    let given: Vec<Candidate> = options.confs.iter().map(|conf| Candidate::given(conf)).collect::<Result<_, _>>()?;
    let recorded_config = Config::from(&recording.settings);
    let searches = given.is_empty();
    let bound = whatif::recorded_cap(device, replay, &recorded_config);
    // Settings that were asked for run under the limit that was asked for; the search stays within what was there.
    let cap = options.limit.map(Bytes::get).or(bound.filter(|_| searches));
    let recorded =
        Candidate { conf: recording.settings.conf.clone(), role: WhatIfRole::Recorded, config: recorded_config };
    let mut candidates = vec![recorded];
    candidates.extend(given);
    if searches {
        let limited = UNDER_A_LIMIT.iter().filter(|_| cap.is_some());
        candidates.extend(ALWAYS.iter().chain(limited).map(|conf| Candidate::of(conf, WhatIfRole::Tried)));
    }
    let as_recorded = options.limit.is_none().then(|| runner.recorded());
    let mut tried = Tried { runner, cap, as_recorded, marks, progress, candidates: Vec::new(), outcomes: Vec::new() };
    tried.run(candidates);
    if searches {
        // Vary the best so far; what varies a setting that it has replaces it.
        let best = &tried.candidates[tried.best_index()];
        // What a recording says may be two things: what its string means is built upon only where it was in force.
        let in_force = parse_conf(&best.conf).is_ok_and(|config| config == best.config);
        let base = if in_force { best.conf.as_str() } else { "" };
        // A split limit together with expandable segments can make reserved memory grow without end.
        let allowed = VARIATIONS
            .iter()
            .filter(|variation| !(best.config.expandable && variation.starts_with("max_split_size_mb")));
        let variations = allowed.map(|variation| combine(base, variation));
        let found = variations.map(|conf| Candidate::of(&conf, WhatIfRole::Found)).collect();
        tried.keep_best_of(found);
    }
    let best = tried.best_index();
    let (conf, runs) = (tried.candidates[best].conf.clone(), tried.outcomes[best].failure.is_none());
    let limits = match (limits, device.events.len() < SHORT) {
        (false, _) => Limits::None,
        (true, true) => Limits::All,
        (true, false) => Limits::RecordedAndBest,
    };
    let rows = tried.rows(limits);
    let (recorded, best_row) = (&rows[0], &rows[best]);
    let saves = recorded.peak_reserved_bytes - best_row.peak_reserved_bytes;
    let better = best > 0 && runs && (recorded.oom || is_gain(saves.get(), recorded.peak_reserved_bytes.get()));
    Ok(Found {
        best: better.then_some(conf),
        saves_bytes: (better && !recorded.oom).then_some(saves),
        notes: notes(&tried, bound.filter(|_| options.limit.is_none() && searches)),
        rows,
    })
}

/// Of which rows to find the smallest limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Limits {
    None,
    RecordedAndBest,
    All,
}

#[derive(Clone, Debug)]
struct Candidate {
    conf: String,
    role: WhatIfRole,
    config: Config,
}

impl Candidate {
    fn given(conf: &str) -> Result<Self, Error> {
        let config = parse_conf(conf).map_err(|source| Error::BadConf { conf: conf.to_owned(), source })?;
        Ok(Self { conf: conf.to_owned(), role: WhatIfRole::Given, config })
    }

    /// One of our own, which are all good.
    fn of(conf: &str, role: WhatIfRole) -> Self {
        Self { conf: conf.to_owned(), role, config: parse_conf(conf).unwrap_or_default() }
    }
}

/// Whether saving `saved` of `reserved` bytes is worth other settings: a segment at least, and a fiftieth.
fn is_gain(saved: u64, reserved: u64) -> bool {
    saved >= 20 << 20 && saved >= reserved / 50
}

/// What the rows do not say by themselves.
fn notes(tried: &Tried<'_>, bound: Option<u64>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(bound) = bound {
        notes.push(format!(
            "requests were refused in this recording: other settings run under the same limit, taken as {}, the most that \
             was reserved; give `--limit` for another",
            Bytes::new(bound)
        ));
    }
    let is_idle = |candidate: &&Candidate| {
        let config = &candidate.config;
        tried.cap.is_none() && (config.garbage_collection_threshold > 0.0 || config.memory_fraction < 1.0)
    };
    if let Some(candidate) = tried.candidates.iter().skip(1).find(is_idle) {
        notes.push(format!("`{}` acts only under a limit: give the card's size with `--limit`", candidate.conf));
    }
    notes
}

/// `base` with the setting of `variation`, which replaces one of the same name.
fn combine(base: &str, variation: &str) -> String {
    let name = |setting: &str| setting.split(':').next().unwrap_or(setting).to_owned();
    let mut parts: Vec<&str> = Vec::new();
    let mut depth = 0_i32;
    let mut start = 0;
    for (at, c) in base.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&base[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&base[start..]);
    parts.retain(|part| !part.trim().is_empty() && name(part.trim()) != name(variation));
    parts.push(variation);
    parts.join(",")
}

struct Tried<'a> {
    runner: &'a Runner<'a>,
    cap: Option<u64>,
    /// The recorded run, where it is not to be run under another limit.
    as_recorded: Option<Outcome>,
    marks: &'a FrameTableMarks,
    progress: &'a (dyn Fn(usize, usize) + Sync),
    candidates: Vec<Candidate>,
    outcomes: Vec<Outcome>,
}

impl Tried<'_> {
    /// Runs candidates that come to something new, on all cores.
    fn run(&mut self, candidates: Vec<Candidate>) {
        // What was asked for has a row of its own.
        let keep = |candidate: &Candidate, known: &[Candidate]| match candidate.role {
            WhatIfRole::Given => {
                !known.iter().any(|known| known.role == WhatIfRole::Given && known.conf == candidate.conf)
            }
            _ => !known.iter().any(|known| known.config == candidate.config),
        };
        let first = self.candidates.len();
        for candidate in candidates {
            if keep(&candidate, &self.candidates) {
                self.candidates.push(candidate);
            }
        }
        let new = &self.candidates[first..];
        let outcomes = in_parallel(new, self.progress, |candidate| match self.as_recorded {
            Some(outcome) if candidate.role == WhatIfRole::Recorded => outcome,
            _ => self.runner.run(&candidate.config, self.cap),
        });
        self.outcomes.extend(outcomes);
    }

    /// The same, keeping of the new ones only the best, and only if it is better than all before.
    fn keep_best_of(&mut self, candidates: Vec<Candidate>) {
        let first = self.candidates.len();
        let before = self.best_index();
        self.run(candidates);
        let best = self.best_index();
        let kept = (best != before).then(|| (self.candidates[best].clone(), self.outcomes[best]));
        self.candidates.truncate(first);
        self.outcomes.truncate(first);
        if let Some((candidate, outcome)) = kept {
            self.candidates.push(candidate);
            self.outcomes.push(outcome);
        }
    }

    /// The candidate that runs to its end and reserves least. Those that come first are simpler: a later one must be
    /// worth it.
    fn best_index(&self) -> usize {
        (1..self.outcomes.len()).fold(0, |best, index| {
            let (old, new) = (&self.outcomes[best], &self.outcomes[index]);
            let (old_reserved, new_reserved) = (old.counters.peak_reserved, new.counters.peak_reserved);
            let better = match (old.failure.is_some(), new.failure.is_some()) {
                (true, false) => true,
                (false, false) => is_gain(old_reserved.saturating_sub(new_reserved), old_reserved),
                _ => false,
            };
            if better { index } else { best }
        })
    }

    fn rows(&self, limits: Limits) -> Vec<WhatIf> {
        let best = self.best_index();
        let indices: Vec<usize> = (0..self.candidates.len()).collect();
        in_parallel(&indices, &|_, _| {}, |&index| {
            let (candidate, outcome) = (&self.candidates[index], &self.outcomes[index]);
            let cap = if index == 0 && self.as_recorded.is_some() { None } else { self.cap };
            let mut row = self.runner.row(&candidate.conf, candidate.role, cap, outcome, self.marks);
            let wanted = match limits {
                Limits::None => false,
                Limits::RecordedAndBest => index == 0 || index == best,
                Limits::All => true,
            };
            if wanted {
                let unlimited = self.runner.run(&candidate.config, None);
                let limit = self.runner.smallest_limit(&candidate.config, &unlimited);
                // More room is not always better: the row's own limit may do where the search ended above it.
                let runs_here = cap.filter(|_| outcome.failure.is_none());
                let limit = limit.map(|limit| runs_here.map_or(limit, |cap| limit.min(cap)));
                row.smallest_limit_bytes = limit.map(Bytes::new);
            }
            row
        })
    }
}

/// Applies `work` to all items on all cores; the results are in the order of the items.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    progress: &(dyn Fn(usize, usize) + Sync),
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(items.len()).max(1);
    let take = || {
        let mut results = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return results };
            results.push((index, work(item)));
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, items.len());
        }
    };
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let handles: Vec<_> = (1..workers).map(|_| scope.spawn(take)).collect();
        let mut results = take();
        for handle in handles {
            match handle.join() {
                Ok(more) => results.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        results
    });
    results.sort_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variation_replaces_its_own_setting_only() {
        assert_eq!(combine("", "max_split_size_mb:64"), "max_split_size_mb:64");
        assert_eq!(
            combine("expandable_segments:True", "max_split_size_mb:64"),
            "expandable_segments:True,max_split_size_mb:64"
        );
        assert_eq!(
            combine("roundup_power2_divisions:[256:1,>:8],expandable_segments:True", "roundup_power2_divisions:16"),
            "expandable_segments:True,roundup_power2_divisions:16"
        );
    }

    #[test]
    fn our_own_settings_are_good() {
        for conf in ALWAYS.iter().chain(&UNDER_A_LIMIT).chain(&VARIATIONS) {
            assert!(parse_conf(conf).is_ok(), "{conf}");
        }
    }

    #[test]
    fn results_keep_the_order_of_their_items() {
        let items: Vec<usize> = (0..100).collect();
        assert_eq!(
            in_parallel(&items, &|_, _| {}, |&item| item * 2),
            items.iter().map(|item| item * 2).collect::<Vec<_>>()
        );
    }
}
