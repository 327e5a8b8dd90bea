//! The records of all processes as one sequence.

use std::collections::HashMap;

use gpuheap_ledger::Identity;
use gpuheap_ledger::events::{Events, Record, What};

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// In microseconds of Unix time.
    pub(super) time_us: u64,
    /// Which process, by its place in the list.
    pub(super) process: usize,
    pub(super) action: Action,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Record(Record),
    /// The driver told how much memory a device has.
    Size(Record),
    /// A request was refused for good.
    Refused(Record),
    /// The process has ended: all that it had is gone.
    End,
}

/// All steps by time. What one process wrote keeps its order, except that records about the same charge are put right by
/// [`super::blocks`]: threads may write in another order than they acted.
pub(super) fn steps(processes: &[Events], ended: &[(Identity, u64)]) -> Vec<Step> {
    let mut steps = Vec::with_capacity(processes.iter().map(|process| process.records.len() + 1).sum());
    for (number, process) in processes.iter().enumerate() {
        let mut last = process.began_us;
        let refused = refused_for_good(process);
        for (record, refused) in process.records.iter().zip(refused) {
            last = last.max(process.began_us.saturating_add(record.time_us));
            let action = match record.what {
                What::Take | What::Change | What::GiveBack => Action::Record(*record),
                What::Size => Action::Size(*record),
                _ if refused => Action::Refused(*record),
                _ => continue,
            };
            steps.push(Step { time_us: last, process: number, action });
        }
        // After an exec, the same process writes another file.
        let again = processes[number + 1..].iter().find(|other| other.process == process.process);
        let known = ended.iter().find(|(identity, _)| *identity == process.process);
        let end = again.map(|other| other.began_us).or(known.map(|(_, time)| *time));
        if let Some(time_us) = end {
            steps.push(Step { time_us: time_us.max(last), process: number, action: Action::End });
        }
    }
    steps.sort_by_key(|step| step.time_us);
    steps
}

/// Which records are requests that were refused for good: the process never got as much of that device later on, so what
/// asked did not help itself by giving something back.
fn refused_for_good(process: &Events) -> Vec<bool> {
    let mut largest: HashMap<(usize, bool), u64> = HashMap::new();
    let mut for_good = vec![false; process.records.len()];
    for (number, record) in process.records.iter().enumerate().rev() {
        let largest = largest.entry((record.device, record.kind.counts())).or_default();
        match record.what {
            What::Take => *largest = (*largest).max(record.bytes),
            What::Denied => for_good[number] = *largest < record.bytes,
            _ => {}
        }
    }
    for_good
}
