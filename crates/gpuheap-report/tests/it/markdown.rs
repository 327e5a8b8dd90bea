//! The report as Markdown.

use gpuheap_report::to_markdown;

use crate::samples;

#[test]
fn markdown_of_a_leak_and_of_a_failure() {
    insta::assert_snapshot!("markdown_leak", to_markdown(&samples::leak()));
    insta::assert_snapshot!("markdown_oom", to_markdown(&samples::oom()));
}

#[test]
fn blocks_are_closed_and_tables_are_whole() {
    for (name, report) in samples::all() {
        let text = to_markdown(&report);
        assert_eq!(text.matches("<details>").count(), text.matches("</details>").count(), "{name}");
        let bars = |line: &str| line.replace("\\|", "").matches('|').count();
        let mut columns = None;
        for line in text.lines() {
            if !line.starts_with('|') {
                columns = None;
                continue;
            }
            assert_eq!(*columns.get_or_insert(bars(line)), bars(line), "{name}: {line}");
        }
    }
}
