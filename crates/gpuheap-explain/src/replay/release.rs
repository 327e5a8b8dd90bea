//! Memory that goes back to the driver: what the policy gives back, and in which order.
//!
//! Why it goes back is not recorded. A run of releases is one of: passes of the collector (how many depends on a cap that
//! is not recorded either), a partial release, a full release, or these one after the other for one request.

use foldhash::HashSet;
use gpuheap_alloc::Lane;
use gpuheap_alloc::torch::{Release, collection_pass, full_release, partial_release};
use gpuheap_record::{EventId, EventKind, PoolId};

use super::Player;
use crate::program::{end_of_release, is_explicit};

/// Predictions cost a look at every free block: past this many looks an event on average, none are made any more.
const MOST_LOOKS: usize = 64;

impl Player<'_> {
    /// Predicts the run of releases that begins with the event `row`.
    pub(super) fn predict_release(&mut self, row: usize) {
        let events = &self.device.events;
        self.release_until = end_of_release(self.device, row);
        if !is_explicit(self.device, row, self.release_until) && self.config.garbage_collection_threshold <= 0.0 {
            self.forced_releases += 1;
        }
        let run: Vec<Release> = (row..self.release_until)
            .map(EventId::from_index)
            .map(|id| match events.kind(id) {
                EventKind::SegmentUnmap => Release::Handles(events.address(id), events.size(id)),
                _ => Release::Segment(events.address(id)),
            })
            .collect();
        self.looks += self.heap.free_count() + run.len();
        if self.looks > MOST_LOOKS * events.len() + 100_000 {
            self.mismatch(|| "memory went back too often to predict each time".to_owned());
            return;
        }
        let request = self.request_after(self.release_until);
        let matched = self.matched_release(&run, request);
        self.matched += matched as u64;
        if matched < run.len() {
            let address = run[matched].address();
            self.mismatch(|| format!("the memory at {address:#x} was given back, the policy releases another"));
        }
    }

    /// The request that a release may make room for: lane and rounded size.
    fn request_after(&self, row: usize) -> Option<(Lane, u64)> {
        let events = &self.device.events;
        let rest = events.kinds().get(row..)?;
        let skip = rest.iter().take(64).position(|kind| matches!(kind, EventKind::Alloc | EventKind::OutOfMemory))?;
        let id = EventId::from_index(row + skip);
        let rounded = self.config.round(events.size(id));
        let stream = self.recording.streams.get(events.stream(id)).copied().unwrap_or(0);
        Some((Lane { pool: PoolId::default(), kind: self.config.kind(rounded), stream }, rounded))
    }

    /// How many events of the run the policy predicts.
    fn matched_release(&mut self, run: &[Release], request: Option<(Lane, u64)>) -> usize {
        let mut gone: HashSet<u64> = HashSet::default();
        let mut matched = 0;
        let starts_with = |from: usize, list: &[u64]| {
            !list.is_empty()
                && run.len() >= from + list.len()
                && run[from..].iter().zip(list).all(|(release, &address)| *release == Release::Segment(address))
        };
        if self.config.garbage_collection_threshold > 0.0 {
            loop {
                let pass = collection_pass(&self.heap, |address| gone.contains(&address));
                let pass: Vec<u64> = pass.into_iter().map(|(address, _)| address).collect();
                if !starts_with(matched, &pass) {
                    break;
                }
                matched += pass.len();
                gone.extend(pass);
            }
        }
        if let Some((lane, rounded)) = request.filter(|_| matched < run.len()) {
            let (partial, _) =
                partial_release(&self.heap, &self.config, lane, rounded, |address| gone.contains(&address));
            if starts_with(matched, &partial) {
                matched += partial.len();
                gone.extend(partial);
            }
        }
        if matched == run.len() {
            return matched;
        }
        let mut private: Vec<PoolId> =
            self.lanes.iter().map(|(_, lane)| lane.pool).filter(|&pool| pool != PoolId::default()).collect();
        private.sort_unstable();
        private.dedup();
        let full = full_release(&self.heap, &self.config, &private);
        let heap = &self.heap;
        let is_private = |release: &Release| {
            heap.at(release.address()).is_some_and(|id| heap.block(id).lane.pool != PoolId::default())
        };
        let mut kept = None;
        for release in full.iter().filter(|release| !gone.contains(&release.address())) {
            if run.get(matched) == Some(release) {
                matched += 1;
            } else if !is_private(release) {
                // A full release gives everything back that it can. Only private pools may stay: which of them nobody
                // uses any more is not recorded.
                kept = Some(release.address());
                break;
            }
        }
        if let Some(kept) = kept.filter(|_| matched == run.len()) {
            self.mismatch(|| format!("the unused memory at {kept:#x} was kept, the policy releases it"));
        }
        matched
    }
}
