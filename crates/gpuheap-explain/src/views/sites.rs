//! The sites: what each line of the program made, held and kept.

use gpuheap_record::FrameId;
use serde::Serialize;

use crate::analysis::Analysis;
use crate::leaks::Window;
use crate::lifetimes::{AllocationId, Tick};
use crate::report::Class;
use crate::trend::slope;
use crate::views::places::{SiteIndex, label};

/// More sites than this are not listed one by one: those that never held much are one row together.
const MOST_SITES: usize = 5000;
/// Ends of steps that the growth is told from: of more, every so many.
const MOST_BOUNDARIES: usize = 64;

/// A line of the program, or what stands for one where no frames were recorded.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SiteRow {
    /// The file, as recorded; empty where there is none.
    pub file: String,
    /// The line, from 1; 0 where it is not known.
    pub line: u32,
    /// The function; empty where there is none.
    pub function: String,
    /// What to show where there is no file, such as `backward pass started at train.py:16`; else empty.
    pub label: String,
    /// The class that most of what it holds has, by bytes and time: a row of [`Class::ALL`].
    pub class: usize,
    /// Bytes that it held at each named moment, in the order of [`Analysis::moments`].
    pub at: Vec<u64>,
    /// The most bytes that it held.
    pub most: u64,
    /// When it held them first.
    pub most_tick: u32,
    /// Blocks that it made.
    pub count: u64,
    /// Bytes of all of them.
    pub total: u64,
    /// Blocks that were never freed.
    pub kept: u64,
    /// The median of microseconds from birth to free, of the blocks that were freed; `None` if none was, or without
    /// times.
    pub lifetime_us: Option<u64>,
    /// The same in events.
    pub lifetime_events: Option<u32>,
    /// Bytes by which it grows each step: the median slope between what it held at the ends of the steps after the
    /// warm-up; `None` where there are too few steps.
    pub growth: Option<i64>,
}

/// The sites of a device, those that held most first, and for each row of the index its row here.
pub(crate) struct Sites {
    pub(crate) rows: Vec<SiteRow>,
    pub(crate) index: SiteIndex,
    /// -1 for sites that are not listed.
    pub(crate) row_of: Vec<i32>,
}

impl Analysis {
    /// What each line of the program made and held, those that held most at once first.
    #[must_use]
    pub fn sites(&self) -> Vec<SiteRow> {
        sites(self).rows
    }
}

/// Sums of one site.
#[derive(Clone, Default)]
struct Sum {
    now: u64,
    most: u64,
    most_tick: u32,
    count: u64,
    total: u64,
    kept: u64,
    /// Bytes times events that they were held, by class.
    classes: [f64; Class::ALL.len()],
}

pub(crate) fn sites(analysis: &Analysis) -> Sites {
    let rows = analysis.basis.replay.allocations.rows();
    let mut index = SiteIndex::new(analysis);
    let of_row: Vec<u32> = rows.iter().map(|row| u32::try_from(index.of(analysis, row)).unwrap_or(u32::MAX)).collect();
    let mut sums = vec![Sum::default(); index.len()];
    for (row, (&site, allocation)) in of_row.iter().zip(rows).enumerate() {
        let sum = &mut sums[site as usize];
        sum.count += 1;
        sum.total = sum.total.saturating_add(allocation.size);
        sum.kept += u64::from(allocation.freed == Tick::NEVER);
        let class = analysis.basis.classes.class(AllocationId::from_index(row));
        let life = allocation.freed.0.min(analysis.last_tick()).saturating_sub(allocation.born.0).max(1);
        sum.classes[class as usize] += allocation.size as f64 * f64::from(life);
    }
    let held = sweep(analysis, &of_row, &mut sums);
    let lifetimes = lifetimes(analysis, &of_row, sums.len());

    let mut order: Vec<usize> = (0..sums.len()).collect();
    order.sort_by_key(|&site| (std::cmp::Reverse(sums[site].most), site));
    order.truncate(MOST_SITES);
    let mut row_of = vec![-1; sums.len()];
    for (row, &site) in order.iter().enumerate() {
        row_of[site] = i32::try_from(row).unwrap_or(-1);
    }
    let rest: Vec<usize> = (0..sums.len()).filter(|&site| row_of[site] < 0).collect();
    let growth = growth(analysis, &of_row, &row_of, order.len());
    let recording = &analysis.recording;
    let listed = order.iter().enumerate().map(|(row, &site)| {
        let sum = &sums[site];
        let (frame, root) = index.key(site);
        let text = |of: fn(&gpuheap_record::Recording, FrameId) -> &str| {
            frame.map_or_else(String::new, |frame| of(recording, frame).to_owned())
        };
        let class = (0..sum.classes.len()).rev().max_by(|&one, &other| sum.classes[one].total_cmp(&sum.classes[other]));
        SiteRow {
            file: text(gpuheap_record::Recording::file),
            line: frame.map_or(0, |frame| recording.frame(frame).line),
            function: text(gpuheap_record::Recording::function),
            label: if frame.is_some() { String::new() } else { label(analysis, root) },
            class: class.unwrap_or_default(),
            at: held.iter().map(|held| held[site]).collect(),
            most: sum.most,
            most_tick: sum.most_tick,
            count: sum.count,
            total: sum.total,
            kept: sum.kept,
            lifetime_us: lifetimes[site].1,
            lifetime_events: lifetimes[site].0,
            growth: growth.as_ref().map(|growth| growth[row]),
        }
    });
    let mut rows: Vec<SiteRow> = listed.collect();
    if !rest.is_empty() {
        let row = i32::try_from(rows.len()).unwrap_or(-1);
        for &site in &rest {
            row_of[site] = row;
        }
        rows.push(together(&rest, &sums, &held));
    }
    Sites { rows, index, row_of }
}

/// The sites that are not listed, as one row.
fn together(rest: &[usize], sums: &[Sum], held: &[Vec<u64>]) -> SiteRow {
    let of = |value: fn(&Sum) -> u64| rest.iter().fold(0, |sum: u64, &site| sum.saturating_add(value(&sums[site])));
    SiteRow {
        file: String::new(),
        line: 0,
        function: String::new(),
        label: format!("{} smaller sites", rest.len()),
        class: Class::Unknown as usize,
        at: held.iter().map(|held| rest.iter().fold(0, |sum: u64, &site| sum.saturating_add(held[site]))).collect(),
        // Each had its most at a moment of its own.
        most: rest.iter().map(|&site| sums[site].most).max().unwrap_or(0),
        most_tick: 0,
        count: of(|sum| sum.count),
        total: of(|sum| sum.total),
        kept: of(|sum| sum.kept),
        lifetime_us: None,
        lifetime_events: None,
        growth: None,
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a cast of a float saturates")]
fn rounded(value: f64) -> i64 {
    value.round() as i64
}

/// Goes through time once: the most that each site held, and what all held at each named moment.
fn sweep(analysis: &Analysis, of_row: &[u32], sums: &mut [Sum]) -> Vec<Vec<u64>> {
    const END: u32 = u32::MAX;
    let rows = analysis.basis.replay.allocations.rows();
    let last = analysis.last_tick();
    // Blocks by the tick of their free: more than one where the recording contradicts itself.
    let mut first_freed = vec![END; last as usize + 1];
    let mut next_freed = vec![END; rows.len()];
    for (row, allocation) in rows.iter().enumerate().rev() {
        if let Some(first) = first_freed.get_mut(allocation.freed.index()) {
            next_freed[row] = std::mem::replace(first, u32::try_from(row).unwrap_or(END));
        }
    }
    let moments = analysis.moments();
    let mut held = Vec::with_capacity(moments.len());
    let mut moments = moments.into_iter().map(|(_, tick)| tick).peekable();
    let mut born = 0;
    for tick in 0..=last {
        let mut freed = first_freed[tick as usize];
        while freed != END {
            let sum = &mut sums[of_row[freed as usize] as usize];
            sum.now = sum.now.saturating_sub(rows[freed as usize].size);
            freed = next_freed[freed as usize];
        }
        while let Some(allocation) = rows.get(born).filter(|row| row.born.0 <= tick) {
            let sum = &mut sums[of_row[born] as usize];
            if allocation.freed > Tick(tick) {
                sum.now = sum.now.saturating_add(allocation.size);
            }
            if sum.now > sum.most {
                (sum.most, sum.most_tick) = (sum.now, tick);
            }
            born += 1;
        }
        while moments.next_if(|&moment| moment <= tick).is_some() {
            held.push(sums.iter().map(|sum| sum.now).collect());
        }
    }
    held
}

/// The medians of the lives of each site's blocks that were freed, in events and in microseconds.
fn lifetimes(analysis: &Analysis, of_row: &[u32], sites: usize) -> Vec<(Option<u32>, Option<u64>)> {
    let rows = analysis.basis.replay.allocations.rows();
    let mut starts = vec![0_usize; sites + 1];
    let dead = || rows.iter().zip(of_row).filter(|(row, _)| row.freed != Tick::NEVER && row.born != Tick::START);
    for (_, &site) in dead() {
        starts[site as usize + 1] += 1;
    }
    for site in 0..sites {
        starts[site + 1] += starts[site];
    }
    let mut lives = vec![(0_u32, 0_u64); starts[sites]];
    let mut free = starts.clone();
    for (row, &site) in dead() {
        let time = |tick: Tick| analysis.time_us(tick.0);
        lives[free[site as usize]] = (row.freed.0 - row.born.0, time(row.freed).saturating_sub(time(row.born)));
        free[site as usize] += 1;
    }
    let timed = analysis.time_us(0) > 0;
    (0..sites)
        .map(|site| {
            let lives = &mut lives[starts[site]..starts[site + 1]];
            if lives.is_empty() {
                return (None, None);
            }
            let middle = lives.len() / 2;
            let events = lives.select_nth_unstable_by_key(middle, |life| life.0).1.0;
            let time_us = lives.select_nth_unstable_by_key(middle, |life| life.1).1.1;
            (Some(events), timed.then_some(time_us))
        })
        .collect()
}

/// By how much each listed site grows each step; nothing where there are too few steps.
fn growth(analysis: &Analysis, of_row: &[u32], row_of: &[i32], sites: usize) -> Option<Vec<i64>> {
    let ticks = &analysis.basis.steps.ticks;
    let window = Window::new(ticks)?;
    let stride = (ticks.len() - window.warm_up).div_ceil(MOST_BOUNDARIES);
    let boundaries: Vec<Tick> = ticks[window.warm_up..].iter().copied().step_by(stride).collect();
    let mut changes = vec![vec![0_i64; boundaries.len() + 1]; sites];
    for (row, &site) in analysis.basis.replay.allocations.rows().iter().zip(of_row) {
        let Ok(site) = usize::try_from(row_of[site as usize]) else { continue };
        let at = |tick: Tick| boundaries.partition_point(|&boundary| boundary < tick);
        let (born, freed) = (at(row.born), at(row.freed));
        if born < freed {
            changes[site][born] = changes[site][born].saturating_add_unsigned(row.size);
            changes[site][freed] = changes[site][freed].saturating_sub_unsigned(row.size);
        }
    }
    let slopes = changes.into_iter().map(|mut changes| {
        changes.pop();
        let mut sum = 0_i64;
        let held: Vec<u64> = changes
            .into_iter()
            .map(|change| {
                sum = sum.saturating_add(change);
                sum.max(0).unsigned_abs()
            })
            .collect();
        rounded(slope(&held) / stride as f64)
    });
    Some(slopes.collect())
}
