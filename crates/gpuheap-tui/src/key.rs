//! Keys as the views know them, whatever the terminal sends.

/// One key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// A character.
    Char(char),
    /// Arrow up.
    Up,
    /// Arrow down.
    Down,
    /// Arrow left.
    Left,
    /// Arrow right.
    Right,
    /// Page up.
    PageUp,
    /// Page down.
    PageDown,
    /// To the start.
    Home,
    /// To the end.
    End,
    /// Enter.
    Enter,
    /// Tab.
    Tab,
    /// Tab with shift.
    BackTab,
    /// Deletes the character before.
    Backspace,
    /// Escape.
    Esc,
    /// Control and C: ends everything at once.
    Interrupt,
}
