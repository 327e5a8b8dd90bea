//! What gpuheap sees of a run while it goes on and at its end, in words on standard error.

use std::io::{Write, stderr};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpuheap_ledger::{DEVICES, Denial, HOST, Identity, Kind, Process, Reader, Snapshot};
use gpuheap_record::Bytes;

use super::passing::Passing;
use super::{folder, processes};

/// The time between two looks at the ledger.
const INTERVAL: Duration = Duration::from_millis(100);
/// Refused requests that are told of one by one; a program that searches for its limit has thousands.
const TOLD: usize = 20;
/// Processes without gpuheap that are told of one by one.
const PASSERS: usize = 5;
/// Holders that a sentence names.
const NAMED: usize = 4;

/// Looks at a run while its program goes on.
#[derive(Debug)]
pub(crate) struct Watch {
    end: Sender<()>,
    thread: JoinHandle<Watcher>,
}

#[derive(Debug)]
struct Watcher {
    reader: Reader,
    quiet: bool,
    /// Processes that were alive when last looked at, and when the others had ended, in microseconds since 1970.
    living: Vec<Identity>,
    ended: Vec<(Identity, u64)>,
    /// The number of the last refused request that was told of.
    seen: u64,
    told: usize,
    passing: Passing,
    /// Whether it was said that the ledger is gone.
    lost: bool,
}

impl Watch {
    /// Starts to look at the run in `folder`, and says nothing if that is to be `quiet`. Nothing if its ledger cannot be
    /// read.
    pub(crate) fn start(folder: &Path, quiet: bool) -> Option<Self> {
        let reader = match Reader::open(&folder.join("ledger")) {
            Ok(reader) => reader,
            Err(error) => {
                if !quiet {
                    say(&format!("{error}: nothing will be told of this run"));
                }
                return None;
            }
        };
        let mut watcher = Watcher::new(reader, Passing::new(&folder::drivers(folder)), quiet);
        let (end, ended) = mpsc::channel();
        let work = move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                watcher.look();
            }
            watcher
        };
        let thread = thread::Builder::new().name("gpuheap-watch".to_owned()).spawn(work).ok()?;
        Some(Self { end, thread })
    }

    /// The program has ended: says what is left to say. `asked` is whether anybody wanted a limit. When processes ended
    /// comes back, in microseconds since 1970.
    pub(crate) fn end(self, asked: bool) -> Vec<(Identity, u64)> {
        drop(self.end);
        let Ok(mut watcher) = self.thread.join() else { return Vec::new() };
        if let Some(snapshot) = watcher.look()
            && let Some(text) = summary(&snapshot, asked, watcher.passing.count())
        {
            watcher.say(&text);
        }
        watcher.ended
    }
}

impl Watcher {
    fn new(reader: Reader, passing: Passing, quiet: bool) -> Self {
        Self { reader, quiet, living: Vec::new(), ended: Vec::new(), seen: 0, told: 0, passing, lost: false }
    }

    fn say(&self, text: &str) {
        if !self.quiet {
            say(text);
        }
    }

    fn note_ended(&mut self, snapshot: &Snapshot) {
        let living: Vec<Identity> = snapshot.living().map(|process| process.identity).collect();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        let gone = self.living.iter().chain(snapshot.processes.iter().map(|process| &process.identity));
        let gone: Vec<Identity> = gone.filter(|identity| !living.contains(identity)).copied().collect();
        for identity in gone {
            if !self.ended.iter().any(|(other, _)| *other == identity) {
                self.ended.push((identity, now));
            }
        }
        self.living = living;
    }

    /// The ledger is gone: processes go on, and nobody knows what they hold together.
    fn note_lost(&mut self, error: &gpuheap_ledger::snapshot::Error) {
        if !self.lost {
            self.lost = true;
            self.say(&format!(
                "{error}: somebody cut it short, or its disk fails. The processes that have it go on, each within the whole \
                 budget for itself; what they hold is not told any more. End the run and start it again"
            ));
        }
    }

    fn look(&mut self) -> Option<Snapshot> {
        let already = self.passing.count();
        for (number, passer) in (already..).zip(self.passing.look()) {
            match number {
                0..PASSERS => self.say(&passer.to_string()),
                PASSERS => self.say("more processes use the driver without gpuheap; they are counted in the summary"),
                _ => {}
            }
        }
        let snapshot = match self.reader.snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => {
                self.note_lost(&error);
                return None;
            }
        };
        self.note_ended(&snapshot);
        for denial in snapshot.denials.iter().filter(|denial| denial.number > self.seen) {
            if self.told < TOLD {
                self.say(&sentence(denial, &snapshot));
            } else if self.told == TOLD {
                self.say("more requests are refused; they are counted in the summary");
            }
            self.told += 1;
        }
        self.seen = snapshot.denials.last().map_or(self.seen, |denial| denial.number.max(self.seen));
        Some(snapshot)
    }
}

/// Nobody who cannot hear it is a reason to fail.
pub(crate) fn say(text: &str) {
    let _ = writeln!(stderr().lock(), "gpuheap: {text}");
}

/// A refused request: what, to whom, for whose memory, within what.
fn sentence(denial: &Denial, snapshot: &Snapshot) -> String {
    let Denial { owner, name, device, kind, bytes, used, limit, .. } = *denial;
    let amount = Bytes::new(bytes);
    let what = match kind {
        Kind::Linear => format!("{amount} on device {device}"),
        Kind::Pools => format!("{amount} for a pool on device {device}"),
        Kind::Physical => format!("{amount} of physical memory on device {device}"),
        Kind::Arrays => format!("an array of {amount} on device {device}"),
        Kind::Graphs => format!("{amount} for graphs on device {device}"),
        Kind::Spilled if device < DEVICES => format!("{amount} of host memory behind device {device}"),
        _ => format!("{amount} of host memory"),
    };
    let place = if kind == Kind::Spilled { HOST } else { device.min(HOST) };
    let within = match (place, limit) {
        (HOST, 0) => "nothing may spill".to_owned(),
        (HOST, _) => format!("{} of {} that may spill is taken", Bytes::new(used), Bytes::new(limit)),
        _ => format!("the run holds {} of its budget of {}{}", Bytes::new(used), Bytes::new(limit), spilled(snapshot)),
    };
    let text = format!("refused {what} to {}: {within}", processes::named(owner, name));
    match holders(snapshot, place) {
        Some(holders) => format!("{text} ({holders})"),
        None => text,
    }
}

/// Where the host had no room either, how much of that is taken.
fn spilled(snapshot: &Snapshot) -> String {
    let (used, limit) = (snapshot.used(HOST), snapshot.spill);
    if limit == 0 {
        return String::new();
    }
    format!(", and {} of {} that may spill is taken", Bytes::new(used), Bytes::new(limit))
}

/// Who holds what counts against a limit, the largest first.
fn holders(snapshot: &Snapshot, limit: usize) -> Option<String> {
    let held = |process: &Process| Bytes::new(process.limited[limit]);
    let mut found: Vec<&Process> = snapshot.living().filter(|process| held(process) > Bytes::ZERO).collect();
    found.sort_by_key(|process| (std::cmp::Reverse(held(process)), process.identity.number()));
    let told = found.iter().take(NAMED);
    let told = told.map(|process| format!("{}: {}", processes::named(process.identity, process.name), held(process)));
    let mut told: Vec<String> = told.collect();
    if found.len() > NAMED {
        let rest = found[NAMED..].iter().map(|process| held(process)).sum::<Bytes>();
        told.push(format!("{} more: {rest}", found.len() - NAMED));
    }
    (!told.is_empty()).then(|| told.join(", "))
}

/// What a run came to. Nothing if none of it used CUDA and nobody wanted a limit.
fn summary(snapshot: &Snapshot, asked: bool, passed: usize) -> Option<String> {
    let passed = match passed {
        0 => None,
        1 => Some("1 process used the driver without gpuheap".to_owned()),
        count => Some(format!("{count} processes used the driver without gpuheap")),
    };
    if snapshot.joined == 0 {
        let none = "no process of this run used CUDA through gpuheap".to_owned();
        return match passed {
            Some(passed) => Some(format!("{none}; {passed}")),
            None => asked.then_some(none),
        };
    }
    let budget = |device: usize| Bytes::new(snapshot.budgets[device]);
    let peak = |device: usize| match (Bytes::new(snapshot.peaks[device]), budget(device)) {
        (peak, Bytes::ZERO) => format!("{peak} on device {device}"),
        (peak, budget) => format!("{peak} of {budget} on device {device}"),
    };
    let peaks: Vec<String> = (0..DEVICES).filter(|device| snapshot.peaks[*device] > 0).map(peak).collect();
    let mut parts = Vec::new();
    parts.push(if peaks.is_empty() { "nothing allocated".to_owned() } else { format!("peak {}", peaks.join(", ")) });
    if snapshot.peaks[HOST] > 0 {
        parts.push(format!("at most {} spilled", Bytes::new(snapshot.peaks[HOST])));
    }
    if snapshot.moved_out > 0 || snapshot.moved_in > 0 {
        let (out, back) = (Bytes::new(snapshot.moved_out), Bytes::new(snapshot.moved_in));
        parts.push(format!("{out} moved to the host, {back} back"));
    }
    match snapshot.denied {
        0 => {}
        1 => parts.push("1 request refused".to_owned()),
        denied => parts.push(format!("{denied} requests refused")),
    }
    // It is not in the figures before.
    parts.extend(passed);
    Some(parts.join("; "))
}

#[cfg(test)]
mod tests {
    use gpuheap_ledger::{KINDS, LIMITS, Name, ORIGINS, State};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn process(number: u64, held: u64) -> Process {
        let mut limited = [0; LIMITS];
        limited[0] = held;
        Process {
            identity: Identity::from_number(number << 32),
            name: Name::of(b"python"),
            alive: true,
            state: State::Running,
            limited,
            peak: [0; LIMITS],
            bytes: [[0; KINDS]; DEVICES + 1],
            origins: [[0; ORIGINS]; LIMITS],
            moved_out: 0,
            moved_in: 0,
            unseen: 0,
            violations: 0,
        }
    }

    fn snapshot(processes: Vec<Process>) -> Snapshot {
        Snapshot {
            devices: [None; DEVICES],
            runner: None,
            budgets: [12 * GIB; DEVICES],
            spill: 0,
            peaks: [0; LIMITS],
            moved_out: 0,
            moved_in: 0,
            joined: processes.len() as u64,
            processes,
            denied: 0,
            denials: vec![],
        }
    }

    #[test]
    fn a_refused_request_is_told_with_who_what_and_why() {
        let mut dead = process(9, 9 * GIB);
        dead.alive = false;
        let snapshot = snapshot(vec![process(7, 3 * GIB), process(8, 8 * GIB), dead, process(10, 0)]);
        let denial = |kind, limit| Denial {
            number: 1,
            owner: Identity::from_number(7 << 32),
            name: Name::of(b"python"),
            device: 0,
            kind,
            bytes: 2 * GIB,
            used: 11 * GIB,
            limit,
            time: 0,
        };
        let told = |kind, limit| sentence(&denial(kind, limit), &snapshot);
        assert_eq!(
            told(Kind::Linear, 12 * GIB),
            "refused 2.00 GiB on device 0 to 7 (python): the run holds 11.0 GiB of its budget of 12.0 GiB \
             (8 (python): 8.00 GiB, 7 (python): 3.00 GiB)"
        );
        let spills = Snapshot { spill: 4 * GIB, ..snapshot.clone() };
        let text = sentence(&denial(Kind::Linear, 12 * GIB), &spills);
        assert!(text.contains("budget of 12.0 GiB, and 0 B of 4.00 GiB that may spill is taken (8"), "{text}");
        assert_eq!(
            told(Kind::Spilled, 12 * GIB),
            "refused 2.00 GiB of host memory behind device 0 to 7 (python): 11.0 GiB of 12.0 GiB that may spill is taken"
        );
        assert!(told(Kind::Spilled, 0).ends_with("nothing may spill"));
    }

    #[test]
    fn the_largest_holders_are_named_and_the_others_counted() {
        let snapshot = snapshot((1..=7).map(|number| process(number, number * GIB)).collect());
        let told = holders(&snapshot, 0).unwrap().replace(" (python)", "");
        assert_eq!(told, "7: 7.00 GiB, 6: 6.00 GiB, 5: 5.00 GiB, 4: 4.00 GiB, 3 more: 6.00 GiB");
    }

    #[test]
    fn a_summary_has_what_there_was() {
        let mut run = snapshot(vec![]);
        assert_eq!(summary(&run, false, 0), None);
        assert_eq!(summary(&run, true, 0).unwrap(), "no process of this run used CUDA through gpuheap");
        assert_eq!(
            summary(&run, false, 1).unwrap(),
            "no process of this run used CUDA through gpuheap; 1 process used the driver without gpuheap"
        );
        run.joined = 2;
        assert_eq!(summary(&run, false, 0).unwrap(), "nothing allocated");
        assert_eq!(summary(&run, false, 2).unwrap(), "nothing allocated; 2 processes used the driver without gpuheap");
        (run.peaks[0], run.peaks[1], run.budgets[1]) = (11 * GIB, GIB, 0);
        assert_eq!(summary(&run, true, 0).unwrap(), "peak 11.0 GiB of 12.0 GiB on device 0, 1.00 GiB on device 1");
        (run.peaks[HOST], run.moved_out, run.moved_in, run.denied) = (GIB, 2 * GIB, 3 * GIB, 1);
        assert!(
            summary(&run, true, 0)
                .unwrap()
                .ends_with("; at most 1.00 GiB spilled; 2.00 GiB moved to the host, 3.00 GiB back; 1 request refused")
        );
    }
}
