//! The plan for a model as one HTML file that needs nothing else.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use gpuheap_fit::{Fit, Timelines};
use serde::{Deserialize, Serialize};

use super::{Bundle, Data, assets, compressed, generator, html};
use crate::document::render;
use crate::error::Error;
use crate::sentences::fit as say;
use crate::terminal::Style;
use crate::text::sanitize;

/// What the data of a page of a plan says it is.
const SCHEMA: &str = "gpuheap.fit.page/1";
/// The most bytes of a file.
const MOST_BYTES: usize = 1_000_000;
/// Timelines are not thinned out below so many points.
const LEAST_POINTS: usize = 100;

const BUNDLE: Bundle =
    Bundle { script: assets::FIT_SCRIPT, script_hash: assets::FIT_SCRIPT_HASH, style: assets::FIT_STYLE };

/// What changes in a program's file.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Changes {
    /// The changed lines as a unified diff, or lines to write where no place for them was found.
    pub diff: String,
    /// The line of a shell that starts the program.
    pub start: String,
}

/// All that a page shows.
#[derive(Serialize)]
struct Page<'a> {
    schema: &'static str,
    generator: String,
    fit: &'a Fit,
    changes: Option<&'a Changes>,
    headline: String,
    optimality: Option<String>,
    smallest: Option<String>,
    titles: Vec<String>,
}

/// The plan as one HTML file of at most 1 MB, unless names and changes alone take more. Timelines of many events are thinned
/// out, see [`Timeline::reduced`](gpuheap_fit::Timeline::reduced).
pub fn fit_to_html(fit: &Fit, changes: Option<&Changes>) -> Result<String, Error> {
    let text = render(fit, &Style { width: 100, color: false, unicode: true, details: true });
    let make = fit.source.make.rsplit(['/', '\\']).next().unwrap_or_default();
    let name = format!("{}: {}", say::verdict(fit), sanitize(make));
    let room = MOST_BYTES.saturating_sub(html(BUNDLE, &name, Data::Embedded(""), &text).len());
    let mut fit = fit.clone();
    let mut points = fit.timelines.as_ref().map_or(0, most_points);
    loop {
        let page = Page {
            schema: SCHEMA,
            generator: generator(),
            changes,
            headline: say::headline(&fit),
            optimality: say::optimality(&fit),
            smallest: say::smallest(&fit),
            titles: fit.front.iter().map(|point| say::changes(&point.plan)).collect(),
            fit: &fit,
        };
        let data = STANDARD.encode(compressed(&page)?);
        if data.len() <= room || points < LEAST_POINTS {
            return Ok(html(BUNDLE, &name, Data::Embedded(&data), &text));
        }
        points /= 2;
        if let Some(Timelines { baseline, planned }) = &mut fit.timelines {
            *baseline = baseline.reduced(points);
            *planned = planned.as_ref().map(|planned| planned.reduced(points));
        }
    }
}

fn most_points(timelines: &Timelines) -> usize {
    let planned = timelines.planned.as_ref().map_or(0, |planned| planned.at.len());
    timelines.baseline.at.len().max(planned)
}
