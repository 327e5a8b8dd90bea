//! A line on the terminal while the work takes long.

use std::io::{IsTerminal, Write, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use gpuheap_record::Bytes;

/// Work that is done sooner shows nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// After so many seconds without a word it is said how long it is.
const SILENCE: u64 = 3;
/// The time between two lines where there is no terminal.
const SPARSE: Duration = Duration::from_secs(15);
/// The time between two changes of the line.
const INTERVAL: Duration = Duration::from_millis(100);

/// Shows how far the reading is, on standard error, if that is a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    name: String,
    on: bool,
    shown: bool,
    start: Instant,
    last: Instant,
    /// Whether whole lines are written now and then, in place of one that changes.
    sparse: bool,
    /// What a child said last, and when.
    doing: Option<(String, Instant)>,
}

impl Progress {
    pub(crate) fn new(path: &Path, quiet: bool) -> Self {
        let now = Instant::now();
        let on = !quiet && stderr().is_terminal();
        Self { name: name(path), on, shown: false, start: now, last: now, sparse: false, doing: None }
    }

    /// For work of minutes: where there is no terminal a line now and then says that it goes on. Nothing if `quiet`.
    pub(crate) fn long(path: &Path, quiet: bool) -> Self {
        let sparse = !quiet && !stderr().is_terminal();
        let mut progress = Self::new(path, quiet);
        progress.sparse = sparse;
        progress.on |= sparse;
        progress
    }

    /// Other work starts, on another file.
    pub(crate) fn start(&mut self, path: &Path) {
        self.clear();
        self.name = name(path);
        self.start = Instant::now();
    }

    /// `read` of `total` bytes were read.
    pub(crate) fn read(&mut self, read: u64, total: Option<u64>) {
        if !self.due() {
            return;
        }
        let seconds = self.start.elapsed().as_secs_f64().max(1e-3);
        let speed = read as f64 / 1e6 / seconds;
        let done = match total {
            Some(total) if total > 0 => format!("{:3.0} %", read as f64 / total as f64 * 100.0),
            _ => Bytes::new(read).to_string(),
        };
        self.show(&format!("Reading {}  {done}  {speed:.0} MB/s", self.name));
    }

    /// Everything was read; what follows has no measure.
    pub(crate) fn explaining(&mut self, events: usize) {
        if self.due() || self.shown {
            self.show(&format!("Explaining {events} events"));
        }
    }

    /// `done` of `of` replays are done.
    pub(crate) fn replaying(&mut self, done: usize, of: usize) {
        if self.due() {
            self.show(&format!("Replaying: {done} of {of} settings done"));
        }
    }

    /// A child says what it is doing.
    pub(crate) fn doing(&mut self, what: &str) {
        let line = shorten_line(&gpuheap_report::sanitize(what));
        if self.due() || (self.shown && !self.sparse) {
            self.show(&line);
        }
        self.doing = Some((line, Instant::now()));
    }

    /// What a child said last.
    pub(crate) fn last(&self) -> Option<String> {
        self.doing.as_ref().map(|(line, _)| line.clone())
    }

    /// A child says nothing: what it is waited for, and for how long.
    pub(crate) fn waiting(&mut self) {
        let Some((line, since)) = &self.doing else { return };
        let seconds = since.elapsed().as_secs();
        if seconds >= SILENCE {
            let end = if self.sparse { "" } else { " (Ctrl-C ends it)" };
            let line = format!("{line}, for {seconds} s{end}");
            if self.due() {
                self.show(&line);
            }
        }
    }

    /// `done` of `of` combinations of levers are worked out.
    pub(crate) fn planning(&mut self, done: usize, of: usize) {
        if self.due() {
            self.show(&format!("Planning: {done} of {of} combinations done"));
        }
    }

    /// So many bytes were written.
    pub(crate) fn written(&mut self, bytes: u64) {
        if self.due() {
            self.show(&format!("Writing {}  {}", self.name, Bytes::new(bytes)));
        }
    }

    /// A process moved so many bytes.
    #[cfg(target_os = "linux")]
    pub(crate) fn moved(&mut self, bytes: u64) {
        if self.due() {
            let speed = bytes as f64 / 1e9 / self.start.elapsed().as_secs_f64().max(1e-3);
            self.show(&format!("Moving  {}  {speed:.1} GB/s", Bytes::new(bytes)));
        }
    }

    /// Takes the line away.
    pub(crate) fn clear(&mut self) {
        self.doing = None;
        if std::mem::take(&mut self.shown) {
            self.write("\r\x1b[K");
        }
    }

    fn due(&mut self) -> bool {
        let now = Instant::now();
        let interval = if self.sparse { SPARSE } else { INTERVAL };
        let is_first = !self.shown && !self.sparse;
        let due = self.on && now - self.start >= PATIENCE && (is_first || now - self.last >= interval);
        if due {
            self.last = now;
        }
        due
    }

    fn show(&mut self, line: &str) {
        if self.sparse {
            let seconds = self.start.elapsed().as_secs();
            return self.write(&format!("{line} ({seconds} s so far)\n"));
        }
        self.shown = true;
        self.write(&format!("\r{line}\x1b[K"));
    }

    /// Progress is no reason to fail.
    fn write(&mut self, text: &str) {
        let mut stderr = stderr().lock();
        if stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush()).is_err() {
            self.on = false;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What a file is called on the line.
fn name(path: &Path) -> String {
    if path.as_os_str() == "-" {
        return "standard input".to_owned();
    }
    let name = path.file_name().map_or_else(|| "standard input".into(), |name| name.to_string_lossy());
    shorten(&gpuheap_report::sanitize(&name))
}

/// A line of somebody else's that fits on a terminal.
fn shorten_line(line: &str) -> String {
    const MOST: usize = 72;
    line.chars().take(MOST).collect()
}

/// A name that leaves room for figures on a narrow terminal.
fn shorten(name: &str) -> String {
    const MOST: usize = 32;
    if name.chars().count() <= MOST {
        return name.to_owned();
    }
    name.chars().take(MOST - 1).chain(['…']).collect()
}
