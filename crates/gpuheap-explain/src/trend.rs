//! Trends that a few outliers cannot bend.

/// More points than this are thinned: the number of pairs grows with the square.
const MOST_POINTS: usize = 192;

/// The Theil-Sen slope of a series with one value a step: the median of the slopes of all pairs, in units a step.
/// 0 for fewer than two values.
pub(crate) fn slope(values: &[u64]) -> f64 {
    slope_of(values.len(), |index| (index as f64, values[index] as f64))
}

/// The same of `count` points at any distances, `at` being their places and values; points at one place are no pair.
pub(crate) fn slope_of(count: usize, at: impl Fn(usize) -> (f64, f64)) -> f64 {
    let stride = count.div_ceil(MOST_POINTS).max(1);
    let points: Vec<(f64, f64)> = (0..count).step_by(stride).map(at).collect();
    let mut slopes = Vec::with_capacity(points.len() * points.len().saturating_sub(1) / 2);
    for (index, from) in points.iter().enumerate() {
        let pairs = points[index + 1..].iter().filter(|to| to.0 > from.0);
        slopes.extend(pairs.map(|to| (to.1 - from.1) / (to.0 - from.0)));
    }
    median(&mut slopes)
}

/// How much of the variation of a series a straight line explains: the coefficient of determination of its least-squares
/// fit, from 0 to 1; 0 for fewer than three values or a constant series.
pub(crate) fn straightness(values: &[u64]) -> f64 {
    if values.len() < 3 {
        return 0.0;
    }
    let count = values.len() as f64;
    let mean_x = (count - 1.0) / 2.0;
    let mean_y = values.iter().map(|&value| value as f64).sum::<f64>() / count;
    let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
    for (x, &y) in values.iter().enumerate() {
        let (x, y) = (x as f64 - mean_x, y as f64 - mean_y);
        xx += x * x;
        yy += y * y;
        xy += x * y;
    }
    if yy > 0.0 { xy * xy / (xx * yy) } else { 0.0 }
}

/// The median; 0 of nothing.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    let middle = values.len() / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_do_not_bend_the_slope() {
        let mut values: Vec<u64> = (0..1000).map(|step| 1_000_000 + 512 * step).collect();
        for outlier in (0..1000).step_by(9) {
            values[outlier] = 9_000_000_000;
        }
        assert!((slope(&values) - 512.0).abs() < 1.0, "{}", slope(&values));
        assert!((slope(&[5, 5, 5])).abs() < f64::EPSILON);
        assert!((slope(&[7])).abs() < f64::EPSILON);
    }

    #[test]
    fn a_line_is_told_from_steps_and_noise() {
        assert!(straightness(&(0..40).map(|step| 5000 + 7 * step).collect::<Vec<_>>()) > 0.999);
        assert!(straightness(&[9, 1, 7, 2, 8, 3, 9, 1, 6]) < 0.2);
        assert!(straightness(&[4, 4, 4, 4]).abs() < f64::EPSILON);
    }
}
