//! The terminal: taken, fed, and always given back as it was.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpuheap_explain::Analysis;
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::style::force_color_output;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::crossterm::{execute, queue};

use crate::app::{App, Options};
use crate::error::Error;
use crate::key::Key;
use crate::screen::draw;

/// Shows an analysis on the terminal of the process until its user leaves. `ready` is called before the screen is
/// taken: whatever else writes to the terminal ends there.
///
/// Standard output must be a terminal. Keys come from standard input, or from the controlling terminal where that is
/// something else.
pub fn run(analysis: Analysis, options: &Options, ready: impl FnOnce()) -> Result<(), Error> {
    let mut app = App::new(analysis, options);
    ready();
    // The library looks at `NO_COLOR` itself; who calls has done that already, and may have been told otherwise.
    force_color_output(options.color);
    restore_on_panic();
    let _held = Held::take().map_err(Error::Terminal)?;
    let shown = show(&mut app);
    shown.and(restore()).map_err(Error::Terminal)
}

fn show(app: &mut App) -> io::Result<()> {
    let mut terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
    while !app.is_done() {
        let size = terminal.size()?;
        app.resize(size.width, size.height);
        terminal.draw(|frame| draw(app, frame))?;
        // Keys that came meanwhile are all heeded before the screen is painted again.
        feed(app, &event::read()?);
        while !app.is_done() && event::poll(Duration::ZERO)? {
            feed(app, &event::read()?);
        }
    }
    Ok(())
}

fn feed(app: &mut App, event: &Event) {
    if let Event::Key(event) = event
        && event.kind != KeyEventKind::Release
        && let Some(key) = key(event)
    {
        app.update(key);
    }
}

fn key(event: &KeyEvent) -> Option<Key> {
    let control = event.modifiers.contains(KeyModifiers::CONTROL);
    Some(match event.code {
        KeyCode::Char('c') if control => Key::Interrupt,
        KeyCode::Char(_) if control || event.modifiers.contains(KeyModifiers::ALT) => return None,
        KeyCode::Char(character) => Key::Char(character),
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Tab => Key::Tab,
        KeyCode::BackTab => Key::BackTab,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Esc => Key::Esc,
        _ => return None,
    })
}

/// Whether the terminal is ours.
static HELD: AtomicBool = AtomicBool::new(false);

/// The terminal while it is ours.
struct Held(());

impl Held {
    fn take() -> io::Result<Self> {
        enable_raw_mode()?;
        HELD.store(true, Ordering::SeqCst);
        // From here on a failure gives back what was taken.
        let held = Self(());
        execute!(io::stdout(), EnterAlternateScreen)?;
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // There is nowhere to say that this failed.
        let _ = restore();
    }
}

/// The screen as it was, the cursor seen, keys echoed. Each is tried even if another fails. Only the first call does
/// anything: leaving the screen once more would move the cursor over what was written since.
fn restore() -> io::Result<()> {
    if !HELD.swap(false, Ordering::SeqCst) {
        return Ok(());
    }
    let mut stdout = io::stdout();
    let screen = queue!(stdout, LeaveAlternateScreen, Show).and_then(|()| stdout.flush());
    let raw = disable_raw_mode();
    screen.and(raw)
}

/// A panic's message is of no use on a screen that is about to vanish.
fn restore_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let _ = restore();
        before(panic);
    }));
}
