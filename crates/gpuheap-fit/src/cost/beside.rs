//! Copies over the link that run beside a program's own work: to the host in the forward pass, back in the backward pass.
//!
//! They go one after the other, and no more than a window of bytes is on its way at once
//! ([`WINDOW`](crate::levers::checkpoint::WINDOW)): where the copies are slower than the work beside which they run, the work waits. So
//! blocks that are copied one after the other are as slow as the link, however much work there is in others.

use super::queue::Queue;

/// What a copy costs that runs beside other work, in parts of its time: both use the memory.
pub const HIDDEN: f64 = 0.05;

/// When the link is done with what it was given, in microseconds from the start of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    end: f64,
    /// When the device had come to the copy before.
    last: f64,
    /// What it takes to copy a window.
    window_us: f64,
}

impl Link {
    pub(super) const fn new(window_us: f64) -> Self {
        Self { end: 0.0, last: 0.0, window_us }
    }

    /// A copy of so many microseconds of what the device has come to since the last one: parts of it may be under way.
    pub(super) fn copy(&mut self, queue: &mut Queue, us: f64) {
        if us <= 0.0 {
            return;
        }
        let now = queue.device.max(queue.host);
        self.end = self.end.max(self.last).max(now - us) + us;
        let behind = (self.end - now - self.window_us).max(0.0);
        queue.call(0.0, behind + HIDDEN * us);
        self.last = queue.device;
    }

    /// All went on for so many microseconds.
    pub(super) fn later(&mut self, us: f64) {
        self.end += us;
        self.last += us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks one after the other, each with so many microseconds of work and of copies, then work alone.
    fn end(blocks: u32, work: f64, copy: f64, after: f64) -> f64 {
        let (mut queue, mut link) = (Queue::new(), Link::new(10.0));
        for _ in 0..blocks {
            queue.call(0.0, work);
            link.copy(&mut queue, copy);
        }
        queue.call(0.0, after);
        queue.end()
    }

    #[test]
    fn copies_that_are_faster_than_the_work_cost_a_part_of_their_time() {
        assert!((end(10, 100.0, 10.0, 0.0) - (1000.0 + 10.0 * HIDDEN * 10.0)).abs() < 1e-6);
    }

    #[test]
    fn slower_ones_hold_the_work_up_however_much_comes_after_it() {
        let (alone, before_more) = (end(10, 50.0, 100.0, 0.0), end(10, 50.0, 100.0, 5000.0));
        // As slow as the link, but for the last window.
        assert!((alone - (1000.0 - 10.0)).abs() < 60.0, "{alone}");
        assert!((before_more - alone - 5000.0).abs() < 1e-6);
    }
}
