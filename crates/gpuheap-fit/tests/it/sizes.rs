//! Traces at two sizes tell about others, also where kernels take other ways.

use gpuheap_fit::scale::Family;
use gpuheap_fit::trace::{Class, Event, NO_MODULE, Storage};
use gpuheap_fit::{Error, Program, Trace};

use crate::model::{Model, trace};

fn at(batch: u64) -> Trace {
    trace(Model { batch, layers: 2, ..Model::default() })
}

/// Scratch memory around an operator.
fn with_scratch(mut trace: Trace, around: usize, bytes: u64) -> Trace {
    let call = |event: &&usize| matches!(trace.events[**event], Event::Op(_));
    let events: Vec<usize> = (0..trace.events.len()).collect();
    let place = *events.iter().filter(call).nth(around).unwrap();
    let id = u32::try_from(trace.storages.len()).unwrap();
    let storage = Storage { bytes, class: Class::Workspace, module: NO_MODULE, dtype: 0, name: "".into(), stream: 0 };
    trace.storages.push(storage);
    trace.events.insert(place + 1, Event::Free(id));
    trace.events.insert(place, Event::Alloc(id));
    trace
}

fn scratch(trace: &Trace) -> Vec<u64> {
    trace.storages.iter().filter(|storage| storage.class == Class::Workspace).map(|storage| storage.bytes).collect()
}

#[test]
fn scratch_memory_of_one_size_only_is_no_difference() {
    let family = Family::new(vec![at(4), with_scratch(at(8), 3, 4096)]).unwrap();
    let of = |batch: u64| {
        let trace = family.at(batch).unwrap();
        assert_eq!(Program::new(&trace).first_fault(), None);
        scratch(&trace)
    };
    // What was traced is as it was; else as at the nearest size, in proportion.
    assert_eq!((of(4), of(8), of(16), of(2)), (vec![0], vec![4096], vec![8192], vec![0]));
    let alone = Program::new(&at(4)).most_alive().0;
    let aligned = family.at(4).unwrap();
    assert_eq!(Program::new(&aligned).most_alive().0, alone);
}

#[test]
fn scratch_memory_of_both_is_one_and_grows_with_the_batch() {
    let one = with_scratch(with_scratch(at(4), 3, 1000), 7, 10);
    let two = with_scratch(with_scratch(at(8), 3, 2000), 9, 20);
    let family = Family::new(vec![one, two]).unwrap();
    let trace = family.at(16).unwrap();
    assert_eq!(Program::new(&trace).first_fault(), None);
    let mut found = scratch(&trace);
    found.sort_unstable();
    // The first is on a line; the others are of one size each, of which the second is nearer.
    assert_eq!(found, [0, 40, 4000]);
}

#[test]
fn other_differences_stay_differences() {
    let more = trace(Model { batch: 8, layers: 3, ..Model::default() });
    assert!(matches!(Family::new(vec![at(4), with_scratch(more, 3, 8)]), Err(Error::Unlike { .. })));
}
