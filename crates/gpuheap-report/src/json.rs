//! Reports as one JSON object each.

use std::fmt::Write;

use serde::Serialize;

use crate::document::Document;
use crate::error::Error;
use crate::text::is_unsafe;

/// The report as one JSON object, indented by two spaces, with a line end after it.
///
/// Sizes are exact bytes. Characters that could steer a terminal or hide text are written as `\u` escapes.
pub fn to_json(report: &impl Document) -> Result<String, Error> {
    write(report)
}

pub(crate) fn write(value: &impl Serialize) -> Result<String, Error> {
    let mut json = escape(&serde_json::to_string_pretty(value).map_err(Error::Json)?);
    json.push('\n');
    Ok(json)
}

/// JSON writers leave most control characters beyond ASCII as they are. Outside of strings only line ends occur.
fn escape(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if is_unsafe(character) && character != '\n' {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read_back_as_they_were() {
        let text = "caf\u{e9} \u{1b}[31m \u{9b}2J \u{7f} \u{202e} \u{e0041}";
        let json = escape(&serde_json::to_string(text).unwrap());
        assert!(json.chars().all(|character| !is_unsafe(character)), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }
}
