//! The chain of blocks of a model: the parts that activation checkpointing works on.
//!
//! A block is a numbered part of the model (`bert.encoder.layer.0`, `layer1.2`) that runs once in a forward pass and of
//! which something is kept for the backward pass. Blocks follow each other and none lies within another, so they are
//! passed backwards in the opposite order.

use std::hash::BuildHasher;

use foldhash::HashMap;
use foldhash::fast::FixedState;

use crate::program::Program;
use crate::trace::{Class, Event, NO_MODULE, Pass, Phase, Trace};

/// Where the uses of each slot are in the events of a program.
#[derive(Clone, Debug)]
pub struct Uses {
    starts: Vec<u32>,
    at: Vec<u32>,
}

impl Uses {
    /// Looks through a program.
    #[must_use]
    pub fn new(program: &Program<'_>) -> Self {
        let trace = program.trace;
        let each = |program: &Program<'_>, visit: &mut dyn FnMut(u32, usize)| {
            for (at, event) in program.events.iter().enumerate() {
                if let Event::Op(call) = *event {
                    let call = &trace.calls[call as usize];
                    for &slot in trace.inputs(call).iter().chain(trace.outputs(call)) {
                        visit(slot, at);
                    }
                }
            }
        };
        let mut starts = vec![0_u32; program.slots.len() + 1];
        each(program, &mut |slot, _| starts[slot as usize + 1] += 1);
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        let mut next = starts.clone();
        let mut all = vec![0_u32; starts.last().copied().unwrap_or(0) as usize];
        each(program, &mut |slot, at| {
            all[next[slot as usize] as usize] = u32::try_from(at).unwrap_or(u32::MAX);
            next[slot as usize] += 1;
        });
        Self { starts, at: all }
    }

    /// The events from `from` to before `to` that use `slot`, in order.
    #[must_use]
    pub fn within(&self, slot: u32, from: usize, to: usize) -> &[u32] {
        let (start, end) = (self.starts[slot as usize] as usize, self.starts[slot as usize + 1] as usize);
        let all = &self.at[start..end];
        let first = all.partition_point(|&at| (at as usize) < from);
        let last = all.partition_point(|&at| (at as usize) < to);
        &all[first..last]
    }
}

/// One forward pass through a block, and the way back.
#[derive(Clone, Debug)]
pub struct Passage {
    /// The event that enters the module.
    pub enter: usize,
    /// The event that leaves it.
    pub leave: usize,
    /// Before this event of the backward pass, the first thing is needed that the forward pass kept.
    pub needed: usize,
    /// The event that drops the last of what was kept.
    pub done: usize,
    /// What the forward pass made within the block and kept for the backward pass, and nobody else uses.
    pub kept: Vec<u32>,
    /// What it made and others use, too: its results.
    pub results: Vec<u32>,
    /// What came from outside, was used, and would be dropped before the backward pass; with the event that drops it.
    pub arguments: Vec<(u32, usize)>,
}

/// A block with all its passages.
#[derive(Clone, Debug)]
pub struct Block {
    /// The module.
    pub module: u32,
    /// Its passages, in order: at least one.
    pub passages: Vec<Passage>,
    /// Blocks with the same signature have the same class and do the same with the same sizes.
    pub signature: u64,
    /// Bytes that the last passage keeps.
    pub kept_bytes: u64,
}

/// The blocks of a program in the order of the forward pass.
#[must_use]
pub fn blocks(program: &Program<'_>, uses: &Uses) -> Vec<Block> {
    blocks_with(program, uses, &[])
}

/// The same with the modules called `named`, whatever their names; what contains them or lies within them is no block.
#[must_use]
pub fn blocks_with(program: &Program<'_>, uses: &Uses, named: &[&str]) -> Vec<Block> {
    let trace = program.trace;
    let candidates = candidates(trace, named);
    let mut open: HashMap<u32, usize> = HashMap::default();
    let mut spans: HashMap<u32, Vec<(usize, usize)>> = HashMap::default();
    let mut order: Vec<u32> = Vec::new();
    let mut broken = vec![false; trace.modules.len()];
    for (at, event) in program.events.iter().enumerate() {
        match *event {
            Event::Enter(module, Pass::Forward) if candidates[module as usize] => {
                broken[module as usize] |= open.insert(module, at).is_some();
            }
            Event::Leave(module, Pass::Forward) if candidates[module as usize] => {
                let Some(enter) = open.remove(&module) else { continue };
                let all = spans.entry(module).or_default();
                if all.is_empty() {
                    order.push(module);
                }
                all.push((enter, at));
            }
            _ => {}
        }
    }
    let lives = Lives::new(program);
    let mut found: Vec<Block> = Vec::new();
    for module in order.iter().copied().filter(|&module| !broken[module as usize]) {
        let passages: Vec<Passage> =
            spans[&module].iter().filter_map(|&(enter, leave)| passage(program, uses, &lives, enter, leave)).collect();
        // A module that runs twice before its backward pass is no link of a chain.
        let in_turn = passages.windows(2).all(|pair| pair[0].done < pair[1].enter);
        let Some(last) = passages.last().filter(|_| in_turn) else { continue };
        let kept_bytes = last.kept.iter().map(|&slot| program.slots[slot as usize].rounded()).sum();
        let signature = signature(program, module, last);
        found.push(Block { module, passages, signature, kept_bytes });
    }
    outermost(trace, &found)
}

/// Modules that may be blocks.
fn candidates(trace: &Trace, named: &[&str]) -> Vec<bool> {
    let mut candidates = numbered(trace);
    let ids = (0..).zip(&trace.modules).filter(|(_, module)| named.contains(&module.name.as_str()));
    let asked: Vec<u32> = ids.map(|(id, _)| id).collect();
    for (id, candidate) in (0..).zip(&mut candidates) {
        let near = |&other: &u32| trace.is_within(id, other) || trace.is_within(other, id);
        *candidate = asked.contains(&id) || (*candidate && !asked.iter().any(near));
    }
    candidates
}

/// Modules whose name ends in a number and that have a sibling of the same kind of name.
fn numbered(trace: &Trace) -> Vec<bool> {
    let is_number = |name: &str| {
        let last = name.rsplit('.').next().unwrap_or(name);
        !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit())
    };
    let mut has_parts = vec![false; trace.modules.len()];
    let mut siblings: HashMap<u32, u32> = HashMap::default();
    for module in &trace.modules {
        if module.parent != NO_MODULE {
            has_parts[module.parent as usize] = true;
        }
        if is_number(&module.name) {
            *siblings.entry(module.parent).or_default() += 1;
        }
    }
    let candidate = |(module, has_parts): (&crate::trace::Module, bool)| {
        has_parts && is_number(&module.name) && siblings[&module.parent] > 1
    };
    trace.modules.iter().zip(has_parts).map(candidate).collect()
}

/// Those that lie in no other.
fn outermost(trace: &Trace, blocks: &[Block]) -> Vec<Block> {
    let modules: Vec<u32> = blocks.iter().map(|block| block.module).collect();
    let is_inner =
        |block: &Block| modules.iter().any(|&other| other != block.module && trace.is_within(block.module, other));
    blocks.iter().filter(|block| !is_inner(block)).cloned().collect()
}

/// When slots are dropped.
struct Lives {
    starts: Vec<u32>,
    frees: Vec<u32>,
}

impl Lives {
    fn new(program: &Program<'_>) -> Self {
        let mut starts = vec![0_u32; program.slots.len() + 1];
        for event in &program.events {
            if let Event::Free(slot) = event {
                starts[*slot as usize + 1] += 1;
            }
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        let mut next = starts.clone();
        let mut frees = vec![0; starts.last().copied().unwrap_or(0) as usize];
        for (at, event) in program.events.iter().enumerate() {
            if let Event::Free(slot) = event {
                frees[next[*slot as usize] as usize] = u32::try_from(at).unwrap_or(u32::MAX);
                next[*slot as usize] += 1;
            }
        }
        Self { starts, frees }
    }

    /// The event that drops what is alive under `slot` after event `at`.
    fn end(&self, slot: u32, at: usize) -> Option<usize> {
        let all = &self.frees[self.starts[slot as usize] as usize..self.starts[slot as usize + 1] as usize];
        all.get(all.partition_point(|&free| (free as usize) <= at)).map(|&free| free as usize)
    }
}

fn passage(program: &Program<'_>, uses: &Uses, lives: &Lives, enter: usize, leave: usize) -> Option<Passage> {
    let trace = program.trace;
    let passing = |class: Class| !class.is_lasting() && !matches!(class, Class::Gradient | Class::Workspace);
    // What is alive when the module is left, and was made within it.
    let mut born: Vec<u32> = Vec::new();
    let mut arguments: Vec<u32> = Vec::new();
    for event in &program.events[enter..=leave] {
        match *event {
            Event::Alloc(slot) => born.push(slot),
            Event::Op(call) => arguments.extend(trace.inputs(&trace.calls[call as usize])),
            _ => {}
        }
    }
    born.sort_unstable();
    born.dedup();
    arguments.sort_unstable();
    arguments.dedup();
    arguments.retain(|slot| born.binary_search(slot).is_err() && passing(program.slots[*slot as usize].class));
    born.retain(|&slot| passing(program.slots[slot as usize].class));
    let backward = backward_after(program, leave)?;
    let (mut kept, mut results) = (Vec::new(), Vec::new());
    let mut needed = usize::MAX;
    for slot in born {
        let end = lives.end(slot, enter).unwrap_or(program.events.len());
        if end <= leave {
            continue;
        }
        let used_by_others = !uses.within(slot, leave, backward).is_empty();
        // What nobody touches again before it is dropped in the forward pass was only a local variable of a caller.
        let first = uses.within(slot, backward, end).first().map(|&at| at as usize);
        if used_by_others || (first.is_none() && end < backward) {
            results.push(slot);
        } else if end > backward {
            kept.push(slot);
            needed = needed.min(first.unwrap_or(end));
        }
    }
    if kept.is_empty() || needed == usize::MAX {
        return None;
    }
    let done = kept.iter().filter_map(|&slot| lives.end(slot, enter)).max()?;
    let needed = before_results(program, needed);
    let ends = arguments.iter().map(|&slot| (slot, lives.end(slot, enter)));
    let arguments = ends.filter_map(|(slot, end)| end.filter(|&end| end < needed).map(|end| (slot, end))).collect();
    Some(Passage { enter, leave, needed, done, kept, results, arguments })
}

/// The event that begins the next backward pass; `None` where another step comes first.
fn backward_after(program: &Program<'_>, at: usize) -> Option<usize> {
    let found = (at..program.events.len()).find(|&at| {
        matches!(program.events[at], Event::Phase(Phase::Backward) | Event::Step(_))
            || matches!(program.events[at], Event::Enter(_, Pass::Backward))
    })?;
    (!matches!(program.events[found], Event::Step(_))).then_some(found)
}

/// The event before the memory for the results and the scratch memory of the call at `at` is asked for.
#[must_use]
pub fn before_results(program: &Program<'_>, at: usize) -> usize {
    let belongs = |event: &Event| match *event {
        Event::Alloc(_) => true,
        Event::Free(slot) => program.slots[slot as usize].class == Class::Workspace,
        _ => false,
    };
    let mut first = at;
    while first > 0 && belongs(&program.events[first - 1]) {
        first -= 1;
    }
    // Scratch memory that is dropped here is that of the call before.
    while first < at && matches!(program.events[first], Event::Free(_)) {
        first += 1;
    }
    first
}

fn signature(program: &Program<'_>, module: u32, passage: &Passage) -> u64 {
    let trace = program.trace;
    let mut parts: Vec<u64> = Vec::new();
    for event in &program.events[passage.enter..=passage.leave] {
        match *event {
            Event::Alloc(slot) => parts.extend([1, program.slots[slot as usize].bytes]),
            Event::Free(slot) => parts.extend([2, program.slots[slot as usize].bytes]),
            Event::Op(call) => {
                let call = &trace.calls[call as usize];
                parts.extend([3, u64::from(call.op), call.read, call.written]);
            }
            _ => {}
        }
    }
    let class = trace.modules.get(module as usize).map_or("", |module| module.class.as_str());
    FixedState::default().hash_one((class, parts))
}
