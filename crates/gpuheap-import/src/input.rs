//! A sliding window over the decompressed stream.

use std::io::{self, Read};

use crate::error::Cause;

/// Size of the window. Also the length from which a text is not kept: no name or path is that long.
pub(crate) const WINDOW: usize = 128 << 10;

/// A reader that shows its next bytes as one slice.
pub(crate) struct Input<'a> {
    reader: Box<dyn Read + 'a>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Offset in the stream of the first byte of `buffer`.
    base: u64,
    ended: bool,
}

impl<'a> Input<'a> {
    pub(crate) fn new(reader: Box<dyn Read + 'a>) -> Self {
        Self { reader, buffer: vec![0; WINDOW].into_boxed_slice(), start: 0, end: 0, base: 0, ended: false }
    }

    /// The bytes that are there, from the current position on.
    pub(crate) fn window(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// The current position in the decompressed stream.
    pub(crate) fn offset(&self) -> u64 {
        self.base + self.start as u64
    }

    /// Moves on by `count` bytes of the window.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.end);
    }

    /// Reads until the window holds `needed` bytes (at most [`WINDOW`]) or the stream has ended; says whether it does.
    pub(crate) fn fill(&mut self, needed: usize) -> Result<bool, Box<Cause>> {
        let needed = needed.min(WINDOW);
        if self.window().len() < needed && self.start + needed > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.base += self.start as u64;
            self.end -= self.start;
            self.start = 0;
        }
        while self.window().len() < needed && !self.ended {
            let free = self.buffer.get_mut(self.end..).unwrap_or_default();
            match self.reader.read(free) {
                Ok(0) => self.ended = true,
                Ok(count) => self.end = (self.end + count).min(self.buffer.len()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(Box::new(Cause::Input { offset: self.base + self.end as u64, source }));
                }
            }
        }
        Ok(self.window().len() >= needed)
    }

    /// Moves on by `count` bytes, reading as many as needed; says how many were missing.
    pub(crate) fn skip(&mut self, count: u64) -> Result<u64, Box<Cause>> {
        let mut left = count;
        while left > 0 {
            if self.window().is_empty() && !self.fill(1)? {
                break;
            }
            let step = usize::try_from(left).unwrap_or(usize::MAX).min(self.window().len());
            self.consume(step);
            left -= step as u64;
        }
        Ok(left)
    }
}

impl Read for Input<'_> {
    #[inline]
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        // One byte at a time is what a JSON parser asks for.
        if let ([to], true, Some(&from)) = (&mut *target, self.start < self.end, self.buffer.get(self.start)) {
            *to = from;
            self.start += 1;
            return Ok(1);
        }
        self.read_more(target)
    }
}

impl Input<'_> {
    fn read_more(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if self.start == self.end
            && let Err(cause) = self.fill(1)
        {
            return Err(match *cause {
                Cause::Input { source, .. } => source,
                other => io::Error::other(other),
            });
        }
        let count = self.window().len().min(target.len());
        if let (Some(to), Some(from)) = (target.get_mut(..count), self.window().get(..count)) {
            to.copy_from_slice(from);
        }
        self.consume(count);
        Ok(count)
    }
}
