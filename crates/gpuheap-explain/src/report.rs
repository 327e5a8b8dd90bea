//! The report: everything that was found out about one device of a recording, ready to be shown.
//!
//! Field names are the names of the JSON report (`schema` says which version); they are stable. Renderers show these
//! values and compute nothing. All sizes are bytes, all times microseconds of Unix time, all events row numbers in the
//! device's event list.

mod class;
mod whatif;

use std::collections::BTreeMap;

use gpuheap_record::Bytes;
use serde::Serialize;

pub use class::Class;
pub use whatif::{WhatIf, WhatIfReport, WhatIfRole};

/// The name and version of the JSON report.
pub const SCHEMA: &str = "gpuheap.report/1";

/// All about one device of a recording.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// What was read.
    pub source: SourceInfo,
    /// The answer in one sentence.
    pub verdict: Verdict,
    /// The most that each counter ever was, each at its own moment.
    pub peaks: Peaks,
    /// The moment of most allocated bytes.
    pub peak: Moment,
    /// The moment of most reserved bytes.
    pub peak_reserved: Moment,
    /// The last failed allocation, if any failed.
    pub oom: Option<OutOfMemory>,
    /// After the last event.
    pub end: Moment,
    /// Which moment [`Report::ledger`] and [`Report::holders`] describe.
    pub ledger_at: MomentName,
    /// The account of reserved memory at that moment: its parts add up to the reserved bytes, or to the limit if one
    /// was given.
    pub ledger: Vec<LedgerPart>,
    /// The same account at every moment that the recording has.
    #[serde(serialize_with = "as_ledgers")]
    pub ledgers: Vec<(MomentName, Vec<LedgerPart>)>,
    /// The sites that held most at that moment, largest first.
    pub holders: Vec<Holder>,
    /// What the program itself calls the memory at that moment, largest first; empty where the recording has no names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<Named>,
    /// The turns of the program's loop.
    pub steps: Steps,
    /// What is wrong, the most important first. Empty if nothing is.
    pub findings: Vec<Finding>,
    /// How well the allocator's own rules explain the recording.
    pub replay: ReplayCheck,
    /// Rows of other settings; empty where none was asked for.
    pub whatif: Vec<WhatIf>,
    /// How the memory at [`Report::ledger_at`] was classed, and by which rules.
    pub classes: Vec<ClassRule>,
    /// Allocated and reserved bytes over the recording, thinned to at most a few hundred points.
    pub timeline: Vec<TimelinePoint>,
}

/// What was read.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SourceInfo {
    /// The file, or `-`.
    pub path: String,
    /// The kind of file: `torch-snapshot-pickle`, `torch-snapshot-json` or `gpuheap-recording`, with `+gzip` or `+zstd` if compressed.
    pub format: String,
    /// Bytes of the file as it was read.
    pub bytes: Bytes,
    /// Events of all devices.
    pub events: u64,
    /// How many devices the recording has.
    pub devices: u64,
    /// The device that this report is about.
    pub device: u32,
    /// Events of this device.
    pub device_events: u64,
    /// Whether the history starts at the first allocation: nothing was alive before the first event. Empty segments may
    /// have been cached.
    pub complete: bool,
    /// Bytes that were already reserved before the first event, rebuilt backwards from the final state.
    pub reserved_before: Bytes,
    /// Microseconds from the first to the last event.
    pub duration_us: u64,
    /// The allocator settings that the recording names; empty for stock settings.
    pub conf: String,
    /// All memory of the device, where the recording says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<Bytes>,
    /// What else the recording says of the program and its machine, such as versions.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, String>,
    /// What limits the answers: one sentence each.
    pub notes: Vec<String>,
}

/// The answer in one sentence.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Verdict {
    /// What is wrong, or that nothing is.
    pub kind: VerdictKind,
    /// Cause, place and size in one sentence.
    pub headline: String,
    /// The line to look at.
    pub site: Option<Site>,
    /// What to do, in one or two sentences.
    pub remedy: String,
    /// How sure this is.
    pub confidence: Confidence,
}

/// What is wrong with a program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum VerdictKind {
    /// Nothing that the recording shows.
    Healthy,
    /// Memory that no later step needs is kept.
    Leak,
    /// Garbage piles up until the collector runs.
    Sawtooth,
    /// Reserved memory that the allocator cannot use for what is asked.
    Fragmentation,
    /// Memory cached for streams that no longer allocate.
    Stranded,
    /// An allocation failed.
    Oom,
}

impl VerdictKind {
    /// The name in text.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Leak => "Leak",
            Self::Sawtooth => "Sawtooth",
            Self::Fragmentation => "Fragmentation",
            Self::Stranded => "Stranded memory",
            Self::Oom => "Out of memory",
        }
    }
}

/// How sure a statement is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    /// Little to go by.
    Low,
    /// Likely.
    Medium,
    /// As good as certain.
    High,
}

/// A place in the program.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Site {
    /// The file, as recorded.
    pub file: String,
    /// The line, from 1; 0 where it is not known.
    pub line: u32,
    /// The function.
    pub function: String,
}

/// The most that each counter ever was, as `torch.cuda.memory_stats()` counts (`….all.peak`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Peaks {
    /// Blocks that the program holds.
    pub allocated_bytes: Bytes,
    /// What the program asked for in the blocks that it holds or that wait for another stream.
    pub requested_bytes: Bytes,
    /// Blocks that the program holds or that wait for another stream.
    pub active_bytes: Bytes,
    /// Memory taken from the driver.
    pub reserved_bytes: Bytes,
}

/// The memory at one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Moment {
    /// The event after which this holds; `None` if it already held before the first event.
    pub event: Option<u64>,
    /// When; `None` where the recording has no time.
    pub time_us: Option<u64>,
    /// Blocks that the program holds.
    pub allocated_bytes: Bytes,
    /// Memory taken from the driver.
    pub reserved_bytes: Bytes,
    /// What was asked for by class, largest first; with the rounding of blocks it adds up to `allocated_bytes`.
    #[serde(serialize_with = "as_map")]
    pub by_class: Vec<(Class, Bytes)>,
}

/// One part of the ledger.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LedgerPart {
    /// Which part: a class, `rounding`, `pending frees`, `private pool (1, 0)`, `free, default stream`,
    /// `stranded, stream 0x…`; outside PyTorch's allocator: `not reserved by PyTorch`, `context, libraries`,
    /// `other processes`, `free on the device`, ….
    pub part: String,
    /// What sort of part, for colours and grouping.
    pub kind: PartKind,
    /// The class, for parts that are blocks of one.
    pub class: Option<Class>,
    /// Bytes of it.
    pub bytes: Bytes,
    /// What it is made of, in one sentence; may be empty.
    pub detail: String,
}

/// The sorts of ledger parts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PartKind {
    /// Blocks of one class, by what was asked for.
    Class,
    /// The difference between what was asked for and the blocks that were given.
    Rounding,
    /// Dropped by the program, still used by another stream.
    Pending,
    /// Everything reserved for one private pool.
    PrivatePool,
    /// Free inside segments, usable by the next request that fits.
    Free,
    /// Free inside segments of a stream that no longer allocates.
    Stranded,
    /// Not the allocator's: what is left of the limit, or of the device.
    Outside,
}

/// The moments that a ledger can describe.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MomentName {
    /// The moment of most allocated bytes.
    #[default]
    Peak,
    /// The moment of most reserved bytes.
    PeakReserved,
    /// The last failed allocation.
    Oom,
    /// After the last event.
    End,
}

impl MomentName {
    /// The name as a key of the JSON report.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::Peak => "peak",
            Self::PeakReserved => "peak_reserved",
            Self::Oom => "oom",
            Self::End => "end",
        }
    }
}

/// What one site held at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Holder {
    /// The place; `None` where no frame was recorded.
    pub site: Option<Site>,
    /// The class that most of it has.
    pub class: Class,
    /// Allocated bytes.
    pub bytes: Bytes,
    /// Blocks.
    pub blocks: u64,
    /// What to show where there is no site, such as `backward pass started at train.py:16`.
    pub label: String,
}

/// Memory that the program has one name for, at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Named {
    /// The name, such as `model.layers.3.weight`, or `model.layers.3` for what a module's forward pass made.
    pub name: String,
    /// The class that the name gives.
    pub class: Class,
    /// Allocated bytes.
    pub bytes: Bytes,
    /// Blocks.
    pub blocks: u64,
}

/// A failed allocation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OutOfMemory {
    /// Memory at that moment.
    #[serde(flatten)]
    pub moment: Moment,
    /// How many allocations failed in the recording.
    pub count: u64,
    /// What was asked for, rounded by the allocator.
    pub asked_bytes: Bytes,
    /// Free memory in segments: cached, but no use for this request.
    pub cached_bytes: Bytes,
    /// The largest free range inside one segment.
    pub largest_free_bytes: Bytes,
    /// Dropped by the program, still used by another stream.
    pub pending_bytes: Bytes,
    /// What the driver had left, as recorded; the room under a memory fraction may be smaller.
    pub device_free_bytes: Bytes,
    /// What an allocator without any waste would have needed: allocated and pending memory and the request.
    pub ideal_bytes: Bytes,
    /// The cap on reserved memory that explains the failure: at least this …
    pub limit_at_least_bytes: Bytes,
    /// … and less than this; `None` where nothing bounds it.
    pub limit_below_bytes: Option<Bytes>,
    /// Where the request was made.
    pub site: Option<Site>,
    /// What fills the card, largest first.
    pub holders: Vec<Holder>,
}

/// The turns of the program's loop.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Steps {
    /// How many.
    pub count: u64,
    /// From what they were told.
    pub how: StepSource,
    /// What one step is, in words: `optimizer step`, `backward pass`, `call of train.py:28`.
    pub unit: String,
}

/// From what the steps were told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepSource {
    /// The recording's own annotations.
    Annotation,
    /// Frames of optimizers, or of the start of a backward pass.
    OptimizerFrames,
    /// What recurs in the sequence of allocations.
    Period,
    /// None were found.
    None,
}

/// One thing wrong.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Finding {
    /// Unique in the report: `leak-1`.
    pub id: String,
    /// What sort of thing.
    pub kind: FindingKind,
    /// What, in one sentence.
    pub title: String,
    /// The line to look at.
    pub site: Option<Site>,
    /// The whole stack of the largest part, innermost first.
    pub stack: Vec<Site>,
    /// Bytes that it costs.
    pub bytes: Bytes,
    /// Bytes that it grows by each step, where it grows.
    pub bytes_per_step: Option<Bytes>,
    /// How sure this is.
    pub confidence: Confidence,
    /// What was seen, each in one sentence with its figures.
    pub evidence: Vec<String>,
    /// What to do.
    pub remedy: Remedy,
    /// Bytes at the end of each step, where it grows: the curve to draw.
    pub growth: Vec<Bytes>,
    /// The event after which it can be seen best: where it began, or where it is largest; `None` where no one event
    /// stands for it.
    pub event: Option<u64>,
}

/// The sorts of finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// An allocation failed.
    Oom,
    /// Memory that no later step needs is kept.
    Leak,
    /// Garbage piles up until the collector runs.
    Sawtooth,
    /// Memory cached for streams that no longer allocate.
    Stranded,
    /// Reserved memory that the allocator cannot use for what is asked.
    Fragmentation,
    /// Every step needs more than the one before; nothing is kept. Information, not a fault.
    GrowingWorkingSet,
    /// Something large that was made in the middle of the run stays, but nothing grows. Information, not a fault.
    Kept,
    /// Memory waits long for another stream before it can be used again.
    DeferredFrees,
    /// Allocator settings that do nothing, or harm.
    Settings,
}

/// What to do about a finding.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Remedy {
    /// In words.
    pub text: String,
    /// Allocator settings that help, if any do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conf: Option<String>,
    /// Bytes that it saves, where that could be computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saves_bytes: Option<Bytes>,
}

/// How well the allocator's own rules explain the recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ReplayCheck {
    /// The policy that was replayed.
    pub policy: String,
    /// Its settings, as recorded; empty for stock settings.
    pub conf: String,
    /// Whether every segment event and every block was predicted and the final state was reached.
    pub exact: bool,
    /// Segment events in the recording.
    pub segment_events: u64,
    /// How many of them the policy predicted.
    pub matched: u64,
    /// The first thing that was not predicted, in words.
    pub first_mismatch: Option<String>,
}

/// How many bytes one rule put into a class.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ClassRule {
    /// The class.
    pub class: Class,
    /// The rule, in words.
    pub rule: &'static str,
    /// Bytes that it classed.
    pub bytes: Bytes,
    /// Blocks that it classed.
    pub blocks: u64,
}

/// The counters at one moment of the timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct TimelinePoint {
    /// The event after which this holds.
    pub event: u64,
    /// When.
    pub time_us: u64,
    /// Blocks that the program holds: the most within the point's share of the recording.
    pub allocated_bytes: Bytes,
    /// Memory taken from the driver: the most within the point's share of the recording.
    pub reserved_bytes: Bytes,
}

fn as_ledgers<S: serde::Serializer>(
    ledgers: &[(MomentName, Vec<LedgerPart>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(ledgers.iter().map(|(moment, parts)| (moment.key(), parts)))
}

fn as_map<S: serde::Serializer>(classes: &[(Class, Bytes)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(classes.iter().map(|(class, bytes)| (class.name(), bytes)))
}
