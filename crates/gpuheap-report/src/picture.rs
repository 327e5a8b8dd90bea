//! Time against memory as a picture: an SVG that suits light and dark pages.

use std::fmt::Write as _;

use gpuheap_fit::{Fit, FrontPoint};
use gpuheap_record::Bytes;

use crate::sentences::fit as say;
use crate::text::{escape_html, sanitize};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 52.0;
/// Lines across, about.
const LINES: f64 = 5.0;

const STYLE: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif;fill:#59636f}\
.title{font-size:15px;font-weight:600;fill:#1b2129}.paper{fill:#fff}.grid{stroke:#e6eaee}.axis{stroke:#8a94a0}\
.front{fill:none;stroke:#1f5fa8;stroke-width:2}.point{fill:#1f5fa8}.plan{fill:#b4540a}.plan-text{fill:#b4540a;font-weight:600}\
.budget{stroke:#b3261e;stroke-dasharray:6 4}.budget-text{fill:#b3261e}\
@media(prefers-color-scheme:dark){text{fill:#a2acb8}.title{fill:#e7ebf0}.paper{fill:#171b21}.grid{stroke:#272e37}\
.front{stroke:#7fb2ee}.point{fill:#7fb2ee}.plan{fill:#f0a25e}.plan-text{fill:#f0a25e}.budget{stroke:#ff8d80}\
.budget-text{fill:#ff8d80}}";

/// The front of a fit as an SVG; a note instead of a curve where there is no front.
#[must_use]
pub fn front_to_svg(fit: &Fit) -> String {
    let mut points: Vec<&FrontPoint> = fit.front.iter().collect();
    points.sort_by_key(|point| point.budget_bytes);
    let make = fit.source.make.rsplit(['/', '\\']).next().unwrap_or_default();
    let title = if make.is_empty() {
        "Time of a step by budget".to_owned()
    } else {
        format!("Time of a step by budget: {}", escape_html(&sanitize(make)))
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" height=\"{HEIGHT}\" \
         role=\"img\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\"/>\n\
         <text class=\"title\" x=\"{LEFT}\" y=\"28\">{title}</text>\n"
    );
    if points.is_empty() {
        let (x, y) = (WIDTH / 2.0, HEIGHT / 2.0);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\">No plan was found</text>\n</svg>");
        return svg;
    }
    let frame = Frame::of(fit, &points);
    axes(&mut svg, &frame);
    budget(&mut svg, fit, &frame);
    curve(&mut svg, &points, &frame);
    for point in &points {
        let (x, y) = (frame.x(point.budget_bytes), frame.y(point.step_us));
        let told = format!(
            "{}, {} a step: {}",
            Bytes::new(point.budget_bytes),
            say::step(point.step_us),
            sanitize(&say::changes(&point.plan))
        );
        let _ = writeln!(
            svg,
            "<circle class=\"point\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"><title>{}</title></circle>",
            escape_html(&told)
        );
    }
    plan(&mut svg, fit, &frame);
    svg.push_str("</svg>\n");
    svg
}

fn axes(svg: &mut String, frame: &Frame) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let step = round_up_binary((frame.most - frame.least) / LINES);
    let mut bytes = (frame.least / step).ceil() * step;
    while bytes <= frame.most {
        let x = frame.x_of(bytes);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two sizes of memory")]
        let label = Bytes::new(bytes as u64);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/><text x=\"{x:.1}\" y=\"{}\" \
             text-anchor=\"middle\">{label}</text>",
            bottom + 18.0
        );
        bytes += step;
    }
    let step = round_up_decimal((frame.slowest - frame.fastest) / LINES);
    let mut time = (frame.fastest / step).ceil() * step;
    while time <= frame.slowest {
        let y = frame.y(time);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/><text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 4.0,
            say::step(time)
        );
        time += step;
    }
    let _ = writeln!(
        svg,
        "<path class=\"axis\" fill=\"none\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/><text x=\"{right}\" y=\"{}\" \
         text-anchor=\"end\">memory of one device</text>",
        bottom + 38.0
    );
}

fn budget(svg: &mut String, fit: &Fit, frame: &Frame) {
    let bytes = fit.budget_bytes as f64;
    if !(frame.least..=frame.most).contains(&bytes) {
        return;
    }
    let (x, bottom) = (frame.x_of(bytes), HEIGHT - BOTTOM);
    let (anchor, at) = if x > WIDTH / 2.0 { ("end", x - 6.0) } else { ("start", x + 6.0) };
    let _ = writeln!(
        svg,
        "<line class=\"budget\" x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\"/><text class=\"budget-text\" \
         x=\"{at:.1}\" y=\"{}\" text-anchor=\"{anchor}\">budget {}</text>",
        TOP - 6.0,
        Bytes::new(fit.budget_bytes)
    );
}

/// From point to point: what takes less memory than the next one is as slow as the one before.
fn curve(svg: &mut String, points: &[&FrontPoint], frame: &Frame) {
    let mut path = String::new();
    for (number, point) in points.iter().enumerate() {
        let (x, y) = (frame.x(point.budget_bytes), frame.y(point.step_us));
        let _ = if number == 0 { write!(path, "M{x:.1} {TOP}V{y:.1}") } else { write!(path, "H{x:.1}V{y:.1}") };
    }
    let _ = writeln!(svg, "<path class=\"front\" d=\"{path}H{}\"/>", WIDTH - RIGHT);
}

fn plan(svg: &mut String, fit: &Fit, frame: &Frame) {
    let bytes = fit.peak.high as f64;
    if !(frame.least..=frame.most).contains(&bytes) || !(frame.fastest..=frame.slowest).contains(&fit.step_us) {
        return;
    }
    let (x, y) = (frame.x_of(bytes), frame.y(fit.step_us));
    let name = if fit.plan.is_empty() { "as it is" } else { "this plan" };
    let (anchor, at) = if x > WIDTH * 0.75 { ("end", x - 10.0) } else { ("start", x + 10.0) };
    let _ = writeln!(
        svg,
        "<path class=\"plan\" d=\"M{x:.1} {:.1}l8 8l-8 8l-8 -8z\"/><text class=\"plan-text\" x=\"{at:.1}\" y=\"{:.1}\" \
         text-anchor=\"{anchor}\">{name}</text>",
        y - 8.0,
        y - 10.0
    );
}

/// What of memory and time is drawn, in bytes and microseconds.
struct Frame {
    least: f64,
    most: f64,
    fastest: f64,
    slowest: f64,
}

impl Frame {
    /// All points and the plan, and a little around them; the budget where it is not far from them.
    fn of(fit: &Fit, points: &[&FrontPoint]) -> Self {
        let mut bytes: Vec<f64> = points.iter().map(|point| point.budget_bytes as f64).collect();
        let mut times: Vec<f64> = points.iter().map(|point| point.step_us).collect();
        bytes.push(fit.peak.high as f64);
        times.push(fit.step_us);
        let (least, most) = around(&bytes);
        let (fastest, slowest) = around(&times);
        let budget = fit.budget_bytes as f64;
        let near = (least - (most - least) * 0.5..=most + (most - least) * 0.5).contains(&budget);
        if near {
            bytes.push(budget);
        }
        let (least, most) = around(&bytes);
        Self { least: least.max(0.0), most, fastest: fastest.max(0.0), slowest }
    }

    fn x(&self, bytes: u64) -> f64 {
        self.x_of(bytes as f64)
    }

    fn x_of(&self, bytes: f64) -> f64 {
        LEFT + (bytes - self.least) / (self.most - self.least) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, step_us: f64) -> f64 {
        HEIGHT - BOTTOM - (step_us - self.fastest) / (self.slowest - self.fastest) * (HEIGHT - TOP - BOTTOM)
    }
}

/// The least and the greatest, with a little room on both sides: never the same.
fn around(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let room = ((most - least) * 0.06).max(most.abs() * 0.01).max(1.0);
    (least - room, most + room)
}

/// The power of two that is not less.
fn round_up_binary(step: f64) -> f64 {
    step.max(1.0).log2().ceil().exp2()
}

/// One, two or five times a power of ten that is not less.
fn round_up_decimal(step: f64) -> f64 {
    let power = 10_f64.powf(step.max(1e-6).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|&round| round >= step).unwrap_or(power * 10.0)
}
