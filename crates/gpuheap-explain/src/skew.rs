//! What differs between the ranks of one run: they do the same work and should need the same memory.

use gpuheap_record::Bytes;
use serde::Serialize;

use crate::report::{Class, Report};

/// A rank stands out if it is away from the median by more than so many of the usual distances (the median of all
/// distances, as large as a standard deviation where they are normal).
const USUAL_DISTANCES: f64 = 3.0 * 1.4826;
/// Less than this part of the median reserved memory is no difference.
const LEAST_SHARE: f64 = 0.01;
/// Fewer bytes than this are no difference, whatever the share.
const LEAST_BYTES: f64 = 1_048_576.0;
/// A growth of fewer bytes a step is no difference.
const LEAST_GROWTH: f64 = 65_536.0;
/// Steps more or less that are no difference: ranks are not stopped at the same moment.
const LEAST_STEPS: f64 = 1.0;
/// A class is named if it makes up this part of a difference.
const MOSTLY: f64 = 0.5;

/// What is compared of one rank, out of its report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SkewFigures {
    allocated: Bytes,
    reserved: Bytes,
    classes: Vec<(Class, Bytes)>,
    steps: u64,
    growth: Bytes,
}

impl SkewFigures {
    /// The figures of a report.
    #[must_use]
    pub fn of(report: &Report) -> Self {
        let growth = report.findings.iter().filter_map(|finding| finding.bytes_per_step).max();
        Self {
            allocated: report.peaks.allocated_bytes,
            reserved: report.peaks.reserved_bytes,
            classes: report.peak.by_class.clone(),
            steps: report.steps.count,
            growth: growth.unwrap_or_default(),
        }
    }

    fn class(&self, class: Class) -> Bytes {
        self.classes.iter().filter(|&&(of, _)| of == class).map(|&(_, bytes)| bytes).sum()
    }
}

/// One rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rank {
    /// Its number.
    pub rank: u32,
    /// The recording that it is told by, for whoever shows the table.
    pub recording: String,
    /// What is compared.
    pub figures: SkewFigures,
}

/// What differs between ranks.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Skew {
    /// The ranks, by number.
    pub ranks: Vec<RankName>,
    /// What was compared: one row each.
    pub measures: Vec<Measure>,
    /// What stands out, each in one sentence, the most important first; that nothing does, if so.
    pub sentences: Vec<String>,
}

/// A rank's name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct RankName {
    /// Its number.
    pub rank: u32,
    /// Its recording.
    pub recording: String,
}

/// One figure of all ranks.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measure {
    /// What it is, in words.
    pub title: String,
    /// In what it is counted.
    pub unit: MeasureUnit,
    /// The class, for memory of one class.
    pub class: Option<Class>,
    /// One value a rank.
    pub values: Vec<u64>,
    /// How far each rank is from the median, in words; `None` for those that do not stand out.
    pub outliers: Vec<Option<String>>,
    /// The least.
    pub min: u64,
    /// The middle one; between two, the mean of both.
    pub median: u64,
    /// The most.
    pub max: u64,
}

/// In what a figure is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MeasureUnit {
    /// Bytes.
    Bytes,
    /// Bytes a step.
    BytesPerStep,
    /// A number.
    Count,
}

/// Compares the ranks of one run.
#[must_use]
pub fn skew(mut ranks: Vec<Rank>) -> Skew {
    ranks.sort_by(|one, other| (one.rank, &one.recording).cmp(&(other.rank, &other.recording)));
    let bytes =
        |of: &dyn Fn(&SkewFigures) -> Bytes| ranks.iter().map(|rank| of(&rank.figures).get()).collect::<Vec<_>>();
    let reserved = bytes(&|figures| figures.reserved);
    let least = (median(&reserved) * LEAST_SHARE).max(LEAST_BYTES);
    let mut measures = vec![
        Measure::of("reserved, at most", MeasureUnit::Bytes, None, reserved, least),
        Measure::of("allocated, at most", MeasureUnit::Bytes, None, bytes(&|figures| figures.allocated), least),
    ];
    for class in Class::ALL {
        let values = bytes(&|figures| figures.class(class));
        if values.iter().any(|&value| value > 0) {
            measures.push(Measure::of(class.title(), MeasureUnit::Bytes, Some(class), values, least));
        }
    }
    let steps: Vec<u64> = ranks.iter().map(|rank| rank.figures.steps).collect();
    measures.push(Measure::of("steps", MeasureUnit::Count, None, steps, LEAST_STEPS));
    let growth = bytes(&|figures| figures.growth);
    measures.push(Measure::of("growth each step", MeasureUnit::BytesPerStep, None, growth, LEAST_GROWTH));
    let sentences = sentences(&ranks, &measures);
    let ranks = ranks.into_iter().map(|rank| RankName { rank: rank.rank, recording: rank.recording }).collect();
    Skew { ranks, measures, sentences }
}

impl Measure {
    fn of(title: &str, unit: MeasureUnit, class: Option<Class>, values: Vec<u64>, least: f64) -> Self {
        let middle = median(&values);
        let mut distances: Vec<f64> = values.iter().map(|&value| (value as f64 - middle).abs()).collect();
        let far = middle_of(&mut distances) * USUAL_DISTANCES;
        let outliers = values.iter().map(|&value| {
            let distance = value as f64 - middle;
            // Of two ranks, neither is the odd one.
            let stands_out = values.len() > 2 && distance.abs() > far.max(least);
            stands_out.then(|| {
                let side = if distance > 0.0 { "more" } else { "less" };
                format!("{} {side} than the median", unit.text(rounded(distance.abs())))
            })
        });
        Self {
            title: title.to_owned(),
            unit,
            class,
            outliers: outliers.collect(),
            min: values.iter().copied().min().unwrap_or(0),
            median: rounded(middle),
            max: values.iter().copied().max().unwrap_or(0),
            values,
        }
    }
}

impl MeasureUnit {
    fn text(self, value: u64) -> String {
        match self {
            Self::Bytes => Bytes::new(value).to_string(),
            Self::BytesPerStep => format!("{} a step", Bytes::new(value)),
            Self::Count => value.to_string(),
        }
    }
}

fn sentences(ranks: &[Rank], measures: &[Measure]) -> Vec<String> {
    let [reserved, allocated, ..] = measures else { return Vec::new() };
    let mut sentences = Vec::new();
    if let [one, other] = ranks
        && let [first, second] = reserved.values[..]
    {
        sentences.extend(pair(one, other, first, second));
    }
    let mut told = vec![false; ranks.len()];
    for (index, change) in by_size(reserved) {
        let side = if change > 0.0 { "more" } else { "less" };
        let bytes = Bytes::new(rounded(change.abs()));
        let why = mostly(measures, index, change, reserved.median.saturating_sub(allocated.median));
        sentences.push(format!("rank {} reserves {bytes} {side} than the median{why}", ranks[index].rank));
        told[index] = true;
    }
    for measure in measures.iter().skip(1) {
        for (index, change) in by_size(measure) {
            let rank = ranks[index].rank;
            let side = if change > 0.0 { "more" } else { "less" };
            let distance = measure.unit.text(rounded(change.abs()));
            match measure.unit {
                // Why a rank reserves more is told already.
                MeasureUnit::Bytes if told[index] => {}
                MeasureUnit::Bytes => {
                    let what = measure.class.map_or("allocated memory", Class::title);
                    sentences.push(format!("rank {rank} holds {distance} {side} {what} than the median"));
                    told[index] = true;
                }
                MeasureUnit::BytesPerStep => {
                    sentences.push(format!("rank {rank} grows by {distance} {side} than the median"));
                }
                MeasureUnit::Count => {
                    let side = if change > 0.0 { "more" } else { "fewer" };
                    let middle = measure.median;
                    sentences.push(format!("rank {rank} has {distance} steps {side} than the median of {middle}"));
                }
            }
        }
    }
    if sentences.is_empty() {
        let (min, max) = (Bytes::new(reserved.min), Bytes::new(reserved.max));
        let range = if min.to_string() == max.to_string() {
            format!("each reserves at most {max}")
        } else {
            format!("each reserves at most {min} to {max}")
        };
        sentences.push(format!("no rank of {} stands out: {range}", ranks.len()));
    }
    sentences
}

/// What two ranks differ by, if it is worth a sentence.
fn pair(one: &Rank, other: &Rank, first: u64, second: u64) -> Option<String> {
    let least = (median(&[first, second]) * LEAST_SHARE).max(LEAST_BYTES);
    let change = first.abs_diff(second);
    let (more, less) = if first > second { (one, other) } else { (other, one) };
    (change as f64 > least)
        .then(|| format!("rank {} reserves {} more than rank {}", more.rank, Bytes::new(change), less.rank))
}

/// What most of a rank's difference is: memory of one class, or memory that is cached.
fn mostly(measures: &[Measure], rank: usize, change: f64, cached: u64) -> String {
    let away = |measure: &Measure| (measure.values[rank] as f64 - measure.median as f64) * change.signum();
    let largest = measures
        .iter()
        .filter_map(|measure| Some((measure.class?, away(measure))))
        .max_by(|one, other| one.1.total_cmp(&other.1));
    if let Some((class, part)) = largest
        && part >= change.abs() * MOSTLY
    {
        return format!(", mostly {}", class.title());
    }
    let own = measures[0].values[rank].saturating_sub(measures[1].values[rank]);
    if (own as f64 - cached as f64) * change.signum() >= change.abs() * MOSTLY {
        return ", mostly memory that is cached and not in use at the peak".to_owned();
    }
    String::new()
}

/// The ranks that stand out and by how much, the largest difference first.
fn by_size(measure: &Measure) -> Vec<(usize, f64)> {
    let away = |index: usize| measure.values[index] as f64 - measure.median as f64;
    let marked = measure.outliers.iter().enumerate().filter(|(_, outlier)| outlier.is_some());
    let mut marked: Vec<(usize, f64)> = marked.map(|(index, _)| (index, away(index))).collect();
    marked.sort_by(|one, other| other.1.abs().total_cmp(&one.1.abs()));
    marked
}

/// The middle of some values; the mean of the two in the middle.
fn median(values: &[u64]) -> f64 {
    middle_of(&mut values.iter().map(|&value| value as f64).collect::<Vec<f64>>())
}

fn middle_of(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    match values {
        [] => 0.0,
        _ if values.len() % 2 == 1 => values[values.len() / 2],
        _ => f64::midpoint(values[values.len() / 2 - 1], values[values.len() / 2]),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float saturates")]
fn rounded(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn rank(rank: u32, reserved: u64, activations: u64) -> Rank {
        let classes = vec![(Class::Parameters, Bytes::new(10 * GIB)), (Class::Activations, Bytes::new(activations))];
        let figures = SkewFigures {
            allocated: Bytes::new(10 * GIB) + Bytes::new(activations),
            reserved: Bytes::new(reserved),
            classes,
            steps: 20,
            growth: Bytes::ZERO,
        };
        Rank { rank, recording: rank.to_string(), figures }
    }

    #[test]
    fn one_rank_that_needs_more_is_named_with_its_cause() {
        let mut ranks: Vec<Rank> = (0..8).map(|index| rank(index, 20 * GIB, 8 * GIB)).collect();
        ranks[3] = rank(3, 24 * GIB, 12 * GIB);
        ranks.reverse();
        let skew = skew(ranks);
        assert_eq!(skew.sentences, ["rank 3 reserves 4.00 GiB more than the median, mostly activations"]);
        assert_eq!(skew.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7]);
        let reserved = &skew.measures[0];
        assert_eq!((reserved.min, reserved.median, reserved.max), (20 * GIB, 20 * GIB, 24 * GIB));
        assert_eq!(reserved.outliers[3].as_deref(), Some("4.00 GiB more than the median"));
        assert_eq!(reserved.outliers.iter().flatten().count(), 1);
    }

    #[test]
    fn cached_memory_is_a_cause_too() {
        let mut ranks: Vec<Rank> = (0..4).map(|index| rank(index, 20 * GIB, 8 * GIB)).collect();
        ranks[1] = rank(1, 26 * GIB, 8 * GIB);
        let expected =
            "rank 1 reserves 6.00 GiB more than the median, mostly memory that is cached and not in use at the peak";
        assert_eq!(skew(ranks).sentences, [expected]);
    }

    #[test]
    fn ranks_that_differ_as_ranks_do_are_left_alone() {
        let ranks = (0..8).map(|index| rank(index, 20 * GIB + u64::from(index) * GIB / 8, 8 * GIB)).collect();
        assert_eq!(skew(ranks).sentences, ["no rank of 8 stands out: each reserves at most 20.0 GiB to 20.9 GiB"]);
        let ranks = (0..8).map(|index| rank(index, 20 * GIB + u64::from(index % 2) * 4096, 8 * GIB)).collect();
        assert_eq!(skew(ranks).sentences, ["no rank of 8 stands out: each reserves at most 20.0 GiB"]);
    }

    #[test]
    fn of_two_ranks_neither_is_the_odd_one() {
        let skew = skew(vec![rank(1, 22 * GIB, 8 * GIB), rank(0, 20 * GIB, 8 * GIB)]);
        assert_eq!(skew.sentences, ["rank 1 reserves 2.00 GiB more than rank 0"]);
        assert!(skew.measures.iter().all(|measure| measure.outliers.iter().all(Option::is_none)));
        assert_eq!(skew.measures[0].median, 21 * GIB);
    }

    #[test]
    fn steps_and_growth_are_compared() {
        let mut ranks: Vec<Rank> = (0..5).map(|index| rank(index, 20 * GIB, 8 * GIB)).collect();
        ranks[4].figures.steps = 12;
        ranks[0].figures.steps = 21;
        ranks[2].figures.growth = Bytes::new(3 << 20);
        let expected =
            ["rank 4 has 8 steps fewer than the median of 20", "rank 2 grows by 3.00 MiB a step more than the median"];
        assert_eq!(skew(ranks).sentences, expected);
    }

    #[test]
    fn nothing_and_one_are_no_reason_to_fail() {
        assert_eq!(skew(Vec::new()).sentences, ["no rank of 0 stands out: each reserves at most 0 B"]);
        assert_eq!(skew(vec![rank(0, u64::MAX, u64::MAX)]).sentences.len(), 1);
    }
}
