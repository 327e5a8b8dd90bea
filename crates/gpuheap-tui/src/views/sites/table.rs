//! The table of sites: what each line of the program holds, held and made.

use gpuheap_explain::SiteRow;
use gpuheap_record::Bytes;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::app::App;
use crate::data::{Data, Held, class_at};
use crate::screen::{paint, rows, scrolled};
use crate::text;
use crate::theme::letter;

/// A column of figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Column {
    /// Bytes at the chosen moment.
    #[default]
    Now,
    /// The most bytes that it ever held.
    Most,
    /// Blocks that it made.
    Count,
    /// Blocks that were never freed.
    Kept,
    /// The median life of its blocks.
    Lifetime,
    /// Bytes by which it grows each step.
    Growth,
}

impl Column {
    pub(crate) const ALL: [Self; 6] = [Self::Now, Self::Most, Self::Count, Self::Kept, Self::Lifetime, Self::Growth];

    const fn title(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Most => "most",
            Self::Count => "made",
            Self::Kept => "kept",
            Self::Lifetime => "life",
            Self::Growth => "growth",
        }
    }

    const fn width(self) -> usize {
        match self {
            Self::Now | Self::Most => 8,
            Self::Count | Self::Growth => 9,
            Self::Kept => 7,
            Self::Lifetime => 11,
        }
    }

    /// The screen must be this wide for the column to be shown.
    const fn least_screen(self) -> usize {
        match self {
            Self::Now => 0,
            Self::Most => 40,
            Self::Growth => 56,
            Self::Count => 66,
            Self::Lifetime => 90,
            Self::Kept => 100,
        }
    }

    fn key(self, now: u64, site: &SiteRow) -> i128 {
        match self {
            Self::Now => now.into(),
            Self::Most => site.most.into(),
            Self::Count => site.count.into(),
            Self::Kept => site.kept.into(),
            Self::Lifetime => site.lifetime_us.or(site.lifetime_events.map(u64::from)).map_or(-1, i128::from),
            Self::Growth => site.growth.map_or(i128::MIN, i128::from),
        }
    }

    fn text(self, now: u64, site: &SiteRow) -> String {
        let missing = || "-".to_owned();
        match self {
            Self::Now => Bytes::new(now).to_string(),
            Self::Most => Bytes::new(site.most).to_string(),
            Self::Count => text::count(site.count),
            Self::Kept => text::count(site.kept),
            Self::Lifetime => match (site.lifetime_us, site.lifetime_events) {
                (Some(time), _) => text::duration(time),
                (None, Some(events)) => format!("{} ev", text::count(events.into())),
                _ => missing(),
            },
            Self::Growth => site.growth.map_or_else(missing, text::signed),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(super) chosen: usize,
    column: Column,
    order: Option<Vec<u32>>,
}

impl State {
    pub(super) fn refilter(&mut self) {
        self.order = None;
    }

    pub(super) fn sort_by_next(&mut self, by: usize) {
        let at = Column::ALL.iter().position(|&column| column == self.column).unwrap_or(0);
        self.column = Column::ALL[(at + by) % Column::ALL.len()];
        self.chosen = 0;
        self.refilter();
    }

    pub(super) fn prepare(&mut self, data: &Data, held: &Held, filter: &str) {
        let column = self.column;
        let order = self.order.get_or_insert_with(|| {
            let named = data
                .sites
                .iter()
                .enumerate()
                .filter(|(_, site)| filter.is_empty() || text::matches(&site.file, site.line, name(site), filter));
            let mut order: Vec<u32> = named.filter_map(|(row, _)| u32::try_from(row).ok()).collect();
            // Stable: of equals, those that held most come first.
            order.sort_by_key(|&row| {
                let row = row as usize;
                std::cmp::Reverse(column.key(held.sites[row], &data.sites[row]))
            });
            order
        });
        self.chosen = self.chosen.min(order.len().saturating_sub(1));
    }
}

/// The function, or what is shown instead.
fn name(site: &SiteRow) -> &str {
    if site.label.is_empty() { &site.function } else { &site.label }
}

pub(super) fn draw(app: &App, held: &Held, buffer: &mut Buffer, body: Rect) {
    let State { chosen, column: sorted, order: Some(order) } = &app.sites.table else { return };
    let theme = app.theme;
    let width = usize::from(body.width);
    let columns: Vec<Column> =
        Column::ALL.into_iter().filter(|column| column.least_screen() <= width || column == sorted).collect();
    let title =
        format!("{}, by {}{}", text::counted(order.len() as u64, "site"), meaning(*sorted), super::remarks(app, held));
    let mut header = Vec::new();
    for &column in &columns {
        let style = if column == *sorted { theme.strong() } else { theme.faint() };
        header.push(Span::styled(format!("{:>1$} ", column.title(), column.width()), style));
    }
    header.push(Span::styled("  site", theme.faint()));
    let list = rows(body, 2, body.height.saturating_sub(4));
    paint(buffer, body, [Line::styled(title, theme.strong()), Line::from(header)]);
    if order.is_empty() {
        paint(buffer, rows(list, 1, 1), [Line::from("No site has this name")]);
        return;
    }
    let first = scrolled(*chosen, order.len(), list.height.into());
    let names = width.saturating_sub(columns.iter().map(|column| column.width() + 1).sum::<usize>() + 2);
    let at = |index: usize| {
        let row = order[index] as usize;
        let site = &app.data.sites[row];
        let class = held.classes.get(row).copied().flatten().unwrap_or_else(|| class_at(site.class));
        (held.sites.get(row).copied().unwrap_or(0), site, class)
    };
    for (y, index) in (list.y..list.bottom()).zip(first..order.len()) {
        let (now, site, class) = at(index);
        let is_chosen = index == *chosen;
        let style = if is_chosen { theme.chosen() } else { Style::new() };
        let mut spans = Vec::new();
        for &column in &columns {
            spans.push(Span::styled(format!("{:>1$} ", column.text(now, site), column.width()), style));
        }
        spans.push(Span::styled(format!("{} ", letter(class)), if is_chosen { style } else { theme.class(class) }));
        let place = text::place(text::file_name(&site.file), site.line, name(site), names);
        spans.push(Span::styled(text::padded(&place, names), if is_chosen { style } else { theme.code() }));
        buffer.set_line(body.x, y, &Line::from(spans), body.width);
    }
    let (_, site, class) = at(*chosen);
    let place = text::place(&site.file, site.line, name(site), width.saturating_sub(class.title().len() + 2));
    let line = Line::from(vec![
        Span::styled(format!("{}  ", class.title()), theme.class(class)),
        Span::styled(place, theme.code()),
    ]);
    paint(buffer, rows(body, body.height.saturating_sub(1), 1), [line]);
}

const fn meaning(column: Column) -> &'static str {
    match column {
        Column::Now => "bytes at the chosen moment",
        Column::Most => "the most that they held",
        Column::Count => "blocks made",
        Column::Kept => "blocks never freed",
        Column::Lifetime => "the median life of a block",
        Column::Growth => "growth each step",
    }
}
