//! What happened to memory in one process of a run: a file of records, written as it happens.
//!
//! A file is a header of [`HEADER`] bytes and records of [`RECORD`] bytes, all of it words of 64 bits in the machine's
//! order of bytes. The process has the file mapped: what it wrote is there however it ends. A record's number is its
//! place. Its first word is written last and holds a sum over the others, so a record that was not finished is told.
//!
//! | word of the header | what |
//! | --- | --- |
//! | 0 | [`MAGIC`] |
//! | 1 | bytes of a record |
//! | 2 | the most records that the file holds |
//! | 3 | the process, an [`Identity`](crate::Identity) |
//! | 4 | when it began: microseconds of Unix time. Times of records count from there, on a clock that nobody sets |
//! | 5 | records that were begun |
//! | 6 | events that found no room |
//! | 8 to 15 | the program's name: UTF-8, zeroes behind it |
//!
//! | word of a record | what |
//! | --- | --- |
//! | 0 | event (8 bits), kind (8), origin (8), device (8), sum over all of it (32) |
//! | 1 | microseconds since the beginning |
//! | 2 | which charge: the same in all records about the same memory; 0 for records about none |
//! | 3 | address or handle; 0 if there is none |
//! | 4 | bytes |
//!
//! When the file is full, it stays as it is, and later events are counted only: the beginning is exact, and how much is
//! missing is known. The ledger goes on. A file of a process that was killed may lack its last event.

use std::fmt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::identity::Identity;
use crate::kind::Kind;
use crate::layout::HOST;
use crate::origin::Origin;

/// Says what the file is, in which form.
pub const MAGIC: u64 = u64::from_le_bytes(*b"gpuevts1");
/// Bytes of the header.
pub const HEADER: usize = 4096;
/// Words of a record.
pub const WORDS: usize = 5;
/// Bytes of a record.
pub const RECORD: usize = 8 * WORDS;
/// The most records that a file holds, unless a run is told otherwise.
pub const CAPACITY: u64 = 1 << 20;
/// How the names of files end.
pub const EXTENSION: &str = "events";
/// Where the header has which word.
pub mod word {
    /// Records that were begun.
    pub const BEGUN: usize = 5;
    /// Events that found no room.
    pub const MISSED: usize = 6;
    /// Where the program's name begins.
    pub const NAME: usize = 8;
    /// How many words the name has.
    pub const NAME_WORDS: usize = 8;
}
/// More bytes than any device has: a record that says so is damaged.
const ABSURD: u64 = 1 << 46;
/// The latest time of a record, in microseconds: some hundred years.
const LATEST: u64 = 1 << 52;

/// What happened.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum What {
    /// Memory was taken.
    Take = 1,
    /// Taken memory became more or less: `bytes` is what it is now.
    Change = 2,
    /// Taken memory was given back.
    GiveBack = 3,
    /// A request was refused. The address is how many bytes the budget had left.
    Denied = 4,
    /// Memory got host memory behind its addresses from the start.
    Spilled = 5,
    /// Memory was moved from the device to the host, at its addresses.
    MovedOut = 6,
    /// Memory was moved back.
    MovedIn = 7,
    /// The process gave its device memory up. The address is how many microseconds that took.
    Yielded = 8,
    /// The process got it back. The address is how many microseconds that took.
    Woken = 9,
    /// The driver told how much memory the device has: `bytes`, of which the address was free.
    Size = 10,
}

impl What {
    /// All of it, by number.
    pub const ALL: [Self; 10] = [
        Self::Take,
        Self::Change,
        Self::GiveBack,
        Self::Denied,
        Self::Spilled,
        Self::MovedOut,
        Self::MovedIn,
        Self::Yielded,
        Self::Woken,
        Self::Size,
    ];

    fn from_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?.checked_sub(1)?).copied()
    }
}

/// One record. Sums come from [`What::Take`], [`What::Change`] and [`What::GiveBack`] alone: the others say more about
/// what these did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// What happened.
    pub what: What,
    /// What the memory is.
    pub kind: Kind,
    /// Who asked for it.
    pub origin: Origin,
    /// The device, or [`HOST`].
    pub device: usize,
    /// When, in microseconds since the process began to write.
    pub time_us: u64,
    /// Which memory: the same number in all records about it.
    pub charge: u64,
    /// Its address or handle; 0 if it has none.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Record {
    /// The words of this record in place `number`.
    #[must_use]
    pub fn pack(&self, number: u64) -> [u64; WORDS] {
        let first = self.what as u64
            | (self.kind.number() as u64) << 8
            | (self.origin.number() as u64) << 16
            | (self.device as u64 & 0xff) << 24;
        let rest = [self.time_us, self.charge, self.address, self.bytes];
        [first | u64::from(sum(number, first, rest)) << 32, rest[0], rest[1], rest[2], rest[3]]
    }

    /// The record of these words in place `number`; nothing if it is not whole.
    #[must_use]
    pub fn unpack(number: u64, words: [u64; WORDS]) -> Option<Self> {
        let [first, time_us, charge, address, bytes] = words;
        let low = first & u64::from(u32::MAX);
        let whole = first >> 32 == u64::from(sum(number, low, [time_us, charge, address, bytes]));
        let device = usize::try_from(low >> 24).ok().filter(|device| *device <= HOST)?;
        (whole && bytes < ABSURD && time_us < LATEST).then_some(())?;
        Some(Self {
            what: What::from_number(low & 0xff)?,
            kind: Kind::from_number(u32::try_from(low >> 8 & 0xff).ok()?)?,
            origin: Origin::from_number(low >> 16 & 0xff),
            device,
            time_us,
            charge,
            address,
            bytes,
        })
    }
}

/// Tells words that belong together from others; not more.
fn sum(number: u64, first: u64, rest: [u64; WORDS - 1]) -> u32 {
    let mix = |sum: u64, word: u64| ((sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15)).rotate_left(29);
    let sum = rest.into_iter().fold(mix(number, first), mix);
    u32::try_from((sum ^ sum >> 32) & u64::from(u32::MAX)).unwrap_or(0)
}

/// The words of a new file's header.
#[must_use]
pub fn header(process: Identity, began_us: u64, capacity: u64, program: &str) -> [u64; word::NAME + word::NAME_WORDS] {
    let mut header = [0; word::NAME + word::NAME_WORDS];
    header[..5].copy_from_slice(&[MAGIC, RECORD as u64, capacity, process.number(), began_us]);
    let mut end = program.len().min(8 * word::NAME_WORDS);
    while !program.is_char_boundary(end) {
        end -= 1;
    }
    let name = program.as_bytes().get(..end).unwrap_or_default();
    for (word, bytes) in header[word::NAME..].iter_mut().zip(name.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    header
}

/// What one process wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Events {
    /// The process.
    pub process: Identity,
    /// Its program's name.
    pub program: String,
    /// When it began to write, in microseconds of Unix time.
    pub began_us: u64,
    /// The records that are whole, in the order of their places: times of neighbours may be out of order a little.
    pub records: Vec<Record>,
    /// Records that were begun and are not whole: the process was killed in the middle, or the file was damaged.
    pub torn: u64,
    /// Events that found no room.
    pub missed: u64,
}

/// Why a file cannot be read.
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
            Self::Read { path, .. } => write!(formatter, "Failed to read the events `{}`", path.display()),
            Self::Form { path } => {
                write!(formatter, "`{}` holds no events of this version of gpuheap", path.display())
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

/// Reads a file of events, whether its process still writes or has ended.
pub fn read(path: &Path) -> Result<Events, Error> {
    let bytes = fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    parse(&bytes).ok_or_else(|| Error::Form { path: path.to_owned() })
}

/// The files of events in the folder of a run, by name.
pub fn files(run: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(run)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Reads the content of a file; nothing if it is something else.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Events> {
    let at = |word: usize| word_at(bytes, word);
    if bytes.len() < HEADER || at(0) != MAGIC || at(1) != RECORD as u64 {
        return None;
    }
    let (capacity, begun) = (at(2), at(word::BEGUN));
    let name = bytes.get(8 * word::NAME..8 * (word::NAME + word::NAME_WORDS)).unwrap_or_default();
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut events = Events {
        process: Identity::from_number(at(3)),
        program: String::from_utf8_lossy(name).into_owned(),
        began_us: at(4).min(LATEST),
        records: Vec::new(),
        torn: 0,
        missed: at(word::MISSED),
    };
    let (places, _) = bytes.get(HEADER..).unwrap_or_default().as_chunks::<RECORD>();
    for (number, place) in (0..begun.min(capacity)).zip(places) {
        let words: [u64; WORDS] = std::array::from_fn(|word| word_at(place, word));
        match Record::unpack(number, words) {
            Some(record) => events.records.push(record),
            None => events.torn += 1,
        }
    }
    Some(events)
}

fn word_at(bytes: &[u8], word: usize) -> u64 {
    let word = bytes.get(8 * word..8 * word + 8).and_then(|bytes| bytes.try_into().ok());
    word.map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kind::KINDS;

    fn record() -> impl Strategy<Value = Record> {
        let numbers = (0..What::ALL.len(), 0..KINDS, 0..16_usize, 0..=HOST);
        let values = (0..LATEST, any::<u64>(), any::<u64>(), 0..ABSURD);
        (numbers, values).prop_map(|((what, kind, origin, device), (time_us, charge, address, bytes))| Record {
            what: What::ALL[what],
            kind: Kind::ALL[kind],
            origin: Origin::ALL[origin],
            device,
            time_us,
            charge,
            address,
            bytes,
        })
    }

    fn file(records: &[Record], capacity: u64, missed: u64) -> Vec<u8> {
        let mut head = header(
            Identity::own(),
            1_700_000_000_000_000,
            capacity,
            "python3 äöü, a name that is too long for the header of a file",
        )
        .to_vec();
        head[word::BEGUN] = records.len() as u64;
        head[word::MISSED] = missed;
        head.resize(HEADER / 8, 0);
        head.extend((0..).zip(records).flat_map(|(number, record)| record.pack(number)));
        head.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(records in prop::collection::vec(record(), 0..50), missed: u64) {
            let events = parse(&file(&records, 1000, missed)).unwrap();
            prop_assert_eq!(&events.records, &records);
            prop_assert_eq!((events.torn, events.missed, events.process), (0, missed, Identity::own()));
            prop_assert!(events.program.starts_with("python3 äöü, ") && events.program.len() <= 64);
        }

        #[test]
        fn any_bytes_are_read_or_refused(records in prop::collection::vec(record(), 0..20), damage in prop::collection::vec((0..6000_usize, any::<u8>()), 0..40), cut in 0..6000_usize) {
            let mut bytes = file(&records, 1000, 0);
            for (place, value) in damage {
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = value;
                }
            }
            bytes.truncate(cut);
            if let Some(events) = parse(&bytes) {
                prop_assert!(events.records.len() * RECORD <= bytes.len());
            }
        }

        #[test]
        fn a_record_that_is_not_whole_is_told(records in prop::collection::vec(record(), 1..20), which: prop::sample::Index, word in 0..WORDS, flip in 1..u64::MAX) {
            let mut bytes = file(&records, 1000, 0);
            let which = which.index(records.len());
            let place = HEADER + RECORD * which + 8 * word;
            let before = word_at(&bytes, place / 8);
            bytes[place..place + 8].copy_from_slice(&(before ^ flip).to_ne_bytes());
            let events = parse(&bytes).unwrap();
            // The sum has 32 bits: one in four billion is missed.
            prop_assert_eq!((events.records.len(), events.torn), (records.len() - 1, 1));
        }
    }

    #[test]
    fn no_more_is_read_than_the_header_and_the_file_have() {
        let record = Record {
            what: What::Take,
            kind: Kind::Linear,
            origin: Origin::PyTorch,
            device: 0,
            time_us: 5,
            charge: 1,
            address: 4096,
            bytes: 512,
        };
        let bytes = file(&[record; 10], 4, 6);
        let events = parse(&bytes).unwrap();
        assert_eq!((events.records.len(), events.torn, events.missed), (4, 0, 6));
        let cut = parse(&file(&[record; 10], 1000, 0)[..HEADER + 3 * RECORD + 7]).unwrap();
        assert_eq!(cut.records.len(), 3);
        assert!(parse(&bytes[..HEADER - 1]).is_none() && parse(b"gpuheap2").is_none());
    }

    #[test]
    fn files_are_found_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["12.events", "7.events", "7.1.events", "ledger", "12.sock"] {
            fs::write(folder.path().join(name), file(&[], 1, 0)).unwrap();
        }
        let found = files(folder.path()).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["12.events", "7.1.events", "7.events"]);
        assert!(found.iter().all(|path| read(path).is_ok()));
        let missing = read(&folder.path().join("none")).unwrap_err();
        assert!(missing.to_string().starts_with("Failed to read the events `"));
        fs::write(folder.path().join("none"), "something else").unwrap();
        assert!(read(&folder.path().join("none")).unwrap_err().to_string().contains("holds no events"));
    }
}
