//! The report in a terminal: findings, sites, memory through time, the map of memory.
//!
//! [`App`] is the state and knows no terminal: keys go in by [`App::update`], [`draw`] paints it. [`run`] does both on
//! the terminal of the process and gives it back as it was. One file a view below `views/`.
#![forbid(unsafe_code)]

mod app;
mod data;
mod error;
mod help;
mod key;
mod screen;
mod terminal;
mod text;
mod theme;
mod views;

pub use app::{App, Options, View};
pub use error::Error;
pub use key::Key;
pub use screen::draw;
pub use terminal::run;
