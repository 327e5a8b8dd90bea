//! What each allocation is for, and by which rule that was decided.
//!
//! Frames say who asked, the lifetime says what for: a result of the forward pass that is alive when the backward pass
//! starts was saved for it. Memory from before the recording has no frames: there, sizes speak. Each parameter has a
//! gradient of its size, and whatever else an optimizer keeps has that size again.

use foldhash::{HashMap, HashSet};
use gpuheap_record::{NamedAs, StackId};

use crate::frames::{FrameTableMarks, Marks};
use crate::lifetimes::{Allocation, AllocationId, Allocations, Lanes, Tick};
use crate::names::Names;
use crate::phases::Phases;
use crate::report::Class;

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident => $class:ident, $text:literal;)*) => {
        /// The rules that class allocations.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub(crate) enum Rule { $($name),* }

        impl Rule {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name),*];

            pub(crate) fn class(self) -> Class {
                match self { $(Self::$name => Class::$class),* }
            }

            pub(crate) fn text(self) -> &'static str {
                match self { $(Self::$name => $text),* }
            }
        }
    };
}

rules! {
    NamedParameter => Parameters, "named as a parameter or buffer by the program";
    NamedGradient => Gradients, "named as a gradient by the program";
    NamedState => OptimizerState, "named as an optimizer's state by the program";
    NamedActivation => Activations, "named as a module's result by the program";
    NamedInput => Inputs, "named as an input by the program";
    NamedCache => Cache, "named as a cache of keys and values by the program";
    ModuleMemory => Parameters, "made, moved or loaded by a module, alive when a forward pass began";
    SizeOfGradient => Parameters, "as large as a gradient, there before the first backward pass, never freed";
    BeforeGradientSized => Parameters, "there before the recording, never freed, one for each gradient of that size";
    BeforeNoBackward => Parameters, "there before the recording, never freed, in a program without backward passes";
    AliveAfterBackward => Gradients, "made by a backward pass and alive after it";
    GradientAtFailure => Gradients, "made by a backward pass that ran out of memory, as large as a parameter";
    OldGradient => Gradients, "there before the recording, as large as a gradient, replaced by one";
    AliveAfterStep => OptimizerState, "made by an optimizer and alive after its step";
    BeforeFurtherCopies => OptimizerState, "there before the recording, never freed, a further copy of a parameter's size";
    SavedForBackward => Activations, "made by a forward pass and alive when a backward pass began";
    ForwardAtFailure => Activations, "made by a forward pass and alive when an allocation failed";
    ForwardKept => Activations, "made by a forward pass that no backward pass followed, never freed";
    DataLoading => Inputs, "made by a data loader";
    KeptData => Inputs, "made outside modules and never freed";
    AliveAtForward => Inputs, "made outside modules and alive when the next forward pass began";
    BeforeFreedInBackward => Activations, "there before the recording, freed by a backward pass";
    DiesInForward => Temporaries, "made and freed before a backward pass began";
    DiesInBackward => Temporaries, "made and freed within a backward pass";
    DiesInStep => Temporaries, "made and freed within an optimizer step";
    UnusedByForward => Temporaries, "made by a module and freed before its forward pass";
    Collective => Communication, "made by collective communication";
    KeyValueCache => Cache, "made by a cache of keys and values, not for a backward pass";
    LibraryWorkspace => Workspace, "of a known work-space size, one for each stream and thread, never freed";
    DriverCommunication => Communication, "taken from the driver by a library of collective communication";
    DriverWorkspace => Workspace, "taken from the driver by a library for itself";
    Driver => Unknown, "taken from the driver; what for, only a recording of the framework's own can tell";
    NoFrames => Unknown, "no frames were recorded";
    Unexplained => Unknown, "no rule applies";
}

/// The rule for each allocation.
#[derive(Debug)]
pub(crate) struct Classes {
    rules: Vec<Rule>,
}

impl Classes {
    pub(crate) fn rule(&self, id: AllocationId) -> Rule {
        self.rules[id.index()]
    }

    pub(crate) fn class(&self, id: AllocationId) -> Class {
        self.rule(id).class()
    }
}

/// Work spaces that cuBLAS makes once for each handle and stream: 8 MiB + 128 KiB, on later GPUs 32 MiB.
const WORKSPACES: [u64; 2] = [8_519_680, 33_554_432];

/// Classes every allocation.
pub(crate) fn classify(
    allocations: &Allocations,
    lanes: &Lanes,
    names: &Names,
    phases: &Phases,
    marks: &FrameTableMarks,
) -> Classes {
    let mut classifier = Classifier { phases, marks, workspaces: HashSet::default(), lanes };
    let mut rules: Vec<Rule> = allocations.rows().iter().map(|row| classifier.rule(row)).collect();
    // What the program says of itself comes before all that is inferred.
    for (id, _) in allocations.iter() {
        if let Some(rule) = names.get(id).and_then(|(named_as, _)| named(named_as)) {
            rules[id.index()] = rule;
        }
    }
    by_size(&mut rules, allocations, phases);
    Classes { rules }
}

/// The rule for memory that has a name; none for names that say nothing of a class.
fn named(named_as: NamedAs) -> Option<Rule> {
    Some(match named_as {
        NamedAs::Parameter => Rule::NamedParameter,
        NamedAs::Gradient => Rule::NamedGradient,
        NamedAs::OptimizerState => Rule::NamedState,
        NamedAs::Activation => Rule::NamedActivation,
        NamedAs::Input => Rule::NamedInput,
        NamedAs::Cache => Rule::NamedCache,
        NamedAs::Other => return None,
    })
}

struct Classifier<'a> {
    phases: &'a Phases,
    marks: &'a FrameTableMarks,
    lanes: &'a Lanes,
    /// Streams, and whether of the autograd engine's threads, that have their work space, with its size.
    workspaces: HashSet<(u64, bool, u64)>,
}

impl Classifier<'_> {
    fn rule(&mut self, row: &Allocation) -> Rule {
        let set = self.marks.marks(row.stack);
        if set.any(Marks::DRIVER) {
            return match () {
                () if set.any(Marks::COMMUNICATION) => Rule::DriverCommunication,
                () if set.any(Marks::WORKSPACE) => Rule::DriverWorkspace,
                () => Rule::Driver,
            };
        }
        let has_frames = row.stack != StackId::default();
        if row.born == Tick::START {
            return match () {
                () if self.is_workspace(row, set) => Rule::LibraryWorkspace,
                () if set.any(Marks::PARAMETER) => Rule::ModuleMemory,
                () if set.any(Marks::OPTIMIZER) => Rule::AliveAfterStep,
                () if set.any(Marks::KV_CACHE) => Rule::KeyValueCache,
                () if set.any(Marks::DATA) => Rule::DataLoading,
                () if set.any(Marks::MODULE_CALL) => Rule::SavedForBackward,
                () if has_frames => Rule::AliveAtForward,
                () => Rule::NoFrames,
            };
        }
        if !self.phases.has_frames {
            return Rule::NoFrames;
        }
        if set.any(Marks::PARAMETER) && !self.is_recomputed(row, set) {
            let unused = self.phases.next_module_call(row.born).is_some_and(|call| row.freed <= call);
            return if unused { Rule::UnusedByForward } else { Rule::ModuleMemory };
        }
        if self.is_workspace(row, set) {
            return Rule::LibraryWorkspace;
        }
        if set.any(Marks::COMMUNICATION) {
            return Rule::Collective;
        }
        if self.phases.is_backward(row.stack, set) {
            return self.backward_rule(row);
        }
        if let Some(rule) = self.optimizer_rule(row, set) {
            return rule;
        }
        if set.any(Marks::DATA) {
            return Rule::DataLoading;
        }
        match self.forward_rule(row, set) {
            Rule::SavedForBackward => Rule::SavedForBackward,
            _ if set.any(Marks::KV_CACHE) => Rule::KeyValueCache,
            rule => rule,
        }
    }

    fn is_recomputed(&self, row: &Allocation, set: Marks) -> bool {
        self.phases.is_backward(row.stack, set)
    }

    fn is_workspace(&mut self, row: &Allocation, set: Marks) -> bool {
        if set.any(Marks::WORKSPACE) {
            return row.freed == Tick::NEVER;
        }
        let fits = WORKSPACES.contains(&row.requested) && row.freed == Tick::NEVER;
        let by_engine = row.stack == StackId::default() || self.phases.is_backward(row.stack, set);
        let by_library = by_engine || (set.any(Marks::MODULE_CALL) && !set.any(Marks::PARAMETER));
        let stream = self.lanes.get(row.lane).stream;
        let mut is_first = |by_engine| self.workspaces.insert((stream, by_engine, row.requested));
        // Without frames from before the recording, it may be either thread's.
        let either = row.born == Tick::START && row.stack == StackId::default();
        fits && by_library && (is_first(by_engine) || (either && is_first(!by_engine)))
    }

    fn backward_rule(&self, row: &Allocation) -> Rule {
        let Some(pass) = self.phases.backward_of(row.born) else { return Rule::Unexplained };
        // Where a pass failed, nothing tells what would have stayed: sizes decide later.
        let failed = !pass.ended && self.phases.oom_within(row, pass.start, pass.end);
        let survives = row.freed > pass.end && (pass.ended || row.freed == Tick::NEVER) && !failed;
        if survives { Rule::AliveAfterBackward } else { Rule::DiesInBackward }
    }

    fn optimizer_rule(&self, row: &Allocation, set: Marks) -> Option<Rule> {
        let span = self.phases.optimizer_of(row.born);
        if !set.any(Marks::OPTIMIZER) && (span.is_none() || set.any(Marks::MODULE_CALL)) {
            return None;
        }
        if set.any(Marks::ROOT_GRADIENT) {
            return None;
        }
        let end = span.map_or(row.born, |span| span.end);
        // A step that runs out of memory unwinds late: what it made for itself is still there at its end.
        let failed = self.phases.oom_between(row.born, end);
        let survives = row.freed > end && (!failed || row.freed == Tick::NEVER);
        Some(if survives { Rule::AliveAfterStep } else { Rule::DiesInStep })
    }

    fn forward_rule(&self, row: &Allocation, set: Marks) -> Rule {
        let backward = self.phases.next_backward(row.born).map_or(Tick::NEVER, |pass| pass.start);
        let saved = backward != Tick::NEVER && row.freed > backward;
        if set.any(Marks::MODULE_CALL) {
            return match () {
                () if saved => Rule::SavedForBackward,
                () if self.phases.oom_within(row, row.born, backward) => Rule::ForwardAtFailure,
                () if backward == Tick::NEVER && row.freed == Tick::NEVER => Rule::ForwardKept,
                () => Rule::DiesInForward,
            };
        }
        let forward = self.phases.next_module_call(row.born).unwrap_or(Tick::NEVER);
        match () {
            () if forward < backward && row.freed > forward => Rule::AliveAtForward,
            () if saved => Rule::SavedForBackward,
            () if self.phases.oom_within(row, row.born, backward) => Rule::ForwardAtFailure,
            () if row.freed == Tick::NEVER => Rule::KeptData,
            () => Rule::DiesInForward,
        }
    }
}

/// Where frames say nothing, sizes do: parameters are as many and as large as their gradients.
fn by_size(rules: &mut [Rule], allocations: &Allocations, phases: &Phases) {
    let gradients = gradients_of_a_pass(rules, allocations, phases);
    let first_backward = phases.backward.first().map_or(Tick::NEVER, |pass| pass.start);
    let mut parameters: HashMap<u64, u64> = HashMap::default();
    for (row, rule) in allocations.rows().iter().zip(rules.iter()) {
        if rule.class() == Class::Parameters {
            *parameters.entry(row.requested).or_default() += 1;
        }
    }
    for (row, rule) in allocations.rows().iter().zip(rules.iter_mut()) {
        let wanted = gradients.get(&row.requested).copied().unwrap_or(0);
        let have = parameters.entry(row.requested).or_default();
        let stays = row.freed == Tick::NEVER;
        match *rule {
            Rule::NoFrames if row.born == Tick::START && phases.has_frames => {
                *rule = match () {
                    () if stays && *have < wanted => {
                        *have += 1;
                        Rule::BeforeGradientSized
                    }
                    () if stays && wanted > 0 => Rule::BeforeFurtherCopies,
                    () if row.freed < Tick::NEVER && phases.backward_of(row.freed).is_some() => {
                        Rule::BeforeFreedInBackward
                    }
                    () if !stays && wanted > 0 => Rule::OldGradient,
                    () if stays && gradients.is_empty() => Rule::BeforeNoBackward,
                    () => Rule::NoFrames,
                };
            }
            // In a program with modules, what a forward pass makes is not a parameter.
            Rule::SavedForBackward if !phases.module_calls.is_empty() => {}
            Rule::AliveAtForward | Rule::SavedForBackward | Rule::KeptData
                if stays && row.born < first_backward && *have < wanted =>
            {
                *have += 1;
                *rule = Rule::SizeOfGradient;
            }
            _ => {}
        }
    }
    // A backward pass that failed is unwound: what it had made of gradients is gone at its end.
    for (row, rule) in allocations.rows().iter().zip(rules.iter_mut()) {
        if *rule == Rule::DiesInBackward
            && parameters.get(&row.requested).is_some_and(|&count| count > 0)
            && phases.backward_of(row.born).is_some_and(|pass| phases.oom_within(row, pass.start, pass.end))
        {
            *rule = Rule::GradientAtFailure;
        }
    }
}

/// How many gradients of each size one backward pass makes: the most that any pass made.
fn gradients_of_a_pass(rules: &[Rule], allocations: &Allocations, phases: &Phases) -> HashMap<u64, u64> {
    let mut most: HashMap<u64, u64> = HashMap::default();
    let mut now: HashMap<u64, (Tick, u64)> = HashMap::default();
    for (row, rule) in allocations.rows().iter().zip(rules) {
        if *rule != Rule::AliveAfterBackward {
            continue;
        }
        let pass = phases.backward_of(row.born).map_or(Tick::START, |pass| pass.start);
        let (of_pass, count) = now.entry(row.requested).or_insert((pass, 0));
        if *of_pass != pass {
            (*of_pass, *count) = (pass, 0);
        }
        *count += 1;
        let best = most.entry(row.requested).or_default();
        *best = (*best).max(*count);
    }
    most
}
