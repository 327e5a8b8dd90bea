//! What the policy would have done, compared with what happened.

use gpuheap_alloc::torch::{Decision, new_memory};
use gpuheap_alloc::{BlockId, Lane};
use gpuheap_record::Event;

use super::{Fresh, Player};
use crate::report::ReplayCheck;

impl Player<'_> {
    /// Compares the free block that the policy takes, if it takes one, with where the block was placed.
    pub(super) fn compare(
        &mut self,
        event: &Event,
        taken: Option<BlockId>,
        (lane, rounded): (Lane, u64),
        fresh: Option<Fresh>,
    ) {
        if let Some((address, size)) = self.growth.front().copied() {
            self.growth.clear();
            self.mismatch(|| format!("{} bytes were placed, the policy maps {size} more at {address:#x}", event.size));
        }
        // Memory that was just mapped for the request serves it, whatever a search would find now.
        let taken = self.grown.take().or(taken.map(|id| self.heap.block(id).address));
        let made = self.config.segment_size(rounded);
        match (taken, fresh) {
            (None, Some(fresh)) if made == fresh.size => self.matched += 1,
            (None, Some(fresh)) => self.mismatch(|| {
                format!(
                    "a segment of {} bytes was made at {:#x}, the policy makes one of {made}",
                    fresh.size, fresh.address
                )
            }),
            (Some(address), Some(fresh)) => self.mismatch(|| {
                format!(
                    "a segment of {} bytes was made for {} bytes, the policy takes the free block at {address:#x}",
                    fresh.size, event.size
                )
            }),
            (Some(address), None) if address != event.address => self.mismatch(|| {
                format!(
                    "{} bytes were placed at {:#x}, the policy places them at {address:#x}",
                    event.size, event.address
                )
            }),
            (Some(_), None) => {}
            // With a split limit, a block that is too large to be taken may still be what a segment would grow from.
            (None, None) if self.grows_into(event.address, lane, rounded) => {}
            (None, None) => self.mismatch(|| {
                format!(
                    "{} bytes were placed at {:#x}, the policy makes a segment of {made}",
                    event.size, event.address
                )
            }),
        }
    }

    /// Whether the policy grows a segment for the request and needs no new memory for it, as the block at `address` is
    /// large enough.
    fn grows_into(&self, address: u64, lane: Lane, rounded: u64) -> bool {
        let decision = self.config.expandable.then(|| new_memory(&self.heap, &self.config, lane, rounded));
        matches!(decision, Some(Decision::Grow(growth)) if growth.start == address && growth.pieces.is_empty())
    }

    /// Whether the heap ended in the recorded final state.
    fn compare_final_state(&mut self) {
        let mut views = self.heap.segments();
        let mut difference = None;
        for segment in &self.device.segments {
            let same = views.next().is_some_and(|view| {
                view.address == segment.address
                    && view.size == segment.total_size
                    && view.blocks.len() == segment.blocks.len()
                    && view.blocks.iter().zip(&segment.blocks).all(|(ours, recorded)| {
                        ours.address == recorded.address && ours.size == recorded.size && ours.state == recorded.state
                    })
            });
            if !same {
                difference = Some(segment.address);
                break;
            }
        }
        if difference.is_none() {
            difference = views.next().map(|view| view.address);
        }
        drop(views);
        if let Some(address) = difference {
            self.mismatch(|| format!("the final state differs from the recorded one at segment {address:#x}"));
        }
    }

    pub(super) fn check(&mut self) -> ReplayCheck {
        let has_segments = !self.device.segments.is_empty();
        if has_segments {
            self.compare_final_state();
        }
        ReplayCheck {
            policy: if self.is_of_driver { "driver" } else { "torch-native" }.to_owned(),
            conf: self.recording.settings.conf.clone(),
            exact: self.first_mismatch.is_none() && self.unexplained == 0 && has_segments,
            segment_events: self.segment_events,
            matched: if self.is_of_driver { self.segment_events } else { self.matched },
            first_mismatch: self.first_mismatch.clone(),
        }
    }
}
