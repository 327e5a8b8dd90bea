//! Numbers, columns and texts in a payload.

/// A payload that is being written.
#[derive(Default)]
pub(super) struct Sink {
    pub(super) bytes: Vec<u8>,
}

impl Sink {
    pub(super) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.bytes.push(value.to_le_bytes()[0]);
    }

    pub(super) fn signed(&mut self, value: i64) {
        self.number((value << 1 ^ value >> 63).cast_unsigned());
    }

    pub(super) fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    pub(super) fn column(&mut self, values: impl Iterator<Item = u64>) {
        for value in values {
            self.number(value);
        }
    }

    /// A column of differences.
    pub(super) fn deltas(&mut self, values: impl Iterator<Item = u64>) {
        let mut before = 0_u64;
        for value in values {
            self.signed(value.wrapping_sub(before).cast_signed());
            before = value;
        }
    }
}

/// What is wrong with a payload.
pub(super) type Problem = &'static str;

/// A payload that is being read.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(super) fn number(&mut self) -> Result<u64, Problem> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.bytes.split_first().ok_or("it ends too early")?;
            self.bytes = rest;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            value |= part << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number is too long")
    }

    pub(super) fn signed(&mut self) -> Result<i64, Problem> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A number that is below `limit`: a row of a table.
    pub(super) fn below(&mut self, limit: usize) -> Result<u32, Problem> {
        let value = self.number()?;
        u32::try_from(value).ok().filter(|&value| (value as usize) < limit).ok_or("it names a row that is not there")
    }

    pub(super) fn small(&mut self) -> Result<u32, Problem> {
        u32::try_from(self.number()?).map_err(|_| "a number is too large")
    }

    /// How many rows follow, of at least `width` bytes each: never more than there can be.
    pub(super) fn count(&mut self, width: usize) -> Result<usize, Problem> {
        let count = usize::try_from(self.number()?).unwrap_or(usize::MAX);
        if count.saturating_mul(width) > self.bytes.len() { Err("it has fewer rows than it says") } else { Ok(count) }
    }

    pub(super) fn raw(&mut self, count: usize) -> Result<&'a [u8], Problem> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or("it ends too early")?;
        self.bytes = rest;
        Ok(taken)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Problem> {
        let length = self.count(1)?;
        std::str::from_utf8(self.raw(length)?).map_err(|_| "a text is not UTF-8")
    }

    pub(super) fn column<T>(
        &mut self,
        count: usize,
        mut value: impl FnMut(&mut Self) -> Result<T, Problem>,
    ) -> Result<Vec<T>, Problem> {
        (0..count).map(|_| value(self)).collect()
    }

    /// A column of differences.
    pub(super) fn deltas(&mut self, count: usize) -> Result<Vec<u64>, Problem> {
        let mut value = 0_u64;
        self.column(count, |cursor| {
            value = value.wrapping_add(cursor.signed()?.cast_unsigned());
            Ok(value)
        })
    }

    pub(super) fn end(self) -> Result<(), Problem> {
        if self.bytes.is_empty() { Ok(()) } else { Err("it is longer than it says") }
    }
}
