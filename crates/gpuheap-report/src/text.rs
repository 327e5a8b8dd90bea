//! Words and figures that every form of a report shares, and the one place where foreign text is made harmless.

use gpuheap_explain::{Confidence, Site, VerdictKind};
use gpuheap_record::Bytes;
use unicode_width::UnicodeWidthChar;

/// Replaces every character that could steer a terminal, reorder a line or hide text.
///
/// Line ends and tabs become spaces, other control, direction and invisible characters become `\u{fffd}`, variation
/// selectors and joiners disappear.
#[must_use]
pub fn sanitize(text: &str) -> String {
    text.chars().filter_map(harmless).collect()
}

fn harmless(character: char) -> Option<char> {
    match character {
        '\t' | '\n' | '\r' => Some(' '),
        '\u{200d}' | '\u{fe00}'..='\u{fe0f}' => None,
        other if is_unsafe(other) => Some(char::REPLACEMENT_CHARACTER),
        other => Some(other),
    }
}

/// Whether `character` can do more than stand in its place.
pub(crate) fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Foreign text in which nothing is markup, for HTML.
#[must_use]
pub fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// The nearest text in ASCII.
pub(crate) fn ascii(text: &str) -> String {
    let mut folded = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            plain if plain.is_ascii() => folded.push(plain),
            '…' => folded.push_str("..."),
            '–' | '—' | '−' => folded.push('-'),
            '→' => folded.push_str("->"),
            '≥' => folded.push_str(">="),
            '≤' => folded.push_str("<="),
            '×' => folded.push('x'),
            '·' => folded.push('*'),
            'µ' | 'μ' => folded.push('u'),
            '‘' | '’' => folded.push('\''),
            '“' | '”' => folded.push('"'),
            '\u{a0}' | '\u{202f}' | '\u{2009}' => folded.push(' '),
            _ => folded.push('?'),
        }
    }
    folded
}

/// Columns that `text` takes on a terminal, if it went through [`sanitize`].
#[must_use]
pub fn width(text: &str) -> usize {
    text.chars().map(char_width).sum()
}

pub(crate) fn char_width(character: char) -> usize {
    character.width().unwrap_or(0)
}

/// `part` of `whole` in whole percent; what is not nothing and not all never looks as if it were.
#[must_use]
pub fn share(part: Bytes, whole: Bytes) -> String {
    let percent = part.share_of(whole) * 100.0;
    if part > Bytes::ZERO && percent < 1.0 {
        "<1 %".to_owned()
    } else if part < whole && percent > 99.0 {
        ">99 %".to_owned()
    } else {
        format!("{percent:.0} %")
    }
}

/// A number with a comma between thousands.
#[must_use]
pub fn count(number: u64) -> String {
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

/// `1 event`, `428 events`.
#[must_use]
pub fn counted(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// A time span in the unit that suits it.
#[must_use]
pub fn duration(microseconds: u64) -> String {
    let seconds = microseconds as f64 / 1e6;
    let whole = microseconds / 1_000_000;
    match microseconds {
        0..1_000 => format!("{microseconds} µs"),
        1_000..1_000_000 => format!("{} ms", three_digits(seconds * 1e3)),
        1_000_000..60_000_000 => format!("{} s", three_digits(seconds)),
        60_000_000..3_600_000_000 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", count(whole / 3600), whole / 60 % 60),
    }
}

fn three_digits(number: f64) -> String {
    let digits = if number >= 99.95 {
        0
    } else if number >= 9.995 {
        1
    } else {
        2
    };
    format!("{number:.digits$}")
}

/// The headline with the kind before it, unless it says so itself.
#[must_use]
pub fn headline(kind: VerdictKind, headline: &str) -> (&'static str, String) {
    let name = kind.title();
    let rest = match headline.get(..name.len()) {
        Some(start) if start.eq_ignore_ascii_case(name) => {
            headline[name.len()..].trim_start_matches([':', ',', '.', ' '])
        }
        _ => headline,
    };
    (name, rest.to_owned())
}

pub(crate) fn confidence(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Low => "low",
        Confidence::Medium => "medium",
        Confidence::High => "high",
    }
}

/// The line of a shell that sets `conf`, ready to be copied.
#[must_use]
pub fn conf_line(conf: &str) -> String {
    let conf = sanitize(conf);
    let plain = |c: char| c.is_ascii_alphanumeric() || "_:,.-+/=".contains(c);
    if conf.is_empty() {
        "unset PYTORCH_CUDA_ALLOC_CONF".to_owned()
    } else if conf.chars().all(plain) {
        format!("{SET_CONF}{conf}")
    } else {
        format!("{SET_CONF}'{}'", conf.replace('\'', "'\\''"))
    }
}

/// What a line that sets `conf` starts with.
pub(crate) const SET_CONF: &str = "export PYTORCH_CUDA_ALLOC_CONF=";

/// `text` with its first letter as at the start of a sentence.
pub(crate) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// The settings of an allocator in words.
pub(crate) fn settings(conf: &str) -> String {
    if conf.is_empty() { "stock settings".to_owned() } else { sanitize(conf) }
}

/// `train.py:16 in step` in at most `room` columns: the path loses its start first, then the function its end.
#[must_use]
pub fn site(site: &Site, room: usize) -> String {
    moved_site(site, None, room)
}

/// `train.py:14→16 in step`: the place, and its line before if that was another.
pub(crate) fn moved_site(site: &Site, from: Option<u32>, room: usize) -> String {
    let function = sanitize(&site.function);
    let line = match from {
        Some(from) => format!(":{from}→{}", site.line),
        None if site.line == 0 => String::new(),
        None => format!(":{}", site.line),
    };
    let file = sanitize(&site.file);
    if file.is_empty() {
        return cut_end(&function, room);
    }
    let in_function = if function.is_empty() { String::new() } else { format!(" in {function}") };
    let for_file = room.saturating_sub(width(&line) + width(&in_function));
    // The name of the file counts more than the function, the function more than the folders.
    let name = file.rfind(['/', '\\']).map_or(width(&file), |start| width(&file[start..]) + 1);
    let least = name.min(width(&file)).min(room.saturating_sub(width(&line)));
    let place = format!("{}{line}", cut_path(&file, for_file.max(least)));
    let left = room.saturating_sub(width(&place));
    let in_function = if left < 8 && left < width(&in_function) { String::new() } else { cut_end(&in_function, left) };
    format!("{place}{in_function}")
}

/// Drops leading folders of `path` until it fits.
#[must_use]
pub fn cut_path(path: &str, room: usize) -> String {
    if width(path) <= room {
        return path.to_owned();
    }
    for (index, _) in path.match_indices(['/', '\\']) {
        if width(&path[index..]) < room {
            return format!("…{}", &path[index..]);
        }
    }
    let mut kept = room.saturating_sub(1);
    let start = path.char_indices().rev().take_while(|&(_, character)| {
        let fits = char_width(character) <= kept;
        kept = kept.saturating_sub(char_width(character));
        fits
    });
    let start = start.last().map_or(path.len(), |(index, _)| index);
    if room == 0 { String::new() } else { format!("…{}", &path[start..]) }
}

/// Cuts the end of `text` so that it fits.
#[must_use]
pub fn cut_end(text: &str, room: usize) -> String {
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

/// Breaks `text` into lines, at spaces where it can: the first of at most `first` columns, the others of at most `rest`.
/// A figure and its unit stay together.
#[must_use]
pub fn wrap(text: &str, first: usize, rest: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut room = first.max(1);
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
            room = rest.max(1);
        }
        for character in word.chars() {
            if width(&line) + char_width(character) > room && !line.is_empty() {
                lines.push(std::mem::take(&mut line));
                room = rest.max(1);
            }
            line.push(character);
        }
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

/// The words of `text`; a figure and its unit are one.
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
    fn shares_never_hide_a_rest() {
        let of = |part, whole| share(Bytes::new(part), Bytes::new(whole));
        assert_eq!(of(0, 10), "0 %");
        assert_eq!(of(1, 100_000), "<1 %");
        assert_eq!(of(43, 100), "43 %");
        assert_eq!(of(99_999, 100_000), ">99 %");
        assert_eq!(of(10, 10), "100 %");
        assert_eq!(of(0, 0), "0 %");
    }

    #[test]
    fn figures_are_easy_to_read() {
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(counted(1, "event", "events"), "1 event");
        for (time, text) in [
            (12, "12 µs"),
            (12_345, "12.3 ms"),
            (3_214_000, "3.21 s"),
            (65_000_000, "1 min 05 s"),
            (7_380_000_000, "2 h 03 min"),
        ] {
            assert_eq!(duration(time), text);
        }
    }

    #[test]
    fn paths_lose_their_start() {
        let linear = Site {
            file: "/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py".into(),
            line: 134,
            function: "forward".into(),
        };
        assert_eq!(site(&linear, 50), "…/torch/nn/modules/linear.py:134 in forward");
        assert_eq!(site(&linear, 30), "…/linear.py:134 in forward");
        assert_eq!(site(&linear, 24), "…/linear.py:134 in forw…");
        assert_eq!(site(&linear, 10), "…ar.py:134");
        assert_eq!(cut_path("日本語.py", 6), "…語.py");
    }

    #[test]
    fn escape_sequences_lose_their_teeth() {
        assert_eq!(sanitize("a\u{1b}[2J\u{9b}b\nc\u{202e}"), "a\u{fffd}[2J\u{fffd}b c\u{fffd}");
        assert_eq!(ascii("µs → … ☃"), "us -> ... ?");
    }

    #[test]
    fn settings_can_be_pasted_into_a_shell() {
        assert_eq!(conf_line("expandable_segments:True"), "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
        assert_eq!(conf_line("a:[1:2]"), "export PYTORCH_CUDA_ALLOC_CONF='a:[1:2]'");
        assert_eq!(conf_line("a'$(b)"), "export PYTORCH_CUDA_ALLOC_CONF='a'\\''$(b)'");
        assert_eq!(conf_line(""), "unset PYTORCH_CUDA_ALLOC_CONF");
    }

    #[test]
    fn words_longer_than_a_line_are_broken() {
        assert_eq!(wrap("one two abcdefghij", 8, 6), ["one two", "abcdef", "ghij"]);
        assert_eq!(wrap("", 8, 6), [""]);
        assert_eq!(wrap("日本", 1, 1), ["日", "本"]);
        assert_eq!(wrap("about 1.08 GiB, no more", 12, 12), ["about", "1.08 GiB, no", "more"]);
    }
}
