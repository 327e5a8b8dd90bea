//! The map of memory at one moment: every segment with its blocks.

use gpuheap_record::SegmentKind;

use crate::analysis::Analysis;
use crate::lifetimes::{AllocationId, Tick};
use crate::report::Class;

/// A segment at one moment. Neighbouring parts of one expandable range are one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentAt {
    /// Its first address.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// The raw handle of its stream.
    pub stream: u64,
    /// The pair that names its pool; `(0, 0)` is the default pool.
    pub pool: (u64, u64),
    /// Which requests it serves.
    pub kind: SegmentKind,
    /// Whether it is an expandable range.
    pub expandable: bool,
    /// Its blocks that are in use, by ascending address; what lies between them is free.
    pub blocks: Vec<BlockAt>,
}

/// A block that is in use at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockAt {
    /// Its allocation, by number: see [`AllocationView::id`](crate::AllocationView::id).
    pub allocation: u32,
    /// Its first address.
    pub address: u64,
    /// Bytes that it takes.
    pub size: u64,
    /// What it is for.
    pub class: Class,
    /// Whether the program has freed it and another stream still uses it.
    pub waits: bool,
}

impl Analysis {
    /// Every segment at a tick, by ascending address, with its blocks.
    #[must_use]
    pub fn segments_at(&self, tick: u32) -> Vec<SegmentAt> {
        let replay = &self.basis.replay;
        let tick = Tick(tick);
        let mut lives: Vec<_> = replay.segments.iter().filter(|segment| segment.is_live_at(tick)).collect();
        lives.sort_unstable_by_key(|segment| segment.address);
        let mut segments: Vec<(SegmentAt, _)> = Vec::new();
        for life in lives {
            match segments.last_mut() {
                Some((last, lane))
                    if life.expandable
                        && last.expandable
                        && *lane == life.lane
                        && last.address.saturating_add(last.size) == life.address =>
                {
                    last.size = last.size.saturating_add(life.size);
                }
                _ => {
                    let lane = replay.lanes.get(life.lane);
                    let pool = self.recording.pools.get(lane.pool).copied().unwrap_or_default();
                    let segment = SegmentAt {
                        address: life.address,
                        size: life.size,
                        stream: lane.stream,
                        pool,
                        kind: lane.kind,
                        expandable: life.expandable,
                        blocks: Vec::new(),
                    };
                    segments.push((segment, life.lane));
                }
            }
        }
        let mut segments: Vec<SegmentAt> = segments.into_iter().map(|(segment, _)| segment).collect();
        let rows = replay.allocations.rows();
        let born = rows.partition_point(|row| row.born <= tick);
        for (index, row) in rows[..born].iter().enumerate().filter(|(_, row)| row.placed && row.is_active_at(tick)) {
            let after = segments.partition_point(|segment| segment.address <= row.address);
            let Some(segment) = after.checked_sub(1).and_then(|at| segments.get_mut(at)) else { continue };
            if row.address - segment.address < segment.size {
                let id = AllocationId::from_index(index);
                segment.blocks.push(BlockAt {
                    allocation: id.get(),
                    address: row.address,
                    size: row.size,
                    class: self.basis.classes.class(id),
                    waits: row.freed <= tick,
                });
            }
        }
        for segment in &mut segments {
            segment.blocks.sort_unstable_by_key(|block| block.address);
        }
        segments
    }

    /// One allocation by its number.
    #[must_use]
    pub fn allocation(&self, id: u32) -> Option<crate::AllocationView> {
        let rows = self.basis.replay.allocations.rows();
        let row = rows.get(id as usize)?;
        Some(self.view(AllocationId::from_index(id as usize), row))
    }
}
