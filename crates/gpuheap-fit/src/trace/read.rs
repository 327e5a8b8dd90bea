//! From a file to a trace that holds together.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;

use super::wire::WireTrace;
use super::{Trace, check};
use crate::error::{Error, TraceError};
use crate::json::message;

/// The most bytes of text. A trace has about 40 bytes an event, and a large model at 32 micro-batches a million events.
const MOST: u64 = 256 << 20;

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

fn decompressed(compression: &'static str, decoder: impl Read) -> Result<Vec<u8>, TraceError> {
    let mut text = Vec::new();
    let read = decoder.take(MOST + 1).read_to_end(&mut text);
    read.map_err(|source| TraceError::Compressed { compression, offset: text.len() as u64, source })?;
    if text.len() as u64 > MOST { Err(TraceError::TooLarge { limit: MOST }) } else { Ok(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told_in_words_of_json() {
        let told = |text: &str| parse(text.as_bytes()).unwrap_err().to_string();
        let start = r#"{"schema":"gpuheap.fit.trace/1","#;
        let end = |storages: &str, events: &str| format!(r#"{start}"storages":{storages},"events":{events}}}"#);
        for (text, says) in [
            ("null".to_owned(), "null where an object was expected"),
            (end("null", "[]"), "null where an object was expected"),
            (end(r#"{"bytes":null,"class":[]}"#, "[]"), "null where a list was expected"),
            (end(r#"{"bytes":["x"],"class":[]}"#, "[]"), "\"x\" where a whole number was expected"),
            (end(r#"{"bytes":[1.5],"class":[]}"#, "[]"), "1.5 where a whole number was expected"),
            (end("[]", "[]"), "a list where an object was expected"),
            (
                end(r#"{"bytes":[],"class":[]}"#, r#"[["free","x"]]"#),
                "event 0: \"x\" where a whole number was expected",
            ),
            (end(r#"{"bytes":[],"class":[]}"#, "[[[]]]"), "event 0: a list where a text was expected"),
            (
                end(r#"{"bytes":[],"class":[]}"#, "[5]"),
                "event 0: 5 where an event, such as [\"alloc\", 3] was expected",
            ),
        ] {
            assert!(told(&text).contains(says), "{text}: {}", told(&text));
        }
    }
}
