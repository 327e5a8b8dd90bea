//! The account of reserved memory at one moment: parts that add up.

use std::collections::BTreeMap;

use gpuheap_record::{Bytes, PoolId, Recording};

use crate::classes::Classes;
use crate::frames::{asked_driver, is_of_driver};
use crate::lifetimes::{LaneId, Tick};
use crate::replay::Replay;
use crate::report::{Class, LedgerPart, Moment, PartKind};

/// Sums over one lane at one moment, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LaneSums {
    pub(crate) reserved: u64,
    pub(crate) allocated: u64,
    pub(crate) pending: u64,
}

impl LaneSums {
    /// Free inside segments.
    pub(crate) fn free(self) -> u64 {
        self.reserved.saturating_sub(self.allocated.saturating_add(self.pending))
    }
}

/// Sums for each lane at `tick`, by the number of the lane.
pub(crate) fn lane_sums(replay: &Replay, tick: Tick) -> Vec<LaneSums> {
    let mut sums = vec![LaneSums::default(); replay.lanes.len()];
    for segment in replay.segments.iter().filter(|segment| segment.is_live_at(tick)) {
        let sum = &mut sums[segment.lane.index()].reserved;
        *sum = sum.saturating_add(segment.size);
    }
    for row in replay.allocations.rows().iter().filter(|row| row.placed && row.is_active_at(tick)) {
        let sums = &mut sums[row.lane.index()];
        let sum = if row.is_live_at(tick) { &mut sums.allocated } else { &mut sums.pending };
        *sum = sum.saturating_add(row.size);
    }
    sums
}

/// The memory at `tick`, by class.
pub(crate) fn moment(replay: &Replay, classes: &Classes, times_us: &[u64], tick: Tick) -> Moment {
    let mut by_class: BTreeMap<Class, Bytes> = BTreeMap::new();
    for (id, row) in replay.allocations.iter().filter(|(_, row)| row.is_live_at(tick)) {
        let requested = row.requested.min(row.size);
        *by_class.entry(classes.class(id)).or_default() += Bytes::new(requested);
        *by_class.entry(Class::Rounding).or_default() += Bytes::new(row.size - requested);
    }
    let mut by_class: Vec<(Class, Bytes)> = by_class.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO).collect();
    by_class.sort_by_key(|&(class, bytes)| (std::cmp::Reverse(bytes), class));
    let event = tick.event();
    Moment {
        event: event.map(|event| u64::from(event.get())),
        time_us: event.and_then(|event| times_us.get(event.index()).copied()).filter(|&time| time > 0),
        allocated_bytes: Bytes::new(replay.allocated.get(tick.index()).copied().unwrap_or(0)),
        reserved_bytes: Bytes::new(replay.reserved.get(tick.index()).copied().unwrap_or(0)),
        by_class,
    }
}

/// The name of a stream in text.
pub(crate) fn stream_name(handle: u64) -> String {
    if handle == 0 { "default stream".to_owned() } else { format!("stream {handle:#x}") }
}

/// The name of a pool in text, with what made it: CUDA graphs count in the first number, `MemPool`s in the second.
pub(crate) fn pool_name(recording: &Recording, pool: PoolId) -> (String, &'static str) {
    let (first, second) = recording.pools.get(pool).copied().unwrap_or_default();
    let maker = if first > 0 { "CUDA graph" } else { "MemPool or CUDA graph" };
    (format!("private pool ({first}, {second})"), maker)
}

/// The account at `tick`. `stranded` names the streams that no longer allocate; with a `limit` the account goes up to it.
pub(crate) fn ledger(
    recording: &Recording,
    replay: &Replay,
    classes: &Classes,
    tick: Tick,
    stranded: &[u64],
    limit: Option<Bytes>,
) -> Vec<LedgerPart> {
    // Memory of the driver is told by who asked for it, all other by what it is for.
    let mut by_class: BTreeMap<(Class, Option<&str>), (u64, u64)> = BTreeMap::new();
    let mut rounding = 0_u64;
    let is_default = |lane: LaneId| replay.lanes.get(lane).pool == PoolId::default();
    for (id, row) in replay.allocations.iter() {
        if row.placed && row.is_live_at(tick) && is_default(row.lane) {
            let requested = row.requested.min(row.size);
            let key = (classes.class(id), asked_driver(recording, row.stack));
            let (bytes, blocks) = by_class.entry(key).or_default();
            *bytes = bytes.saturating_add(requested);
            *blocks += 1;
            rounding = rounding.saturating_add(row.size - requested);
        }
    }
    let mut parts: Vec<LedgerPart> = by_class
        .into_iter()
        .map(|((class, who), (bytes, blocks))| LedgerPart {
            part: who.unwrap_or(class.title()).to_owned(),
            kind: PartKind::Class,
            class: Some(class),
            bytes: Bytes::new(bytes),
            detail: format!("{blocks} {}", if blocks == 1 { "block" } else { "blocks" }),
        })
        .collect();
    parts.sort_by_key(|part| (std::cmp::Reverse(part.bytes), part.class));
    let part = |part: String, kind: PartKind, bytes: u64, detail: String| LedgerPart {
        part,
        kind,
        class: None,
        bytes: Bytes::new(bytes),
        detail,
    };
    if rounding > 0 {
        let detail = "blocks are larger than what was asked for".to_owned();
        parts.push(part("rounding".to_owned(), PartKind::Rounding, rounding, detail));
    }
    let sums = lane_sums(replay, tick);
    let mut pending = BTreeMap::new();
    let mut free: BTreeMap<u64, u64> = BTreeMap::new();
    let mut pools: BTreeMap<PoolId, LaneSums> = BTreeMap::new();
    for (id, lane) in replay.lanes.iter() {
        let sum = sums[id.index()];
        if lane.pool == PoolId::default() {
            let add = |total: &mut u64, amount: u64| *total = total.saturating_add(amount);
            add(free.entry(lane.stream).or_default(), sum.free());
            add(pending.entry(lane.stream).or_insert(0_u64), sum.pending);
        } else {
            let pool = pools.entry(lane.pool).or_default();
            pool.reserved = pool.reserved.saturating_add(sum.reserved);
            pool.allocated = pool.allocated.saturating_add(sum.allocated);
            pool.pending = pool.pending.saturating_add(sum.pending);
        }
    }
    pending.retain(|_, bytes| *bytes > 0);
    if !pending.is_empty() {
        let streams: Vec<String> = pending
            .iter()
            .map(|(&stream, &bytes)| format!("{} of {}", Bytes::new(bytes), stream_name(stream)))
            .collect();
        let detail = format!("dropped by the program, still used by another stream: {}", streams.join(", "));
        parts.push(part(
            "pending frees".to_owned(),
            PartKind::Pending,
            pending.values().fold(0, |sum, &bytes| sum.saturating_add(bytes)),
            detail,
        ));
    }
    for (pool, sum) in pools {
        let (name, maker) = pool_name(recording, pool);
        let detail = if sum.reserved > 0 {
            format!("{maker}: {} allocated, {} free", Bytes::new(sum.allocated), Bytes::new(sum.free()))
        } else {
            format!("{maker}: nothing at this moment")
        };
        parts.push(part(name, PartKind::PrivatePool, sum.reserved, detail));
    }
    for (stream, bytes) in free {
        let name = stream_name(stream);
        if stranded.contains(&stream) {
            let detail = "cached for a stream that no longer allocates".to_owned();
            parts.push(part(format!("stranded, {name}"), PartKind::Stranded, bytes, detail));
        } else {
            let detail = "cached: free inside segments".to_owned();
            parts.push(part(format!("free, {name}"), PartKind::Free, bytes, detail));
        }
    }
    if let Some(limit) = limit {
        let inside: Bytes = parts.iter().map(|part| part.bytes).sum();
        let detail =
            "free, or taken by the context, libraries and other processes: the recording does not say".to_owned();
        let name = if is_of_driver(recording) { "not in the account" } else { "not reserved by PyTorch" };
        parts.push(part(name.to_owned(), PartKind::Outside, (limit - inside).get(), detail));
    }
    parts
}
