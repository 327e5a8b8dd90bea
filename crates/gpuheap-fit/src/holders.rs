//! Who holds the memory at a moment: sums by class and by module, like modules together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::program::Program;
use crate::trace::{Class, Trace};

/// What a class of one kind of module holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// What it is for.
    pub class: Class,
    /// The modules, with `*` where a number differs; empty for all of the model.
    pub module: String,
    /// Bytes.
    pub bytes: u64,
}

/// The largest holders after event `at`, largest first, at most `most` of them.
#[must_use]
pub fn holders(program: &Program<'_>, at: usize, most: usize) -> Vec<Holder> {
    let mut sums: BTreeMap<(Class, String), u64> = BTreeMap::new();
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    for slot in program.alive_after(at) {
        let slot = program.slots[slot as usize];
        // What stays is asked for as a whole; what comes and goes has a place.
        let module = match slot.class {
            Class::Activation | Class::Temporary | Class::Unknown => {
                names.entry(slot.module).or_insert_with(|| place(program.trace, slot.module)).clone()
            }
            _ => String::new(),
        };
        *sums.entry((slot.class, module)).or_default() += slot.rounded();
    }
    let mut holders: Vec<Holder> =
        sums.into_iter().map(|((class, module), bytes)| Holder { class, module, bytes }).collect();
    holders.retain(|holder| holder.bytes > 0);
    holders.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.module.cmp(&other.module)));
    holders.truncate(most);
    holders
}

/// The name of a module with numbers left open, down to the first part of a numbered one: what a reader can tell apart.
#[must_use]
pub fn place(trace: &Trace, module: u32) -> String {
    let name = trace.module_name(module);
    let mut parts: Vec<&str> = Vec::new();
    let mut behind_number = None;
    for part in name.split('.') {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        parts.push(if is_number { "*" } else { part });
        if let Some(more) = &mut behind_number {
            *more += 1;
            if *more == 1 {
                break;
            }
        }
        if is_number && behind_number.is_none() {
            behind_number = Some(0);
        }
    }
    parts.join(".")
}
