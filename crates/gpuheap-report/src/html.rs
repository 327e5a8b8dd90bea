//! The report as one HTML file that needs nothing else.
//!
//! The page is a script that draws what it finds in the page's data; both are in the file, and its content security
//! policy allows nothing else: no other script, no network. Nothing of the recording is ever markup: the data is
//! compressed, and what is shown without scripts is escaped.

pub mod fit;

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use gpuheap_explain::{Analysis, Page, WhatIfCurve};
use serde::Serialize;

use crate::document::render;
use crate::error::Error;
use crate::sentences::file;
use crate::terminal::Style;
use crate::text::{escape_html, sanitize};

/// The page's script and style, bundled from `web/` by `cargo xtask web`, each with the hash that a content security
/// policy names it by.
pub mod assets {
    /// The script.
    pub const SCRIPT: &str = include_str!("../assets/report.js");
    /// The SHA-256 of the script, in base 64.
    pub const SCRIPT_HASH: &str = include_str!("../assets/report.js.sha256");
    /// The style.
    pub const STYLE: &str = include_str!("../assets/report.css");
    /// The script of the page of a plan.
    pub const FIT_SCRIPT: &str = include_str!("../assets/fit.js");
    /// The SHA-256 of it.
    pub const FIT_SCRIPT_HASH: &str = include_str!("../assets/fit.js.sha256");
    /// The style of the page of a plan.
    pub const FIT_STYLE: &str = include_str!("../assets/fit.css");
}

/// What draws a page.
#[derive(Clone, Copy)]
struct Bundle {
    script: &'static str,
    script_hash: &'static str,
    style: &'static str,
}

const REPORT: Bundle = Bundle { script: assets::SCRIPT, script_hash: assets::SCRIPT_HASH, style: assets::STYLE };

/// The most bytes of a file.
const MOST_BYTES: usize = 2_000_000;
/// Blocks that are tried to be kept at first.
const FIRST_BLOCKS: usize = 400_000;

/// The report as one HTML file of at most 2 MB (unless the findings alone take more). Of a large recording it keeps the
/// blocks of the moments that readers look at and the largest others, and says so.
pub fn to_html(analysis: &Analysis, whatif: Vec<WhatIfCurve>) -> Result<String, Error> {
    let mut most = FIRST_BLOCKS;
    let mut page = analysis.page(&generator(), most, whatif);
    let text = render(analysis.report(), &Style { width: 100, color: false, unicode: true, details: true });
    let name = page_title(&page);
    let room = MOST_BYTES.saturating_sub(html(REPORT, &name, Data::Embedded(""), &text).len());
    loop {
        let data = STANDARD.encode(compressed(&page)?);
        if data.len() <= room || most == 0 {
            return Ok(html(REPORT, &name, Data::Embedded(&data), &text));
        }
        // What is not blocks stays: aim a little below.
        let kept = page.memory.blocks.life.len().min(most);
        most = (kept as u128 * room as u128 / data.len() as u128 * 9 / 10) as usize;
        if most < 100 {
            most = 0;
        }
        page = analysis.with_fewer_blocks(page, most);
    }
}

/// The same page for a server: it fetches its data from `source`, a path on the server that sent it.
#[must_use]
pub fn to_served_html(title: &str, source: &str) -> String {
    html(REPORT, title, Data::At(source), "This page needs scripts.")
}

/// Data as a page takes it: JSON, compressed by gzip.
pub fn compressed(data: &impl Serialize) -> Result<Vec<u8>, Error> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::new(6));
    serde_json::to_writer(std::io::BufWriter::with_capacity(1 << 16, &mut writer), data).map_err(Error::Json)?;
    writer.flush().and_then(|()| writer.finish()).map_err(|error| Error::Json(serde_json::Error::io(error)))
}

/// The name of the program that writes pages, with its version.
#[must_use]
pub fn generator() -> String {
    concat!("gpuheap ", env!("CARGO_PKG_VERSION")).to_owned()
}

fn page_title(page: &Page) -> String {
    let path = file(&page.report.source.path);
    let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
    format!("{}: {}", page.report.verdict.kind.title(), sanitize(name))
}

/// Where the page's data is.
#[derive(Clone, Copy)]
enum Data<'a> {
    /// In the page: gzip in base 64.
    Embedded(&'a str),
    /// On the server that sent the page.
    At(&'a str),
}

fn html(bundle: Bundle, title: &str, data: Data<'_>, text: &str) -> String {
    let (source, connect) = match data {
        Data::Embedded(_) => (String::new(), "'none'"),
        Data::At(path) => (format!(" data-src=\"{}\"", escape_html(path)), "'self'"),
    };
    let embedded = match data {
        Data::Embedded(data) => data,
        Data::At(_) => "",
    };
    format!(
        "<!doctype html>\n\
         <html lang=\"en\">\n\
         <head>\n\
         <meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'sha256-{hash}'; \
         style-src 'unsafe-inline'; img-src data: blob:; connect-src {connect}; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta name=\"generator\" content=\"{generator}\">\n\
         <title>{title}</title>\n\
         <style>{style}</style>\n\
         </head>\n\
         <body>\n\
         <noscript><pre>{text}</pre></noscript>\n\
         <main id=\"gpuheap\"></main>\n\
         <script type=\"application/octet-stream\" id=\"gpuheap-data\"{source}>{embedded}</script>\n\
         <script>{script}</script>\n\
         </body>\n\
         </html>\n",
        hash = bundle.script_hash.trim(),
        generator = generator(),
        title = escape_html(title),
        style = bundle.style,
        text = escape_html(text),
        script = bundle.script,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_markup() {
        let page = html(REPORT, "<title>", Data::At("/a\"b"), "</pre><script>alert('x')</script>");
        assert!(page.contains("<title>&lt;title&gt;</title>"));
        assert!(page.contains("data-src=\"/a&quot;b\""));
        assert!(!page.contains("<script>alert"));
    }

    #[test]
    fn the_script_can_stand_in_a_page() {
        for end in ["</script", "<!--", "</style"] {
            for text in [assets::SCRIPT, assets::STYLE, assets::FIT_SCRIPT, assets::FIT_STYLE] {
                assert!(!text.contains(end), "{end}");
            }
        }
    }
}
