//! Places in the program as a tree, and the site that each block belongs to.

use foldhash::HashMap;
use gpuheap_record::{FrameId, StackId};
use indexmap::IndexMap;
use serde::Serialize;

use crate::analysis::Analysis;
use crate::holders::backward_label;
use crate::lifetimes::{Allocation, Tick};

/// Stacks deeper than this are cut: a tree of a million levels helps nobody.
const MOST_DEPTH: u16 = 500;
/// Names longer than this are cut.
const MOST_CHARS: usize = 2000;
/// No place yet.
const NONE: u32 = u32::MAX;

/// Places in the program, as a tree: every place is a frame that was called from another place.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Places {
    /// Every text. The first is empty.
    pub strings: Vec<String>,
    /// Every frame.
    pub frames: FrameColumns,
    /// Every place.
    pub tree: TreeColumns,
}

/// Frames, one row each.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct FrameColumns {
    /// The function: a row of the strings.
    pub function: Vec<u32>,
    /// The file: a row of the strings, the empty one where it is not known.
    pub file: Vec<u32>,
    /// The line, from 1; 0 where it is not known.
    pub line: Vec<u32>,
    /// 0: a library's, 1: the user's own, 2: no frame but a label.
    pub kind: Vec<u8>,
}

/// Places, one row each. Row 0 is the root.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TreeColumns {
    /// The place that called: a smaller row.
    pub caller: Vec<u32>,
    /// The frame: a row of the frames.
    pub frame: Vec<u32>,
    /// The site of what is allocated here: a row of the sites; -1 where nothing is.
    pub site: Vec<i32>,
}

/// What a block without a stack is told by: the root of its backward pass, if it has one.
type Root = Option<StackId>;
/// What makes two blocks be of one site: a line, or a backward pass's root where there is none.
pub(crate) type SiteKey = (Option<FrameId>, Root);

/// The sites of a device's blocks.
#[derive(Debug)]
pub(crate) struct SiteIndex {
    keys: IndexMap<SiteKey, (), foldhash::fast::RandomState>,
    by_stack: Vec<u32>,
    by_root: HashMap<Root, u32>,
}

impl SiteIndex {
    pub(crate) fn new(analysis: &Analysis) -> Self {
        Self {
            keys: IndexMap::default(),
            by_stack: vec![NONE; analysis.recording.stacks.len()],
            by_root: HashMap::default(),
        }
    }

    /// The site of a block, which is added if it is new.
    pub(crate) fn of(&mut self, analysis: &Analysis, row: &Allocation) -> usize {
        let insert = |keys: &mut IndexMap<SiteKey, (), _>, key| {
            u32::try_from(keys.insert_full(key, ()).0).unwrap_or(u32::MAX - 1)
        };
        if row.stack == StackId::default() {
            let root = root_of(analysis, row);
            return *self.by_root.entry(root).or_insert_with(|| insert(&mut self.keys, (None, root))) as usize;
        }
        let known = &mut self.by_stack[row.stack.index()];
        if *known == NONE {
            let frame = analysis.basis.marks.site_frame(&analysis.recording, row.stack);
            *known = insert(&mut self.keys, (frame, None));
        }
        *known as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn key(&self, site: usize) -> SiteKey {
        self.keys.get_index(site).map(|(key, ())| *key).unwrap_or_default()
    }
}

/// The root of the backward pass that made a block without a stack.
fn root_of(analysis: &Analysis, row: &Allocation) -> Root {
    let pass = (row.born > Tick::START).then(|| analysis.basis.phases.backward_of(row.born)).flatten();
    pass.map(|pass| pass.root)
}

/// What to show where no frame was recorded.
pub(crate) fn label(analysis: &Analysis, root: Root) -> String {
    match root {
        Some(root) => backward_label(&analysis.recording, &analysis.basis.marks, root),
        None => "no frames recorded".to_owned(),
    }
}

/// Builds [`Places`] out of the blocks that it is asked for.
#[derive(Debug)]
pub(crate) struct PlaceTable {
    strings: IndexMap<String, (), foldhash::fast::RandomState>,
    frames: FrameColumns,
    tree: TreeColumns,
    by_frame: HashMap<FrameId, u32>,
    by_stack: Vec<u32>,
    depths: Vec<u16>,
    by_root: HashMap<Root, u32>,
}

impl PlaceTable {
    pub(crate) fn new(analysis: &Analysis) -> Self {
        let mut table = Self {
            strings: IndexMap::default(),
            frames: FrameColumns::default(),
            tree: TreeColumns::default(),
            by_frame: HashMap::default(),
            by_stack: vec![NONE; analysis.recording.stacks.len()],
            depths: Vec::new(),
            by_root: HashMap::default(),
        };
        table.string("");
        let root = table.label_frame("everything");
        table.push(0, root, 0);
        table.by_stack[0] = 0;
        table
    }

    /// The place of a block; `site` is the row of its site.
    pub(crate) fn of(&mut self, analysis: &Analysis, row: &Allocation, site: i32) -> u32 {
        let place = if row.stack == StackId::default() {
            let root = root_of(analysis, row);
            match self.by_root.get(&root) {
                Some(&known) => known,
                None => {
                    let place = self.frameless(analysis, root);
                    self.by_root.insert(root, place);
                    place
                }
            }
        } else {
            self.of_stack(analysis, row.stack)
        };
        self.tree.site[place as usize] = site;
        place
    }

    fn frameless(&mut self, analysis: &Analysis, root: Root) -> u32 {
        let (caller, text) = match root {
            Some(root) => {
                let caller = analysis.basis.marks.user_stack(root);
                (self.of_stack(analysis, caller), "backward pass")
            }
            None => (0, "no frames recorded"),
        };
        let frame = self.label_frame(text);
        let depth = self.depths[caller as usize].saturating_add(1);
        self.push(caller, frame, depth)
    }

    fn of_stack(&mut self, analysis: &Analysis, stack: StackId) -> u32 {
        let recording = &analysis.recording;
        let mut unknown = Vec::new();
        let mut at = stack;
        while self.by_stack[at.index()] == NONE {
            unknown.push(at);
            at = recording.stacks.caller(at);
        }
        let mut place = self.by_stack[at.index()];
        for stack in unknown.into_iter().rev() {
            let depth = self.depths[place as usize];
            if depth < MOST_DEPTH
                && let Some(frame) = recording.stacks.innermost(stack)
            {
                let frame = self.frame(analysis, frame);
                place = self.push(place, frame, depth + 1);
            }
            self.by_stack[stack.index()] = place;
        }
        place
    }

    fn push(&mut self, caller: u32, frame: u32, depth: u16) -> u32 {
        let place = u32::try_from(self.depths.len()).unwrap_or(u32::MAX);
        self.tree.caller.push(caller);
        self.tree.frame.push(frame);
        self.tree.site.push(-1);
        self.depths.push(depth);
        place
    }

    fn frame(&mut self, analysis: &Analysis, id: FrameId) -> u32 {
        if let Some(&known) = self.by_frame.get(&id) {
            return known;
        }
        let recording = &analysis.recording;
        let (function, file) = (self.string(recording.function(id)), self.string(recording.file(id)));
        let kind = u8::from(analysis.basis.marks.is_user_frame(id));
        let row = self.frame_row(function, file, recording.frame(id).line, kind);
        self.by_frame.insert(id, row);
        row
    }

    fn label_frame(&mut self, text: &str) -> u32 {
        let function = self.string(text);
        self.frame_row(function, 0, 0, 2)
    }

    fn frame_row(&mut self, function: u32, file: u32, line: u32, kind: u8) -> u32 {
        let row = u32::try_from(self.frames.kind.len()).unwrap_or(u32::MAX);
        self.frames.function.push(function);
        self.frames.file.push(file);
        self.frames.line.push(line);
        self.frames.kind.push(kind);
        row
    }

    fn string(&mut self, text: &str) -> u32 {
        let text = match text.char_indices().nth(MOST_CHARS) {
            Some((at, _)) => &text[..at],
            None => text,
        };
        let row = match self.strings.get_index_of(text) {
            Some(row) => row,
            None => self.strings.insert_full(text.to_owned(), ()).0,
        };
        u32::try_from(row).unwrap_or(u32::MAX)
    }

    pub(crate) fn finish(self) -> Places {
        Places { strings: self.strings.into_keys().collect(), frames: self.frames, tree: self.tree }
    }

    /// The same without giving the table up.
    pub(crate) fn places(&self) -> Places {
        Places { strings: self.strings.keys().cloned().collect(), frames: self.frames.clone(), tree: self.tree.clone() }
    }
}
