//! Amounts of memory: one type, one way to write them, one way to read them.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;

/// An amount of memory in bytes.
///
/// Arithmetic saturates: no input, however wrong, makes a sum wrap around or panic. Text uses binary units
/// (`1 GiB` = 2³⁰ bytes) with three significant digits; use [`Bytes::get`] where the exact figure is wanted. As JSON it
/// is a plain integer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize)]
#[serde(transparent)]
pub struct Bytes(u64);

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl Bytes {
    /// No memory.
    pub const ZERO: Self = Self(0);

    /// `bytes` bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// What part of `whole` this is, from 0 to 1 (0 if `whole` is nothing).
    #[must_use]
    pub fn share_of(self, whole: Self) -> f64 {
        if whole.0 == 0 { 0.0 } else { self.0 as f64 / whole.0 as f64 }
    }
}

impl Add for Bytes {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl SubAssign for Bytes {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(amounts: I) -> Self {
        amounts.fold(Self::ZERO, Add::add)
    }
}

impl From<u64> for Bytes {
    fn from(bytes: u64) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut unit = 0;
        let mut amount = self.0 as f64;
        // 1023.5 would round up to "1024" of the smaller unit: move on a little before.
        while amount >= 1023.5 && unit + 1 < UNITS.len() {
            amount /= 1024.0;
            unit += 1;
        }
        let digits = if unit == 0 || amount >= 99.95 {
            0
        } else if amount >= 9.995 {
            1
        } else {
            2
        };
        let text = format!("{amount:.digits$} {}", UNITS[unit]);
        formatter.pad(&text)
    }
}

/// Why a text is not an amount of memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseBytesError {
    text: String,
}

impl fmt::Display for ParseBytesError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "`{}` is not an amount of memory: write `24GiB`, `24GB`, `512MiB` or a plain number of bytes",
            self.text
        )
    }
}

impl std::error::Error for ParseBytesError {}

impl FromStr for Bytes {
    type Err = ParseBytesError;

    /// Reads `24GiB` (binary), `24GB` (decimal), `24G` (binary, as the tools of the field mean it), `1.5 GiB` or plain
    /// bytes. Upper and lower case are the same.
    fn from_str(text: &str) -> Result<Self, ParseBytesError> {
        let error = || ParseBytesError { text: text.to_owned() };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let number = number.replace('_', "");
        let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" | "byte" | "bytes" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(error()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Self).ok_or_else(error);
        }
        let amount = number.parse::<f64>().map_err(|_| error())? * factor as f64;
        if !amount.is_finite() || amount < 0.0 || amount >= u64::MAX as f64 {
            return Err(error());
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "range checked above")]
        Ok(Self(amount.round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_three_digits_and_binary_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (86_736_896, "82.7 MiB"),
            (262_144_000, "250 MiB"),
            (1_048_575, "1.00 MiB"),
            (39_151_730_688, "36.5 GiB"),
            (27_130_997_760, "25.3 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Bytes::new(bytes).to_string(), text);
        }
    }

    #[test]
    fn sizes_are_read_in_every_usual_form() {
        for (text, bytes) in [
            ("24GiB", 24 << 30),
            ("24 gib", 24 << 30),
            ("24G", 24 << 30),
            ("24GB", 24_000_000_000),
            ("1.5MiB", 3 << 19),
            ("512", 512),
            ("80_000_000_000", 80_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes::new(bytes)), "{text}");
        }
        for text in ["", "GiB", "-1", "24 QiB", "1e9", "99999999999TiB", "1..5G"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn sums_never_wrap() {
        assert_eq!(Bytes::new(u64::MAX) + Bytes::new(1), Bytes::new(u64::MAX));
        assert_eq!(Bytes::new(1) - Bytes::new(2), Bytes::ZERO);
    }
}
