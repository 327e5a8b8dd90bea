//! The pages that are not reports: the list of recordings, a recording that is being read, an error.

use std::fmt::Write;

use gpuheap_report::text::escape_html;

/// The policy of pages without scripts.
pub(crate) const PLAIN_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; \
                                       form-action 'none'; frame-ancestors 'none'";
/// The policy of answers that are no pages.
pub(crate) const NO_PAGE_POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

/// The list's script and style, bundled from `web/` by `cargo xtask web`, with the hashes that the policy names.
mod assets {
    pub(super) const SCRIPT: &str = include_str!("../assets/folder.js");
    pub(super) const SCRIPT_HASH: &str = include_str!("../assets/folder.js.sha256");
    pub(super) const STYLE: &str = include_str!("../assets/folder.css");
    pub(super) const STYLE_HASH: &str = include_str!("../assets/folder.css.sha256");
}

const STYLE: &str = ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}\
body{margin:15vh auto;max-width:40rem;padding:0 1.5rem}\
h1{font-size:1.25rem;overflow-wrap:anywhere}p{overflow-wrap:anywhere}";

/// The list of recordings.
pub(crate) fn folder(title: &str) -> String {
    let body = format!(
        "<noscript><p>This page needs scripts.</p></noscript>\n<div id=\"gpuheap\"></div>\n<script>{}</script>\n",
        assets::SCRIPT
    );
    page(title, "", assets::STYLE, &body)
}

/// The policy of [`folder`].
pub(crate) fn folder_policy() -> String {
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        assets::SCRIPT_HASH.trim(),
        assets::STYLE_HASH.trim()
    )
}

/// The policy of a report, as the page itself has it; only a header can say who may frame it.
pub(crate) fn report_policy() -> String {
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'unsafe-inline'; img-src data: blob:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        gpuheap_report::html::assets::SCRIPT_HASH.trim()
    )
}

/// A recording that is being read. The page asks again by itself.
pub(crate) fn reading(name: &str, doing: &str) -> String {
    let body = format!("<main>\n<h1>{}</h1>\n<p role=\"status\">{}</p>\n</main>\n", text(name), text(doing));
    page(&format!("{doing} {name}"), "<meta http-equiv=\"refresh\" content=\"1\">\n", STYLE, &body)
}

/// An error, with what can be done about it.
pub(crate) fn message(error: &str, hint: Option<&str>) -> String {
    let mut body = format!("<main>\n<h1>{}</h1>\n", text(error));
    if let Some(hint) = hint {
        // Writing to a string cannot fail.
        let _ = writeln!(body, "<p>{}</p>", text(hint));
    }
    body.push_str("<p><a href=\"/recordings\">All recordings</a></p>\n</main>\n");
    page(error, "", STYLE, &body)
}

fn page(title: &str, head: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n{head}\
         <title>{}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}</body>\n</html>\n",
        text(title)
    )
}

/// Foreign text in which nothing is markup and nothing hides.
fn text(text: &str) -> String {
    escape_html(&gpuheap_report::sanitize(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_never_markup() {
        let name = "<img src=x onerror=alert(1)>\u{202e}.pickle";
        for page in [reading(name, "reading… 4 %"), message(name, Some(name)), folder(name)] {
            assert!(page.contains("&lt;img src=x onerror=alert(1)&gt;"), "{page}");
            assert!(!page.contains("<img") && !page.contains('\u{202e}'), "{page}");
        }
    }

    #[test]
    fn the_scripts_can_stand_in_a_page() {
        for end in ["</script", "<!--", "</style"] {
            assert!(!assets::SCRIPT.contains(end) && !assets::STYLE.contains(end), "{end}");
        }
    }
}
