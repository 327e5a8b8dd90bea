//! Allocations as rows of a table.

use foldhash::HashMap;
use gpuheap_explain::{AllocationView, Analysis};
use gpuheap_record::{FrameId, SegmentKind, StackId};

use crate::names::{Names, Place, Shown};

/// The columns of tables with their meanings. Columns that end in `_bytes` are bytes, those that end in `_us`
/// microseconds of Unix time, those that end in `_event` numbers of the device's events from 0.
pub const COLUMNS: [(&str, &str); 19] = [
    ("id", "The number of the allocation, in the order of birth"),
    ("device", "The ordinal of the device"),
    ("address", "Its first address"),
    ("size_bytes", "Bytes that the block takes"),
    ("requested_bytes", "Bytes that the program asked for"),
    ("class", "What it is for: `parameters`, `gradients`, `activations`, …"),
    ("rule", "Why it has that class"),
    ("stream", "The raw handle of its stream; 0 is the default stream"),
    ("pool", "Its pool: `default pool`, or `private pool (1, 0)`"),
    ("segment_kind", "The kind of its segment: `small` or `large`"),
    ("born_event", "The event that made it; empty if it was there before the first event"),
    ("freed_event", "The event by which the program freed it; empty if it never did"),
    ("reusable_event", "The event from which on its memory could be used again; empty if it never could"),
    ("born_us", "When it was made; empty if it was there before, or without times"),
    ("freed_us", "When the program freed it; empty if it never did, or without times"),
    ("file", "The file of the line to look at; empty where no frame was recorded"),
    ("line", "The line to look at, from 1; empty where it is not known"),
    ("function", "The function of the line to look at; empty where no frame was recorded"),
    ("stack", "Where it was made, outermost frame first, `function (file:line)` each, with semicolons between them"),
];

/// Makes rows.
pub(crate) struct Rows<'a> {
    analysis: &'a Analysis,
    names: Names<'a>,
    folded: Names<'a>,
    is_timed: bool,
    sites: HashMap<StackId, Option<FrameId>>,
    pools: HashMap<(u64, u64), String>,
}

/// One allocation.
pub(crate) struct Row<'r> {
    pub(crate) allocation: AllocationView,
    pub(crate) device: u32,
    pub(crate) pool: &'r str,
    pub(crate) born_us: Option<u64>,
    pub(crate) freed_us: Option<u64>,
    pub(crate) file: Option<&'r str>,
    pub(crate) line: Option<u32>,
    pub(crate) function: Option<&'r str>,
    /// `None` where nothing is known of the place.
    pub(crate) place: Option<Place>,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(analysis: &'a Analysis) -> Self {
        Self {
            analysis,
            names: Names::new(analysis.recording()),
            folded: Names::folded(analysis.recording()),
            is_timed: analysis.time_us(0) > 0,
            sites: HashMap::default(),
            pools: HashMap::default(),
        }
    }

    /// The allocations that are held at a tick, or all.
    pub(crate) fn allocations(analysis: &Analysis, at: Option<u32>) -> impl Iterator<Item = AllocationView> + '_ {
        analysis.allocations().filter(move |allocation| at.is_none_or(|tick| allocation.is_held_at(tick)))
    }

    pub(crate) fn row(&mut self, allocation: AllocationView) -> Row<'_> {
        let analysis = self.analysis;
        let time =
            |event: Option<u32>| event.filter(|_| self.is_timed).map(|event| analysis.time_us(event.saturating_add(1)));
        let (born_us, freed_us) = (time(allocation.born), time(allocation.freed));
        let site = *self.sites.entry(allocation.stack).or_insert_with(|| site_frame(analysis, allocation.stack));
        let pool = self.pools.entry(allocation.pool).or_insert_with(|| analysis.pool_name(allocation.pool));
        let site = site.map(Shown::Frame);
        let place = Place::of(&allocation);
        Row {
            allocation,
            device: analysis.report().source.device,
            pool,
            born_us,
            freed_us,
            file: site.map(|frame| self.names.file(frame)),
            line: site.map(|frame| self.names.line(frame)).filter(|&line| line > 0),
            function: site.map(|frame| self.names.function(frame)),
            place: (!place.is_unknown()).then_some(place),
        }
    }

    /// Sets `text` to the folded stack.
    pub(crate) fn fold(&self, text: &mut String, place: Place) {
        self.folded.fold(text, place);
    }
}

/// The name of a kind of segment.
pub(crate) fn kind_name(kind: SegmentKind) -> &'static str {
    match kind {
        SegmentKind::Small => "small",
        SegmentKind::Large => "large",
    }
}

/// The frame that a person should look at.
pub(crate) fn site_frame(analysis: &Analysis, stack: StackId) -> Option<FrameId> {
    let recording = analysis.recording();
    let site = analysis.site(stack)?;
    recording.frames_of(stack).find(|&frame| {
        recording.frame(frame).line == site.line
            && recording.function(frame) == site.function
            && recording.file(frame) == site.file
    })
}
