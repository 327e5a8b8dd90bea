//! The machine: one pass over the opcodes.

use super::opcode as op;
use super::{Host, Kind, Outcome, Value, memo::Memo, text};
use crate::budget;
use crate::error::{At, Cause};
use crate::input::{Input, WINDOW};

/// How many marks may be open at a time. A snapshot has ten.
const DEPTH: usize = 1000;
/// The newest protocol.
const PROTOCOL: u8 = 5;
/// How much of the name of a global is quoted.
const GLOBAL_NAME: usize = 200;

/// Reads one pickle, up to its STOP, and returns the object on top of the stack.
pub(crate) fn run<H: Host>(input: &mut Input<'_>, host: &mut H) -> Outcome<Value> {
    let mut machine = Machine { stack: Vec::new(), marks: Vec::new(), memo: Memo::default(), base: 0 };
    loop {
        machine.base = input.offset();
        machine.check(host, input.offset())?;
        let (consumed, step) = machine.run_window(input.window(), host)?;
        input.consume(consumed);
        match step {
            Step::More { needed, expected } => {
                if !input.fill(needed)? {
                    let offset = input.offset() + input.window().len() as u64;
                    return Err(Box::new(Cause::Truncated { offset, expected }));
                }
            }
            Step::Skip { count, expected } => {
                if input.skip(count)? > 0 {
                    return Err(Box::new(Cause::Truncated { offset: input.offset(), expected }));
                }
            }
            Step::Stop(value) => return Ok(value),
        }
    }
}

/// Why the machine left a window.
enum Step {
    /// The opcode at the end of the window needs `needed` bytes.
    More { needed: usize, expected: &'static str },
    /// The next `count` bytes are of no interest.
    Skip { count: u64, expected: &'static str },
    /// The pickle is complete.
    Stop(Value),
}

const AN_OPCODE: &str = "another opcode";
const AN_ARGUMENT: &str = "the rest of an opcode's argument";
const A_TEXT: &str = "the rest of a text";

struct Machine {
    stack: Vec<Value>,
    /// Where on the stack each open mark is.
    marks: Vec<usize>,
    memo: Memo,
    /// Offset in the stream of the window's first byte.
    base: u64,
}

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
        match split_line($after) {
            Some(split) => split,
            None if $rest.len() >= WINDOW => {
                return Err($machine.malformed($window, $rest, "has an argument without an end"));
            }
            None => {
                let step = Step::More { needed: $rest.len() + 1, expected: AN_ARGUMENT };
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
            Some(whole) if whole <= WINDOW => {
                match $rest.get(header..whole) {
                    Some(bytes) => (bytes, $rest.get(whole..).unwrap_or_default()),
                    None => {
                        let step = Step::More { needed: whole, expected: A_TEXT };
                        return Ok(($window.len() - $rest.len(), step));
                    }
                }
            }
            _ => {
                $machine.stack.push(Value::OPAQUE);
                let step = Step::Skip { count, expected: A_TEXT };
                return Ok(($window.len() - $rest.len() + header, step));
            }
        }
    }};
}

impl Machine {
    /// Carries out the opcodes of `window` as far as they are complete; returns how many bytes that took.
    #[expect(clippy::too_many_lines, reason = "one arm an opcode; splitting it would hide that and slow it down")]
    fn run_window<H: Host>(&mut self, window: &[u8], host: &mut H) -> Outcome<(usize, Step)> {
        let mut rest = window;
        loop {
            let Some((&opcode, after)) = rest.split_first() else {
                return Ok((window.len(), Step::More { needed: 1, expected: AN_OPCODE }));
            };
            match opcode {
                op::LONG_BINGET => {
                    let (index, after) = argument!(window, rest, after, 4);
                    let Some(value) = self.memo.get(u32::from_le_bytes(index)) else {
                        return Err(self.malformed(window, rest, UNKNOWN_MEMO));
                    };
                    self.stack.push(value);
                    rest = after;
                }
                op::BINGET => {
                    let ([index], after) = argument!(window, rest, after, 1);
                    let Some(value) = self.memo.get(u32::from(index)) else {
                        return Err(self.malformed(window, rest, UNKNOWN_MEMO));
                    };
                    self.stack.push(value);
                    rest = after;
                }
                op::MEMOIZE => {
                    let Some(&value) = self.stack.last() else {
                        return Err(self.malformed(window, rest, EMPTY_STACK));
                    };
                    self.memo.push(value);
                    rest = after;
                }
                op::BININT1 => {
                    let ([value], after) = argument!(window, rest, after, 1);
                    self.stack.push(Value::small(i32::from(value)));
                    rest = after;
                }
                op::BININT2 => {
                    let (value, after) = argument!(window, rest, after, 2);
                    self.stack.push(Value::small(i32::from(u16::from_le_bytes(value))));
                    rest = after;
                }
                op::BININT => {
                    let (value, after) = argument!(window, rest, after, 4);
                    self.stack.push(Value::small(i32::from_le_bytes(value)));
                    rest = after;
                }
                op::LONG1 => {
                    let ([size], _) = argument!(window, rest, after, 1);
                    let size = usize::from(size);
                    let Some(digits) = rest.get(2..2 + size) else {
                        let step = Step::More { needed: 2 + size, expected: AN_ARGUMENT };
                        return Ok((window.len() - rest.len(), step));
                    };
                    self.stack.push(integer(digits, host));
                    rest = rest.get(2 + size..).unwrap_or_default();
                }
                op::MARK => {
                    if self.marks.len() >= DEPTH {
                        let offset = self.offset(window, rest);
                        return Err(Box::new(Cause::TooDeep { offset, limit: DEPTH }));
                    }
                    self.marks.push(self.stack.len());
                    rest = after;
                }
                op::EMPTY_DICT => {
                    self.stack.push(host.dict());
                    rest = after;
                }
                op::EMPTY_LIST => {
                    self.stack.push(host.list());
                    rest = after;
                }
                op::SETITEMS | op::APPENDS | op::ADDITEMS => {
                    let at = self.offset(window, rest);
                    let Some(mark) = self.marks.pop() else {
                        return Err(self.malformed(window, rest, NO_MARK));
                    };
                    if mark <= self.fence() {
                        return Err(self.malformed(window, rest, EMPTY_STACK));
                    }
                    let (below, items) = self.stack.split_at(mark);
                    let target = below.last().copied().unwrap_or(Value::OPAQUE);
                    match (opcode, target.kind()) {
                        (op::SETITEMS, Kind::Dict) if items.len() % 2 == 0 => host.set_items(target, items, at)?,
                        (op::SETITEMS, Kind::Dict) => return Err(self.malformed(window, rest, ODD_ITEMS)),
                        (op::APPENDS, Kind::List) => host.append(target, items, at)?,
                        (op::ADDITEMS, Kind::Opaque) => {}
                        _ => return Err(self.malformed(window, rest, WRONG_TARGET)),
                    }
                    self.stack.truncate(mark);
                    if host.taken() > budget::SLICE {
                        self.check(host, at)?;
                    }
                    rest = after;
                }
                op::SHORT_BINUNICODE | op::SHORT_BINSTRING => {
                    let ([size], _) = argument!(window, rest, after, 1);
                    let (bytes, after) = bytes!(self, window, rest, 2, u64::from(size));
                    self.stack.push(host.text(bytes));
                    rest = after;
                }
                op::BINUNICODE | op::BINSTRING => {
                    let (size, _) = argument!(window, rest, after, 4);
                    let (bytes, after) = bytes!(self, window, rest, 5, u64::from(u32::from_le_bytes(size)));
                    self.stack.push(host.text(bytes));
                    rest = after;
                }
                op::BINUNICODE8 => {
                    let (size, _) = argument!(window, rest, after, 8);
                    let (bytes, after) = bytes!(self, window, rest, 9, u64::from_le_bytes(size));
                    self.stack.push(host.text(bytes));
                    rest = after;
                }
                op::APPEND | op::SETITEM => {
                    let at = self.offset(window, rest);
                    let count = if opcode == op::APPEND { 1 } else { 2 };
                    let Some(split) = self.stack.len().checked_sub(count).filter(|&split| split > self.fence()) else {
                        return Err(self.malformed(window, rest, EMPTY_STACK));
                    };
                    let (below, items) = self.stack.split_at(split);
                    let target = below.last().copied().unwrap_or(Value::OPAQUE);
                    match (opcode, target.kind()) {
                        (op::SETITEM, Kind::Dict) => host.set_items(target, items, at)?,
                        (op::APPEND, Kind::List) => host.append(target, items, at)?,
                        _ => return Err(self.malformed(window, rest, WRONG_TARGET)),
                    }
                    self.stack.truncate(split);
                    if host.taken() > budget::SLICE {
                        self.check(host, at)?;
                    }
                    rest = after;
                }
                op::NONE => {
                    self.stack.push(Value::NONE);
                    rest = after;
                }
                op::NEWTRUE | op::NEWFALSE => {
                    self.stack.push(Value::bool(opcode == op::NEWTRUE));
                    rest = after;
                }
                op::BINFLOAT => {
                    let (value, after) = argument!(window, rest, after, 8);
                    self.stack.push(host.float(f64::from_be_bytes(value)));
                    rest = after;
                }
                op::BINPUT => {
                    let ([index], after) = argument!(window, rest, after, 1);
                    let Some(&value) = self.stack.last() else {
                        return Err(self.malformed(window, rest, EMPTY_STACK));
                    };
                    self.memo.put(u32::from(index), value);
                    rest = after;
                }
                op::LONG_BINPUT => {
                    let (index, after) = argument!(window, rest, after, 4);
                    let Some(&value) = self.stack.last() else {
                        return Err(self.malformed(window, rest, EMPTY_STACK));
                    };
                    self.memo.put(u32::from_le_bytes(index), value);
                    rest = after;
                }
                op::TUPLE1 | op::TUPLE2 | op::TUPLE3 | op::EMPTY_TUPLE => {
                    let count = if opcode == op::EMPTY_TUPLE { 0 } else { usize::from(opcode - op::TUPLE1) + 1 };
                    let Some(split) = self.stack.len().checked_sub(count).filter(|&split| split >= self.fence()) else {
                        return Err(self.malformed(window, rest, EMPTY_STACK));
                    };
                    self.tuple(split, self.offset(window, rest), host)?;
                    rest = after;
                }
                op::TUPLE => {
                    let Some(mark) = self.marks.pop() else {
                        return Err(self.malformed(window, rest, NO_MARK));
                    };
                    self.tuple(mark, self.offset(window, rest), host)?;
                    rest = after;
                }
                op::LIST | op::DICT => {
                    let at = self.offset(window, rest);
                    let Some(mark) = self.marks.pop() else {
                        return Err(self.malformed(window, rest, NO_MARK));
                    };
                    let items = self.stack.get(mark..).unwrap_or_default();
                    let target = if opcode == op::LIST {
                        let target = host.list();
                        host.append(target, items, at)?;
                        target
                    } else if items.len() % 2 == 0 {
                        let target = host.dict();
                        host.set_items(target, items, at)?;
                        target
                    } else {
                        return Err(self.malformed(window, rest, ODD_ITEMS));
                    };
                    self.stack.truncate(mark);
                    self.stack.push(target);
                    rest = after;
                }
                op::FRAME => {
                    // The declared length is of no use: the stream is read in pieces anyway.
                    let (_, after) = argument!(window, rest, after, 8);
                    rest = after;
                }
                op::PROTO => {
                    let ([version], after) = argument!(window, rest, after, 1);
                    if version > PROTOCOL {
                        return Err(Box::new(Cause::Protocol { version }));
                    }
                    rest = after;
                }
                op::STOP => {
                    let Some(&value) = self.stack.last() else {
                        return Err(self.malformed(window, rest, EMPTY_STACK));
                    };
                    return Ok((window.len() - after.len(), Step::Stop(value)));
                }
                op::LONG4 => {
                    let (size, _) = argument!(window, rest, after, 4);
                    let (digits, after) = bytes!(self, window, rest, 5, u64::from(u32::from_le_bytes(size)));
                    self.stack.push(integer(digits, host));
                    rest = after;
                }
                op::INT | op::LONG | op::FLOAT | op::STRING | op::UNICODE => {
                    let (line, after) = line!(self, window, rest, after);
                    let value = match opcode {
                        op::INT if line == b"01" => Some(Value::bool(true)),
                        op::INT if line == b"00" => Some(Value::bool(false)),
                        op::INT | op::LONG => text::integer(line).map(|value| from_wide(value, host)),
                        op::FLOAT => text::float(line).map(|value| host.float(value)),
                        op::STRING => text::quoted(line).map(|text| host.text(&text)),
                        _ => Some(host.text(&text::raw_unicode_escape(line))),
                    };
                    let Some(value) = value else {
                        return Err(self.malformed(window, rest, "has an argument that cannot be read"));
                    };
                    self.stack.push(value);
                    rest = after;
                }
                op::GET | op::PUT => {
                    let (line, after) = line!(self, window, rest, after);
                    let Some(index) = text::index(line) else {
                        return Err(self.malformed(window, rest, "has an argument that cannot be read"));
                    };
                    if opcode == op::GET {
                        let Some(value) = self.memo.get(index) else {
                            return Err(self.malformed(window, rest, UNKNOWN_MEMO));
                        };
                        self.stack.push(value);
                    } else {
                        let Some(&value) = self.stack.last() else {
                            return Err(self.malformed(window, rest, EMPTY_STACK));
                        };
                        self.memo.put(index, value);
                    }
                    rest = after;
                }
                op::POP => {
                    // CPython's POP takes the mark if that is what is on top.
                    if self.marks.last() == Some(&self.stack.len()) {
                        self.marks.pop();
                    } else if self.stack.pop().is_none() {
                        return Err(self.malformed(window, rest, EMPTY_STACK));
                    }
                    rest = after;
                }
                op::POP_MARK => {
                    let Some(mark) = self.marks.pop() else {
                        return Err(self.malformed(window, rest, NO_MARK));
                    };
                    self.stack.truncate(mark);
                    rest = after;
                }
                op::DUP => {
                    let Some(&value) = self.stack.last().filter(|_| self.stack.len() > self.fence()) else {
                        return Err(self.malformed(window, rest, EMPTY_STACK));
                    };
                    self.stack.push(value);
                    rest = after;
                }
                op::SHORT_BINBYTES => {
                    let ([size], _) = argument!(window, rest, after, 1);
                    self.stack.push(Value::OPAQUE);
                    let step = Step::Skip { count: u64::from(size), expected: A_TEXT };
                    return Ok((window.len() - rest.len() + 2, step));
                }
                op::BINBYTES => {
                    let (size, _) = argument!(window, rest, after, 4);
                    self.stack.push(Value::OPAQUE);
                    let step = Step::Skip { count: u64::from(u32::from_le_bytes(size)), expected: A_TEXT };
                    return Ok((window.len() - rest.len() + 5, step));
                }
                op::BINBYTES8 | op::BYTEARRAY8 => {
                    let (size, _) = argument!(window, rest, after, 8);
                    self.stack.push(Value::OPAQUE);
                    let step = Step::Skip { count: u64::from_le_bytes(size), expected: A_TEXT };
                    return Ok((window.len() - rest.len() + 9, step));
                }
                op::EMPTY_SET => {
                    self.stack.push(Value::OPAQUE);
                    rest = after;
                }
                op::FROZENSET => {
                    let Some(mark) = self.marks.pop() else {
                        return Err(self.malformed(window, rest, NO_MARK));
                    };
                    self.stack.truncate(mark);
                    self.stack.push(Value::OPAQUE);
                    rest = after;
                }
                op::GLOBAL | op::INST => {
                    let (module, after) = line!(self, window, rest, after);
                    let (name, _) = line!(self, window, rest, after);
                    let global = format!("{}.{}", String::from_utf8_lossy(module), String::from_utf8_lossy(name));
                    return Err(self.refused(window, rest, Some(global)));
                }
                op::STACK_GLOBAL => {
                    let mut names = self.stack.iter().rev().map(|&value| host.text_of(value));
                    let (name, module) = (names.next().flatten(), names.next().flatten());
                    let global = name.zip(module).map(|(name, module)| format!("{module}.{name}"));
                    return Err(self.refused(window, rest, global));
                }
                op::REDUCE
                | op::BUILD
                | op::OBJ
                | op::NEWOBJ
                | op::NEWOBJ_EX
                | op::EXT1
                | op::EXT2
                | op::EXT4
                | op::PERSID
                | op::BINPERSID => return Err(self.refused(window, rest, None)),
                _ => {
                    return Err(Box::new(Cause::Opcode { opcode, offset: self.offset(window, rest) }));
                }
            }
        }
    }

    /// Replaces everything from `split` on by a tuple of it.
    fn tuple<H: Host>(&mut self, split: usize, at: u64, host: &mut H) -> Outcome<()> {
        let value = host.tuple(self.stack.get(split..).unwrap_or_default(), at)?;
        self.stack.truncate(split);
        self.stack.push(value);
        if host.taken() > budget::SLICE {
            self.check(host, at)?;
        }
        Ok(())
    }

    /// The part of the stack below the innermost mark, which opcodes without a mark must leave alone.
    fn fence(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    /// Fails when everything held is more than the bytes up to `offset` can justify.
    fn check<H: Host>(&self, host: &mut H, offset: u64) -> Outcome<()> {
        let held = self.stack.capacity() * size_of::<Value>() + self.memo.heap_bytes() + host.heap_bytes();
        match budget::limit(offset).checked_sub(held) {
            Some(left) => {
                host.allow(left);
                Ok(())
            }
            None => Err(Box::new(Cause::Memory { at: At::Byte(offset) })),
        }
    }

    fn offset(&self, window: &[u8], rest: &[u8]) -> u64 {
        self.base + (window.len() - rest.len()) as u64
    }

    #[cold]
    fn malformed(&self, window: &[u8], rest: &[u8], problem: &'static str) -> Box<Cause> {
        let opcode = rest.first().and_then(|&opcode| op::name(opcode)).unwrap_or_default();
        Box::new(Cause::Malformed { offset: self.offset(window, rest), opcode, problem })
    }

    #[cold]
    fn refused(&self, window: &[u8], rest: &[u8], global: Option<String>) -> Box<Cause> {
        let opcode = rest.first().and_then(|&opcode| op::name(opcode)).unwrap_or_default();
        let global = global.map(|name| name.chars().take(GLOBAL_NAME).collect());
        Box::new(Cause::Refused { opcode, offset: self.offset(window, rest), global })
    }
}

const UNKNOWN_MEMO: &str = "reads a memo entry that was never stored";
const EMPTY_STACK: &str = "finds too little on the stack";
const NO_MARK: &str = "finds no mark on the stack";
const ODD_ITEMS: &str = "finds a key without a value";
const WRONG_TARGET: &str = "is applied to an object of another type";

fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|&byte| byte == b'\n')?;
    let (line, rest) = bytes.split_at(end);
    Some((line.strip_suffix(b"\r").unwrap_or(line), rest.get(1..).unwrap_or_default()))
}

/// A little-endian integer in two's complement. More than 16 bytes are no number of a snapshot.
#[inline]
fn integer<H: Host>(digits: &[u8], host: &mut H) -> Value {
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
    from_wide(i128::from_le_bytes(bytes), host)
}

fn from_wide<H: Host>(value: i128, host: &mut H) -> Value {
    i64::try_from(value).ok().and_then(Value::int).unwrap_or_else(|| host.wide(value))
}
