//! Copies over the link that run beside a program's own work: to the host in the forward pass, back in the backward pass.

/// What a copy costs that runs beside other work, in parts of its time: both use the memory.
pub const HIDDEN: f64 = 0.05;
/// The part of a forward or backward pass beside which copies can run: not before the first result, nor after the last.
const COVERED: f64 = 0.9;

/// A pass through the model, all its parts of a batch together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OnePass {
    /// What the pass takes without them.
    pub(super) busy_us: f64,
    /// Copies beside the work.
    pub(super) link_us: f64,
}

impl OnePass {
    /// What the copies add to the pass, with so many microseconds of others: what does not go beside its work, as the memory
    /// that they empty is needed in it and what they bring back is, and a part of what does.
    pub(super) fn link_us(self, others_us: f64) -> f64 {
        let link = self.link_us + others_us;
        let hidden = link.min(COVERED * self.busy_us);
        link - (1.0 - HIDDEN) * hidden
    }

    /// As many passes more, each like the one since `before`.
    pub(super) fn again(&mut self, before: Self, more: f64) {
        self.busy_us += (self.busy_us - before.busy_us) * more;
        self.link_us += (self.link_us - before.link_us) * more;
    }
}
