//! A profile of speedscope: its
//! [file format](https://www.speedscope.app/file-format-schema.json), as JSON. One profile a named moment with what is
//! held then, and one with all that was ever allocated; each sample is a place, its weight the bytes.

use std::io::Write;

use foldhash::HashMap;
use gpuheap_explain::{Analysis, MomentName};
use serde::Serialize;

use crate::held::{Group, groups, places};
use crate::marks::moment_text;
use crate::names::{Names, Shown, harmless};
use crate::{Error, Options};

/// Weights beyond this are not exact in JavaScript.
const MOST_WEIGHT: u64 = (1 << 53) - 1;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    shared: Shared<'a>,
    profiles: Vec<Profile>,
    name: String,
    active_profile_index: usize,
    exporter: &'a str,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: Vec<Frame<'a>>,
}

#[derive(Serialize)]
struct Frame<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    file: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    /// Rows of the frames, outermost first.
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

pub(crate) fn write(analysis: &Analysis, options: &Options, at: MomentName, out: &mut dyn Write) -> Result<(), Error> {
    let moments = analysis.moments();
    let ticks: Vec<u32> = moments.iter().map(|&(_, tick)| tick).collect();
    let places = places(&groups(analysis, &ticks));
    let recording = analysis.recording();
    let names = Names::new(recording);
    let mut frames = Vec::new();
    let mut rows: HashMap<Shown, usize> = HashMap::default();
    let mut stack = |place: &Group| -> Vec<usize> {
        let mut stack: Vec<usize> = place
            .place
            .frames(recording)
            .map(|shown| {
                *rows.entry(shown).or_insert_with(|| {
                    let line = Some(names.line(shown)).filter(|&line| line > 0);
                    frames.push(Frame { name: names.function(shown), file: names.file(shown), line });
                    frames.len() - 1
                })
            })
            .collect();
        stack.reverse();
        stack
    };
    let mut profiles = Vec::new();
    for (row, &(name, tick)) in moments.iter().enumerate() {
        let name = format!("held at {} ({})", title(name), moment_text(tick));
        profiles.push(profile(name, &places, |place| place.held[row].bytes, &mut stack));
    }
    profiles.push(profile("allocated in total".to_owned(), &places, |place| place.total.bytes, &mut stack));
    let source = &analysis.report().source;
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        shared: Shared { frames },
        profiles,
        name: format!("{}, device {}", harmless(&source.path, None), source.device),
        active_profile_index: moments.iter().position(|&(name, _)| name == at).unwrap_or(0),
        exporter: &options.generator,
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")?;
    Ok(())
}

fn profile(
    name: String,
    places: &[Group],
    bytes: impl Fn(&Group) -> u64,
    stack: &mut impl FnMut(&Group) -> Vec<usize>,
) -> Profile {
    let (mut samples, mut weights, mut end_value) = (Vec::new(), Vec::new(), 0_u64);
    for place in places {
        let bytes = bytes(place).min(MOST_WEIGHT);
        if bytes > 0 {
            samples.push(stack(place));
            weights.push(bytes);
            end_value = end_value.saturating_add(bytes);
        }
    }
    Profile { r#type: "sampled", name, unit: "bytes", start_value: 0, end_value, samples, weights }
}

fn title(name: MomentName) -> &'static str {
    match name {
        MomentName::Peak => "the peak",
        MomentName::PeakReserved => "the peak of reserved memory",
        MomentName::Oom => "the OOM",
        MomentName::End => "the end",
    }
}
