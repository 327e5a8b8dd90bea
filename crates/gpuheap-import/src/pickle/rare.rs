//! The opcodes that today's snapshots hardly use: those of old protocols, those without meaning, those refused.

use super::arguments::{argument, bytes, line};
use super::machine::{A_TEXT, AN_ARGUMENT, EMPTY_STACK, Machine, NO_MARK, ODD_ITEMS, Step, UNKNOWN_MEMO};
use super::{Host, Outcome, Value, literal, opcode as op};
use crate::error::Cause;
use crate::input::WINDOW;

const UNREADABLE: &str = "has an argument that cannot be read";

impl Machine {
    /// Carries out the first opcode of `rest`, the end of `window`. Returns how much of `window` is consumed then.
    #[cold]
    #[expect(clippy::too_many_lines, reason = "one arm an opcode")]
    pub(super) fn rare<H: Host>(&mut self, window: &[u8], rest: &[u8], host: &mut H) -> Outcome<(usize, Step)> {
        let Some((&opcode, after)) = rest.split_first() else { return Ok((window.len(), Step::Next)) };
        let after = match opcode {
            op::LIST | op::DICT => {
                let at = self.offset(window, rest);
                let Some(mark) = self.marks.pop() else {
                    return Err(self.malformed(window, rest, NO_MARK).into());
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
                    return Err(self.malformed(window, rest, ODD_ITEMS).into());
                };
                self.stack.truncate(mark);
                self.stack.push(target);
                after
            }
            op::LONG4 => {
                let (size, _) = argument!(window, rest, after, 4);
                let (digits, after) = bytes!(self, window, rest, 5, u64::from(u32::from_le_bytes(size)));
                self.stack.push(literal::binary_integer(digits, host));
                after
            }
            op::INT | op::LONG | op::FLOAT | op::STRING | op::UNICODE => {
                let (line, after) = line!(self, window, rest, after);
                let value = match opcode {
                    op::INT if line == b"01" => Some(Value::bool(true)),
                    op::INT if line == b"00" => Some(Value::bool(false)),
                    op::INT | op::LONG => literal::integer(line).map(|value| literal::narrow(value, host)),
                    op::FLOAT => literal::float(line).map(|value| host.float(value)),
                    op::STRING => literal::quoted(line).map(|text| host.text(&text)),
                    _ => Some(host.text(&literal::raw_unicode_escape(line))),
                };
                let Some(value) = value else {
                    return Err(self.malformed(window, rest, UNREADABLE).into());
                };
                self.stack.push(value);
                after
            }
            op::GET | op::PUT => {
                let (line, after) = line!(self, window, rest, after);
                let Some(index) = literal::index(line) else {
                    return Err(self.malformed(window, rest, UNREADABLE).into());
                };
                if opcode == op::GET {
                    let Some(value) = self.memo.get(index) else {
                        return Err(self.malformed(window, rest, UNKNOWN_MEMO).into());
                    };
                    self.stack.push(value);
                } else {
                    let Some(&value) = self.stack.last() else {
                        return Err(self.malformed(window, rest, EMPTY_STACK).into());
                    };
                    self.memo.put(index, value);
                }
                after
            }
            op::POP => {
                // CPython's POP takes the mark if that is what is on top.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else if self.stack.pop().is_none() {
                    return Err(self.malformed(window, rest, EMPTY_STACK).into());
                }
                after
            }
            op::POP_MARK => {
                let Some(mark) = self.marks.pop() else {
                    return Err(self.malformed(window, rest, NO_MARK).into());
                };
                self.stack.truncate(mark);
                after
            }
            op::DUP => {
                let Some(&value) = self.stack.last().filter(|_| self.stack.len() > self.fence()) else {
                    return Err(self.malformed(window, rest, EMPTY_STACK).into());
                };
                self.stack.push(value);
                after
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
                after
            }
            op::FROZENSET => {
                let Some(mark) = self.marks.pop() else {
                    return Err(self.malformed(window, rest, NO_MARK).into());
                };
                self.stack.truncate(mark);
                self.stack.push(Value::OPAQUE);
                after
            }
            op::GLOBAL | op::INST => {
                let (module, after) = line!(self, window, rest, after);
                let (name, _) = line!(self, window, rest, after);
                let global = format!("{}.{}", String::from_utf8_lossy(module), String::from_utf8_lossy(name));
                return Err(self.refused(window, rest, Some(global)).into());
            }
            op::STACK_GLOBAL => {
                let mut names = self.stack.iter().rev().map(|&value| host.text_of(value));
                let (name, module) = (names.next().flatten(), names.next().flatten());
                let global = name.zip(module).map(|(name, module)| format!("{module}.{name}"));
                return Err(self.refused(window, rest, global).into());
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
            | op::BINPERSID => return Err(self.refused(window, rest, None).into()),
            _ => return Err(Box::new(Cause::Opcode { opcode, offset: self.offset(window, rest) })),
        };
        Ok((window.len() - after.len(), Step::Next))
    }
}
