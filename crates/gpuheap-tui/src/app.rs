//! The state of the whole screen, and what keys do to it.

use gpuheap_explain::{Analysis, MomentName};
use gpuheap_record::Bytes;
use ratatui::layout::Rect;

use crate::data::Data;
use crate::key::Key;
use crate::theme::Theme;
use crate::views::{findings, map, sites, timeline};
use crate::{help, screen};

/// How to show a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options {
    /// Whether the terminal shows colours. Nothing is said by colour alone.
    pub color: bool,
    /// Whether the terminal shows more than ASCII.
    pub unicode: bool,
    /// The card's size, or whatever limits the program: a line in the timeline.
    pub limit: Option<Bytes>,
}

/// One of the views.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum View {
    /// What is wrong, and what to change.
    Findings,
    /// Who held memory at the chosen moment.
    Sites,
    /// Memory through time.
    Timeline,
    /// The segments at the chosen moment.
    Map,
}

impl View {
    /// All of them, in the order of their tabs.
    pub const ALL: [Self; 4] = [Self::Findings, Self::Sites, Self::Timeline, Self::Map];

    /// The name on the tab.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Findings => "Findings",
            Self::Sites => "Sites",
            Self::Timeline => "Timeline",
            Self::Map => "Map",
        }
    }

    fn shifted(self, by: usize) -> Self {
        let at = Self::ALL.iter().position(|&view| view == self).unwrap_or(0);
        Self::ALL[(at + by) % Self::ALL.len()]
    }
}

/// The state of the screen. Keys change it, [`draw`](crate::draw) shows it; neither knows a terminal.
#[derive(Debug)]
pub struct App {
    pub(crate) data: Data,
    pub(crate) theme: Theme,
    pub(crate) view: View,
    /// The chosen moment, as a tick.
    pub(crate) moment: u32,
    /// How far the help is scrolled, while it is shown.
    pub(crate) help: Option<u16>,
    /// What the last key could not do.
    pub(crate) message: Option<String>,
    pub(crate) findings: findings::State,
    pub(crate) sites: sites::State,
    pub(crate) timeline: timeline::State,
    pub(crate) map: map::State,
    size: (u16, u16),
    done: bool,
}

impl App {
    /// Shows an analysis, first the findings. The moment is the one that the report describes.
    #[must_use]
    pub fn new(analysis: Analysis, options: &Options) -> Self {
        let data = Data::new(analysis, options.limit.map(Bytes::get));
        let moment = data.tick_of(data.report.ledger_at).unwrap_or(data.last);
        let mut app = Self {
            theme: Theme { color: options.color, unicode: options.unicode },
            view: View::Findings,
            moment,
            help: None,
            message: None,
            findings: findings::State::default(),
            sites: sites::State::default(),
            timeline: timeline::State::new(moment, data.last),
            map: map::State::default(),
            size: (80, 24),
            done: false,
            data,
        };
        app.prepare();
        app
    }

    /// The screen has another size.
    pub fn resize(&mut self, columns: u16, rows: u16) {
        if self.size != (columns, rows) {
            self.size = (columns, rows);
            self.prepare();
        }
    }

    /// The view that is shown.
    #[must_use]
    pub const fn view(&self) -> View {
        self.view
    }

    /// The chosen moment, as a tick.
    #[must_use]
    pub const fn moment(&self) -> u32 {
        self.moment
    }

    /// Whether the user wants to leave.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.done
    }

    /// A key was pressed.
    pub fn update(&mut self, key: Key) {
        self.react(key);
        self.prepare();
    }

    fn react(&mut self, key: Key) {
        let message = self.message.take();
        if key == Key::Interrupt {
            self.done = true;
        } else if let Some(scroll) = &mut self.help {
            // The window covers the views: no key reaches them unseen.
            match key {
                Key::Char('q' | '?') | Key::Esc | Key::Enter => self.help = None,
                Key::Up | Key::PageUp => *scroll = scroll.saturating_sub(1),
                Key::Down | Key::PageDown => *scroll = (*scroll + 1).min(help::scrolls(self.view, self.size)),
                _ => {}
            }
        } else if key == Key::Esc && message.is_some() {
            // It is closed, and nothing beneath it.
        } else if !self.view_takes(key) {
            self.react_everywhere(key);
        }
    }

    /// Whether the view had a use for the key.
    fn view_takes(&mut self, key: Key) -> bool {
        match self.view {
            View::Findings => findings::update(self, key),
            View::Sites => sites::update(self, key),
            View::Timeline => timeline::update(self, key),
            View::Map => map::update(self, key),
        }
    }

    fn react_everywhere(&mut self, key: Key) {
        match key {
            Key::Char('q') => self.done = true,
            Key::Char('?') => self.help = Some(0),
            Key::Char(digit @ '1'..='4') => self.view = View::ALL[(digit as usize) - ('1' as usize)],
            Key::Tab => self.view = self.view.shifted(1),
            Key::BackTab => self.view = self.view.shifted(View::ALL.len() - 1),
            _ => {
                if let Some(tick) = self.jump(key, self.moment) {
                    self.choose(tick);
                } else {
                    self.message = self.no_moment(key);
                }
            }
        }
    }

    /// Where a key that names a moment leads to from a tick.
    pub(crate) fn jump(&self, key: Key, from: u32) -> Option<u32> {
        match key {
            Key::Char('p') => self.data.tick_of(MomentName::Peak),
            Key::Char('r') => self.data.tick_of(MomentName::PeakReserved),
            Key::Char('o') => self.data.tick_of(MomentName::Oom),
            Key::Char('e') => self.data.tick_of(MomentName::End),
            Key::Char('n') => self.data.step_from(from, true),
            Key::Char('N') => self.data.step_from(from, false),
            _ => None,
        }
    }

    /// Why a key that names a moment leads nowhere.
    pub(crate) fn no_moment(&self, key: Key) -> Option<String> {
        let why = match key {
            Key::Char('o') => "no allocation failed",
            Key::Char('n' | 'N') if self.data.steps.is_empty() => "no steps are known",
            Key::Char('n') => "no step ends later",
            Key::Char('N') => "no step ends earlier",
            _ => return None,
        };
        Some(why.to_owned())
    }

    /// Chooses the moment that all views show.
    pub(crate) fn choose(&mut self, tick: u32) {
        self.moment = tick.min(self.data.last);
        self.timeline.go_to(self.moment);
    }

    /// The part of the screen that belongs to the view.
    pub(crate) fn body(&self) -> Rect {
        screen::body(Rect::new(0, 0, self.size.0, self.size.1))
    }

    /// Makes what the view on the screen needs and does not have yet.
    fn prepare(&mut self) {
        match self.view {
            View::Findings => findings::prepare(self),
            View::Sites => sites::prepare(self),
            View::Timeline => timeline::prepare(self),
            View::Map => map::prepare(self),
        }
    }
}
