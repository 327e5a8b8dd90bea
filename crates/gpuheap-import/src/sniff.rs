//! Recognises compression and format by the first bytes.

use std::fmt::Write;

use gpuheap_record::{Compression, Format};

use crate::error::{Cause, Lookalike};
use crate::input::Input;

/// How many of the first bytes decide.
pub(crate) const START: u64 = 512;

const GZIP: &[u8] = b"\x1f\x8b";
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// How a file that starts like this is compressed.
pub(crate) fn compression(start: &[u8]) -> Compression {
    if start.starts_with(GZIP) {
        Compression::Gzip
    } else if start.starts_with(ZSTD) || is_skippable_zstd(start) {
        Compression::Zstd
    } else {
        Compression::None
    }
}

fn is_skippable_zstd(start: &[u8]) -> bool {
    matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// What the decompressed content is.
pub(crate) fn format(input: &mut Input<'_>, compression: Compression) -> Result<Format, Box<Cause>> {
    input.fill(usize::try_from(START).unwrap_or_default())?;
    let start = input.window();
    if start.is_empty() {
        return Err(Box::new(Cause::Empty));
    }
    match recognise(start) {
        Ok(format) => {
            if format == Format::TorchJson {
                let mark = if start.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK.len() } else { 0 };
                input.consume(mark);
            }
            Ok(format)
        }
        Err(looks_like) => {
            let compressed = matches!(looks_like, Lookalike::Compressed(..));
            let looks_like =
                if compression != Compression::None && compressed { Lookalike::CompressedTwice } else { looks_like };
            Err(Box::new(Cause::UnknownFormat { looks_like }))
        }
    }
}

fn recognise(start: &[u8]) -> Result<Format, Lookalike> {
    const LEGACY_CHECKPOINT: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
    match start {
        _ if start.starts_with(gpuheap_record::file::MAGIC) => return Ok(Format::Gpuheap),
        [0x80, _, rest @ ..] if rest.starts_with(LEGACY_CHECKPOINT) => return Err(Lookalike::LegacyCheckpoint),
        // Protocols 0 and 1 have no header: a list or a dict comes first.
        [0x80, ..]
        | [b'(', b'l' | b'd', b'p' | b'.' | b'a' | b's' | b'S' | b'V' | b'(' | b'g', ..]
        | [b']', b'q' | b'(' | b'.' | b'r' | b'}' | b']', ..]
        | [b'}', b'q' | b'(' | b'.' | b'r' | b'U' | b'X', ..]
        | [b'(' | b']' | b'}'] => return Ok(Format::TorchPickle),
        _ => {}
    }
    let text = json_text(start);
    match text.first() {
        Some(b'{' | b'[') => return Ok(Format::TorchJson),
        None => return Err(Lookalike::Text),
        Some(_) => {}
    }
    Err(lookalike(start, text))
}

/// The content without a byte order mark and leading blanks.
fn json_text(start: &[u8]) -> &[u8] {
    start.strip_prefix(BYTE_ORDER_MARK).unwrap_or(start).trim_ascii_start()
}

fn lookalike(start: &[u8], text: &[u8]) -> Lookalike {
    const MAGIC: &[(&[u8], Lookalike)] = &[
        (b"PK\x03\x04", Lookalike::Zip),
        (b"PK\x05\x06", Lookalike::Zip),
        (b"\x89PNG", Lookalike::Named("a PNG image")),
        (b"\xff\xd8\xff", Lookalike::Named("a JPEG image")),
        (b"%PDF", Lookalike::Named("a PDF document")),
        (b"\x7fELF", Lookalike::Named("a program or library")),
        (b"SQLite format 3", Lookalike::Named("an SQLite database, perhaps of Nsight Systems")),
        (b"\x93NUMPY", Lookalike::Named("a NumPy array")),
        (b"\xfd7zXZ", Lookalike::Compressed("xz", "xz -d FILE")),
        (b"BZh", Lookalike::Compressed("bzip2", "bzip2 -d FILE")),
        (b"\x04\x22\x4d\x18", Lookalike::Compressed("lz4", "lz4 -d FILE")),
        (b"7z\xbc\xaf\x27\x1c", Lookalike::Compressed("7-Zip", "7z x FILE")),
        (GZIP, Lookalike::Compressed("gzip", "gzip -d FILE")),
        (ZSTD, Lookalike::Compressed("zstd", "zstd -d FILE")),
    ];
    if let Some((_, looks_like)) = MAGIC.iter().find(|(magic, _)| start.starts_with(magic)) {
        return looks_like.clone();
    }
    if start.get(257..262) == Some(b"ustar") {
        return Lookalike::Named("a tar archive");
    }
    if text.first() == Some(&b'<') {
        return Lookalike::Html;
    }
    let is_text = |&byte: &u8| byte >= b' ' || matches!(byte, b'\n' | b'\r' | b'\t');
    if start.iter().all(is_text) && (start.is_ascii() || std::str::from_utf8(start).is_ok()) {
        return Lookalike::Text;
    }
    let mut bytes = String::new();
    for byte in start.iter().take(8) {
        let blank = if bytes.is_empty() { "" } else { " " };
        // Writing to a string does not fail.
        let _ = write!(bytes, "{blank}{byte:02x}");
    }
    Lookalike::Unknown(bytes)
}
