//! Where the bytes come from: counting, progress and decompression.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use gpuheap_record::Compression;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::Progress;
use crate::error::Cause;
use crate::input::Input;
use crate::sniff;

/// How many bytes pass between two calls of the progress function.
const STRIDE: u64 = 1 << 20;

/// The largest window that a zstd frame may ask for: what `zstd --long` and `--ultra -22` use.
const ZSTD_WINDOW: u64 = 128 << 20;
/// The window that any file may ask for: what all levels without `--ultra` keep to.
const ZSTD_SMALL_WINDOW: u64 = 8 << 20;
/// No snapshot is compressed better than this, so a larger window would be of no use to a file.
const ZSTD_RATIO: u64 = 256;

/// A file, decompressed.
pub(crate) struct Source<'a> {
    pub(crate) input: Input<'a>,
    pub(crate) compression: Compression,
    /// Bytes taken from the file so far.
    pub(crate) count: Rc<Cell<u64>>,
}

impl<'a> Source<'a> {
    pub(crate) fn open(
        reader: impl Read + 'a,
        total: Option<u64>,
        progress: Option<&'a mut dyn FnMut(Progress)>,
    ) -> Result<Self, Box<Cause>> {
        let count = Rc::new(Cell::new(0));
        let mut counted = Counted { reader, count: Rc::clone(&count), told: 0, total, progress };
        let mut start = Vec::new();
        let failed = |source| Box::new(Cause::Input { offset: 0, source });
        counted.by_ref().take(sniff::START).read_to_end(&mut start).map_err(failed)?;
        let compression = sniff::compression(&start);
        let whole = Cursor::new(start).chain(counted);
        let reader: Box<dyn Read + 'a> = match compression {
            Compression::None => Box::new(whole),
            Compression::Gzip => Box::new(MultiGzDecoder::new(BufReader::with_capacity(64 << 10, whole))),
            Compression::Zstd => Box::new(Zstd::new(BufReader::with_capacity(64 << 10, whole), total)),
        };
        Ok(Self { input: Input::new(reader), compression, count })
    }
}

/// Says that it was decompression that failed, if it was.
pub(crate) fn explain(cause: Cause, compression: Compression) -> Cause {
    match cause {
        // What the system reports has a code; what the decompressors report has none.
        Cause::Input { offset, source } if compression != Compression::None && source.raw_os_error().is_none() => {
            Cause::Compressed { compression, offset, source }
        }
        other => other,
    }
}

/// Counts what passes and reports it.
struct Counted<'a, R> {
    reader: R,
    count: Rc<Cell<u64>>,
    told: u64,
    total: Option<u64>,
    progress: Option<&'a mut dyn FnMut(Progress)>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let got = self.reader.read(target)?;
        let read = self.count.get() + got as u64;
        self.count.set(read);
        if let Some(progress) = &mut self.progress
            && (read - self.told >= STRIDE || (got == 0 && read > self.told))
        {
            progress(Progress { read, total: self.total });
            self.told = read;
        }
        Ok(got)
    }
}

/// Decompresses a sequence of zstd frames; skippable ones are skipped.
struct Zstd<R> {
    reader: R,
    decoder: FrameDecoder,
    within: bool,
}

impl<R: BufRead> Zstd<R> {
    /// Reads from `reader`, which yields `total` bytes, if known.
    fn new(reader: R, total: Option<u64>) -> Self {
        let window = total.map_or(ZSTD_WINDOW, |total| total.saturating_mul(ZSTD_RATIO));
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(window.clamp(ZSTD_SMALL_WINDOW, ZSTD_WINDOW));
        Self { reader, decoder, within: false }
    }

    /// Goes to the next frame; says whether there is one.
    fn next_frame(&mut self) -> io::Result<bool> {
        loop {
            if self.reader.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.reset(&mut self.reader) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let skipped = io::copy(&mut self.reader.by_ref().take(u64::from(length)), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(zstd_error(error)),
            }
        }
    }

    fn check(&self) -> io::Result<()> {
        let (told, found) = (self.decoder.get_checksum_from_data(), self.decoder.get_calculated_checksum());
        match told.zip(found) {
            Some((told, found)) if told != found => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum of the zstd frame does not match"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.within {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.within = true;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.reader, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(zstd_error)?;
            }
            let got = self.decoder.read(target)?;
            if got > 0 || target.is_empty() {
                return Ok(got);
            }
            self.check()?;
            self.within = false;
        }
    }
}

/// The error of the reader below, if that is what stopped the decoder.
fn zstd_error(error: FrameDecoderError) -> io::Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(current) = source {
        if let Some(below) = current.downcast_ref::<io::Error>() {
            return match below.raw_os_error() {
                Some(code) => io::Error::from_raw_os_error(code),
                None if below.kind() == io::ErrorKind::UnexpectedEof => {
                    io::Error::new(io::ErrorKind::UnexpectedEof, "the last zstd frame is incomplete")
                }
                None => io::Error::new(below.kind(), error),
            };
        }
        source = current.source();
    }
    io::Error::other(error)
}
