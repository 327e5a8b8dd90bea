//! From a file to a trace that holds together.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::wire::WireTrace;
use super::{Trace, check};
use crate::error::{Error, TraceError};

/// The most bytes of text: a trace of a million events has about a tenth of it.
const MOST: u64 = 1 << 30;

/// Reads the trace in the file `path`, plain, gzip or zstd.
pub fn read(path: &Path) -> Result<Trace, Error> {
    let failed = |source| Error::Open { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    if path.as_os_str() == "-" {
        io::stdin().lock().take(MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        File::open(path).map_err(failed)?.take(MOST + 1).read_to_end(&mut bytes).map_err(failed)?;
    }
    parse(&bytes).map_err(|cause| Error::Trace { path: path.to_owned(), cause })
}

/// Reads the trace in `bytes`, plain, gzip or zstd.
pub fn parse(bytes: &[u8]) -> Result<Trace, TraceError> {
    let text: Vec<u8>;
    let bytes = match bytes {
        [] => return Err(TraceError::Empty),
        [0x1f, 0x8b, ..] => {
            text = decompressed("gzip", MultiGzDecoder::new(bytes))?;
            &text
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder = StreamingDecoder::new(bytes).map_err(|error| TraceError::Compressed {
                compression: "zstd",
                offset: 0,
                source: io::Error::other(error.to_string()),
            })?;
            text = decompressed("zstd", decoder)?;
            &text
        }
        plain if plain.len() as u64 > MOST => return Err(TraceError::TooLarge { limit: MOST }),
        plain => plain,
    };
    let wire: WireTrace = serde_json::from_slice(bytes).map_err(|error| TraceError::Json {
        line: error.line(),
        column: error.column(),
        message: message(&error),
    })?;
    check::trace(wire)
}

/// What the parser says without the place, which is told apart from it.
fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

fn decompressed(compression: &'static str, decoder: impl Read) -> Result<Vec<u8>, TraceError> {
    let mut text = Vec::new();
    let read = decoder.take(MOST + 1).read_to_end(&mut text);
    read.map_err(|source| TraceError::Compressed { compression, offset: text.len() as u64, source })?;
    if text.len() as u64 > MOST { Err(TraceError::TooLarge { limit: MOST }) } else { Ok(text) }
}
