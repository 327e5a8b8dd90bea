//! What the views show: an analysis, with what is worth keeping of it.

use std::collections::HashSet;
use std::sync::Arc;

use gpuheap_explain::{
    Analysis, BlockColumns, Class, Finding, MomentName, Page, Places, Report, Served, Site, SiteRow, accumulated,
};

/// Kind of a frame: a library's.
pub(crate) const LIBRARY: u8 = 0;
/// Kind of a frame: the user's own.
pub(crate) const OWN: u8 = 1;

/// One device of a recording, ready to be looked at.
pub(crate) struct Data {
    served: Served,
    pub(crate) report: Report,
    pub(crate) places: Places,
    pub(crate) sites: Vec<SiteRow>,
    /// The class that each rule gives.
    rules: Vec<Class>,
    pub(crate) moments: Vec<(MomentName, u32)>,
    pub(crate) steps: Vec<u32>,
    pub(crate) last: u32,
    pub(crate) limit: Option<u64>,
    /// For each finding, which frames of its stack are the user's own.
    pub(crate) own: Vec<Vec<bool>>,
}

impl std::fmt::Debug for Data {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Data").field("last", &self.last).finish_non_exhaustive()
    }
}

/// What was held at one moment.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) tick: u32,
    /// Row of a place, bytes and blocks that it holds; ascending, and only places that hold something.
    pub(crate) places: Vec<(u32, u64, u64)>,
    /// Bytes that each of the sites holds.
    pub(crate) sites: Vec<u64>,
    /// The class that most of them have; `None` for sites that hold nothing.
    pub(crate) classes: Vec<Option<Class>>,
    pub(crate) allocated: u64,
    /// Whether that is all.
    pub(crate) complete: bool,
}

impl Data {
    pub(crate) fn new(analysis: Analysis, limit: Option<u64>) -> Self {
        let served = Served::new(Arc::new(analysis));
        let Page { report, places, sites, rules, .. } = served.page("", "");
        let rules = rules.iter().map(|rule| class_at(rule.class)).collect();
        let analysis = served.analysis();
        let limit = limit.or_else(|| {
            let below = report.oom.as_ref()?.limit_below_bytes?;
            Some(below.get())
        });
        Self {
            moments: analysis.moments(),
            steps: analysis.step_ticks(),
            last: analysis.last_tick(),
            own: own_frames(&report, &places),
            report,
            places,
            sites,
            rules,
            limit,
            served,
        }
    }

    pub(crate) fn analysis(&self) -> &Analysis {
        self.served.analysis()
    }

    /// The tick of a moment with a name.
    pub(crate) fn tick_of(&self, name: MomentName) -> Option<u32> {
        self.moments.iter().find(|&&(of, _)| of == name).map(|&(_, tick)| tick)
    }

    /// The name of a tick, if it has one.
    pub(crate) fn name_of(&self, tick: u32) -> Option<&'static str> {
        let order = [MomentName::Oom, MomentName::Peak, MomentName::PeakReserved, MomentName::End];
        order.into_iter().find(|&name| self.tick_of(name) == Some(tick)).map(title)
    }

    /// The end of the next step after a tick, or of the one before it.
    pub(crate) fn step_from(&self, tick: u32, forward: bool) -> Option<u32> {
        if forward {
            self.steps.get(self.steps.partition_point(|&step| step <= tick)).copied()
        } else {
            let before = self.steps.partition_point(|&step| step < tick);
            before.checked_sub(1).and_then(|step| self.steps.get(step)).copied()
        }
    }

    /// Microseconds from the first event to a tick; `None` without times.
    pub(crate) fn since_start(&self, tick: u32) -> Option<u64> {
        let start = self.analysis().time_us(0);
        (start > 0).then(|| self.analysis().time_us(tick).saturating_sub(start))
    }

    /// What is held at a tick, by place and by site.
    pub(crate) fn held(&mut self, tick: u32) -> Held {
        let count = self.sites.len();
        let mut held = Held {
            tick,
            places: Vec::new(),
            sites: vec![0; count],
            classes: vec![None; count],
            allocated: 0,
            complete: true,
        };
        let Ok(moment) = self.served.moment(tick.min(self.last)) else { return held };
        held.complete = moment.memory.complete;
        let BlockColumns { born_delta, life, sort, .. } = &moment.memory.blocks;
        let sorts = &moment.memory.sorts;
        let mut sums = vec![(0_u64, 0_u64); self.places.tree.frame.len()];
        let mut by_class = vec![[0_u64; Class::ALL.len()]; count];
        for ((born, &life), &sort) in accumulated(born_delta).into_iter().zip(life).zip(sort) {
            // Blocks that only wait for another stream are no longer the program's.
            if life >= 0 && born.saturating_add(life) <= i64::from(tick) {
                continue;
            }
            let row = sort as usize;
            let (Some(&place), Some(&size)) = (sorts.place.get(row), sorts.size.get(row)) else { continue };
            if let Some((bytes, blocks)) = sums.get_mut(place as usize) {
                *bytes = bytes.saturating_add(size);
                *blocks += 1;
                held.allocated = held.allocated.saturating_add(size);
            }
            let class = sorts.rule.get(row).and_then(|&rule| self.rules.get(usize::from(rule)));
            if let (Some(&class), Some(site)) = (class, self.site_of(place)) {
                let sum = &mut by_class[site][class as usize];
                *sum = sum.saturating_add(size);
            }
        }
        for (place, (bytes, blocks)) in (0_u32..).zip(sums).filter(|(_, (_, blocks))| *blocks > 0) {
            held.places.push((place, bytes, blocks));
            if let Some(site) = self.site_of(place) {
                held.sites[site] = held.sites[site].saturating_add(bytes);
            }
        }
        for (class, sums) in held.classes.iter_mut().zip(by_class) {
            let most = Class::ALL.into_iter().zip(sums).filter(|&(_, bytes)| bytes > 0);
            *class = most.min_by_key(|&(class, bytes)| (std::cmp::Reverse(bytes), class)).map(|(class, _)| class);
        }
        held
    }

    /// The row of the site that a place belongs to.
    fn site_of(&self, place: u32) -> Option<usize> {
        let site = usize::try_from(*self.places.tree.site.get(place as usize)?).ok()?;
        (site < self.sites.len()).then_some(site)
    }

    /// File, line, function and kind of a row of the frames.
    pub(crate) fn frame(&self, row: u32) -> (&str, u32, &str, u8) {
        let row = row as usize;
        let frames = &self.places.frames;
        let text = |column: &[u32]| {
            column.get(row).and_then(|&string| self.places.strings.get(string as usize)).map_or("", String::as_str)
        };
        let number = |column: &[u32]| column.get(row).copied().unwrap_or(0);
        (
            text(&frames.file),
            number(&frames.line),
            text(&frames.function),
            frames.kind.get(row).copied().unwrap_or(LIBRARY),
        )
    }
}

/// For each finding, which frames of its stack are the user's own.
fn own_frames(report: &Report, places: &Places) -> Vec<Vec<bool>> {
    let frames = &places.frames;
    let text = |string: u32| places.strings.get(string as usize).map_or("", String::as_str);
    let rows = frames.file.iter().zip(&frames.function).zip(&frames.kind);
    let own: HashSet<(&str, &str)> =
        rows.filter(|&(_, &kind)| kind == OWN).map(|((&file, &function), _)| (text(file), text(function))).collect();
    let of = |finding: &Finding| {
        let is_own = |site: &Site| Some(site) == finding.site.as_ref() || own.contains(&(&*site.file, &*site.function));
        finding.stack.iter().map(is_own).collect()
    };
    report.findings.iter().map(of).collect()
}

/// The class of a row of the classes.
pub(crate) fn class_at(row: usize) -> Class {
    Class::ALL.get(row).copied().unwrap_or(Class::Unknown)
}

/// A moment in a word or two.
pub(crate) const fn title(name: MomentName) -> &'static str {
    match name {
        MomentName::Peak => "peak",
        MomentName::PeakReserved => "peak of reserved",
        MomentName::Oom => "OOM",
        MomentName::End => "end",
    }
}
