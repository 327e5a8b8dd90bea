//! A run of any length in a bounded number of points.

use std::collections::VecDeque;

use super::Sample;

/// The most points of the whole run; when they are reached, neighbours become one.
const MOST_POINTS: usize = 512;
/// The last steps, which are kept one by one.
const MOST_RECENT: usize = 256;

/// One step, or several in a row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Point {
    /// The last step of it.
    pub(super) step: u64,
    /// The least bytes alive at a step's end …
    pub(super) allocated: u64,
    /// … and blocks; bytes where nobody counts these.
    pub(super) blocks: u64,
    /// The most blocks.
    pub(super) most_blocks: u64,
    /// The most bytes alive.
    pub(super) most_allocated: u64,
    /// The most bytes reserved.
    pub(super) reserved: u64,
    /// Bytes that the collector had given back by the last step.
    pub(super) collected: u64,
    seconds: f64,
}

impl Point {
    fn of(sample: &Sample) -> Self {
        let blocks = sample.blocks.unwrap_or(sample.allocated);
        Self {
            step: sample.step,
            allocated: sample.allocated,
            blocks,
            most_blocks: blocks,
            most_allocated: sample.allocated,
            reserved: sample.reserved,
            collected: sample.collected.unwrap_or(0),
            seconds: sample.seconds,
        }
    }

    /// The two as one; `next` is the later.
    fn and(self, next: Self) -> Self {
        Self {
            step: next.step,
            allocated: self.allocated.min(next.allocated),
            blocks: self.blocks.min(next.blocks),
            most_blocks: self.most_blocks.max(next.most_blocks),
            most_allocated: self.most_allocated.max(next.most_allocated),
            reserved: self.reserved.max(next.reserved),
            collected: next.collected,
            seconds: next.seconds,
        }
    }
}

/// The whole run, its last steps, and what lies outside the allocator at moments of health.
#[derive(Clone, Debug)]
pub(super) struct Series {
    whole: Vec<Point>,
    /// Steps that a point of `whole` stands for.
    stride: usize,
    /// The point that is still being filled, and of how many steps it is.
    pending: Option<(Point, usize)>,
    recent: VecDeque<Point>,
    outside: Vec<(u64, u64)>,
    outside_stride: usize,
    outside_seen: usize,
    last: Option<Sample>,
    /// Reserved bytes after the first step.
    first_reserved: u64,
}

impl Default for Series {
    fn default() -> Self {
        Self {
            whole: Vec::new(),
            stride: 1,
            pending: None,
            recent: VecDeque::new(),
            outside: Vec::new(),
            outside_stride: 1,
            outside_seen: 0,
            last: None,
            first_reserved: 0,
        }
    }
}

impl Series {
    pub(super) fn push(&mut self, sample: &Sample) {
        match self.last {
            Some(last) if sample.step <= last.step => return,
            Some(_) => {}
            None => self.first_reserved = sample.reserved,
        }
        self.last = Some(*sample);
        let point = Point::of(sample);
        if self.recent.len() == MOST_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(point);
        let (merged, steps) = match self.pending.take() {
            Some((before, steps)) => (before.and(point), steps + 1),
            None => (point, 1),
        };
        if steps < self.stride {
            self.pending = Some((merged, steps));
            return;
        }
        self.whole.push(merged);
        if self.whole.len() == MOST_POINTS {
            self.whole = self.whole.chunks(2).map(|pair| pair.iter().skip(1).fold(pair[0], |a, &b| a.and(b))).collect();
            self.stride *= 2;
        }
    }

    /// Notes what is in use outside the allocator.
    pub(super) fn push_outside(&mut self, step: u64, bytes: u64) {
        self.outside_seen += 1;
        if !self.outside_seen.is_multiple_of(self.outside_stride) {
            return;
        }
        if self.outside.last().is_none_or(|&(last, _)| last < step) {
            self.outside.push((step, bytes));
        }
        if self.outside.len() == MOST_POINTS {
            self.outside = self.outside.iter().copied().skip(1).step_by(2).collect();
            self.outside_stride *= 2;
        }
    }

    pub(super) fn last(&self) -> Option<&Sample> {
        self.last.as_ref()
    }

    /// The whole run, in points of equally many steps.
    pub(super) fn whole(&self) -> &[Point] {
        &self.whole
    }

    /// The last steps one by one, where `whole` has lost them; else nothing.
    pub(super) fn recent(&self) -> Vec<Point> {
        if self.stride == 1 { Vec::new() } else { self.recent.iter().copied().collect() }
    }

    pub(super) fn outside(&self) -> &[(u64, u64)] {
        &self.outside
    }

    pub(super) fn first_reserved(&self) -> u64 {
        self.first_reserved
    }

    pub(super) fn counts_blocks(&self) -> bool {
        self.last.is_some_and(|last| last.blocks.is_some())
    }

    pub(super) fn kept(&self) -> usize {
        self.whole.len() + self.recent.len() + self.outside.len()
    }

    /// How long a step takes, over the last ones; 0 if that is not known.
    pub(super) fn seconds_per_step(&self) -> f64 {
        let (Some(first), Some(last)) = (self.recent.front(), self.recent.back()) else { return 0.0 };
        let steps = last.step - first.step;
        if steps == 0 { 0.0 } else { ((last.seconds - first.seconds) / steps as f64).max(0.0) }
    }
}
