//! What the policy would have done, compared with what happened.

use gpuheap_alloc::torch::Decision;
use gpuheap_record::Event;

use super::{Fresh, Player};
use crate::report::ReplayCheck;

impl Player<'_> {
    pub(super) fn compare(&mut self, event: &Event, decision: Decision, fresh: Option<Fresh>) {
        match (decision, fresh) {
            (Decision::NewSegment(size), Some(fresh)) if size == fresh.size => self.matched += 1,
            (Decision::NewSegment(size), Some(fresh)) => self.mismatch(|| {
                format!(
                    "a segment of {} bytes was made at {:#x}, the policy makes one of {size}",
                    fresh.size, fresh.address
                )
            }),
            (Decision::Take(id), Some(fresh)) => {
                let block = *self.heap.block(id);
                self.mismatch(|| {
                    format!(
                        "a segment of {} bytes was made for {} bytes, the policy takes the free block at {:#x}",
                        fresh.size, event.size, block.address
                    )
                });
            }
            (Decision::Take(id), None) => {
                let block = *self.heap.block(id);
                if block.address != event.address {
                    self.mismatch(|| {
                        format!(
                            "{} bytes were placed at {:#x}, the policy places them at {:#x}",
                            event.size, event.address, block.address
                        )
                    });
                }
            }
            (Decision::NewSegment(size), None) => self.mismatch(|| {
                format!(
                    "{} bytes were placed at {:#x}, the policy makes a segment of {size}",
                    event.size, event.address
                )
            }),
        }
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
            policy: "torch-native".to_owned(),
            conf: self.recording.settings.conf.clone(),
            exact: self.first_mismatch.is_none() && self.unexplained == 0 && has_segments,
            segment_events: self.segment_events,
            matched: self.matched,
            first_mismatch: self.first_mismatch.clone(),
        }
    }
}
