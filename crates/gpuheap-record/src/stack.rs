//! Call stacks as a tree: every stack is its innermost frame and the stack of its caller.

use foldhash::HashMap;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};

use crate::id::{FrameId, StackId, StringId};

/// The file of frames that stand for no code but for who asked the driver for memory, and how. A stack with such a frame
/// is of the driver's own memory, which no allocator cut up.
pub const DRIVER_FILE: &str = "<driver>";

/// One place in the program: a line of a function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Frame {
    /// The function's name, as the program's language spells it.
    pub function: StringId,
    /// The file that the function is in, as recorded.
    pub file: StringId,
    /// The line, from 1; 0 where it is not known.
    pub line: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    frame: FrameId,
    caller: StackId,
}

/// Every distinct stack of a recording. Id 0 is the empty stack, and a caller's id is always smaller than the id of
/// the stacks that it calls, so one pass over the table sees callers first.
#[derive(Clone, Debug)]
pub struct StackTable {
    /// `nodes[0]` stands for the empty stack and has no frame of its own.
    nodes: Vec<Node>,
    children: HashMap<(StackId, FrameId), StackId>,
    /// Whole stacks by the hash of all their frames, so that a known stack costs one look-up.
    whole: HashTable<(u64, StackId)>,
    hasher: RandomState,
}

impl StackTable {
    /// The stack without frames.
    pub const EMPTY: StackId = StackId::new(0);

    /// A table that holds only the empty stack.
    #[must_use]
    pub fn new() -> Self {
        let root = Node { frame: FrameId::new(0), caller: Self::EMPTY };
        Self {
            nodes: vec![root],
            children: HashMap::default(),
            whole: HashTable::new(),
            hasher: RandomState::default(),
        }
    }

    /// The id of the stack with these frames, innermost first, as recordings list them.
    pub fn intern(&mut self, innermost_first: &[FrameId]) -> StackId {
        if innermost_first.is_empty() {
            return Self::EMPTY;
        }
        let hash = hash_frames(&self.hasher, innermost_first);
        let nodes = &self.nodes;
        let known = self.whole.find(hash, |&(_, stack)| same_frames(nodes, stack, innermost_first));
        if let Some(&(_, stack)) = known {
            return stack;
        }
        let mut stack = Self::EMPTY;
        for &frame in innermost_first.iter().rev() {
            stack = self.child(stack, frame);
        }
        self.whole.insert_unique(hash, (hash, stack), |&(hash, _)| hash);
        stack
    }

    /// The stack that `caller` becomes when it calls `frame`.
    pub fn child(&mut self, caller: StackId, frame: FrameId) -> StackId {
        let next = StackId::from_index(self.nodes.len());
        let stack = *self.children.entry((caller, frame)).or_insert(next);
        if stack == next {
            self.nodes.push(Node { frame, caller });
        }
        stack
    }

    /// The innermost frame of `stack`; `None` for the empty stack.
    #[must_use]
    pub fn innermost(&self, stack: StackId) -> Option<FrameId> {
        (stack != Self::EMPTY).then(|| self.nodes[stack.index()].frame)
    }

    /// The stack without its innermost frame; the empty stack for the empty stack.
    #[must_use]
    pub fn caller(&self, stack: StackId) -> StackId {
        self.nodes[stack.index()].caller
    }

    /// The frames of `stack`, innermost first.
    pub fn frames(&self, stack: StackId) -> impl Iterator<Item = FrameId> + '_ {
        let mut at = stack;
        std::iter::from_fn(move || {
            let frame = self.innermost(at)?;
            at = self.caller(at);
            Some(frame)
        })
    }

    /// How many distinct stacks there are, the empty one and every caller's included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether only the empty stack is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Roughly how many bytes of host memory the table takes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + self.children.capacity() * (size_of::<(StackId, FrameId, StackId)>() + 1)
            + self.whole.capacity() * (size_of::<(u64, StackId)>() + 1)
    }
}

impl Default for StackTable {
    fn default() -> Self {
        Self::new()
    }
}

fn hash_frames(seed: &RandomState, frames: &[FrameId]) -> u64 {
    let mut hasher = seed.build_hasher();
    for frame in frames {
        hasher.write_u32(frame.get());
    }
    hasher.finish()
}

fn same_frames(nodes: &[Node], stack: StackId, innermost_first: &[FrameId]) -> bool {
    let mut at = stack;
    for &frame in innermost_first {
        if at == StackTable::EMPTY || nodes[at.index()].frame != frame {
            return false;
        }
        at = nodes[at.index()].caller;
    }
    at == StackTable::EMPTY
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn stacks_share_their_callers() {
        let [main, train, forward, step] = [0, 1, 2, 3].map(FrameId::new);
        let mut stacks = StackTable::new();
        let first = stacks.intern(&[forward, train, main]);
        let second = stacks.intern(&[step, train, main]);
        assert_eq!(stacks.caller(first), stacks.caller(second));
        assert_eq!(stacks.len(), 5, "the empty stack, main, train and two leaves");
        assert_eq!(stacks.intern(&[forward, train, main]), first);
        assert_eq!(stacks.frames(second).collect::<Vec<_>>(), [step, train, main]);
        assert_eq!(stacks.intern(&[train, main]), stacks.caller(first));
        assert_eq!(stacks.innermost(StackTable::EMPTY), None);
    }

    proptest! {
        #[test]
        fn a_stack_comes_back_as_it_went_in(lists in prop::collection::vec(prop::collection::vec(0u32..6, 0..8), 1..60)) {
            let mut stacks = StackTable::new();
            let mut seen = std::collections::BTreeMap::new();
            for list in lists {
                let frames: Vec<_> = list.iter().copied().map(FrameId::new).collect();
                let stack = stacks.intern(&frames);
                prop_assert_eq!(stacks.frames(stack).collect::<Vec<_>>(), frames);
                let before = seen.insert(list, stack);
                prop_assert!(before.is_none_or(|before| before == stack));
                prop_assert!(stack == StackTable::EMPTY || stacks.caller(stack) < stack);
            }
        }
    }
}
