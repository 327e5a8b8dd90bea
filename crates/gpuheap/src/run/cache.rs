//! The loader's own list of libraries, `/etc/ld.so.cache`, which `ldconfig` makes.

use std::fs;
use std::path::{Path, PathBuf};

/// How the part of the file begins that every glibc since 2.2 reads.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Bytes before the entries, of each entry.
const HEADER: usize = 48;
const ENTRY: usize = 24;

/// The files that the list has for a library of that name, as it has them.
pub(super) fn find(name: &str) -> Vec<PathBuf> {
    fs::read(Path::new("/etc/ld.so.cache")).map(|bytes| find_in(&bytes, name)).unwrap_or_default()
}

fn find_in(bytes: &[u8], name: &str) -> Vec<PathBuf> {
    // Older systems have the old form in front.
    let Some(start) = bytes.windows(MAGIC.len()).position(|window| window == MAGIC) else { return Vec::new() };
    let bytes = &bytes[start..];
    let number = |place: usize| {
        let bytes = bytes.get(place..place + 4)?.try_into().ok()?;
        usize::try_from(u32::from_ne_bytes(bytes)).ok()
    };
    let text = |place: usize| {
        let rest = bytes.get(place..)?;
        let end = rest.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&rest[..end]).ok()
    };
    let most = bytes.len().saturating_sub(HEADER) / ENTRY;
    let count = number(MAGIC.len()).unwrap_or(0).min(most);
    let entries = (0..count).map(|entry| HEADER + ENTRY * entry);
    let found = entries.filter(|entry| number(entry + 4).and_then(text) == Some(name));
    found.filter_map(|entry| number(entry + 8).and_then(text).map(PathBuf::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(libraries: &[(&str, &str)]) -> Vec<u8> {
        let mut strings = Vec::new();
        let mut entries = Vec::new();
        let start = HEADER + ENTRY * libraries.len();
        let mut place = |text: &str| {
            let place = u32::try_from(start + strings.len()).unwrap();
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            place
        };
        for (name, path) in libraries {
            for word in [0x303, place(name), place(path), 0, 0, 0] {
                entries.extend_from_slice(&u32::to_ne_bytes(word));
            }
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&u32::try_from(libraries.len()).unwrap().to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend(entries);
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn libraries_are_found_by_name_with_and_without_the_old_form() {
        let bytes =
            cache(&[("libc.so.6", "/lib/libc.so.6"), ("libx.so.1", "/a/libx.so.1"), ("libx.so.1", "/b/libx.so.1")]);
        let expected = vec![PathBuf::from("/a/libx.so.1"), PathBuf::from("/b/libx.so.1")];
        assert_eq!(find_in(&bytes, "libx.so.1"), expected);
        let mut old = b"ld.so-1.7.0\0and more of it".to_vec();
        old.extend(&bytes);
        assert_eq!(find_in(&old, "libx.so.1"), expected);
        assert_eq!(find_in(&bytes, "libx.so"), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_list_that_is_cut_or_wrong_anywhere_does_no_harm() {
        let bytes = cache(&[("libx.so.1", "/a/libx.so.1")]);
        for end in 0..bytes.len() {
            assert!(find_in(&bytes[..end], "libx.so.1").is_empty(), "{end}");
        }
        for place in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[place] = 0xff;
            find_in(&wrong, "libx.so.1");
        }
    }

    #[test]
    fn this_machine_s_list_has_its_libraries() {
        let found = find("libc.so.6");
        assert!(found.iter().all(|path| path.is_absolute()), "{found:?}");
    }
}
