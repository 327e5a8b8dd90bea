//! Work that takes a while, without the interpreter's lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
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

/// What comes from the thread that works.
enum Said<T, Q> {
    /// Its end: a result, or a panic.
    Done(thread::Result<Result<T, Failure>>),
    /// A question to Python.
    Asks(Q),
}

/// Python, as the thread that works sees it.
pub(crate) struct Asker<Q, A> {
    questions: Box<dyn Fn(Q) -> bool + Send>,
    answers: Receiver<A>,
}

impl<Q, A> Asker<Q, A> {
    /// The answer to a question; none if nobody waits for the work any more.
    pub(crate) fn ask(&self, question: Q) -> Option<A> {
        (self.questions)(question).then(|| self.answers.recv().ok()).flatten()
    }
}

/// Does the work in a thread while other Python threads go on. A signal whose handler raises, such as Ctrl-C, ends the
/// wait at once; the work then comes to its end unseen, and no file is replaced.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Running) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let mut silent = |_: Python<'_>, (): ()| Ok(());
    converse(py, &mut silent, move |running, _| work(running))
}

/// The same, of work that asks Python now and then. Questions are answered in the thread that waits: there Ctrl-C is
/// heard, and what `answer` raises ends the wait.
pub(crate) fn converse<T: Send + 'static, Q: Send + 'static, A: Send + 'static>(
    py: Python<'_>,
    answer: &mut dyn FnMut(Python<'_>, Q) -> PyResult<A>,
    work: impl FnOnce(&Running, &Asker<Q, A>) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    // A receiver must not be used by two threads at once, and what runs without the lock might be on another.
    let receiver = Mutex::new(receiver);
    let running = Running(Arc::new(AtomicBool::new(true)));
    let answers = start(sender, running.clone(), work)?;
    let stopped = |raised| {
        running.0.store(false, Ordering::Release);
        Err(raised)
    };
    let result = loop {
        match py.detach(|| wait(&receiver)) {
            Ok(Said::Done(result)) => break result,
            Ok(Said::Asks(question)) => match answer(py, question) {
                // The work may have ended in the meantime; that is heard next.
                Ok(answer) => drop(answers.send(answer)),
                Err(raised) => return stopped(raised),
            },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::defect("the work vanished").into_error(py)),
        }
        if let Err(raised) = py.check_signals() {
            return stopped(raised);
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

/// Starts the thread; answers to its questions go into what is returned.
fn start<T: Send + 'static, Q: Send + 'static, A: Send + 'static>(
    sender: SyncSender<Said<T, Q>>,
    running: Running,
    work: impl FnOnce(&Running, &Asker<Q, A>) -> Result<T, Failure> + Send + 'static,
) -> PyResult<Sender<A>> {
    let (answers, heard) = mpsc::channel();
    let asks = sender.clone();
    let asker = Asker { questions: Box::new(move |question| asks.send(Said::Asks(question)).is_ok()), answers: heard };
    let body = move || {
        let result = catch_unwind(AssertUnwindSafe(|| work(&running, &asker)));
        // Nobody may be waiting any more.
        let _ = sender.send(Said::Done(result));
    };
    thread::Builder::new().name("gpuheap".to_owned()).stack_size(STACK).spawn(body)?;
    Ok(answers)
}

fn wait<T>(receiver: &Mutex<Receiver<T>>) -> Result<T, RecvTimeoutError> {
    receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(SIGNALS)
}
