//! Memory cached for streams that no longer allocate.
//!
//! The allocator never lends a block to another stream. What a stream cached and stopped using stays out of reach of
//! all others until the cache is emptied.

use foldhash::HashSet;
use gpuheap_record::PoolId;

use crate::layout::free_ranges;
use crate::ledger::lane_sums;
use crate::lifetimes::Tick;
use crate::replay::Replay;

/// A stream that stopped allocating, with what is cached for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StrandedStream {
    /// The stream's raw handle.
    pub(crate) stream: u64,
    /// Bytes free in its segments at the end.
    pub(crate) bytes: u64,
    /// Those of them in segments without a live block: what emptying the cache gives back.
    pub(crate) releasable: u64,
    /// When it last allocated.
    pub(crate) last_used: Tick,
    /// Allocations of other streams since then.
    pub(crate) allocations_since: usize,
    /// All its allocations.
    pub(crate) allocations: usize,
}

/// A stream counts as idle when the others made at least this many allocations since its last one …
const FEWEST_SINCE: usize = 32;
/// … and at least this part of all allocations.
const SHARE_SINCE: usize = 4;

/// The idle streams of the default pools, by bytes.
pub(crate) fn find(replay: &Replay, last: Tick) -> Vec<StrandedStream> {
    let sums = lane_sums(replay, last);
    let rows = replay.allocations.rows();
    let mut streams: Vec<StrandedStream> = Vec::new();
    for (id, lane) in replay.lanes.iter().filter(|(_, lane)| lane.pool == PoolId::default()) {
        let bytes = sums[id.index()].free();
        match streams.iter_mut().find(|known| known.stream == lane.stream) {
            Some(known) => known.bytes = known.bytes.saturating_add(bytes),
            None => streams.push(StrandedStream {
                stream: lane.stream,
                bytes,
                releasable: 0,
                last_used: Tick::START,
                allocations_since: rows.len(),
                allocations: 0,
            }),
        }
        if streams.len() > 4096 {
            return Vec::new();
        }
    }
    let mut of_lane: Vec<Option<usize>> = vec![None; replay.lanes.len()];
    for (id, lane) in replay.lanes.iter().filter(|(_, lane)| lane.pool == PoolId::default()) {
        of_lane[id.index()] = streams.iter().position(|known| known.stream == lane.stream);
    }
    for (index, row) in rows.iter().enumerate().filter(|(_, row)| row.born > Tick::START) {
        if let Some(stream) = of_lane[row.lane.index()].map(|at| &mut streams[at]) {
            stream.last_used = row.born;
            stream.allocations_since = rows.len() - 1 - index;
            stream.allocations += 1;
        }
    }
    streams.retain(|stream| stream.bytes > 0 && stream.allocations_since >= FEWEST_SINCE.max(rows.len() / SHARE_SINCE));
    let whole: HashSet<(u64, u64)> = replay
        .segments
        .iter()
        .filter(|segment| segment.is_live_at(last))
        .map(|segment| (segment.address, segment.size))
        .collect();
    for range in free_ranges(replay, last).iter().filter(|range| whole.contains(&(range.address, range.size))) {
        let lane = replay.lanes.get(range.lane);
        let stream = streams.iter_mut().find(|known| lane.pool == PoolId::default() && known.stream == lane.stream);
        if let Some(stream) = stream {
            stream.releasable = stream.releasable.saturating_add(range.size);
        }
    }
    streams.sort_by_key(|stream| (std::cmp::Reverse(stream.bytes), stream.stream));
    streams
}
