//! Foreign text inside Markdown: it is shown as it is and changes nothing around it.

use gpuheap_explain::Site;

use crate::text::{self, sanitize};

/// Text between paragraphs' marks. Pairs of backticks in it make code, as the analyses write names.
pub(super) fn prose(text: &str) -> String {
    pieces(text, escape, code)
}

/// Text in a cell of a table.
pub(super) fn cell(text: &str) -> String {
    pieces(text, escape, code_cell)
}

/// Text inside HTML.
pub(super) fn html(text: &str) -> String {
    pieces(text, escape_html, |code| format!("<code>{}</code>", escape_html(code)))
}

/// Text with `plain` around and `code` inside of pairs of backticks.
fn pieces(text: &str, plain: fn(&str) -> String, code: fn(&str) -> String) -> String {
    let text = sanitize(text);
    let mut shown = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('`') {
        shown.push_str(&plain(before));
        match after.split_once('`') {
            Some((inside, after)) if !inside.is_empty() => {
                shown.push_str(&code(inside));
                rest = after;
            }
            _ => {
                shown.push_str(&plain("`"));
                rest = after;
            }
        }
    }
    shown + &plain(rest)
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    let mut in_word = false;
    while let Some(character) = characters.next() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            // Inside a word it marks nothing.
            '_' if in_word && characters.peek().is_some_and(|next| next.is_alphanumeric()) => escaped.push('_'),
            // A reader of an issue is not to be called by a name in a file.
            '@' => escaped.push_str("&#64;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '#' | '!' | '$' => {
                escaped.push('\\');
                escaped.push(character);
            }
            other => escaped.push(other),
        }
        in_word = character.is_alphanumeric();
    }
    escaped
}

fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '@' => escaped.push_str("&#64;"),
            '`' => escaped.push_str("&#96;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Text as code, between as many backticks as it needs.
pub(super) fn code(text: &str) -> String {
    let text = sanitize(text);
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    if text.is_empty() {
        String::new()
    } else if text.starts_with(['`', ' ']) || text.ends_with(['`', ' ']) {
        format!("{fence} {text} {fence}")
    } else {
        format!("{fence}{text}{fence}")
    }
}

/// Text as code in a cell, where a bar ends the cell even inside code.
pub(super) fn code_cell(text: &str) -> String {
    code(text).replace('|', "\\|")
}

/// A block of code; its lines are what line ends of `text` say.
pub(super) fn fenced(language: &str, text: &str) -> String {
    let text = text.lines().map(sanitize).collect::<Vec<_>>().join("\n");
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat((longest + 1).max(3));
    format!("{fence}{language}\n{text}\n{fence}")
}

/// A place.
pub(super) fn site(site: &Site) -> String {
    place(site, None, code)
}

/// A place in a cell.
pub(super) fn site_cell(site: &Site) -> String {
    place(site, None, code_cell)
}

/// A place in a cell, and its line before if that was another.
pub(super) fn moved_cell(site: &Site, from: Option<u32>) -> String {
    place(site, from, code_cell)
}

fn place(site: &Site, from: Option<u32>, code: fn(&str) -> String) -> String {
    let file = text::moved_site(&Site { function: String::new(), ..site.clone() }, from, 64);
    match (file.is_empty(), site.function.is_empty()) {
        (false, false) => format!("{} in {}", code(&file), code(&site.function)),
        (false, true) => code(&file),
        (true, _) => code(&site.function),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_changes_nothing_around_it() {
        assert_eq!(prose("a|b <img> *c* @you"), "a\\|b &lt;img&gt; \\*c\\* &#64;you");
        assert_eq!(prose("a_b.py __init__ _x_"), "a_b.py \\_\\_init\\_\\_ \\_x\\_");
        assert_eq!(prose("keep `loss.item()`"), "keep `loss.item()`");
        assert_eq!(prose("one ` alone <b>"), "one \\` alone &lt;b&gt;");
        assert_eq!(cell("`a|b`"), "`a\\|b`");
        assert_eq!(code("a``b`"), "``` a``b` ```");
        assert_eq!(html("<script> `a<b` `"), "&lt;script&gt; <code>a&lt;b</code> &#96;");
        assert_eq!(fenced("text", "a\n```\u{1b}b"), "````text\na\n```\u{fffd}b\n````");
    }
}
