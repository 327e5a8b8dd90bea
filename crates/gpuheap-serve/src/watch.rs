//! Looks again and again for recordings that came, changed or went.

use std::sync::Weak;
use std::thread;
use std::time::Duration;

use crate::library::Shared;
use crate::scan::Found;

/// Looks every so often, until the library is gone. `known` is what was found at the start.
pub(crate) fn work(library: &Weak<Shared>, every: Duration, mut known: Vec<Found>) {
    let mut fingerprint = None;
    let mut last = known.clone();
    loop {
        thread::sleep(every);
        let Some(library) = library.upgrade().filter(|library| !library.is_closing()) else { return };
        let now = library.root.fingerprint().ok();
        if now.is_some() && now == fingerprint && last == known {
            continue;
        }
        fingerprint = now;
        // What cannot be listed now may come back: a network drive, a folder that is written anew.
        let Ok(found) = library.root.scan() else { continue };
        known = settled(&known, &last, &found);
        last = found;
        library.update(&known);
    }
}

/// What to serve: files that still change are left as they were, or out if they are new.
fn settled(known: &[Found], last: &[Found], found: &[Found]) -> Vec<Found> {
    let serve = |now: &Found| {
        if last.contains(now) {
            return Some(now.clone());
        }
        known.iter().find(|known| known.path == now.path).cloned()
    };
    found.iter().filter_map(serve).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::Stamp;

    fn found(name: &str, bytes: u64) -> Found {
        Found { name: name.to_owned(), path: name.into(), stamp: Stamp { bytes, modified: None } }
    }

    #[test]
    fn files_that_are_being_written_wait() {
        let known = [found("a", 1), found("b", 1), found("gone", 1)];
        let first = [found("a", 1), found("b", 2), found("new", 5)];
        let served = settled(&known, &known, &first);
        assert_eq!(served, [found("a", 1), found("b", 1)]);
        let served = settled(&served, &first, &[found("a", 1), found("b", 2), found("new", 6)]);
        assert_eq!(served, [found("a", 1), found("b", 2)]);
    }
}
