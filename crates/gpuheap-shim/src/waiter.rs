//! Waiting for something that may have no end, for so long and no longer: a thread of its own waits, one for all times.
//!
//! It is part of the state and given up with it in the child of a fork, which has no such thread.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::Duration;

use crate::threads;

type Work = Box<dyn FnOnce() -> bool + Send>;

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Waiter(Option<Worker>);

struct Worker {
    asks: Sender<Work>,
    answers: Receiver<bool>,
    /// Whether somebody lost patience, and the thread still owes the answer.
    owes: bool,
}

/// There was no answer in time, or there is nobody to give one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooLong;

impl Waiter {
    /// Whether it still waits for what somebody lost patience with.
    pub(crate) fn is_busy(&mut self) -> bool {
        let Some(worker) = self.0.as_mut().filter(|worker| worker.owes) else { return false };
        match worker.answers.try_recv() {
            Ok(_) => worker.owes = false,
            Err(TryRecvError::Empty) => return true,
            // It panicked. The next has another one.
            Err(TryRecvError::Disconnected) => self.0 = None,
        }
        false
    }

    /// What `work` says, if it does in time; else it goes on by itself, and nothing else is begun before it is over.
    pub(crate) fn wait(
        &mut self,
        patience: Duration,
        work: impl FnOnce() -> bool + Send + 'static,
    ) -> Result<bool, TooLong> {
        if self.is_busy() {
            return Err(TooLong);
        }
        if self.0.is_none() {
            self.0 = Worker::new();
        }
        let worker = self.0.as_mut().ok_or(TooLong)?;
        let answer = match worker.asks.send(Box::new(work)) {
            Ok(()) => worker.answers.recv_timeout(patience),
            Err(_) => Err(RecvTimeoutError::Disconnected),
        };
        match answer {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) => worker.owes = true,
            Err(RecvTimeoutError::Disconnected) => self.0 = None,
        }
        Err(TooLong)
    }
}

impl Worker {
    fn new() -> Option<Self> {
        let ((asks, asked), (says, answers)) = (channel::<Work>(), channel());
        let serve = move || {
            for work in asked {
                if says.send(work()).is_err() {
                    break;
                }
            }
        };
        threads::begin("gpuheap wait", serve).ok()?;
        Some(Self { asks, answers, owes: false })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Barrier};
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn it_is_the_same_thread_each_time() {
        let mut waiter = Waiter::default();
        let (said, heard) = channel();
        for answer in [true, false, true] {
            let said = said.clone();
            let work = move || said.send(thread::current().id()).is_ok() && answer;
            assert_eq!(waiter.wait(LONG, work), Ok(answer));
        }
        let first = heard.recv().unwrap();
        assert!(first != thread::current().id() && heard.try_iter().all(|other| other == first));
    }

    #[test]
    fn what_takes_too_long_is_left_to_itself_and_nothing_is_begun_before_it_is_over() {
        let mut waiter = Waiter::default();
        let barrier = Arc::new(Barrier::new(2));
        let work = {
            let barrier = Arc::clone(&barrier);
            move || {
                barrier.wait();
                false
            }
        };
        assert_eq!(waiter.wait(Duration::from_millis(1), work), Err(TooLong));
        assert!(waiter.is_busy());
        assert_eq!(waiter.wait(LONG, || true), Err(TooLong), "and at once");
        barrier.wait();
        while waiter.is_busy() {
            thread::yield_now();
        }
        // What comes now is the answer to this, not the one that nobody waited for.
        assert_eq!(waiter.wait(LONG, || true), Ok(true));
    }

    #[test]
    fn after_a_panic_there_is_another() {
        let mut waiter = Waiter::default();
        assert_eq!(waiter.wait(LONG, || panic!("on purpose")), Err(TooLong));
        assert_eq!(waiter.wait(LONG, || true), Ok(true));
    }
}
