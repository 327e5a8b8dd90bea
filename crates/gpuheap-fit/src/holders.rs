//! Who holds the memory at a moment: sums by class and by module, like modules together.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::levers::runs;
use crate::program::Program;
use crate::trace::{Class, Trace};

/// What a class of one kind of module holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Holder {
    /// What it is for.
    pub class: Class,
    /// The modules, like ones together: `encoder.layer.[0-23].attention`; empty for all of the model.
    pub module: String,
    /// Bytes.
    pub bytes: u64,
}

/// A part of a module's name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Name(String),
    /// One of several numbers.
    Number,
}

/// Modules whose names differ in numbers only.
#[derive(Default)]
struct Alike {
    bytes: u64,
    /// The numbers that there are, for each place that has one.
    numbers: Vec<BTreeSet<u64>>,
}

/// The largest holders after event `at`, largest first, at most `most` of them.
#[must_use]
pub fn holders(program: &Program<'_>, at: usize, most: usize) -> Vec<Holder> {
    let mut sums: BTreeMap<(Class, Vec<Part>), Alike> = BTreeMap::new();
    let mut names: BTreeMap<u32, (Vec<Part>, Vec<u64>)> = BTreeMap::new();
    for slot in program.alive_after(at) {
        let slot = program.slots[slot as usize];
        // What stays is asked for as a whole; what comes and goes has a place.
        let (module, numbers) = match slot.class {
            Class::Activation | Class::Temporary | Class::Unknown => {
                names.entry(slot.module).or_insert_with(|| place(program.trace, slot.module)).clone()
            }
            _ => (Vec::new(), Vec::new()),
        };
        let alike = sums.entry((slot.class, module)).or_default();
        alike.bytes += slot.rounded();
        alike.numbers.resize_with(numbers.len(), BTreeSet::new);
        for (known, number) in alike.numbers.iter_mut().zip(numbers) {
            known.insert(number);
        }
    }
    let mut holders: Vec<Holder> = sums
        .into_iter()
        .map(|((class, module), alike)| Holder { class, module: named(module, &alike.numbers), bytes: alike.bytes })
        .collect();
    holders.retain(|holder| holder.bytes > 0);
    holders.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.module.cmp(&other.module)));
    holders.truncate(most);
    holders
}

/// The name of a module down to the first part of a numbered one, which is what a reader can tell apart, and its numbers.
fn place(trace: &Trace, module: u32) -> (Vec<Part>, Vec<u64>) {
    let (mut parts, mut numbers) = (Vec::new(), Vec::new());
    for part in trace.module_name(module).split('.') {
        let behind_number = !numbers.is_empty();
        let number: Option<u64> = part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok()).flatten();
        parts.push(if number.is_some() { Part::Number } else { Part::Name(part.to_owned()) });
        numbers.extend(number);
        if behind_number {
            break;
        }
    }
    (parts, numbers)
}

/// The name with its numbers filled in: `layer.3`, or `layer.[0-5,8]` where there are several.
fn named(parts: Vec<Part>, numbers: &[BTreeSet<u64>]) -> String {
    let mut numbers = numbers.iter();
    let text = |part| match part {
        Part::Name(name) => name,
        Part::Number => match numbers.next() {
            Some(known) if known.len() == 1 => runs(known.iter().copied()),
            Some(known) => format!("[{}]", runs(known.iter().copied())),
            None => String::new(),
        },
    };
    parts.into_iter().map(text).collect::<Vec<_>>().join(".")
}
