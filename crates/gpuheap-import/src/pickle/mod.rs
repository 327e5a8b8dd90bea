//! A virtual machine for pickles that carries out nothing but the building of lists, dicts, tuples, numbers and texts.
//!
//! What a pickle holds is the business of a [`Host`], which keeps the containers; the machine only moves [`Value`]s
//! between the stack, the memo and the host. Opcodes that import, call or build objects are refused by name.

mod arguments;
mod literal;
mod machine;
mod memo;
pub(crate) mod opcode;
mod rare;
mod value;

pub(crate) use machine::run;
pub(crate) use opcode::name as opcode_name;
pub(crate) use value::{Kind, Value};

use crate::error::Cause;

/// The result of a step of the host.
pub(crate) type Outcome<T> = Result<T, Box<Cause>>;

/// What keeps the containers of a pickle and knows what they mean.
///
/// `at` is the offset of the opcode, for errors.
pub(crate) trait Host {
    /// A text, in UTF-8 as far as the pickler kept to it.
    fn text(&mut self, text: &[u8]) -> Value;
    /// An integer that does not fit a [`Value`].
    fn wide(&mut self, value: i128) -> Value;
    /// A float.
    fn float(&mut self, value: f64) -> Value;
    /// A new, empty list.
    fn list(&mut self) -> Value;
    /// A new, empty dict.
    fn dict(&mut self) -> Value;
    /// A tuple of `items`.
    fn tuple(&mut self, items: &[Value], at: u64) -> Outcome<Value>;
    /// Adds `items` to a list.
    fn append(&mut self, list: Value, items: &[Value], at: u64) -> Outcome<()>;
    /// Sets `pairs` (key, value, key, value, …) of a dict.
    fn set_items(&mut self, dict: Value, pairs: &[Value], at: u64) -> Outcome<()>;
    /// The text of a value, for messages.
    fn text_of(&self, value: Value) -> Option<&str>;
    /// The memory that it holds, by capacity.
    fn heap_bytes(&self) -> usize;
    /// The memory that it took since the last call of [`Host::allow`], roughly.
    fn taken(&self) -> usize;
    /// Tells how much more memory it may take before it has to be asked again.
    fn allow(&mut self, bytes: usize);
}
