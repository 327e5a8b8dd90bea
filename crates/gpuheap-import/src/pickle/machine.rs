//! The machine: one pass over the opcodes.

use super::arguments::{argument, bytes};
use super::opcode as op;
use super::{Host, Kind, Outcome, Value, literal, memo::Memo};
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
                // What came may do although it is less: a line asks for more than it needs.
                let before = input.window().len();
                if !input.fill(needed)? && input.window().len() == before {
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
            Step::Next => {}
        }
    }
}

/// Why the machine left a window.
pub(super) enum Step {
    /// It did not: the next opcode follows.
    Next,
    /// The opcode at the end of the window needs `needed` bytes.
    More { needed: usize, expected: &'static str },
    /// The next `count` bytes are of no interest.
    Skip { count: u64, expected: &'static str },
    /// The pickle is complete.
    Stop(Value),
}

pub(super) const AN_OPCODE: &str = "another opcode";
pub(super) const AN_ARGUMENT: &str = "the rest of an opcode's argument";
pub(super) const A_TEXT: &str = "the rest of a text";

pub(super) struct Machine {
    pub(super) stack: Vec<Value>,
    /// Where on the stack each open mark is.
    pub(super) marks: Vec<usize>,
    pub(super) memo: Memo,
    /// Offset in the stream of the window's first byte.
    base: u64,
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
                        return Err(self.malformed(window, rest, UNKNOWN_MEMO).into());
                    };
                    self.stack.push(value);
                    rest = after;
                    // The frames of a stack: the same opcode over and over.
                    while let Some(&[op::LONG_BINGET, a, b, c, d]) = rest.first_chunk::<5>()
                        && let Some(value) = self.memo.get(u32::from_le_bytes([a, b, c, d]))
                    {
                        self.stack.push(value);
                        rest = rest.get(5..).unwrap_or_default();
                    }
                }
                op::BINGET => {
                    let ([index], after) = argument!(window, rest, after, 1);
                    let Some(value) = self.memo.get(u32::from(index)) else {
                        return Err(self.malformed(window, rest, UNKNOWN_MEMO).into());
                    };
                    self.stack.push(value);
                    rest = after;
                }
                op::MEMOIZE => {
                    let Some(&value) = self.stack.last() else {
                        return Err(self.malformed(window, rest, EMPTY_STACK).into());
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
                    // Most are addresses of five to seven bytes with more of the file behind them: one load.
                    let value = match after.get(1..).and_then(<[u8]>::first_chunk::<8>) {
                        Some(bytes) if (1..8).contains(&size) => {
                            let unused = 64 - 8 * size;
                            Value::int((i64::from_le_bytes(*bytes) << unused) >> unused)
                        }
                        _ => None,
                    };
                    self.stack.push(value.unwrap_or_else(|| literal::binary_integer(digits, host)));
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
                        return Err(self.malformed(window, rest, NO_MARK).into());
                    };
                    if mark <= self.fence() {
                        return Err(self.malformed(window, rest, EMPTY_STACK).into());
                    }
                    let (below, items) = self.stack.split_at(mark);
                    let target = below.last().copied().unwrap_or(Value::OPAQUE);
                    match (opcode, target.kind()) {
                        (op::SETITEMS, Kind::Dict) if items.len() % 2 == 0 => host.set_items(target, items, at)?,
                        (op::SETITEMS, Kind::Dict) => return Err(self.malformed(window, rest, ODD_ITEMS).into()),
                        (op::APPENDS, Kind::List) => host.append(target, items, at)?,
                        (op::ADDITEMS, Kind::Opaque) => {}
                        _ => return Err(self.malformed(window, rest, WRONG_TARGET).into()),
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
                        return Err(self.malformed(window, rest, EMPTY_STACK).into());
                    };
                    let (below, items) = self.stack.split_at(split);
                    let target = below.last().copied().unwrap_or(Value::OPAQUE);
                    match (opcode, target.kind()) {
                        (op::SETITEM, Kind::Dict) => host.set_items(target, items, at)?,
                        (op::APPEND, Kind::List) => host.append(target, items, at)?,
                        _ => return Err(self.malformed(window, rest, WRONG_TARGET).into()),
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
                        return Err(self.malformed(window, rest, EMPTY_STACK).into());
                    };
                    self.memo.put(u32::from(index), value);
                    rest = after;
                }
                op::LONG_BINPUT => {
                    let (index, after) = argument!(window, rest, after, 4);
                    let Some(&value) = self.stack.last() else {
                        return Err(self.malformed(window, rest, EMPTY_STACK).into());
                    };
                    self.memo.put(u32::from_le_bytes(index), value);
                    rest = after;
                }
                op::TUPLE1 | op::TUPLE2 | op::TUPLE3 | op::EMPTY_TUPLE => {
                    let count = if opcode == op::EMPTY_TUPLE { 0 } else { usize::from(opcode - op::TUPLE1) + 1 };
                    let Some(split) = self.stack.len().checked_sub(count).filter(|&split| split >= self.fence()) else {
                        return Err(self.malformed(window, rest, EMPTY_STACK).into());
                    };
                    self.tuple(split, self.offset(window, rest), host)?;
                    rest = after;
                }
                op::TUPLE => {
                    let Some(mark) = self.marks.pop() else {
                        return Err(self.malformed(window, rest, NO_MARK).into());
                    };
                    self.tuple(mark, self.offset(window, rest), host)?;
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
                        return Err(self.malformed(window, rest, EMPTY_STACK).into());
                    };
                    return Ok((window.len() - after.len(), Step::Stop(value)));
                }
                _ => {
                    let (consumed, step) = self.rare(window, rest, host)?;
                    if !matches!(step, Step::Next) {
                        return Ok((consumed, step));
                    }
                    rest = window.get(consumed..).unwrap_or_default();
                    if host.taken() > budget::SLICE {
                        self.check(host, self.offset(window, rest))?;
                    }
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
    pub(super) fn fence(&self) -> usize {
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

    pub(super) fn offset(&self, window: &[u8], rest: &[u8]) -> u64 {
        self.base + (window.len() - rest.len()) as u64
    }

    #[cold]
    pub(super) fn malformed(&self, window: &[u8], rest: &[u8], problem: &'static str) -> Cause {
        let opcode = rest.first().and_then(|&opcode| op::name(opcode)).unwrap_or_default();
        Cause::Malformed { offset: self.offset(window, rest), opcode, problem }
    }

    #[cold]
    pub(super) fn refused(&self, window: &[u8], rest: &[u8], global: Option<String>) -> Cause {
        let opcode = rest.first().and_then(|&opcode| op::name(opcode)).unwrap_or_default();
        let global = global.map(|name| name.chars().take(GLOBAL_NAME).collect());
        Cause::Refused { opcode, offset: self.offset(window, rest), global }
    }
}

pub(super) const UNKNOWN_MEMO: &str = "reads a memo entry that was never stored";
pub(super) const EMPTY_STACK: &str = "finds too little on the stack";
pub(super) const NO_MARK: &str = "finds no mark on the stack";
pub(super) const ODD_ITEMS: &str = "finds a key without a value";
pub(super) const WRONG_TARGET: &str = "is applied to an object of another type";
