//! Text as it fits on a screen. Names come from files that nobody vouches for: all of them go through [`clean`].

use gpuheap_record::Bytes;
use gpuheap_report::sanitize;
use unicode_width::UnicodeWidthChar;

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

/// Columns that `text` takes.
pub(crate) fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

fn char_width(character: char) -> usize {
    character.width().unwrap_or(0)
}

/// A number with a comma between thousands.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 block`, `428 blocks`.
pub(crate) fn counted(number: u64, one: &str) -> String {
    format!("{} {one}{}", count(number), if number == 1 { "" } else { "s" })
}

/// A time span in the unit that suits it.
pub(crate) fn duration(microseconds: u64) -> String {
    let seconds = microseconds as f64 / 1e6;
    let whole = microseconds / 1_000_000;
    match microseconds {
        0..1_000 => format!("{microseconds} µs"),
        1_000..1_000_000 => format!("{:.1} ms", seconds * 1e3),
        1_000_000..60_000_000 => format!("{seconds:.2} s"),
        60_000_000..3_600_000_000 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", count(whole / 3600), whole / 60 % 60),
    }
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

/// `part` of `whole` in whole percent; what is not nothing never looks as if it were.
pub(crate) fn share(part: u64, whole: u64) -> String {
    let percent = Bytes::new(part).share_of(Bytes::new(whole)) * 100.0;
    if part > 0 && percent < 1.0 { "<1 %".to_owned() } else { format!("{percent:.0} %") }
}

/// `train.py:16 in step` in at most `room` columns: the path loses its start first, then the function its end.
pub(crate) fn place(file: &str, line: u32, function: &str, room: usize) -> String {
    let function = clean(function);
    if file.is_empty() {
        return cut_end(&function, room);
    }
    let line = if line == 0 { String::new() } else { format!(":{line}") };
    let file = clean_path(file);
    let in_function = if function.is_empty() { String::new() } else { format!(" in {function}") };
    let for_file = room.saturating_sub(width(&line) + width(&in_function));
    let name = file.rfind(['/', '\\']).map_or(width(&file), |start| width(&file[start..]) + 1);
    let least = name.min(width(&file)).min(room.saturating_sub(width(&line)));
    let place = format!("{}{line}", cut_path(&file, for_file.max(least)));
    let left = room.saturating_sub(width(&place));
    let in_function = if left < 8 && left < width(&in_function) { String::new() } else { cut_end(&in_function, left) };
    format!("{place}{in_function}")
}

/// The last part of a path.
pub(crate) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// Whether `train.py:16 step` has `lowercase` in it, with its folders.
pub(crate) fn matches(file: &str, line: u32, function: &str, lowercase: &str) -> bool {
    format!("{file}:{line} {function}").to_lowercase().contains(lowercase)
}

/// Drops leading folders of `path` until it fits.
pub(crate) fn cut_path(path: &str, room: usize) -> String {
    if room == 0 {
        return String::new();
    }
    let mut used = 1;
    let (mut start, mut folder) = (path.len(), None);
    for (index, character) in path.char_indices().rev() {
        used += char_width(character);
        if used > room {
            // Only what is left out is worth a sign for it.
            return if width(path) <= room {
                path.to_owned()
            } else {
                format!("…{}", &path[folder.unwrap_or(start)..])
            };
        }
        start = index;
        if matches!(character, '/' | '\\') {
            folder = Some(index);
        }
    }
    path.to_owned()
}

/// Cuts the end of `text` so that it fits.
pub(crate) fn cut_end(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 1;
    for character in text.chars() {
        used += char_width(character);
        if used > room {
            break;
        }
        kept.push(character);
    }
    if room > 0 {
        kept.push('…');
    }
    kept
}

/// `text` cut or filled to `room` columns.
pub(crate) fn padded(text: &str, room: usize) -> String {
    let mut text = cut_end(text, room);
    text.extend(std::iter::repeat_n(' ', room.saturating_sub(width(&text))));
    text
}

/// Breaks `text` into lines of at most `room` columns, at spaces where it can; a figure and its unit stay together.
pub(crate) fn wrap(text: &str, room: usize) -> Vec<String> {
    let room = room.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in words(text) {
        let gap = usize::from(!line.is_empty());
        if width(&line) + gap + width(&word) <= room {
            if gap == 1 {
                line.push(' ');
            }
            line.push_str(&word);
            continue;
        }
        if !line.is_empty() {
            lines.push(std::mem::take(&mut line));
        }
        let mut used = 0;
        for character in word.chars() {
            if used + char_width(character) > room && !line.is_empty() {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            used += char_width(character);
            line.push(character);
        }
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

fn words(text: &str) -> Vec<String> {
    const UNITS: [&str; 11] = ["%", "B", "KiB", "MiB", "GiB", "TiB", "PiB", "µs", "ms", "s", "min"];
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let is_unit = UNITS.contains(&word.trim_end_matches(['.', ',', ';', ':', ')']));
        match words.last_mut() {
            Some(figure) if is_unit && figure.ends_with(|last: char| last.is_ascii_digit()) => {
                figure.push(' ');
                figure.push_str(word);
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
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
