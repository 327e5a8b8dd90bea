//! The tree of stacks, from the outermost frame of the user's own code inwards.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use gpuheap_record::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::app::App;
use crate::data::{Data, Held, LIBRARY, OWN};
use crate::screen::{paint, rows, scrolled};
use crate::text;
use crate::theme::bar;

/// Levels beyond which names are no longer moved to the right.
const MOST_INDENT: usize = 16;

/// What a node stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Name {
    /// A row of the frames.
    Frame(u32),
    /// A row of the sites, for stacks without a frame of the user's own.
    Site(u32),
}

#[derive(Debug)]
struct Node {
    name: Name,
    /// The same in every tree: of the name and those of all callers.
    key: u64,
    children: Vec<u32>,
    bytes: u64,
    blocks: u64,
}

/// Node 0 is the root.
#[derive(Debug)]
struct Tree {
    nodes: Vec<Node>,
}

impl Tree {
    fn new(data: &Data, held: &Held, libraries: bool) -> Self {
        let root = Node { name: Name::Frame(0), key: 0, children: Vec::new(), bytes: 0, blocks: 0 };
        let mut grower = Grower {
            data,
            libraries,
            nodes: vec![root],
            index: HashMap::default(),
            of_place: HashMap::from([(0, (0, false))]),
        };
        let mut parents = vec![0_u32];
        for &(place, bytes, blocks) in &held.places {
            let node = grower.node(place, &mut parents) as usize;
            grower.nodes[node].bytes = grower.nodes[node].bytes.saturating_add(bytes);
            grower.nodes[node].blocks += blocks;
        }
        let mut nodes = grower.nodes;
        // Callers come before what they call.
        for node in (1..nodes.len()).rev() {
            let (bytes, blocks, parent) = (nodes[node].bytes, nodes[node].blocks, parents[node] as usize);
            nodes[parent].bytes = nodes[parent].bytes.saturating_add(bytes);
            nodes[parent].blocks += blocks;
            nodes[parent].children.push(u32::try_from(node).unwrap_or(0));
        }
        for node in 0..nodes.len() {
            let mut children = std::mem::take(&mut nodes[node].children);
            children.sort_by_key(|&child| (std::cmp::Reverse(nodes[child as usize].bytes), child));
            nodes[node].children = children;
        }
        Self { nodes }
    }

    fn node(&self, node: u32) -> &Node {
        &self.nodes[node as usize]
    }
}

struct Grower<'a> {
    data: &'a Data,
    libraries: bool,
    nodes: Vec<Node>,
    index: HashMap<(u32, Name), u32>,
    /// The node of a place, and whether a frame of the user's own is on the way to it.
    of_place: HashMap<u32, (u32, bool)>,
}

impl Grower<'_> {
    /// The node that a block of this place counts for.
    fn node(&mut self, place: u32, parents: &mut Vec<u32>) -> u32 {
        let tree = &self.data.places.tree;
        let mut unknown = Vec::new();
        let mut at = place;
        while !self.of_place.contains_key(&at) {
            unknown.push(at);
            // A caller's row is smaller, so this ends.
            at = tree.caller.get(at as usize).copied().filter(|&caller| caller < at).unwrap_or(0);
        }
        let (mut node, mut own) = self.of_place.get(&at).copied().unwrap_or_default();
        for place in unknown.into_iter().rev() {
            let frame = tree.frame.get(place as usize).copied().unwrap_or(0);
            let kind = self.data.frame(frame).3;
            own |= kind == OWN;
            if kind != LIBRARY || self.libraries {
                node = self.child(node, Name::Frame(frame), parents);
            }
            self.of_place.insert(place, (node, own));
        }
        let site = tree.site.get(place as usize).and_then(|&site| u32::try_from(site).ok());
        match site {
            Some(site) if node == 0 => self.child(0, Name::Site(site), parents),
            None if node == 0 => {
                let frame = tree.frame.get(place as usize).copied().unwrap_or(0);
                self.child(0, Name::Frame(frame), parents)
            }
            _ => node,
        }
    }

    fn child(&mut self, parent: u32, name: Name, parents: &mut Vec<u32>) -> u32 {
        let next = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let node = *self.index.entry((parent, name)).or_insert(next);
        if node == next {
            let hasher = BuildHasherDefault::<DefaultHasher>::default();
            let key = hasher.hash_one((self.nodes[parent as usize].key, name));
            self.nodes.push(Node { name, key, children: Vec::new(), bytes: 0, blocks: 0 });
            parents.push(parent);
        }
        node
    }
}

#[derive(Clone, Copy, Debug)]
struct Row {
    node: u32,
    depth: usize,
    open: bool,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(super) chosen: usize,
    libraries: bool,
    /// Keys of the nodes whose children are shown, beyond moments and foldings.
    opened: HashSet<u64>,
    started: bool,
    tree: Option<Tree>,
    rows: Option<Vec<Row>>,
}

impl State {
    /// The tree is of another moment.
    pub(super) fn forget(&mut self) {
        self.tree = None;
        self.rows = None;
    }

    pub(super) fn refilter(&mut self) {
        self.rows = None;
    }

    pub(super) fn turn_libraries(&mut self) {
        self.libraries = !self.libraries;
        self.started = false;
        self.forget();
    }

    fn row(&self) -> Option<Row> {
        self.rows.as_ref()?.get(self.chosen).copied()
    }

    /// Opens the chosen node, and those below it until there is a choice; one that is open gives way to its first child.
    pub(super) fn open(&mut self) {
        let (Some(row), Some(tree)) = (self.row(), &self.tree) else { return };
        if row.open {
            self.chosen += 1;
        } else if !tree.node(row.node).children.is_empty() {
            open_chain(tree, row.node, &mut self.opened);
            self.rows = None;
        }
    }

    /// Closes the chosen node; one that is closed gives way to its caller.
    pub(super) fn close(&mut self) {
        let (Some(row), Some(tree)) = (self.row(), &self.tree) else { return };
        if row.open && self.opened.remove(&tree.node(row.node).key) {
            self.rows = None;
        } else if let Some(rows) = &self.rows
            && let Some(caller) = rows[..self.chosen].iter().rposition(|above| above.depth < row.depth)
        {
            self.chosen = caller;
        }
    }

    pub(super) fn turn(&mut self) {
        match self.row() {
            Some(row) if row.open => self.close(),
            Some(_) => self.open(),
            None => {}
        }
    }

    pub(super) fn prepare(&mut self, data: &Data, held: &Held, filter: &str) {
        let tree = self.tree.get_or_insert_with(|| Tree::new(data, held, self.libraries));
        if !std::mem::replace(&mut self.started, true) {
            open_chain(tree, 0, &mut self.opened);
        }
        let rows = self.rows.get_or_insert_with(|| shown(data, tree, &self.opened, filter));
        self.chosen = self.chosen.min(rows.len().saturating_sub(1));
    }
}

/// Opens a node and, as long as there is only one way to go on, those below it.
fn open_chain(tree: &Tree, node: u32, opened: &mut HashSet<u64>) {
    let mut at = node;
    loop {
        opened.insert(tree.node(at).key);
        match tree.node(at).children.as_slice() {
            [only] => at = *only,
            _ => break,
        }
    }
}

/// The nodes that are seen: those whose callers are open, or that lead to one that the filter names.
fn shown(data: &Data, tree: &Tree, opened: &HashSet<u64>, filter: &str) -> Vec<Row> {
    let count = tree.nodes.len();
    let mut leads = vec![filter.is_empty(); count];
    if !filter.is_empty() {
        for node in (0..count).rev() {
            let is_named = node > 0 && {
                let (file, line, function) = parts(data, tree.nodes[node].name);
                text::matches(file, line, function, filter)
            };
            leads[node] = is_named || tree.nodes[node].children.iter().any(|&child| leads[child as usize]);
        }
    }
    let mut rows = Vec::new();
    let mut left: Vec<(u32, usize)> = tree.node(0).children.iter().rev().map(|&child| (child, 0)).collect();
    while let Some((at, depth)) = left.pop() {
        let node = tree.node(at);
        if !leads[at as usize] {
            continue;
        }
        let to_named = !filter.is_empty() && node.children.iter().any(|&child| leads[child as usize]);
        let open = !node.children.is_empty() && (to_named || opened.contains(&node.key));
        rows.push(Row { node: at, depth, open });
        if open {
            left.extend(node.children.iter().rev().map(|&child| (child, depth + 1)));
        }
    }
    rows
}

/// File, line and function of a node.
fn parts(data: &Data, name: Name) -> (&str, u32, &str) {
    match name {
        Name::Frame(row) => {
            let (file, line, function, _) = data.frame(row);
            (file, line, function)
        }
        Name::Site(row) => match data.sites.get(row as usize) {
            Some(site) if site.file.is_empty() && !site.label.is_empty() => ("", 0, &site.label),
            Some(site) => (&site.file, site.line, &site.function),
            None => ("", 0, "other places"),
        },
    }
}

pub(super) fn draw(app: &App, held: &Held, buffer: &mut Buffer, body: Rect) {
    let State { tree: Some(tree), rows: Some(shown), chosen, libraries, .. } = &app.sites.tree else { return };
    let theme = app.theme;
    let width = usize::from(body.width);
    let title = format!(
        "Held at the chosen moment, by stack{}{}",
        if *libraries { "" } else { ", frames of libraries folded" },
        super::remarks(app, held)
    );
    let is_wide = width >= 70;
    let bars = if is_wide { 12 } else { 0 };
    let blocks = |text: &str| if is_wide { format!(" {text:>7}  ") } else { " ".to_owned() };
    let header = format!("{:>8} {:>5} {:bars$}{}frame", "bytes", "share", "", blocks("blocks"));
    let list = rows(body, 2, body.height.saturating_sub(4));
    paint(buffer, body, [Line::styled(title, theme.strong()), Line::styled(header, theme.faint())]);
    if shown.is_empty() {
        let nothing = if held.allocated == 0 { "Nothing is held at this moment" } else { "No frame has this name" };
        paint(buffer, rows(list, 1, 1), [Line::from(nothing)]);
        return;
    }
    let height = usize::from(list.height);
    let first = scrolled(*chosen, shown.len(), height);
    let names = width.saturating_sub(8 + 1 + 5 + 1 + bars + blocks("").len());
    for (y, index) in (list.y..list.bottom()).zip(first..shown.len()) {
        let row = shown[index];
        let node = tree.node(row.node);
        let sign = match (node.children.is_empty(), row.open) {
            (true, _) => ' ',
            (_, true) => '▾',
            (_, false) => '▸',
        };
        let indent = (row.depth.min(MOST_INDENT) * 2).min(names / 2);
        let (file, line, function) = parts(&app.data, node.name);
        let name = text::place(text::file_name(file), line, function, names.saturating_sub(indent + 2));
        let name = text::padded(&format!("{:indent$}{sign} {name}", ""), names);
        let is_chosen = index == *chosen;
        let style = if is_chosen { theme.chosen() } else { Style::new() };
        let own = matches!(node.name, Name::Frame(frame) if app.data.frame(frame).3 == OWN);
        let of_name = if is_chosen {
            style
        } else if own {
            theme.code()
        } else {
            Style::new()
        };
        let filled = text::padded(&bar(node.bytes, held.allocated, bars), bars);
        let line = Line::from(vec![
            Span::styled(
                format!("{:>8} {:>5} ", Bytes::new(node.bytes).to_string(), text::share(node.bytes, held.allocated)),
                style,
            ),
            Span::styled(filled, if is_chosen { style } else { theme.allocated() }),
            Span::styled(blocks(&text::count(node.blocks)), style),
            Span::styled(name, of_name),
        ]);
        buffer.set_line(body.x, y, &line, body.width);
    }
    if let Some(row) = shown.get(*chosen) {
        let (file, line, function) = parts(&app.data, tree.node(row.node).name);
        let place = text::place(file, line, function, width);
        paint(buffer, rows(body, body.height.saturating_sub(1), 1), [Line::styled(place, theme.code())]);
    }
}
