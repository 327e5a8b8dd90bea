//! The device starts a kernel when the program has asked for it and the one before is done. The program goes on at once,
//! unless it waits for a number, or is so many kernels ahead that the queue is full. Streams of a device run beside each
//! other, unless one waits for another.

use foldhash::HashMap;

/// Kernels that wait at most.
const LONGEST: usize = 1024;

/// When the program and the device are done with what they were given, in microseconds from the start of a step.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) host: f64,
    pub(super) device: f64,
    /// The same for streams other than the usual one, by their number less one.
    streams: Vec<f64>,
    /// When the last of all streams is done. None is ever done sooner than it was.
    latest: f64,
    /// When what was on a stream as an event was recorded is done.
    events: HashMap<u32, f64>,
    /// When each of the last kernels began.
    begun: Vec<f64>,
    next: usize,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            host: 0.0,
            device: 0.0,
            streams: Vec::new(),
            latest: 0.0,
            events: HashMap::default(),
            begun: Vec::new(),
            next: 0,
        }
    }

    /// Something that the program does by itself.
    pub(super) fn think(&mut self, us: f64) {
        self.host += us;
    }

    /// A call that costs the program `host_us` and the device `device_us`, on its usual stream.
    pub(super) fn call(&mut self, host_us: f64, device_us: f64) {
        self.call_on(0, host_us, device_us);
    }

    /// The same on any stream.
    pub(super) fn call_on(&mut self, stream: u16, host_us: f64, device_us: f64) {
        self.host += host_us;
        if device_us <= 0.0 {
            return;
        }
        if self.begun.len() == LONGEST {
            self.host = self.host.max(self.begun[self.next]);
        }
        let begin = self.host.max(*self.stream(stream));
        *self.stream(stream) = begin + device_us;
        self.latest = self.latest.max(begin + device_us);
        if self.begun.len() < LONGEST {
            self.begun.push(begin);
        } else {
            self.begun[self.next] = begin;
            self.next = (self.next + 1) % LONGEST;
        }
    }

    fn stream(&mut self, stream: u16) -> &mut f64 {
        let Some(index) = usize::from(stream).checked_sub(1) else { return &mut self.device };
        if index >= self.streams.len() {
            self.streams.resize(index + 1, 0.0);
        }
        &mut self.streams[index]
    }

    /// An event is over as soon as all is that is on its stream now.
    pub(super) fn record(&mut self, event: u32, stream: u16) {
        let now = *self.stream(stream);
        self.events.insert(event, now);
    }

    /// What comes next on a stream comes after an event. One that nobody recorded is over.
    pub(super) fn wait_on(&mut self, stream: u16, event: u32) {
        let over = self.events.get(&event).copied().unwrap_or(0.0);
        let at = self.stream(stream);
        *at = at.max(over);
    }

    /// When all streams are done.
    fn done(&self) -> f64 {
        self.latest
    }

    /// Many small calls as one: the first kernel begins soon, and the device is done no sooner than the program.
    pub(super) fn calls(&mut self, host_us: f64, device_us: f64) {
        let begin = self.host.max(self.device);
        self.host += host_us;
        if device_us > 0.0 {
            self.device = (begin + device_us).max(self.host);
            self.latest = self.latest.max(self.device);
        }
    }

    /// The program waits until the device has done everything.
    pub(super) fn wait(&mut self, host_us: f64) {
        self.host = self.host.max(self.done()) + host_us;
    }

    /// The same again so many times as between `before` and now.
    pub(super) fn again(&mut self, before: &Self, times: f64) {
        let later = (self.device - before.device) * times;
        self.host += (self.host - before.host) * times;
        self.device += later;
        let earlier = before.streams.iter().copied().chain(std::iter::repeat(0.0));
        self.streams.iter_mut().zip(earlier).for_each(|(stream, before)| *stream += (*stream - before) * times);
        self.latest = self.streams.iter().copied().fold(self.device, f64::max);
        self.begun.iter_mut().for_each(|begun| *begun += later);
    }

    /// When both are done.
    pub(super) fn end(&self) -> f64 {
        self.host.max(self.done())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_that_one_of_both_is_slow_at_add_up() {
        let mut queue = Queue::new();
        // The device is slow first, then the program: neither sum is the whole time.
        (0..100).for_each(|_| queue.call(10.0, 1.0));
        (0..100).for_each(|_| queue.call(1.0, 10.0));
        assert!((queue.end() - 2001.0).abs() < 20.0, "{}", queue.end());
        // The other way round the program gets ahead, and what it is ahead by counts.
        let mut queue = Queue::new();
        (0..100).for_each(|_| queue.call(1.0, 10.0));
        (0..100).for_each(|_| queue.call(10.0, 1.0));
        assert!((queue.end() - 1101.0).abs() < 20.0, "{}", queue.end());
    }

    #[test]
    fn a_program_that_waits_loses_what_it_was_ahead_by() {
        let mut queue = Queue::new();
        (0..100).for_each(|_| queue.call(1.0, 10.0));
        queue.wait(0.0);
        (0..100).for_each(|_| queue.call(10.0, 1.0));
        assert!((queue.end() - 2001.0).abs() < 20.0, "{}", queue.end());
    }

    #[test]
    fn the_queue_is_only_so_long() {
        let mut queue = Queue::new();
        (0..5000).for_each(|_| queue.call(0.1, 10.0));
        assert!(queue.host > 39_000.0, "{}", queue.host);
    }

    #[test]
    fn streams_run_beside_each_other_until_one_waits() {
        let mut queue = Queue::new();
        queue.call_on(0, 0.0, 100.0);
        queue.call_on(1, 0.0, 30.0);
        assert!((queue.end() - 100.0).abs() < 1e-9);
        queue.record(0, 0);
        queue.wait_on(1, 0);
        queue.call_on(1, 0.0, 30.0);
        // Behind the first stream's work, beside what comes after it.
        queue.call_on(0, 0.0, 10.0);
        assert!((queue.end() - 130.0).abs() < 1e-9);
        queue.wait_on(0, 7);
        assert!((queue.end() - 130.0).abs() < 1e-9);
        // The same once more.
        let before = Queue::new();
        queue.again(&before, 1.0);
        assert!((queue.end() - 260.0).abs() < 1e-9);
    }
}
