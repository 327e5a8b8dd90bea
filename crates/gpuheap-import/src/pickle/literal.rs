//! Numbers and strings as opcodes carry them: binary, and the text forms of protocols 0 and 1.

use super::{Host, Value};

/// The value of an `INT` or `LONG` line: digits, perhaps signed, perhaps with the `L` of Python 2.
pub(super) fn integer(line: &[u8]) -> Option<i128> {
    let text = std::str::from_utf8(line).ok()?.trim();
    let digits = text.strip_suffix('L').unwrap_or(text);
    digits.parse().ok()
}

/// The value of a `FLOAT` line.
pub(super) fn float(line: &[u8]) -> Option<f64> {
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// The index of a `GET` or `PUT` line.
pub(super) fn index(line: &[u8]) -> Option<u32> {
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// The text of a `STRING` line: a quoted Python 2 literal.
pub(super) fn quoted(line: &[u8]) -> Option<Vec<u8>> {
    let line = line.trim_ascii();
    let (&quote @ (b'"' | b'\''), rest) = line.split_first()? else { return None };
    let (&last, body) = rest.split_last()?;
    if last != quote {
        return None;
    }
    let mut text = Vec::with_capacity(body.len());
    let mut rest = body;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'\\' {
            text.push(byte);
            continue;
        }
        let (&escape, after) = rest.split_first()?;
        rest = after;
        match escape {
            b'n' => text.push(b'\n'),
            b't' => text.push(b'\t'),
            b'r' => text.push(b'\r'),
            b'x' => {
                let (digits, after) = rest.split_at_checked(2)?;
                text.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = after;
            }
            b'\\' | b'\'' | b'"' => text.push(escape),
            other => text.extend([b'\\', other]),
        }
    }
    Some(text)
}

/// The text of a `UNICODE` line: Latin-1 with `\uXXXX` and `\UXXXXXXXX` for what Latin-1 lacks.
pub(super) fn raw_unicode_escape(line: &[u8]) -> Vec<u8> {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let digits = match (byte, rest.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => 0,
        };
        let code = rest
            .get(1..=digits)
            .filter(|_| digits > 0)
            .and_then(|digits| u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match code {
            Some(code) => {
                text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                rest = rest.get(digits + 1..).unwrap_or_default();
            }
            None => text.push(char::from(byte)),
        }
    }
    text.into_bytes()
}

/// The bytes before the end of the line, and those after it.
pub(super) fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    let (line, rest) = bytes.split_at(end);
    Some((line.strip_suffix(b"\r").unwrap_or(line), rest.get(1..).unwrap_or_default()))
}

/// A little-endian integer in two's complement. More than 16 bytes are no number of a snapshot.
pub(super) fn binary_integer<H: Host>(digits: &[u8], host: &mut H) -> Value {
    let negative = digits.last().is_some_and(|&byte| byte >= 0x80);
    if digits.len() <= 8 {
        let mut bytes = if negative { [0xff; 8] } else { [0; 8] };
        for (to, from) in bytes.iter_mut().zip(digits) {
            *to = *from;
        }
        let value = i64::from_le_bytes(bytes);
        return Value::int(value).unwrap_or_else(|| host.wide(i128::from(value)));
    }
    if digits.len() > 16 {
        return Value::OPAQUE;
    }
    let mut bytes = if negative { [0xff; 16] } else { [0; 16] };
    for (to, from) in bytes.iter_mut().zip(digits) {
        *to = *from;
    }
    narrow(i128::from_le_bytes(bytes), host)
}

/// A value for `value`: itself if it fits, else a row of the host.
pub(super) fn narrow<H: Host>(value: i128, host: &mut H) -> Value {
    i64::try_from(value).ok().and_then(Value::int).unwrap_or_else(|| host.wide(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_protocol_0() {
        assert_eq!(integer(b"-12"), Some(-12));
        assert_eq!(integer(b"18446744073709551615L"), Some(i128::from(u64::MAX)));
        assert_eq!(integer(b"12x"), None);
        assert_eq!(float(b"0.5"), Some(0.5));
        assert_eq!(index(b"7"), Some(7));
        assert_eq!(index(b"-1"), None);
    }

    #[test]
    fn texts_of_protocol_0() {
        assert_eq!(quoted(br"'it\'s\n\x41\q'"), Some(b"it's\nA\\q".to_vec()));
        assert_eq!(quoted(b"'open"), None);
        assert_eq!(quoted(b"'"), None);
        assert_eq!(raw_unicode_escape(b"a\\u20ac\xe9\\U0001f600\\u00"), "a€é😀\\u00".as_bytes());
        assert_eq!(raw_unicode_escape(b"\\ud800"), "\u{fffd}".as_bytes(), "half of a pair");
    }
}
