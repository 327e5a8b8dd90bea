//! What is wrong: the verdict, the findings, and all about the chosen one. After them, the ledger and the source.

use gpuheap_explain::{Class, Confidence, Finding, LedgerPart, PartKind, Site};
use gpuheap_record::Bytes;
use gpuheap_report::sentences;
use gpuheap_report::text::conf_line;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::app::App;
use crate::key::Key;
use crate::screen::{after, paint, rows, scrolled};
use crate::theme::{bar, eighth, scaled};
use crate::views::timeline;
use crate::{data, text};

/// Columns of the labels at the left of fields.
const LABEL: usize = 8;
/// From this width on, the list stands beside the text.
const BESIDE: u16 = 110;
/// Columns of the list there.
const LIST: u16 = 42;
/// Rows of a curve.
const CURVE: usize = 4;

/// What is chosen.
#[derive(Debug, Default)]
pub(crate) struct State {
    chosen: usize,
    scroll: usize,
    libraries: bool,
    /// Bytes by class at a moment that the report has no ledger of.
    here: Option<(u32, Vec<u64>)>,
}

/// What the list has beside the findings.
const MORE: [&str; 2] = ["Where the memory was", "Source and notes"];

fn entries(app: &App) -> usize {
    app.data.report.findings.len() + MORE.len()
}

pub(crate) fn update(app: &mut App, key: Key) -> bool {
    let last = entries(app) - 1;
    let state = &mut app.findings;
    let chosen = state.chosen;
    match key {
        Key::Up => state.chosen = chosen.saturating_sub(1),
        Key::Down => state.chosen = (chosen + 1).min(last),
        Key::Home => state.chosen = 0,
        Key::End => state.chosen = last,
        Key::PageUp => state.scroll = state.scroll.saturating_sub(5),
        Key::PageDown | Key::Char(' ') => state.scroll += 5,
        Key::Char('l') => state.libraries = !state.libraries,
        Key::Enter => {
            let event = app.data.report.findings.get(chosen).and_then(|finding| finding.event);
            if let Some(tick) = event.and_then(|event| u32::try_from(event.saturating_add(1)).ok()) {
                app.choose(tick);
            }
        }
        _ => return false,
    }
    if app.findings.chosen != chosen {
        app.findings.scroll = 0;
    }
    let area = layout(app, app.body()).text;
    let most = detail(app, area.width.into()).len().saturating_sub(area.height.into());
    app.findings.scroll = app.findings.scroll.min(most);
    true
}

/// Whether the report has the ledger of the chosen moment.
fn has_ledger(app: &App) -> bool {
    app.data.tick_of(app.data.report.ledger_at) == Some(app.moment)
}

pub(crate) fn prepare(app: &mut App) {
    if !has_ledger(app) && app.findings.here.as_ref().is_none_or(|&(tick, _)| tick != app.moment) {
        app.findings.here = Some((app.moment, timeline::classes_at(app.data.analysis(), app.moment)));
    }
}

struct Layout {
    verdict: Rect,
    list: Rect,
    text: Rect,
}

fn layout(app: &App, body: Rect) -> Layout {
    let count = u16::try_from(entries(app)).unwrap_or(u16::MAX);
    let verdict_lines = u16::try_from(verdict(app, body.width.into()).len()).unwrap_or(u16::MAX);
    let verdict = rows(body, 0, verdict_lines.min((body.height / 3).max(2)));
    let rest = rows(body, verdict.height + 1, body.height);
    if body.width >= BESIDE {
        let list = Rect { width: LIST, ..rest };
        return Layout { verdict, list, text: Rect { x: rest.x + LIST + 3, width: rest.width - LIST - 3, ..rest } };
    }
    let list = rows(rest, 0, count.min((rest.height / 3).max(2)));
    Layout { verdict, list, text: rows(rest, list.height + 1, rest.height) }
}

pub(crate) fn draw(app: &App, buffer: &mut Buffer, body: Rect) {
    let Layout { verdict: top, list, text } = layout(app, body);
    paint(buffer, top, verdict(app, body.width.into()));
    let count = entries(app);
    let first = scrolled(app.findings.chosen, count, list.height.into());
    let width = usize::from(list.width);
    for (row, index) in (list.y..list.bottom()).zip(first..count) {
        let line = text::padded(&entry(app, index), width);
        let style = if index == app.findings.chosen { app.theme.chosen() } else { Style::new() };
        buffer.set_stringn(list.x, row, line, width, style);
    }
    if list.bottom() > text.y {
        for y in list.y..list.bottom() {
            buffer.set_string(list.right() + 1, y, "│", app.theme.faint());
        }
    } else {
        buffer.set_string(text.x, list.bottom(), "─".repeat(text.width.into()), app.theme.faint());
    }
    let lines = detail(app, text.width.into());
    let count = lines.len();
    let scroll = app.findings.scroll.min(count.saturating_sub(text.height.into()));
    paint(buffer, text, lines.into_iter().skip(scroll));
    let below = count.saturating_sub(scroll + usize::from(text.height));
    if below > 0 && text.height > 0 {
        let more = format!(" {below} more, PgDn ");
        let x = text.right().saturating_sub(u16::try_from(more.len()).unwrap_or(0));
        buffer.set_string(x.max(text.x), text.bottom() - 1, more, app.theme.chosen());
    }
}

fn entry(app: &App, index: usize) -> String {
    let findings = &app.data.report.findings;
    match findings.get(index) {
        Some(finding) => {
            format!(" {:>8}  {}", finding.bytes.to_string(), text::clean(&finding.title))
        }
        None => format!(" {:>8}  {}", "", MORE.get(index - findings.len()).copied().unwrap_or_default()),
    }
}

fn verdict(app: &App, width: usize) -> Vec<Line<'static>> {
    let verdict = &app.data.report.verdict;
    let name = verdict.kind.title();
    let headline = text::clean(&verdict.headline);
    // The kind stands before the sentence: where it starts with the same word, that is enough.
    let rest = match headline.get(..name.len()) {
        Some(start) if start.eq_ignore_ascii_case(name) => {
            headline[name.len()..].trim_start_matches([':', ',', '.', ' '])
        }
        _ => &headline,
    };
    let lines = text::wrap(&format!("{name}: {rest}"), width);
    let lead = format!("{name}:");
    let line = |(index, line): (usize, String)| match line.strip_prefix(&lead) {
        Some(rest) if index == 0 => Line::from(vec![
            Span::styled(lead.clone(), app.theme.verdict(verdict.kind)),
            Span::styled(rest.to_owned(), app.theme.strong()),
        ]),
        _ => Line::styled(line, app.theme.strong()),
    };
    lines.into_iter().enumerate().map(line).collect()
}

/// The text about the chosen entry.
fn detail(app: &App, width: usize) -> Vec<Line<'static>> {
    let findings = &app.data.report.findings;
    let mut page = Page { app, width, lines: Vec::new() };
    match findings.get(app.findings.chosen) {
        Some(finding) => page.finding(finding),
        None if app.findings.chosen == findings.len() => page.ledger(),
        None => page.source(),
    }
    page.lines
}

struct Page<'a> {
    app: &'a App,
    width: usize,
    lines: Vec<Line<'static>>,
}

impl Page<'_> {
    fn field(&mut self, label: &str, style: Style, text: &str) {
        let text = text::clean(text);
        for (index, part) in text::wrap(&text, self.width.saturating_sub(LABEL)).into_iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            self.labelled(label, vec![Span::styled(part, style)]);
        }
    }

    fn labelled(&mut self, label: &str, mut rest: Vec<Span<'static>>) {
        rest.insert(0, Span::styled(format!("{label:<LABEL$}"), self.app.theme.faint()));
        self.lines.push(Line::from(rest));
    }

    fn place(&mut self, label: &str, site: &Site, style: Style) {
        let place = text::place(&site.file, site.line, &site.function, self.width.saturating_sub(LABEL));
        self.labelled(label, vec![Span::styled(place, style)]);
    }

    fn finding(&mut self, finding: &Finding) {
        let theme = self.app.theme;
        // The verdict says the same of the finding that it is about.
        if !self.app.data.report.verdict.headline.contains(&finding.title) {
            for line in text::wrap(&text::clean(&finding.title), self.width) {
                self.lines.push(Line::styled(line, theme.strong()));
            }
        }
        if let Some(site) = &finding.site {
            self.place("Where", site, theme.code());
        }
        let mut costs = finding.bytes.to_string();
        if let Some(per_step) = finding.bytes_per_step {
            costs = format!("{costs}, {per_step} more each step");
        }
        let sure = match finding.confidence {
            Confidence::Low => "low",
            Confidence::Medium => "medium",
            Confidence::High => "high",
        };
        self.field("Costs", Style::new(), &format!("{costs} ({sure} confidence)"));
        let remedy = &finding.remedy;
        self.field("Change", Style::new(), &sentences::remedy(remedy));
        if let Some(conf) = &remedy.conf {
            self.field("Set", theme.code(), &conf_line(conf));
        }
        for (index, evidence) in finding.evidence.iter().enumerate() {
            self.field(if index == 0 { "Seen" } else { "" }, Style::new(), evidence);
        }
        self.growth(&finding.growth);
        self.stack(finding);
    }

    /// The curve of what it held at the end of each step.
    fn growth(&mut self, values: &[Bytes]) {
        let [first, .., last] = values else { return };
        let most = values.iter().copied().max().unwrap_or_default();
        let columns = self.width.saturating_sub(LABEL + 12).min(values.len() * 4).min(80);
        if columns == 0 {
            return;
        }
        let levels: Vec<usize> = (0..columns)
            .map(|column| {
                let end = ((column + 1) * values.len()).div_ceil(columns);
                let range = column * values.len() / columns..end;
                let value = values[range].iter().copied().max().unwrap_or_default();
                scaled(value.get(), most.get(), CURVE * 8)
            })
            .collect();
        for row in (0..CURVE).rev() {
            let cells = levels.iter().map(|level| match level.saturating_sub(row * 8) {
                0 => ' ',
                eighths => eighth(eighths),
            });
            let end = match row {
                _ if row + 1 == CURVE => format!(" {last}"),
                _ => String::new(),
            };
            let label = if row + 1 == CURVE { "Growth" } else { "" };
            let curve = Span::styled(cells.collect::<String>(), self.app.theme.allocated());
            self.labelled(label, vec![curve, Span::raw(end)]);
        }
        self.field(
            "",
            self.app.theme.faint(),
            &format!("from {first} in {}", text::counted(values.len() as u64, "step")),
        );
    }

    fn stack(&mut self, finding: &Finding) {
        let theme = self.app.theme;
        let own = self.app.data.own.get(self.app.findings.chosen).map_or(&[][..], Vec::as_slice);
        // With no frame of the user's own, there is nothing to fold around.
        let folds = !self.app.findings.libraries && own.contains(&true);
        let mut label = "Stack";
        let mut folded = 0;
        for (index, site) in finding.stack.iter().enumerate() {
            let is_own = own.get(index).copied().unwrap_or(false);
            if folds && !is_own && !site.file.is_empty() {
                folded += 1;
                continue;
            }
            self.folded(&mut label, std::mem::take(&mut folded));
            let style = if is_own { theme.code() } else { theme.faint() };
            self.place(std::mem::take(&mut label), site, style);
        }
        self.folded(&mut label, folded);
    }

    fn folded(&mut self, label: &mut &str, count: usize) {
        if count > 0 {
            let frames = if count == 1 { "frame" } else { "frames" };
            let text = format!("… {count} {frames} of libraries");
            self.labelled(std::mem::take(label), vec![Span::styled(text, self.app.theme.faint())]);
        }
    }

    /// The parts of memory at the chosen moment.
    fn parts(&self) -> Vec<LedgerPart> {
        let App { data, moment, findings, .. } = self.app;
        let ledger = &data.report.ledger;
        if has_ledger(self.app) {
            return ledger.clone();
        }
        let part = |part: &str, kind, class, bytes, detail: &str| LedgerPart {
            part: part.to_owned(),
            kind,
            class,
            bytes,
            detail: detail.to_owned(),
        };
        let classes = findings.here.as_ref().filter(|(tick, _)| tick == moment).map_or(&[][..], |(_, bytes)| bytes);
        let mut parts: Vec<LedgerPart> = Class::ALL
            .into_iter()
            .zip(classes)
            .map(|(class, &bytes)| part(class.title(), PartKind::Class, Some(class), Bytes::new(bytes), ""))
            .collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
        let (allocated, reserved) = data.analysis().counters(*moment);
        let free = Bytes::new(reserved.saturating_sub(allocated));
        parts.push(part("reserved, not allocated", PartKind::Free, None, free, "free in segments, or waiting to be"));
        let total: Bytes = ledger.iter().map(|part| part.bytes).sum();
        if let Some(outside) = ledger.iter().find(|part| part.kind == PartKind::Outside) {
            let left = Bytes::new(total.get().saturating_sub(reserved));
            // What the driver told of was at another moment.
            let is_limit = sentences::whole(&[outside]) == "limit";
            let name = if is_limit { &outside.part } else { "not reserved by PyTorch" };
            parts.push(part(name, PartKind::Outside, None, left, ""));
        }
        parts
    }

    fn ledger(&mut self) {
        let App { data, moment, theme, .. } = self.app;
        let parts = self.parts();
        let total: Bytes = parts.iter().map(|part| part.bytes).sum();
        let at = match data.name_of(*moment) {
            _ if has_ledger(self.app) => format!("at the {}", data::title(data.report.ledger_at)),
            Some(name) => format!("at the {name}"),
            None => after(*moment),
        };
        self.lines.push(Line::styled(format!("{total} {at}"), theme.strong()));
        let wide = self.width >= 60;
        let columns = if wide { 20 } else { 8 };
        for part in parts.iter().filter(|part| part.bytes > Bytes::ZERO) {
            let style = part.class.map_or_else(|| theme.faint(), |class| theme.class(class));
            let filled = bar(part.bytes.get(), total.get(), columns);
            let name = text::clean(&part.part);
            let left = self.width.saturating_sub(columns + 17);
            let detail = if wide && !part.detail.is_empty() {
                format!("  {}", text::clean(&part.detail))
            } else {
                String::new()
            };
            let name = text::cut_end(&name, left);
            let detail = text::cut_end(&detail, left.saturating_sub(text::width(&name)));
            self.lines.push(Line::from(vec![
                Span::styled(text::padded(&filled, columns), style),
                Span::raw(format!(
                    " {:>8} {:>5}  ",
                    part.bytes.to_string(),
                    text::share(part.bytes.get(), total.get())
                )),
                Span::raw(name),
                Span::styled(detail, theme.faint()),
            ]));
        }
    }

    fn source(&mut self) {
        let report = &self.app.data.report;
        let source = &report.source;
        let plain = Style::new();
        let path = if source.path == "-" { "standard input" } else { source.path.as_str() };
        self.field("Source", plain, &format!("{path}, {}, {}", source.format, source.bytes));
        self.field("Device", plain, &sentences::device(report));
        self.field("Events", plain, &sentences::events(report));
        self.field("Steps", plain, &sentences::steps(&report.steps));
        self.field("Peaks", plain, &sentences::peaks(report));
        let conf = if source.conf.is_empty() { "stock settings" } else { &source.conf };
        self.field("Conf", plain, conf);
        self.field("Replay", plain, &sentences::replay(&report.replay));
        for (index, note) in source.notes.iter().enumerate() {
            self.field(if index == 0 { "Notes" } else { "" }, plain, note);
        }
    }
}
