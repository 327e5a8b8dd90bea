//! What changed between two recordings: by class, by place, at the peak and per step.

use std::collections::BTreeMap;

use gpuheap_record::{Bytes, Recording};
use serde::Serialize;

use crate::analysis::Analysis;
use crate::error::Error;
use crate::explain::{Basis, Options, report};
use crate::frames::site;
use crate::holders::backward_label;
use crate::report::{Class, FindingKind, Peaks, Report, Site, SourceInfo, Verdict};

/// The name and version of the JSON form.
pub const DIFF_SCHEMA: &str = "gpuheap.diff/1";

/// What changed from one recording to another.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Diff {
    /// [`DIFF_SCHEMA`].
    pub schema: &'static str,
    /// The first recording.
    pub before: Side,
    /// The second recording.
    pub after: Side,
    /// By class at the peak of allocated memory, the largest change first.
    pub classes: Vec<ClassChange>,
    /// By place at the peak of allocated memory, the largest change first. Places are the same if file, function, class
    /// and their order within the function are: lines may have moved.
    pub sites: Vec<SiteChange>,
    /// Growth of each step by place, the largest change first.
    pub growth: Vec<SiteChange>,
}

/// One of the two recordings.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Side {
    /// What was read.
    pub source: SourceInfo,
    /// Its verdict.
    pub verdict: Verdict,
    /// Its peaks.
    pub peaks: Peaks,
    /// Steps that were found.
    pub steps: u64,
    /// Bytes of a leak a step; 0 without one.
    pub leak_bytes_per_step: Bytes,
}

/// One class in both recordings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ClassChange {
    /// The class.
    pub class: Class,
    /// Bytes in the first recording.
    pub before_bytes: Bytes,
    /// Bytes in the second recording.
    pub after_bytes: Bytes,
    /// Second minus first.
    pub change_bytes: i64,
}

/// One place in both recordings.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SiteChange {
    /// Where it is in the first recording, if there.
    pub before_site: Option<Site>,
    /// Where it is in the second recording, if there.
    pub after_site: Option<Site>,
    /// What to show where there is no site.
    pub label: String,
    /// The class.
    pub class: Class,
    /// Bytes in the first recording.
    pub before_bytes: Bytes,
    /// Bytes in the second recording.
    pub after_bytes: Bytes,
    /// Second minus first.
    pub change_bytes: i64,
}

/// Compares two recordings, or two devices of one.
pub fn diff(before: (&Recording, &Options), after: (&Recording, &Options)) -> Result<Diff, Error> {
    let profile = |(recording, options): (&Recording, &Options)| {
        let basis = Basis::of(recording, options.device)?;
        let report = report(recording, &basis, options)?;
        Ok(Profile::of(recording, &basis, &report))
    };
    Ok(compare(profile(before)?, profile(after)?))
}

impl Analysis {
    /// Compares this device with another, of the same recording or of another one.
    #[must_use]
    pub fn diff(&self, after: &Self) -> Diff {
        let profile = |analysis: &Self| Profile::of(&analysis.recording, &analysis.basis, &analysis.report);
        compare(profile(self), profile(after))
    }
}

fn compare(first: Profile, second: Profile) -> Diff {
    let mut classes: Vec<ClassChange> = Class::ALL
        .into_iter()
        .map(|class| {
            let of = |profile: &Profile| profile.classes.get(&class).copied().unwrap_or_default();
            let (before_bytes, after_bytes) = (of(&first), of(&second));
            ClassChange { class, before_bytes, after_bytes, change_bytes: change(before_bytes, after_bytes) }
        })
        .filter(|row| row.before_bytes != Bytes::ZERO || row.after_bytes != Bytes::ZERO)
        .collect();
    classes.sort_by_key(|row| (std::cmp::Reverse(row.change_bytes.unsigned_abs()), row.class));
    Diff {
        schema: DIFF_SCHEMA,
        classes,
        sites: changes(&first.peak, &second.peak),
        growth: changes(&first.growth, &second.growth),
        before: first.side,
        after: second.side,
    }
}

fn change(before: Bytes, after: Bytes) -> i64 {
    let signed = |bytes: Bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX);
    signed(after).saturating_sub(signed(before))
}

/// What makes a place the same in two recordings: the file's name, the function, the class.
type Key = (String, String, Class);

#[derive(Clone, Debug)]
struct Place {
    site: Option<Site>,
    bytes: Bytes,
}

/// The places of each key, in the order of their lines.
type Places = BTreeMap<Key, Vec<Place>>;

struct Profile {
    side: Side,
    classes: BTreeMap<Class, Bytes>,
    peak: Places,
    growth: Places,
}

impl Profile {
    fn of(recording: &Recording, basis: &Basis, report: &Report) -> Self {
        let Basis { replay, marks, phases, classes, .. } = basis;
        let mut sums: BTreeMap<(Option<Site>, String, Class), Bytes> = BTreeMap::new();
        for (id, row) in replay.allocations.iter().filter(|(_, row)| row.is_live_at(replay.peak)) {
            let frame = marks.site_frame(recording, row.stack);
            let label = match frame {
                Some(_) => String::new(),
                None => phases.backward_of(row.born).map_or_else(
                    || "no frames recorded".to_owned(),
                    |pass| backward_label(recording, marks, pass.root),
                ),
            };
            let key = (frame.map(|frame| site(recording, frame)), label, classes.class(id));
            *sums.entry(key).or_default() += Bytes::new(row.size);
        }
        let leak = report.findings.iter().find(|finding| finding.kind == FindingKind::Leak);
        let mut growth = Places::new();
        if let Some(leak) = leak {
            let bytes = leak.bytes_per_step.unwrap_or_default();
            growth
                .insert(key_of(leak.site.as_ref(), "", Class::Unknown), vec![Place { site: leak.site.clone(), bytes }]);
        }
        let mut peak = Places::new();
        for ((site, label, class), bytes) in sums {
            peak.entry(key_of(site.as_ref(), &label, class)).or_default().push(Place { site, bytes });
        }
        Self {
            classes: report.peak.by_class.iter().copied().collect(),
            side: Side {
                leak_bytes_per_step: leak.and_then(|leak| leak.bytes_per_step).unwrap_or_default(),
                source: report.source.clone(),
                verdict: report.verdict.clone(),
                peaks: report.peaks,
                steps: report.steps.count,
            },
            peak,
            growth,
        }
    }
}

fn key_of(site: Option<&Site>, label: &str, class: Class) -> Key {
    match site {
        Some(site) => {
            let file = site.file.rsplit(['/', '\\']).next().unwrap_or(&site.file);
            (file.to_owned(), site.function.clone(), class)
        }
        // A backward pass is named with its line: that may have moved.
        None => (label.split(':').next().unwrap_or(label).to_owned(), String::new(), class),
    }
}

/// Places of both sides, those of one key paired in the order of their lines, the largest change first.
fn changes(before: &Places, after: &Places) -> Vec<SiteChange> {
    let mut keys: Vec<&Key> = before.keys().chain(after.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    let none = Vec::new();
    let mut rows = Vec::new();
    for key in keys {
        let (first, second) = (before.get(key).unwrap_or(&none), after.get(key).unwrap_or(&none));
        for (first, second) in pairs(first, second) {
            let bytes = |place: Option<&Place>| place.map(|place| place.bytes).unwrap_or_default();
            let site = |place: Option<&Place>| place.and_then(|place| place.site.clone());
            rows.push(SiteChange {
                before_site: site(first),
                after_site: site(second),
                label: if key.1.is_empty() { key.0.clone() } else { key.1.clone() },
                class: key.2,
                before_bytes: bytes(first),
                after_bytes: bytes(second),
                change_bytes: change(bytes(first), bytes(second)),
            });
        }
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.change_bytes.unsigned_abs()));
    rows
}

/// Lists longer than this are paired by their order alone.
const MOST_PLACES: usize = 200;

/// The places of one key as pairs, in the order of their lines on both sides: the pairing with the smallest change in
/// all, so that lines that only moved stay together and new ones stand alone.
fn pairs<'a>(before: &'a [Place], after: &'a [Place]) -> Vec<(Option<&'a Place>, Option<&'a Place>)> {
    if before.len() == after.len() || before.len().max(after.len()) > MOST_PLACES {
        return (0..before.len().max(after.len())).map(|index| (before.get(index), after.get(index))).collect();
    }
    let alone = |place: &Place| place.bytes.get().saturating_mul(2);
    // Between two ways of the same change, the one with more lines that did not move.
    let both = |one: &Place, other: &Place| {
        let line = |place: &Place| place.site.as_ref().map(|site| site.line);
        let moved = u64::from(line(one) != line(other));
        one.bytes.get().abs_diff(other.bytes.get()).saturating_mul(2).saturating_add(moved)
    };
    let width = after.len() + 1;
    // `cost[i * width + j]`: the smallest change of the first i and j places.
    let mut cost = vec![0_u64; (before.len() + 1) * width];
    let together = |cost: &[u64], i: usize, j: usize| {
        (i > 0 && j > 0).then(|| cost[(i - 1) * width + j - 1].saturating_add(both(&before[i - 1], &after[j - 1])))
    };
    let gone = |cost: &[u64], i: usize, j: usize| {
        (i > 0).then(|| cost[(i - 1) * width + j].saturating_add(alone(&before[i - 1])))
    };
    let new = |cost: &[u64], i: usize, j: usize| {
        (j > 0).then(|| cost[i * width + j - 1].saturating_add(alone(&after[j - 1])))
    };
    for i in 0..=before.len() {
        for j in 0..=after.len() {
            let ways = [together(&cost, i, j), gone(&cost, i, j), new(&cost, i, j)];
            cost[i * width + j] = ways.into_iter().flatten().min().unwrap_or(0);
        }
    }
    let (mut i, mut j) = (before.len(), after.len());
    let mut paired = Vec::new();
    while i > 0 || j > 0 {
        let here = Some(cost[i * width + j]);
        if together(&cost, i, j) == here {
            (i, j) = (i - 1, j - 1);
            paired.push((Some(&before[i]), Some(&after[j])));
        } else if gone(&cost, i, j) == here {
            i -= 1;
            paired.push((Some(&before[i]), None));
        } else {
            j -= 1;
            paired.push((None, Some(&after[j])));
        }
    }
    paired.reverse();
    paired
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(lines: &[(u32, u64)]) -> Vec<Place> {
        let site = |line| Site { file: "m.py".to_owned(), line, function: "forward".to_owned() };
        lines.iter().map(|&(line, bytes)| Place { site: Some(site(line)), bytes: Bytes::new(bytes) }).collect()
    }

    fn found(before: &[(u32, u64)], after: &[(u32, u64)]) -> Vec<(u32, u32)> {
        let (before, after) = (places(before), places(after));
        let line = |place: Option<&Place>| place.and_then(|place| place.site.as_ref()).map_or(0, |site| site.line);
        pairs(&before, &after).into_iter().map(|(one, other)| (line(one), line(other))).collect()
    }

    #[test]
    fn lines_that_moved_stay_together() {
        let before = [(37, 490), (38, 10), (40, 610)];
        assert_eq!(found(&before, &[(38, 490), (39, 10), (41, 610)]), [(37, 38), (38, 39), (40, 41)]);
        assert_eq!(found(&before, &[(36, 490), (37, 10), (39, 610)]), [(37, 36), (38, 37), (40, 39)]);
    }

    #[test]
    fn lines_that_came_or_went_stand_alone() {
        let before = [(37, 490), (38, 10), (40, 610)];
        assert_eq!(found(&before, &[(38, 10), (40, 610)]), [(37, 0), (38, 38), (40, 40)]);
        assert_eq!(
            found(&before, &[(37, 490), (38, 10), (39, 77), (41, 610)]),
            [(37, 37), (38, 38), (0, 39), (40, 41)]
        );
    }
}
