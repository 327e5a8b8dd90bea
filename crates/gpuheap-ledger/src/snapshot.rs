//! A ledger, read as a file: plain numbers of a moment.
//!
//! Nothing is mapped, so nothing can be written by mistake and no file that shrinks can kill the reader. Figures are
//! read one after another while processes go on: sums of several processes may be of slightly different moments.

use std::fmt;
use std::fs::File;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::denials::{self, Denial, Ring};
use crate::identity::Identity;
use crate::kind::{KINDS, Kind};
use crate::layout::{DEVICES, HOST, LIMITS, MAGIC, ORIGINS, Place, SLOTS, Shared, Slot, State};
use crate::name::Name;
use crate::uuid::Uuid;

/// Why a ledger cannot be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened or read.
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is of another form.
    Form {
        /// The file.
        path: PathBuf,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { path, .. } => write!(formatter, "Failed to read the ledger `{}`", path.display()),
            Self::Form { path } => {
                write!(formatter, "`{}` is no ledger of this version of gpuheap", path.display())
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Read { source, .. } => Some(source),
            Self::Form { .. } => None,
        }
    }
}

/// Reads a ledger, as often as one likes.
#[derive(Debug)]
pub struct Reader {
    file: File,
    path: PathBuf,
}

/// A run's figures at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// The process that began the run, if it says so.
    pub runner: Option<Identity>,
    /// By device, the most bytes that the run may hold; 0 is no budget.
    pub budgets: [u64; DEVICES],
    /// The most bytes of host memory that it may use behind addresses of devices; 0 is none.
    pub spill: u64,
    /// By limit, the most bytes that all processes together ever held: by device, and at [`HOST`] what was spilled.
    pub peaks: [u64; LIMITS],
    /// Bytes that all processes moved from devices to the host, those that are gone included.
    pub moved_out: u64,
    /// Bytes that all processes moved back, likewise.
    pub moved_in: u64,
    /// How many processes ever counted in this ledger.
    pub joined: u64,
    /// The device of each place; nothing for a place that no process of the run has had a device for.
    pub devices: [Option<Uuid>; DEVICES],
    /// The processes that have a slot, also those that are dead and not swept out yet.
    pub processes: Vec<Process>,
    /// How many requests were refused.
    pub denied: u64,
    /// The last ones of these, by their numbers.
    pub denials: Vec<Denial>,
}

/// A process's figures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Which process it is.
    pub identity: Identity,
    /// What the system calls it.
    pub name: Name,
    /// Whether it is alive, as far as one can tell.
    pub alive: bool,
    /// What it does.
    pub state: State,
    /// By limit, bytes that count against it: by device, and at [`HOST`] what is spilled.
    pub limited: [u64; LIMITS],
    /// By limit, the most that this ever was.
    pub peak: [u64; LIMITS],
    /// By device, by kind.
    pub bytes: [[u64; KINDS]; DEVICES + 1],
    /// By limit, bytes that count against it by who asked for them: of a device, and at [`HOST`] of what is spilled.
    pub origins: [[u64; ORIGINS]; LIMITS],
    /// Bytes that it moved from devices to the host.
    pub moved_out: u64,
    /// Bytes that it moved back.
    pub moved_in: u64,
    /// Functions of the shim's list that its program got from the driver unseen.
    pub unseen: u64,
    /// Sums that would have gone below zero.
    pub violations: u64,
}

impl Reader {
    /// Opens the ledger at `path`.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let reader = Self { file, path: path.to_owned() };
        let has_form = length == size_of::<Shared>() as u64 && reader.words(0, 8)?.at(0) == MAGIC;
        if has_form { Ok(reader) } else { Err(Error::Form { path: path.to_owned() }) }
    }

    /// All figures as they are now.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        let header = self.words(0, offset_of!(Shared, slots))?;
        if header.at(offset_of!(Shared, magic)) != MAGIC {
            // Somebody wrote over it.
            return Err(Error::Form { path: self.path.clone() });
        }
        let used = usize::try_from(header.at(offset_of!(Shared, used))).unwrap_or(SLOTS).min(SLOTS);
        let slots = self.words(offset_of!(Shared, slots), used * size_of::<Slot>())?;
        let processes: Vec<Process> = (0..used).filter_map(|slot| process(&slots, slot * size_of::<Slot>())).collect();
        let runner = header.at(offset_of!(Shared, runner));
        let moved =
            |gone: usize, of: fn(&Process) -> u64| processes.iter().map(of).fold(header.at(gone), u64::saturating_add);
        Ok(Snapshot {
            runner: (runner != 0).then(|| Identity::from_number(runner)),
            budgets: header.array(offset_of!(Shared, budgets)),
            spill: header.at(offset_of!(Shared, spill)),
            peaks: header.array(offset_of!(Shared, peaks)),
            moved_out: moved(offset_of!(Shared, moved_out), |process| process.moved_out),
            moved_in: moved(offset_of!(Shared, moved_in), |process| process.moved_in),
            joined: header.at(offset_of!(Shared, joined)),
            devices: std::array::from_fn(|number| device(&header, number)),
            denied: header.at(offset_of!(Shared, denials) + offset_of!(Ring, count)),
            denials: read_denials(&header),
            processes,
        })
    }

    fn words(&self, start: usize, bytes: usize) -> Result<Words, Error> {
        let mut words = vec![0; bytes];
        let read = self.file.read_exact_at(&mut words, start as u64);
        read.map_err(|source| Error::Read { path: self.path.clone(), source })?;
        Ok(Words(words))
    }
}

impl Snapshot {
    /// Bytes that all processes together hold within a limit.
    #[must_use]
    pub fn used(&self, limit: usize) -> u64 {
        self.living().map(|process| process.limited[limit]).fold(0, u64::saturating_add)
    }

    /// The place at which a device has its figures; nothing as long as no process of the run has it.
    #[must_use]
    pub fn place(&self, device: Uuid) -> Option<usize> {
        let place = self.devices.iter().position(|found| *found == Some(device));
        // Devices without a place of their own share the last one.
        place.or_else(|| self.devices.iter().all(Option::is_some).then_some(DEVICES - 1))
    }

    /// The processes that are alive.
    pub fn living(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| process.alive)
    }
}

impl Process {
    /// Bytes of a kind on a device, or on the host at [`HOST`].
    #[must_use]
    pub fn bytes(&self, kind: Kind, device: usize) -> u64 {
        self.bytes[device][kind.number()]
    }

    /// Bytes of host memory behind addresses of devices.
    #[must_use]
    pub fn spilled(&self) -> u64 {
        self.limited[HOST]
    }
}

/// Memory as it was read, of atomics of 64 bits.
struct Words(Vec<u8>);

impl Words {
    /// The word at a place in bytes.
    fn at(&self, place: usize) -> u64 {
        let bytes = self.0.get(place..place + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_ne_bytes)
    }

    fn array<const N: usize>(&self, place: usize) -> [u64; N] {
        std::array::from_fn(|index| self.at(place + 8 * index))
    }

    fn table<const N: usize, const M: usize>(&self, place: usize) -> [[u64; N]; M] {
        std::array::from_fn(|row| self.array(place + 8 * N * row))
    }
}

fn process(words: &Words, slot: usize) -> Option<Process> {
    let at = |place: usize| words.at(slot + place);
    let owner = at(offset_of!(Slot, owner));
    if owner == 0 {
        return None;
    }
    let identity = Identity::from_number(owner);
    Some(Process {
        identity,
        name: Name::from_words(words.array(slot + offset_of!(Slot, name))),
        alive: identity.is_alive(),
        state: State::from_number(at(offset_of!(Slot, state))),
        limited: words.array(slot + offset_of!(Slot, limited)),
        peak: words.array(slot + offset_of!(Slot, peak)),
        bytes: words.table(slot + offset_of!(Slot, bytes)),
        origins: words.table(slot + offset_of!(Slot, origins)),
        moved_out: at(offset_of!(Slot, moved_out)),
        moved_in: at(offset_of!(Slot, moved_in)),
        unseen: at(offset_of!(Slot, unseen)),
        violations: at(offset_of!(Slot, violations)),
    })
}

fn device(header: &Words, number: usize) -> Option<Uuid> {
    let place = offset_of!(Shared, devices) + number * size_of::<Place>();
    let uuid = Uuid::from_words(header.array(place + offset_of!(Place, uuid)));
    // Its first owner may be about to write it.
    (header.at(place + offset_of!(Place, key)) == uuid.key()).then_some(uuid)
}

fn read_denials(header: &Words) -> Vec<Denial> {
    let entries = offset_of!(Shared, denials) + offset_of!(Ring, entries);
    let entry = |place: usize| header.array(entries + 8 * Denial::WORDS * place);
    let mut found: Vec<Denial> = (0..denials::KEPT).filter_map(|place| Denial::read(place, &entry(place))).collect();
    found.sort_unstable_by_key(|denial| denial.number);
    found
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::file::{self, Limits};

    #[test]
    fn a_new_ledger_reads_as_it_was_made() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        file::create(&path, Identity::own(), Limits { budget: 1000, spill: 70 }).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let snapshot = Reader::open(&path).unwrap().snapshot().unwrap();
        assert_eq!((snapshot.runner, snapshot.budgets, snapshot.spill), (Some(Identity::own()), [1000; DEVICES], 70));
        assert_eq!((snapshot.processes, snapshot.denials, snapshot.joined), (vec![], vec![], 0));
        let again = file::create(&path, Identity::own(), Limits::default());
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(Reader::open(&path).is_ok(), "what was there is left alone");
    }

    /// Every figure from where the layout has it, found here by counting words.
    #[test]
    fn every_figure_is_read_from_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        file::create(&path, Identity::own(), Limits::default()).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let put = |word: usize, value: u64| file.write_all_at(&value.to_ne_bytes(), 8 * word as u64).unwrap();
        let slots = size_of::<Shared>() / 8 - SLOTS * size_of::<Slot>() / 8;
        let slot = slots + size_of::<Slot>() / 8;
        put(1, 2);
        let own = Identity::own();
        put(slots, Identity::of(own.process()).unwrap().number());
        put(slot, own.number() ^ 1);
        put(slot + 2, u64::from_ne_bytes(*b"python3."));
        put(slot + 3, u64::from_ne_bytes(*b"12\0\0\0\0\0\0"));
        put(slot + 4 + 3, 11);
        put(slot + 4 + 16, 12);
        put(slot + 4 + 17 + 3, 13);
        put(slot + 4 + 34 + 3 * 11 + 2, 14);
        put(slot + 4 + 34 + 17 * 11 + 3 * 16 + 15, 15);
        put(slot + 4 + 34 + 17 * 11 + 16 * 16 + 14, 16);
        for (index, value) in [2, 21, 22, 23, 24].into_iter().enumerate() {
            put(slot + 4 + 34 + 17 * 11 + 17 * 16 + index, value);
        }
        put(slots + 4 + 34 + 17 * 11 + 17 * 16 + 1, 100);
        put(3 + 16 + 1 + 17, 1000);
        let (uuid, other) = (Uuid::from_bytes([7; 16]), Uuid::from_bytes([8; 16]));
        for (index, value) in [uuid.key(), uuid.words()[0], uuid.words()[1], other.key()].into_iter().enumerate() {
            put(3 + 16 + 1 + 17 + 3 + 3 * 4 + index, value);
        }
        let snapshot = Reader::open(&path).unwrap().snapshot().unwrap();
        assert_eq!((snapshot.devices[4], snapshot.place(uuid)), (Some(uuid), Some(4)));
        assert_eq!((snapshot.devices[5], snapshot.place(other)), (None, None), "not written yet");
        assert_eq!(snapshot.processes.len(), 2);
        assert!(snapshot.processes[0].alive && !snapshot.processes[1].alive);
        let process = &snapshot.processes[1];
        assert_eq!(process.name.to_string(), "python3.12");
        assert_eq!((process.limited[3], process.spilled(), process.peak[3]), (11, 12, 13));
        assert_eq!((process.bytes(Kind::Physical, 3), process.origins[3][15]), (14, 15));
        assert_eq!(process.origins[HOST][14], 16);
        assert_eq!((process.state, process.moved_out, process.moved_in), (State::Asleep, 21, 22));
        assert_eq!((process.unseen, process.violations), (23, 24));
        assert_eq!((snapshot.moved_out, snapshot.moved_in), (1121, 22));
        assert_eq!(snapshot.used(3), 0, "the dead hold nothing");
    }

    #[test]
    fn a_ledger_that_ceases_to_be_one_is_told_and_ends_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        file::create(&path, Identity::own(), Limits::default()).unwrap();
        let reader = Reader::open(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"other", 0).unwrap();
        assert!(matches!(reader.snapshot(), Err(Error::Form { .. })));
        file.write_all_at(&MAGIC.to_ne_bytes(), 0).unwrap();
        assert!(reader.snapshot().is_ok());
        for length in [size_of::<Shared>() as u64 / 2, 7, 0] {
            // One slot is taken, or all.
            for used in [1, SLOTS as u64, u64::MAX] {
                file.write_all_at(&used.to_ne_bytes(), 8).unwrap();
                file.set_len(length).unwrap();
                assert!(length > 8 || matches!(reader.snapshot(), Err(Error::Read { .. })));
                let _ = reader.snapshot();
            }
        }
    }

    #[test]
    fn what_is_no_ledger_is_told_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let error = |path: &Path| Reader::open(path).unwrap_err().to_string();
        assert_eq!(error(&path), format!("Failed to read the ledger `{}`", path.display()));
        for content in [vec![], b"gpuheap3".to_vec(), vec![0; size_of::<Shared>()]] {
            fs::write(&path, content).unwrap();
            assert_eq!(error(&path), format!("`{}` is no ledger of this version of gpuheap", path.display()));
        }
    }
}
