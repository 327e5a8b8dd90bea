use std::sync::Arc;

use gpuheap_cuda::raw::{AllocationProp, MemLocation, location};

use super::*;
use crate::charge::{Charge, Kind};
use crate::rig::{MIB, Rig, control, happened, reset, rig, used};
use crate::sleep;

const BYTES: usize = 2 * MIB;

/// A rig in which chunks like these can be copied ahead at once: buffers and pieces are there.
fn furnished(chunks: &[Arc<Chunk>], rig: &Rig) {
    let pieces = vec![BYTES; chunks.len()];
    rig.moving.mapped.make_all(&rig.moving.device(0).unwrap(), pieces);
    rig.moving.ahead.begin(rig.moving, chunks);
    assert!(!chunks.iter().any(|chunk| rig.moving.ahead.has(chunk)), "there is nothing to copy to yet");
    rig.exchange(&[], &[]);
}

fn begin(rig: &Rig, chunks: &[Arc<Chunk>]) {
    rig.moving.ahead.begin(rig.moving, chunks);
    assert!(chunks.iter().all(|chunk| rig.moving.ahead.has(chunk)));
}

fn some(rig: &Rig, count: u8) -> Vec<Arc<Chunk>> {
    (0..count).map(|number| rig.chunk(BYTES, number + 1)).collect()
}

/// What was copied out, and what comparisons found.
fn figures() -> (u64, u64, u64) {
    (happened("copies out"), happened("found the same"), happened("found different"))
}

#[test]
fn what_was_copied_ahead_leaves_without_a_copy_and_comes_back_the_same() {
    let rig = rig(256 * MIB, 256 * MIB);
    let chunks = some(&rig, 3);
    furnished(&chunks, &rig);
    begin(&rig, &chunks[..2]);
    rig.exchange(&chunks, &[]);
    assert_eq!(figures(), (3, 2, 0), "two ahead and one then");
    assert!(chunks.iter().all(|chunk| chunk.is_spilled()));
    assert!((0..3).all(|number| rig.is_all(&chunks[usize::from(number)], number + 1)));
    rig.exchange(&[], &chunks);
    assert!((0..3).all(|number| rig.is_all(&chunks[usize::from(number)], number + 1)));
}

#[test]
fn it_goes_beside_those_that_come() {
    let rig = rig(64 * MIB, 256 * MIB);
    let chunks = some(&rig, 24);
    let (first, second) = chunks.split_at(12);
    rig.exchange(first, &[]);
    furnished(second, &rig);
    begin(&rig, &second[..6]);
    control("delay 1000");
    rig.exchange(second, first);
    control("delay 0");
    assert_eq!(figures(), (24, 6, 0));
    assert!((0..24).all(|number| rig.is_all(&chunks[usize::from(number)], number + 1)));
    assert!(second.iter().all(|chunk| chunk.is_spilled()) && !first.iter().any(|chunk| chunk.is_spilled()));
}

#[test]
fn what_was_written_since_is_copied_anew_wherever_it_was() {
    let rig = rig(256 * MIB, 256 * MIB);
    let chunks = some(&rig, 3);
    furnished(&chunks, &rig);
    begin(&rig, &chunks);
    rig.moving.ahead.rest(rig.moving, 0);
    let written = [0, BYTES - 1, BYTES / 2 + 5];
    for (chunk, at) in chunks.iter().zip(written) {
        rig.fill(chunk, at, 1, 99);
    }
    let before: Vec<Vec<u8>> = chunks.iter().map(|chunk| rig.content(chunk)).collect();
    rig.exchange(&chunks, &[]);
    assert_eq!(figures(), (6, 0, 3));
    for (chunk, before) in chunks.iter().zip(before) {
        assert!(rig.content(chunk) == before && before.contains(&99));
    }
}

/// Before, in the middle of and after a copy ahead, as it happens.
#[test]
fn whatever_is_written_while_it_is_copied_nothing_is_lost() {
    let rig = rig(256 * MIB, 256 * MIB);
    let chunks = some(&rig, 1);
    furnished(&chunks, &rig);
    for round in 0..60_u8 {
        control(if round % 2 == 0 { "delay 300" } else { "delay 0" });
        begin(&rig, &chunks);
        rig.fill(&chunks[0], usize::from(round) * 1000, BYTES - usize::from(round) * 2000, round);
        let before = rig.content(&chunks[0]);
        rig.exchange(&chunks, &[]);
        assert!(rig.content(&chunks[0]) == before, "round {round}");
        rig.exchange(&[], &chunks);
    }
}

#[test]
fn without_the_kernel_all_is_copied_as_ever() {
    let rig = rig(256 * MIB, 256 * MIB);
    let chunks = some(&rig, 2);
    control("fail cuModuleLoadData 1 999 1");
    furnished(&chunks, &rig);
    rig.moving.ahead.begin(rig.moving, &chunks);
    rig.exchange(&[], &[]);
    assert_eq!(happened("cuModuleLoadData"), 1, "and it is not tried again");
    assert!(!rig.moving.ahead.has(&chunks[0]) && used() == 2 * BYTES as u64);
    rig.exchange(&chunks, &[]);
    assert_eq!(figures(), (2, 0, 0));
    assert!(rig.is_all(&chunks[1], 2));
}

#[test]
fn what_could_not_be_begun_or_compared_is_not_said_to_be_the_same() {
    let rig = rig(256 * MIB, 256 * MIB);
    let chunks = some(&rig, 2);
    furnished(&chunks, &rig);
    // The second of its copies, which has what the first one had.
    control("fail cuMemcpyDtoDAsync_v2 2 999 1");
    begin(&rig, &chunks);
    control("fail cuLaunchKernel 1 999 1");
    rig.exchange(&chunks, &[]);
    assert_eq!((happened("found the same"), happened("cuLaunchKernel")), (0, 1));
    assert!(rig.is_all(&chunks[0], 1) && rig.is_all(&chunks[1], 2));
}

#[test]
fn a_context_that_ends_takes_nothing_along_and_the_next_begins_anew() {
    let rig = rig(256 * MIB, 256 * MIB);
    for _ in 0..2 {
        let chunks = some(&rig, 2);
        furnished(&chunks, &rig);
        control("delay 2000");
        begin(&rig, &chunks);
        rig.moving.ahead.end(rig.moving, 0);
        assert!(used() == 2 * BYTES as u64, "buffers are given back");
        assert_eq!(rig.moving.mapped.kept(), 2 * BYTES as u64, "and pieces");
        control("delay 0");
        reset();
        rig.moving.lanes.forget(0);
        // Memory by handles is not the context's.
        assert!(rig.is_all(&chunks[1], 2));
        rig.moving.ahead.begin(rig.moving, &chunks);
        rig.exchange(&[], &[]);
        begin(&rig, &chunks);
        let before = happened("found the same");
        rig.exchange(&chunks, &[]);
        assert_eq!(happened("found the same") - before, 2);
        rig.exchange(&[], &chunks);
        rig.moving.ahead.give_back(rig.moving);
        rig.moving.mapped.trim(0);
    }
}

/// A context that was reset without a word has the same handle, and nothing in it that was made before.
#[test]
fn one_that_was_reset_unseen_is_found_out() {
    let rig = rig(256 * MIB, 256 * MIB);
    let chunks = some(&rig, 2);
    furnished(&chunks, &rig);
    begin(&rig, &chunks);
    reset();
    let calls = || happened("cuStreamSynchronize") + happened("cuMemcpyDtoDAsync_v2") + happened("cuLaunchKernel");
    let before = calls();
    rig.moving.ahead.rest(rig.moving, 0);
    rig.moving.ahead.begin(rig.moving, &chunks);
    assert_eq!(calls(), before, "streams that are gone are not asked for anything");
    rig.exchange(&chunks, &[]);
    assert_eq!(happened("cuLaunchKernel"), 0);
    assert!(rig.is_all(&chunks[0], 1) && rig.is_all(&chunks[1], 2));
    // There is another now.
    rig.exchange(&[], &chunks);
    begin(&rig, &chunks);
    rig.exchange(&chunks, &[]);
    assert_eq!(happened("found the same"), 2);
}

#[test]
fn a_chunk_that_is_taken_away_is_read_no_more_and_others_go_on() {
    let rig = rig(256 * MIB, 256 * MIB);
    let mut chunks = some(&rig, 3);
    furnished(&chunks, &rig);
    control("delay 3000");
    begin(&rig, &chunks);
    chunks[0].hold_off(rig.moving);
    rig.unmap(&chunks[0]);
    control("delay 0");
    rig.context.synchronize().expect("what was copied was there");
    // It said that it goes, and does not yet: nothing begins.
    chunks[1].hold_off(rig.moving);
    rig.moving.ahead.begin(rig.moving, &chunks);
    assert!(!rig.moving.ahead.has(&chunks[0]) && !rig.moving.ahead.has(&chunks[1]));
    chunks[1].let_be();
    begin(&rig, &chunks[1..]);
    let rest = chunks.split_off(1);
    rig.exchange(&rest, &[]);
    assert_eq!(happened("found the same"), 2);
    assert!(rig.is_all(&rest[0], 2) && rig.is_all(&rest[1], 3));
}

#[test]
fn buffers_are_within_the_budget_and_make_way_for_what_has_no_room() {
    let budget = 24 * MIB;
    let rig = rig(budget, 256 * MIB);
    let chunks = some(&rig, 6);
    furnished(&chunks, &rig);
    // There is room for six, of which three leave as much as they take.
    assert_eq!(used(), 9 * BYTES as u64);
    control("delay 3000");
    rig.moving.ahead.begin(rig.moving, &chunks);
    assert_eq!(chunks.iter().filter(|chunk| rig.moving.ahead.has(chunk)).count(), 3);
    let prop = AllocationProp::at(MemLocation { kind: location::DEVICE, id: 0 });
    let large = Chunk::new(rig.moving, 12 * MIB, prop, Kind::Linear).unwrap();
    assert!(!large.is_spilled() && used() == budget as u64);
    control("delay 0");
    rig.context.synchronize().unwrap();
    assert_eq!(rig.moving.mapped.kept(), 6 * BYTES as u64);
    // For a while none are made.
    rig.moving.ahead.begin(rig.moving, &chunks);
    rig.exchange(&chunks[..4], &[]);
    assert_eq!(used(), (budget - 4 * BYTES) as u64);
    assert!(chunks[..4].iter().zip(1..).all(|(chunk, value)| rig.is_all(chunk, value)));
}

#[test]
fn what_is_not_sent_makes_room_for_others_and_what_was_just_begun_does_not() {
    let rig = rig(256 * MIB, 256 * MIB);
    let chunks = some(&rig, 20);
    furnished(&chunks, &rig);
    let (first, others) = chunks.split_at(MOST);
    begin(&rig, first);
    rig.moving.ahead.begin(rig.moving, others);
    assert!(!others.iter().any(|chunk| rig.moving.ahead.has(chunk)), "all places are taken");
    rig.exchange(&[], &[]);
    begin(&rig, others);
    rig.exchange(others, &[]);
    assert_eq!(happened("found the same"), 4);
    assert!(others.iter().zip(17..).all(|(chunk, value)| rig.is_all(chunk, value)));
}

#[test]
fn nothing_is_held_on_the_host_beyond_the_limit() {
    let rig = rig(256 * MIB, 3 * BYTES);
    let chunks = some(&rig, 4);
    furnished(&chunks, &rig);
    rig.moving.mapped.make_all(&rig.moving.device(0).unwrap(), vec![BYTES; 4]);
    rig.moving.ahead.begin(rig.moving, &chunks);
    assert_eq!(chunks.iter().filter(|chunk| rig.moving.ahead.has(chunk)).count(), 3);
    assert_eq!(rig.moving.host_room(), 0);
    rig.exchange(&chunks[..3], &[]);
    assert!(chunks[..3].iter().zip(1..).all(|(chunk, value)| rig.is_all(chunk, value)));
}

#[test]
fn all_of_it_is_given_back_when_it_is_told_to() {
    let rig = rig(256 * MIB, 256 * MIB);
    let chunks = some(&rig, 2);
    furnished(&chunks, &rig);
    begin(&rig, &chunks);
    rig.moving.ahead.tidy(rig.moving);
    assert!(rig.moving.ahead.has(&chunks[0]), "it was used a moment ago");
    rig.moving.ahead.give_back(rig.moving);
    assert_eq!((used(), rig.moving.ahead.next_look()), (2 * BYTES as u64, None));
    assert_eq!(rig.moving.mapped.kept(), 2 * BYTES as u64);
}

#[test]
fn nothing_begins_while_memory_is_moved_or_a_graph_is_recorded() {
    let rig = rig(256 * MIB, 256 * MIB);
    let chunks = some(&rig, 2);
    furnished(&chunks, &rig);
    let (state, is_begun) = (state::get(), || rig.moving.ahead.has(&chunks[0]));
    let closed = state.gate.close(Duration::from_secs(5)).unwrap();
    prepare(state, &chunks);
    assert!(!is_begun());
    drop(closed);
    state.capture_began(1);
    prepare(state, &chunks);
    assert!(!is_begun());
    state.capture_ended(1);
    prepare(state, &chunks);
    assert!(is_begun());
    drop(state.gate.close(Duration::from_secs(5)).expect("nobody passes"));
}

#[test]
fn memory_of_every_kind_that_would_be_refused_has_the_room_first() {
    let rig = rig(24 * MIB, 256 * MIB);
    let chunks = some(&rig, 2);
    furnished(&chunks, &rig);
    assert_eq!(used(), 4 * BYTES as u64);
    begin(&rig, &chunks);
    let other = Charge::take(Kind::Linear, Some(0), 20 * MIB).expect("there is room without the buffers");
    assert_eq!(used(), 24 * MIB as u64);
    assert!(Charge::take(Kind::Linear, Some(0), 1).is_none());
    drop(other);
}

#[test]
fn a_process_that_sleeps_holds_none() {
    let rig = rig(256 * MIB, 256 * MIB);
    let chunks = some(&rig, 2);
    furnished(&chunks, &rig);
    control("delay 2000");
    begin(&rig, &chunks);
    assert_eq!(used(), 4 * BYTES as u64);
    assert!(sleep::fall_asleep(rig.moving, state::get(), (0, true)).is_ok());
    control("delay 0");
    // Chunks by themselves are not the program's, and stay.
    assert_eq!((used(), rig.moving.mapped.kept()), (2 * BYTES as u64, 2 * BYTES as u64));
    prepare(state::get(), &chunks);
    rig.context.synchronize().unwrap();
}

/// What the host has for this process in all, with what is copied ahead.
#[test]
fn what_is_copied_ahead_is_within_the_limit_of_the_host() {
    let limit = 4 * BYTES;
    let rig = rig(256 * MIB, limit);
    let chunks = some(&rig, 7);
    let (ahead, others) = chunks.split_at(3);
    furnished(ahead, &rig);
    begin(&rig, ahead);
    let on_host = || state::get().ledger.used(HOST) + rig.moving.ahead.host_bytes() + rig.moving.mapped.kept();
    assert!(on_host() <= limit as u64, "{}", on_host());
    rig.exchange(others, &[]);
    assert!(on_host() <= limit as u64, "{} of {limit}", on_host());
}
