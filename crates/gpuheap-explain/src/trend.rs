//! Trends that a few outliers cannot bend.

/// More points than this are thinned: the number of pairs grows with the square.
const MOST_POINTS: usize = 192;

/// The Theil-Sen slope of a series with one value a step: the median of the slopes of all pairs, in units a step.
/// 0 for fewer than two values.
pub(crate) fn slope(values: &[u64]) -> f64 {
    let stride = values.len().div_ceil(MOST_POINTS).max(1);
    let points: Vec<(f64, f64)> =
        values.iter().enumerate().step_by(stride).map(|(index, &value)| (index as f64, value as f64)).collect();
    let mut slopes = Vec::with_capacity(points.len() * points.len().saturating_sub(1) / 2);
    for (index, from) in points.iter().enumerate() {
        for to in &points[index + 1..] {
            slopes.push((to.1 - from.1) / (to.0 - from.0));
        }
    }
    median(&mut slopes)
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
}
