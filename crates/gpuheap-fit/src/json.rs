//! What is wrong with a text that should be JSON, in words of JSON: not in those of the parser, which names our types.

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

/// What the parser says without the place, which is told apart from it, and without the names of our types.
pub(crate) fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    let parts = text.strip_prefix("invalid type: ").and_then(|rest| rest.rsplit_once(", expected "));
    parts.map_or_else(
        || text.to_owned(),
        |(found, expected)| format!("{} where {} was expected", is(found), was(expected)),
    )
}

/// What stands there, in words of JSON.
fn is(found: &str) -> String {
    let value = found.split('`').nth(1);
    match (found, value) {
        ("map", _) => "an object".to_owned(),
        ("sequence", _) => "a list".to_owned(),
        (_, Some(value)) if !found.starts_with("string") => value.to_owned(),
        (text, _) => text.strip_prefix("string ").unwrap_or(text).to_owned(),
    }
}

/// What should stand there.
fn was(expected: &str) -> &str {
    match expected {
        "a sequence" => "a list",
        "a map" => "an object",
        "a string" | "string" => "a text",
        "a boolean" => "true or false",
        "i64" | "u64" | "u32" | "u8" | "usize" => "a whole number",
        "f64" => "a number",
        // The name of a type of ours.
        other if other.starts_with("struct ") || other.contains("internally tagged") => "an object",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_without_names_of_types() {
        let told = |text: &str| JsonError::from(serde_json::from_str::<crate::Fit>(text).unwrap_err()).to_string();
        assert_eq!(told("null"), "line 1, column 4: null where an object was expected");
        assert_eq!(told("{\n\"schema\": 3}"), "line 2, column 11: 3 where a text was expected");
        assert!(told("{").starts_with("line 1, column 1: "), "{}", told("{"));
        assert_eq!(JsonError::said("`gpus` is 0".to_owned()).to_string(), "`gpus` is 0");
    }
}
