//! Which places in the program hold most memory at one moment.

use foldhash::HashMap;
use gpuheap_record::{Bytes, FrameId, Recording, StackId};

use crate::classes::Classes;
use crate::frames::{FrameTableMarks, site};
use crate::lifetimes::Tick;
use crate::phases::Phases;
use crate::replay::Replay;
use crate::report::{Class, Holder};

/// How many places are listed.
const MOST_HOLDERS: usize = 20;

/// A line, or the backward pass where there are no frames, and a class.
type Place = (Option<FrameId>, Option<StackId>, Class);

/// The places that hold most at `tick`, largest first. Each place is a line and a class.
pub(crate) fn holders(
    recording: &Recording,
    replay: &Replay,
    classes: &Classes,
    phases: &Phases,
    marks: &FrameTableMarks,
    tick: Tick,
) -> Vec<Holder> {
    let mut sums: HashMap<Place, (u64, u64)> = HashMap::default();
    for (id, row) in replay.allocations.iter().filter(|(_, row)| row.is_live_at(tick)) {
        let place = place_of(recording, marks, phases, row.stack, row.born);
        let sum = sums.entry((place.0, place.1, classes.class(id))).or_default();
        sum.0 = sum.0.saturating_add(row.size);
        sum.1 += 1;
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|&(key, (bytes, _))| (std::cmp::Reverse(bytes), key));
    sums.truncate(MOST_HOLDERS);
    sums.into_iter()
        .map(|((frame, backward, class), (bytes, blocks))| Holder {
            site: frame.map(|frame| site(recording, frame)),
            class,
            bytes: Bytes::new(bytes),
            blocks,
            label: label(recording, marks, frame, backward),
        })
        .collect()
}

/// The line of an allocation, or the backward pass that made it.
fn place_of(
    recording: &Recording,
    marks: &FrameTableMarks,
    phases: &Phases,
    stack: StackId,
    born: Tick,
) -> (Option<FrameId>, Option<StackId>) {
    if stack != StackId::default() {
        return (marks.site_frame(recording, stack), None);
    }
    let pass = (born > Tick::START).then(|| phases.backward_of(born)).flatten();
    (None, pass.map(|pass| pass.root))
}

fn label(recording: &Recording, marks: &FrameTableMarks, frame: Option<FrameId>, backward: Option<StackId>) -> String {
    if let Some(frame) = frame {
        return String::from(recording.function(frame));
    }
    match backward {
        Some(root) => backward_label(recording, marks, root),
        None => "no frames recorded".to_owned(),
    }
}

/// How a backward pass is named: by the line that started it.
pub(crate) fn backward_label(recording: &Recording, marks: &FrameTableMarks, root: StackId) -> String {
    match marks.user_frame(root) {
        Some(frame) => {
            let file = recording.file(frame);
            let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
            format!("backward pass started at {name}:{}", recording.frame(frame).line)
        }
        None => "backward pass".to_owned(),
    }
}
