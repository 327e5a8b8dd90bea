//! A process asked over its socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use gpuheap_ledger::control::{self, Done, Reply, Request};
use gpuheap_ledger::{Identity, Process, Reader};

use super::folder::{self, Run};
use super::{Error, bases, environment, processes};

/// The time between two looks at how far it is.
const INTERVAL: Duration = Duration::from_millis(100);

/// A process that can be asked.
#[derive(Debug)]
pub(crate) struct Target {
    process: u32,
    socket: PathBuf,
    ledger: PathBuf,
}

impl Target {
    /// The process of that number, in whichever run it is; of a run of one process, the run's number will do.
    pub(crate) fn find(process: u32) -> Result<Self, Error> {
        let runs = folder::all();
        let of_run = |run: &Run, process: u32| Self {
            process,
            socket: control::socket(&run.path, process),
            ledger: run.path.join("ledger"),
        };
        let counts = |run: &&Run| run.snapshot.living().any(|other| other.identity.process() == process);
        if let Some(run) = runs.iter().find(counts) {
            let target = of_run(run, process);
            return target.ready();
        }
        if let Some(run) = runs.iter().find(|run| run.about.runner().process() == process) {
            let living: Vec<&Process> = run.snapshot.living().collect();
            return match living.as_slice() {
                [] => Err(Error::NoCuda { process }),
                [only] => of_run(run, only.identity.process()).ready(),
                _ => {
                    let named = |process: &&Process| processes::named(process.identity, process.name);
                    Err(Error::Several { process, processes: living.iter().map(named).collect() })
                }
            };
        }
        match processes::user(process) {
            None => Err(Error::NoProcess { process }),
            Some(user) if user != bases::user() => Err(Error::OtherUser { process, user }),
            Some(_) if processes::variable(process, environment::RUN).is_some() => Err(Error::NoCuda { process }),
            Some(_) => Err(Error::NoRun { process }),
        }
    }

    fn ready(self) -> Result<Self, Error> {
        let process = self.process;
        if !self.socket.exists() && processes::variable(process, environment::MOVE).is_some_and(|set| set == "0") {
            return Err(Error::NoMove { process });
        }
        // Of a container's process the number says nothing here.
        if processes::user(process).is_some() && processes::is_stopped(process) {
            return Err(Error::Stopped { process });
        }
        Ok(self)
    }

    /// Its number.
    pub(crate) fn process(&self) -> u32 {
        self.process
    }

    /// Asks, and waits as long as it takes. Meanwhile `moved` is told how many bytes were moved so far.
    pub(crate) fn ask(&self, request: Request, mut moved: impl FnMut(u64)) -> Result<Done, Error> {
        let process = self.process;
        let reach = |source| Error::Reach { process, socket: self.socket.clone(), source };
        let mut stream = UnixStream::connect(&self.socket).map_err(reach)?;
        let before = self.moved();
        control::send(&mut stream, &request).map_err(reach)?;
        let (sender, receiver) = mpsc::channel();
        let receive = move || {
            // If nobody waits any more, it does not matter.
            let _ = sender.send(control::receive(&mut stream));
        };
        thread::Builder::new().spawn(receive).map_err(reach)?;
        let line = loop {
            match receiver.recv_timeout(INTERVAL) {
                Ok(line) => break line,
                Err(RecvTimeoutError::Timeout) => moved(self.moved().saturating_sub(before)),
                Err(RecvTimeoutError::Disconnected) => break Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        let unclear = |cause: Box<dyn std::error::Error + Send + Sync>| Error::Answer { process, cause };
        let line = line.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => unclear("it ended or closed the connection".into()),
            _ => unclear(error.into()),
        })?;
        match line.parse::<Reply>() {
            Ok(Reply::Done(done)) => Ok(done),
            Ok(Reply::Refused(why)) => Err(Error::Refused { process, why }),
            Err(error) => Err(unclear(error.into())),
        }
    }

    /// Bytes that it moved in either direction since it began.
    fn moved(&self) -> u64 {
        let snapshot = Reader::open(&self.ledger).and_then(|reader| reader.snapshot()).ok();
        let own = |process: &&Process| process.identity.process() == self.process;
        let found = snapshot.as_ref().and_then(|snapshot| snapshot.living().find(own));
        found.map_or(0, |process| process.moved_out.saturating_add(process.moved_in))
    }
}

impl folder::About {
    /// The process that began the run.
    pub(crate) fn runner(&self) -> Identity {
        Identity::from_number(self.runner)
    }
}
