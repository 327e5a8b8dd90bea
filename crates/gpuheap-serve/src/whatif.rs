//! Other settings, tried in the background when somebody first looks at a recording.

use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use axum::body::Bytes;
use gpuheap_explain::{Analysis, WhatIfCurve};
use serde::Serialize;

use crate::loaded::Loaded;

/// How far the search for other settings is, for one device.
#[derive(Debug, Default)]
pub(crate) struct WhatIf {
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
enum State {
    #[default]
    NotAsked,
    Running {
        done: usize,
        of: usize,
    },
    Done(Bytes),
    Failed(String),
}

/// What can be said now.
#[derive(Clone, Debug)]
pub(crate) enum Now {
    /// It runs: so many replays of so many are done.
    Running {
        /// Done.
        done: usize,
        /// In all; 0 where that is not known yet.
        of: usize,
    },
    /// The answer, compressed.
    Done(Bytes),
    /// Why there is none.
    Failed(String),
}

/// A device whose settings are to be tried.
pub(crate) struct Job {
    /// It may be dropped from memory before its turn comes.
    pub(crate) loaded: Weak<Loaded>,
    pub(crate) device: usize,
    pub(crate) whatif: Arc<WhatIf>,
}

#[derive(Serialize)]
struct Answer {
    curves: Vec<WhatIfCurve>,
}

impl WhatIf {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the search unless it was, and says how far it is.
    pub(crate) fn ask(self: &Arc<Self>, loaded: &Arc<Loaded>, device: usize, jobs: &Sender<Job>) -> Now {
        let mut state = self.lock();
        match &*state {
            State::NotAsked => {
                let job = Job { loaded: Arc::downgrade(loaded), device, whatif: Arc::clone(self) };
                if jobs.send(job).is_err() {
                    return Now::Failed("the search for other settings has ended".to_owned());
                }
                *state = State::Running { done: 0, of: 0 };
                Now::Running { done: 0, of: 0 }
            }
            State::Running { done, of } => Now::Running { done: *done, of: *of },
            State::Done(answer) => Now::Done(answer.clone()),
            State::Failed(error) => Now::Failed(error.clone()),
        }
    }
}

/// Does one search after the other: each takes all cores.
pub(crate) fn work(jobs: &Receiver<Job>) {
    step_back();
    for job in jobs {
        let progress = |done, of| {
            let mut state = job.whatif.lock();
            // Several threads tell: the last to be told need not be the furthest.
            let before = if let State::Running { done, .. } = *state { done } else { 0 };
            *state = State::Running { done: before.max(done), of };
        };
        let Some(loaded) = job.loaded.upgrade() else {
            // Whoever still waits asks again.
            *job.whatif.lock() = State::NotAsked;
            continue;
        };
        let analysis = Arc::clone(loaded.analysis(job.device));
        // The recording may be dropped from memory meanwhile; this analysis stays until the search is done.
        drop(loaded);
        let outcome = curves(&analysis, &progress);
        *job.whatif.lock() = match outcome {
            Ok(answer) => State::Done(answer),
            Err(error) => State::Failed(error),
        };
    }
}

/// Lets those who wait for an answer go first. On Linux this is for the thread and those that it starts; elsewhere it
/// would be for the whole process.
fn step_back() {
    #[cfg(target_os = "linux")]
    // Without it, the search is only in the way.
    let _ = rustix::process::nice(10);
}

fn curves(analysis: &Analysis, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Bytes, String> {
    let curves = analysis.whatif_curves(progress).map_err(|error| error.to_string())?;
    gpuheap_report::html::compressed(&Answer { curves }).map(Bytes::from).map_err(|error| error.to_string())
}
