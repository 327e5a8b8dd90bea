//! Text as it fits on a screen. Names come from files that nobody vouches for: all of them go through [`clean`].

use gpuheap_explain::Site;
use gpuheap_record::Bytes;
pub(crate) use gpuheap_report::text::{count, cut_end, cut_path, duration, width};
use gpuheap_report::{sanitize, text};

/// Longer names are cut before anything else is done with them: no screen shows as much.
const MOST_BYTES: usize = 4096;

/// The text without anything that could steer a terminal; of a very long one the start.
pub(crate) fn clean(text: &str) -> String {
    let mut end = text.len().min(MOST_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    sanitize(&text[..end])
}

/// The same for paths, of which the end says more.
fn clean_path(path: &str) -> String {
    let mut start = path.len().saturating_sub(MOST_BYTES);
    while !path.is_char_boundary(start) {
        start += 1;
    }
    sanitize(&path[start..])
}

/// Bytes with a sign.
pub(crate) fn signed(bytes: i64) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", Bytes::new(bytes.unsigned_abs()))
}

/// `1 block`, `428 blocks`.
pub(crate) fn counted(number: u64, one: &str) -> String {
    text::counted(number, one, &format!("{one}s"))
}

/// `part` of `whole` in percent.
pub(crate) fn share(part: u64, whole: u64) -> String {
    text::share(Bytes::new(part), Bytes::new(whole))
}

/// `train.py:16 in step` in at most `room` columns: the path loses its start first, then the function its end.
pub(crate) fn place(file: &str, line: u32, function: &str, room: usize) -> String {
    let site = Site { file: clean_path(file), line, function: clean(function) };
    text::site(&site, room)
}

/// The last part of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Whether `train.py:16 step` has `lowercase` in it, with its folders.
pub(crate) fn matches(file: &str, line: u32, function: &str, lowercase: &str) -> bool {
    format!("{file}:{line} {function}").to_lowercase().contains(lowercase)
}

/// `text` cut or filled to `room` columns.
pub(crate) fn padded(text: &str, room: usize) -> String {
    let mut text = cut_end(text, room);
    text.extend(std::iter::repeat_n(' ', room.saturating_sub(width(&text))));
    text
}

/// Breaks `text` into lines of at most `room` columns.
pub(crate) fn wrap(text: &str, room: usize) -> Vec<String> {
    text::wrap(text, room, room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lose_folders_then_the_end_of_the_function() {
        let file = "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py";
        assert_eq!(place(file, 134, "forward", 50), "…/torch/nn/modules/linear.py:134 in forward");
        assert_eq!(place(file, 134, "forward", 24), "…/linear.py:134 in forw…");
        assert_eq!(place(file, 134, "forward", 10), "…ar.py:134");
        assert_eq!(place("", 0, "backward pass", 8), "backwar…");
        for room in 0..80 {
            assert!(width(&place(file, 134, "forward", room)) <= room.max(4), "{room}");
        }
    }

    #[test]
    fn names_are_harmless_and_short() {
        let long = format!("{}\u{1b}[2J/x.py", "é".repeat(1 << 20));
        assert!(place(&long, 1, &long, 40).ends_with('…') || width(&place(&long, 1, &long, 40)) <= 40);
        assert!(!place(&long, 1, &long, 4000).contains('\u{1b}'));
        assert!(clean(&long).len() <= MOST_BYTES);
    }

    #[test]
    fn lines_break_at_spaces_and_nowhere_in_a_figure() {
        assert_eq!(wrap("one two abcdefghij", 8), ["one two", "abcdefgh", "ij"]);
        assert_eq!(wrap("about 1.08 GiB, no more", 12), ["about", "1.08 GiB, no", "more"]);
        assert_eq!(wrap("", 0), [""]);
        assert_eq!(wrap("日本", 1), ["日", "本"]);
    }

    #[test]
    fn figures() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "block"), "1 block");
        assert_eq!(signed(-2048), "-2.00 KiB");
        assert_eq!(share(1, 1_000_000), "<1 %");
        assert_eq!(padded("abc", 5), "abc  ");
        assert_eq!(padded("abcdef", 3), "ab…");
    }
}
