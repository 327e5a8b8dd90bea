//! Where text goes, and what the place can show.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use anstream::stream::RawStream;
use gpuheap_report::{Document, Style};

use crate::cli::{Color, Form};
use crate::errors::Error;
use crate::progress::Progress;
use crate::replace::replace;

/// Columns where no terminal says how many it has.
const WIDTH: usize = 80;
/// Columns beyond which lines are harder to read, not easier.
const MAX_WIDTH: usize = 120;
/// Bytes that are written at once where a lot is written.
const BUFFER: usize = 1 << 18;

/// Shows a report in the form that was asked for, where it was asked for.
pub(crate) fn show(document: &impl Document, form: &Form, details: bool, color: Color) -> Result<(), Error> {
    let text = if form.json {
        gpuheap_report::to_json(document).map_err(Error::Report)?
    } else if form.md {
        gpuheap_report::to_markdown(document)
    } else {
        gpuheap_report::render(document, &style(form, details, color))
    };
    write(form.output.as_deref(), text.as_bytes())
}

/// Writes to the file, or to standard output if there is none.
pub(crate) fn write(file: Option<&Path>, bytes: &[u8]) -> Result<(), Error> {
    match file {
        Some(path) => write_file(path, bytes),
        None => print(bytes),
    }
}

fn style(form: &Form, details: bool, color: Color) -> Style {
    let to_file = form.output.is_some();
    Style {
        width: form.width.map_or_else(|| width(to_file), usize::from),
        color: match color {
            Color::Auto if to_file => false,
            choice => colored(&io::stdout(), choice),
        },
        unicode: unicode(),
        details,
    }
}

/// Whether a program reads the output: it is not to be disturbed by lines that come and go.
pub(crate) fn is_quiet(form: &Form) -> bool {
    form.json && form.output.is_none() && !io::stdout().is_terminal()
}

/// Writes to standard output. A reader that went away, as `head` does, has what it wanted.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Error> {
    let mut stdout = anstream::AutoStream::new(io::stdout().lock(), anstream::ColorChoice::Always);
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Error::Print(error)),
        _ => Ok(()),
    }
}

/// Writes a file as a whole or not at all: beside its place first, then renamed.
fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace(path, |file| file.write_all(bytes)).map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Writes an export to the file, or to standard output if there is none, as it comes.
pub(crate) fn stream(
    file: Option<&Path>,
    progress: &mut Progress,
    write: impl FnOnce(&mut (dyn Write + Send)) -> Result<(), gpuheap_export::Error>,
) -> Result<(), Error> {
    let buffered = |out: &mut (dyn Write + Send)| {
        let mut out = BufWriter::with_capacity(BUFFER, out);
        write(&mut out)?;
        out.flush().map_err(gpuheap_export::Error::Write)
    };
    let written = match file {
        Some(path) => {
            progress.start(path);
            let written = replace(path, |file| buffered(&mut Counted { file, written: 0, progress }));
            progress.clear();
            written
        }
        None => buffered(&mut io::stdout()),
    };
    match (written, file) {
        (Err(gpuheap_export::Error::Write(source)), Some(path)) => Err(Error::Write { path: path.to_owned(), source }),
        (Err(gpuheap_export::Error::Write(error)), None) => {
            if error.kind() == io::ErrorKind::BrokenPipe {
                Ok(())
            } else {
                Err(Error::Print(error))
            }
        }
        (written, _) => written.map_err(Error::Export),
    }
}

/// A file that says how much was written to it.
struct Counted<'a> {
    file: &'a mut File,
    written: u64,
    progress: &'a mut Progress,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.written += count as u64;
        self.progress.written(self.written);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Whether `stream` is to get colours.
pub(crate) fn colored(stream: &impl RawStream, color: Color) -> bool {
    match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => anstream::AutoStream::choice(stream) != anstream::ColorChoice::Never,
    }
}

/// The columns to lay text out for.
fn width(to_file: bool) -> usize {
    let terminal = if to_file { None } else { terminal_size::terminal_size_of(io::stdout()) };
    terminal.map_or(WIDTH, |(terminal_size::Width(columns), _)| usize::from(columns).min(MAX_WIDTH))
}

/// Whether text may have characters beyond ASCII: unless the locale or the terminal is known not to show them.
pub(crate) fn unicode() -> bool {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    if cfg!(windows) {
        return true;
    }
    if set("TERM").is_some_and(|term| term == "linux" || term == "dumb") {
        return false;
    }
    // Containers often name no locale at all and are shown by a terminal that knows UTF-8.
    set("LC_ALL").or_else(|| set("LC_CTYPE")).or_else(|| set("LANG")).is_none_or(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}
