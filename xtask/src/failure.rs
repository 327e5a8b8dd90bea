//! What went wrong, as a person should read it.

use std::fmt;

/// A failed command: the operation with its object, the cause, and a hint if the reader can act.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    cause: Option<String>,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// A check or a step failed (exit code 1).
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), cause: None, hint: None, code: 1 }
    }

    /// The command line makes no sense (exit code 2).
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self { code: 2, ..Self::new(what) }.hint("`cargo xtask --help` lists every command")
    }

    pub(crate) fn cause(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(cause.to_string());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "error: {}", self.what)?;
        if let Some(cause) = &self.cause {
            write!(formatter, "\n  cause: {cause}")?;
        }
        if let Some(hint) = &self.hint {
            write!(formatter, "\n\nhint: {hint}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reads_operation_cause_hint() {
        let failure = Failure::new("Failed to read `a.pickle`").cause("no such file").hint("write it first");
        assert_eq!(
            failure.to_string(),
            "error: Failed to read `a.pickle`\n  cause: no such file\n\nhint: write it first"
        );
        assert_eq!(failure.code(), 1);
        assert_eq!(Failure::usage("Unknown command `x`").code(), 2);
    }
}
