//! Taking the arguments of an opcode from the window; leaving the window, when they are not there yet.
//!
//! Each macro returns from the function around it to get more of the file, with the window up to the opcode consumed.

/// The `N` bytes after an opcode and what follows them, or leaves the window to get more.
macro_rules! argument {
    ($window:ident, $rest:ident, $after:ident, $size:expr) => {
        match $after.split_first_chunk::<$size>() {
            Some((argument, after)) => (*argument, after),
            None => {
                let step = Step::More { needed: 1 + $size, expected: AN_ARGUMENT };
                return Ok(($window.len() - $rest.len(), step));
            }
        }
    };
}

/// The line after an opcode and what follows it, or leaves the window to get more.
macro_rules! line {
    ($machine:ident, $window:ident, $rest:ident, $after:ident) => {
        match literal::line($after) {
            Some(split) => split,
            None if $rest.len() >= WINDOW => {
                return Err($machine.malformed($window, $rest, "has an argument without an end").into());
            }
            None => {
                // Doubling: a line that comes in single bytes is searched a few times, not once a byte.
                let step = Step::More { needed: (2 * $rest.len()).clamp(2, WINDOW), expected: AN_ARGUMENT };
                return Ok(($window.len() - $rest.len(), step));
            }
        }
    };
}

/// Takes the `count` bytes of a text that follow the `header` bytes of an opcode; leaves the window to get more, or to
/// skip a text that is too long to be kept.
macro_rules! bytes {
    ($machine:ident, $window:ident, $rest:ident, $header:expr, $count:expr) => {{
        let count: u64 = $count;
        let header: usize = $header;
        let whole = usize::try_from(count).ok().and_then(|count| count.checked_add(header));
        match whole {
            Some(whole) if whole <= WINDOW => match $rest.get(header..whole) {
                Some(bytes) => (bytes, $rest.get(whole..).unwrap_or_default()),
                None => {
                    let step = Step::More { needed: whole, expected: A_TEXT };
                    return Ok(($window.len() - $rest.len(), step));
                }
            },
            _ => {
                $machine.stack.push(Value::OPAQUE);
                let step = Step::Skip { count, expected: A_TEXT };
                return Ok(($window.len() - $rest.len() + header, step));
            }
        }
    }};
}

pub(super) use {argument, bytes, line};
