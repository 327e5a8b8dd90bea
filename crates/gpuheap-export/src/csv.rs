//! A table of allocations as text: [RFC 4180](https://www.rfc-editor.org/rfc/rfc4180), with a header, in UTF-8. Values
//! that are not known are empty. Lines end in CR LF, as the RFC has it.

use std::fmt::Write as _;
use std::io::Write;

use gpuheap_explain::Analysis;

use crate::Error;
use crate::rows::{COLUMNS, Row, Rows, kind_name};

pub(crate) fn write(analysis: &Analysis, at: Option<u32>, out: &mut dyn Write) -> Result<(), Error> {
    let mut rows = Rows::new(analysis);
    let header: Vec<&str> = COLUMNS.iter().map(|(name, _)| *name).collect();
    write!(out, "{}\r\n", header.join(","))?;
    let (mut line, mut stack) = (String::new(), String::new());
    for allocation in Rows::allocations(analysis, at) {
        line.clear();
        let row = rows.row(allocation);
        push_row(&mut line, &row);
        line.push(',');
        if let Some(place) = row.place {
            rows.fold(&mut stack, place);
            push_text(&mut line, &stack);
        }
        line.push_str("\r\n");
        out.write_all(line.as_bytes())?;
    }
    Ok(())
}

/// Everything but the stack.
fn push_row(line: &mut String, row: &Row<'_>) {
    let allocation = &row.allocation;
    // Writing to a string cannot fail.
    let _ = write!(
        line,
        "{},{},{},{},{},",
        allocation.id,
        row.device,
        allocation.address,
        allocation.size.get(),
        allocation.requested.get()
    );
    push_text(line, allocation.class.name());
    line.push(',');
    push_text(line, allocation.rule);
    let _ = write!(line, ",{},", allocation.stream);
    push_text(line, row.pool);
    line.push(',');
    line.push_str(kind_name(allocation.kind));
    push_number(line, allocation.born.map(u64::from));
    push_number(line, allocation.freed.map(u64::from));
    push_number(line, allocation.completed.map(u64::from));
    push_number(line, row.born_us);
    push_number(line, row.freed_us);
    line.push(',');
    push_text(line, row.file.unwrap_or_default());
    push_number(line, row.line.map(u64::from));
    line.push(',');
    push_text(line, row.function.unwrap_or_default());
}

fn push_number(line: &mut String, value: Option<u64>) {
    line.push(',');
    if let Some(value) = value {
        let _ = write!(line, "{value}");
    }
}

fn push_text(line: &mut String, text: &str) {
    if text.contains([',', '"', '\r', '\n']) {
        line.push('"');
        for (index, part) in text.split('"').enumerate() {
            if index > 0 {
                line.push_str("\"\"");
            }
            line.push_str(part);
        }
        line.push('"');
    } else {
        line.push_str(text);
    }
}

#[cfg(test)]
mod tests {
    use super::push_text;

    #[test]
    fn texts_are_quoted_where_they_must_be() {
        let quoted = |text: &str| {
            let mut line = String::new();
            push_text(&mut line, text);
            line
        };
        assert_eq!(quoted("train.py"), "train.py");
        assert_eq!(quoted("=1+1"), "=1+1");
        assert_eq!(quoted("a,b"), "\"a,b\"");
        assert_eq!(quoted("say \"no\"\n"), "\"say \"\"no\"\"\n\"");
    }
}
