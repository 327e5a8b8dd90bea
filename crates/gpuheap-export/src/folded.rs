//! Folded stacks: one line a stack, its frames from the outermost with semicolons between them, a space, and the bytes
//! that are held. The form of [`flamegraph.pl`](https://github.com/brendangregg/FlameGraph), which says what it is in
//! the head of that program; `inferno` and speedscope read it too.

use std::io::Write;

use gpuheap_explain::Analysis;

use crate::Error;
use crate::held::{groups, places};
use crate::names::Names;

pub(crate) fn write(analysis: &Analysis, tick: u32, out: &mut dyn Write) -> Result<(), Error> {
    let names = Names::folded(analysis.recording());
    let mut places = places(&groups(analysis, &[tick]));
    places.retain(|place| place.held[0].bytes > 0);
    // The sort is stable: of equal sizes the first to allocate comes first.
    places.sort_by_key(|place| std::cmp::Reverse(place.held[0].bytes));
    let mut stack = String::new();
    for place in &places {
        names.fold(&mut stack, place.place);
        writeln!(out, "{stack} {}", place.held[0].bytes)?;
    }
    Ok(())
}
