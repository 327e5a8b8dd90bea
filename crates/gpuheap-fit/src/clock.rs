//! Streams of a device as clocks: work of one runs in turn, work of several at once, unless one waits for another.

use foldhash::HashMap;

/// How far each stream is, in microseconds.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    streams: Vec<f64>,
    events: HashMap<u32, f64>,
}

impl Clocks {
    fn at(&mut self, stream: u16) -> &mut f64 {
        let index = usize::from(stream);
        if index >= self.streams.len() {
            self.streams.resize(index + 1, 0.0);
        }
        &mut self.streams[index]
    }

    /// Work of `us` microseconds on a stream, behind what is on it.
    pub(crate) fn run(&mut self, stream: u16, us: f64) {
        *self.at(stream) += us;
    }

    /// An event is over as soon as all is that is on its stream now.
    pub(crate) fn record(&mut self, event: u32, stream: u16) {
        let now = *self.at(stream);
        self.events.insert(event, now);
    }

    /// What comes next on a stream comes after an event. One that nobody recorded is over.
    pub(crate) fn wait(&mut self, stream: u16, event: u32) {
        let over = self.events.get(&event).copied().unwrap_or(0.0);
        let at = self.at(stream);
        *at = at.max(over);
    }

    /// When all streams are done.
    pub(crate) fn end(&self) -> f64 {
        self.streams.iter().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_run_beside_each_other_until_one_waits() {
        let mut clocks = Clocks::default();
        clocks.run(0, 100.0);
        clocks.run(1, 30.0);
        assert!((clocks.end() - 100.0).abs() < 1e-9);
        clocks.record(0, 0);
        clocks.wait(1, 0);
        clocks.run(1, 30.0);
        // Behind the first stream's work, beside what comes after it.
        clocks.run(0, 10.0);
        assert!((clocks.end() - 130.0).abs() < 1e-9);
        clocks.wait(0, 7);
        assert!((clocks.end() - 130.0).abs() < 1e-9);
    }
}
