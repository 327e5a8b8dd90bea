//! The report of large recordings and of folders of them, from a server on this machine.
//!
//! A [`Library`] reads and analyses recordings in the background and keeps as many of them in memory as its budget
//! allows. [`router`] answers questions about them over HTTP, and needs no socket for that. [`Server`] listens, on this
//! machine alone unless it is told otherwise. One file a duty: `scan` finds the recordings, `watch` finds them again,
//! `reader` reads one, `library` knows them all, `routes` asks, `guard` refuses.
//!
//! # What is refused
//!
//! The server holds what may be private: the names of files and functions of programs. Other web pages in the same
//! browser must not read it. So a request is answered only if its `Host` names the address that the server listens on
//! (a foreign name that leads here is refused), and if no other origin sent it. There are only questions: `GET` and
//! `HEAD`. Recordings have numbers; no path ever comes from a request. Whoever listens on more than this machine gets an
//! address with a random token, which the first visit changes into a cookie.
//!
//! # Links in a folder
//!
//! The folder may be given as a link. A link in it is followed if it leads to something in the same folder, and left
//! out if it leads out of it: what is served is what is there.
#![forbid(unsafe_code)]

mod access;
mod answer;
mod error;
mod guard;
mod library;
mod list;
mod loaded;
mod memory;
mod pages;
mod query;
mod rank;
mod reader;
mod routes;
mod scan;
mod server;
mod state;
mod summary;
mod watch;
mod whatif;

pub use access::{Access, Listen};
pub use error::Error;
pub use library::{Library, Options};
pub use memory::half_of_memory;
pub use routes::router;
pub use scan::{Finder, Root};
pub use server::Server;
