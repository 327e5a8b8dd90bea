//! Blocks and segments with their lives, as columns.

use foldhash::HashMap;
use serde::Serialize;

use crate::analysis::Analysis;
use crate::lifetimes::{Allocation, AllocationId, LaneId, SegmentLife, Tick};
use crate::views::deltas;
use crate::views::places::PlaceTable;
use crate::views::sites::Sites;

/// Blocks and segments with their lives: all of a recording, the most important, or those of one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Memory {
    /// Whether nothing was left out.
    pub complete: bool,
    /// How many blocks there are, those that were left out included.
    pub of_blocks: usize,
    /// The same for segments.
    pub of_segments: usize,
    /// Ticks at which every block and segment is there, whatever was left out.
    pub exact_ticks: Vec<u32>,
    /// The blocks, in the order of their birth.
    pub blocks: BlockColumns,
    /// What blocks have in common.
    pub sorts: SortColumns,
    /// The segments, in the order of their birth.
    pub segments: SegmentColumns,
}

/// Blocks, one row each.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct BlockColumns {
    /// The tick at which it was made; 0 if it was there before.
    pub born_delta: Vec<i64>,
    /// Ticks until the program freed it; -1 if it never did. It is held at `t` if `born <= t < born + life`.
    pub life: Vec<i64>,
    /// Its first address.
    pub address_delta: Vec<i64>,
    /// A row of the sorts.
    pub sort: Vec<u32>,
    /// Blocks that waited for another stream after they were freed: the row, and the tick from which on the memory could
    /// be used again, -1 if it never could.
    pub pending: Vec<(u32, i64)>,
}

/// What blocks have in common, one row each.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SortColumns {
    /// Where they are made: a row of the places.
    pub place: Vec<u32>,
    /// Why they have their class: a row of the rules.
    pub rule: Vec<u8>,
    /// Bytes that the program asked for.
    pub requested: Vec<u64>,
    /// Bytes that the block takes.
    pub size: Vec<u64>,
    /// A row of the lanes.
    pub lane: Vec<u32>,
}

/// Segments, one row each. A range that grew is one row for each time that it grew.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct SegmentColumns {
    /// The tick at which it came; 0 if it was there before.
    pub born_delta: Vec<i64>,
    /// Ticks until it went back; -1 if it never did.
    pub life: Vec<i64>,
    /// Its first address.
    pub address_delta: Vec<i64>,
    /// Bytes.
    pub size: Vec<u64>,
    /// A row of the lanes.
    pub lane: Vec<u32>,
    /// 1 if it is part of an expandable range.
    pub expandable: Vec<u8>,
}

/// Which blocks and segments to keep: rows, ascending.
pub(crate) struct Kept {
    blocks: Vec<usize>,
    segments: Vec<usize>,
    exact_ticks: Vec<u32>,
}

impl Kept {
    /// What is there at `exact_ticks`, and of the rest the largest blocks and the longest-lived segments, at most `most`
    /// of each. Where even the first is too much, the ticks that come last in `exact_ticks` are given up.
    pub(crate) fn most_important(analysis: &Analysis, exact_ticks: &[u32], most: usize) -> Self {
        let replay = &analysis.basis.replay;
        let rows = replay.allocations.rows();
        let segments = &replay.segments;
        let mut exact_ticks = exact_ticks.to_vec();
        loop {
            let is_exact = |born: Tick, ended: Tick| exact_ticks.iter().any(|&tick| born.0 <= tick && tick < ended.0);
            let blocks = pick(rows.len(), most, |row| {
                let row = &rows[row];
                (is_exact(row.born, row.completed), row.size)
            });
            let segments = pick(segments.len(), most, |row| {
                let segment = &segments[row];
                (is_exact(segment.born, segment.died), u64::from(segment.died.0 - segment.born.0))
            });
            match (blocks, segments) {
                (Some(blocks), Some(segments)) => {
                    exact_ticks.sort_unstable();
                    exact_ticks.dedup();
                    return Self { blocks, segments, exact_ticks };
                }
                _ if exact_ticks.pop().is_some() => {}
                // Not reached: without exact ticks, everything fits.
                _ => return Self { blocks: Vec::new(), segments: Vec::new(), exact_ticks },
            }
        }
    }

    /// What takes memory at one tick, at most `most` blocks, and how many blocks there are.
    fn at(analysis: &Analysis, tick: Tick, most: usize) -> (Self, usize) {
        let replay = &analysis.basis.replay;
        let rows = replay.allocations.rows();
        let born = rows.partition_point(|row| row.born <= tick);
        let mut blocks: Vec<usize> = (0..born).filter(|&row| rows[row].is_active_at(tick)).collect();
        let count = blocks.len();
        if count > most {
            blocks.select_nth_unstable_by_key(most, |&row| std::cmp::Reverse(rows[row].size));
            blocks.truncate(most);
            blocks.sort_unstable();
        }
        let segments = (0..replay.segments.len()).filter(|&row| replay.segments[row].is_live_at(tick)).collect();
        (Self { blocks, segments, exact_ticks: if count <= most { vec![tick.0] } else { Vec::new() } }, count)
    }
}

/// At most `most` of `count` rows, those with the largest keys; `None` if more than that are marked by `true`.
fn pick(count: usize, most: usize, key: impl Fn(usize) -> (bool, u64)) -> Option<Vec<usize>> {
    if count <= most {
        return Some((0..count).collect());
    }
    let mut rows: Vec<usize> = (0..count).collect();
    // Of equals, the later ones: the end of a recording is looked at more often than its middle.
    rows.select_nth_unstable_by_key(most, |&row| std::cmp::Reverse((key(row), row)));
    if key(rows[most]).0 {
        return None;
    }
    rows.truncate(most);
    rows.sort_unstable();
    Some(rows)
}

/// The most blocks of one moment that are sent.
const MOST_AT_ONCE: usize = 200_000;

impl Analysis {
    /// The kept blocks and segments as columns. `lanes` are those of the page.
    pub(crate) fn memory(&self, kept: &Kept, sites: &mut Sites, places: &mut PlaceTable) -> Memory {
        let replay = &self.basis.replay;
        let rows = replay.allocations.rows();
        let (of_blocks, of_segments) = (rows.len(), replay.segments.len());
        let mut sorts = Sorts::default();
        let mut columns = BlockColumns {
            born_delta: deltas(kept.blocks.iter().map(|&row| u64::from(rows[row].born.0))),
            address_delta: deltas(kept.blocks.iter().map(|&row| rows[row].address)),
            ..BlockColumns::default()
        };
        for (index, &row) in kept.blocks.iter().enumerate() {
            let block = &rows[row];
            columns.life.push(life(block.born, block.freed));
            let site = sites.row_of[sites.index.of(self, block)];
            let place = places.of(self, block, site);
            let rule = self.basis.classes.rule(AllocationId::from_index(row)) as u8;
            columns.sort.push(sorts.row(block, place, rule));
            if waits(block) {
                let completed = if block.completed == Tick::NEVER { -1 } else { i64::from(block.completed.0) };
                columns.pending.push((u32::try_from(index).unwrap_or(u32::MAX), completed));
            }
        }
        let segments: Vec<&SegmentLife> = kept.segments.iter().map(|&row| &replay.segments[row]).collect();
        Memory {
            complete: kept.blocks.len() == of_blocks && kept.segments.len() == of_segments,
            of_blocks,
            of_segments,
            exact_ticks: kept.exact_ticks.clone(),
            blocks: columns,
            sorts: sorts.columns,
            segments: SegmentColumns {
                born_delta: deltas(segments.iter().map(|segment| u64::from(segment.born.0))),
                life: segments.iter().map(|segment| life(segment.born, segment.died)).collect(),
                address_delta: deltas(segments.iter().map(|segment| segment.address)),
                size: segments.iter().map(|segment| segment.size).collect(),
                lane: segments.iter().map(|segment| lane_row(segment.lane)).collect(),
                expandable: segments.iter().map(|segment| u8::from(segment.expandable)).collect(),
            },
        }
    }

    /// What takes memory at a tick: every block and segment, as `columns` that [`Analysis::memory`] makes.
    pub(crate) fn moment_memory(&self, tick: u32, columns: impl FnOnce(&Kept) -> Memory) -> Memory {
        let (kept, of_blocks) = Kept::at(self, Tick(tick), MOST_AT_ONCE);
        let memory = columns(&kept);
        Memory { complete: kept.blocks.len() == of_blocks, of_blocks, of_segments: kept.segments.len(), ..memory }
    }
}

/// Ticks from one to the other; -1 if there is no end.
fn life(born: Tick, ended: Tick) -> i64 {
    if ended == Tick::NEVER { -1 } else { i64::from(ended.0) - i64::from(born.0) }
}

/// Whether a block's memory could not be used again at once after its free.
fn waits(block: &Allocation) -> bool {
    block.freed != Tick::NEVER && block.completed.0 > block.freed.0.saturating_add(1)
}

pub(crate) fn lane_row(lane: LaneId) -> u32 {
    u32::try_from(lane.index()).unwrap_or(u32::MAX)
}

#[derive(Default)]
struct Sorts {
    columns: SortColumns,
    rows: HashMap<(u32, u8, u64, u64, u32), u32>,
}

impl Sorts {
    fn row(&mut self, block: &Allocation, place: u32, rule: u8) -> u32 {
        let lane = lane_row(block.lane);
        let next = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        let key = (place, rule, block.requested, block.size, lane);
        let row = *self.rows.entry(key).or_insert(next);
        if row == next {
            self.columns.place.push(place);
            self.columns.rule.push(rule);
            self.columns.requested.push(block.requested);
            self.columns.size.push(block.size);
            self.columns.lane.push(lane);
        }
        row
    }
}
