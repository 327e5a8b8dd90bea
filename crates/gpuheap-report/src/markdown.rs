//! Reports as GitHub-flavoured Markdown, for issues and pull requests.

pub(crate) mod diff;
pub(crate) mod fit;
pub(crate) mod inline;
pub(crate) mod report;
pub(crate) mod whatif;

/// Paragraphs, tables and blocks, an empty line between each two.
#[derive(Default)]
pub(crate) struct Page {
    text: String,
}

impl Page {
    pub(crate) fn block(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(text);
        self.text.push('\n');
    }

    pub(crate) fn list(&mut self, items: &[String]) {
        if !items.is_empty() {
            self.block(&items.iter().map(|item| format!("- {item}")).collect::<Vec<_>>().join("\n"));
        }
    }

    /// A table; a title that ends with `:` heads a column of figures. Cells are Markdown already.
    pub(crate) fn table(&mut self, titles: &[&str], rows: &[Vec<String>]) {
        let line = |cells: Vec<&str>| format!("| {} |", cells.join(" | "));
        let mut lines = vec![line(titles.iter().map(|title| title.trim_end_matches(':')).collect())];
        lines.push(line(titles.iter().map(|title| if title.ends_with(':') { "---:" } else { "---" }).collect()));
        lines.extend(rows.iter().map(|row| line(row.iter().map(String::as_str).collect())));
        self.block(&lines.join("\n"));
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }

    pub(crate) fn folded(&mut self, title: &str, content: impl FnOnce(&mut Self)) {
        self.block(&format!("<details><summary>{}</summary>", inline::html(title)));
        content(self);
        self.block("</details>");
    }
}
