//! Who held memory at the chosen moment: a tree of stacks, or a table of sites.

mod table;
mod tree;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::app::App;
use crate::data::Held;
use crate::key::Key;

pub(crate) use table::Column;

/// What is shown and chosen.
#[derive(Debug, Default)]
pub(crate) struct State {
    held: Option<Held>,
    is_table: bool,
    tree: tree::State,
    table: table::State,
    filter: String,
    typing: bool,
}

impl State {
    /// What is being typed, if anything is.
    pub(crate) fn typed(&self) -> Option<&str> {
        self.typing.then_some(self.filter.as_str())
    }
}

/// Rows that a page key moves by.
fn page(app: &App) -> usize {
    usize::from(app.body().height.saturating_sub(5)).max(1)
}

pub(crate) fn update(app: &mut App, key: Key) -> bool {
    if app.sites.typing {
        return type_filter(app, key);
    }
    let page = page(app);
    let state = &mut app.sites;
    let chosen = if state.is_table { &mut state.table.chosen } else { &mut state.tree.chosen };
    match key {
        Key::Up => *chosen = chosen.saturating_sub(1),
        Key::Down => *chosen += 1,
        Key::PageUp => *chosen = chosen.saturating_sub(page),
        Key::PageDown => *chosen += page,
        Key::Home => *chosen = 0,
        Key::End => *chosen = usize::MAX,
        Key::Char('t') => state.is_table = !state.is_table,
        Key::Char('/') => state.typing = true,
        Key::Esc if !state.filter.is_empty() => {
            state.filter.clear();
            refilter(app);
        }
        Key::Char('s') if state.is_table => state.table.sort_by_next(1),
        Key::Char('S') if state.is_table => state.table.sort_by_next(Column::ALL.len() - 1),
        Key::Char('l') if !state.is_table => state.tree.turn_libraries(),
        Key::Right if !state.is_table => state.tree.open(),
        Key::Left if !state.is_table => state.tree.close(),
        Key::Enter if !state.is_table => state.tree.turn(),
        _ => return false,
    }
    true
}

/// The keys while a filter is typed: all of them belong to it.
fn type_filter(app: &mut App, key: Key) -> bool {
    let state = &mut app.sites;
    match key {
        Key::Enter => state.typing = false,
        Key::Esc => {
            state.typing = false;
            state.filter.clear();
        }
        Key::Backspace => {
            state.filter.pop();
        }
        Key::Char(character) if state.filter.len() < 200 => state.filter.push(character),
        _ => return true,
    }
    refilter(app);
    true
}

fn refilter(app: &mut App) {
    app.sites.tree.refilter();
    app.sites.table.refilter();
}

pub(crate) fn prepare(app: &mut App) {
    if app.sites.held.as_ref().is_none_or(|held| held.tick != app.moment) {
        app.sites.held = Some(app.data.held(app.moment));
        app.sites.tree.forget();
        app.sites.table.refilter();
    }
    let App { data, sites: State { held: Some(held), is_table, tree, table, filter, .. }, .. } = app else { return };
    let filter = filter.to_lowercase();
    if *is_table {
        table.prepare(data, held, &filter);
    } else {
        tree.prepare(data, held, &filter);
    }
}

pub(crate) fn draw(app: &App, buffer: &mut Buffer, body: Rect) {
    let Some(held) = &app.sites.held else { return };
    if app.sites.is_table {
        table::draw(app, held, buffer, body);
    } else {
        tree::draw(app, held, buffer, body);
    }
}

/// What a title adds: the filter, and that something is missing.
fn remarks(app: &App, held: &Held) -> String {
    let mut remarks = String::new();
    if !app.sites.filter.is_empty() && !app.sites.typing {
        remarks = format!(", only those with `{}` (Esc: all)", crate::text::clean(&app.sites.filter));
    }
    if !held.complete {
        remarks.push_str(", the largest blocks only");
    }
    remarks
}
