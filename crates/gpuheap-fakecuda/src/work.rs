//! Streams: each a queue of work and a thread that does it, later and in order.
//!
//! A piece of work knows which others it has to wait for, as pairs of a stream and a number: all blocking streams for
//! one on the context's default stream, that one for one on a blocking stream, another stream's for one behind an event.
//! What a piece waits for was given before it, so there are no circles.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard};
use std::thread;

use gpuheap_cuda::raw::{self, Code};

use crate::entry::Done;
use crate::graph::KernelNode;
use crate::state::{CHANGED, State, lock, wait};

/// What a stream does when it comes to it. Graphs do it again and again.
pub(crate) type Work = Arc<dyn Fn() -> Done + Send + Sync>;

/// How a stream and the context's default stream wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// The default stream itself.
    Legacy,
    /// They do.
    Blocking,
    /// They do not.
    NonBlocking,
}

struct Piece {
    number: u64,
    after: Vec<(usize, u64)>,
    work: Option<Work>,
}

/// A stream.
pub(crate) struct Stream {
    pub(crate) context: usize,
    pub(crate) kind: Kind,
    pub(crate) priority: i32,
    /// The number of the last piece given.
    pub(crate) given: u64,
    /// The number of the last piece done.
    pub(crate) done: u64,
    queue: VecDeque<Piece>,
    working: bool,
    /// Destroyed: what was given is still done.
    pub(crate) closing: bool,
    /// The stream whose capture it takes part in.
    pub(crate) capture: Option<usize>,
    /// What was captured so far, if the capture began here.
    pub(crate) captured: Captured,
}

/// A capture that began in a stream.
#[derive(Default)]
pub(crate) struct Captured {
    pub(crate) work: Vec<Work>,
    /// Which pieces of it are kernels.
    pub(crate) kernels: Vec<(usize, Arc<KernelNode>)>,
    pub(crate) invalid: bool,
    pub(crate) mode: u32,
    pub(crate) thread: Option<thread::ThreadId>,
}

impl Stream {
    fn new(context: usize, kind: Kind, priority: i32) -> Self {
        Self {
            context,
            kind,
            priority,
            given: 0,
            done: 0,
            queue: VecDeque::new(),
            working: false,
            closing: false,
            capture: None,
            captured: Captured::default(),
        }
    }
}

impl State {
    /// A new stream.
    pub(crate) fn add_stream(&mut self, context: usize, kind: Kind, priority: i32) -> usize {
        let handle = self.handle();
        self.streams.insert(handle, Stream::new(context, kind, priority));
        handle
    }

    /// The stream that a program means, `thread` being whether it means the thread's own by 0.
    pub(crate) fn stream(&mut self, handle: raw::Stream, thread: bool) -> Result<usize, Code> {
        let own = handle == raw::Stream::PER_THREAD || (handle.is_null() && thread);
        if own {
            let context = self.current()?;
            let own = thread::current().id();
            if let Some((_, _, stream)) = self.threads.iter().find(|(of, by, _)| (*of, *by) == (context, own)) {
                return Ok(*stream);
            }
            let stream = self.add_stream(context, Kind::Blocking, 0);
            self.threads.push((context, own, stream));
            return Ok(stream);
        }
        if handle.is_null() || handle == raw::Stream::LEGACY {
            let context = self.current()?;
            return Ok(self.context(context)?.legacy);
        }
        let stream = self.streams.get(&handle.0).filter(|stream| !stream.closing).ok_or(Code::INVALID_HANDLE)?;
        self.usable(stream.context)?;
        Ok(handle.0)
    }

    /// Gives a stream work, or nothing to do but to wait for `after`. While it captures, the work is captured.
    pub(crate) fn submit(&mut self, stream: usize, after: Vec<(usize, u64)>, work: Option<Work>) -> Done {
        let context = self.streams[&stream].context;
        if let Some(origin) = self.streams[&stream].capture {
            let origin = self.streams.get_mut(&origin).ok_or(Code::STREAM_CAPTURE_INVALIDATED)?;
            if origin.captured.invalid {
                return Err(Code::STREAM_CAPTURE_INVALIDATED);
            }
            origin.captured.work.extend(work);
            return Ok(());
        }
        let mut after = after;
        let kind = self.streams[&stream].kind;
        for (other, state) in &self.streams {
            let waits = match kind {
                Kind::Legacy => state.kind == Kind::Blocking,
                Kind::Blocking => state.kind == Kind::Legacy,
                Kind::NonBlocking => false,
            };
            if waits && state.context == context {
                if state.capture.is_some() {
                    return Err(Code::STREAM_CAPTURE_IMPLICIT);
                }
                after.push((*other, state.given));
            }
        }
        let state = self.streams.get_mut(&stream).ok_or(Code::INVALID_HANDLE)?;
        state.given += 1;
        state.queue.push_back(Piece { number: state.given, after, work });
        if !state.working {
            state.working = true;
            thread::spawn(move || serve(stream));
        }
        CHANGED.notify_all();
        Ok(())
    }

    /// Whether a stream is past a piece. One that is gone is past all.
    pub(crate) fn is_past(&self, stream: usize, number: u64) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.done >= number)
    }

    /// The last piece of every stream of a context.
    pub(crate) fn last_pieces(&self, context: usize) -> Vec<(usize, u64)> {
        let own = self.streams.iter().filter(|(_, stream)| stream.context == context);
        own.map(|(handle, stream)| (*handle, stream.given)).collect()
    }

    /// Lets a stream go once it is done.
    pub(crate) fn close_stream(&mut self, stream: usize) {
        if let Some(state) = self.streams.get_mut(&stream) {
            state.closing = true;
            state.capture = None;
            if !state.working {
                self.streams.remove(&stream);
            }
        }
        CHANGED.notify_all();
    }
}

/// Waits until the streams are past these pieces.
pub(crate) fn wait_for(mut state: MutexGuard<'static, State>, pieces: &[(usize, u64)]) -> MutexGuard<'static, State> {
    while !pieces.iter().all(|(stream, number)| state.is_past(*stream, *number)) {
        state = wait(state);
    }
    state
}

/// The thread of a stream.
fn serve(handle: usize) {
    let mut state = lock();
    loop {
        let Some(stream) = state.streams.get(&handle) else { return };
        let Some(piece) = stream.queue.front() else {
            if stream.closing {
                state.streams.remove(&handle);
                CHANGED.notify_all();
                return;
            }
            state = wait(state);
            continue;
        };
        if !piece.after.iter().all(|(other, number)| state.is_past(*other, *number)) {
            state = wait(state);
            continue;
        }
        let context = stream.context;
        let delay = state.config.delay;
        // The context may have been destroyed meanwhile, or its work may have failed: then nothing is done any more.
        let runs = state.contexts.get(&context).is_some_and(|context| context.failed.is_none());
        let Some(piece) = state.streams.get_mut(&handle).and_then(|stream| stream.queue.pop_front()) else { return };
        if let Some(work) = piece.work.filter(|_| runs) {
            drop(state);
            if !delay.is_zero() {
                thread::sleep(delay);
            }
            let done = work();
            state = lock();
            if let (Err(code), Some(context)) = (done, state.contexts.get_mut(&context)) {
                context.failed.get_or_insert(code);
            }
        }
        if let Some(stream) = state.streams.get_mut(&handle) {
            stream.done = piece.number;
        }
        CHANGED.notify_all();
    }
}
