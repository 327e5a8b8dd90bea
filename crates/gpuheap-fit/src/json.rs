//! What is wrong with a text that should be JSON, in words of JSON: not in those of the parser, which names our types.

use std::borrow::Cow;
use std::fmt;

/// What is wrong with a text that should be JSON of some form, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JsonError {
    /// The line, from 1; 0 where it is about all of it.
    line: usize,
    column: usize,
    message: String,
}

impl JsonError {
    /// Something that is wrong with what was read, and not with its form.
    pub(crate) fn said(message: String) -> Self {
        Self { line: 0, column: 0, message }
    }
}

impl From<serde_json::Error> for JsonError {
    fn from(error: serde_json::Error) -> Self {
        Self { line: error.line(), column: error.column(), message: message(&error) }
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, form: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(form, "line {}, column {}: ", self.line, self.column)?;
        }
        form.write_str(&self.message)
    }
}

impl std::error::Error for JsonError {}

/// The most characters of it that are told: what stands in a file can be as long as the file.
const MOST: usize = 300;

/// What the parser says without the place, which is told apart from it, and without the names of our types.
pub(crate) fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let (text, place) = text.rsplit_once(" at line ").unwrap_or((&text, ""));
    if place == "1 column 0" && text.starts_with("EOF") {
        return "it is empty".to_owned();
    }
    shortened(words(text))
}

fn shortened(text: String) -> String {
    if text.chars().count() <= MOST {
        return text;
    }
    let start: String = text.chars().take(MOST * 2 / 3).collect();
    let mut end: Vec<char> = text.chars().rev().take(MOST / 4).collect();
    end.reverse();
    format!("{start} … {}", end.into_iter().collect::<String>())
}

fn words(text: &str) -> String {
    if let Some((number, rest)) = text.strip_prefix("event ").and_then(|rest| rest.split_once(": ")) {
        return format!("event {number}: {}", words(rest));
    }
    if let Some(within) = text.strip_prefix("EOF while parsing ") {
        return match within {
            "a value" => "it ends where a value was expected".to_owned(),
            "a string" => "it ends within a text".to_owned(),
            other => format!("it ends within {other}"),
        };
    }
    match text {
        "expected value" | "expected ident" => {
            return "no value of JSON stands there; `NaN` and `Infinity` are none".to_owned();
        }
        "invalid number" => return "no number of JSON stands there; `-Infinity` is none".to_owned(),
        _ => {}
    }
    let parts = text.split_once(": ").and_then(|(kind, rest)| Some((kind, rest.rsplit_once(", expected ")?)));
    match parts {
        Some(("invalid type", (found, expected))) => format!("{} where {} was expected", is(found), was(expected)),
        Some(("invalid value", (found, expected))) => out_of_range(&is(found), &was(expected)),
        _ => length(text).unwrap_or_else(|| text.to_owned()),
    }
}

/// Of a number that is none of those that can stand there.
fn out_of_range(found: &str, expected: &str) -> String {
    match expected {
        "a whole number" if found.starts_with('-') => format!("{found} where a number from 0 was expected"),
        "a whole number" => format!("{found} where a smaller number was expected"),
        other => format!("{found} where {other} was expected"),
    }
}

/// Of a list with too few or too many entries, or one that stands where an object should: lists of its values are taken
/// for it as far as they go.
fn length(text: &str) -> Option<String> {
    let (found, expected) = text.strip_prefix("invalid length ")?.split_once(", expected ")?;
    if expected.starts_with("struct ") {
        return Some("a list where an object was expected".to_owned());
    }
    Some(format!("a list of {found} where {} was expected", was(expected)))
}

/// What stands there, in words of JSON.
fn is(found: &str) -> String {
    let value = found.split('`').nth(1);
    match (found, value) {
        ("map", _) => "an object".to_owned(),
        ("sequence", _) => "a list".to_owned(),
        ("unit value", _) => "null".to_owned(),
        (_, Some(value)) if !found.starts_with("string") => value.to_owned(),
        (text, _) => text.strip_prefix("string ").unwrap_or(text).to_owned(),
    }
}

/// What should stand there.
fn was(expected: &str) -> Cow<'_, str> {
    if let Some(size) = expected.strip_prefix("a tuple of size ") {
        return format!("a list of {size}").into();
    }
    let words = match expected {
        "a sequence" => "a list",
        "a map" => "an object",
        "a string" | "string" | "variant identifier" => "a text",
        "string or map" => "a text or an object",
        "a boolean" => "true or false",
        "i64" | "u64" | "i32" | "u32" | "u16" | "u8" | "usize" => "a whole number",
        "f64" | "f32" => "a number",
        // The names of types of ours.
        other if other.starts_with("enum ") => "a text",
        other if other.starts_with("struct ") || other.contains("internally tagged") => "an object",
        other => other,
    };
    words.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_without_names_of_types() {
        let told = |text: &str| JsonError::from(serde_json::from_str::<crate::Fit>(text).unwrap_err()).to_string();
        assert_eq!(told("null"), "line 1, column 4: null where an object was expected");
        assert_eq!(told("{\n\"schema\": 3}"), "line 2, column 11: 3 where a text was expected");
        assert_eq!(told("{"), "line 1, column 1: it ends within an object");
        assert_eq!(told(""), "line 1, column 0: it is empty");
        assert_eq!(told("[]"), "line 1, column 2: a list where an object was expected");
        assert!(told("{\"schema\": NaN}").ends_with("`NaN` and `Infinity` are none"), "{}", told("{\"schema\": NaN}"));
        assert_eq!(told("{\"gpus\": -1}"), "line 1, column 11: -1 where a number from 0 was expected");
        let long = format!("{{\"gpus\": \"{}\"}}", "x".repeat(100_000));
        assert!(told(&long).ends_with("x\" where a whole number was expected") && told(&long).len() < 400);
        assert_eq!(JsonError::said("`gpus` is 0".to_owned()).to_string(), "`gpus` is 0");
    }
}
