//! Work that takes a while, without the interpreter's lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::failure::Failure;

/// How often signals are looked for: Ctrl-C is answered within this time.
const SIGNALS: Duration = Duration::from_millis(50);
/// What a program's main thread usually has.
const STACK: usize = 8 << 20;

/// Whether anybody waits for the work.
#[derive(Clone, Debug)]
pub(crate) struct Running(Arc<AtomicBool>);

impl Running {
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Does the work in a thread while other Python threads go on. A signal whose handler raises, such as Ctrl-C, ends the
/// wait at once; the work then comes to its end unseen, and no file is replaced.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Running) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // A receiver must not be used by two threads at once, and what runs without the lock might be on another.
    let receiver = Mutex::new(receiver);
    let running = Running(Arc::new(AtomicBool::new(true)));
    let seen = running.clone();
    let body = move || {
        let result = catch_unwind(AssertUnwindSafe(|| work(&seen)));
        // Nobody may be waiting any more.
        let _ = sender.send(result);
    };
    thread::Builder::new().name("gpuheap".to_owned()).stack_size(STACK).spawn(body)?;
    let result = loop {
        match py.detach(|| wait(&receiver)) {
            Ok(result) => break result,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::defect("the work vanished").into_error(py)),
        }
        if let Err(raised) = py.check_signals() {
            running.0.store(false, Ordering::Release);
            return Err(raised);
        }
    };
    match result {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(failure)) => Err(failure.into_error(py)),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Failure::defect(text.as_deref().unwrap_or("a panic without a message")).into_error(py))
        }
    }
}

fn wait<T>(receiver: &Mutex<Receiver<T>>) -> Result<T, RecvTimeoutError> {
    receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNALS)
}
