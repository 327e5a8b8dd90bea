//! Bars and curves out of characters.

use gpuheap_record::Bytes;

use super::palette::Role;

const EIGHTHS_ACROSS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
const EIGHTHS_UP: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII_UP: [char; 8] = ['_', '.', '-', '~', '=', '+', '*', '#'];

/// `steps` of `part` in `whole`, rounded; at least 1 if `part` is not nothing.
pub(super) fn scaled(part: Bytes, whole: Bytes, steps: usize) -> usize {
    let level = (part.share_of(whole).min(1.0) * steps as f64).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and `steps`")]
    let level = level as usize;
    if part > Bytes::ZERO { level.max(1) } else { level }
}

/// A bar of at most `columns` columns that shows the share of `part` in `whole`.
pub(super) fn bar(part: Bytes, whole: Bytes, columns: usize, unicode: bool) -> String {
    if unicode {
        let eighths = scaled(part, whole, columns * 8);
        format!("{}{}", "█".repeat(eighths / 8), EIGHTHS_ACROSS[eighths % 8])
    } else {
        "#".repeat(scaled(part, whole, columns))
    }
}

/// The block that fills `eighths` of a cell, from 1 to 8.
pub(super) fn block(eighths: usize) -> char {
    EIGHTHS_UP[eighths.clamp(1, 8) - 1]
}

/// A curve of one row, at most `columns` wide, from the least value to the greatest.
pub(super) fn curve(values: &[Bytes], columns: usize, unicode: bool) -> String {
    let low = values.iter().copied().min().unwrap_or_default();
    let range = values.iter().copied().max().unwrap_or_default() - low;
    let marks = if unicode { EIGHTHS_UP } else { ASCII_UP };
    spread(values.len(), columns.min(values.len()))
        .map(|range_of_values| {
            let value = values[range_of_values].iter().copied().max().unwrap_or_default();
            marks[scaled(value - low, range, 7)]
        })
        .collect()
}

/// Which of `count` values each of `columns` columns stands for; values recur where there are fewer than columns.
pub(super) fn spread(count: usize, columns: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..columns).map(move |column| {
        let start = column * count / columns;
        let end = (column + 1) * count / columns;
        start..end.max(start + 1).min(count)
    })
}

/// Neighbours of one role as one text.
pub(super) fn runs(cells: impl Iterator<Item = (Role, char)>) -> Vec<(Role, String)> {
    let mut runs: Vec<(Role, String)> = Vec::new();
    for (role, cell) in cells {
        match runs.last_mut() {
            Some((last, text)) if *last == role => text.push(cell),
            _ => runs.push((role, cell.to_string())),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_show_shares() {
        let of = |part, unicode| bar(Bytes::new(part), Bytes::new(100), 10, unicode);
        assert_eq!(of(0, true), "");
        assert_eq!(of(1, true), "▏");
        assert_eq!(of(55, true), "█████▌");
        assert_eq!(of(100, true), "██████████");
        assert_eq!(of(55, false), "######");
    }

    #[test]
    fn curves_rise() {
        let values: Vec<_> = (10..18).map(Bytes::new).collect();
        assert_eq!(curve(&values, 20, true), "▁▂▃▄▅▆▇█");
        assert_eq!(curve(&values, 4, true), "▂▄▆█");
        assert_eq!(curve(&values, 8, false), "_.-~=+*#");
        assert_eq!(curve(&[], 8, true), "");
        assert_eq!(curve(&[Bytes::ZERO; 3], 8, true), "▁▁▁");
    }
}
