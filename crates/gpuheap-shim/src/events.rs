//! What happens to memory, written to a file of the run as it happens: `gpuheap_ledger::events` says in which form.
//!
//! The file is mapped; a record is a place of its own in it, taken by one addition. So threads do not wait for one another,
//! and what was written is there when the process is killed. Room is made in large steps, and asked for before it is
//! touched: where there is none, events are counted and the program goes on.
//!
//! Memory is taken before the driver is asked for it, and the driver may refuse. So a record about it waits in the calling
//! thread: until its address is known, until the call that it belongs to is over, or until the thread takes more memory.
//! If the memory is given back before that, it never was, and nothing is written.

use std::cell::Cell;
use std::ffi::{CString, OsStr, c_int};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use gpuheap_ledger::events::{self, CAPACITY, EXTENSION, HEADER, RECORD, Record, WORDS, What, word};
use gpuheap_ledger::{Identity, Kind, Origin};

use crate::moving;

use crate::{devices, real};

/// Memory that something happens to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) kind: Kind,
    pub(crate) origin: Origin,
    /// The device, or the place of the host.
    pub(crate) place: usize,
    pub(crate) bytes: u64,
}

/// Which memory a record is about; 0 where nothing is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Charged(u64);

thread_local! {
    /// The record that waits.
    static WAITING: Cell<Option<Record>> = const { Cell::new(None) };
}

/// Memory is about to be taken.
pub(crate) fn taken(memory: Memory) -> Charged {
    let Some(writer) = Writer::get() else { return Charged(0) };
    settle();
    let charge = writer.charges.fetch_add(1, Ordering::Relaxed) + 1;
    let record = writer.record(What::Take, memory, charge, 0);
    if memory.bytes > 0 {
        WAITING.set(Some(record));
    } else {
        writer.write(&record);
    }
    Charged(charge)
}

/// The driver gave it, at that address or by that handle.
pub(crate) fn placed(charged: Charged, address: usize) {
    if let Some(record) = waiting(charged) {
        WAITING.set(Some(Record { address: address as u64, ..record }));
        settle();
    }
}

/// It became more or less.
pub(crate) fn changed(charged: Charged, memory: Memory) {
    let Some(writer) = Writer::get().filter(|_| charged.0 != 0) else { return };
    match waiting(charged) {
        Some(record) => WAITING.set(Some(Record { bytes: memory.bytes, ..record })),
        None => writer.write(&writer.record(What::Change, memory, charged.0, 0)),
    }
}

/// It is given back.
pub(crate) fn given_back(charged: Charged, memory: Memory) {
    let Some(writer) = Writer::get().filter(|_| charged.0 != 0) else { return };
    match waiting(charged) {
        Some(_) => WAITING.set(None),
        None => writer.write(&writer.record(What::GiveBack, memory, charged.0, 0)),
    }
}

/// Something else happened to memory, or to all of it.
pub(crate) fn note(what: What, memory: Memory, address: usize) {
    if let Some(writer) = Writer::get() {
        settle();
        writer.write(&writer.record(what, memory, 0, address as u64));
    }
}

/// What waits has happened.
pub(crate) fn settle() {
    if let Some(record) = WAITING.take()
        && let Some(writer) = Writer::get()
    {
        writer.write(&record);
        writer.look_at_size(&record);
    }
}

/// The call is over. Once memory was taken, and not more often than every second, the driver is asked how much the calling
/// thread's device has in all, and has left: so that the account can be closed to that.
pub(crate) fn end_of_call() {
    settle();
    if SIZE_IS_DUE.load(Ordering::Relaxed) && SIZE_IS_DUE.swap(false, Ordering::Relaxed) {
        let Some((_, device)) = real::current() else { return };
        let Ok((free, total)) = real::device_bytes() else { return };
        let place = devices::place(Some(device));
        let memory = Memory { kind: Kind::Physical, origin: Origin::Unknown, place, bytes: total as u64 };
        note(What::Size, memory, free);
    }
}

/// Whether the driver is to be asked at the end of a call.
static SIZE_IS_DUE: AtomicBool = AtomicBool::new(false);
/// How long what it said is taken to hold, in microseconds.
const SIZE_HOLDS: u64 = 1_000_000;

fn waiting(charged: Charged) -> Option<Record> {
    WAITING.get().filter(|record| charged.0 != 0 && record.charge == charged.0)
}

/// The process's file.
struct Writer {
    /// The mapped words of the header and behind it of all records, room or not.
    words: &'static [AtomicU64],
    capacity: u64,
    /// Records that there is room for.
    room: AtomicU64,
    /// Held while room is made.
    growing: Mutex<()>,
    /// Whether there was none.
    full: AtomicBool,
    file: c_int,
    /// Which file that is: a program may close what is not its own and open something else by that number.
    inode: u64,
    began: Instant,
    /// How many charges there ever were.
    charges: AtomicU64,
    /// From when on the driver is to be asked for sizes again, in microseconds since the beginning.
    next_size: AtomicU64,
}

static WRITER: AtomicPtr<Writer> = AtomicPtr::new(std::ptr::null_mut());
static ASKED: AtomicBool = AtomicBool::new(false);

const UNOPENED: u8 = 0;
const OPENING: u8 = 1;
const OPENED: u8 = 2;
static OPEN: AtomicU8 = AtomicU8::new(UNOPENED);

/// In the child of a fork: it has no memory of a device, and if it takes some one day, it writes a file of its own.
unsafe extern "C" fn after_fork() {
    WAITING.set(None);
    WRITER.store(std::ptr::null_mut(), Ordering::Release);
    OPEN.store(UNOPENED, Ordering::Release);
}

impl Writer {
    /// The writer, opened when it is first asked for; nothing where nothing is to be written.
    fn get() -> Option<&'static Self> {
        while OPEN.load(Ordering::Acquire) != OPENED {
            if OPEN.compare_exchange(UNOPENED, OPENING, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                if !ASKED.swap(true, Ordering::Relaxed) {
                    // SAFETY: the function is this library's, which is never unloaded.
                    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
                }
                let writer = Self::from_settings().map_or(std::ptr::null_mut(), |writer| Box::leak(Box::new(writer)));
                WRITER.store(writer, Ordering::Release);
                OPEN.store(OPENED, Ordering::Release);
            } else {
                thread::yield_now();
            }
        }
        let writer = WRITER.load(Ordering::Acquire);
        // SAFETY: it is null or was leaked when it was made.
        unsafe { writer.as_ref() }
    }

    fn from_settings() -> Option<Self> {
        let run = moving::run_folder()?;
        let capacity = std::env::var("GPUHEAP_EVENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(CAPACITY);
        Self::open(&run, capacity)
    }

    /// A new file in the folder of a run. Nothing if that does not work: the program never asked for any of this.
    fn open(run: &Path, capacity: u64) -> Option<Self> {
        // Beyond this, not even addresses would be enough.
        let capacity = capacity.min(1 << 32);
        if capacity == 0 {
            return None;
        }
        let file = create(run)?;
        let bytes = HEADER + RECORD * usize::try_from(capacity).ok()?;
        let Some(words) = make_room(file, HEADER).then(|| map(file, bytes)).flatten() else {
            // SAFETY: opened above, and nobody else knows it.
            unsafe { libc::close(file) };
            return None;
        };
        let began_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
        let header = events::header(Identity::own(), u64::try_from(began_us).unwrap_or(0), capacity, &program());
        for (place, value) in words.iter().zip(header).rev() {
            place.store(value, Ordering::Release);
        }
        Some(Self {
            words,
            capacity,
            room: AtomicU64::new(0),
            growing: Mutex::new(()),
            full: AtomicBool::new(false),
            file,
            inode: inode(file)?,
            began: Instant::now(),
            charges: AtomicU64::new(0),
            next_size: AtomicU64::new(0),
        })
    }

    fn record(&self, what: What, memory: Memory, charge: u64, address: u64) -> Record {
        let Memory { kind, origin, place: device, bytes } = memory;
        let time_us = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        Record { what, kind, origin, device, time_us, charge, address, bytes }
    }

    fn write(&self, record: &Record) {
        let number = self.words[word::BEGUN].fetch_add(1, Ordering::Relaxed);
        if number >= self.capacity || !self.has_room(number) {
            self.words[word::MISSED].fetch_add(1, Ordering::Relaxed);
            return;
        }
        let start = HEADER / 8 + WORDS * usize::try_from(number).unwrap_or(0);
        let packed = record.pack(number);
        for (place, value) in self.words[start..start + WORDS].iter().zip(packed).rev() {
            place.store(value, Ordering::Release);
        }
    }

    fn look_at_size(&self, record: &Record) {
        let due = self.next_size.load(Ordering::Relaxed);
        if record.what == What::Take && record.kind.counts() && record.time_us >= due {
            self.next_size.store(record.time_us + SIZE_HOLDS, Ordering::Relaxed);
            SIZE_IS_DUE.store(true, Ordering::Relaxed);
        }
    }

    fn has_room(&self, number: u64) -> bool {
        /// Enough for a while, little enough to be given at once.
        const STEP: u64 = 16 << 10;
        while number >= self.room.load(Ordering::Acquire) {
            let _one = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
            let room = self.room.load(Ordering::Acquire);
            if number < room {
                break;
            }
            let wanted = (room + STEP).min(self.capacity);
            let bytes = HEADER + RECORD * usize::try_from(wanted).unwrap_or(0);
            if self.full.load(Ordering::Relaxed) || !is_that_file(self.file, self.inode) || !make_room(self.file, bytes)
            {
                self.full.store(true, Ordering::Relaxed);
                return false;
            }
            self.room.store(wanted, Ordering::Release);
        }
        true
    }
}

/// Which file a number stands for.
fn inode(file: c_int) -> Option<u64> {
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `about` has room for it.
    if unsafe { libc::fstat(file, about.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: filled by the call above.
    Some(unsafe { about.assume_init() }.st_ino)
}

fn is_that_file(file: c_int, wanted: u64) -> bool {
    inode(file) == Some(wanted)
}

/// Makes a file that was not there.
fn create(run: &Path) -> Option<c_int> {
    let process = std::process::id();
    // Others of that name are what this process ran before an exec, another copy of this library, or an earlier process.
    for number in 0..1000 {
        let name =
            if number == 0 { format!("{process}.{EXTENSION}") } else { format!("{process}.{number}.{EXTENSION}") };
        let path = CString::new(run.join(name).as_os_str().as_bytes()).ok()?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        // SAFETY: the name ends in a zero byte.
        let file = unsafe { libc::open(path.as_ptr(), flags, 0o600) };
        if file >= 0 {
            return Some(file);
        }
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::AlreadyExists {
            return None;
        }
    }
    None
}

/// Makes the file so long, and sure that all of it can be touched.
fn make_room(file: c_int, bytes: usize) -> bool {
    let Ok(bytes) = libc::off_t::try_from(bytes) else { return false };
    loop {
        // SAFETY: takes numbers only.
        let failed = unsafe { libc::posix_fallocate(file, 0, bytes) };
        if failed != libc::EINTR {
            return failed == 0;
        }
    }
}

fn map(file: c_int, bytes: usize) -> Option<&'static [AtomicU64]> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, wherever there is room. What lies beyond the file is not touched before the file is longer.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file, 0) };
    if start == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: mapped for good, that long, aligned to a page, and all of it atomics, for which any bytes are values.
    Some(unsafe { std::slice::from_raw_parts(start.cast::<AtomicU64>(), bytes / size_of::<AtomicU64>()) })
}

/// What the program is called: its file and, as interpreters have it, that of its script.
fn program() -> String {
    let mut names = Vec::new();
    for argument in std::env::args_os().take(2) {
        let is_option = argument.as_bytes().starts_with(b"-");
        if is_option || (!names.is_empty() && !Path::new(&argument).exists()) {
            break;
        }
        names.push(Path::new(&argument).file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned());
    }
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const MEMORY: Memory = Memory { kind: Kind::Linear, origin: Origin::PyTorch, place: 2, bytes: 4096 };

    fn file_of(run: &Path) -> events::Events {
        let files = events::files(run).unwrap();
        events::read(files.last().unwrap()).unwrap()
    }

    #[test]
    fn what_threads_write_is_read_and_nothing_is_lost() {
        let run = tempfile::tempdir().unwrap();
        let writer = Writer::open(run.path(), 1 << 20).unwrap();
        thread::scope(|scope| {
            for number in 0..8 {
                let writer = &writer;
                scope.spawn(move || {
                    for step in 0..5000 {
                        writer.write(&writer.record(What::Take, MEMORY, number * 5000 + step, 7));
                    }
                });
            }
        });
        let events = file_of(run.path());
        assert_eq!((events.records.len(), events.torn, events.missed), (40_000, 0, 0));
        let mut charges: Vec<u64> = events.records.iter().map(|record| record.charge).collect();
        charges.sort_unstable();
        assert!((0..40_000).eq(charges));
        assert!(events.records.iter().all(|record| record.kind == Kind::Linear && record.device == 2));
        assert!(events.process == Identity::own() && !events.program.is_empty());
    }

    #[test]
    fn a_full_file_stays_and_what_is_missing_is_counted() {
        let run = tempfile::tempdir().unwrap();
        let writer = Writer::open(run.path(), 10).unwrap();
        for step in 0..25 {
            writer.write(&writer.record(What::Take, MEMORY, step, 0));
        }
        let events = file_of(run.path());
        assert_eq!((events.records.len(), events.torn, events.missed), (10, 0, 15));
        assert_eq!(events.records.last().unwrap().charge, 9);
    }

    #[test]
    fn each_writer_has_a_file_of_its_own_and_none_is_no_error() {
        let run = tempfile::tempdir().unwrap();
        let both = (Writer::open(run.path(), 10), Writer::open(run.path(), 10));
        assert!(both.0.is_some() && both.1.is_some());
        assert_eq!(events::files(run.path()).unwrap().len(), 2);
        assert!(Writer::open(&run.path().join("nowhere"), 10).is_none());
        assert!(Writer::open(run.path(), 0).is_none());
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 2);
    }
}
